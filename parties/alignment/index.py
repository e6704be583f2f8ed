"""A party's index: which rows of its source belong to the aligned records, in their common order. A file stores the index.

Only the owner can read the file. The file consists of one line of JSON, then the rows and their persons as 64-bit integers, and
holds no identifier. Its folder is the one that $VFL_INDEX names on the party's node; else the folder that the job's environment
names for the party; else vfl/alignments under $XDG_STATE_HOME or ~/.local/state.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from parties.sources import stores
from parties.sources.base import Origin
from parties.sources.plugins import address_of
from vfl.base.csv import Csv
from vfl.base.documents import opened
from vfl.base.writing import replace_file
from vfl.crypto.alignment import Indexed, alignment_name
from vfl.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfl.base.types import Integers

FORMAT = 2
VARIABLE = "VFL_INDEX"
SUFFIX = ".index"
DIGITS = 64
"""Number of hexadecimal digits of the checksum, which comes before the line of JSON."""
PIECE = 1 << 16
"""Number of rows that are written or checked at once."""
MOST_FILES = 10_000
"""Largest number of files in a folder of indexes. Further runs are refused, so that no coordinator fills the owner's disk."""


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """Rows of a source that belong to the aligned records, in the order common to all parties.

    salt : salt of the alignment, 32 bytes. hash : hash of the ids of these rows in their order (vfl.crypto.identifiers), which
        detects changes of the source.
    source : digest of the aligned file; '' for data in memory.
    rows : (k,) int64, positions in the source, in the order common to all parties; −1 for a record that the party lacks.
    person : (k,) number of each row's record, ascending, at a label party whose ids may repeat; None if rows are records.
    agreed : text that all parties share (`common`), if it is not the hash.
    """

    salt: bytes
    hash: str
    source: str
    rows: Integers
    person: Integers | None = None
    agreed: str = ""

    @property
    def common(self) -> str:
        """Return the text that is equal at all parties: the hash of the records' ids; for a left join, the alignment's name."""
        return self.agreed or self.hash

    @property
    def n_records(self) -> int:
        """Return the number of aligned records."""
        return len(self.rows) if self.person is None else int(self.person[-1]) + 1

    def said(self) -> Indexed:
        """Return the facts that other participants learn: name and hash of the alignment, and number of aligned records."""
        return Indexed(alignment_name(self.salt), self.common, self.n_records)

    def write(self, path: Path) -> None:
        """Write the file atomically. Only its owner can read it. Raises OutputError."""
        head = {
            "format": FORMAT,
            "salt": self.salt.hex(),
            "hash": self.hash,
            "source": self.source,
            "agreed": self.agreed,
            "rows": len(self.rows),
        }
        parts = [self.rows] if self.person is None else [self.rows, self.person]
        line = json.dumps(head, separators=(",", ":"))
        line += " " * (-(DIGITS + 2 + len(line)) % 8)  # so that the rows begin at a multiple of 8 bytes
        check = _checksum(line, *parts)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not path.exists() and sum(1 for _ in path.parent.iterdir()) >= MOST_FILES:
                raise OutputError(
                    f"the folder of aligned rows holds {MOST_FILES} files, most of them of runs that never ended: remove those "
                    "that no run needs"
                )
            replace_file(path, itertools.chain([f"{check} {line}\n".encode()], _pieces(*parts)))
        except OSError as error:
            raise OutputError(
                f"cannot write the index {path.name!r} in the party's folder: {error.strerror}"
            ) from error

    @classmethod
    def read(cls, path: Path) -> Index | None:
        """Return the index in the file; None if there is no file. Raises OutputError if the file is damaged."""
        try:
            with opened(path) as file:
                first = file.readline()
                rows = _mapped(file)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OutputError(f"cannot read the index {str(path)!r}: {error.strerror}") from error
        check, _, line = first.removesuffix(b"\n").decode(errors="replace").partition(" ")
        if rows is None or check != _checksum(line, rows):
            raise OutputError(f"the index {str(path)!r} is damaged: remove it and align again")
        head = json.loads(line)
        if head["format"] != FORMAT:
            raise OutputError(f"this vfl reads indexes of format {FORMAT}; remove {str(path)!r} and align again")
        rows, person = rows[: head["rows"]], rows[head["rows"] :]
        known = person if len(person) else None
        return cls(bytes.fromhex(head["salt"]), head["hash"], head["source"], rows, known, head["agreed"])


def _mapped(file: BinaryIO) -> Integers | None:
    """Map the rest of the file as rows, so that the rows take no memory; None if the file is cut short.

    The memory map stays valid if the file is removed or replaced.
    """
    start, stop = file.tell(), os.fstat(file.fileno()).st_size
    if start == stop or (stop - start) % 8:
        return None
    return np.asarray(np.memmap(file, "<i8", "r", start))


def _pieces(*parts: Integers) -> Iterator[bytes]:
    return (own[start : start + PIECE].astype("<i8").tobytes() for own in parts for start in range(0, len(own), PIECE))


def _checksum(line: str, *parts: Integers) -> str:
    digest = hashlib.sha256(line.encode())
    for piece in _pieces(*parts):
        digest.update(piece)
    return digest.hexdigest()


def place(given: str | None) -> Path:
    """Return the folder of a party's indexes in this process; see the module's docstring."""
    named = os.environ.get(VARIABLE) or given
    if named:
        return Path(named).expanduser().absolute()
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    # A relative folder must be ignored (XDG base directory specification).
    return (base if base.is_absolute() else Path("~/.local/state").expanduser()) / "vfl" / "alignments"


def label(*parts: Any) -> str:
    """Return a file name for these parts: 32 hexadecimal digits of their hash."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).hexdigest()[:32]


def file_of(spec: Any) -> str:
    """Return the absolute path of a source that is a file or a folder; '' for other sources."""
    path = spec.path if isinstance(spec, Csv) else spec
    named = isinstance(path, str | Path) and not address_of(spec)
    return os.path.abspath(path) if named else ""  # noqa: PTH100 - a link stays as it is named


def digest_of(spec: Any, party: str) -> str:
    """Return the SHA-256 of a source's file, or of the files in its folder and their names; '' for other sources.

    Raises DataError if the source cannot be read.
    """
    path = file_of(spec)
    if not path:
        return ""
    origin = Origin(party, f"file {path!r}")
    origin.check_there(Path(path))
    return origin.attempt(lambda: _digest(Path(path)), "cannot be read")


def stamp_of(spec: Any) -> tuple[tuple[object, ...], ...]:
    """Return size, time and inode of each file of a source. Comparing them detects changes more cheaply than comparing digests.

    For objects in a store, see parties.sources.stores.stamp.
    """
    if stores.is_stored(spec):
        return stores.stamp(spec)
    path = Path(file_of(spec) or os.devnull)
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return tuple((found.st_size, found.st_mtime_ns, found.st_ino) for found in (file.stat() for file in files))


def _digest(path: Path) -> str:
    if not path.is_dir():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return label(*((str(file.relative_to(path)), _digest(file)) for file in files))
