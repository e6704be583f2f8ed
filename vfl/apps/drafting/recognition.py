"""Recognition of text formats, and of columns by which files can be joined, for `vfl init`. The owner can check the result.

Only drafts use recognition. The draft states a text file's format, which is then a declaration (vfl.base.csv). Only the owner
of a file may run recognition on the file, since a single field can decide the format. Join columns are columns with distinct
cells that several files share. The search for them compares cells in the clear; a job, in contrast, aligns records by private
set intersection.
"""

from __future__ import annotations

import codecs
import csv
import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from parties.sources.csv import dialect, numbers_of
from parties.sources.opening import open_source
from vfl.base.csv import CSV, MISSING, Csv, formatted, is_tabbed, is_text
from vfl.job.file import ADDRESS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

SAMPLE = 1 << 20
"""Number of bytes, from the beginning of a file, by which delimiter, quotes and numbers are recognised."""
LINES = 5000
ENCODINGS = ("utf-8", "cp1252", "latin-1")
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabulators", "|": "bars"}
MARKS = ("?", "-", "--", ".", "*", "n/a", "n.a.", "N.A.", "na", "k.A.", "k. A.", "#NV", "nil", "NIL")
"""Fields that may stand for a missing number, in addition to vfl.base.csv.MISSING."""
NUMBERS: tuple[tuple[str, str | None], ...] = (
    *((".", None), (",", None), (".", ","), (",", "."), (".", "'"), (".", "’"), (",", "'")),
    *((".", " "), (",", " "), (",", "\u00a0"), (",", "\u202f"), (".", "\u00a0"), (".", "_")),
)
"""Forms of numbers, (decimal sign, separator of digit groups), the plainest form first."""
DATES = (
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%y", "%d/%m/%y", "%m/%d/%y"),
    *(f"{date} {time}" for date in ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y") for time in ("%H:%M", "%H:%M:%S")),
    *("%d %b %Y", "%d-%b-%Y", "%b %d, %Y", "%d %B %Y"),
)
"""Formats of dates in addition to ISO, which needs no declaration."""
_NAMES = {" ": "spaces", "\u00a0": "no-break spaces", "\u202f": "narrow no-break spaces"}


@dataclass(frozen=True, slots=True)
class RecognisedFormat:
    """Recognised format. source : path, or the file with its format. said : description of the format; '' for a plain file."""

    source: str | Csv
    said: tuple[str, ...] = ()


def recognise(source: str | Path | Csv) -> RecognisedFormat:
    """Return a text file with its recognised format. Other sources, and files with a declared format, are returned unchanged.

    A file that cannot be read is returned unchanged, since opening the file later reports the error.
    """
    if isinstance(source, Csv):
        return RecognisedFormat(source)
    path = str(source)
    if not is_recognised(source):
        return RecognisedFormat(path)
    try:
        return _recognised(path, plain=path.lower().endswith(CSV))
    except Exception:  # noqa: BLE001 - readers of damaged files raise anything
        return RecognisedFormat(path)


def is_recognised(source: str | Path | Csv) -> bool:
    """Return True for a text file without a declared format. The content of such a file decides its format."""
    return not isinstance(source, Csv) and ADDRESS not in str(source) and is_text(str(source))


def _recognised(path: str, *, plain: bool) -> RecognisedFormat:
    encoding = _encoding(path)
    with pa.input_stream(path) as raw:
        sample: bytes = raw.read(SAMPLE)
    text = codecs.getincrementaldecoder(encoding)(errors="replace").decode(sample).removeprefix("\ufeff")
    lines = text.splitlines(keepends=True)[:LINES]
    if len(sample) == SAMPLE:
        lines = lines[:-1]
    spec, rows = _cut(path, encoding, lines)
    width = len(rows[0])
    columns = [[row[j].strip() for row in rows[1:] if len(row) == width] for j in range(width)]
    decimal, thousands, marks, unsure = _numbers(columns, spec.delimiter)
    dates, doubtful = _dates(columns)
    unusual = not plain or spec.delimiter != ("\t" if is_tabbed(path) else ",")
    groups = "" if thousands is None else _NAMES.get(thousands, thousands)
    doubt = ", check: day and month may be exchanged" if doubtful else ""
    found: tuple[tuple[str, Any, bool, str], ...] = (
        ("delimiter", spec.delimiter, unusual, f"fields separated by {DELIMITERS[spec.delimiter]}"),
        ("quote", spec.quote, spec.quote != '"', f"fields quoted by {spec.quote}"),
        ("encoding", encoding, encoding != "utf-8", f"text in {encoding}"),
        ("decimal", decimal, decimal != ".", "looks like numbers with decimal commas"),
        ("thousands", thousands, thousands is not None, f"digits in groups of three, separated by {groups}"),
        ("", None, unsure, "check: 1,234 may be a thousand or a fraction"),
        ("missing", [*MISSING, *marks], bool(marks), f"{' and '.join(marks)} taken for missing cells"),
        ("dates", dates, dates is not None, f"looks like dates as {dates}{doubt}"),
    )
    options = {name: value for name, value, holds, _ in found if holds and name}
    return RecognisedFormat(formatted(path, options), tuple(said for _, _, holds, said in found if holds))


def _encoding(path: str) -> str:
    """Return the first encoding that can decode the whole file; a byte order mark decides the encoding."""
    decoders: dict[str, codecs.IncrementalDecoder] = {}
    with pa.input_stream(path) as raw:
        while piece := raw.read(SAMPLE):
            if not decoders:
                if piece.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    return "utf-16"
                decoders = {name: codecs.getincrementaldecoder(name)() for name in ENCODINGS}
            for name in list(decoders):
                try:
                    decoders[name].decode(piece)
                except UnicodeDecodeError:
                    del decoders[name]
    return next(iter(decoders), "utf-8")


def _cut(path: str, encoding: str, lines: Sequence[str]) -> tuple[Csv, list[list[str]]]:
    """Return the delimiter and quote for which most lines have as many fields as the header, and the rows parsed with them."""
    best: tuple[tuple[bool, float, int], Csv, list[list[str]]] | None = None
    for delimiter in DELIMITERS:
        for quote in ('"', "'"):
            spec = Csv(path, delimiter=delimiter, encoding=encoding, quote=quote)
            rows = [row for row in csv.reader(lines, **dialect(spec)) if row]
            if not rows:
                continue
            width = len(rows[0])
            quoted = _quoted(lines, delimiter, quote)
            fitting = sum(len(row) == width for row in rows) / len(rows) if width > 1 else 0.0
            score = (width > 1, fitting, quoted if quote == "'" else 1)
            if best is None or score > best[0]:
                best = (score, spec, rows)
    if best is None:
        raise ValueError("no line")
    return best[1], best[2]


def _quoted(lines: Sequence[str], delimiter: str, quote: str) -> int:
    """Return 2, the score of an unusual quote, if it encloses some fields and the usual quote encloses none; else 0."""
    fields = [field.strip() for line in lines[:200] for field in line.rstrip("\r\n").split(delimiter)]
    enclosed = sum(len(field) > 1 and field[0] == field[-1] == quote for field in fields)
    usual = sum(len(field) > 1 and field[0] == field[-1] == '"' for field in fields)
    return 2 if enclosed and not usual else 0


def _numbers(columns: Iterable[list[str]], delimiter: str) -> tuple[str, str | None, list[str], bool]:
    """Return decimal sign, separator of digit groups, marks of missing cells, and True if the decimal sign is uncertain.

    The chosen form makes most columns numbers; of equally good forms, the plainest is chosen.
    """
    held = [[field for field in column if field not in MISSING] for column in columns]
    clean = [[field for field in column if field not in MARKS] for column in held]
    specs = {form: Csv("", delimiter, decimal=form[0], thousands=form[1]) for form in NUMBERS}
    read = [pa.array(fields, pa.string()) for fields in clean]
    fits = {
        form: [j for j, fields in enumerate(read) if len(fields) and numbers_of(fields, spec) is not None]
        for form, spec in specs.items()
    }
    form = max(NUMBERS, key=lambda form: len(fits[form]))
    unsure = False
    if form == (",", None) and len(fits[".", ","]) == len(fits[form]) and delimiter != ";":
        form = (".", ",")
    if form in ((",", None), (".", ",")):
        unsure = len(fits[",", None]) == len(fits[".", ","])
    marks = [mark for mark in MARKS if any(mark in held[j] for j in fits[form])]
    return form[0], form[1], marks, unsure


def _dates(columns: Iterable[list[str]]) -> tuple[str | None, bool]:
    """Return the format by which most columns are dates, or None; and True if another format fits as many columns."""
    texts = [[field for field in column if field not in MISSING] for column in columns]
    texts = [fields for fields in texts if fields and all(any(c.isdigit() for c in field) for field in fields)]
    fits = {form: sum(all(_is_date(field, form) for field in fields) for fields in texts) for form in DATES}
    best = max(DATES, key=lambda form: fits[form])
    if not fits[best]:
        return None, False
    turned = best.replace("%d", "?").replace("%m", "%d").replace("?", "%m")
    return best, turned != best and fits.get(turned, 0) == fits[best]


def _is_date(text: str, form: str) -> bool:
    try:
        dt.datetime.strptime(text, form)  # noqa: DTZ007 - as it is written
    except ValueError:
        return False
    return True


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


def as_declared(ids: list[pa.Array]) -> list[pa.Array]:
    """Return the ids of all files as a job compares them: by value if all are digits, since a draft declares integers then."""
    if not all(pc.all(pc.match_substring_regex(cells, "^[+-]?[0-9]+$")).as_py() for cells in ids):
        return ids
    return [pc.replace_substring_regex(cells, r"^\+?(-?)0*([0-9]+)$", r"\1\2") for cells in ids]


def overlap(first: pa.Array, second: pa.Array) -> float:
    """Return the share of the cells in `first` that are in `second`, too."""
    return float(pc.mean(pc.is_in(first, value_set=second)).as_py() or 0.0)


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
            shares = {}
            for c, theirs in columns.items():
                less, more = sorted(as_declared([ids, theirs]), key=len)
                share = overlap(less, more)
                shares[c] = share if share * len(less) >= FEWEST else 0.0
            if not shares:
                return {}
            fitting = max(shares, key=lambda name: shares[name])
            chosen[party] = (fitting, columns[fitting])
            least = min(least, shares[fitting])
        if least >= LEAST and least > best[0]:
            best = (least, chosen)
    return best[1]
