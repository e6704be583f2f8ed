"""Reader of group columns, chunk by chunk: the code of each record's category, from its own cell and the declaration alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parties.storage.cells import MISSING, UNKNOWN, codes, lookup, missing, truths
from vfl.columns import Boolean, Categorical

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from parties.sources.base import Origin
    from vfl.schema import Schema
    from vfl.types import Integers


class GroupReader:
    """Collects the codes of group columns. A cell is read as for a feature of the same declaration.

    Codes count the declared categories from 0; for a Boolean column they are 0 and 1. A record without a category, which
    the declaration has to allow, gets the number of categories: it is in no group. Raises DataError for other cells.

    columns : Categorical or Boolean ones.
    """

    def __init__(self, schema: Schema, columns: Sequence[str], origin: Origin, at_most: int) -> None:
        self.columns = tuple(columns)
        self._schema, self._origin = schema, origin
        self._codes = {column: np.zeros(at_most, dtype=np.int64) for column in columns}

    def __bool__(self) -> bool:
        return bool(self.columns)

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of the party's data that they are read from."""
        return tuple(source for column in self.columns for source in self._schema.sources(column))

    def add(self, batch: pa.RecordBatch, rows: slice) -> None:
        """Take the cells of some records."""
        for column, own in self._codes.items():
            own[rows] = self._read(batch.column(self._schema.sources(column)[0]), column)

    def codes(self, count: int) -> dict[str, Integers]:
        """Return {column: (count,) codes}."""
        return {column: own[:count] for column, own in self._codes.items()}

    def _read(self, cells: pa.Array, column: str) -> Integers:
        declared = self._schema[column]
        if isinstance(declared, Boolean):
            values = truths(cells, column, self._origin)
            absent = np.isnan(values)
            values[absent] = 0.0 if declared.fill is None else float(declared.fill)
            if not ((values == 0) | (values == 1)).all():
                raise self._origin.not_boolean(column)
            found, groups, filled = values.astype(np.int64), 2, declared.fill is not None
        else:
            assert isinstance(declared, Categorical)  # noqa: S101 - the job compares by no other columns
            code_of = lookup(declared.categories)
            found, groups = codes(cells, code_of, column, self._origin), len(declared.categories)
            filled = declared.fill is not None
            if declared.unknown == "refuse" and (found == UNKNOWN).any():
                raise self._origin.undeclared_category(column)
            absent = found == MISSING
            if filled:
                found[absent] = code_of(declared.fill)
        if not filled:
            if declared.missing is None and absent.any():
                raise self._origin.error(missing(column))
            found[absent] = groups
        found[found == UNKNOWN] = groups
        return found
