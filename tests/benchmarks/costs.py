"""Costs that `vfl plan --nodes` predicts, against those of a run: in one process and on a local Ray.

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
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import vfl
from coordinator.charging.budget import Reserved
from coordinator.coordinator import Coordinator
from coordinator.rounds import Round
from coordinator.traffic import Traffic
from parties.loading import load
from tests.benchmarks.shards import descendants
from vfl.launch.engines.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.launch.train import stream
from vfl.planning import plan
from vfl.planning.cost import INPROCESS, RAY, cost_of, sizes_of
from vfl.planning.machine import Machine

FOLDER = Path(tempfile.gettempdir()) / "vfl-costs"
HELD = {party: [f"{party}{j}" for j in range(10)] for party in ("a", "b")}
PASSES = 4
EVERY_SECONDS = 0.1


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


class Counting(InProcessTransport):
    """Counts the bytes of vectors that would travel to processes of their own."""

    def __init__(self, parties: Any) -> None:
        super().__init__(parties)
        self.traffic = Traffic()

    def ask(self, shares: Any, records: Any, key: Any) -> Any:
        """Count the vectors of a query and of its replies."""
        replies = super().ask(shares, records, key)
        self.traffic.count(records, replies)
        return replies


def bytes_moved(n: int) -> int:
    """Return the bytes of vectors of a run on few records, times n over their number; the labels' own journey included."""
    few, spec, rng = 1_000, job(), np.random.default_rng(0)
    table = {name: rng.uniform(-1.0, 1.0, few) for columns in HELD.values() for name in columns}
    sources = sources_of(spec, table | {"y": rng.integers(0, 2, few)})
    transport = Counting({name: load(spec.for_party(name), source) for name, source in sources.items()})
    list(Coordinator(transport).stream(spec))
    return (transport.traffic.n_bytes + 8 * few) * n // few


def _workers() -> dict[int, str]:
    found = {pid: "worker" for pid, command in descendants().items() if command.startswith(b"ray::")}
    return found | {os.getpid(): "driver"}


def _processor(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _set_size(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024.0


def _sum(of: Any, *, driver: bool) -> float:
    total = 0.0
    for pid, kind in _workers().items():
        if driver or kind == "worker":
            try:
                total += of(pid)
            except (OSError, StopIteration):  # it has ended
                continue
    return total


def measured(n: int, engine: str) -> dict[str, float]:
    """Return seconds, processor seconds and memory of one run."""
    most, watched, done, here = 0.0, 0.0, threading.Event(), engine == INPROCESS

    def watch() -> None:
        nonlocal most, watched
        while True:
            most = max(most, _sum(_set_size, driver=here))
            watched = time.thread_time()
            if done.wait(EVERY_SECONDS):
                return

    def processor() -> float:
        return time.process_time() - watched if here else _sum(_processor, driver=False)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    begun = ended = wall = 0.0
    start = time.perf_counter()
    first = 0.0
    try:
        for event in stream(job(), {name: str(path) for name, path in files(n).items()}, engine=engine, cores=1):
            if isinstance(event, Reserved):
                begun, first = processor(), time.perf_counter() - start
            elif isinstance(event, Round):
                ended, wall = processor(), wall + event.seconds
    finally:
        done.set()
        watching.join()
    return {"seconds": wall, "processor": ended - begun, "memory": most, "start": first}


def ratios(n: int, runs: int) -> dict[str, list[float]]:
    """Return {measure: predicted / measured of each run}."""
    found: dict[str, list[float]] = {}
    sizes, machine = sizes_of(plan(job(), n)), Machine.here()
    moved = bytes_moved(n)
    for _ in range(runs):
        for engine in (INPROCESS, RAY):
            cost, taken = cost_of(sizes, machine, engine), measured(n, engine)
            predicted = {"seconds": cost.seconds, "processor": cost.seconds, "memory": cost.memory}
            for name, value in predicted.items():
                found.setdefault(f"{engine}: {name}", []).append(value / taken[name])
            if engine == RAY:
                centre = cost.nodes[-1]
                found.setdefault(f"{engine}: bytes", []).append((centre.received + centre.sent) / moved)
            found.setdefault(f"{engine}: measured s", []).append(taken["processor"])
            found.setdefault(f"{engine}: measured MB", []).append(taken["memory"] / 1e6)
    return found


def main() -> None:
    """Print median, least and most of each ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, nargs="+", default=[100_000, 1_000_000, 5_000_000])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = {n: ratios(n, arguments.runs) for n in arguments.records}
    if arguments.json:
        print(json.dumps(found))
        return
    for n, measures in found.items():
        for name, values in measures.items():
            print(f"{n:>9,}  {name:<24} {statistics.median(values):9.3f}  ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
