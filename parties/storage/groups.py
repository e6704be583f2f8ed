"""Reader of group columns, chunk by chunk: codes of categories, each from its own cell and the declaration only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parties.storage.cells import UNKNOWN, missing
from parties.storage.made import values_of
from vfl.columns import Boolean, Categorical

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from parties.sources.base import Origin
    from vfl.schema import Schema
    from vfl.types import Integers


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
                raise self._origin.error(missing(column))
            found[absent] = groups
        found[found == UNKNOWN] = groups
        codes: Integers = found.astype(np.int64)
        return codes
