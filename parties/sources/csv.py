"""Data in CSV files, read in blocks. Only the wanted fields are converted. One pass over the bytes finds the lines."""

from __future__ import annotations

import codecs
import csv
import datetime as dt
import io
import re
import sys
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from parties.sources.base import NO_DATE, chunk_rows, is_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from parties.sources.base import Content, Origin
    from vfl.base.csv import Csv
    from vfl.errors import DataError


MIN_BLOCK_BYTES, MAX_BLOCK_BYTES = 2 << 20, 64 << 20
"""Limits of the block size in bytes, which is otherwise 32 times the header's length. Several blocks are read ahead."""

_BYTE_ORDER_MARK = codecs.BOM_UTF8

_TYPES = {"number": pa.float64(), "boolean": pa.bool_(), "text": pa.string(), "date": pa.string(), "id": pa.string()}
_ENCODING = (
    'is not text in the encoding {!r}: save it as UTF-8, or declare its encoding, encoding = "..." in its table of [data] '
    "(in Python vfl.Csv(path, encoding=...))"
)
_SHAPE = (
    "not a well-formed table: a line has more or fewer fields than the header, a quote is never closed, or one "
    "record is far longer than the others"
)


PIECE_BYTES = 1 << 18
_NEW_LINE, _RETURN = b"\n\r"


@dataclass(frozen=True, slots=True)
class Lines:
    """Counts and positions of a file's lines. A line ends in a line feed, a carriage return, or both.

    at_most : upper bound on the number of records after the header, since every record ends in a line break.
    filled : number of lines that are not blank, including the header.
    quotes, quoted : True if the file has quotes; True if it has quotes after the first line.
    size : bytes of the file. header : positions of the first two lines that are not blank; the second is None without such a
        line.
    marks : (number, position) of one line per piece of the file, ascending. Numbers count only lines that are not blank.
    """

    at_most: int
    filled: int
    quotes: bool
    quoted: bool
    size: int
    header: tuple[int, int | None]
    marks: tuple[tuple[int, int], ...]

    def before(self, line: int) -> tuple[int, int]:
        """Return the last mark at or before this line. Raises IndexError if there is no such mark."""
        return self.marks[bisect_right(self.marks, (line, self.size)) - 1]

    def after(self, line: int) -> int:
        """Return the position of the first mark at or after a line; the end of the file if there is no such mark."""
        found = bisect_left(self.marks, (line, -1))
        return self.marks[found][1] if found < len(self.marks) else self.size

    def near(self, start: int, stop: int) -> Lines:
        """Return these lines with only those marks that are needed to read lines start..stop − 1."""
        first = bisect_right(self.marks, (start, self.size)) - 1
        return replace(self, marks=(self.marks[first], *self.marks[bisect_left(self.marks, (stop, -1)) :][:1]))


def scan(stream: Callable[[], Any], quote: str) -> Lines:
    """Read a file once, and return its lines. Memory: one piece of the file, plus 16 bytes per piece.

    stream : function that opens the file. quote : the character around fields; '' for none.
    """
    breaks = quotes = later = filled = size = 0
    ended, last = True, 0  # at the start of a line
    mark = ord(quote) if quote else -1
    starts: list[int] = []
    marks: list[tuple[int, int]] = []
    buffer = bytearray(PIECE_BYTES)
    whole = np.frombuffer(buffer, dtype=np.uint8)
    with stream() as raw:
        while length := raw.readinto(buffer):
            piece = whole[:length]
            new_lines, returns = piece == _NEW_LINE, piece == _RETURN
            ends = new_lines | returns
            found = int(np.count_nonzero(piece == mark))
            if breaks:
                later += found
            elif found and (places := np.flatnonzero(ends)).size:
                later = int(np.count_nonzero(piece[places[0] :] == mark))
            quotes += found
            breaks += int(np.count_nonzero(new_lines))
            if returns.any():
                # A carriage return before a line feed is not counted again, except at the end of a piece.
                breaks += int(np.count_nonzero(returns[:-1] & ~new_lines[1:])) + int(returns[-1])
            begun = ~ends
            begun[1:] &= ends[:-1]
            begun[0] &= ended
            if here := int(np.count_nonzero(begun)):
                if filled < 2:
                    starts += (size + np.flatnonzero(begun)[: 2 - filled]).tolist()
                marks.append((filled, size + int(begun.argmax())))
                filled += here
            size += length
            ended, last = bool(ends[-1]), int(piece[-1])
    at_most = max(0, breaks - (last in (_NEW_LINE, _RETURN)))
    first, second = (*starts, None, None)[:2]
    marks = [(1, second), *(own for own in marks if own[0] > 1)] if second is not None else []
    return Lines(at_most, filled, quotes > 0, later > 0, size, (first or 0, second), tuple(marks))


def keeps_lines(encoding: str) -> bool:
    """Return True for an encoding in which lines can be found in the bytes, without decoding earlier lines.

    Such encodings are UTF-8, and those with one byte per character that have the line breaks of ASCII.
    """
    if codecs.lookup(encoding).name in ("utf-8", "ascii"):
        return True
    try:
        text = bytes(range(256)).decode(encoding, "replace")
        alone = "".join(bytes([byte]).decode(encoding, "replace") for byte in range(256))
    except (LookupError, UnicodeError):
        return False
    places = [text.find("\n"), text.rfind("\n"), text.find("\r"), text.rfind("\r")]
    own = text[128:].count("\ufffd") < 64  # most bytes beyond ASCII are single characters
    return text == alone and len(text) == 256 and own and places == [_NEW_LINE, _NEW_LINE, _RETURN, _RETURN]


def header(spec: Csv, stream: Callable[[], Any] | None = None) -> tuple[list[str], int]:
    """Return the column names from the first line that is not blank, and the number of blank lines before this line.

    stream : function that opens the file; None to open the path.
    """
    with pa.input_stream(spec.path) if stream is None else stream() as raw:
        text = io.TextIOWrapper(raw, encoding=spec.encoding, errors="replace", newline="")
        lines = chain([text.readline().removeprefix("\ufeff")], text)  # a mark before a quote would hide the quote
        return next(((row, k) for k, row in enumerate(csv.reader(lines, **dialect(spec))) if row), ([], 0))


def dialect(spec: Csv) -> dict[str, Any]:
    """Return the delimiter and quote of the format, as keyword arguments of Python's csv.reader."""
    quoting = {"quotechar": spec.quote} if spec.quote else {"quoting": csv.QUOTE_NONE}
    return {"delimiter": spec.delimiter, **quoting}


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """A CSV file with positions of its lines, which another process has found. This process then reads only a part of the file.

    source : the path, address or `Csv` that the user gave.
    """

    source: str | Path | Csv
    lines: Lines


class CsvSource:
    """A CSV file with a header line and optional quotes. stream : function that opens the file; None to open the path.

    Blank lines are skipped, except in a file of one column, where they are records with a missing cell.

    `batches_between` reads little more than the requested lines, under these conditions: the file is not compressed; no quoted
    field contains a line break; lines can be found without decoding (`keeps_lines`); a file of one column has no blank lines.
    Other files are read from their beginning.

    lines : the file's `Lines` (counts and positions), if the caller has scanned the file; None to scan it here.
    """

    typed = False

    def __init__(
        self,
        spec: Csv,
        contents: Mapping[str, Content],
        origin: Origin,
        stream: Callable[[], Any] | None = None,
        lines: Lines | None = None,
    ) -> None:
        self.origin = replace(origin, marks=spec.missing)
        self._spec = spec
        self._stream = stream or partial(pa.input_stream, spec.path)
        self._contents = contents
        self.n_records: int | None = None
        self.names, self._blank_before = self._header()
        self._block_bytes = min(max(MIN_BLOCK_BYTES, 32 * sum(map(len, self.names))), MAX_BLOCK_BYTES)
        self.lines = lines or origin.attempt(lambda: scan(self._stream, spec.quote), "cannot be read")
        self.at_most, self._quoted = self.lines.at_most, self.lines.quoted
        self._separable = origin.attempt(self._is_separable, "cannot be read")
        if self._separable and not self._quoted:
            self.n_records = self.lines.filled - 1
        # Another process has found that each line is a record.
        self._one_a_line = lines is not None

    @property
    def one_a_line(self) -> bool:
        """Return True if each nonblank line is known to be one record.

        In a file with quotes, this is known only after counting.
        """
        return self._separable and (self._one_a_line or self.n_records == self.lines.filled - 1)

    def batches(self, columns: Sequence[str] | None = None, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the records in order; see `Source`."""
        count = 0
        for batch in self._read(columns, rows, None):
            count += batch.num_rows
            if count > self.at_most:
                raise self.origin.error("the source changed while it was read")
            yield batch
        if count < self.at_most and self.lines.quotes and not self.origin.attempt(self._ends, _SHAPE):
            raise self.origin.error("a quote is never closed, so the records after it cannot be separated")
        self.n_records = count

    def batches_between(
        self, first: int, stop: int, columns: Sequence[str] | None = None, rows: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records first..stop − 1, possibly followed by later records.

        See the class on files that are read in part.
        """
        begin, part = self._part(first, stop) if self.one_a_line else (0, None)
        batches = self.batches(columns, rows) if part is None else self._read(columns, rows, part)
        first -= begin
        for batch in batches:
            if first < batch.num_rows:
                yield batch.slice(first)
            first = max(0, first - batch.num_rows)

    def _part(self, first: int, stop: int) -> tuple[int, tuple[int, int] | None]:
        """Return (record, part): the number of the first record in a part of the file; the part as (position, size) in bytes.

        The part contains the records first..stop − 1, possibly with more. The part is None if the file must be read from its
        beginning.
        """
        line, position = self.lines.before(first + 1)  # line 0 is the header
        size, start = self.origin.attempt(lambda: self._around(position), "cannot be read")
        if size != self.lines.size or start[:1] not in (b"\n", b"\r"):
            raise self.origin.error("the source changed while it was read")
        if start[1:] == _BYTE_ORDER_MARK:  # Arrow drops this mark at the start of a file but keeps it within a file
            return 0, None
        return line - 1, (position, self.lines.after(stop + 1) - position)

    def _around(self, position: int) -> tuple[int, bytes]:
        """Return the file's size, the byte before a position, and as many bytes after it as a byte order mark has, joined."""
        with self._stream() as raw:
            raw.seek(position - 1)
            return raw.size(), raw.read(1 + len(_BYTE_ORDER_MARK))

    def _is_separable(self) -> bool:
        """Return True if a line can be read without reading earlier lines, provided that each line is a record."""
        (first, second), lines = self.lines.header, self.lines
        if second is None or not keeps_lines(self._spec.encoding):
            return False
        if len(self.names) == 1 and lines.filled != lines.at_most + 1:
            return False
        with self._stream() as raw:
            if not raw.seekable():
                return False
            text = raw.read(second)[first:].decode(self._spec.encoding, "replace").removeprefix("\ufeff")
        return tuple(next(csv.reader([text.rstrip("\r\n")], **dialect(self._spec)), ())) == self.names

    def _read(
        self, columns: Sequence[str] | None, rows: int | None, part: tuple[int, int] | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of the file. part : (position, size) in bytes of the part to read; None for the whole file."""
        names = list(self._contents if columns is None else columns)
        step = chunk_rows(len(names)) if rows is None else rows
        types = {name: self._type(self._contents.get(name, "text")) for name in names}
        blocks = self._blocks(types, part)
        while True:
            failed = False
            try:
                batch = next(blocks, None)
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001 — Arrow's message quotes the field, so it is neither shown nor chained
                failed = True
            if failed:
                raise self._explain(names, part)
            if batch is None:
                return
            for start in range(0, batch.num_rows, step):
                yield self._converted(batch.slice(start, step))

    def _header(self) -> tuple[tuple[str, ...], int]:
        names, blank = self.origin.attempt(lambda: header(self._spec, self._stream), "no readable header")
        if not names:
            raise self.origin.error("the file is empty: give it a header line with the names of its columns")
        if any("\ufffd" in name or "\0" in name for name in names):
            raise self.origin.error("the header " + _ENCODING.format(self._spec.encoding))
        if any(is_number(name) for name in names) and not set(self._contents) <= set(names):
            # Otherwise the error for missing columns would suggest data cells as column names.
            raise self.origin.error("no header: the first line holds numbers, not the names of columns")
        if len(names) == 1 and len(self._contents) > 1:
            raise self.origin.error(
                f"the header has a single column when split at {self._spec.delimiter!r}: declare its delimiter with "
                'delimiter = "..." in its table of [data], vfl join --csv delimiter=... or vfl.Csv(path, delimiter=...)'
            )
        return tuple(names), blank

    def _ends(self) -> bool:
        """Return False if the file ends inside quotes. One record would then contain all later records.

        This check reads the whole file. The check is needed only if there are fewer records than line breaks.
        """
        limit = csv.field_size_limit(sys.maxsize)
        try:
            with self._stream() as raw:
                text = io.TextIOWrapper(raw, encoding=self._spec.encoding, errors="replace", newline="")
                for _ in csv.reader(text, **dialect(self._spec), strict=True):
                    pass
        except csv.Error as error:
            return "unexpected end" not in str(error)
        finally:
            csv.field_size_limit(limit)
        return True

    def _blocks(self, types: Mapping[str, pa.DataType], part: tuple[int, int] | None) -> Iterator[pa.RecordBatch]:
        spec = self._spec
        plain = codecs.lookup(spec.encoding).name in ("utf-8", "utf-8-sig")  # Arrow itself drops a byte order mark
        options = {
            "read_options": pa.csv.ReadOptions(
                block_size=self._block_bytes,
                encoding="utf8" if plain else spec.encoding,
                skip_rows=self._blank_before if len(self.names) == 1 and part is None else 0,
                column_names=None if part is None else list(self.names),
            ),
            # Only quoted fields can contain line breaks, so parse a second time only in files with quotes.
            "parse_options": pa.csv.ParseOptions(
                delimiter=spec.delimiter,
                quote_char=spec.quote or False,
                newlines_in_values=self._quoted,
                ignore_empty_lines=len(self.names) > 1,
            ),
            "convert_options": pa.csv.ConvertOptions(
                column_types=dict(types),
                include_columns=list(types),
                null_values=list(spec.missing),
                decimal_point=spec.decimal,
                strings_can_be_null=True,
            ),
        }
        with (
            self._stream() as raw,
            pa.csv.open_csv(raw if part is None else raw.get_stream(*part), **options) as reader,
        ):
            yield from reader

    def _type(self, content: Content) -> pa.DataType:
        """Return the type as which Arrow reads a field.

        Numbers with digit groups are read as text, since Arrow cannot parse them.
        """
        return pa.string() if content == "number" and self._spec.thousands else _TYPES[content]

    def _converted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch after converting digit-grouped numbers and formatted dates, field by field."""
        spec, arrays = self._spec, batch.columns
        for j, name in enumerate(batch.schema.names):
            content = self._contents.get(name)
            if content == "number" and spec.thousands:
                arrays[j] = _grouped_numbers(arrays[j], spec)
                if arrays[j] is None:
                    raise self.origin.not_a_number(name)
            elif content == "date" and spec.dates:
                arrays[j] = dates_of(arrays[j], spec)
        return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)

    def _explain(self, names: list[str], part: tuple[int, int] | None) -> DataError:
        """Return the error for a column that cannot be converted, or a line of wrong length.

        The file is read again, as bytes.
        """
        blocks = self._blocks(dict.fromkeys(names, pa.binary()), part)
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
                if not _converts(_plain(fields, content, self._spec), self._type(content)):
                    return self.origin.not_boolean(name) if content == "boolean" else self.origin.not_a_number(name)


def numbers_of(fields: pa.Array, spec: Csv) -> pa.Array | None:
    """Return text as float64, read in the file's number format, null for null. Returns None if a field is not a number."""
    import pyarrow.compute as pc  # imported here so that a party starts faster

    if spec.thousands:
        return _grouped_numbers(fields, spec)
    try:
        return pc.utf8_trim_whitespace(_plain(fields, "number", spec)).cast(pa.float64())
    except pa.ArrowInvalid:
        return None


def dates_of(fields: pa.Array, spec: Csv) -> pa.Array:
    """Return text as ISO dates, read in the file's date format: null for null, NO_DATE for a field that is not such a date."""
    found, form = fields.dictionary_encode(), spec.dates or "%Y-%m-%d"

    def iso(text: str) -> str:
        try:
            date = dt.datetime.strptime(text.strip(), form)  # noqa: DTZ007 - as written
        except ValueError:
            return NO_DATE
        return date.replace(microsecond=0, tzinfo=None).isoformat()

    return pa.array([iso(text) for text in found.dictionary.to_pylist()], pa.string()).take(found.indices)


def _grouped_numbers(fields: pa.Array, spec: Csv) -> pa.Array | None:
    """Return text with digit groups as float64, read in the file's number format; None if a field is not such a number."""
    import pyarrow.compute as pc  # imported here so that a party starts faster

    group, point = re.escape(spec.thousands or ""), re.escape(spec.decimal)
    whole = rf"(?:[0-9]{{1,3}}(?:{group}[0-9]{{3}})+|[0-9]+)"
    number = rf"^[+-]?(?:{whole}(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?$|^[+-]?(?:inf|infinity|nan)$"
    fields = pc.utf8_trim_whitespace(fields)
    if not pc.all(pc.match_substring_regex(fields, number, ignore_case=True)).as_py() and fields.null_count < len(
        fields
    ):
        return None
    plain = pc.replace_substring(pc.replace_substring(fields, spec.thousands, ""), spec.decimal, ".")
    return plain.cast(pa.float64())


def _plain(fields: pa.Array, content: Content, spec: Csv) -> pa.Array:
    """Return fields as Arrow can cast them to numbers.

    A field with the wrong decimal sign becomes text that is not a number.
    """
    import pyarrow.compute as pc  # imported here so that a party starts faster

    if content != "number" or spec.decimal == ".":
        return fields
    return pc.replace_substring(pc.replace_substring(fields.cast(pa.string()), ".", "?"), spec.decimal, ".")


def _converts(fields: pa.Array, to: pa.DataType) -> bool:
    import pyarrow.compute as pc  # imported here so that a party starts faster

    try:
        pc.utf8_trim_whitespace(fields.cast(pa.string())).cast(to)
    except pa.ArrowInvalid:
        return False
    return True
