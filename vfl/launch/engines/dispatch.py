"""Choice of the engine for a site: run a job, align its records, or apply a model at the site."""

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
    """Align the records if the job asks for it, load every party, train, and yield the events; the outcome comes last."""
    found: Iterator[RunEvent] = _engine(place).run(job, sources, budget, log, place=place, arrangement=arrangement)
    return found


def align_only(
    job: Job, sources: Mapping[str, Any], arrangement: Arrangement, *, place: Place
) -> Iterator[Aligning | Aligned]:
    """Yield the progress of an alignment, then its outcome."""
    found: Iterator[Any] = _engine(place).align_only(job, sources, arrangement, place=place)
    return found


def apply(asked: Application, *, place: Place) -> Iterator[ApplyEvent]:
    """Have every party apply its part of a model to new records; yield the alignment, then the predictions or the measures."""
    found: Iterator[ApplyEvent] = _engine(place).apply(asked, place=place)
    return found
