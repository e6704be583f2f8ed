"""Data in CSV files, read in blocks with the wanted fields alone converted."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv

from parties.sources.base import chunk_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from parties.sources.base import Content, Origin
    from vfl.errors import DataError

MIN_BLOCK_BYTES, MAX_BLOCK_BYTES = 2 << 20, 64 << 20
"""Records are read in blocks of 32 times the header's length, within these limits; several blocks are read ahead."""

PIECE_BYTES = 1 << 18
_NEW_LINE, _RETURN, _QUOTE = b'\n\r"'

MISSING = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "#N/A", "-nan", "-NaN")

_TYPES = {"number": pa.float64(), "boolean": pa.bool_(), "text": pa.string(), "id": pa.string()}
_ENCODING = (
    "is not text in the encoding {!r}: save it as UTF-8, or name its encoding from Python, vfl.Csv(path, encoding=...)"
)
_SHAPE = (
    "is no well-formed table: a line has more or fewer fields than the header, a quote is never closed, or one "
    "record is far longer than the others"
)


@dataclass(frozen=True, slots=True)
class Csv:
    """A CSV file that is not plain: what separates its fields, marks missing cells and encodes its text.

    path : its place in the party's file system; '.gz' is decompressed while reading.
    missing : the fields that stand for a missing cell.
    """

    path: str
    delimiter: str = ","
    missing: tuple[str, ...] = MISSING
    encoding: str = "utf-8"


def header(spec: Csv) -> tuple[list[str], int]:
    """Return the names of the columns, from the first line that is not blank, and the number of blank lines before it."""
    with pa.input_stream(spec.path) as raw:
        text = io.TextIOWrapper(raw, encoding=spec.encoding, errors="replace", newline="")
        blank, names = next(
            ((k, row) for k, row in enumerate(csv.reader(text, delimiter=spec.delimiter)) if row), (0, [])
        )
    if names:
        names[0] = names[0].removeprefix("\ufeff")
    return names, blank


class CsvSource:
    """A CSV file with a header line, fields quoted by '"' if need be.

    Blank lines are passed over, but in a file of one column: there they are records whose cell is missing.
    """

    typed = False

    def __init__(self, spec: Csv, contents: Mapping[str, Content], origin: Origin) -> None:
        self.origin = origin
        self._spec = spec
        self._contents = contents
        self.n_records: int | None = None
        self.names, self._blank_before = self._header()
        self._block_bytes = min(max(MIN_BLOCK_BYTES, 32 * sum(map(len, self.names))), MAX_BLOCK_BYTES)
        self.at_most, self._quotes, self._quoted = origin.attempt(self._count, "cannot be read")

    def batches(self, columns: Sequence[str] | None = None, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the records in order; see `Source`."""
        names = list(self._contents if columns is None else columns)
        step = chunk_rows(len(names)) if rows is None else rows
        types = {name: _TYPES[self._contents.get(name, "text")] for name in names}
        blocks = self._blocks(types)
        count = 0
        while True:
            failed = False
            try:
                batch = next(blocks, None)
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001 — Arrow's message quotes the field, so it is neither shown nor chained
                failed = True
            if failed:
                raise self._explain(names)
            if batch is None:
                break
            count += batch.num_rows
            if count > self.at_most:
                raise self.origin.error("changed while it was read")
            for start in range(0, batch.num_rows, step):
                yield batch.slice(start, step)
        if count < self.at_most and self._quotes and not self.origin.attempt(self._ends, _SHAPE):
            raise self.origin.error("has a quote that is never closed, so the records after it cannot be told apart")
        self.n_records = count

    def _header(self) -> tuple[tuple[str, ...], int]:
        names, blank = self.origin.attempt(lambda: header(self._spec), "has no header that can be read")
        if not names:
            raise self.origin.error("is empty: it needs a header line with the names of its columns")
        if any("\ufffd" in name or "\0" in name for name in names):
            raise self.origin.error(_ENCODING.format(self._spec.encoding))
        if any(_is_number(name) for name in names) and not set(self._contents) <= set(names):
            # Its names would be cells, which a message about missing columns must not suggest.
            raise self.origin.error("has no header: its first line holds numbers, not the names of columns")
        if len(names) == 1 and len(self._contents) > 1:
            raise self.origin.error(
                f"has a single column when cut at {self._spec.delimiter!r}: save it with commas, or name its own delimiter "
                "from Python, vfl.Csv(path, delimiter=...)"
            )
        return tuple(names), blank

    def _ends(self) -> bool:
        """Return False if the file ends inside of quotes.

        Then one record holds all that follow it. Only where there are fewer records than line breaks is it worth a pass.
        """
        limit = csv.field_size_limit(sys.maxsize)
        try:
            with pa.input_stream(self._spec.path) as raw:
                text = io.TextIOWrapper(raw, encoding=self._spec.encoding, errors="replace", newline="")
                for _ in csv.reader(text, delimiter=self._spec.delimiter, strict=True):
                    pass
        except csv.Error as error:
            return "unexpected end" not in str(error)
        finally:
            csv.field_size_limit(limit)
        return True

    def _count(self) -> tuple[int, bool, bool]:
        """Return an upper bound of the number of records, whether there are quotes, and whether records have any.

        Every record ends in a line break, so counting these bounds it; a pass over the bytes costs a fraction of
        reading them as a table, and lets the columns be stored where they stay.
        """
        breaks = quotes = later = 0
        last = 0
        buffer = bytearray(PIECE_BYTES)
        whole = np.frombuffer(buffer, dtype=np.uint8)
        with pa.input_stream(self._spec.path) as raw:
            while size := raw.readinto(buffer):
                piece = whole[:size]
                new_lines, returns, marks = piece == _NEW_LINE, piece == _RETURN, piece == _QUOTE
                found = int(np.count_nonzero(marks))
                if breaks:
                    later += found
                elif found and (ends := np.flatnonzero(new_lines | returns)).size:
                    later = int(np.count_nonzero(marks[ends[0] :]))
                quotes += found
                breaks += int(np.count_nonzero(new_lines))
                if returns.any():
                    # One that a line feed follows is counted with it, but for the end of a piece.
                    breaks += int(np.count_nonzero(returns[:-1] & ~new_lines[1:])) + int(returns[-1])
                last = int(piece[-1])
        return max(0, breaks - (last in (_NEW_LINE, _RETURN))), quotes > 0, later > 0

    def _blocks(self, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        spec = self._spec
        options = {
            "read_options": pa.csv.ReadOptions(
                block_size=self._block_bytes,
                encoding=spec.encoding.replace("utf-8", "utf8"),
                skip_rows=self._blank_before if len(self.names) == 1 else 0,
            ),
            # Looking for line breaks inside of fields takes a second parse; only quotes can hide them.
            "parse_options": pa.csv.ParseOptions(
                delimiter=spec.delimiter,
                newlines_in_values=self._quoted,
                ignore_empty_lines=len(self.names) > 1,
            ),
            "convert_options": pa.csv.ConvertOptions(
                column_types=dict(types),
                include_columns=list(types),
                null_values=list(spec.missing),
                strings_can_be_null=True,
            ),
        }
        with pa.input_stream(spec.path) as raw, pa.csv.open_csv(raw, **options) as reader:
            yield from reader

    def _explain(self, names: list[str]) -> DataError:
        """Read again as bytes, to find out which column could not be converted, or that the lines do not fit."""
        blocks = self._blocks(dict.fromkeys(names, pa.binary()))
        while True:
            try:
                batch = next(blocks, None)
            except Exception:  # noqa: BLE001 — as above
                return self.origin.error(_SHAPE)
            if batch is None:
                return self.origin.error("cannot be read as a table")
            for name, fields in zip(names, batch.columns, strict=True):
                content = self._contents.get(name, "text")
                if not _converts(fields, pa.string()):
                    return self.origin.error(f"column {name!r} " + _ENCODING.format(self._spec.encoding))
                if not _converts(fields, _TYPES[content]):
                    return self.origin.not_boolean(name) if content == "boolean" else self.origin.not_a_number(name)


def _converts(fields: pa.Array, to: pa.DataType) -> bool:
    import pyarrow.compute as pc  # imported here so that a party starts faster

    try:
        pc.utf8_trim_whitespace(fields.cast(pa.string())).cast(to)
    except pa.ArrowInvalid:
        return False
    return True


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True
