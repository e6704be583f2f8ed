"""Query `Counts`: numbers of records per coordinate of one-hot columns and bins, by the sign of the records' weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import PrivacyError
from vfl.privacy import magnitudes
from vfl.queries.query import Sum, Weighted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.privacy.events import Gaussian
    from vfl.queries.parts import Records, Sums
    from vfl.queries.query import Rows


@dataclass(frozen=True, slots=True, eq=False)
class Counts(Sum, Weighted):
    """Counts of records per coordinate, separately for records with r_i > 0 and with r_i < 0, released under one event.

    A record counts for a coordinate if its cell there exceeds ½. Each share releases (2s,): the counts of its s coordinates for
    r_i > 0, then those for r_i < 0. The party counts each record for the first `most` of these coordinates at most.

    Sensitivity under replace-one: Δ = √(2·Σ most), for any cells and any weights r. Proof: the party itself turns a record into
    a vector of zeros and at most m = `most` ones. Two such vectors a, b differ in at most 2m entries, each by 1, so
    ‖a − b‖² ≤ 2m. This is ‖a‖² + ‖b‖², without the term −2aᵀb ≤ 2‖a‖‖b‖ that vectors of either sign can have. Two records
    with m ones in different bins attain it. Several parties add up their squares.

    columns : {party: positions of the coordinates}. most : {party: m}, its number of columns with bins.
    event : its sensitivity is that of all counts together. part : number of the party's noise stream.
    """

    columns: Mapping[str, tuple[int, ...]]
    most: Mapping[str, int]
    event: Gaussian | None
    part: int = 0

    def sizes(self) -> tuple[int, ...]:
        """Return the length of each party's released vector."""
        return tuple(2 * len(positions) for positions in self.columns.values())

    def required(self) -> float:
        """Return Δ of all counts together."""
        if not all(type(self.most.get(party)) is int and self.most[party] >= 1 for party in self.columns):
            raise PrivacyError("a query of counts has no whole number of columns of a party")
        return magnitudes.sensitivity(sum(self.most.values()))

    def exact(self, rows: Rows, records: Records) -> list[Sums]:
        """Return the numbers of records per coordinate with r_i > 0, then with r_i < 0, (2s,)."""
        r, own = records.given("weights"), self.columns[rows.party]
        left = np.full(rows.columns.n_records, self.most[rows.party])
        sums = np.zeros((2, len(own)), dtype=np.int64)
        for k, j in enumerate(own):
            counted = (rows.columns.column(j) > 0.5) & (left > 0)
            left -= counted
            sums[:, k] = np.count_nonzero(counted & (r > 0.0)), np.count_nonzero(counted & (r < 0.0))
        return [sums.ravel()]
