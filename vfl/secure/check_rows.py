"""Spare rows of Fourier terms, by which the parties check the dealer.

Guarantee. The dealer deals S rows more than there are records, and does not know which S of the n + S rows are opened. A coin
chooses them, which the label party draws for a session and seals for the other parties. Opened rows mask no record. If a
fraction f of the rows is wrong, all opened rows are right with a probability of at most (1 − f)^S.

Nothing else is learnt: opened rows are independent of all other rows, which alone mask records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vfl.secure.streams import Streams

if TYPE_CHECKING:
    import numpy.typing as npt

    from vfl.kernels.ring import Words
    from vfl.secure.version import Version
    from vfl.types import Integers

CHECK_ROWS = 128
"""S, the number of rows that are opened per version."""


class CheckRowCount:
    """Choice of the opened rows of a version.

    opened : (S,) their positions among the n + S rows, ascending.
    moved, to : (s,) records whose own row is opened, and the rows behind the first n that take their place.
    """

    def __init__(self, opened: Integers, n_records: int) -> None:
        self.opened, self.n_records = opened, n_records
        self.moved = opened[opened < n_records]
        self.to = np.setdiff1d(np.arange(n_records, n_records + CHECK_ROWS), opened)

    def masking(self, rows: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
        """Return the rows that mask the records, (n,), of all rows, (n + S,)."""
        masks = rows[: self.n_records].copy()
        masks[self.moved] = rows[self.to]
        return masks


class Kept:
    """The few rows of a stream of rows that an opening or a moved record needs. rows : 2K words each."""

    def __init__(self, reserve_passes: CheckRowCount, width: int) -> None:
        n = reserve_passes.n_records
        self._wanted = np.union1d(reserve_passes.moved, np.arange(n, n + CHECK_ROWS))
        self._rows = np.empty((len(self._wanted), width), dtype=np.uint64)

    def take(self, start: int, rows: Words) -> None:
        """Keep wanted rows among these, of which `start` is the position of the first."""
        first, last = np.searchsorted(self._wanted, (start, start + len(rows)))
        self._rows[first:last] = rows[self._wanted[first:last] - start]

    def at(self, positions: Integers) -> Words:
        """Return a copy of the rows at these positions."""
        found: Words = self._rows[np.searchsorted(self._wanted, positions)]
        return found


def reserve_passes(coin: bytes | None, version: Version, n_records: int) -> CheckRowCount:
    """Return the choice for a version. coin : 32 bytes; None opens the rows behind the first n, which the dealer can guess."""
    total = n_records + CHECK_ROWS
    if coin is None:
        return CheckRowCount(np.arange(n_records, total), n_records)
    stream = Streams("coin", {"coin": coin}).again("coin", *version.name)
    found: dict[int, None] = {}
    while len(found) < CHECK_ROWS:
        found.update(dict.fromkeys(int(word) % total for word in stream.words(CHECK_ROWS)))
    return CheckRowCount(np.sort(np.array(list(found)[:CHECK_ROWS], dtype=np.int64)), n_records)
