"""Readers of the label, of its factors (exposure and weight), and of group columns, chunk by chunk."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from parties.storage.cells import (
    MISSING,
    UNKNOWN,
    as_number,
    codes,
    lookup,
    missing,
    numbers,
    require_reachable,
    text_of,
)
from parties.storage.made import values_of
from vfl.base.columns import Boolean, Categorical, canonical_category
from vfl.base.schema import BinaryLabel, ClassLabel, RealLabel

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from parties.sources.base import Origin
    from vfl.base.schema import Factor, Label, Schema
    from vfl.base.types import Integers, Vector


log = logging.getLogger("vfl.parties")
_ONE = {"label": "a label", "exposure": "an exposure", "weight": "a weight"}
_DECLARE_CLASSES = (
    'declare its two classes, the negative one first: classes = ["NEGATIVE", "POSITIVE"] (above the tables of a job file; '
    'numbers need no quotes: [-1, 1]); for more classes choose loss = "multinomial", for numbers "squared" or "poisson"'
)


class LabelReader:
    """Collects the label chunk by chunk. Raises DataError for missing, unknown, infinite and wrongly negative values."""

    def __init__(self, label: tuple[str, Label], origin: Origin, at_most: int, role: str = "label") -> None:
        self.column, declared = label
        self._role = role
        self._signed = isinstance(declared, RealLabel) and (
            role != "label" or declared.refuse_negative or (declared.bounds or (-1.0,))[0] >= 0.0
        )
        self._declared = declared
        self._origin = origin
        self._values = np.empty(at_most)
        if isinstance(declared, ClassLabel):
            self._code_of = lookup(declared.classes)
            origin.check_marks(self.column, map(canonical_category, declared.classes))
        elif isinstance(declared, BinaryLabel):
            # Without declared classes: 0 and 1, written as numbers, text or truth values. A model predicts 0 and 1.
            self._code_of = _undeclared_class if declared.classes is None else lookup(declared.listed)
            origin.check_marks(self.column, map(canonical_category, declared.listed))

    def add(self, cells: pa.Array, rows: slice) -> None:
        """Read the label cells of some records. rows : positions of these records."""
        if isinstance(self._declared, RealLabel):
            values = numbers(cells, self.column, self._origin)
            absent = np.isnan(values)
            self._check_sign(values)
        else:
            if listed := self._declared.classes if isinstance(self._declared, ClassLabel) else self._declared.listed:
                require_reachable(cells, listed, self.column, self._origin)
            found = codes(cells, self._code_of, self.column, self._origin)
            absent = found == MISSING
            values = found.astype(np.float64)
        if absent.any():
            raise self._origin.error(
                f"{self._role} {self.column!r} has missing values: a record without {_ONE[self._role]} must be left out"
            )
        self._values[rows] = values

    def _check_sign(self, values: Vector) -> None:
        """Refuse values whose sign is wrong, or name the column in the owner's log, once."""
        role, declared = self._role, self._declared
        least = "not above 0" if role == "exposure" else "below 0"
        bad = values <= 0.0 if role == "exposure" else values < 0.0
        if not self._signed or not bad.any():
            return
        error = self._origin.misread(
            f"{role} {self.column!r} holds values {least}: correct them, or leave those records out"
        )
        if isinstance(declared, RealLabel) and declared.refuse_negative:
            raise error
        self._signed = False
        log.warning("%s. They are clamped", error)

    def values(self, count: int) -> Vector:
        """Return y, (count,), for the first `count` records."""
        return self._allowed(self._values[:count])

    def require_some(self, cells: pa.Array) -> None:
        """Raise DataError if none of these cells is a class, as for words where 0 and 1 are read."""
        if not isinstance(self._declared, RealLabel):
            found = codes(cells, self._code_of, self.column, self._origin)
            if len(found) and (found == UNKNOWN).all():
                self._allowed(found.astype(np.float64))

    def _allowed(self, values: Vector) -> Vector:
        if isinstance(self._declared, RealLabel) and self._declared.bounds is not None:
            return np.clip(values, *self._declared.bounds)
        if isinstance(self._declared, RealLabel | ClassLabel):
            if isinstance(self._declared, ClassLabel) and (values < 0).any():
                raise self._origin.misread(
                    f"label {self.column!r} holds values that are not declared classes: correct classes, or leave those "
                    "records out"
                )
            if not np.isfinite(values).all():
                raise self._origin.error(f"label {self.column!r} holds infinite values: declare its bounds")
            return values.copy() if len(values) < len(self._values) else values
        if self._declared.classes is not None:
            if (values < 0).any():
                raise self._origin.misread(
                    f"label {self.column!r} holds values that are not one of the two declared classes: correct classes, or "
                    "leave those records out; for a one-vs-rest model, name the other classes in a list: "
                    'classes = [["A", "B"], "C"]'
                )
            return np.where(values == len(self._declared.listed) - 1, 1.0, -1.0)
        if (values == UNKNOWN).any():
            raise self._origin.misread(f"label {self.column!r} is not 0/1 or boolean: {_DECLARE_CLASSES}")
        return np.where(values == 1, 1.0, -1.0)


class TargetReader:
    """Collects the label, its exposure and its weight, within their declared bounds."""

    def __init__(self, label: tuple[str, Label], factors: Sequence[Factor], origin: Origin, at_most: int) -> None:
        self._label = LabelReader(label, origin, at_most)
        self._factors = [
            (f, LabelReader((f.column, RealLabel(f.bounds, f.refuse_negative)), origin, at_most, f.role))
            for f in factors
        ]

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns that are read, the label first."""
        return (self._label.column, *(reader.column for _, reader in self._factors))

    def require_some(self, batch: pa.RecordBatch) -> None:
        """Raise DataError if none of these records has a label that the job declares."""
        self._label.require_some(batch.column(self._label.column))

    def add(self, cells: Sequence[pa.Array], rows: slice) -> None:
        """Read the cells of some records, one array per column of `columns`. rows : positions of these records."""
        for reader, own in zip((self._label, *(reader for _, reader in self._factors)), cells, strict=True):
            reader.add(own, rows)

    def values(self, count: int) -> Vector:
        """Return y, (count,).

        With an exposure, a weight or both (k columns), return rows (1 + k, count): y, log(exposure), s/s_max for a weight s.
        """
        y = self._label.values(count)
        if not self._factors:
            return y
        return np.stack([y, *(factor.of(reader.values(count)) for factor, reader in self._factors)])


def _undeclared_class(value: object) -> int:
    """Return the code of a binary label without declared classes: 0, 1, MISSING or UNKNOWN."""
    if value is None or value != value:  # NaN
        return MISSING
    value = text_of(value)
    text = as_number(value) if isinstance(value, str) else canonical_category(value)
    return {"0": 0, "false": 0, "1": 1, "true": 1}.get(text, UNKNOWN)


class GroupReader:
    """Collects the codes of group columns. Their cells are read as for a feature with the same declaration.

    Codes number the declared categories from 0; for a Boolean column they are 0 and 1. If the declaration allows records
    without a category, the code of such a record is the number of categories, and the record is in no group. Raises DataError
    for any other cell.

    columns : Categorical or Boolean columns.
    """

    def __init__(self, schema: Schema, columns: Sequence[str], origin: Origin, at_most: int) -> None:
        self.columns = tuple(columns)
        self._schema, self._origin = schema, origin
        self._codes = {column: np.zeros(at_most, dtype=np.int64) for column in columns}
        self._values = {column: values_of(schema[column], column, origin) for column in columns}

    def __bool__(self) -> bool:
        return bool(self.columns)

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the columns of the party's data from which the groups are read."""
        return tuple(source for column in self.columns for source in self._schema.sources(column))

    def add(self, batch: pa.RecordBatch, rows: slice) -> None:
        """Read the group cells of some records. rows : positions of these records."""
        for column, own in self._codes.items():
            own[rows] = self._read(batch.column(self._schema.sources(column)[0]), column)

    def codes(self, count: int) -> dict[str, Integers]:
        """Return {column: (count,) codes}."""
        return {column: own[:count] for column, own in self._codes.items()}

    def _read(self, cells: pa.Array, column: str) -> Integers:
        declared = self._schema[column]
        assert isinstance(declared, Boolean | Categorical)  # noqa: S101 - the job compares by no other columns
        groups = 2 if isinstance(declared, Boolean) else len(declared.categories)
        found, absent = self._values[column](cells)
        if declared.fill is None:
            if declared.missing is None and absent.any():
                raise self._origin.error(missing(column, type(declared).__name__))
            found[absent] = groups
        found[found == UNKNOWN] = groups
        codes: Integers = found.astype(np.int64)
        return codes
