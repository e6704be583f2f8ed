"""Persons with several rows at the label party, and the exact weights of these rows.

Guarantee. Suppose that the contribution of every row to a released sum lies in a set S, whatever the row and the values that
others send. Replacing one record moves the sum by at most Δ ≥ diam S. Let the rows r of a person have weights u_r ≥ 0 with
Σ u_r = 1, so that a person contributes Σ_r u_r s_r with s_r in S. This lies in the convex hull of S, whose diameter is that of
S. So replacing all rows of one person by any others, up to `most_rows`, moves the sum by at most Δ, and noise and charge stay
as they are. Removing all rows of a person is not a replacement: N is public, and no step may drop a person's last row.

Weights are whole multiples of 1/UNITS, and sums are integers: a party multiplies the integer sum of all rows of equal weight by
the weight's units, adds these sums, and divides the grid of the result by UNITS. So a person's contribution is an exact convex
combination of contributions of single records, rounding included. Hold-out, batches, samples and subsamples index persons. A
person's rows are therefore on the same side, and another number of rows moves no other person. Vectors with an entry per row
are padded to N·most_rows entries, so sizes of messages are public, too.

A party with one row per person sees folded vectors, Σ_r u_r v_r. The fold of a person with several rows is lowered by more
than its rounding error, so that |fold| ≤ Σ_r u_r |v_r|. Let a cap bound the residual of a row, |v_r|·‖(a_r, b)‖ ≤ C, with the
columns a_r at the label party and b at others. Then ‖(Σ u_r v_r a_r, fold·b)‖ ≤ Σ u_r |v_r|·‖(a_r, b)‖ ≤ C. A party can infer
from folded residuals a person's share of each label, and often its number of rows: see docs/disclosure.md.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vfl.errors import PrivacyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vfl.base.types import Integers, Vector

UNITS = 4096
"""Number of units of weight of one person."""
MOST = 1 << 29
"""Largest N·most_rows. A sum of N contributions of up to 2²¹ steps of a grid, in steps of grid/UNITS, then stays below 2⁶²."""


class RowRule(NamedTuple):
    """Public rule for the rows of a person. party : the label party. most_rows : largest number of rows, 2 to UNITS."""

    party: str
    most_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Persons:
    """Persons of the rows of the label party. Rows of larger weight come first.

    count : N, number of persons. most_rows : public bound on their rows. person : (n,) int64, numbers from 0 to N − 1; every
    person has a row. units : (n,) int64.
    """

    count: int
    most_rows: int
    person: Integers
    units: Integers

    @classmethod
    def of(cls, person: Vector | Integers, count: int, rule: RowRule) -> Persons:
        """Return the persons of rows in this order. The first rows of a person have the larger weights.

        Raises PrivacyError for too many persons, and unless 1 to `most_rows` rows belong to each person.
        """
        if count * rule.most_rows > MOST:
            raise PrivacyError(f"{count} persons with up to {rule.most_rows} rows are too many: lower most_rows")
        with np.errstate(invalid="ignore"):
            whole = np.asarray(person).astype(np.int64)
        inside = bool((whole == person).all()) and whole.size > 0 and whole.min() >= 0 and whole.max() < count
        rows = np.bincount(whole, minlength=count) if inside else np.zeros(1, np.int64)
        if not 1 <= rows.min() <= rows.max() <= rule.most_rows:
            raise PrivacyError(
                f"party {rule.party!r} must have from 1 to {rule.most_rows} rows of every person, and states other numbers"
            )
        by_person = np.argsort(whole, kind="stable")
        rank = np.empty_like(whole)
        rank[by_person] = np.arange(whole.size) - np.repeat(np.cumsum(rows) - rows, rows)
        share, left = np.divmod(UNITS, rows[whole])
        return cls(count, rule.most_rows, whole, share + (rank < left))

    @property
    def room(self) -> int:
        """Return N·most_rows, the public length of a padded vector."""
        return self.count * self.most_rows

    def padded(self, vector: Vector, by: float = 0.0) -> Vector:
        """Return K vectors with an entry per row, each followed by entries `by` up to N·most_rows."""
        rows = laid(vector, self.units.size)
        return np.pad(rows, ((0, 0), (0, self.room - self.units.size)), constant_values=by).ravel()

    def unpadded(self, vector: Vector, K: int = 1) -> Vector:
        """Return K vectors with an entry per row, of K padded vectors. PrivacyError for another length."""
        return laid(vector, self.room, K)[:, : self.units.size].ravel()

    @property
    def order(self) -> Integers:
        """Return the positions (n,) of the rows in the order of their weights, the largest first."""
        return np.argsort(-self.units, kind="stable")

    def taken(self, rows: Any) -> Persons:
        """Return the chosen rows, (n,) booleans or positions, with all persons."""
        return replace(self, person=self.person[rows], units=self.units[rows])

    def among(self, kept: np.ndarray) -> Persons:
        """Return the rows of these persons, (N,) booleans, with the persons numbered anew in their order."""
        own = self.taken(kept[self.person])
        return replace(own, count=int(kept.sum()), person=(np.cumsum(kept) - 1)[own.person])

    def groups(self) -> Iterator[tuple[int, slice]]:
        """Yield (units, rows) for each run of rows of equal weight."""
        ends = [0, *(np.flatnonzero(np.diff(self.units)) + 1).tolist(), self.units.size]
        return ((int(self.units[start]), slice(start, stop)) for start, stop in pairwise(ends) if stop > start)

    def expand(self, vector: Vector, K: int = 1) -> Vector:
        """Return v[person], (K·n,), of K vectors with an entry per person. PrivacyError for another length."""
        return laid(vector, self.count, K)[:, self.person].ravel()

    def fold(self, vector: Vector) -> Vector:
        """Return Σ_r u_r v_r of each person, (K·N,), of K vectors with an entry per row. |fold| ≤ Σ_r u_r |v_r|.

        A sum of k products has a relative error of at most (k + 1)·2⁻⁵³ in Σ u_r |v_r|; for k > 1 the fold is lowered by more.
        With one row, the product with UNITS is exact, and the fold is v_r.
        """
        K, rows = laid(vector, self.units.size), np.bincount(self.person, minlength=self.count)
        lowered = np.where(rows > 1, 1.0 - (self.most_rows + 3.0) * 2.0**-52, 1.0) / UNITS  # k would show in the fold
        with np.errstate(all="ignore"):
            return np.concatenate([np.bincount(self.person, v * self.units, self.count) * lowered for v in K])

    def total(self, sums: Callable[..., Any], *vectors: Vector | None) -> Any:
        """Return Σ units·sums(the vectors' parts) over the rows of equal weight, in steps of grid/UNITS."""
        n, found = self.units.size, None
        for units, rows in self.groups():
            made = units * sums(*(None if v is None else laid(v, n)[:, rows].ravel() for v in vectors))
            found = made if found is None else found + made
        return found


def laid(vector: Vector, size: int, K: int | None = None) -> Vector:
    """Return K vectors of `size` entries, which are laid one after another, as rows; PrivacyError for another length."""
    if vector.size % size or K not in (None, vector.size // size):
        raise PrivacyError("a vector has another number of entries than the rows or the persons that it is about")
    return vector.reshape(-1, size)


def kept_rows(ids: Sequence[bytes], most_rows: int) -> np.ndarray:
    """Return (n,) booleans: True for at most `most_rows` rows of each id, those with the smallest hashes.

    The hash of a row is that of its id and of its number among the rows of this id. So the rows that are kept of one person
    depend on no other person.
    """
    seen: dict[bytes, int] = {}
    rows: dict[bytes, list[tuple[bytes, int]]] = {}
    for row, own in enumerate(ids):
        number = seen[own] = seen.get(own, -1) + 1
        rows.setdefault(own, []).append(
            (hashlib.blake2b(own + number.to_bytes(8, "big"), digest_size=16).digest(), row)
        )
    kept = np.ones(len(ids), dtype=bool)
    for listed in rows.values():
        kept[[row for _, row in sorted(listed)[most_rows:]]] = False
    return kept
