"""Costs of a round beyond its arithmetic and its trip, as ratios from one run.

    python -m tests.benchmarks.rounds [--data DIR] [--runs N]

1. An in-process pass in single-coordinate blocks against a bare numba loop that does the same arithmetic (at most 1.15).
2. A visit on Ray, without the party's computation, against a bare actor round trip with the same vectors (at most 1.2);
   and the growth of its coordinator's memory over ten thousand rounds.
3. Fifty passes of two parties on Ray with sweeps against 100 bare actor round trips with the same vectors (at most 1.7).
4. The time from `train` to the first round of a local job, with compiled kernels in the cache (under 6 s), and of a job
   on a running Ray (under 3 s).

The data are Electricity (45,312 × 8, a file electricity.parquet in DIR), or random numbers of the same shape.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import time
from dataclasses import replace
from pathlib import Path

import numba
import numpy as np
import pyarrow as pa

import vfl
from vfl.launch.sites.connection import connected
from vfl.launch.sources import sources_of
from vfl.launch.train import stream

N, P = 45_312, 8


def table(folder):
    """Return Electricity with features x0..x7 and label y, or random numbers of its shape."""
    if folder is not None:
        import pyarrow.parquet as pq

        frame = pq.read_table(Path(folder) / "electricity.parquet")
        columns = [frame[name].to_numpy().astype(float) for name in frame.column_names]
        lows, highs = [c.min() for c in columns], [c.max() for c in columns]
        scaled = [(c - lo) / (hi - lo) for c, lo, hi in zip(columns[:P], lows, highs, strict=False)]
        return pa.table({f"x{j}": c for j, c in enumerate(scaled)} | {"y": columns[P]})
    rng = np.random.default_rng(0)
    X = rng.random((N, P))
    y = (X @ rng.normal(size=P) + rng.normal(size=N) > 0).astype(float)
    return pa.table({f"x{j}": X[:, j] for j in range(P)} | {"y": y})


def job(parties, passes):
    """Return an ordinary private job in single-coordinate blocks, without intercept or private moments."""
    columns = [f"x{j}" for j in range(P)]
    share = P // parties
    partition = vfl.FeaturePartition.from_sizes(dict.fromkeys((f"party{k}" for k in range(parties)), share), columns)
    return vfl.Job(
        partition=partition,
        bounds=dict.fromkeys(columns, (0.0, 1.0)),
        intercept=False,
        penalty=vfl.L2(1e-4),
        privacy=vfl.Privacy(epsilon=1.0, smoothness="bounds"),
        solver=vfl.SkGD(block_size=1, passes=passes, sampling="cyclic"),
    )


@numba.njit(cache=True)
def bare_pass(X, y, v, w, limits, scale, step):
    """One pass of coordinate descent under a record cap, as one would write it: residuals within ±limits, step, margins."""
    for j in range(X.shape[1]):
        total = 0.0
        for i in range(y.size):
            r = -y[i] / (1.0 + math.exp(y[i] * v[i]))
            total += min(max(r, -limits[i]), limits[i]) * X[i, j] * scale
        delta = -step * total
        w[j] += delta
        for i in range(y.size):
            v[i] += delta * X[i, j]


def in_process(frame, runs, passes=10):
    """Return [ratio]: an in-process pass over a bare one, in turn."""
    X = np.asfortranarray(np.column_stack([frame[f"x{j}"].to_numpy() for j in range(P)]))
    y = 2.0 * frame["y"].to_numpy() - 1.0
    limits = 3.0 / np.linalg.norm(2.0 * X, axis=1)
    bare_pass(X, y, np.zeros(len(y)), np.zeros(P), limits, 2.0, 1e-9)
    spec = job(1, passes)
    ratios = []
    for _ in range(runs + 1):
        rounds = [e for e in stream(spec, frame, at="inprocess") if hasattr(e, "seconds") and hasattr(e, "kind")]
        ours = sum(r.seconds for r in rounds) / passes
        v, w = np.zeros(len(y)), np.zeros(P)
        start = time.perf_counter()
        for _ in range(passes):
            bare_pass(X, y, v, w, limits, 2.0, 1e-9)
        ratios.append(ours / ((time.perf_counter() - start) / passes))
    return ratios[1:]


class Bare:
    """An actor that does nothing with the same vectors."""

    def answer(self, margins, labels):
        """Return an n-vector."""
        return margins + 1.0


class Trips:
    """Drives others from an actor, as the coordinator does."""

    def bare(self, actor, labels, margins, count=100):
        """Return the seconds of so many round trips."""
        import ray

        start = time.perf_counter()
        for _ in range(count):
            margins = ray.get(actor.answer.remote(margins, labels))
        return time.perf_counter() - start

    def visits(self, spec, actors):
        """Return (seconds of the rounds, of these in the parties, rounds, bytes by which memory grew after a tenth)."""
        from coordinator.cluster.ray_transport import RayTransport
        from coordinator.coordinator import Coordinator
        from coordinator.rounds import Round

        transport = RayTransport(actors, 60.0)
        seconds, count, early, late = 0.0, 0, 0, 0
        for event in Coordinator(transport).stream(spec):
            if isinstance(event, Round):
                seconds, count = seconds + event.seconds, count + 1
                if count in (1000, 10_000):
                    early, late = (resident(), late) if count == 1000 else (early, resident())
        return seconds, transport.traffic.party_seconds, count, late - early


def resident():
    """Return the bytes that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def visits(ray, frame, runs):
    """Return [ratio]: a visit without the party's own time over a bare trip, in turn."""
    from parties.actor import PartyActor

    driver, bare = ray.remote(Trips).options(num_cpus=0).remote(), ray.remote(Bare).options(num_cpus=1).remote()
    labels, margins = ray.put(np.ones(frame.num_rows)), np.ones(frame.num_rows)
    ratios = []
    # A party answers each key of true noise once, and here the same parties serve several runs.
    spec = replace(job(2, 50), privacy=vfl.Privacy(epsilon=1.0, smoothness="bounds", noise=vfl.SeededNoise(0)))
    sources = sources_of(spec, frame)
    actors = {name: ray.remote(PartyActor).options(num_cpus=1).remote(spec, name) for name in sources}
    ray.get([actors[name].load.remote(source) for name, source in sources.items()])
    for _ in range(runs + 1):
        trip = ray.get(driver.bare.remote(bare, labels, margins)) / 100
        seconds, inside, count, _ = ray.get(driver.visits.remote(spec, actors))
        ratios.append((seconds - inside) / count / trip)
    for actor in (*actors.values(), driver, bare):
        ray.kill(actor)
    return ratios[1:]


def growth(ray, frame):
    """Return the megabytes by which a coordinator's memory grows from round 1,000 to round 10,000."""
    from parties.actor import PartyActor

    driver, small = ray.remote(Trips).options(num_cpus=0).remote(), frame.slice(0, 500)
    long = replace(
        job(2, 2500),
        solver=vfl.SkGD(block_size=1, passes=1300, sampling="cyclic", details=vfl.solvers.Details(message="block")),
    )
    sources = sources_of(long, small)
    actors = {name: ray.remote(PartyActor).options(num_cpus=1).remote(long, name) for name in sources}
    ray.get([actors[name].load.remote(source) for name, source in sources.items()])
    grown = ray.get(driver.visits.remote(long, actors))[3] / 1e6
    for actor in (*actors.values(), driver):
        ray.kill(actor)
    return grown


def on_ray(frame, runs):
    """Return {what: [value]} of everything that is measured on Ray."""
    spec = job(2, 50)
    ratios, warm = [], []
    with connected(5, None) as ray:
        alone, grown = visits(ray, frame, runs), [growth(ray, frame)]
        driver, actor = ray.remote(Trips).options(num_cpus=0).remote(), ray.remote(Bare).options(num_cpus=1).remote()
        labels, margins = ray.put(np.ones(frame.num_rows)), np.ones(frame.num_rows)
        for _ in range(runs + 1):
            bare = ray.get(driver.bare.remote(actor, labels, margins))
            rounds = [e for e in stream(spec, frame, at="ray") if hasattr(e, "kind")]
            ratios.append(sum(r.seconds for r in rounds) / bare)
            warm.append(first(spec, frame))
    firsts = [first(spec, frame) for _ in range(2)]
    return {
        "a visit without its arithmetic / bare round trip (at most 1.2)": alone,
        "memory that 9,000 more rounds took, MB": grown,
        "50 passes on Ray / 100 bare round trips (at most 1.7)": ratios[1:],
        "seconds to the first round, Ray up (under 3)": warm[1:],
        "seconds to the first round (under 6)": firsts[1:],
    }


def first(spec, frame):
    """Return the seconds to the first round."""
    start = time.perf_counter()
    with contextlib.closing(stream(spec, frame, at="ray")) as events:
        next(e for e in events if hasattr(e, "kind"))
    return time.perf_counter() - start


def main():
    """Print the ratios: median, least and most."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder with electricity.parquet")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    frame = table(arguments.data)
    results = {"in-process pass / bare numba pass (at most 1.15)": in_process(frame, arguments.runs)}
    results |= on_ray(frame, arguments.runs)
    if arguments.json:
        print(json.dumps(results))
        return
    for name, values in results.items():
        print(f"{name:<62} {statistics.median(values):.3f}  ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
