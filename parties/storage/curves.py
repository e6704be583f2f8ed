"""Curves whose knots a run finds: cells that a party keeps until then, and the coordinates that it makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vfl.errors import PrivacyError, SpecificationError
from vfl.features.grid import edges_of, histogram

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from vfl.features import Curve
    from vfl.types import Integers, Matrix, Vector


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """Cells of one curve. values : (n,) float64 within its bounds, NaN where missing. scales : one for each coordinate."""

    declared: Curve
    values: Vector
    scales: Sequence[Any]


@dataclass(slots=True, eq=False)
class Curves:
    """Curves of one party without declared knots, in the order of its columns.

    placed : knots by which their coordinates in the storage are made at present; None for straight lines.
    fixed : True once a query read these coordinates.
    """

    pending: tuple[Pending, ...] = ()
    placed: tuple[tuple[float, ...], ...] | None = field(default=None, init=False)
    fixed: bool = field(default=False, init=False)

    def histogram(self, number: int, cells: int) -> Integers:
        """Return the counts of a curve over its public grid, (cells,)."""
        if not 0 <= number < len(self.pending):
            raise PrivacyError(
                "a histogram was asked of a curve that the party does not have, or whose knots are declared"
            )
        own = self.pending[number]
        return histogram(own.values, edges_of(own.declared.limits, cells))

    def place(self, knots: tuple[tuple[float, ...], ...] | None, array: Matrix, *, fixes: bool) -> None:
        """Make all coordinates of the curves by these knots, in place; None leaves them as they are.

        fixes : True refuses every later change, also from straight lines (None) to curves.

        Raises PrivacyError for a change of fixed knots, for another number of curves, and for knots that a declaration could
        not have.
        """
        fixed, self.fixed = self.fixed, self.fixed or fixes
        if knots is None or knots == self.placed:
            return
        if fixed:
            raise PrivacyError("the knots of curves changed after columns were read; start another run")
        if len(knots) != len(self.pending):
            raise PrivacyError("knots came for another number of curves than the party has")
        try:
            declared = [own.declared.at(found) for own, found in zip(self.pending, knots, strict=True)]
        except SpecificationError as error:
            raise PrivacyError(f"knots came that no declaration allows: {error}") from error
        array.flags.writeable = True
        for curve, own in zip(declared, self.pending, strict=True):
            for scale, vector in zip(own.scales, curve.made(own.values), strict=True):
                array[:, scale.j] = scale.scale(vector)
        array.flags.writeable = False
        self.placed = knots

    def of(self, rows: npt.NDArray[np.bool_]) -> Curves:
        """Return the curves of the chosen records."""
        return Curves(tuple(replace(own, values=own.values[rows]) for own in self.pending))
