"""Run that makes one release about columns: what `private_bounds`, `private_quantiles` and `woe` have in common."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Required, TypedDict

from coordinator.coordinator import Outcome
from coordinator.rounds import Log
from vfl.errors import SpecificationError, nearest
from vfl.launch.engines import dispatch
from vfl.launch.run.execution import asked_sources, settings_of
from vfl.launch.run.warnings import count_run, warn_of_plan
from vfl.losses import loss_of
from vfl.penalties import NoPenalty
from vfl.planning import layout_of
from vfl.privacy.specification import Privacy
from vfl.problem import INTERCEPT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from vfl.job import Job
    from vfl.job.environment import Ledger
    from vfl.launch.engines.place import At
    from vfl.privacy.noise import SeededNoise
    from vfl.solvers.protocol import Solver


class Terms(TypedDict, total=False):
    """Budget, place and ledger of a release about columns, as keyword arguments.

    epsilon : required. delta : None derives δ from the number of records. noise : SeededNoise(seed) makes the release
    repeatable for tests, and NOT PRIVATE. at, ledger : as for `train`.
    """

    epsilon: Required[float]
    delta: float | None
    noise: SeededNoise | None
    at: At
    ledger: str | Path | Ledger | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """Values of `Terms`, with defaults."""

    epsilon: float
    delta: float | None = None
    noise: SeededNoise | None = None
    at: At = None
    ledger: str | Path | Ledger | None = None


def paid_release(draft: Job, data: Any, solver: Solver, terms: Terms) -> Outcome:
    """Run a solver that makes one release about columns with the whole budget in `terms`; return the outcome of the run.

    If the job names an id column, records are aligned first, as for `train`: only records that all parties hold are counted.

    draft : job that declares the columns. Their cells are read unscaled.

    Raises the errors of `train`.
    """
    where = _Terms(**terms)
    names = [name for own in layout_of(draft).columns.values() for name in own if name != INTERCEPT]
    smoothness = dict.fromkeys(names, 1.0)
    privacy = Privacy(epsilon=where.epsilon, delta=where.delta, noise=where.noise, smoothness=smoothness)
    spec = replace(
        draft,
        privacy=privacy,
        solver=solver,
        loss=loss_of(draft.loss),
        penalty=NoPenalty(),
        scaling="none",
        intercept=False,
        diagnostics=False,
    )
    settings = settings_of(spec, data, at=where.at, ledger=where.ledger)
    sources, arrangement = asked_sources(spec, settings), settings.arrangement
    events = dispatch.run(spec, sources, settings.budget, Log(), place=settings.place, arrangement=arrangement)
    with contextlib.closing(events) as watched:  # type: ignore[type-var]
        for event in watched:
            warn_of_plan(event)
            count_run(spec, event)
            if isinstance(event, Outcome):
                return event
    raise AssertionError("a run ended without its outcome")


def asked_columns(
    job: Job, columns: Sequence[str] | None, fitting: Sequence[str], *, release: str, what: str, remedy: str = ""
) -> tuple[str, ...]:
    """Return the columns of a release: those that the user names, or all that fit.

    Raises SpecificationError for a column that does not fit, for a repeated column, and if no column is left.
    """
    asked = tuple(fitting if columns is None else map(job.partition.named, columns))
    for column in asked:
        if column not in fitting:
            raise SpecificationError(f"{release}: {column!r} is no {what}{nearest(column, fitting)}{remedy}")
    if not asked or len(set(asked)) != len(asked):
        raise SpecificationError(f"{release}: name columns of this kind, each once: {what}")
    return asked


def cost_of(outcome: Outcome) -> dict[str, Any]:
    """Return epsilon, delta and scope of a release, as keyword arguments for the class of its result."""
    statement = outcome.statement
    return {
        "epsilon": statement.epsilon if statement else math.inf,
        "delta": statement.delta if statement else 0.0,
        "scope": "; ".join([*outcome.plan.flags, statement.scope if statement else "no guarantee"]),
    }
