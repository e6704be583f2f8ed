"""Coordinates that the owner computes from its columns, one record at a time (vfl.base.features)."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.storage.cells import (
    MISSING,
    UNKNOWN,
    codes,
    dates,
    lookup,
    missing,
    numbers,
    require_reachable,
    text_of,
    truths,
)
from vfl.base.columns import Boolean, Categorical, canonical_category
from vfl.base.features import Crossed, DateParts, Hashed, OfCells, Ordinal

log = logging.getLogger("vfl.parties")
MANY = 20
"""Number of undeclared categories, and none that is declared, after which the owner's log says so."""

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from parties.sources.base import Origin
    from vfl.base.types import Vector

    Reader = Callable[[pa.Array], tuple[Any, npt.NDArray[np.bool_]]]
    """Function from the cells of a source to two arrays, (m,) each: values, and True for each missing cell."""


def reader_of(declared: Any, source: str, origin: Origin, name: str | None = None) -> Reader:
    """Return a reader of one source: that of a plain column, or of one of the two columns that a Pair multiplies.

    The reader returns filled values, (m,), and True for each missing cell, (m,). Values are numbers, codes of categories, or
    dates. The reader raises DataError, at the owner of the data, for cells that the declaration does not allow.

    name : name of the column in error messages; None takes the name of the source.
    """
    named = name or source
    read = values_of(declared, named, origin)

    def values(cells: pa.Array) -> tuple[Any, npt.NDArray[np.bool_]]:
        found, absent = read(cells)
        if declared.missing is None and declared.fill is None:
            origin.refuse(absent, origin.error(missing(named, type(declared).__name__)))
        return found, absent

    return values


def made(declared: Any, values: Sequence[Any]) -> Iterable[Vector]:
    """Yield the coordinates of a column, (m,) each, within their ranges. The indicator of missing cells is not among them.

    values : cells as read, one array per source. The cells stay unchanged.
    """
    if isinstance(declared, Crossed):
        sides = zip(declared.sides, values, strict=True)
        return declared.product(*(list(_made(side.declared, own, side.middles)) for side, own in sides))
    return _made(declared, values[0], None)


def _made(declared: Any, values: Any, gaps: Sequence[float] | None) -> Iterable[Vector]:
    if isinstance(declared, OfCells):
        return declared.made(values, gaps)
    if isinstance(declared, Categorical):
        return ((values == code).astype(np.float64) for code in range(len(declared.texts)))
    return (np.clip(values, *declared.limits),)


def values_of(declared: Any, source: str, origin: Origin) -> Reader:
    """Return a reader without the check for missing cells. Allowed unknown categories become UNKNOWN."""
    if isinstance(declared, Categorical | Ordinal | Hashed):
        return _categories(declared, source, origin)
    if isinstance(declared, DateParts):
        return _dates(declared, source, origin)
    read = truths if isinstance(declared, Boolean) else numbers
    fill = declared.fill if isinstance(declared, OfCells) else declared.instead

    def values(cells: pa.Array) -> tuple[Any, npt.NDArray[np.bool_]]:
        found = read(cells, source, origin)
        absent = np.isnan(found)
        if fill is not None:
            found[absent] = fill
        if isinstance(declared, Boolean):
            origin.refuse((found != 0) & (found != 1) & ~np.isnan(found), origin.not_boolean(source))
        return found, absent

    return values


def _categories(declared: Categorical | Ordinal | Hashed, source: str, origin: Origin) -> Reader:
    code_of: Callable[[object], int] = (
        partial(_hash, declared) if isinstance(declared, Hashed) else lookup(declared.categories)
    )
    unknown = "" if isinstance(declared, Hashed) else declared.unknown
    fill = None if declared.fill is None else code_of(declared.fill)
    if not isinstance(declared, Hashed):
        filled = None if fill is None or declared.missing else canonical_category(declared.fill)
        texts = map(canonical_category, declared.categories)
        origin.check_marks(source, (text for text in texts if text != filled))
    warned = isinstance(declared, Hashed)

    def values(cells: pa.Array) -> tuple[Any, npt.NDArray[np.bool_]]:
        nonlocal warned
        if not isinstance(declared, Hashed):
            require_reachable(cells, declared.categories, source, origin)
        found = codes(cells, code_of, source, origin)
        if not warned and (found == UNKNOWN).sum() >= MANY and not (found >= 0).any():
            warned = True
            log.warning("%s", origin.error(f"column {source!r}: no cell of {MANY} or more is a declared category"))
        if unknown == "refuse":
            origin.refuse(found == UNKNOWN, origin.undeclared_category(source))
        if unknown in ("refuse", "missing"):
            found[found == UNKNOWN] = MISSING
        absent = found == MISSING
        if fill is not None:
            found[absent] = fill
        return found, absent

    return values


def _hash(declared: Hashed, cell: object) -> int:
    return MISSING if cell is None or cell != cell else declared.code(text_of(cell))  # only NaN differs from itself


def _dates(declared: DateParts, source: str, origin: Origin) -> Reader:
    def values(cells: pa.Array) -> tuple[Any, npt.NDArray[np.bool_]]:
        found = dates(cells, source, origin, refuse=declared.unknown == "refuse")
        absent = np.isnat(found)
        if declared.fill is not None:
            found[absent] = np.datetime64(declared.fill, "s")
        return found, absent

    return values
