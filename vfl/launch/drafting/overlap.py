"""Search for columns by which files can be joined, for `vfl init`: columns with distinct cells that several files share.

The search compares cells in the clear, so the user must be allowed to read all the files. A job, in contrast, aligns records
by private set intersection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from parties.sources.opening import open_source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LEAST = 0.05
"""Smallest share of the smaller file's cells that the other file must have, too."""
FEWEST = 10
"""Smallest number of cells that two files must share. Fewer shared cells may be chance."""


def distinct_cells(party: str, source: Any, columns: Sequence[str]) -> dict[str, pa.Array]:
    """Return {column: cells as text} for the columns of whole numbers or text whose cells are distinct and never missing."""
    if not columns:
        return {}
    opened: Any = open_source(source, dict.fromkeys(columns, "text"), party=party)
    chunks: dict[str, list[pa.Array]] = {column: [] for column in columns}
    for batch in opened.batches(list(columns)):
        for column in list(chunks):
            cells = _as_text(batch.column(column))
            # Most columns repeat a cell early and are dropped here.
            if cells is None or cells.null_count or pc.count_distinct(cells).as_py() < len(cells):
                del chunks[column]
            else:
                chunks[column].append(cells)
    whole = {column: pa.concat_arrays(parts) for column, parts in chunks.items() if parts}
    return {column: cells for column, cells in whole.items() if pc.count_distinct(cells).as_py() == len(cells)}


def _as_text(cells: pa.Array) -> pa.Array | None:
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    kind = cells.type
    if pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return None
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_nested(kind):
        return None
    text = cells.cast(pa.string())
    if pc.any(pc.match_substring_regex(text, r"^-?[0-9]*[.,][0-9]+$")).as_py():
        return None
    return pc.utf8_trim_whitespace(text)


def overlap(first: pa.Array, second: pa.Array) -> float:
    """Return the share of the cells in `first` that are in `second`, too."""
    return float(pc.mean(pc.is_in(first, value_set=second)).as_py() or 0.0)


def _shared(first: pa.Array, second: pa.Array) -> float:
    """Return the share of the smaller file's cells that the other file has, too; 0 if the shared cells are too few."""
    less, more = sorted((first, second), key=len)
    share = overlap(less, more)
    return share if share * len(less) >= FEWEST else 0.0


def by_overlap(cells: Mapping[str, Mapping[str, pa.Array]]) -> dict[str, tuple[str, pa.Array]]:
    """Return {party: (column, cells)} for the largest overlap of the first party with each other party; {} without overlap.

    cells : {party: {column: its distinct cells}}.
    """
    (first, own), *others = cells.items()
    best: tuple[float, dict[str, tuple[str, pa.Array]]] = (0.0, {})
    for column, ids in own.items():
        chosen = {first: (column, ids)}
        least = 1.0
        for party, columns in others:
            shares = {c: _shared(ids, theirs) for c, theirs in columns.items()}
            if not shares:
                return {}
            fitting = max(shares, key=lambda name: shares[name])
            chosen[party] = (fitting, columns[fitting])
            least = min(least, shares[fitting])
        if least >= LEAST and least > best[0]:
            best = (least, chosen)
    return best[1]
