"""Choice of the engine for a site: run a job, align its records, or apply a model on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vfl.job.site import InProcess
from vfl.launch.engines.place import Organisations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from coordinator.charging.budget import Budget
    from coordinator.rounds import Log
    from parties.prediction import ModelPart
    from vfl.alignment import Aligned, Aligning
    from vfl.job import Job
    from vfl.launch.engines.arrangement import ApplyEvent, Arrangement, RunEvent
    from vfl.launch.engines.place import Place
    from vfl.types import Vector


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
    """Align if the job asks for it, load every party, train, and yield the events; the outcome comes last."""
    found: Iterator[RunEvent] = _engine(place).run(job, sources, budget, log, place=place, arrangement=arrangement)
    return found


def align_only(
    job: Job, sources: Mapping[str, Any], arrangement: Arrangement, *, place: Place
) -> Iterator[Aligning | Aligned]:
    """Yield the progress of an alignment, then its outcome."""
    found: Iterator[Any] = _engine(place).align_only(job, sources, arrangement, place=place)
    return found


def apply(
    parts: Mapping[str, ModelPart | str],
    given: Mapping[str, Any],
    policies: Mapping[str, str],
    *,
    place: Place,
    sources: Callable[[], Mapping[str, Any]] | None = None,
    w: Vector | None = None,
    threshold: float | None = None,
) -> Iterator[ApplyEvent]:
    """Have every party apply its part of a model to new records; yield the alignment, then the predictions or the measures.

    parts : {party: its part, or the path of its part}. policies : {party: path of its owner's policy}.
    given : {party: its source as the user gave it}, or across organisations the owner's name of the source.
    sources : function that returns the sources that the parties read, called in this process once all owners' policies are
        checked; None takes `given`.
    w : the whole model, to measure it on the records' labels; None predicts.
    threshold : margin above which the model predicts the positive class; None takes the parts'.
    """
    found: Iterator[ApplyEvent] = _engine(place).apply(
        parts, given, policies, place=place, sources=sources, w=w, threshold=threshold
    )
    return found
