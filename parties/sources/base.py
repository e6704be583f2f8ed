"""Source protocol: one interface over files and tables, opened in the party's own process.

A source states an upper bound of its number of records, and yields Arrow record batches of the requested columns in bounded
memory. How a cell is read depends only on the cell and its column's declaration, or on a schema that the format stores. A type
inferred from all records would let one record change how the others are read (`parties.sources.tables.converted` reads cell by
cell).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from vfl.errors import DataError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt
    import pyarrow as pa

T = TypeVar("T")

Content: TypeAlias = Literal["number", "boolean", "text", "date", "id"]
"""Declared content of a column, used to read cells that have no type. Columns of typed sources keep their type. 'id' is the
content of the column by which records are aligned; a sparse matrix has no such column."""

BY_POSITION, MARKS = b"vfl.by_position", b"vfl.missing"
"""Metadata keys of a table: its columns are identified by position, as in the array that it was made from; and the texts that
marked missing cells in the file that it was read from, in JSON."""

ABSENT = b"vfl.absent"
"""Metadata key of a batch of records that a party lacks: all cells are missing (parties.alignment.reading.AlignedSource)."""

CHUNK_CELLS = 1 << 20
MAX_CHUNK_ROWS = 1 << 16


class Source(Protocol):
    """One party's data.

    origin : name of the party and of the place of the data, for errors.
    names : names of all columns of the source.
    typed : True if a schema of the source gives each column a type without a declaration, as for Parquet (`vfl init` and
        `vfl.releases.private_bounds` then use this type); False for CSV files.
    n_records : number of records; None while unknown.
    at_most : upper bound on the number of records; exact except for CSV with blank lines or line breaks inside fields.
    """

    origin: Origin
    names: tuple[str, ...]
    typed: bool
    n_records: int | None
    at_most: int

    def batches(self, columns: Sequence[str] | None = None, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the records in order. columns : names of the columns in each batch, in order; None for all wanted columns.

        rows : largest number of records per batch, if the source can choose; None keeps a batch below 2²⁰ cells.
        """


class Seekable(ABC):
    """Base of sources that can start reading at any record."""

    names: tuple[str, ...]

    def batches(self, columns: Sequence[str] | None = None, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the records in order; see `Source`."""
        return self.batches_from(0, columns, rows)

    def batches_from(
        self, first: int, columns: Sequence[str] | None = None, rows: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records from position `first` on. Earlier records are not read if the format permits that."""
        listed = list(self.names if columns is None else columns)
        return self._batches(first, listed, chunk_rows(len(listed)) if rows is None else rows)

    @abstractmethod
    def _batches(self, first: int, names: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the named columns of the records from position `first` on, at most `rows` records at a time."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Name of a party and of its file or table, for error messages. These messages contain neither cells nor counts."""

    party: str | None
    place: str
    by_position: bool = False
    """True if columns are identified by position. A wrong order of columns then cannot be detected."""
    marks: tuple[str, ...] = field(default=(), kw_only=True)
    """Texts that the file reads as missing cells."""

    @property
    def metadata(self) -> dict[bytes, bytes]:
        """Metadata of a table in memory that is made from this source, for `of_metadata`."""
        return {MARKS: json.dumps(self.marks).encode()} | ({BY_POSITION: b""} if self.by_position else {})

    def of_metadata(self, metadata: Mapping[bytes, bytes]) -> Origin:
        """Return the origin of a table with this metadata."""
        return replace(self, by_position=BY_POSITION in metadata, marks=tuple(json.loads(metadata.get(MARKS, b"[]"))))

    def check_marks(self, column: str, categories: Iterable[str]) -> None:
        """Refuse a category that the file reads as a missing cell: a file without marks would give it another value."""
        for category in categories:
            if category in self.marks:
                raise self.error(
                    f"column {column!r} is declared with the category {category!r}, which the file reads as a missing cell: "
                    "declare the file's marks of missing cells without it, missing = [...] in its table of [data], vfl join "
                    "--csv missing=... or vfl.Csv(path, missing=...), or declare it as the column's fill"
                )

    def error(self, problem: str) -> DataError:
        """Return the error for a problem of this source."""
        return DataError(f"{self.place if self.party is None else f'party {self.party!r}, {self.place}'}: {problem}")

    def at(self, record: int) -> None:
        """Note that the cells checked from now on begin with this record."""

    def refuse(self, bad: npt.NDArray[np.bool_], error: DataError) -> None:
        """Raise the error if there is a bad cell. bad : (m,) True for each cell that its declaration does not allow."""
        if bad.any():
            raise error

    def attempt(self, read: Callable[[], T], problem: str) -> T:
        """Return read(). If read() raises an error, raise the error for `problem` instead.

        The message of the original error may quote cells, so it is neither shown nor kept as cause or context.
        """
        try:
            return read()
        except MemoryError:  # a damaged header can state any size
            error = self.error("reading needs more memory than this machine has, or the source states a wrong size")
        except PermissionError:
            error = self.error("permission denied: allow the user who runs this process to read it")
        except Exception:  # noqa: BLE001 — readers of damaged files raise anything
            error = self.error(problem)
        raise error

    def check_there(self, path: Path) -> None:
        """Raise DataError unless a file or folder exists; the message is the same for all kinds of files."""
        if not self.attempt(path.exists, "permission denied for its folder"):
            whose = "where the command runs" if self.party is None else "at the party's working folder"
            raise self.error(
                "no such file or folder" + ("" if path.is_absolute() else f"; a relative path starts {whose}")
            )

    def each(self, batches: Iterable[T], problem: str) -> Iterator[T]:
        """Yield the batches. If reading a batch raises an error, raise the error for `problem` instead, as in `attempt`."""
        iterator = iter(batches)
        end = object()
        while (item := self.attempt(lambda: next(iterator, end), problem)) is not end:
            yield item  # type: ignore[misc]

    def check_columns(self, names: Sequence[str], wanted: Iterable[str]) -> None:
        """Check that each wanted column exists exactly once. Raises DataError."""
        counts = Counter(names)
        for column in wanted:
            if column not in counts:
                raise self.error(f"there is no column {column!r}{nearest(column, names)}")
            if counts[column] > 1:
                raise self.error(f"column {column!r} occurs more than once: rename one")

    def misread(self, problem: str) -> DataError:
        """Return the error for unexpected values. If columns are identified by position, the message mentions their order."""
        order = ", the label last: they are matched by position"
        hint = f"; or put the array's columns in the partition's order{order}" if self.by_position else ""
        return self.error(problem + hint)

    def not_a_number(self, column: str) -> DataError:
        """Return the error for text in a numeric column."""
        return self.error(
            f"column {column!r} holds text where numbers are declared: clean the cells, declare what marks a missing "
            "value, or declare the column categorical; of a text file with decimal commas, declare decimal = ','"
        )

    def not_boolean(self, column: str) -> DataError:
        """Return the error for values that are not boolean in a boolean column."""
        return self.error(f"column {column!r} is declared boolean but holds values different from true, false, 1 and 0")

    def no_date(self, column: str) -> DataError:
        """Return the error for cells that are not dates in a column of dates."""
        return self.error(
            f"column {column!r} holds text that is not a date: clean the cells, declare the date format (dates = "
            "\"%d.%m.%Y\"), or declare unknown='missing' with a fill"
        )

    def undeclared_category(self, column: str) -> DataError:
        """Return the error for a category that is not declared."""
        return self.error(
            f"column {column!r} holds a category that is not declared: declare it, or accept such values as no "
            "category: unknown='zero' in its declaration"
        )


@dataclass(frozen=True, slots=True)
class TolerantOrigin(Origin):
    """Origin that notes the records with bad cells, so that all other records can be used.

    rows : True for each such record. reasons : {error: its first record}. start : [record of the next cells]. Counts from 0.
    """

    rows: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    reasons: dict[str, int] = field(default_factory=dict)
    start: list[int] = field(default_factory=lambda: [0])

    @classmethod
    def of(cls, source: Source) -> TolerantOrigin:
        """Give a source such an origin, before its cells are read, and return the origin."""
        own = source.origin
        source.origin = made = cls(
            own.party, own.place, own.by_position, np.zeros(source.at_most, bool), marks=own.marks
        )
        return made

    def at(self, record: int) -> None:
        """Note that the cells checked from now on begin with this record."""
        self.start[0] = record

    def refuse(self, bad: npt.NDArray[np.bool_], error: DataError) -> None:
        """Note the records with bad cells. A record keeps its first reason."""
        rows = self.start[0] + np.flatnonzero(bad)
        if len(rows := rows[~self.rows[rows]]):
            self.rows[rows] = True
            self.reasons.setdefault(str(error), int(rows[0]))


NO_DATE = "?"
"""Text that a source yields for a cell that is not a date. The column's declaration then decides how to treat the cell."""


def chunk_rows(n_columns: int) -> int:
    """Return the number of records per chunk for this number of columns."""
    return max(1, min(MAX_CHUNK_ROWS, CHUNK_CELLS // max(1, n_columns)))


def is_number(text: str) -> bool:
    """Return True if Python reads the text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
