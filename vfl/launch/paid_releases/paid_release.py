"""Releases about columns, each by a run of its own: `private_bounds`, `private_quantiles`, and their part shared with `woe`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.coordinator import Outcome
from vfl.base.columns import Numeric
from vfl.base.features import Curve
from vfl.base.features.curve import edges_of
from vfl.base.losses import loss_of
from vfl.base.penalties import NoPenalty
from vfl.base.problem import INTERCEPT
from vfl.errors import SpecificationError, nearest
from vfl.job.job import require_job
from vfl.launch.run.execution import asked_sources, running, settings_of
from vfl.launch.run.warnings import count_run, warn_of_plan
from vfl.planning import layout_of
from vfl.privacy.specification import Privacy
from vfl.solvers.releases.bins import ColumnCounts, ColumnRanges
from vfl.solvers.releases.knots import CELLS, quantiles_of, shortened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from vfl.job import Job
    from vfl.job.environment import Ledger
    from vfl.launch.sites.open_site import At
    from vfl.privacy.noise import SeededNoise
    from vfl.queries.protocol import Solver


def paid_release(
    draft: Job,
    data: Any,
    solver: Solver,
    privacy: Privacy,
    *,
    at: At,
    ledger: str | Path | Ledger | None,
) -> Outcome:
    """Run a solver that makes one release about columns with the whole budget of `privacy`; return its outcome.

    If the job names an id column, records are aligned first, as for `train`: only records that all parties hold are counted.

    draft : job that declares the columns, whose cells are read unscaled.

    Raises the errors of `train`.
    """
    names = [name for own in layout_of(draft).columns.values() for name in own if name != INTERCEPT]
    read = None if draft.privacy is None else draft.privacy.read_from_data
    spec = replace(
        draft,
        privacy=replace(privacy, smoothness=dict.fromkeys(names, 1.0), read_from_data=read),
        solver=solver,
        loss=loss_of(draft.loss),
        penalty=NoPenalty(),
        scaling="none",
        intercept=False,
        evaluation=None,
    )
    settings = settings_of(spec, data, at=at, ledger=ledger)
    with running(spec, asked_sources(spec, settings), settings) as events:
        for event in events:
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


@dataclass(frozen=True, slots=True)
class PrivateBounds:
    """Bounds that `private_bounds` found. The bounds are released, hence public. Declare them in a job like any other bounds.

    bounds : {column: (low, high)}, each a power of two or 0. Values outside are clamped.
    unknown : columns without a result, because they hold too few records or only zeros.
    least : approximate number of records that a magnitude needs in order to be found.
    epsilon, delta : cost of this release alone. scope : data that the guarantee is for.
    """

    bounds: Mapping[str, tuple[float, float]]
    unknown: tuple[str, ...]
    least: float
    epsilon: float
    delta: float
    scope: str


def private_bounds(
    job: Job,
    data: Any,
    *,
    epsilon: float,
    delta: float | None = None,
    columns: Sequence[str] | None = None,
    noise: SeededNoise | None = None,
    at: At = None,
    ledger: str | Path | Ledger | None = None,
) -> PrivateBounds:
    """Learn the ranges of numeric columns in one joint release, (ε, δ)-DP for every record under replace-one.

    Noisy histograms over powers of two show the smallest and the largest magnitude that enough records have
    (vfl.privacy.magnitudes). Training later clamps the values outside these ranges. This is a separate run, whose ε adds to
    the training's ε, so charge both runs to one ledger.

    job : a draft without bounds: privacy=None, scaling='none'. data : as for `train`.
    epsilon, delta : cost of the release; None derives δ from the number of records.
    columns : the columns whose ranges to learn; None takes all features that have no bounds.
    noise : SeededNoise(seed) makes the release repeatable for tests, and NOT PRIVATE. at, ledger : as for `train`.

    Raises the errors of `train`; SpecificationError for a column that is not numeric or not a feature.
    """
    require_job(job)
    privacy = Privacy(epsilon=epsilon, delta=delta, noise=noise)
    unbounded = job.schema.unbounded(job.partition.features)
    fitting = [c for c in unbounded if isinstance(job.schema[c], Numeric)]
    what = "numeric feature without a declared range"
    named = unbounded if columns is None else columns
    asked = asked_columns(job, named, fitting, release="private_bounds", what=what)
    draft = replace(job.on_all_records(), name=f"{job.name}-bounds")
    outcome = paid_release(draft, data, ColumnRanges(asked), privacy, at=at, ledger=ledger)
    low, high = outcome.w.reshape(2, -1).tolist()
    found = {name: (a, b) for name, a, b in zip(asked, low, high, strict=True) if not math.isnan(a)}
    return PrivateBounds(
        bounds=found,
        unknown=tuple(name for name in asked if name not in found),
        least=ColumnRanges(asked).least(outcome.plan.problem),
        **cost_of(outcome),
    )


@dataclass(frozen=True, slots=True)
class PrivateQuantiles:
    """Quantiles that `private_quantiles` found: public values, for edges of vfl.columns.Binned or knots of vfl.columns.Spline.

    edges : {column: the distinct quantiles, ascending}, with 6 digits. If several quantiles lie in one cell of the grid, the
        ends of the cell replace these quantiles.
    rank_error : largest standard error, due to noise, of the share of records below a quantile.
    resolution : {column: width of the widest cell of the column's grid}; quantiles are interpolated within a cell.
    epsilon, delta : cost of this release alone. scope : data that the guarantee is for.
    """

    edges: Mapping[str, tuple[float, ...]]
    rank_error: float
    resolution: Mapping[str, float]
    epsilon: float
    delta: float
    scope: str


def private_quantiles(
    job: Job,
    data: Any,
    *,
    epsilon: float,
    delta: float | None = None,
    quantiles: Sequence[float] = (0.2, 0.4, 0.6, 0.8),
    columns: Sequence[str] | None = None,
    noise: SeededNoise | None = None,
    at: At = None,
    ledger: str | Path | Ledger | None = None,
) -> PrivateQuantiles:
    """Learn quantiles of numeric columns in one joint release, (ε, δ)-DP for every record under replace-one.

    Each column's owner counts the records in 160 cells of a public grid between the declared bounds (vfl.base.features.curve).
    Replacing a record lowers one cell by one and raises another by one, in every column, so that Δ = √(2m) over m columns.
    Quantiles are interpolated from the noisy counts. This is a separate run, whose ε adds to the training's ε, so charge both
    runs to one ledger. A job with vfl.Curve finds quantiles within the job's own ε.

    job : a job with bounds for the columns. data : as for `train`.
    quantiles : shares of records, ascending, between 0 and 1.
    columns : numeric features with bounds; None takes all such features.
    epsilon, delta, noise, at, ledger : as for `private_bounds`.

    Raises the errors of `train`; SpecificationError for a column without bounds or of another kind.
    """
    require_job(job)
    privacy = Privacy(epsilon=epsilon, delta=delta, noise=noise)
    shares = tuple(float(share) for share in quantiles)
    if not shares or any(not 0 < share < 1 for share in shares) or sorted(set(shares)) != list(shares):
        raise SpecificationError(f"quantiles are ascending shares between 0 and 1, not {quantiles!r}")
    declared = {c: own for c in job.partition.features if isinstance(own := job.schema[c], Numeric) and own.bounds}
    what = "number with declared bounds"
    asked = asked_columns(job, columns, list(declared), release="private_quantiles", what=what)
    grids = {
        c: Curve(1, bounds=own.bounds, of=job.partition.local(c), fill=own.fill, missing=own.missing)
        for c, own in ((c, declared[c]) for c in asked)
    }
    lines = {c: replace(d, knots=()) for c, d in job.columns.items() if isinstance(d, Curve) and d.knots is None}
    draft = replace(
        job.on_all_records(),
        name=f"{job.name}-quantiles",
        columns={**job.columns, **lines, **grids},
        bounds={c: b for c, b in job.bounds.items() if c not in grids},
    )
    solver = ColumnCounts(tuple(own for column in asked for own in grids[column].own(column)), CELLS[0])
    outcome = paid_release(draft, data, solver, privacy, at=at, ledger=ledger)
    edges = {column: edges_of(grid.limits, CELLS[0]) for column, grid in grids.items()}
    found = {
        column: shortened(quantiles_of(noisy, edges[column], shares), grids[column].limits)
        for column, noisy in zip(asked, outcome.w.reshape(len(asked), CELLS[0]), strict=True)
    }
    ((event, _),) = solver.releases(outcome.plan.problem) or ((None, 0),)
    sigma = 0.0 if event is None else float(event.sigma)  # type: ignore[attr-defined]
    return PrivateQuantiles(
        edges=found,
        rank_error=sigma * math.sqrt(CELLS[0]) / outcome.plan.problem.n_records,
        resolution={column: float(np.diff(own).max()) for column, own in edges.items()},
        **cost_of(outcome),
    )
