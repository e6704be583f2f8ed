"""Ids of a party whose rows are in shards. The process of each shard holds the ids of one range of the source's rows.

Ids are sent only between processes of their owner. The main process reads ids in chunks, so it holds O(n/S) of them at once.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from parties.sources.ranges import rows_of
from parties.sources.sparse import SparseSource
from vfl.crypto.identifiers import (
    PIECE,
    RemoteIdentifiers,
    check_one_kind,
    cut,
    joined,
    key_name,
    normalised,
    repeats,
)
from vfl.network.shards import Each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from parties.sources.base import Source
    from vfl.base.types import Integers
    from vfl.job.job import PartyTask
    from vfl.network.shards import Group, Shard

    Hashes = npt.NDArray[np.uint64]


class IdRange:
    """Ids of the rows of one range, held in the process of the shard that reads this range.

    opened : the source, with its id column (parties.alignment.reading.open_for).

    Raises the same errors as vfl.crypto.identifiers.normalised.
    """

    def __init__(self, task: PartyTask, opened: Source, shard: Shard) -> None:
        source = opened.ids if isinstance(opened, SparseSource) else opened
        own = rows_of(source, shard.start, shard.stop)
        self._ids, self.kind = normalised(
            lambda: keys_in(own, task.id),
            party=task.party,
            column=key_name(task.id),
            key=task.key,
            repeating=task.repeats,
        )

    def at(self, rows: Integers) -> tuple[bytes, Integers]:
        """Return the ids of these rows of the range as one byte string, and the end position of each id in this string."""
        return joined(self._ids.at(rows))

    def hashes(self, part: int, parts: int) -> Hashes:
        """Return the sorted 64-bit hashes of ids that lie in range number `part` of `parts` equal ranges."""
        own = self._hashed()
        ranges = (own >> np.uint64(32)) * np.uint64(parts) >> np.uint64(32)
        return np.sort(own[ranges == part])

    def rows_of(self, hashes: Hashes) -> Integers:
        """Return the rows of the range whose ids have one of these hashes."""
        return np.flatnonzero(np.isin(self._hashed(), hashes))

    def _hashed(self) -> Hashes:
        hashed = (int.from_bytes(hashlib.blake2b(own, digest_size=8).digest()) for own in self._ids)
        return np.fromiter(hashed, np.uint64, len(self._ids))


def keys_in(source: Source, columns: Sequence[str]) -> Iterator[pa.Array]:
    """Yield the cells of an id column, or the rows of the columns of a composite key."""
    for batch in source.batches(columns):
        whole = pa.StructArray.from_arrays(batch.columns, names=list(columns)) if len(columns) > 1 else batch.column(0)
        yield whole


class DividedIds(RemoteIdentifiers):
    """Normalised ids of all rows, read from the shards in chunks. Never send ids to other participants.

    shards : objects with a method `of_ids(method, ...)` that calls a method of their `IdRange`. ranges : rows of each shard.
    """

    def __init__(self, shards: Group, ranges: Sequence[Shard]) -> None:
        self._shards = shards
        self._ends = np.array([shard.stop for shard in ranges])
        self._starts = np.array([shard.start for shard in ranges])
        self._piece: tuple[int, list[bytes]] = (0, [])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self), PIECE):
            yield from self.at(np.arange(start, min(start + PIECE, len(self))))

    def __getitem__(self, at: Any) -> Any:
        start, stop, step = at.indices(len(self)) if isinstance(at, slice) else (0, 0, 1)
        if step != 1 or not 1 < stop - start <= PIECE:
            return super().__getitem__(at)
        first, held = self._piece
        if not first <= start <= stop <= first + len(held):
            first, held = self._piece = start, self.at(np.arange(start, min(start + PIECE, len(self))))
        return held[start - first : stop - first]

    def at(self, rows: Integers) -> list[bytes]:
        """Return the ids of these rows, in the order of `rows`."""
        rows = np.asarray(rows, np.int64)
        holder = np.searchsorted(self._ends, rows, side="right")
        places = [np.flatnonzero(holder == k) for k in range(len(self._ends))]
        found: list[bytes] = [b""] * len(rows)
        asked = Each(rows[own] - self._starts[k] for k, own in enumerate(places))
        for own, answer in zip(places, self._shards.ask("of_ids", "at", asked), strict=True):
            for place, identifier in zip(own.tolist(), cut(*answer), strict=True):
                found[place] = identifier
        return found

    def repeated_rows(self) -> Integers:
        """Return the rows whose id occurs more than once, in ascending order. Needs 16·n/S bytes of memory for S shards."""
        parts, suspects = len(self._ends), []
        for part in range(parts):
            hashes = np.sort(np.concatenate(self._shards.ask("of_ids", "hashes", part, parts)))
            suspects.append(np.unique(hashes[1:][hashes[1:] == hashes[:-1]]))
        twice = np.concatenate(suspects)
        if not len(twice):
            return np.zeros(0, np.int64)
        local = self._shards.ask("of_ids", "rows_of", twice)
        rows = np.concatenate([own + start for own, start in zip(local, self._starts, strict=True)])
        rows_by_id: dict[bytes, list[int]] = {}
        for row, identifier in zip(rows.tolist(), self.at(rows), strict=True):
            rows_by_id.setdefault(identifier, []).append(row)
        return np.array(sorted(row for own in rows_by_id.values() if len(own) > 1 for row in own), np.int64)


def read_divided(
    task: PartyTask, opened: Source, ranges: Sequence[Shard], shards: Group, load: Callable[[], list[str]]
) -> tuple[DividedIds, str]:
    """Make every shard read its ids. Return the ids of all rows, and the kind of the ids. Raises DataError as `read_ids` does.

    load : function that makes every shard read its ids, and returns the kind of the ids per shard.
    """
    column = key_name(task.id)
    kind = check_one_kind(load(), party=task.party, column=column)
    ids = DividedIds(shards, ranges)
    if not task.repeats and len(twice := ids.repeated_rows()):
        raise repeats(_cells_at(opened, task.id, twice), party=task.party, column=column)
    return ids, kind


def _cells_at(opened: Source, columns: Sequence[str], rows: Integers) -> list[object]:
    """Return the cells of these rows as the source holds them, not converted. rows : in ascending order."""
    found: list[object] = []
    count = 0
    for keys in keys_in(opened, columns):
        first, last = np.searchsorted(rows, [count, count + len(keys)])
        found += keys.take(rows[first:last] - count).to_pylist()
        count += len(keys)
    return found
