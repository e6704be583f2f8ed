"""Sources in Parquet, Arrow and NumPy files. Only the wanted columns are read, in chunks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parties.sources.base import Origin, Seekable
from parties.sources.csv import CsvSource, header
from parties.sources.sparse import open_sparse_file
from parties.sources.tables import open_array, open_table
from vfl.base.csv import ARROW, CSV, NPY, NPZ, PARQUET, Csv, plain_csv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from parties.sources.base import Content, Source
    from parties.sources.csv import Lines

BUFFER_BYTES = 1 << 20
_ARROW_BEGINS = b"ARROW1\0\0"
DAMAGED = "damaged, cut short or not of the format that its name says"


def open_file(
    spec: str | Path | Csv, contents: Mapping[str, Content], party: str | None, lines: Lines | None = None
) -> Source:
    """Open a file by its extension, or a folder of Parquet files. lines : lines of a CSV file if known. Raises DataError."""
    csv = spec if isinstance(spec, Csv) else None
    path = Path(csv.path if csv else spec)  # type: ignore[arg-type]
    origin = Origin(party, f"file {str(path)!r}")
    origin.check_there(path)
    if csv or path.name.lower().endswith(CSV):
        return CsvSource(csv or plain_csv(str(path)), contents, origin, lines=lines)
    if path.is_dir():
        found = sorted(file for file in path.rglob("*.parquet") if not file.name.startswith((".", "_")))
        if not found:
            raise origin.error("the folder has no .parquet files")
        return ParquetSource(found, origin)
    name = path.name.lower()
    for endings, opener in OPENERS.items():
        if name.endswith(endings):
            return opener(path, contents, origin)
    known = ", ".join(ending for endings in (CSV, *OPENERS) for ending in endings)
    raise origin.error(f"unknown extension; known are {known}")


def column_names(source: str | Path | Csv) -> tuple[str, ...]:
    """Return the names of the columns from a file's header or footer, without reading records; () if they cannot be read."""
    path = Path(source.path if isinstance(source, Csv) else source)
    try:
        if isinstance(source, Csv) or path.name.lower().endswith(CSV):
            return tuple(header(source if isinstance(source, Csv) else plain_csv(str(path)))[0])
        return () if path.name.lower().endswith((NPY, NPZ)) else open_file(path, {}, None).names
    except Exception:  # noqa: BLE001 — readers of damaged files raise anything; loading the file reports the error
        return ()


class ParquetSource(Seekable):
    """One Parquet file, or several that follow one another in the order of their names.

    opened : function from a path to an object that pyarrow can read; None to let pyarrow open the path.
    """

    typed = True

    def __init__(
        self, paths: Sequence[Path | str], origin: Origin, *, opened: Callable[[str], Any] | None = None
    ) -> None:
        self.origin = origin
        self._paths = paths
        self._opened = opened or (lambda path: path)
        self._alone = len(paths) == 1 and opened is not None
        origins = [self._of(path) for path in paths]
        footers = [o.attempt(partial(self._facts, p), DAMAGED) for o, p in zip(origins, paths, strict=True)]
        self.names = footers[0][0]
        for place, (names, _) in zip(origins, footers, strict=True):
            if set(names) != set(self.names):
                raise place.error("its columns differ from those of the first file in its folder")
        self._counts = [count for _, count in footers]
        self.at_most = sum(self._counts)
        self.n_records: int | None = self.at_most

    def _batches(self, first: int, names: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        for path, count in zip(self._paths, self._counts, strict=True):
            if first < count:
                yield from self._of(path).each(self._batches_of(path, names, rows, first), DAMAGED)
            first = max(0, first - count)

    def _of(self, path: Path | str) -> Origin:
        return self.origin if self._alone else Origin(self.origin.party, f"file {str(path)!r}")

    def _file(self, path: Path | str) -> pq.ParquetFile:
        return pq.ParquetFile(self._opened(path), pre_buffer=False, buffer_size=BUFFER_BYTES)  # type: ignore[arg-type]

    def _facts(self, path: Path | str) -> tuple[tuple[str, ...], int]:
        with self._file(path) as file:
            facts = file.metadata
            if facts.num_rows != sum(facts.row_group(i).num_rows for i in range(facts.num_row_groups)):
                raise ValueError("its footer contradicts itself on the number of records")
            return tuple(file.schema_arrow.names), facts.num_rows

    def _batches_of(self, path: Path | str, names: list[str], rows: int, first: int) -> Iterator[pa.RecordBatch]:
        with self._file(path) as file:
            groups = list(range(file.num_row_groups))
            while groups and first >= (count := file.metadata.row_group(groups[0]).num_rows):
                first -= count
                del groups[0]
            left = sum(file.metadata.row_group(i).num_rows for i in groups)
            for batch in file.iter_batches(batch_size=rows, row_groups=groups, columns=names):
                left -= batch.num_rows
                if first < batch.num_rows:
                    yield batch.select(names).slice(first)
                first = max(0, first - batch.num_rows)
            if left and names:
                raise ValueError("it holds a different number of records from the one that its footer states")


class ArrowSource(Seekable):
    """An Arrow (Feather, version 2) file, mapped into memory."""

    typed = True

    def __init__(self, path: Path, origin: Origin) -> None:
        self.origin = origin
        self._path = path
        self.names, self.at_most = origin.attempt(lambda: _arrow_facts(path), DAMAGED)
        self.n_records: int | None = self.at_most

    def _batches(self, first: int, names: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        yield from self.origin.each(
            _arrow_batches(self._path, [self.names.index(n) for n in names], names, rows, first), DAMAGED
        )


def _arrow_facts(path: Path) -> tuple[tuple[str, ...], int]:
    with pa.memory_map(str(path)) as mapped:
        names = tuple(pa.ipc.open_file(mapped).schema.names)
        # One column suffices to count records, so no other column is decompressed.
        reader = pa.ipc.open_file(mapped, options=pa.ipc.IpcReadOptions(included_fields=[0] if names else []))
        n_records = sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))
        mapped.seek(len(_ARROW_BEGINS))
        held = sum(message.type == "record batch" for message in pa.ipc.MessageReader.open_stream(mapped))
        if held != reader.num_record_batches:
            raise ValueError("its footer does not list the batches that it holds")
        return names, n_records


def _arrow_batches(path: Path, fields: list[int], names: list[str], rows: int, first: int) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as mapped:
        reader = pa.ipc.open_file(mapped, options=pa.ipc.IpcReadOptions(included_fields=sorted(fields)))
        for i in range(reader.num_record_batches):
            batch = reader.get_batch(i).select(names)
            for start in range(first, batch.num_rows, rows):
                yield batch.slice(start, rows)
            first = max(0, first - batch.num_rows)


def _open_npy(path: Path, contents: Mapping[str, Content], origin: Origin) -> Source:
    array = origin.attempt(lambda: np.load(path, mmap_mode="r", allow_pickle=False), f"{DAMAGED}, or holds objects")
    return open_array(array, contents, origin)


def _open_npz(path: Path, contents: Mapping[str, Content], origin: Origin) -> Source:
    """Open an archive that holds arrays named by column, one array, or a sparse matrix. The archive is read as a whole."""
    held, arrays = origin.attempt(lambda: _npz_arrays(path, contents), f"{DAMAGED}, or holds objects")
    if {"format", "shape", "data"} <= set(held):
        return open_sparse_file(path, contents, origin, DAMAGED)
    if len(held) == 1 and held[0] not in contents:
        return open_array(arrays[held[0]], contents, origin)
    source = open_table(arrays, contents, origin)
    source.names = held
    return source


def _npz_arrays(path: Path, contents: Mapping[str, Content]) -> tuple[tuple[str, ...], dict[str, np.ndarray[Any, Any]]]:
    # NumPy leaves a damaged file open if it is given a path.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        held = tuple(archive.files)
        return held, {name: archive[name] for name in held if name in contents or len(held) == 1}


OPENERS: dict[tuple[str, ...], Callable[[Path, Mapping[str, Content], Origin], Source]] = {
    PARQUET: lambda path, _, origin: ParquetSource([path], origin),
    ARROW: lambda path, _, origin: ArrowSource(path, origin),
    (NPY,): _open_npy,
    (NPZ,): _open_npz,
}
