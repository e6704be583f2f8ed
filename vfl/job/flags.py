"""Flags for data-dependent values that a job releases without noise or charge, and the queries that may release them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfl.queries import Backward, ExactTally, Moments, Query

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vfl.job.job import Job

UNCHARGED = "trained with privacy=None: the model is not differentially private"
NOT_PRIVATE = "NOT PRIVATE"


def flags_of(job: Job) -> tuple[str, ...]:
    """Return one sentence for each data-dependent value that the job does not charge; () if every such value is charged."""
    privacy = job.privacy
    if privacy is None:
        return (UNCHARGED,)
    flags = []
    if privacy.noise is not None:
        flags.append(f"{NOT_PRIVATE}: the noise is seeded, so anyone who knows the seed can subtract it")
    if privacy.smoothness == "data":
        flags.append(
            f"{NOT_PRIVATE} as a whole: means and smoothness of the columns were computed from the data and not charged "
            "(smoothness='data'); ε would hold only if these had been fixed public numbers"
        )
    if job.uncharged:
        flags.append(f"{NOT_PRIVATE} as a whole: {job.uncharged}")
    if privacy.read_from_data:
        flags.append(
            f"{NOT_PRIVATE} as a whole: the job rests on {privacy.read_from_data}, read from the records and not charged: one "
            "record can change them, and with them what every other record contributes"
        )
    if job.start is not None and job.start.informed:
        known = job.start.dataset is not None and job.start.dataset == job.dataset
        start = f"training starts from the model {job.start.model[:12]}" + (", of the same data set" if known else "")
        flags.append(
            f"{start}: the ε stated for this run covers only records on which that model was not trained. For all others, "
            "add the cost of that model, which the job declares"
            if job.start.private
            else f"{NOT_PRIVATE} as a whole: {start}, whose cost is not stated or which has no guarantee; ε would hold only "
            "for records on which that model was not trained"
        )
    if not getattr(job.solver, "private", True):
        flags.append(
            f"{NOT_PRIVATE} as a whole: the job carries the coefficients of a model whose own certificate gives no guarantee"
        )
    elif any(getattr(job.solver, "w", {}).values()):
        flags.append(
            "the job carries the coefficients of a released model: for records on which that model was trained, its own cost "
            "adds to ε"
        )
    return tuple(flags)


def voids(flags: Iterable[str]) -> bool:
    """Return True if one of these flags says that there is no guarantee."""
    return any(flag == UNCHARGED or flag.startswith(NOT_PRIVATE) for flag in flags)


def exact_queries(job: Job) -> tuple[type[Query], ...]:
    """Return the kinds of query that may be answered without noise. Coordinator and parties each refuse any other kind.

    A job without privacy allows all kinds. A sealed solver releases only its final model, with noise, so it may ask for exact
    gradients. Any other job may ask for the kinds that it declares, and its certificate flags these kinds.
    """
    if job.privacy is None:
        return (Query,)
    smoothness = job.privacy.smoothness
    exact: tuple[type[Query], ...] = (Moments,) if isinstance(smoothness, str) and smoothness == "data" else ()
    exact = (Backward,) if job.solver.sealed else exact
    return (*exact, ExactTally) if job.uncharged else exact
