"""One row per id of a source with several rows per id: declared aggregates (vfl.base.features.aggregate)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parties.sources.blocks import BlockSource
from parties.sources.sparse import SparseSource
from parties.sources.tables import ArraySource
from parties.storage.cells import dates, numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from parties.sources.base import Content, Source
    from vfl.base.features import Aggregate


LARGEST = 1e290
"""Largest size of a cell. Infinite cells are clamped, so that no sum of cells is undefined, and none ends a private run."""


def raw_contents(contents: Mapping[str, Content], aggregates: Sequence[Aggregate]) -> dict[str, Content]:
    """Return the columns that must be read for these contents, in which aggregates stand under their own names."""
    made = {aggregate.result for aggregate in aggregates}
    found: dict[str, Content] = {column: content for column, content in contents.items() if column not in made}
    for aggregate in aggregates:
        found.setdefault(aggregate.of, "number")
        if aggregate.by is not None:
            found.setdefault(aggregate.by, "date")
    return found


def aggregated(
    source: Source, keys: Sequence[bytes], contents: Mapping[str, Content], aggregates: Sequence[Aggregate]
) -> ArraySource:
    """Return the source with one row per id, in the order in which ids occur first. The whole table is in memory.

    Columns other than aggregates have the value of the id's first row, and must have it in all rows of the id.

    keys : id of each row in normal form. contents : wanted columns, aggregates under their own names.

    Raises DataError for a column that varies within an id, and for a source that cannot be read as a whole.
    """
    origin = source.origin
    if isinstance(source, SparseSource | BlockSource):
        raise origin.error("aggregates need a table or a file: give one, or aggregate its rows before")
    table = pa.Table.from_batches(list(source.batches(list(raw_contents(contents, aggregates))))).combine_chunks()
    key = pa.array(keys, pa.binary()).dictionary_encode().indices  # numbered in the order of their first rows
    made: dict[str, Any] = {}
    for aggregate in aggregates:
        finite = np.clip(numbers(_whole(table, aggregate.of), aggregate.of, origin), -LARGEST, LARGEST)
        cells = pa.array(finite, from_pandas=True)
        rows = pa.table({"key": key, "cell": cells})
        how = aggregate.how
        if aggregate.by is not None:
            times = dates(_whole(table, aggregate.by), aggregate.by, origin, refuse=True)
            order = np.argsort(times, kind="stable")  # rows without a time come last
            rows = rows.take(order[: int(np.count_nonzero(~np.isnat(times)))])
        found = rows.group_by("key", use_threads=False).aggregate([("cell", how)])
        values = np.full(int(pc.max(key).as_py()) + 1, np.nan)
        values[found["key"].to_numpy()] = found[f"cell_{how}"].to_numpy()
        made[aggregate.result] = values
    first = np.unique(key.to_numpy(), return_index=True)[1]
    for column in contents:
        if column in made:
            continue
        cells = _whole(table, column)
        if contents[column] != "id":  # ids differ as written, not in normal form
            codes = pa.table({"key": key, "cell": cells.dictionary_encode(null_encoding="encode").indices})
            ends = codes.group_by("key").aggregate([("cell", "min"), ("cell", "max")])
            if ends["cell_min"] != ends["cell_max"]:
                raise origin.error(
                    f"column {column!r} has several values for one id: declare an aggregate of it, vfl.columns.Aggregate, or "
                    "keep one row for each id"
                )
        made[column] = pa.chunked_array([cells.take(pa.array(first))])
    return ArraySource({column: made[column] for column in contents}, contents, origin)


def _whole(table: pa.Table, column: str) -> pa.Array:
    cells = table.column(column)
    return cells.chunk(0) if cells.num_chunks == 1 else cells.combine_chunks()
