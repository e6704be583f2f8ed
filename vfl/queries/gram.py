"""Queries `Gram`, products of columns, and `Columns`, which sends columns to `LinearPredictors` for them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vfl.errors import PrivacyError
from vfl.privacy.geometry import Clip
from vfl.queries.backward import Backward
from vfl.queries.parts import COLUMNS
from vfl.queries.passes import Piece
from vfl.queries.query import PerRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from vfl.base.problem import Block
    from vfl.base.types import Vector
    from vfl.privacy.events import ReleaseKey
    from vfl.queries.parts import Records, Reply, Scaled, Sums
    from vfl.queries.query import OnShares, Rows


OFF_DIAGONAL = math.sqrt(2.0)
"""Factor of off-diagonal entries when a triangle of a symmetric matrix is released: its norm is the matrix's Frobenius norm."""
MOST_HELD_BYTES = 1 << 26
"""Largest size, in bytes, of the columns that the coordinator's `LinearPredictors` (coordinator.states) holds at once.

Parties with more columns send them in several messages."""


def held_at_once(n_records: int) -> int:
    """Return the largest number of columns that the coordinator's `LinearPredictors` (coordinator.states) holds at once."""
    return max(1, MOST_HELD_BYTES // (8 * max(n_records, 1)))


@dataclass(frozen=True, slots=True, eq=False)
class Gram(Backward):
    """Products of columns, Σ_i t_i z_ij z_ik with z_ij = scale_j (x_ij − c_j): one part of a release under one event.

    A party receives one vector: t, then t∘y for the label if the weighting is `of_label`, then t∘z_j for each column in
    `held`. The party releases the products of its own columns with the label and with these columns of another party. If
    `own`, it then releases the lower triangle of its own columns, column by column. Off-diagonal entries, and entries of the
    label, have a factor √2.

    held : columns of one party that `LinearPredictors` (coordinator.states) holds; None if it holds no columns.
    """

    fold: Piece = Piece(0, 1, ())  # noqa: RUF009 - frozen
    held: Block | None = None
    own: bool = True

    @property
    def of_label(self) -> bool:
        """Return True if the label is multiplied with all columns."""
        return bool(getattr(self.weighting, "of_label", False))

    @property
    def width(self) -> int:
        """Return the number of vectors with n entries that the weights consist of."""
        return 1 + self.of_label + (0 if self.held is None else self.held.size)

    def piece(self) -> tuple[object, object]:
        """Return (number, columns and kind of clip; clip, weights, centres and scales) of a party's part."""
        fold, clip, weighting = self.fold, self.clip, self.weighting
        if self.of_label:  # only the first part contains the label, so compare the weightings of parts without it
            weighting = replace(weighting, of_label=False)  # type: ignore[type-var]
        extent = fold.number, fold.of, self.part, self.blocks, self.held, self.own, type(clip), clip.dimension
        return extent, (clip, weighting, self.centres[0].tobytes(), self.scales[0].tobytes())

    def rows_for(self, party: str) -> list[int]:
        """Return the matrix rows that are released for all columns of a party, in order. The label has the last row, −1."""
        columns: Iterable[int] = ()
        if self.held is not None and self.held.party != party:
            columns = range(self.held.coordinates.start, self.held.coordinates.stop)
        return [*([-1] * self.of_label), *columns]

    def sizes(self) -> tuple[int, ...]:
        """Return the number of products released per block: with received vectors, and (if `own`) among the block's columns."""
        return tuple(
            block.size * len(self.rows_for(block.party)) + block.size * (block.size + 1) // 2 * self.own
            for block in self.blocks
        )

    def read(self, M: Vector) -> tuple[Vector, ...]:
        """Return the entries of a symmetric matrix M that this query would release, as one vector per block."""
        found = []
        for block in self.blocks:
            S, (upper, factors) = block.coordinates, _triangle(block.size if self.own else 0)
            cross = OFF_DIAGONAL * M[self.rows_for(block.party), S]
            found.append(np.concatenate([cross.ravel(), factors * M[S, S][upper]]))
        return tuple(found)

    def fill(self, M: Vector, released: tuple[Vector, ...]) -> None:
        """Write the released products into the symmetric matrix M, in place. This is the inverse of `read`."""
        for block, u in zip(self.blocks, released, strict=True):
            S, rows = block.coordinates, self.rows_for(block.party)
            count = len(rows) * block.size
            cross = u[:count].reshape(len(rows), block.size) / OFF_DIAGONAL
            M[rows, S], M[S, rows] = cross, cross.T
            upper, factors = _triangle(block.size if self.own else 0)
            for place in (upper, upper[::-1]):
                M[S, S][place] = u[count:] / factors

    products: ClassVar[bool] = True

    def opened(self, at: OnShares, key: ReleaseKey) -> Mapping[str, Reply]:
        """Open the products of this piece."""
        return at.products(self, key)

    def required(self) -> float:
        """Return Δ of all pieces of the release together, from a clip that is made for products."""
        if self.event is not None and type(self.clip) is Clip:
            raise PrivacyError(
                "one charge pays for all products of columns, but the clip 'norm' bounds each sum alone: use another clip"
            )
        return self.clip.sensitivity_of(self, sum(block.size for block in self.blocks))

    def exact(self, rows: Rows, records: Records) -> list[Sums]:
        """Return products of own columns: first with the received vectors, then with one another.

        One column is made at a time. The clip bounds a record's contribution to each column. The weights t bound its
        contributions to all columns together.
        """
        (block,), (centre,), (scale,), clip = self.blocks, self.centres, self.scales, self.clip
        weights = records.given("weights")
        if weights.size != self.width * rows.columns.n_records:
            raise PrivacyError(
                f"party {rows.party!r} needs {self.width} vectors of {rows.columns.n_records} numbers for products of its "
                f"columns, and was sent {weights.size} numbers in total"
            )
        t, *held = weights.reshape(self.width, -1)[: 1 + len(self.rows_for(rows.party))]
        sums = [rows.sum(block, centre, OFF_DIAGONAL * scale, clip, r, None) for r in held]
        for j in range(block.size if self.own else 0):
            r = t * rows.column((block, centre, scale), j)
            if clip.finite:
                r = np.where(np.isfinite(r), r, 0.0)  # t is 0 where the norm overflows
            later = replace(block, start=block.start + j)
            factors = np.where(np.arange(later.size) == 0, 1.0, OFF_DIAGONAL)
            sums.append(rows.sum(later, centre[j:], factors * scale[j:], clip, r, None))
        joined: Sums = np.concatenate(sums)  # type: ignore[assignment]  # all are integers, or all are not
        return [joined]


def _triangle(size: int) -> tuple[tuple[Any, Any], Vector]:
    """Return the indices of a matrix's upper triangle, row by row, and the factor of each entry in a release (1 or √2)."""
    first, second = np.triu_indices(size)
    return (first, second), np.where(first == second, 1.0, OFF_DIAGONAL)


@dataclass(frozen=True, slots=True, eq=False)
class Columns(PerRecord):
    """Scaled and centred columns of one party, one after another. Only the coordinator's `LinearPredictors` receives them.

    rows : {party: (block, centres, scales)} with one party.
    """

    rows: Mapping[str, Scaled]

    @property
    def target(self) -> str:
        """Return the name under which `LinearPredictors` keeps the columns until products with them are released."""
        return COLUMNS

    @property
    def width(self) -> int:
        """Return the number of columns."""
        return sum(block.size for block, _, _ in self.rows.values())

    products: ClassVar[bool] = True

    of_model: ClassVar[bool] = True  # on secret shares, columns are masked instead (vfl.secure.gram)

    def vector(self, rows: Rows, records: Records, deltas: Sequence[Vector] = ()) -> Vector:
        """Return the columns, (s·n,), one after another."""
        row = self.rows[rows.party]
        columns = np.empty((row[0].size, rows.columns.n_records))
        for j in range(row[0].size):
            columns[j] = rows.column(row, j)
        return columns.ravel()
