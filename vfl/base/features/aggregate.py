"""Aggregates of a column over all rows of one id, for parties with several rows per id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vfl.base.arguments import one_of, option
from vfl.base.features.base import OfBounded, Steps, column_name
from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from vfl.base.columns import Bounds

AGGREGATES = ("sum", "mean", "count", "min", "max", "last")


@dataclass(frozen=True, slots=True)
class Aggregate(OfBounded):
    """Aggregate of a column over all rows of an id. The owner computes one number per id; only then is the number clamped.

    Guarantee. The bounds hold for any number of rows of an id, so that replacing all of its rows changes one record of a run.

    of : column of the party's data. how : 'sum', 'mean', 'count' (cells that are not missing), 'min', 'max', or 'last', the
        value in the row with the latest time. Missing cells are left out. Without any cell, the aggregate is missing, except a
        count, which is 0.
    by : column of times, for 'last'. Rows without a time are left out. Of equal times, the last row of the source counts.
    bounds : (low, high) of the aggregate; also the job's bounds for this column. fill, missing : as for all features.
    """

    kind: ClassVar[str] = "aggregate"
    of: str = option(column_name)
    how: str = option(one_of(AGGREGATES))
    by: str | None = option(column_name, None)
    bounds: Bounds | None = None

    def __post_init__(self) -> None:
        OfBounded.__post_init__(self)
        if (self.how == "last") != (self.by is not None):
            raise SpecificationError("'last' needs `by`, the column of times, and no other aggregate takes it")

    @property
    def result(self) -> str:
        """Return the name of the column of aggregates, 'sum(amount)'."""
        return f"{self.how}({self.of}{'' if self.by is None else f' by {self.by}'})"

    def sources(self, column: str) -> tuple[str, ...]:
        """Return the name of the column of aggregates, which the owner makes when it opens its data."""
        return (self.result,)

    def _ends(self, low: float, high: float) -> Bounds:
        return low, high

    @property
    def steps(self) -> Steps:
        """Return no operation: the aggregate is the coordinate."""
        return ()
