"""Query `Forward`: a party's part of the margins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vfl.base.holdout import Side
from vfl.queries.parts import HELD_OUT, Update
from vfl.queries.query import PerRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.base.types import Vector
    from vfl.queries.parts import Placed, Records, Shift
    from vfl.queries.query import Query, Rows


@dataclass(frozen=True, slots=True, eq=False)
class Forward(PerRecord):
    """X_k w_k of each addressed party. Nothing is released.

    shifts : {party: number to add for every record}, −c·w for columns centred at c; (K,) with K margins per record.
    side : the part of the records. Xw of held-out records is kept separately: only a `Tally` of the held-out part uses it.
    """

    coordinates: Mapping[str, Placed]
    into: str = "add"
    shifts: Mapping[str, Shift] = field(default_factory=dict)
    side: Side = Side.TRAINING

    @property
    def target(self) -> str:
        """Return `into` for training records. Return a separate name for held-out records, whose Xw is kept separately."""
        return self.into if self.side is Side.TRAINING else HELD_OUT

    def answer_width(self, n_outputs: int) -> int:
        """Return the number of margins per record."""
        return n_outputs

    def updates(self) -> tuple[Update, ...]:
        """Return this update of the model, if it changes the margins of training."""
        change = Update(self.target == "reset", self.coordinates, self.shifts)
        return (change,) if self.target in ("add", "reset") else ()

    def on_shares(self, parties: Sequence[str], label: str) -> Mapping[str, Query]:
        """Return {}. The query only names a public model: that of training, or that to be measured on held-out records."""
        return {}

    def vector(self, rows: Rows, records: Records, deltas: Sequence[Vector] = ()) -> Vector:
        """Return X_k w_k and the shift, (n,); without the shift for the held-out records, (m,)."""
        block, w = self.coordinates[rows.party]
        shift = self.shifts.get(rows.party, 0.0) if self.side is Side.TRAINING else 0.0
        X, v = rows.block(block, self.side), rows.zeros(self.side)
        moved: Vector = rows.kernels.forward(X, w, v, shift, threads=rows.threads)
        return moved
