"""Check rows: additional rows of Fourier terms that the parties open (disclose) to check the dealer.

Guarantee. The dealer deals n + S rows for n records and does not know which S of them are opened. A random coin chooses these S
rows. The label party draws the coin once per session and encrypts it for the other parties. An opened row masks no record. If a
fraction f of all rows is wrong, all S opened rows are correct with probability at most (1 − f)^S.

Opened rows reveal nothing about records: they are independent of the rows that mask records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vfl.secure.streams import Streams

if TYPE_CHECKING:
    import numpy.typing as npt

    from vfl.base.types import Integers
    from vfl.kernels.ring import Elements
    from vfl.secure.requests import Version

CHECK_ROWS = 128
"""S, the number of the dealer's rows that are opened and checked for each version of the model."""


class RowsToCheck:
    """Rows of the dealer to open and check for one version of the model, and replacements for them as masks.

    opened : (S,) positions of the opened rows among the n + S rows, ascending.
    moved, to : (s,) records whose own row is opened; rows after the first n that mask the `moved` records instead.
    """

    def __init__(self, opened: Integers, n_records: int) -> None:
        self.opened, self.n_records = opened, n_records
        self.moved, beyond = opened[opened < n_records], opened[opened >= n_records]
        free = np.ones(CHECK_ROWS, dtype=np.bool_)
        free[beyond - n_records] = False
        self.to = n_records + np.flatnonzero(free)

    def masking(self, rows: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
        """Return the rows that mask the n records, (n,), in the order of the records. rows : all rows, (n + S,)."""
        masks = rows[: self.n_records].copy()
        masks[self.moved] = rows[self.to]
        return masks


class RowCollector:
    """Collector of the opened rows, and of the rows that mask the records in `chosen.moved`. width : integers per row, 2K."""

    def __init__(self, chosen: RowsToCheck, width: int) -> None:
        n = chosen.n_records
        self._wanted = np.concatenate([chosen.moved, np.arange(n, n + CHECK_ROWS)])
        self._rows = np.empty((len(self._wanted), width), dtype=np.uint64)

    def take(self, start: int, rows: Elements) -> None:
        """Keep the wanted rows among the given rows. start : position of the first given row."""
        first, last = np.searchsorted(self._wanted, (start, start + len(rows)))
        self._rows[first:last] = rows[self._wanted[first:last] - start]

    def at(self, positions: Integers) -> Elements:
        """Return a copy of the rows at these positions."""
        found: Elements = self._rows[np.searchsorted(self._wanted, positions)]
        return found


def chosen_rows(coin: bytes | None, version: Version, n_records: int) -> RowsToCheck:
    """Return the rows to open and check. coin : 32 random bytes, or None for the last S rows, which the dealer can guess."""
    total = n_records + CHECK_ROWS
    if coin is None:
        return RowsToCheck(np.arange(n_records, total), n_records)
    stream = Streams("coin", {"coin": coin}).again("coin", *version.name)
    found: dict[int, None] = {}
    while len(found) < CHECK_ROWS:
        found.update(dict.fromkeys((stream.words(CHECK_ROWS) % np.uint64(total)).tolist()))
    return RowsToCheck(np.sort(np.array(list(found)[:CHECK_ROWS], dtype=np.int64)), n_records)
