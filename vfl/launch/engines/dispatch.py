"""Running and aligning on the engine that a place stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


def run(
    job: Job,
    sources: Mapping[str, Any],
    budget: Budget,
    log: Log,
    *,
    place: Place | Organisations | None,
    policies: Mapping[str, str],
    arrangement: Arrangement | None = None,
) -> Iterator[Aligning | Aligned | Plan | Reserved | Round | Lost | Made | Outcome]:
    """Align if the job asks for it, load every party, train, and yield what happens; the outcome comes last."""
    if isinstance(place, Organisations):
        from vfl.launch.engines import federation

        return federation.run(job, sources, budget, log, place=place, arrangement=arrangement)
    if place is None:
        from vfl.launch.engines import inprocess

        return inprocess.run(job, sources, budget, log, policies=policies, arrangement=arrangement)
    from vfl.launch.engines import ray as ray_engine

    return ray_engine.run(job, sources, budget, log, place=place, policies=policies, arrangement=arrangement)


def align_only(
    job: Job,
    sources: Mapping[str, Any],
    arrangement: Arrangement,
    *,
    place: Place | Organisations | None,
    policies: Mapping[str, str],
) -> Iterator[Aligning | Aligned]:
    """Yield the progress of an alignment, then its outcome."""
    if isinstance(place, Organisations):
        from vfl.launch.engines import federation

        return federation.align_only(job, sources, arrangement, place=place)
    if place is None:
        from vfl.launch.engines import inprocess

        return inprocess.align_only(job, sources, arrangement, policies=policies)
    from vfl.launch.engines import ray as ray_engine

    return ray_engine.align_only(job, sources, arrangement, place=place, policies=policies)
