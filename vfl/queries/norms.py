"""Queries `RecordNorms` and `Groups`: norms of records, and codes of the groups of held-out records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.base.holdout import Side
from vfl.errors import PrivacyError
from vfl.queries.parts import HELD_GROUPS, HELD_NORMS
from vfl.queries.query import PerRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.base.types import Vector
    from vfl.queries.parts import Records, Scaled, Stride
    from vfl.queries.query import Rows


@dataclass(frozen=True, slots=True, eq=False)
class RecordNorms(PerRecord):
    """Σ_j (scale_j (x_ij − c_j))² for each record i. Only `LinearPredictors` at the coordinator receives the sums.

    rows : {party: (block, centres, scales)}. into : name of the sums; only the sums 'norms' limit residuals under a record cap.
    side : the part of the records. Norms of held-out records are kept separately: only a `Tally` of the held-out part uses
        them.
    """

    rows: Mapping[str, Scaled]
    side: Side = Side.TRAINING
    into: str = "norms"

    @property
    def target(self) -> str:
        """Return the name under which `LinearPredictors` keeps the sum: `into` for training records, else HELD_NORMS."""
        return self.into if self.side is Side.TRAINING else HELD_NORMS

    of_model: ClassVar[bool] = True  # on secret shares, parties cap their own rows instead

    def vector(self, rows: Rows, records: Records, deltas: Sequence[Vector] = ()) -> Vector:
        """Return the squared norms of the party's part of each row, (n,)."""
        block, centre, scale = self.rows[rows.party]
        norms: Vector = rows.kernels.record_norms(rows.block(block, self.side), centre, scale)
        return norms


@dataclass(frozen=True, slots=True, eq=False)
class Groups(PerRecord):
    """Codes of the held-out records' groups, for `LinearPredictors` only. Nothing is released; no other party sees the codes.

    A party answers with Σ_k stride_k·code_k over its group columns k, (m,). Strides are 1, s₁, s₁s₂, … over all parties, where
    s_k is one more than the number of categories of column k. The sum of all answers then determines every code.

    columns : {party: ((column, stride), ...)}.
    """

    columns: Mapping[str, tuple[Stride, ...]]

    @property
    def side(self) -> Side:
        """Return the held-out part."""
        return Side.HELD_OUT

    @property
    def target(self) -> str:
        """Return the name under which `LinearPredictors` keeps the sum. Only a `Tally` of the held-out part uses it."""
        return HELD_GROUPS

    def required(self) -> None:
        """Check that columns differ and that strides are at least 1."""
        columns = [column for own in self.columns.values() for column, _ in own]
        if len(set(columns)) < len(columns) or any(s < 1 for own in self.columns.values() for _, s in own):
            raise PrivacyError("a query of groups needs different columns, and strides of at least 1")

    def vector(self, rows: Rows, records: Records, deltas: Sequence[Vector] = ()) -> Vector:
        """Return one number for a record's groups in all of the party's columns, (m,)."""
        codes = np.zeros(rows.n_held_out())
        for column, stride in self.columns[rows.party]:
            codes += stride * rows.codes(column)
        return codes
