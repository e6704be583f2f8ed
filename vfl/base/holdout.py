"""Public divisions of aligned records: the split into a training and a held-out part, and disjoint subsamples.

Guarantee of the split. A record's part follows from the record's position among the aligned records and from public facts.
Replacing a record by one with the same id (without ids: in the same row) does not change its position, so the parts are
the same in two adjacent data sets. An alignment orders records by ids, so another id could move other records. Suppose that
the training releases are functions of the training part and μ_T-GDP. Suppose that the evaluation releases are functions of the
held-out part and of earlier released values, and μ_E-GDP. If the replaced record is in the training part, the evaluation is
post-processing of the training releases. If the replaced record is held out, the training releases do not depend on it, and
given any of their values the evaluation is μ_E-GDP. So the run is max(μ_T, μ_E)-GDP for every record, not √(μ_T² + μ_E²):
parallel composition (McSherry 2009, Thm. 4, for a split that data do not decide). Adaptive choices on either side keep the
guarantee, since the cost of the releases about any one record stays below the same cap.

Guarantee of the subsamples. Suppose that the releases on each subsample are μ-GDP under replace-one. Then all releases of
the run together are μ-GDP under replace-one, not √8·μ-GDP. Proof: A record's subsample follows from the record's position
among the aligned records, from n and from public names. Replacing a record changes neither its position nor n: records keep
their order in a file, and an alignment orders records by ids, which replacement keeps. So two adjacent data sets differ in
the records of one subsample k. The schedule of a subsample depends on no other subsample, and the releases on the other
subsamples have the same distribution in both data sets. Hence the outputs are those on subsample k, and independent values
that are post-processing: parallel composition again. The spread of the models fitted to the subsamples gives intervals
without products of columns.

Both guarantees are for one run. Another run may divide the same records differently, so the ledger adds up all runs' costs.

The assignment to subsamples is a uniformly random permutation from a public hash, so that the subsamples of independent
records are independent whatever the order of the records. Every 8th record, or strata by position, would not do: in a file
that is sorted by the label, all subsamples would hold nearly equal shares of each label, and intervals would be too short.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm

from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PIECE = 1 << 18
"""Number of random words that are drawn at a time."""
HEAD = 1 << 24
"""Number of first records that are split one by one. Strata of later records have known numbers of held-out records."""
STRATUM = 1 << 12


class Side(enum.Enum):
    """Part of the records that a query works on."""

    TRAINING = "training"
    HELD_OUT = "held out"


@dataclass(frozen=True, slots=True)
class Split:
    """Public split of the records, which is the same at every party, in every process and on every machine.

    salt : public text that names the data. share : held-out share of the records, 0 < share < 1.
    """

    salt: str
    share: float

    @property
    def name(self) -> str:
        """Return 16 hexadecimal digits of a hash of salt and share. Splits with equal names are equal."""
        return hashlib.sha256(f"vfl split {self.share.hex()} {self.salt}".encode()).hexdigest()[:16]

    @property
    def _most(self) -> int:
        """The held-out share in units of 2⁻⁶⁴. A record at a position below HEAD is held out if its word is smaller."""
        return int(self.share * 2.0**64)

    def held_out(self, n_records: int, start: int = 0) -> np.ndarray:
        """Return (n − start,) booleans, True for held-out records. The choice of held-out records does not depend on n.

        Record i < HEAD is held out if word i of SHAKE-256(salt), as a number in [0, 1), lies below the share. A later record
        is in a stratum s of STRATUM records. The stratum has `_before(s + 1) − _before(s)` held-out records: those with the
        smallest words of SHAKE-256(salt, s). Memory is proportional to n − start. Time is, too, if start ≥ HEAD.
        """
        found = np.empty(n_records - start, dtype=bool)
        position = 0
        for words in self._words(min(n_records, HEAD) if start < HEAD else 0):
            kept = words[max(0, start - position) :]
            position += len(words)
            if len(kept):
                found[position - len(kept) - start : position - start] = kept < np.uint64(self._most)
        for number in range(max(0, start - HEAD) // STRATUM, -(-max(0, n_records - HEAD) // STRATUM)):
            begin = HEAD + number * STRATUM
            first, last = max(start, begin), min(n_records, begin + STRATUM)
            found[first - start : last - start] = self._stratum(number)[first - begin : last - begin]
        return found

    def counts(self, ends: Sequence[int]) -> list[int]:
        """Return the number of held-out records before each of these positions, which must increase.

        Memory and time are bounded: beyond HEAD the number follows from the share, except within the stratum of a position.
        """
        last = min(ends[-1], HEAD)
        found, position, total = [0] * len(ends), 0, 0
        for words in self._words(last):
            below = words < np.uint64(self._most)
            for k, end in enumerate(ends):
                if position <= end <= position + len(words):
                    found[k] = total + int(below[: end - position].sum())
            position, total = position + len(words), total + int(below.sum())
        for k, end in enumerate(ends):
            if end > HEAD:
                number, within = divmod(end - HEAD, STRATUM)
                found[k] = total + self._before(number) + (int(self._stratum(number)[:within].sum()) if within else 0)
        return found

    def _before(self, number: int) -> int:
        """Return the number of held-out records in the first `number` strata: the share times the records, rounded down."""
        return self._most * STRATUM * number >> 64

    def _stratum(self, number: int) -> np.ndarray:
        """Return (STRATUM,) booleans, True for the held-out records of a stratum."""
        text = f"vfl holdout stratum {number} {self.salt}".encode()
        words = np.frombuffer(hashlib.shake_256(text).digest(8 * STRATUM), dtype="<u8")
        found = np.zeros(STRATUM, dtype=bool)
        found[np.argsort(words, kind="stable")[: self._before(number + 1) - self._before(number)]] = True
        return found

    def _words(self, n_records: int) -> Iterator[np.ndarray]:
        """Yield the first n words of SHAKE-256(salt), in pieces if the installed library can read the hash in pieces."""
        text = f"vfl holdout {self.salt}".encode()
        try:
            from cryptography.hazmat.primitives import hashes

            stream = hashes.XOFHash(hashes.SHAKE256(digest_size=8 * max(1, n_records)))
            stream.update(text)
        except (ImportError, AttributeError, UnsupportedAlgorithm):
            yield np.frombuffer(hashlib.shake_256(text).digest(8 * n_records), dtype="<u8")
            return
        for start in range(0, n_records, PIECE):
            yield np.frombuffer(stream.squeeze(8 * min(PIECE, n_records - start)), dtype="<u8")

    def sizes(self, n_records: int) -> tuple[int, int]:
        """Return the public numbers of training and of held-out records. Raises SpecificationError if one of them is 0."""
        held_out = _held_out(self, n_records)
        if not 0 < held_out < n_records:
            raise SpecificationError(
                f"holdout={self.share!r} of {n_records} records leaves one part empty: change the share, or leave holdout out"
            )
        return n_records - held_out, held_out


@lru_cache(maxsize=256)
def _held_out(split: Split, n_records: int) -> int:
    """Return the number of held-out records, which takes .3 s to draw for many records; plans, reports and cards use it."""
    return split.counts([n_records])[0]


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
                f"intervals='subsamples' needs at least {COUNT} records, and there are fewer: leave intervals out"
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
    """One of the subsamples, in the form of a split: its records are the training part (`Split`)."""

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
