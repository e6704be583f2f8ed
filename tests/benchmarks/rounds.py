"""What a round costs beyond its arithmetic and its trip, as ratios in one run.

    python -m tests.benchmarks.rounds [--data DIR] [--runs N]

1. An in-process pass in single-coordinate blocks against a bare numba loop that does the same arithmetic (at most 1.15).
2. Fifty passes of two parties on Ray with sweeps against 100 bare actor round trips with the same vectors (at most 1.7).
3. From `train` to the first round of a local job, with compiled kernels in the cache (under 6 s).

The data are Electricity (45,312 × 8, a file electricity.parquet in DIR), or numbers of the same shape.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path

import numba
import numpy as np
import pyarrow as pa

import vfl
from vfl.launch.cluster import connected
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
def bare_pass(X, y, v, w, clip, scale, step):
    """One pass of coordinate descent, as one would write it: clipped gradient, step, margins."""
    for j in range(X.shape[1]):
        total = 0.0
        for i in range(y.size):
            g = -y[i] / (1.0 + math.exp(y[i] * v[i])) * X[i, j] * scale
            total += min(max(g, -clip), clip)
        delta = -step * total
        w[j] += delta
        for i in range(y.size):
            v[i] += delta * X[i, j]


def in_process(frame, runs, passes=10):
    """Return [ratio]: an in-process pass over a bare one, in turn."""
    X = np.asfortranarray(np.column_stack([frame[f"x{j}"].to_numpy() for j in range(P)]))
    y = 2.0 * frame["y"].to_numpy() - 1.0
    bare_pass(X, y, np.zeros(len(y)), np.zeros(P), 3.0, 2.0, 1e-9)
    spec = job(1, passes)
    ratios = []
    for _ in range(runs + 1):
        rounds = [e for e in stream(spec, frame, engine="inprocess") if hasattr(e, "seconds") and hasattr(e, "kind")]
        ours = sum(r.seconds for r in rounds) / passes
        v, w = np.zeros(len(y)), np.zeros(P)
        start = time.perf_counter()
        for _ in range(passes):
            bare_pass(X, y, v, w, 3.0, 2.0, 1e-9)
        ratios.append(ours / ((time.perf_counter() - start) / passes))
    return ratios[1:]


def on_ray(frame, runs):
    """Return ([ratio], [seconds to the first round]): 50 passes of two parties over 100 bare round trips."""
    spec = job(2, 50)
    ratios, firsts = [], []
    with connected(4, None) as ray:

        class Bare:
            def answer(self, margins, labels):
                return margins + 1.0

        actor = ray.remote(Bare).options(num_cpus=1).remote()
        n = frame.num_rows
        labels, margins = ray.put(np.ones(n)), np.ones(n)

        class Driver:
            def trips(self, actor, labels, margins):
                import time

                start = time.perf_counter()
                for _ in range(100):
                    margins = ray.get(actor.answer.remote(margins, labels))
                return time.perf_counter() - start

        driver = ray.remote(Driver).options(num_cpus=0).remote()
        for _ in range(runs + 1):
            bare = ray.get(driver.trips.remote(actor, labels, margins))
            rounds = [e for e in stream(spec, frame) if hasattr(e, "kind")]
            ratios.append(sum(r.seconds for r in rounds) / bare)
    for _ in range(2):
        start = time.perf_counter()
        events = stream(spec, frame)
        for event in events:
            if hasattr(event, "kind"):
                firsts.append(time.perf_counter() - start)
                break
        events.close()
    return ratios[1:], firsts[1:]


def main():
    """Print the ratios: median, least and most."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder with electricity.parquet")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    frame = table(arguments.data)
    ray_ratios, firsts = on_ray(frame, arguments.runs)
    results = {
        "in-process pass / bare numba pass (at most 1.15)": in_process(frame, arguments.runs),
        "50 passes on Ray / 100 bare round trips (at most 1.7)": ray_ratios,
        "seconds to the first round (under 6)": firsts,
    }
    if arguments.json:
        print(json.dumps(results))
        return
    for name, values in results.items():
        print(f"{name:<55} {statistics.median(values):.3f}  ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
