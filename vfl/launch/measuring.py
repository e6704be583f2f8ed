"""Measurement of a machine's constants for `vfl plan`: kernels, releases, memory, and Ray. No data are involved."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.charging.budget import Reserved
from coordinator.rounds import Round
from vfl.job import Job
from vfl.launch.train import stream
from vfl.partition import FeaturePartition
from vfl.planning import plan
from vfl.planning.cost import sizes_of
from vfl.planning.machine import Machine, memory_here
from vfl.privacy.noise import SeededNoise
from vfl.privacy.specification import Privacy
from vfl.solvers import SkGD
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

FEW, RECORDS, COLUMNS, PASSES, TIMES = 200, 200_000, 6, 4, 3
TRIPS = 20
SECONDS = 60.0
PRESETS = Machine()


class Echo:
    """Actor that returns a changed copy of a vector."""

    def answer(self, vector: Any) -> Any:
        """Return the vector plus one."""
        return vector + 1.0

    def process(self) -> tuple[float, float]:
        """Return the bytes of memory of a vfl worker, and the processor seconds that it has used."""
        import parties.actor  # noqa: F401  # the cost of importing it is what is measured

        return resident(), time.process_time()


def resident() -> float:
    """Return the bytes of memory of this process, or the preset if the system does not report them."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return float(int(pages) * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, IndexError):
        return PRESETS.worker_bytes


def measure(*, ray: bool = True) -> Machine:
    """Return this machine's constants. Those between nodes stay presets, since one machine cannot measure them.

    ray : start a local Ray too, which takes some seconds; without it, its constants are the presets.
    """
    found: dict[str, float] = {
        **_training(),
        "copy_bytes_a_second": _copy_bytes_a_second(),
    }
    if ray:
        found |= _on_ray()
    return Machine(cores=os.cpu_count() or 1, memory=memory_here(), measured=__version__, **found)


def _least(run: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Return the least seconds of several calls, after one that is not counted. Other programs can only add time."""
    run()
    taken = []
    for _ in range(TIMES):
        start = clock()
        run()
        taken.append(clock() - start)
    return min(taken)


def _training() -> dict[str, float]:
    """Return the costs of a coordinate update and of a release, from runs on few and on many simulated records."""
    few, updates = _run_seconds(FEW)
    many, _ = _run_seconds(RECORDS)
    return {
        "update_seconds": max(many - few, 0.1 * many) / (updates * RECORDS),
        "release_seconds": few / updates,
    }


def _run_seconds(n: int) -> tuple[float, int]:
    """Return the least processor seconds that the rounds of a private run took on n records, and its coordinate updates."""
    rng = np.random.default_rng(0)
    held = {party: [f"{party}{j}" for j in range(COLUMNS)] for party in ("a", "b")}
    names = [name for columns in held.values() for name in columns]
    table = {name: rng.uniform(-1.0, 1.0, n) for name in names} | {"y": rng.integers(0, 2, n)}
    job = Job(
        partition=FeaturePartition(held, label=("b", "y")),
        bounds=dict.fromkeys(names, (-1.0, 1.0)),
        privacy=Privacy(epsilon=1.0, delta=1e-9, noise=SeededNoise(0)),  # of random numbers, which nothing protects
        solver=SkGD(passes=PASSES),
    )
    taken = []
    for _ in range(TIMES):
        begun = ended = 0.0
        for event in stream(job, table, engine="inprocess"):
            if isinstance(event, Reserved):
                begun = time.process_time()
            elif isinstance(event, Round):
                ended = time.process_time()
        taken.append(ended - begun)
    return min(taken), sizes_of(plan(job, n)).updates


def _copy_bytes_a_second() -> float:
    one, two = np.ones(RECORDS * 8), np.ones(RECORDS * 8)
    return 24.0 * one.size / _least(lambda: one + two)


def _on_ray() -> dict[str, float]:
    from vfl.launch.engines.connection import connected

    begun = time.perf_counter()
    with connected(2, None) as ray:
        started = time.perf_counter() - begun
        actor = ray.remote(Echo).options(num_cpus=1).remote()
        held, spent = ray.get(actor.process.remote(), timeout=SECONDS)

        def trips(vector: Any) -> float:
            def some() -> None:
                for _ in range(TRIPS):
                    ray.get(actor.answer.remote(vector), timeout=SECONDS)

            return _least(some, time.perf_counter) / TRIPS

        empty, full = trips(1.0), trips(np.ones(RECORDS))
        ray.kill(actor)
    return {
        "start_seconds": started,
        "worker_bytes": held,
        "worker_seconds": spent,
        "trip_seconds": empty,
        "vector_bytes_a_second": 16.0 * RECORDS / max(full - empty, 0.1 * full),
    }
