"""Tables in memory: pandas, Polars and Arrow tables, arrays, and mappings from columns to arrays or lists.

`converted` reads Python objects one cell at a time: the result depends only on the cell and on the declaration of its column.
Arrow, pandas and Polars would find one common type for a list of objects. One record could then change how others are read.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import numbers
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from parties.sources.base import NO_DATE, Seekable
from vfl.base.columns import canonical_category, nearest_double
from vfl.crypto.identifiers import as_text
from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from parties.sources.base import Content, Origin


_UNKNOWN_TYPE = "column {!r} holds values of a type that cannot be read: convert or leave it out"


TRUTHS = {"true": True, "1": True, "false": False, "0": False}
_NO_VALUES = ("NaTType", "NAType")
"""Names of the types with which pandas marks missing cells, except float NaN."""
_PLAIN = {str, bytes, float, type(None)}
"""Types of cells that Arrow converts faster than the loop in `_texts`, with the same result."""


def object_array(cells: Iterable[Any]) -> np.ndarray[Any, Any]:
    """Return cells as a one-dimensional array of objects. A list among the cells stays one cell."""
    listed = list(cells)
    array = np.empty(len(listed), dtype=object)
    for k, cell in enumerate(listed):
        array[k] = cell
    return array


def converted(cells: Any, content: Content | None, column: str, origin: Origin) -> pa.Array:
    """Return cells as float64 ('number'), bool ('boolean'), UTF-8 bytes ('text'), ISO text ('date'), or ids ('id').

    A missing cell is null.

    cells : (m,) a list, or a NumPy array of objects or text.
    content : None for a column of which only the length is needed.

    Raises DataError, which names the column.
    """
    if content is None:
        return pa.nulls(len(cells))
    if content == "text":
        return _texts(cells, column, origin)
    if content == "id":
        return _ids(cells, column, origin)
    if content == "date":
        return pa.array([None if is_missing(cell) else _date(cell) for cell in cells], type=pa.string())
    if content == "boolean":
        truths = [None if is_missing(cell) else _truth(cell) for cell in cells]
        if any(truth is NotImplemented for truth in truths):
            raise origin.not_boolean(column)
        return pa.array(truths, type=pa.bool_())
    if any(issubclass(kind, str | bytes) for kind in set(map(type, cells))):
        raise origin.not_a_number(column)
    return origin.attempt(
        lambda: pa.array([None if is_missing(cell) else _number(cell) for cell in cells], type=pa.float64()),
        f"column {column!r} holds values that are not numbers: convert or leave it out",
    )


def is_missing(cell: Any) -> bool:
    """Return True for None, NaN of any type, and the missing-value marks of pandas and NumPy."""
    if cell is None:
        return True
    if isinstance(cell, float):
        return math.isnan(cell)
    if isinstance(cell, str | bytes | int):
        return False
    if isinstance(cell, Decimal):
        return cell.is_nan()  # a comparison with a signalling NaN raises
    if isinstance(cell, np.datetime64 | np.timedelta64):
        return bool(np.isnat(cell))
    return type(cell).__name__ in _NO_VALUES or (isinstance(cell, np.floating) and bool(np.isnan(cell)))


def _number(cell: Any) -> float:
    if not isinstance(cell, numbers.Real | Decimal | np.bool_):
        raise TypeError
    return nearest_double(cell)


def _truth(cell: Any) -> Any:
    """Return True or False, or NotImplemented for a cell that is neither."""
    if isinstance(cell, bytes):
        cell = cell.decode(errors="replace")
    if isinstance(cell, str):
        return TRUTHS.get(cell.strip().lower(), NotImplemented)
    if isinstance(cell, numbers.Real | Decimal | np.bool_):
        return bool(cell) if cell in (0, 1) else NotImplemented
    return NotImplemented


def _date(cell: Any) -> str:
    """Return a date as ISO text, text unchanged, and NO_DATE for any other cell."""
    if isinstance(cell, str):
        return cell if cell.isascii() else cell.encode(errors="replace").decode()  # pyarrow refuses lone surrogates
    if isinstance(cell, dt.date):
        return cell.isoformat()
    if isinstance(cell, np.datetime64):
        return str(cell)
    return NO_DATE


def _texts(cells: Any, column: str, origin: Origin) -> pa.Array:
    def convert() -> pa.Array:
        if set(map(type, cells)) <= _PLAIN:
            with contextlib.suppress(TypeError, ValueError):  # raised for a number or invalid Unicode
                return pa.array(cells, type=pa.binary(), from_pandas=True)
        return pa.array([None if is_missing(cell) else _utf8(cell) for cell in cells], type=pa.binary())

    return origin.attempt(convert, f"column {column!r} holds a value that has no text: convert or leave it out")


def _utf8(cell: Any) -> bytes:
    return cell if isinstance(cell, bytes) else canonical_category(cell).encode(errors="surrogatepass")


def _ids(cells: Any, column: str, origin: Origin) -> pa.Array:
    """Return ids, all integers or all text. Dates and UUIDs become text.

    A cell of another type is refused and does not change how other ids are read.
    """
    cells = as_text([None if is_missing(cell) else cell for cell in cells])
    present = [cell for cell in cells if cell is not None]
    if all(isinstance(cell, str) for cell in present):
        kind = pa.string()
    elif all(isinstance(cell, int | np.integer) and not isinstance(cell, bool) for cell in present):
        kind = pa.int64()
    else:
        raise origin.error(f"id column {column!r} mixes types: convert all its ids to integers, or all to text")
    return origin.attempt(
        lambda: pa.array(cells, type=kind),
        f"id column {column!r} holds integers of more than 64 bits, or text that is not valid Unicode: give such ids as text",
    )


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
        origin = origin.of_metadata(table.schema.metadata or {})
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
