"""Opening of any kind of source.

To add a kind of data, write a module in this folder and add a line to `_opened`. To add a kind of file, add a line to
files.OPENERS. This module imports the modules of all kinds; none of them imports this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from parties.sources import databases, files, plugins, sparse, stores, tables
from parties.sources.base import Origin
from parties.sources.blocks import Blocks, BlockSource, is_dataset
from parties.sources.csv import ScannedFile
from parties.sources.sparse import SparseSource
from vfl.base.csv import Csv
from vfl.errors import PartitionError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parties.sources.base import Content, Source
    from vfl.base.partition import FeaturePartition


def open_source(spec: Any, columns: Sequence[str] | Mapping[str, Content], *, party: str) -> Source:
    """Open one party's data. For a path, call this in the party's process.

    spec : a path to .csv, .csv.gz, .tsv, .parquet (or a folder of these), .feather, .arrow, .npy or .npz; a `Csv` (a path
        with a delimiter and more); a pandas, Polars or Arrow table; {column: array}; a 2-D array, whose columns are `columns`
        in order; a structured array; a SciPy sparse matrix, with columns in this order, too; an .npz file of such a matrix,
        which may also hold the ids of its rows under the id column's name; (ids, sparse matrix); the address of a database
        (parties.sources.databases) or of a file in an object store (parties.sources.stores); the address NAME://... of an
        installed source (parties.sources.plugins); or a function without arguments that returns one of these, called here.
        The actors of a run on Ray also open the `Blocks` of a Ray dataset, and a `ScannedFile` CSV file.
    columns : {column: content} of the wanted columns; a sequence of names stands for numbers. Other columns are not read.

    Raises DataError if data are missing or cannot be read, and SpecificationError for an unknown kind of source.
    """
    numbers: Content = "number"
    contents = columns if isinstance(columns, Mapping) else dict.fromkeys(columns, numbers)
    source = _opened(spec, contents, party)
    if not isinstance(source, SparseSource):  # a sparse source has checked its columns
        source.origin.check_columns(source.names, contents)
    return source


def _opened(spec: Any, contents: Mapping[str, Content], party: str | None) -> Source:
    lines = None
    if isinstance(spec, ScannedFile):
        spec, lines = spec.source, spec.lines
    if address := plugins.address_of(spec):
        origin = Origin(party, f"source {plugins.shown(address)!r}")
        if stores.is_stored(spec):
            return stores.open_stored(spec, contents, origin, lines)
        if isinstance(spec, Csv):
            raise origin.error("vfl.Csv describes a text file, and this source is none: give the address alone")
        if databases.is_database(spec):
            return databases.open_database(spec, contents, origin)
        spec = plugins.fetch(spec, origin)
    if is_function(spec):
        spec = plugins.called(spec, Origin(party, "the source"))
    if isinstance(spec, str | Path | Csv):
        return files.open_file(spec, contents, party, lines)
    if isinstance(spec, Blocks):
        return BlockSource(spec, contents, Origin(party, "the Ray dataset"))
    if is_dataset(spec):
        raise Origin(party, "the Ray dataset").error(
            "only Ray can read it, as the source of one party, {party: dataset}: train with at=vfl.Ray(), or give a "
            "table, dataset.to_pandas()"
        )
    origin = Origin(party, "the table")
    if sparse.is_sparse(spec):
        return sparse.SparseSource(spec, contents, origin)
    if isinstance(spec, tuple) and len(spec) == 2 and sparse.is_sparse(spec[1]):
        return sparse.SparseSource(spec[1], contents, origin, ids=spec[0])
    return tables.open_table(spec, contents, origin)


def is_function(spec: Any) -> bool:
    """Return True for a function that returns the source."""
    return callable(spec) and not hasattr(spec, "__arrow_c_stream__")


def require_rereadable(spec: Any, *, party: str) -> None:
    """Refuse a source that shards cannot share, because rows or their order may differ between processes.

    Otherwise a record might be in two shards and be counted twice. Raises DataError for a database and for the address of an
    installed source, before anything is read. For other sources, parties.loading.Unchanged detects changes.
    """
    address = plugins.address_of(spec)
    if address and not stores.is_stored(spec):
        raise Origin(party, f"source {plugins.shown(address)!r}").error(
            "may give its rows in another order to each shard that opens it: write them to a Parquet file, or leave shards at 1"
        )


def read_table(spec: Any, contents: Mapping[str, Content]) -> pa.Table:
    """Read some columns of any source that `open_source` accepts into one Arrow table, to simulate several parties.

    contents : {column: content}, from the declarations. Raises as `open_source`.
    """
    source = _opened(spec, contents, None)
    if isinstance(source, SparseSource):
        raise source.origin.error("a table is needed, not a sparse matrix: give a dense table (.toarray())")
    source.origin.check_columns(source.names, contents)
    return _whole(source, contents)


def split_table(
    table: Any,
    partition: FeaturePartition,
    parts: Mapping[str, Mapping[str, Content]],
    *,
    label: bool = True,
    names: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Divide one table by columns among the parties, to simulate them from a single frame.

    Each cell is read as in a party's own source: by its column's declaration, and independently of other cells.

    table : any kind of source that `open_source` accepts. The columns of a 2-D array or sparse matrix are the sources of the
        features in the partition's order, then the label.
    parts : {party: {column: content}}, the columns that each party gets. A 2-D array or sparse matrix has no id column.
    label : True if the table contains the label.
    names : {party: {column: its name in the table}} (Job.table_names); None if the names are equal.

    Returns {party: Arrow table}, or {party: sparse matrix} for a sparse matrix. Parties without wanted columns are left out.
    Raises PartitionError if the table lacks a column, else as `open_source`.
    """
    named = names or {party: {column: column for column in part} for party, part in parts.items()}
    late = {
        partition.label,
        *((partition.label_party, partition.local(column)) for column in partition.factor_columns),
        *((partition.owner(column), partition.local(column)) for column in partition.group_columns),
    }
    held = {named[q][column]: content for q, part in parts.items() for column, content in part.items()}
    early = [
        named[q][column]
        for q, part in parts.items()
        for column, content in part.items()
        if (q, column) not in late and content != "id"
    ]
    first = (*early, *((named[partition.label_party][partition.label[1]],) if label else ()))
    contents = {column: held[column] for column in (*first, *held)}
    source = _opened(table, contents, None)
    if isinstance(source, SparseSource):
        return {q: source.select([named[q][c] for c in part]) for q, part in parts.items() if part}
    for party, part in parts.items():
        for column, content in part.items():
            if content != "id" and named[party][column] not in source.names:
                role = "label" if (party, column) == partition.label else "column"
                raise PartitionError(
                    f"{role} {named[party][column]!r} of party {party!r} is not in the table"
                    + nearest(named[party][column], source.names)
                )
    source.origin.check_columns(source.names, contents)
    whole = _whole(source, contents)
    made = {
        q: whole.select([named[q][c] for c in part]).rename_columns(list(part)) for q, part in parts.items() if part
    }
    return {q: part.replace_schema_metadata(source.origin.metadata) for q, part in made.items()}


def in_one_table(
    parts: Mapping[str, Mapping[str, Content]], names: Mapping[str, Mapping[str, str]]
) -> dict[str, Content]:
    """Return {column: content} for one table that contains the columns of all parties. Arguments : as for `split_table`."""
    return {names[party][column]: content for party, part in parts.items() for column, content in part.items()}


def _whole(source: Source, contents: Mapping[str, Content]) -> pa.Table:
    batches = list(source.batches(list(contents)))
    if not sum(batch.num_rows for batch in batches):
        raise source.origin.error("there are no records")
    return pa.Table.from_batches(batches).replace_schema_metadata(source.origin.metadata)
