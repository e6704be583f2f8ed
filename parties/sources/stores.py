"""Files in object stores, such as s3://bucket/bank.parquet, read in pieces through pyarrow, without a copy on disk.

Schemes are those of pyarrow: s3, gs, gcs, abfs and abfss. An address may hold options, as in
s3://bucket/bank.parquet?region=eu-central-1 (pyarrow.fs.FileSystem.from_uri). An address must not hold keys, since the address
is kept by the job's coordinator and in the folder of its run. pyarrow finds the keys where the party runs, in its environment,
profile or role.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa

from parties.sources import plugins
from parties.sources.csv import CsvSource
from parties.sources.files import DAMAGED, ParquetSource
from parties.sources.tables import open_table
from vfl.base.csv import ARROW, CSV, PARQUET, Csv, plain_csv

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyarrow.fs import FileSystem

    from parties.sources.base import Content, Origin, Source
    from parties.sources.csv import Lines

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss")
COMPRESSED = (".gz", ".bz2", ".lz4", ".zst", ".br")
SECRET = ("password", "access_key", "secret_key", "session_token", "sas_token", "account_key")


def open_stored(spec: str | Csv, contents: Mapping[str, Content], origin: Origin, lines: Lines | None = None) -> Source:
    """Open an object by its extension, or a folder of Parquet objects.

    lines : lines of a CSV file if known. Raises DataError.
    """
    import pyarrow.fs

    address = plugins.address_of(spec)
    parts = urlsplit(address)
    if parts.password is not None or any(name.lower() in SECRET for name, _ in parse_qsl(parts.query)):
        raise origin.error(
            "its address holds a key, which the job's files would keep: give the key in the environment of the party"
        )
    system, path = origin.attempt(lambda: pyarrow.fs.FileSystem.from_uri(address), "pyarrow cannot open this address")
    found = origin.attempt(lambda: system.get_file_info(path), "cannot be reached")
    name = path.lower()
    if found.type == pyarrow.fs.FileType.NotFound:
        raise origin.error("no such file or folder")
    if found.type == pyarrow.fs.FileType.Directory:
        files = origin.attempt(partial(_parquet_in, system, path), "cannot be read")
        if not files:
            raise origin.error("the folder has no .parquet files")
        return ParquetSource(files, origin, opened=system.open_input_file)
    if isinstance(spec, Csv) or name.endswith(CSV):
        given = spec if isinstance(spec, Csv) else plain_csv(address)
        # A stream decompresses, according to the ending of the name; a file can be read from any position.
        read = system.open_input_stream if name.endswith(COMPRESSED) else system.open_input_file
        return CsvSource(given, contents, origin, stream=partial(read, path), lines=lines)
    if name.endswith(PARQUET):
        return ParquetSource([path], origin, opened=system.open_input_file)
    if name.endswith(ARROW):
        table = origin.attempt(lambda: pa.ipc.open_file(system.open_input_file(path)).read_all(), DAMAGED)
        return open_table(table, contents, origin)
    known = ", ".join((*CSV, *PARQUET, *ARROW))
    raise origin.error(f"unknown extension; known in object stores are {known}")


def is_stored(spec: Any) -> bool:
    """Return True for the address of an object store."""
    return plugins.is_built_in(spec, SCHEMES)


def stamp(spec: str | Csv) -> tuple[tuple[object, ...], ...]:
    """Return path, size and time of an object, or of all objects in a folder. The result changes if an object is replaced.

    Stores keep times to a second or finer. A replacement with equal size within this precision is not detected.
    """
    import pyarrow.fs

    system, path = pyarrow.fs.FileSystem.from_uri(plugins.address_of(spec))
    found = system.get_file_info(path)
    folder = found.type == pyarrow.fs.FileType.Directory
    infos = system.get_file_info(_parquet_in(system, path)) if folder else [found]
    return tuple((info.path, info.size, info.mtime_ns) for info in infos)


def _parquet_in(system: FileSystem, folder: str) -> list[str]:
    import pyarrow.fs

    found = system.get_file_info(pyarrow.fs.FileSelector(folder, recursive=True))
    return sorted(f.path for f in found if f.path.endswith(".parquet") and not f.base_name.startswith((".", "_")))
