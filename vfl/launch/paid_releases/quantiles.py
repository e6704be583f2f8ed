"""Private release of quantiles under a separate privacy budget. They serve as edges of bins that nobody can declare."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from vfl.columns import Numeric
from vfl.errors import SpecificationError
from vfl.features import Curve
from vfl.features.grid import edges_of
from vfl.job.job import require_job
from vfl.launch.paid_releases.paid_release import Terms, asked_columns, cost_of, paid_release
from vfl.solvers.releases.knots import CELLS, quantiles_of, shortened
from vfl.solvers.releases.ranges import ColumnCounts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.job import Job


@dataclass(frozen=True, slots=True)
class PrivateQuantiles:
    """Quantiles that `private_quantiles` found: public values, for edges of vfl.Binned or knots of vfl.Spline.

    edges : {column: the distinct quantiles, ascending}, with 6 digits. If several quantiles lie in one cell of the grid, the
    ends of the cell replace these quantiles.
    rank_error : largest standard error, due to noise, of the share of records below a quantile.
    resolution : {column: width of the widest cell of the column's grid}; quantiles are interpolated within a cell.
    epsilon, delta : cost of the release, in addition to the cost of any training. scope : data that the guarantee is for.
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
    quantiles: Sequence[float] = (0.2, 0.4, 0.6, 0.8),
    columns: Sequence[str] | None = None,
    **terms: Unpack[Terms],
) -> PrivateQuantiles:
    """Learn quantiles of numeric columns in one joint release, (ε, δ)-DP for every record under replace-one.

    Each column's owner counts the records in 160 cells of a public grid between the declared bounds (vfl.features.grid).
    Replacing a record lowers one cell by one and raises another by one, in every column, so that Δ = √(2m) over m columns.
    Quantiles are interpolated from the noisy counts. This is a separate run, whose ε adds to the training's ε, so charge both
    runs to one ledger. A job with vfl.Curve finds quantiles within the job's own ε.

    job : a job with bounds for the columns. data : as for `train`.
    quantiles : shares of records, ascending, between 0 and 1.
    columns : numeric features with bounds; None takes all such features.
    terms : epsilon, delta, noise, at, ledger (`Terms`).

    Raises the errors of `train`; SpecificationError for a column without bounds or of another kind.
    """
    require_job(job)
    shares = tuple(float(share) for share in quantiles)
    if not shares or any(not 0 < share < 1 for share in shares) or sorted(set(shares)) != list(shares):
        raise SpecificationError(f"quantiles are ascending shares between 0 and 1, not {quantiles!r}")
    features = job.partition.features
    numeric = [c for c in features if isinstance(job.schema[c], Numeric) and math.isfinite(job.schema[c].limits[0])]
    what = "number with declared bounds"
    asked = asked_columns(job, columns, numeric, release="private_quantiles", what=what)
    grids = {column: _grid(job, column) for column in asked}
    lines = {c: replace(d, knots=()) for c, d in job.columns.items() if isinstance(d, Curve) and d.knots is None}
    draft = replace(
        job.on_all_records(),
        name=f"{job.name}-quantiles",
        columns={**job.columns, **lines, **grids},
        bounds={c: b for c, b in job.bounds.items() if c not in grids},
        fill={c: f for c, f in job.fill.items() if c not in grids},
    )
    solver = ColumnCounts(tuple(own for column in asked for own in grids[column].own(column)), CELLS[0])
    outcome = paid_release(draft, data, solver, terms)
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


def _grid(job: Job, column: str) -> Curve:
    declared = job.schema[column]
    if not isinstance(declared, Numeric) or declared.bounds is None:
        raise TypeError("only numbers within bounds have a grid")
    return Curve(
        1, bounds=declared.bounds, of=job.partition.local(column), fill=declared.fill, missing=declared.missing
    )
