"""Public split of aligned records into a training part and a held-out part.

Guarantee. A record's part follows from the record's position among the aligned records and from public facts. Replacing a
record does not change its position, so the parts are the same in two adjacent data sets. Suppose that the training releases
are functions of the training part and μ_T-GDP. Suppose that the evaluation releases are functions of the held-out part and of
earlier released values, and μ_E-GDP. If the replaced record is in the training part, the evaluation is post-processing of the
training releases. If the replaced record is held out, the training releases do not depend on it, and given any of their
values the evaluation is μ_E-GDP. So the run is max(μ_T, μ_E)-GDP for every record, not √(μ_T² + μ_E²): parallel composition
(McSherry 2009, Thm. 4, for a split that data do not decide). Adaptive choices on either side keep the guarantee, since the
cost of the releases about any one record stays below the same cap.

The guarantee is for one run. Another run may split the same records differently, so the ledger adds up the costs of all runs.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
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
        """The held-out share in units of 2⁻⁶⁴. A record below position HEAD is held out if its random word is smaller."""
        return int(self.share * 2.0**64)

    def held_out(self, n_records: int, start: int = 0) -> np.ndarray:
        """Return (n − start,) booleans, True for held-out records. Whether a record is held out does not depend on n.

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
        (held_out,) = self.counts([n_records])
        if not 0 < held_out < n_records:
            raise SpecificationError(
                f"holdout={self.share!r} of {n_records} records leaves one part empty: change the share, or leave holdout out"
            )
        return n_records - held_out, held_out
