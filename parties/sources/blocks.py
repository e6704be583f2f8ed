"""Data sets that consist of blocks, such as Ray datasets. Each block is a table, and a process fetches one block at a time."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parties.sources.base import Seekable
from parties.sources.ranges import content_of
from parties.sources.tables import open_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from parties.sources.base import Content, Origin
    from parties.sources.tables import ArraySource

CHANGED = "the source changed while its shards were read: start a new run, or restore it and resume"


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of a data set, in the order of its rows.

    fetch : function from a block's number to its table. counts : number of rows of each block, from its metadata.
    """

    fetch: Callable[[int], Any]
    counts: tuple[int, ...]


class BlockSource(Seekable):
    """Rows of all blocks, one block after another. A process holds one block at a time, and fetches only blocks that it reads.

    digests : {block: SHA-256 of its wanted columns} for the blocks that this object has read. If two shards read one block,
        these digests are compared, because a lost block may be computed again and differ (parties.loading.Unchanged).
    """

    typed = True

    def __init__(self, blocks: Blocks, contents: Mapping[str, Content], origin: Origin) -> None:
        self.origin = origin
        self._blocks, self._contents = blocks, contents
        self.at_most = sum(blocks.counts)
        if not self.at_most:
            raise origin.error("there are no records")
        self.n_records: int | None = self.at_most
        self.digests: dict[int, str] = {}
        self._held: tuple[int, ArraySource] | None = None
        self.names = self._block(next(k for k, count in enumerate(blocks.counts) if count)).names

    def _batches(self, first: int, names: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        for number, count in enumerate(self._blocks.counts):
            if first < count:
                block = self._block(number)
                wanted = list(self._contents) or list(self.names[:1])
                digest = content_of(block, wanted)
                if self.digests.setdefault(number, digest) != digest:
                    raise self.origin.error(CHANGED)
                yield from block.batches_from(first, names, rows)
            first = max(0, first - count)

    def _block(self, number: int) -> ArraySource:
        """Return a block, and keep it in place of the block before."""
        if self._held is None or self._held[0] != number:
            self._held = None
            table = self.origin.attempt(lambda: self._blocks.fetch(number), "a block cannot be fetched")
            block = open_table(table, self._contents, self.origin)
            self.origin.check_columns(block.names, self._contents)
            if block.at_most != self._blocks.counts[number]:
                raise self.origin.error(CHANGED)
            self._held = number, block
        return self._held[1]


def is_dataset(spec: Any) -> bool:
    """Return True for a ray.data.Dataset. Nothing is imported: a process without Ray Data cannot hold such an object."""
    module = sys.modules.get("ray.data")
    return module is not None and isinstance(spec, module.Dataset)
