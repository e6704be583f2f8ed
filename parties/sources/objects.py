"""Conversion of Python objects to Arrow, one cell at a time.

The number, truth value or text for a cell depends only on the cell and on the declaration of its column. Arrow, pandas and
Polars would find one common type for a list of objects. One record could then change how all other cells are read.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import numbers
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from parties.sources.base import NO_DATE
from vfl.columns import canonical_category, nearest_double

if TYPE_CHECKING:
    from collections.abc import Iterable

    from parties.sources.base import Content, Origin

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
    """Return ids, all integers or all text. A cell of another type is refused and does not change how other ids are read."""
    present = [cell for cell in cells if not is_missing(cell)]
    if all(isinstance(cell, str) for cell in present):
        kind = pa.string()
    elif all(isinstance(cell, int | np.integer) and not isinstance(cell, bool) for cell in present):
        kind = pa.int64()
    else:
        raise origin.error(f"id column {column!r} must hold integers only, or text only: convert them")
    return origin.attempt(
        lambda: pa.array([None if is_missing(cell) else cell for cell in cells], type=kind),
        f"id column {column!r} holds integers of more than 64 bits, or text that is not valid Unicode: give such ids as text",
    )
