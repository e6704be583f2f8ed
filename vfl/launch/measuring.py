"""Measurement of a machine's constants for `vfl plan`: kernels, releases, memory, and Ray. No private data are used."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from coordinator.charging.budget import Reserved
from coordinator.rounds import Round
from vfl.base.partition import FeaturePartition
from vfl.job import Job
from vfl.job.site import InProcess
from vfl.launch.train import stream
from vfl.network.shards.lending import Borrower, Lender, Lent
from vfl.planning import plan
from vfl.planning.cost import FIRST_READING, Machine, memory_here
from vfl.planning.run_plan import sizes_of
from vfl.privacy.noise import SeededNoise
from vfl.privacy.specification import Privacy
from vfl.solvers import SkGD
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

FEW, RECORDS, COLUMNS, PASSES, TIMES = 200, 200_000, 6, 4, 3
TRIPS = 20
LARGE = 5_000_000
"""Length of a vector that fits no processor's cache."""
SECONDS = 60.0
PRESETS = Machine()


class Echo:
    """Actor that stands for a party without columns. The actor returns a copy of a vector, in shared memory if available."""

    def __init__(self) -> None:
        self._borrower, self._lender = Borrower(), Lender()

    def answer(self, given: Any) -> Any:
        """Copy the vector out of shared memory, and return the copy through shared memory, as a party does."""
        view = self._borrower.borrow(given) if isinstance(given, Lent) else None
        return given if view is None else self._lender.lend(view.copy())

    def process(self, job: Job, table: Any) -> tuple[float, float]:
        """Load a few records; return this worker's memory in bytes and its processor time in seconds."""
        from parties.actor import PartyActor  # the cost of importing it is part of what is measured

        party = PartyActor(job, "a")
        party.load(table)
        return resident(), time.process_time()

    def warmup(self) -> float:
        """Return the extra processor seconds of the first run in this process, compared with later runs."""
        first, *later = _run_seconds(*_simulated(FEW))
        return max(first - min(later), 0.1 * first)


def resident() -> float:
    """Return this process's memory in bytes, with its share of shared pages; the preset if the system reports none."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
        return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return PRESETS.worker_bytes


def measure(*, ray: bool = True) -> Machine:
    """Return the constants of this machine.

    Constants of networks, organisations and shards keep their presets, since one machine cannot measure them.

    ray : True also starts a local Ray, which takes seconds; False keeps the presets of Ray's constants.
    """
    one, two = np.ones(LARGE), np.ones(LARGE)
    found = {**_training(), "copy_bytes_a_second": 24.0 * one.size / _least(lambda: one + two)}
    if ray:
        found |= _on_ray()
    return Machine(cores=os.cpu_count() or 1, memory=memory_here(), measured=__version__, **found)


def _least(run: Callable[[], object], clock: Callable[[], float] = time.process_time, times: int = TIMES) -> float:
    """Return the seconds of the fastest of several calls after a warm-up call. Other programs can only slow a call down."""
    run()
    taken = []
    for _ in range(times):
        start = clock()
        run()
        taken.append(clock() - start)
    return min(taken)


def _training() -> dict[str, float]:
    """Return the costs of a coordinate update and of a release, from runs on few and on many simulated records."""
    job, table = _simulated(FEW)
    sizes = sizes_of(plan(job, FEW))
    worked = sizes.updates + FIRST_READING * sum(sizes.widths.values())  # the first reading counts as updates
    few, many = min(_run_seconds(job, table)), min(_run_seconds(*_simulated(RECORDS)))
    return {"update_seconds": max(many - few, 0.1 * many) / (worked * RECORDS), "release_seconds": few / sizes.updates}


def _simulated(n: int) -> tuple[Job, dict[str, Any]]:
    """Return a private job of two parties, and a table of random numbers as data for the job."""
    rng = np.random.default_rng(0)
    held = {party: [f"{party}{j}" for j in range(COLUMNS)] for party in ("a", "b")}
    names = [name for columns in held.values() for name in columns]
    table = {name: rng.uniform(-1.0, 1.0, n) for name in names} | {"y": rng.integers(0, 2, n)}
    job = Job(
        partition=FeaturePartition(held, label=("b", "y")),
        bounds=dict.fromkeys(names, (-1.0, 1.0)),
        privacy=Privacy(epsilon=1.0, delta=1e-9, noise=SeededNoise(0)),  # random data need no protection
        solver=SkGD(passes=PASSES),
    )
    return job, table


def _run_seconds(job: Job, table: dict[str, Any]) -> list[float]:
    """Return the processor seconds of all rounds, for each of several runs in this process."""
    taken = []
    for _ in range(TIMES):
        begun = ended = 0.0
        for event in stream(job, table, at=InProcess(num_cpus=1)):
            if isinstance(event, Reserved):
                begun = time.process_time()
            elif isinstance(event, Round):
                ended = time.process_time()
        taken.append(ended - begun)
    return taken


def _on_ray() -> dict[str, float]:
    from vfl.launch.sites.connection import connected

    begun = time.perf_counter()
    with connected(2, None) as ray:
        started = time.perf_counter() - begun
        actor = ray.remote(Echo).options(num_cpus=1).remote()
        job, table = _simulated(FEW)
        source = pa.table({name: cells for name, cells in table.items() if name.startswith("a")})
        held, spent = ray.get(actor.process.remote(job, source), timeout=SECONDS)
        warmup = ray.get(actor.warmup.remote(), timeout=SECONDS)
        lender, vector = Lender(), np.ones(LARGE)

        def trip(given: Callable[[], Any], times: int) -> float:
            return _least(lambda: ray.get(actor.answer.remote(given()), timeout=SECONDS), time.perf_counter, times)

        empty, full = trip(lambda: 1.0, TRIPS * TIMES), trip(lambda: lender.lend(vector) or vector, TIMES)
        ray.kill(actor)
    return {
        "start_seconds": started,
        "worker_bytes": held,
        "worker_seconds": spent,
        "warmup_seconds": warmup,
        "trip_seconds": empty,
        "vector_bytes_a_second": 16.0 * LARGE / max(full - empty, 0.1 * full),
    }
