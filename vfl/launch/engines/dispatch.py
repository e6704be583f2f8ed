"""Choice of the engine for a site: run or align a job on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vfl.job.site import InProcess
from vfl.launch.engines.place import Organisations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from coordinator.charging.budget import Budget, Reserved
    from coordinator.coordinator import Outcome
    from coordinator.rounds import Log, Lost, Made, Round
    from vfl.alignment import Aligned, Aligning
    from vfl.job import Job
    from vfl.launch.engines.arrangement import Arrangement
    from vfl.launch.engines.place import Place
    from vfl.planning import Plan


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
) -> Iterator[Aligning | Aligned | Plan | Reserved | Round | Lost | Made | Outcome]:
    """Align if the job asks for it, load every party, train, and yield the events; the outcome comes last."""
    found: Iterator[Any] = _engine(place).run(job, sources, budget, log, place=place, arrangement=arrangement)
    return found


def align_only(
    job: Job, sources: Mapping[str, Any], arrangement: Arrangement, *, place: Place
) -> Iterator[Aligning | Aligned]:
    """Yield the progress of an alignment, then its outcome."""
    found: Iterator[Any] = _engine(place).align_only(job, sources, arrangement, place=place)
    return found
