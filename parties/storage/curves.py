"""Columns of curves whose knots a run finds. Until the knots are known, the party keeps the cells of these columns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.storage.made import made
from vfl.errors import PrivacyError, SpecificationError
from vfl.features import Crossed, Curve, DateParts, curves_in, placed
from vfl.features.curve import edges_of, histogram

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from vfl.types import Integers, Matrix

    Key = tuple[str, Any]
    """A column of the data, and the declaration that says how to read its cells."""

ROWS = 65_536
"""Number of records whose coordinates are computed at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """A curve without declared knots, or a pair with such a curve. cells : keys of the cells, one per source of the column.

    scales : scaling of each coordinate.
    """

    column: str
    declared: Curve | Crossed
    cells: tuple[Key, ...]
    scales: Sequence[Any]


@dataclass(slots=True, eq=False)
class Curves:
    """Columns of one party whose knots are not known yet, in the order of the party's columns.

    cells : {key: (n,) values as read}. Columns that read one source in the same way share an array.
    placed : knots for which the storage now has the coordinates; None for straight lines.
    fixed : True once a query has read these coordinates; then the knots cannot change.
    """

    pending: list[Pending] = field(default_factory=list)
    cells: dict[Key, npt.NDArray[Any]] = field(default_factory=dict)
    placed: tuple[tuple[float, ...], ...] | None = field(default=None, init=False)
    fixed: bool = field(default=False, init=False)

    def keep(
        self, column: str, declared: Any, sources: Sequence[str], scales: Sequence[Any], n: int
    ) -> list[npt.NDArray[Any]]:
        """Return arrays, (n,) each, to be filled with the cells of a column's sources; [] for a column that needs no knots."""
        if all(curve.knots is not None for curve in curves_in(declared)):
            return []
        sides = [side.declared for side in declared.sides] if isinstance(declared, Crossed) else [declared]
        keys = tuple((source, _alike(side)) for source, side in zip(sources, sides, strict=True))
        for key, side in zip(keys, sides, strict=True):
            self.cells.setdefault(key, np.empty(n, "M8[s]" if isinstance(side, DateParts) else np.float64))
        self.pending.append(Pending(column, declared, keys, scales))
        return [self.cells[key] for key in keys]

    @property
    def own(self) -> list[tuple[Pending, Curve]]:
        """Return the curves for which the run finds knots. Pairs use some of these knots, too."""
        return [(own, own.declared) for own in self.pending if isinstance(own.declared, Curve)]

    def histogram(self, number: int, cells: int) -> Integers:
        """Return the counts of a curve's values in the cells of its public grid, (cells,)."""
        if not 0 <= number < len(self.own):
            raise PrivacyError(
                "a histogram was requested for a curve that the party does not have, or whose knots are declared"
            )
        own, curve = self.own[number]
        return histogram(np.clip(self.cells[own.cells[0]], *curve.limits), edges_of(curve.limits, cells))

    def place(self, knots: tuple[tuple[float, ...], ...] | None, array: Matrix, *, fixes: bool) -> None:
        """Compute all coordinates of the curves and of their pairs, in place. knots : None leaves the coordinates unchanged.

        fixes : True to refuse every later change, including a change from straight lines (None) to curves.

        Raises PrivacyError for a change of fixed knots, for a wrong number of curves, and for knots that no declaration could
        have.
        """
        fixed, self.fixed = self.fixed, self.fixed or fixes
        if knots is None or knots == self.placed:
            return
        if fixed:
            raise PrivacyError("the knots of curves changed after columns were read; start another run")
        if len(knots) != len(self.own):
            raise PrivacyError("the number of given knots differs from the number of the party's curves")
        found = {own.column: points for (own, _), points in zip(self.own, knots, strict=True)}
        try:
            declared = [placed(own.column, own.declared, found) for own in self.pending]
        except SpecificationError as error:
            raise PrivacyError(f"the given knots are not allowed by any declaration: {error}") from error
        array.flags.writeable = True
        for each, own in zip(declared, self.pending, strict=True):
            for rows in _pieces(len(array)):
                vectors = made(each, [self.cells[key][rows] for key in own.cells])
                for scale, vector in zip(own.scales, vectors, strict=True):
                    array[rows, scale.j] = scale.scale(vector)
        array.flags.writeable = False
        self.placed = knots

    def of(self, rows: npt.NDArray[np.bool_] | slice) -> Curves:
        """Return the same columns for chosen records only."""
        return Curves(self.pending, {key: values[rows].copy() for key, values in self.cells.items()})


def _alike(declared: Any) -> Any:
    """Return the declaration without the options that do not affect how cells are read."""
    if not isinstance(declared, Curve):
        return declared
    return replace(declared, pieces=None, knots=None, smooth=None, shape=None)


def _pieces(n: int) -> Iterator[slice]:
    return (slice(start, start + ROWS) for start in range(0, n, ROWS))
