"""Coordinates that the owner derives from its columns (vfl.features): read, filled and computed record by record."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.storage.cells import MISSING, UNKNOWN, codes, dates, lookup, missing, numbers, text_of, truths
from vfl.columns import Boolean, Categorical, Numeric
from vfl.features import Crossed, DateParts, Hashed, OfCells, Ordinal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from parties.sources.base import Origin
    from vfl.types import Vector

    Reader = Callable[[Sequence[pa.Array]], tuple[npt.NDArray[np.bool_], Iterable[Vector]]]
    """Function from the cells of a column's sources to (missing cells (m,), coordinates (m,) each, within their ranges)."""


def reader_of(declared: Any, sources: Sequence[str], origin: Origin, name: str | None = None) -> Reader:
    """Return the reader of a column, or of one side of an interaction.

    The reader raises DataError for cells that the declaration does not allow, at the owner of the data.

    name : name of the column in errors; None takes the name of its source.
    """
    if isinstance(declared, Crossed):
        return _crossed(declared, origin)
    named = name or sources[0]
    read = values_of(declared, named, origin)

    def made(cells: Sequence[pa.Array]) -> tuple[npt.NDArray[np.bool_], Iterable[Vector]]:
        values, absent = read(cells[0])
        if declared.missing is None and declared.fill is None and absent.any():
            raise origin.error(missing(named))
        if isinstance(declared, OfCells):
            return absent, declared.made(values)
        return absent, _plain(declared, values)

    return made


def _plain(declared: Numeric | Boolean | Categorical, values: Any) -> Iterable[Vector]:
    """Yield the clamped coordinates of a column without a feature (vfl.features)."""
    if isinstance(declared, Categorical):
        return ((values == code).astype(np.float64) for code in range(len(declared.texts)))
    return (np.clip(values, *declared.limits, out=values),)


def _crossed(declared: Crossed, origin: Origin) -> Reader:
    (_, one, first), (_, other, second) = declared.a, declared.b
    left, right = reader_of(one, first, origin), reader_of(other, second, origin)

    def made(cells: Sequence[pa.Array]) -> tuple[npt.NDArray[np.bool_], Iterable[Vector]]:
        absent, ours = left(cells[: len(first)])
        lacking, theirs = right(cells[len(first) :])
        return absent | lacking, declared.product(list(ours), list(theirs))

    return made


def values_of(declared: Any, source: str, origin: Origin) -> Callable[[pa.Array], tuple[Any, npt.NDArray[np.bool_]]]:
    """Return the function from cells to (filled values (m,), True where a cell was missing (m,)).

    Values are numbers, codes of categories, or dates. Unknown categories that the declaration allows are UNKNOWN.
    """
    if isinstance(declared, Categorical | Ordinal | Hashed):
        return _categories(declared, source, origin)
    if isinstance(declared, DateParts):
        return _dates(declared, source, origin)
    read = truths if isinstance(declared, Boolean) else numbers
    fill = declared.instead if isinstance(declared, Numeric | Boolean) else declared.fill

    def values(cells: pa.Array) -> tuple[Any, npt.NDArray[np.bool_]]:
        found = read(cells, source, origin)
        absent = np.isnan(found)
        if fill is not None:
            found[absent] = fill
        if isinstance(declared, Boolean) and not ((found == 0) | (found == 1) | np.isnan(found)).all():
            raise origin.not_boolean(source)
        return found, absent

    return values


def _categories(
    declared: Categorical | Ordinal | Hashed, source: str, origin: Origin
) -> Callable[[pa.Array], tuple[Any, npt.NDArray[np.bool_]]]:
    code_of: Callable[[object], int] = (
        partial(_hash, declared) if isinstance(declared, Hashed) else lookup(declared.categories)
    )
    unknown = "" if isinstance(declared, Hashed) else declared.unknown
    fill = None if declared.fill is None else code_of(declared.fill)

    def values(cells: pa.Array) -> tuple[Any, npt.NDArray[np.bool_]]:
        found = codes(cells, code_of, source, origin)
        if unknown == "refuse" and (found == UNKNOWN).any():
            raise origin.undeclared_category(source)
        if unknown == "missing":
            found[found == UNKNOWN] = MISSING
        absent = found == MISSING
        if fill is not None:
            found[absent] = fill
        return found, absent

    return values


def _hash(declared: Hashed, cell: object) -> int:
    return MISSING if cell is None or cell != cell else declared.code(text_of(cell))  # != itself: NaN


def _dates(declared: DateParts, source: str, origin: Origin) -> Callable[[pa.Array], tuple[Any, npt.NDArray[np.bool_]]]:
    def values(cells: pa.Array) -> tuple[Any, npt.NDArray[np.bool_]]:
        found = dates(cells, source, origin, refuse=declared.unknown == "refuse")
        absent = np.isnat(found)
        if declared.fill is not None:
            found[absent] = np.datetime64(declared.fill, "s")
        return found, absent

    return values
