"""Private release of bounds that nobody can declare, paid with a separate privacy budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from vfl.columns import Numeric
from vfl.job.job import require_job
from vfl.launch.paid_releases.paid_release import Terms, asked_columns, cost_of, paid_release
from vfl.solvers.releases.ranges import ColumnRanges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coordinator.coordinator import Outcome
    from vfl.job import Job


@dataclass(frozen=True, slots=True)
class PrivateBounds:
    """Bounds that `private_bounds` found. They are released, hence public. Declare them in a job like any other bounds.

    bounds : {column: (low, high)}, each a power of two or 0. Values outside are clamped.
    unknown : columns without a result, because they hold too few records or only zeros.
    least : approximate number of records that a magnitude needs in order to be found.
    epsilon, delta : cost of the release, in addition to the cost of any training. scope : data that the guarantee is for.
    """

    bounds: Mapping[str, tuple[float, float]]
    unknown: tuple[str, ...]
    least: float
    epsilon: float
    delta: float
    scope: str


def private_bounds(
    job: Job, data: Any, *, columns: Sequence[str] | None = None, **terms: Unpack[Terms]
) -> PrivateBounds:
    """Learn the ranges of numeric columns in one joint release, (ε, δ)-DP for every record under replace-one.

    Noisy histograms over powers of two show the smallest and the largest magnitude that enough records have
    (vfl.privacy.magnitudes). Training later clamps the values outside these ranges. This is a separate run, whose ε adds to
    the training's ε, so charge both runs to one ledger.

    job : a draft without bounds: privacy=None, scaling='none'. data : as for `train`.
    columns : the columns whose ranges to learn; None takes all features that have no bounds.
    terms : epsilon, delta, noise, at, ledger (`Terms`).

    Raises the errors of `train`; SpecificationError for a column that is not numeric or not a feature.
    """
    require_job(job)
    unbounded = job.schema.unbounded(job.partition.features)
    fitting = [c for c in unbounded if isinstance(job.schema[c], Numeric)]
    what = "numeric feature without a declared range"
    named = unbounded if columns is None else columns
    asked = asked_columns(job, named, fitting, release="private_bounds", what=what)
    draft = replace(job.on_all_records(), name=f"{job.name}-bounds")
    return _released(paid_release(draft, data, ColumnRanges(asked), terms), asked)


def _released(outcome: Outcome, asked: tuple[str, ...]) -> PrivateBounds:
    low, high = outcome.w.reshape(2, -1).tolist()
    found = {name: (a, b) for name, a, b in zip(asked, low, high, strict=True) if not math.isnan(a)}
    return PrivateBounds(
        bounds=found,
        unknown=tuple(name for name in asked if name not in found),
        least=ColumnRanges(asked).least(outcome.plan.problem),
        **cost_of(outcome),
    )
