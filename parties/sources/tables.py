"""Data that are in memory already: Arrow-compatible tables, arrays, mappings from columns to arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from parties.sources.base import BY_POSITION, chunk_rows
from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from parties.sources.base import Origin

_MIXED = "column {!r} mixes values of different types, or of an unknown one"


class ArraySource:
    """Columns in memory, or mapped into it, sliced into batches.

    columns : {column: one-dimensional NumPy array or Arrow chunked array}, all of one length.
    """

    typed = True

    def __init__(self, columns: Mapping[str, Any], origin: Origin) -> None:
        self.origin = origin
        self.names = tuple(columns)
        self._columns = columns
        lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1:
            raise origin.error("its columns have different lengths")
        self.at_most = lengths.pop() if lengths else 0
        self.n_records: int | None = self.at_most

    def batches(self, columns: Sequence[str] | None = None, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the records in order; see `Source`."""
        names = list(self.names if columns is None else columns)
        step = chunk_rows(len(names)) if rows is None else rows
        for start in range(0, self.at_most, step):
            arrays = [self._arrow(name, slice(start, start + step)) for name in names]
            yield pa.RecordBatch.from_arrays(arrays, names=names)

    def _arrow(self, name: str, records: slice) -> pa.Array:
        column = self._columns[name]
        if not isinstance(column, np.ndarray):
            chunks = column.slice(records.start, records.stop - records.start).chunks
            return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
        part = np.ascontiguousarray(column[records])
        if part.dtype.kind in "iuf":
            # Arrow knows neither swapped bytes nor extended precision.
            plain = np.float64 if part.dtype.itemsize > 8 else part.dtype.newbyteorder("=")
            part = part.astype(plain, copy=False)
        return self.origin.attempt(
            lambda: pa.array(part, from_pandas=True),
            _MIXED.format(name),
        )


def open_table(table: Any, wanted: tuple[str, ...], origin: Origin) -> ArraySource:
    """Return the source over a table in memory; only the wanted columns are converted.

    Raises DataError, or SpecificationError for an unknown kind of table.
    """
    if isinstance(table, pa.RecordBatchReader):
        table = origin.attempt(table.read_all, "cannot be read")
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if isinstance(table, pa.Table):
        columns = {name: table.column(i) for i, name in enumerate(table.column_names)}
        origin = replace(origin, by_position=BY_POSITION in (table.schema.metadata or {}))
        origin.check_columns(table.column_names, [name for name in wanted if name in columns])
        return ArraySource(columns, origin)
    if isinstance(table, np.ndarray):
        return open_array(table, wanted, origin)
    if isinstance(table, Mapping):
        return ArraySource({name: _column(name, values, origin) for name, values in table.items()}, origin)
    if hasattr(table, "columns") and (
        hasattr(table, "__arrow_c_stream__") or type(table).__module__.startswith("pandas")
    ):
        return _frame(table, wanted, origin)
    if hasattr(table, "__arrow_c_stream__"):
        return open_table(origin.attempt(lambda: pa.table(table), "cannot be read as an Arrow table"), wanted, origin)
    raise SpecificationError(
        f"a source may not be of type {type(table).__name__!r}: give a path, a pandas, Polars or Arrow table, an "
        "array, a mapping from columns to arrays, or a function that returns one of these"
    )


def open_array(array: np.ndarray[Any, Any], wanted: tuple[str, ...], origin: Origin) -> ArraySource:
    """Return the source over a structured array, or over a 2-D array whose columns are the wanted ones in order."""
    if array.dtype.names is not None:
        return ArraySource({name: array[name].reshape(-1) for name in array.dtype.names}, origin)
    if array.ndim == 1 and len(wanted) == 1:
        array = array.reshape(-1, 1)
    if array.ndim != 2 or array.shape[1] != len(wanted):
        shown = ", ".join(wanted[:6]) + (", …" if len(wanted) > 6 else "")
        raise origin.error(
            f"an array without column names must be two-dimensional with exactly the columns wanted, in order ({shown})"
        )
    return ArraySource({name: array[:, j] for j, name in enumerate(wanted)}, replace(origin, by_position=True))


def _column(name: str, values: Any, origin: Origin) -> Any:
    """Return values as a NumPy array or an Arrow chunked array, of one dimension."""
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise origin.error(f"column {name!r} must be one-dimensional")
        return values
    mixed = _MIXED.format(name)
    if isinstance(values, pa.ChunkedArray):
        return values
    if hasattr(values, "__arrow_c_stream__"):
        return origin.attempt(lambda: pa.chunked_array(values), mixed)
    return pa.chunked_array([origin.attempt(lambda: pa.array(values, from_pandas=True), mixed)])


def _frame(frame: Any, wanted: tuple[str, ...], origin: Origin) -> ArraySource:
    """Return the source over a pandas or Polars frame, through Arrow and without importing either."""
    names = list(frame.columns)
    if not all(isinstance(name, str) for name in names):
        raise origin.error(
            "not all of its column names are text: rename them, frame.columns = frame.columns.astype(str)"
        )
    present = [name for name in wanted if name in names]
    origin.check_columns(names, present)

    def convert(columns: list[str]) -> pa.Table:
        part = frame[columns]
        # pandas before 2.2 speaks no Arrow of its own.
        return (
            pa.table(part) if hasattr(part, "__arrow_c_stream__") else pa.Table.from_pandas(part, preserve_index=False)
        )

    try:
        table = convert(present)
    except Exception:  # noqa: BLE001 — the reader's message quotes cells; the columns are tried one by one instead
        table = None
    if table is None:
        for name in present:
            origin.attempt(partial(convert, [name]), _MIXED.format(name))
        raise origin.error("cannot be read as an Arrow table")
    source = ArraySource({name: table.column(name) for name in present}, origin)
    source.names = tuple(names)
    return source
