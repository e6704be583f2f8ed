"""Choice of the engine for a site. The engine runs a job, aligns its records, or applies a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vfl.job.site import InProcess
from vfl.launch.engines.place import Organisations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from coordinator.charging.budget import Budget
    from coordinator.rounds import Log
    from vfl.alignment import Aligned, Aligning
    from vfl.job import Job
    from vfl.launch.engines.arrangement import Application, ApplyEvent, Arrangement, RunEvent
    from vfl.launch.engines.place import Place


def _engine(place: Place) -> Any:
    if isinstance(place, Organisations):
        from vfl.launch.engines import federation

        return federation
    if isinstance(place, InProcess):
        from vfl.launch.engines import inprocess

        return inprocess
    from vfl.launch.engines import ray

    return ray


def run(
    job: Job, sources: Mapping[str, Any], budget: Budget, log: Log, *, place: Place, arrangement: Arrangement
) -> Iterator[RunEvent]:
    """Run a job: align the records if the job asks for it, load every party, train. Yield the events, last the outcome."""
    found: Iterator[RunEvent] = _engine(place).run(job, sources, budget, log, place=place, arrangement=arrangement)
    return found


def align_only(
    job: Job, sources: Mapping[str, Any], arrangement: Arrangement, *, place: Place
) -> Iterator[Aligning | Aligned]:
    """Yield the progress of an alignment, then the outcome of the alignment."""
    found: Iterator[Any] = _engine(place).align_only(job, sources, arrangement, place=place)
    return found


def apply(asked: Application, *, place: Place) -> Iterator[ApplyEvent]:
    """Let every party apply its part of a model to new records. Yield the alignment's events, then predictions or measures."""
    found: Iterator[ApplyEvent] = _engine(place).apply(asked, place=place)
    return found
