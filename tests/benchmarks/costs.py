"""Costs that `vfl plan --explain` predicts, against those of a run: in one process and on a local Ray.

    python -m tests.benchmarks.costs [--records N ...] [--runs N] [--json]

Two parties hold ten columns each in Parquet files, which are written once to the folder of the system's temporary files.
Predictions use the constants of this machine that `vfl doctor --measure` stored, or else the presets. For each number of
records n, engine and run it prints predicted / measured of

    seconds      the rounds' time by the wall
    processor    the rounds' processor time, of all processes of the run, for one thread; others on the machine disturb it less
    memory       the largest sum over workers of their proportional set size (PSS), which counts shared pages once
    bytes        the per-record vectors between coordinator and parties

Kernels use one thread in all arms, so that processor time is comparable. The run's own bytes are counted in one process,
whose messages are those of Ray; a vector that stays the same is counted once, as Ray sends it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import vfl
from coordinator.charging.budget import Reserved
from coordinator.coordinator import Coordinator
from coordinator.rounds import Round
from parties.joined import serve
from parties.loading import load
from tests.benchmarks.shards import descendants
from tests.coordinator.organisations import federation
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.launch.train import stream
from vfl.network.federation.file import identity_for, read_federation
from vfl.planning import plan
from vfl.planning.cost import FEDERATION, INPROCESS, RAY, Machine, cost_of
from vfl.planning.run_plan import sizes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from vfl.planning.cost import Cost

FOLDER = Path(tempfile.gettempdir()) / "vfl-costs"
HELD = {party: [f"{party}{j}" for j in range(10)] for party in ("a", "b")}
PASSES = 4
MOST_COUNTED = 100_000
EVERY_SECONDS = 0.1
SHARDS = 2
SHARDED = f"ray, {SHARDS} shards"
ARMS = (INPROCESS, RAY, SHARDED, FEDERATION)


def job() -> vfl.Job:
    """Return a private logistic job of four passes, with ten columns per party."""
    names = [name for columns in HELD.values() for name in columns]
    return vfl.Job(
        partition=vfl.FeaturePartition(HELD, label=("b", "y")),
        bounds=dict.fromkeys(names, (-1.0, 1.0)),
        privacy=vfl.Privacy(epsilon=1.0, delta=1e-9, smoothness="bounds", noise=vfl.SeededNoise(1)),
        solver=vfl.SkGD(passes=PASSES, sampling="cyclic", clip="record"),
    )


def files(n: int) -> dict[str, Path]:
    """Return {party: Parquet file} of n records, written unless they are there."""
    paths = {party: FOLDER / f"{party}-{n}.parquet" for party in HELD}
    if not all(path.is_file() for path in paths.values()):
        FOLDER.mkdir(exist_ok=True)
        rng = np.random.default_rng(0)
        for party, path in paths.items():
            labels = {"y": rng.integers(0, 2, n)} if party == "b" else {}
            pq.write_table(pa.table({name: rng.uniform(-1.0, 1.0, n) for name in HELD[party]} | labels), path)
    return paths


def bytes_moved(n: int) -> int:
    """Return the bytes of vectors of a run, the labels' own journey included.

    Beyond MOST_COUNTED records they are those of a run on so many, in proportion. A run on far fewer would make other releases.
    """
    few, spec, rng = min(n, MOST_COUNTED), job(), np.random.default_rng(0)
    table = {name: rng.uniform(-1.0, 1.0, few) for columns in HELD.values() for name in columns}
    sources = sources_of(spec, table | {"y": rng.integers(0, 2, few)})
    transport = InProcessTransport({name: load(spec.for_party(name), source) for name, source in sources.items()})
    list(Coordinator(transport).stream(spec))
    return (transport.traffic.n_bytes + 8 * few) * n // few


def _processor(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _set_size(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024.0


def _sum(of: Any, pids: Iterable[int]) -> float:
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError, StopIteration):  # it has ended
            total += of(pid)
    return total


def join(folder: str, party: str, source: str, policy: str) -> None:
    """Serve a party of a federation in this process until it is ended."""
    read = read_federation(Path(folder) / "credit.toml")
    own = identity_for(read, Path(folder) / "credit.toml", party)
    serve(own, read, {"": source}, Path(policy), lambda _: None, threading.Event(), cores=1)


@contextlib.contextmanager
def started(n: int, arm: str) -> Iterator[tuple[Iterator[Any], Callable[[], set[int]]]]:
    """Yield the events of a run, and a function that returns the ids of its processes without this one."""
    sources = {name: str(path) for name, path in files(n).items()}
    if arm == FEDERATION:
        spawned = multiprocessing.get_context("spawn")
        with tempfile.TemporaryDirectory() as folder, federation(Path(folder), tuple(HELD)) as joined:
            parties = [
                spawned.Process(target=join, args=(folder, name, source, str(joined.policy(name))), daemon=True)
                for name, source in sources.items()
            ]
            for party in parties:
                party.start()
            try:
                yield stream(job(), at=joined.place), lambda: {int(party.pid or 0) for party in parties}
            finally:
                for party in parties:
                    party.terminate()
                    party.join()
        return
    shards = SHARDS if arm == SHARDED else 1
    site = vfl.InProcess(num_cpus=1, shards=shards) if arm == INPROCESS else vfl.Ray(num_cpus=1, shards=shards)
    yield (
        stream(job(), sources, at=site),
        lambda: {pid for pid, command in descendants().items() if command.startswith(b"ray::")},
    )


def measured(n: int, arm: str) -> dict[str, float]:
    """Return the seconds and processor seconds of the rounds of one run, and the memory of another run.

    The runs are separate because readings of memory take time.
    """
    return times(n, arm) | {"memory": memory(n, arm)}


def times(n: int, arm: str) -> dict[str, float]:
    """Return seconds and processor seconds of the rounds of a run."""
    begun = ended = wall = 0.0
    known: set[int] = set()
    with started(n, arm) as (events, others):
        for event in events:
            if not isinstance(event, Reserved | Round):
                continue
            pids = others() | ({os.getpid()} if arm in (INPROCESS, FEDERATION) else set())
            ended = _sum(_processor, pids)
            if isinstance(event, Reserved):
                begun = ended
            elif not event.number:  # the shards of the margins have started since the reservation
                begun += _sum(_processor, pids - known)
            known = pids
            wall += getattr(event, "seconds", 0.0)
    return {"seconds": wall, "processor": ended - begun}


def memory(n: int, arm: str) -> float:
    """Return the largest sum of the memory of all processes of a run."""
    most, done = 0.0, threading.Event()
    with started(n, arm) as (events, others):

        def watch() -> None:
            nonlocal most
            while not done.wait(EVERY_SECONDS):
                most = max(
                    most, _sum(_set_size, others() | ({os.getpid()} if arm in (INPROCESS, FEDERATION) else set()))
                )

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            for _ in events:
                pass
        finally:
            done.set()
            watching.join()
    return most


def predicted(n: int, arm: str) -> Cost:
    """Return the predicted cost of a run whose kernels use one thread."""
    sizes, machine = sizes_of(plan(job(), n)), Machine.here()
    if arm == SHARDED:
        return cost_of(sizes, machine, RAY, shards=SHARDS)
    return cost_of(sizes, machine, arm)


def ratios(n: int, runs: int, arms: Sequence[str]) -> dict[str, list[float]]:
    """Return {measure: predicted / measured of each run}."""
    found: dict[str, list[float]] = {}
    moved = bytes_moved(n)
    for _, arm in itertools.product(range(runs), arms):
        cost, taken = predicted(n, arm), measured(n, arm)
        expected = {
            "seconds": cost.seconds,
            "processor": cost.seconds,
            "memory": sum(node.count * node.memory for node in cost.nodes),
        }
        for name, value in expected.items():
            found.setdefault(f"{arm}: {name}", []).append(value / taken[name])
        if arm != INPROCESS:
            centre = cost.nodes[-1]
            found.setdefault(f"{arm}: bytes", []).append((centre.received + centre.sent) * centre.count / moved)
        found.setdefault(f"{arm}: measured s", []).append(taken["processor"])
        found.setdefault(f"{arm}: measured MB", []).append(taken["memory"] / 1e6)
    return found


def main() -> None:
    """Print median, least and most of each ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, nargs="+", default=[100_000, 1_000_000, 5_000_000])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = {n: ratios(n, arguments.runs, arguments.arms) for n in arguments.records}
    if arguments.json:
        print(json.dumps(found))
        return
    for n, measures in found.items():
        for name, values in measures.items():
            print(f"{n:>9,}  {name:<24} {statistics.median(values):9.3f}  ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
