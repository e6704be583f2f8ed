"""Tables in memory: pandas, Polars and Arrow tables, arrays, and mappings from columns to arrays or lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from parties.sources.base import BY_POSITION, Seekable
from parties.sources.objects import converted, object_array
from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parties.sources.base import Content, Origin

_UNKNOWN_TYPE = "column {!r} holds values of a type that cannot be read: convert or leave it out"


class ArraySource(Seekable):
    """Columns in memory, or in a memory-mapped file, sliced into batches.

    columns : {column: one-dimensional NumPy array or Arrow chunked array}, all of one length. A NumPy array of objects or text
        is converted cell by cell, as `contents` says; any other array keeps its type.
    contents : {column: content} of the wanted columns.
    """

    typed = True

    def __init__(self, columns: Mapping[str, Any], contents: Mapping[str, Content], origin: Origin) -> None:
        self.origin = origin
        self.names = tuple(columns)
        self._columns = columns
        self._contents = contents
        lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1:
            raise origin.error("its columns have different lengths")
        self.at_most = lengths.pop() if lengths else 0
        self.n_records: int | None = self.at_most

    def _batches(self, first: int, names: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        for start in range(first, self.at_most, rows):
            arrays = [self._arrow(name, slice(start, start + rows)) for name in names]
            yield pa.RecordBatch.from_arrays(arrays, names=names)

    def _arrow(self, name: str, records: slice) -> pa.Array:
        column = self._columns[name]
        if not isinstance(column, np.ndarray):
            chunks = column.slice(records.start, records.stop - records.start).chunks
            return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
        part = column[records]
        if part.dtype.kind in "OU":
            return converted(part, self._contents.get(name), name, self.origin)
        absent = np.ma.getmaskarray(part) if isinstance(part, np.ma.MaskedArray) else None
        part = np.ascontiguousarray(part)
        if part.dtype.kind in "iuf":
            # Arrow knows neither swapped bytes nor extended precision.
            plain = np.float64 if part.dtype.itemsize > 8 else part.dtype.newbyteorder("=")
            part = part.astype(plain, copy=False)
        return self.origin.attempt(lambda: pa.array(part, mask=absent, from_pandas=True), _UNKNOWN_TYPE.format(name))


def open_table(table: Any, contents: Mapping[str, Content], origin: Origin) -> ArraySource:
    """Return a source over a table in memory. Only the wanted columns are converted.

    contents : {column: content} of the wanted columns.

    Raises DataError for an unreadable table, or SpecificationError for an unknown kind of table.
    """
    if isinstance(table, pa.RecordBatchReader):
        table = origin.attempt(table.read_all, "cannot be read")
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if isinstance(table, pa.Table):
        columns = {name: table.column(i) for i, name in enumerate(table.column_names)}
        origin = replace(origin, by_position=BY_POSITION in (table.schema.metadata or {}))
        origin.check_columns(table.column_names, [name for name in contents if name in columns])
        return ArraySource(columns, contents, origin)
    if isinstance(table, np.ndarray):
        return open_array(table, contents, origin)
    if isinstance(table, Mapping):
        columns = {name: _column(name, values, origin) for name, values in table.items()}
        return ArraySource(columns, contents, origin)
    if hasattr(table, "columns") and (hasattr(table, "__arrow_c_stream__") or _is_of_pandas(table)):
        return _frame(table, contents, origin)
    if hasattr(table, "__arrow_c_stream__"):
        return open_table(origin.attempt(lambda: pa.table(table), "cannot be read as an Arrow table"), contents, origin)
    raise SpecificationError(
        f"a source may not be of type {type(table).__name__!r}: give a path, a pandas, Polars or Arrow table, an "
        "array, a mapping from columns to arrays, or a function that returns one of these"
    )


def open_array(array: np.ndarray[Any, Any], contents: Mapping[str, Content], origin: Origin) -> ArraySource:
    """Return a source over a structured array, or over a 2-D array whose columns are the wanted columns in order."""
    wanted = tuple(contents)
    if array.dtype.names is not None:
        return ArraySource({name: array[name].reshape(-1) for name in array.dtype.names}, contents, origin)
    if array.ndim == 1 and len(wanted) == 1:
        array = array.reshape(-1, 1)
    if array.ndim != 2 or array.shape[1] != len(wanted):
        shown = ", ".join(wanted[:6]) + (", …" if len(wanted) > 6 else "")
        raise origin.error(
            f"an array without column names must be two-dimensional with exactly the columns wanted, in order ({shown})"
        )
    columns = {name: array[:, j] for j, name in enumerate(wanted)}
    return ArraySource(columns, contents, replace(origin, by_position=True))


def _is_of_pandas(table: Any) -> bool:
    return type(table).__module__.startswith("pandas")


def _column(name: str, values: Any, origin: Origin) -> Any:
    """Return values as a one-dimensional NumPy array or Arrow chunked array.

    Values keep their type. A list has no type, so its cells stay objects.
    """
    unknown = _UNKNOWN_TYPE.format(name)
    if isinstance(values, pa.ChunkedArray):
        return values
    if isinstance(values, pa.Array):
        return pa.chunked_array([values])
    if _is_of_pandas(values) and hasattr(values, "dtype"):
        values = _of_pandas(values)
    elif _holds_objects(values):
        values = object_array(values.to_list())
    if not isinstance(values, np.ndarray):
        if hasattr(values, "__arrow_c_stream__"):
            return origin.attempt(lambda: pa.chunked_array(values), unknown)
        if hasattr(values, "__arrow_array__") or hasattr(values, "__arrow_c_array__"):
            return origin.attempt(lambda: pa.chunked_array([pa.array(values, from_pandas=True)]), unknown)
        if isinstance(values, str | bytes):
            raise origin.error(f"column {name!r} must be an array or a list of cells")
        make = np.asarray if hasattr(values, "__array__") else object_array
        values = origin.attempt(lambda: make(values), unknown)
    if values.ndim != 1:
        raise origin.error(f"column {name!r} must be one-dimensional")
    return values


def _of_pandas(series: Any) -> Any:
    """Return a pandas column as NumPy array, as array of objects if types are mixed, or unchanged if Arrow can convert it."""
    if isinstance(series.dtype, np.dtype):
        return series.to_numpy()
    categories = getattr(series.dtype, "categories", None)
    if categories is not None and categories.dtype == object:
        return np.asarray(series.astype(object))
    return series


def _holds_objects(values: Any) -> bool:
    """Return True for a Polars column of Python objects."""
    return type(values).__module__.startswith("polars") and str(getattr(values, "dtype", "")) == "Object"


def _frame(frame: Any, contents: Mapping[str, Content], origin: Origin) -> ArraySource:
    """Return a source over a pandas or Polars frame. Arrow reads the frame, so neither library is imported."""
    names = list(frame.columns)
    if not all(isinstance(name, str) for name in names):
        raise origin.error(
            "not all of its column names are text: rename them, frame.columns = frame.columns.astype(str)"
        )
    present = [name for name in contents if name in names]
    origin.check_columns(names, present)
    source = ArraySource({name: _of_frame(frame, name, origin) for name in present}, contents, origin)
    source.names = tuple(names)
    return source


def _of_frame(frame: Any, name: str, origin: Origin) -> Any:
    if _is_of_pandas(frame) or _holds_objects(frame[name]):
        return _column(name, frame[name], origin)
    return origin.attempt(partial(pa.table, frame[[name]]), _UNKNOWN_TYPE.format(name)).column(0)
