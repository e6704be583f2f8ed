"""Conversion of cells to numbers, truth values and categories. Each value depends only on its cell and the declaration.

An error message names the column and the remedy. The message contains neither cells nor counts.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from parties.sources.base import is_number
from parties.sources.tables import TRUTHS
from vfl.base.columns import canonical_category
from vfl.base.schema import BinaryLabel, ClassLabel
from vfl.errors import entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from parties.sources.base import Content, Origin
    from vfl.base.columns import Category
    from vfl.base.schema import Factor, Label, Schema
    from vfl.base.types import Integers, Vector

MISSING = -1
UNKNOWN = -2
UNREADABLE = -3
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a date is taken as it is written


def contents_of(
    schema: Schema,
    columns: Sequence[str],
    label: tuple[str, Label] | None = None,
    groups: Sequence[str] = (),
    factors: Sequence[Factor] = (),
) -> dict[str, Content]:
    """Return {column: content} for `open_source`: columns, label, its exposure and weight, groups, in this order.

    label : (column, declaration).
    """
    contents: dict[str, Content] = {}
    for column in columns:
        contents |= schema.contents(column)
    if label is not None:
        contents[label[0]] = "text" if isinstance(label[1], BinaryLabel | ClassLabel) else "number"
        contents |= dict.fromkeys([factor.column for factor in factors], "number")
    for column in groups:
        contents |= schema.contents(column)
    return contents


def toward_zero(bounds: npt.ArrayLike, dtype: np.dtype[Any]) -> Any:
    """Return bounds in the storage's precision, rounded towards zero. Rounding outwards could exceed a sensitivity."""
    exact = np.asarray(bounds, dtype=np.float64)
    with np.errstate(over="ignore"):
        stored = exact.astype(dtype)
    return np.where(abs(stored.astype(np.float64)) > abs(exact), np.nextafter(stored, dtype.type(0)), stored)


def numbers(cells: pa.Array, column: str, origin: Origin) -> Vector:
    """Return a copy of a column's cells as (m,) float64, NaN for a missing cell. Raises DataError for cells of another type."""
    kind = _kind(cells)
    if _is_text(kind):
        raise origin.not_a_number(column)
    numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    if not any(fits(kind) for fits in numeric):
        raise origin.error(f"column {column!r} holds values of type {kind}, not numbers: convert or leave it out")
    cells = _decoded(cells)
    if pa.types.is_decimal(kind):
        cells = cells.cast(pa.string())  # Arrow rounds by the column's scale: 0.1 and 0.10 become different doubles
    values: Vector = _own(cells.cast(pa.float64(), safe=False), np.nan)
    return values


def truths(cells: pa.Array, column: str, origin: Origin) -> Vector:
    """Return a column's cells as (m,) float64, NaN where missing; text is read as by parties.sources.tables.

    The caller checks that values are 0, 1 or missing. Raises DataError for other text.
    """
    if not _is_text(_kind(cells)):
        return numbers(cells, column, origin)
    found = codes(cells, _truth, column, origin)
    origin.refuse(found == UNREADABLE, origin.not_boolean(column))
    return np.where((found == MISSING) | (found == UNREADABLE), np.nan, found)


def dates(cells: pa.Array, column: str, origin: Origin, *, refuse: bool) -> Any:
    """Return a column's cells as (m,) datetime64[s], in the time zone in which they are written, NaT for a missing cell.

    refuse : True to raise DataError for text that is not a date; False to treat such cells as missing.
    """
    kind = _kind(cells)
    if _is_text(kind):
        found = codes(cells, _twice_seconds, column, origin)
        unreadable = found == UNREADABLE
        if refuse:
            origin.refuse(unreadable, origin.no_date(column))
        return np.where(unreadable | (found == MISSING), np.datetime64("NaT"), (found // 2).astype("M8[s]"))
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_null(kind)):
        raise origin.error(f"column {column!r} holds values of type {kind}, not dates: convert or leave it out")
    import pyarrow.compute as pc  # imported here so that a party starts faster

    cells = _decoded(cells)

    def convert() -> Any:
        local = pc.local_timestamp(cells) if getattr(kind, "tz", None) else cells
        whole = pc.floor_temporal(local, unit="second") if pa.types.is_timestamp(local.type) else local
        return whole.cast(pa.timestamp("s"), safe=False).to_numpy(zero_copy_only=False)

    return np.array(origin.attempt(convert, f"column {column!r} holds dates that cannot be read"))


def _truth(cell: object) -> int:
    text = text_of(cell)
    return MISSING if text is None else int(TRUTHS.get(str(text).strip().lower(), UNREADABLE))


def _twice_seconds(cell: object) -> int:
    """Return twice the seconds from 1970 to a date in ISO text. An even number is never MISSING (−1) or UNREADABLE (−3)."""
    if cell is None or cell != cell:
        return MISSING
    text = text_of(cell)
    try:
        found = dt.datetime.fromisoformat(text.strip()) if isinstance(text, str) else None
    except ValueError:
        found = None
    if found is None:
        return UNREADABLE
    return 2 * ((found.replace(tzinfo=None) - _EPOCH) // dt.timedelta(seconds=1))


def _own(cells: pa.Array, missing: float) -> Any:
    """Return a copy of fixed-width numbers as an (m,) array. The number `missing` replaces nulls.

    Arrow's memory may be shared with the user's table, and is read-only. Arrow's `to_numpy` and `fill_null` are not used: they
    import pandas, which delays the start of a party by 0.3 s.
    """
    if not cells.null_count:
        return np.from_dlpack(cells).copy()
    present = np.from_dlpack(cells.is_valid().cast(pa.uint8()))
    _, memory = cells.buffers()
    values = pa.Array.from_buffers(cells.type, len(cells), [None, memory], offset=cells.offset)
    return np.where(present, np.from_dlpack(values), missing)


def _kind(cells: pa.Array) -> pa.DataType:
    """Return the type of the cells. For dictionary-encoded cells, return the type of their categories."""
    return cells.type.value_type if pa.types.is_dictionary(cells.type) else cells.type


def _decoded(cells: pa.Array) -> pa.Array:
    """Return cells, after decoding dictionary-encoded numbers or dates. `codes` reads text encoded, which saves memory."""
    return cells.dictionary_decode() if pa.types.is_dictionary(cells.type) else cells


def _is_text(kind: pa.DataType) -> bool:
    names = ("is_string", "is_large_string", "is_string_view", "is_binary", "is_large_binary", "is_binary_view")
    return any(getattr(pa.types, name)(kind) for name in names if hasattr(pa.types, name))


def lookup(categories: Iterable[Category]) -> Callable[[object], int]:
    """Return a function from a cell to the position of the cell's category, or to MISSING or UNKNOWN.

    If all categories are numbers, text is compared as a number: '1.0' in a file equals the declared category 1.
    """
    listed = tuple(categories)
    codes = {canonical_category(category): code for code, category in enumerate(listed)}
    numeric = all(isinstance(c, int | float) and not isinstance(c, bool) for c in listed)

    def code_of(value: object) -> int:
        if value is None or value != value:  # NaN
            return MISSING
        value = text_of(value)
        text = canonical_category(value)
        if text not in codes and isinstance(value, str):
            text = as_number(value) if numeric else value.strip()
        return codes.get(text, UNKNOWN)

    return code_of


def require_reachable(cells: pa.Array, categories: Iterable[Category], column: str, origin: Origin) -> None:
    """Raise DataError if no cell of this type can be one of the categories, as truth values where text is declared.

    The type is a fact of the table's schema, so the error reveals nothing about records.
    """
    kind, texts = _kind(cells), [canonical_category(category) for category in categories]
    if pa.types.is_boolean(kind):
        fits, held = any(text in TRUTHS for text in texts), "truth values"
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        fits, held = any(as_number(text) == text for text in texts if is_number(text)), "numbers"
    elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        fits, held = any(_twice_seconds(text) != UNREADABLE for text in texts), "dates"
    else:
        return
    if not fits:
        raise origin.error(
            f"column {column!r} holds {held}, and none of its declared categories or classes is one: give the column as it was "
            "declared, or declare it anew and train again"
        )


def text_of(value: object) -> object:
    """Return the text of bytes, lone surrogates included. Return any other value unchanged."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode(errors="surrogatepass")
    except UnicodeDecodeError:
        return value.decode(errors="replace")


def as_number(text: str) -> str:
    """Return the canonical form of a number that is given as text. Return other text in lower case."""
    try:
        return canonical_category(float(text))
    except ValueError:
        return text.strip().lower()


def codes(cells: pa.Array, code_of: Callable[[object], int], column: str, origin: Origin) -> Integers:
    """Return code_of(cell) for each cell, (m,), with one call per distinct cell. Raises DataError for nested cells."""
    kind = _kind(cells)
    if pa.types.is_nested(kind):
        raise origin.error(f"column {column!r} holds values of type {kind}, not categories: convert or leave it out")
    if not pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_encode()
    table = np.array([*(code_of(value) for value in cells.dictionary.to_pylist()), MISSING], dtype=np.int64)
    positions: Integers = _own(cells.indices.cast(pa.int64()), len(table) - 1)
    return table[positions]


def infinite(column: str) -> str:
    """Return the error message for a column with cells that are infinite, or too large for the storage."""
    return (
        f"column {column!r} holds infinite values, or larger ones than the storage can: declare its bounds, to which "
        "they are then clamped"
    )


def missing(column: str, kind: str = "Numeric") -> str:
    """Return the error message for a column that has missing cells but no declared fill."""
    plain = kind in ("Numeric", "Boolean", "Categorical")
    declared = f"vfl.{kind}(fill=VALUE)" if plain else f"vfl.columns.{kind}(..., fill=VALUE)"
    fill = entry("columns", column, declared, "{ fill = VALUE }")
    return f"column {column!r} has missing values: declare {fill}, or complete it"
