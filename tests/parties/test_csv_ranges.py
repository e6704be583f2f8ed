"""CSV files by byte ranges: a shard reads the lines of its records alone, and finds the cells that a whole reading finds."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import pytest

from parties.loading import spec_for
from parties.sources import csv as scanning
from parties.sources.csv import keeps_lines
from parties.sources.opening import open_source
from parties.sources.ranges import count_records, rows_of
from vfl.base.csv import Csv
from vfl.errors import DataError
from vfl.network.shards import cut

if TYPE_CHECKING:
    from pathlib import Path

N = 301
CONTENTS: dict[str, Any] = {"a": "number", "b": "text"}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find a mark in every 64 bytes, so that marks, line breaks and shards meet in many ways."""
    monkeypatch.setattr(scanning, "PIECE_BYTES", 64)


def text_of(delimiter: str = ",", decimal: str = ".", end: str = "\n", blank: int = 0, b: str = "{}é") -> str:
    """Return a file whose records differ in length. blank : a blank line after every so many lines."""
    rows = [f"{k}{decimal}{k % 7}{delimiter}{b.format('x' * (k % 50))}" for k in range(N)]
    lines = [f"a{delimiter}b", *rows]
    return "".join(line + end * (1 + (blank and k % blank == 0)) for k, line in enumerate(lines))


def cells(source: Any) -> list[tuple[Any, ...]]:
    names = [name for name in CONTENTS if name in source.names]
    return [row for batch in source.batches(names) for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]


def spec_of(folder: Path, text: str, **options: Any) -> Csv:
    path = folder / "d.csv"
    path.write_bytes(text.encode(options.get("encoding", "utf-8")))
    return Csv(str(path), **options)


def by_shards(spec: Csv, opened: Any, shards: int, contents: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the cells that the processes of all shards read."""
    found = []
    for shard in cut(count_records(opened), shards):
        place = spec_for(spec, opened, shard, None)
        found += cells(rows_of(open_source(place or spec, contents, party="bank"), shard.start, shard.stop))
    return found


DIVIDED: dict[str, tuple[str, dict[str, Any]]] = {
    "line feeds": (text_of(), {}),
    "no last line break": (text_of().rstrip("\n"), {}),
    "returns and line feeds, blank lines": (text_of(end="\r\n", blank=3), {}),
    "returns, blank lines": (text_of(end="\r", blank=4), {}),
    "options": (text_of(";", ","), {"delimiter": ";", "decimal": ",", "encoding": "cp1252"}),
    "digit groups": (text_of(";"), {"delimiter": ";", "thousands": "'"}),
    "byte order mark": ("\ufeff" + text_of(), {}),
    "blank lines first": ("\n\n" + text_of(), {}),
    "quoted header": (text_of().replace("a,b", '"a","b"'), {}),
    "quotes": (text_of(b='"{}, ""é"'), {}),
    "stray quotes": (text_of(b='{}5" é'), {}),
}
WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "line breaks in quotes": (text_of(b='"{}\né"'), {}),
    "one line break in quotes, near the end": (text_of().rstrip("\n") + '"\n300,"x\ny"\n', {}),
    "stray and opening quotes": (text_of(b='{}5" é').rstrip("\n") + '\n7,"\n8,5"\n', {}),
    "line breaks in a quoted header": (text_of().replace("a,b", 'a,b,"c\nd"').replace("é", "é,"), {}),
    "two bytes per character": (text_of(), {"encoding": "utf-16"}),
}


@pytest.mark.parametrize(("text", "options"), (DIVIDED | WHOLE).values(), ids=DIVIDED | WHOLE)
def test_shards_find_the_cells_of_a_whole_reading(text: str, options: dict[str, Any], tmp_path: Path) -> None:
    spec = spec_of(tmp_path, text, **options)
    whole = cells(open_source(spec, CONTENTS, party="bank"))
    opened: Any = open_source(spec, CONTENTS, party="bank")
    for shards in (1, 2, 7):
        assert by_shards(spec, opened, shards, CONTENTS) == whole
    assert opened.one_a_line == ((text, options) in DIVIDED.values())
    # Shards of one process share what it has found.
    assert [row for shard in cut(len(whole), 3) for row in cells(rows_of(opened, shard.start, shard.stop))] == whole


@pytest.mark.parametrize("blank", [0, 5])
def test_a_file_of_one_column(blank: int, tmp_path: Path) -> None:
    """There a blank line is a record."""
    text = "b\n" + "".join(f"{k}\n" + "\n" * (blank and k % blank == 0) for k in range(N))
    spec = spec_of(tmp_path, text)
    opened: Any = open_source(spec, {"b": "text"}, party="bank")
    assert opened.one_a_line == (blank == 0)
    assert by_shards(spec, opened, 3, {"b": "text"}) == cells(open_source(spec, {"b": "text"}, party="bank"))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_shard_reads_only_its_own_lines(number: int, tmp_path: Path) -> None:
    """Others hold text in a column of numbers here, which would be refused; but for a few lines around the shard's."""
    spec = spec_of(tmp_path, text_of())
    opened: Any = open_source(spec, CONTENTS, party="bank")
    shard = cut(N, 3)[number]
    place = spec_for(spec, opened, shard, None)
    assert place is not None
    (line, start), *end = place.lines.marks
    assert 0 <= shard.start + 1 - line < 64
    stop = end[0][1] if end else place.lines.size
    data = bytearray((tmp_path / "d.csv").read_bytes())
    own = slice(place.lines.header[1], start - 1), slice(stop, len(data))
    for part in own:
        data[part] = b"?" * len(data[part])
    assert data.count(b"?") > len(data) / 3
    (tmp_path / "d.csv").write_bytes(bytes(data))
    assert len(cells(rows_of(open_source(place, CONTENTS, party="bank"), shard.start, shard.stop))) == shard.size
    with pytest.raises(DataError, match="not a well-formed table"):
        cells(open_source(spec, CONTENTS, party="bank"))


def longer(data: bytes, position: int) -> bytes:
    return data + b"1,x\n"


def shifted(data: bytes, position: int) -> bytes:
    return data[: position - 1] + b"x" + data[position:]


def wrong(data: bytes, position: int) -> bytes:
    return data[:position] + b"?" + data[position + 1 :]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (longer, "changed while it was read"),
        (shifted, "changed while it was read"),
        (wrong, "column 'a' holds text where numbers are declared"),
    ],
)
def test_a_part_that_changed_or_is_wrong_is_refused(change: Any, problem: str, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, text_of())
    opened: Any = open_source(spec, CONTENTS, party="bank")
    shard, path = cut(N, 2)[1], tmp_path / "d.csv"
    place = spec_for(spec, opened, shard, None)
    assert place is not None
    path.write_bytes(change(path.read_bytes(), place.lines.marks[0][1]))
    with pytest.raises(DataError, match=problem):
        cells(rows_of(open_source(place, CONTENTS, party="bank"), shard.start, shard.stop))


def test_a_field_that_begins_with_a_byte_order_mark_keeps_it(tmp_path: Path) -> None:
    """At the start of a file Arrow drops the mark, so no shard starts to read there."""
    spec = spec_of(tmp_path, "b,a\n" + "".join(f"\ufeff{k},{k}\n" for k in range(N)))
    opened: Any = open_source(spec, CONTENTS, party="bank")
    assert by_shards(spec, opened, 3, CONTENTS) == cells(open_source(spec, CONTENTS, party="bank"))


def test_a_compressed_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "d.csv.gz"
    path.write_bytes(gzip.compress(text_of().encode()))
    opened: Any = open_source(str(path), CONTENTS, party="bank")
    assert not opened.one_a_line
    shard = cut(count_records(opened), 2)[1]
    assert spec_for(str(path), opened, shard, None) is None
    assert cells(rows_of(opened, shard.start, shard.stop)) == cells(opened)[shard.start :]


def test_functions_and_aligned_rows_have_no_place_in_a_file(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, text_of())
    opened: Any = open_source(spec, CONTENTS, party="bank")
    shard, aligned = cut(N, 2)[1], object()
    assert spec_for(lambda: spec, opened, shard, None) is None
    assert spec_for(spec, opened, shard, aligned) is None  # type: ignore[arg-type]
    assert spec_for(spec, opened, None, None) is None


@pytest.mark.parametrize(
    ("encoding", "kept"),
    [
        *((name, True) for name in ("utf-8", "ascii", "latin-1", "cp1252", "iso8859-15", "koi8-r")),
        *((name, False) for name in ("utf-8-sig", "utf-16", "utf-7", "shift_jis", "gb18030", "cp037", "hz")),
    ],
)
def test_encodings_that_keep_lines(encoding: str, kept: bool) -> None:
    assert keeps_lines(encoding) == kept
