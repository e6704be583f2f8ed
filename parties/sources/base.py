"""Where a party's data come from: one interface over files and tables, opened in the party's own process.

A source says how many records it can hold at most and yields Arrow record batches of the columns that are asked for, in
a bounded piece of memory at a time. Other kinds of data become a module of their own and a line in `open_source`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from vfl.errors import DataError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from parties.storage.sparse import SparseSource
    from vfl.partition import FeaturePartition

T = TypeVar("T")

Content: TypeAlias = Literal["number", "boolean", "text", "id"]
"""How a CSV field is read; 'text' also lets the columns of typed sources pass as they are, and 'id' is the text by which
records are aligned, which is no column of a sparse matrix."""

BY_POSITION = b"vfl.by_position"
"""In the metadata of a table that was split off an array."""

CHUNK_CELLS = 1 << 20
MAX_CHUNK_ROWS = 1 << 16


class Source(Protocol):
    """One party's data.

    origin : names party and place in errors.
    names : all columns that are there.
    typed : whether values come with types of their own; False for text files.
    n_records : number of records, None while it is not known.
    at_most : an upper bound of it, exact for all but CSV with blank lines or line breaks inside fields.
    """

    origin: Origin
    names: tuple[str, ...]
    typed: bool
    n_records: int | None
    at_most: int

    def batches(self, columns: Sequence[str] | None = None, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the records in order, with the columns asked for (None: all that were wanted) in that order.

        rows : at most so many records in a batch, where the source can choose; None keeps a batch below 2²⁰ cells.
        """


@dataclass(frozen=True, slots=True)
class Origin:
    """Names a party and its file or table in errors, which hold neither cells nor counts."""

    party: str | None
    place: str
    by_position: bool = False
    """Whether the columns have no names of their own, so that any may be taken for any other."""

    def error(self, problem: str) -> DataError:
        """Return the error that says what is wrong here."""
        return DataError(f"{self.place if self.party is None else f'party {self.party!r}, {self.place}'}: {problem}")

    def attempt(self, read: Callable[[], T], problem: str) -> T:
        """Return read(), or raise the error in place of a reader's.

        A reader's own message may quote cells, so it is neither shown nor kept as the cause or context of the error.
        """
        try:
            return read()
        except MemoryError:
            raise
        except PermissionError:
            error = self.error("may not be read: its owner has not allowed it to the user who runs this")
        except Exception:  # noqa: BLE001 — readers of damaged files raise anything
            error = self.error(problem)
        raise error

    def check_there(self, path: Path) -> None:
        """Check that a file or folder is there, in the words that all who read files have for it."""
        if not self.attempt(path.exists, "may not be looked at"):
            whose = "where the command runs" if self.party is None else "at the party's working folder"
            raise self.error("is not there" + ("" if path.is_absolute() else f"; a relative path starts {whose}"))

    def each(self, batches: Iterable[T], problem: str) -> Iterator[T]:
        """Yield from batches; a failure on the way becomes the error, as in `attempt`."""
        iterator = iter(batches)
        end = object()
        while (item := self.attempt(lambda: next(iterator, end), problem)) is not end:
            yield item  # type: ignore[misc]

    def check_columns(self, names: Sequence[str], wanted: Iterable[str]) -> None:
        """Check that the wanted columns are there, each once."""
        counts = Counter(names)
        for column in wanted:
            if column not in counts:
                raise self.error(f"there is no column {column!r}{nearest(column, names)}")
            if counts[column] > 1:
                raise self.error(f"column {column!r} is there more than once: rename one")

    def misread(self, problem: str) -> DataError:
        """Return the error for values that another column may hold, if columns go by position."""
        order = ", the label last: they go by position"
        hint = f"; or put the array's columns in the partition's order{order}" if self.by_position else ""
        return self.error(problem + hint)

    def not_a_number(self, column: str) -> DataError:
        """Return the error for text in a numeric column."""
        return self.error(
            f"column {column!r} holds text where numbers are declared: clean the cells, declare what marks a missing "
            "value, or declare the column categorical"
        )

    def not_boolean(self, column: str) -> DataError:
        """Return the error for other values in a boolean column."""
        return self.error(f"column {column!r} is declared boolean but holds values other than true, false, 1 and 0")


def chunk_rows(n_columns: int) -> int:
    """Return how many records of so many columns make a chunk."""
    return max(1, min(MAX_CHUNK_ROWS, CHUNK_CELLS // max(1, n_columns)))


def open_source(spec: Any, columns: Sequence[str] | Mapping[str, Content], *, party: str) -> Source | SparseSource:
    """Open one party's data; where a path is given, call this in the party's process.

    spec : a path to .csv, .csv.gz, .tsv, .parquet (or a folder of these), .feather, .arrow, .npy or .npz; a `Csv` (a
        path with a delimiter and more); a pandas, Polars or Arrow table; {column: array}; a 2-D array, whose columns
        are `columns` in order; a structured array; a SciPy sparse matrix, likewise, or an .npz file of one, which may also
        hold the ids of its rows under the id column's name; (ids, sparse matrix); the address
        NAME://... of an installed source (parties.sources.plugins); or a function without arguments that returns one of
        these, called here.
    columns : the columns wanted, with how to read them (a bare sequence: all numbers). Others are not read.

    Raises DataError when something is not there or cannot be read, SpecificationError for an unknown kind of source.
    """
    from parties.storage.sparse import SparseSource

    numbers: Content = "number"
    contents = columns if isinstance(columns, Mapping) else dict.fromkeys(columns, numbers)
    source = _opened(spec, contents, party)
    if not isinstance(source, SparseSource):  # it has seen to its names
        source.origin.check_columns(source.names, contents)
    return source


def _opened(spec: Any, contents: Mapping[str, Content], party: str | None) -> Source | SparseSource:
    from parties.sources import csv as csvfile
    from parties.sources import files, tables
    from parties.sources import plugins as installed
    from parties.storage import sparse

    if installed.is_address(spec):
        spec = installed.fetch(spec, Origin(party, f"source {spec!r}"))
    if callable(spec) and not hasattr(spec, "__arrow_c_stream__"):
        spec = installed.called(spec, Origin(party, "the source"))
    if isinstance(spec, str | Path | csvfile.Csv):
        return files.open_file(spec, contents, party)
    origin = Origin(party, "the table")
    if sparse.is_sparse(spec):
        return sparse.SparseSource(spec, contents, origin)
    if isinstance(spec, tuple) and len(spec) == 2 and sparse.is_sparse(spec[1]):
        return sparse.SparseSource(spec[1], contents, origin, ids=spec[0])
    return tables.open_table(spec, tuple(contents), origin)


def read_table(spec: Any, columns: Sequence[str]) -> pa.Table:
    """Read some columns of any source that `open_source` takes into one Arrow table, to simulate several parties.

    Columns of a CSV file become numbers where every field is one or missing, else text. Raises as `open_source`.
    """
    from parties.storage.sparse import SparseSource

    source = _opened(spec, _texts(columns), None)
    if isinstance(source, SparseSource):
        raise source.origin.error("is a sparse matrix, where a table is wanted: give its dense array (.toarray())")
    source.origin.check_columns(source.names, columns)
    return _whole(source, columns)


def split_table(
    table: Any, partition: FeaturePartition, *, label: bool = True, ids: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Give every party its columns of one table, to simulate from a single frame.

    table : any kind of source that `open_source` takes; the columns of a 2-D array or sparse matrix are all features in
        the partition's order, then the label.
    label : whether the label is wanted. ids : {party: id column}, where the parties get one; not in a 2-D array or
        sparse matrix.

    Returns {party: Arrow table, or sparse matrix of one}, without a party of which nothing is wanted. Raises
    PartitionError when the table lacks a column, else as `open_source`.
    """
    from parties.storage.sparse import SparseSource

    ids = ids or {}
    columns = (*partition.features, *((partition.label_column,) if label else ()), *ids.values())
    wanted = tuple(dict.fromkeys(columns))
    parts = {
        party: (*partition.wanted(party, label=label), *((ids[party],) if party in ids else ()))
        for party in partition.parties
    }
    source = _opened(table, _texts(wanted), None)
    if isinstance(source, SparseSource):
        return {party: source.select(part) for party, part in parts.items() if part}
    partition.check(source.names, label=label)
    source.origin.check_columns(source.names, wanted)
    whole = _whole(source, wanted)
    if source.origin.by_position:
        whole = whole.replace_schema_metadata({BY_POSITION: ""})
    return {party: whole.select(list(part)) for party, part in parts.items() if part}


def _texts(columns: Sequence[str]) -> dict[str, Content]:
    return dict.fromkeys(columns, "text")


def _whole(source: Source, columns: Sequence[str]) -> pa.Table:
    batches = list(source.batches(columns))
    if not sum(batch.num_rows for batch in batches):
        raise source.origin.error("there are no records")
    table = pa.Table.from_batches(batches)
    return (
        table if source.typed else pa.table([_numbers_if_all(column) for column in table.columns], names=list(columns))
    )


def _numbers_if_all(text: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow.compute as pc  # a party that starts need not wait for it

    try:
        return pc.utf8_trim_whitespace(text).cast(pa.float64())
    except pa.ArrowInvalid:
        return text
