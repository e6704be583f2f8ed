"""Ranges of a source's rows. Each shard of a party reads one range."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from parties.sources.sparse import SparseSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from parties.sources.base import Origin, Source


def count_records(source: Source) -> int:
    """Return the number of records. If the number is unknown, as for a text file, the source is read once."""
    if source.n_records is None:
        for _ in source.batches(source.names[:1]):
            pass
    count = source.n_records
    if not count:
        raise source.origin.error("there are no records")
    return count


def content_of(source: Source, columns: Sequence[str]) -> str:
    """Return the SHA-256 of these columns of all records, 64 hexadecimal digits. The columns are read once, in batches.

    The digest also depends on the sizes of the batches. A sparse matrix is digested as a whole, with all columns.
    """
    digest = hashlib.sha256()
    if isinstance(source, SparseSource):
        for array in (source.matrix.indptr, source.matrix.indices, source.matrix.data):
            digest.update(f"{array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()
    for batch in source.batches(columns):
        # The bytes of a stream include the dictionaries of categories.
        with pa.BufferOutputStream() as sink:
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            digest.update(sink.getvalue())
    return digest.hexdigest()


def rows_of(source: Source, start: int, stop: int) -> Source:
    """Return a source of the rows start..stop − 1 only."""
    return source.between(start, stop) if isinstance(source, SparseSource) else RowRange(source, start, stop)


class RowRange:
    """Rows start..stop − 1 of another source.

    A source that can start reading at a row has a method `batches_from(start, columns, rows)`. A source that can also stop at a
    row has `batches_between(start, stop, columns, rows)`. Other sources are read from their first row.
    """

    def __init__(self, source: Source, start: int, stop: int) -> None:
        self._source, self._start = source, start
        self.origin: Origin = source.origin
        self.names, self.typed = source.names, source.typed
        self.at_most = stop - start
        self.n_records: int | None = self.at_most

    def batches(self, columns: Sequence[str] | None = None, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the records in order; see `Source`."""
        between = getattr(self._source, "batches_between", None)
        begin = getattr(self._source, "batches_from", None)
        skipped, batches = 0, None
        if between is not None:
            batches = between(self._start, self._start + self.at_most, columns, rows)
        elif begin is not None:
            batches = begin(self._start, columns, rows)
        else:
            skipped, batches = self._start, self._source.batches(columns, rows)
        left = self.at_most
        for batch in batches:
            own = batch.slice(min(skipped, batch.num_rows), left)
            skipped -= min(skipped, batch.num_rows)
            left -= own.num_rows
            if own.num_rows:
                yield own
            if not left:
                return
        raise self.origin.error("the source changed while it was read")
