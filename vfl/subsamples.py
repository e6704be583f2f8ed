"""Disjoint public subsamples of the aligned records. The spread of the models fitted to them gives confidence intervals.

Guarantee. Suppose that the releases on each subsample are μ-GDP under replace-one. Then all releases of the run together are
μ-GDP under replace-one, not √8·μ-GDP. Proof: A record's subsample follows from the record's position among the aligned
records, from n and from public names. Replacing a record changes neither its position nor n: records keep their order in a
file, and an alignment orders records by ids, which replacement keeps (vfl.holdout). So two adjacent data sets differ in the
records of one subsample k. The schedule of a subsample depends on no other subsample, and the releases on the other
subsamples have the same distribution in both data sets. Hence the outputs are those on subsample k, and independent values
that are post-processing: parallel composition (McSherry 2009, Thm. 4). The costs of several runs add up, since each run may
have different subsamples.

The assignment is a uniformly random permutation from a public hash, so that the subsamples of independent records are
independent whatever the order of the records. Every 8th record, or strata by position, would not do: in a file that is sorted
by the label, all subsamples would hold nearly equal shares of each label, and intervals would be too short.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Sequence

COUNT = 8
"""Number of subsamples. The 95 % interval of Student's t with 7 degrees of freedom is 1.2 times as wide as the normal one."""
NONE = -1


@dataclass(frozen=True, slots=True)
class Subsamples:
    """Subsamples of n records: COUNT disjoint ones of ⌊n/COUNT⌋ records each. Up to COUNT − 1 records are in no subsample.

    The subsamples are the same at every party, in every process and on every machine, so each owner can check that no record
    is in two subsamples.

    salt : public text that names the data. n_records : n.
    """

    salt: str
    n_records: int

    @property
    def name(self) -> str:
        """Return 16 hexadecimal digits of a hash of salt and n. Subsamples with equal names are equal."""
        return hashlib.sha256(f"vfl subsamples {self.n_records} {self.salt}".encode()).hexdigest()[:16]

    @property
    def size(self) -> int:
        """Number of records per subsample. Raises SpecificationError if it is 0."""
        if self.n_records < COUNT:
            raise SpecificationError(
                f"inference='subsamples' needs at least {COUNT} records, and there are fewer: leave inference out"
            )
        return self.n_records // COUNT

    @property
    def count(self) -> int:
        """Number of subsamples."""
        return COUNT

    def numbers(self) -> np.ndarray:
        """Return the number of each record's subsample, (n,) int8; NONE for a record that is in no subsample."""
        return _numbers(self.salt, self.n_records, self.size)

    def __getitem__(self, number: int) -> Subsample:
        if not 0 <= number < COUNT:
            raise IndexError(number)
        return Subsample(self, number)


@dataclass(frozen=True, slots=True)
class Subsample:
    """One subsample in the form of a split (vfl.holdout.Split), whose training part is the subsample."""

    of: Subsamples
    number: int

    def held_out(self, stop: int, start: int = 0) -> np.ndarray:
        """Return (stop − start,) booleans: False for the records of this subsample."""
        apart: np.ndarray = self.of.numbers()[start:stop] != self.number
        return apart

    def counts(self, ends: Sequence[int]) -> list[int]:
        """Return the number of records outside of this subsample before each of these positions, which must increase."""
        numbers = self.of.numbers()
        return [end - int(np.count_nonzero(numbers[:end] == self.number)) for end in ends]

    def sizes(self, n_records: int) -> tuple[int, int]:
        """Return the number of records in this subsample, and the number outside of it."""
        if n_records != self.of.n_records:
            raise SpecificationError("subsamples were made for a different number of records")
        return self.of.size, n_records - self.of.size


def part_of(number: int) -> str:
    """Return the name of a subsample in charged events (vfl.privacy.events.OnPart)."""
    return f"subsample {number + 1}"


@lru_cache(maxsize=1)
def _numbers(salt: str, n_records: int, size: int) -> np.ndarray:
    text = f"vfl subsample of each of {n_records} records {salt}".encode()
    words = np.frombuffer(hashlib.shake_256(text).digest(8 * n_records), dtype="<u8")
    found = np.full(n_records, NONE, dtype=np.int8)
    found[np.argsort(words, kind="stable")[: COUNT * size]] = np.repeat(np.arange(COUNT, dtype=np.int8), size)
    found.flags.writeable = False
    return found
