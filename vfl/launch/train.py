"""`train`: a job and its data in, a result out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.coordinator import Outcome
from vfl.errors import SpecificationError
from vfl.launch.result import Result
from vfl.launch.sources import sources_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coordinator.rounds import Round
    from vfl.job import Job
    from vfl.plan import Plan

ENGINES = ("ray", "inprocess")


def stream(job: Job, data: Any, *, engine: str = "ray", address: str | None = None) -> Iterator[Plan | Round | Result]:
    """Train, and yield the plan, a record for every round, and at last the result. Arguments as `train`."""
    if engine not in ENGINES:
        raise SpecificationError(f"unknown engine {engine!r}; give one of: {', '.join(ENGINES)}")
    if address is not None and engine != "ray":
        raise SpecificationError("an address names a Ray cluster: leave it out, or use engine='ray'")
    sources = sources_of(job.partition, data)
    if engine == "ray":
        from vfl.launch import cluster

        events = cluster.run(job, sources, address=address)
    else:
        from vfl.launch import inprocess

        events = inprocess.run(job, sources)
    for event in events:
        yield Result.of(event) if isinstance(event, Outcome) else event


def train(
    job: Job,
    data: Any,
    *,
    engine: str = "ray",
    address: str | None = None,
    watch: Callable[[Plan | Round], None] | None = None,
) -> Result:
    """Train the job's model; it is (ε, δ)-differentially private for every record as its certificate states.

    data : {party: source}, each loaded by its own party (a path to CSV, Parquet, Arrow or NumPy; a pandas, Polars or
        Arrow table; an array whose columns are in the partition's order), or one table of all columns, to simulate.
    engine : 'ray' (one actor per party and one for the coordinator) or 'inprocess'. Both give the same model for the
        same seeded noise.
    address : a Ray cluster; None uses the Ray that is running, or starts a local one.
    watch : called with the plan and with every round, as they go by.

    Raises SpecificationError, DataError, BudgetError or FederationError (vfl.errors), before any release if they can.
    """
    for event in stream(job, data, engine=engine, address=address):
        if isinstance(event, Result):
            return event
        if watch is not None:
            watch(event)
    raise AssertionError("a run ended without its outcome")
