"""Storage of a ledger in an SQLite file. The file's write-ahead log is synced at each commit.

Only one process writes at a time.

After each commit, the head of the hash chain is noted in an extended attribute of the file, which belongs to the file and not
to its name. A ledger that lacks a noted head has lost entries: its write-ahead log was damaged, or was left behind when the
file was moved, or another process opened the file under a second name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import sys
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vfl.errors import LedgerError
from vfl.file_systems import network_file_system, second_name
from vfl.privacy.ledger.codec import FORMAT, Entry, Head

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

_SCHEMA = (
    "CREATE TABLE format (version INTEGER NOT NULL, ledger TEXT NOT NULL)",
    """CREATE TABLE entries (
        seq INTEGER PRIMARY KEY, recorded TEXT NOT NULL, dataset TEXT NOT NULL, kind TEXT NOT NULL, run TEXT NOT NULL,
        round INTEGER, part INTEGER, attempt INTEGER, body TEXT NOT NULL, hash BLOB NOT NULL)""",
    # The triggers prevent accidental changes; the hash chain reveals intended ones.
    """CREATE TRIGGER entries_are_not_changed BEFORE UPDATE ON entries
        BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
    """CREATE TRIGGER entries_are_not_deleted BEFORE DELETE ON entries
        BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
)
_SINCE = "SELECT * FROM entries WHERE seq >= ? ORDER BY seq"
_NOTED = "user.vfl.head"
_APPEND = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

# SQLite forbids using or closing a connection that a parent process opened, and garbage collection would close it.
_inherited: list[sqlite3.Connection] = []


@dataclass(eq=False)
class SqliteStore:
    """Append-only storage that survives a loss of power. Every failure to read or write raises LedgerError.

    There is one connection per process, opened on first use. Every transaction requires that the file is still the one that was
    opened and that it has one name. The caller admits one thread at a time. SQLite gives its
    auxiliary files the mode of the ledger's file.
    Options as for `SqliteLedger`. With `readonly`, the ledger may be on any file system.
    """

    path: Path
    timeout: float = 30.0
    readonly: bool = False
    allow_network_file_system: bool = False
    owner_only: bool = False
    _connection: sqlite3.Connection | None = field(default=None, init=False)
    _identity: str = field(default="", init=False)
    _file: tuple[int, int] = field(default=(0, 0), init=False)

    def create(self) -> None:
        """Create an empty ledger atomically, unless there is one. If several processes try at once, one creates the file."""
        if self.readonly or self.path.exists():
            return
        self._require_local()
        part = self.path.with_name(f".{self.path.name}-{uuid.uuid4().hex}")
        with self._explained():
            try:
                if self.owner_only:
                    os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
                with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as connection:
                    connection.execute("PRAGMA synchronous=FULL")
                    connection.execute("BEGIN IMMEDIATE")
                    for statement in _SCHEMA:
                        connection.execute(statement)
                    connection.execute("INSERT INTO format VALUES (?, ?)", (FORMAT, uuid.uuid4().hex))
                    connection.execute("COMMIT")
                with contextlib.suppress(FileExistsError):
                    os.link(part, self.path)
                _sync_folder(self.path.parent)
            except OSError as error:
                raise LedgerError(f"cannot create the ledger {str(self.path)!r}: {error.strerror}") from error
            finally:
                with contextlib.suppress(OSError):
                    part.unlink()

    def reading(self) -> AbstractContextManager[Rows]:
        """Yield the entries as seen by one consistent read transaction."""
        return self._transaction("BEGIN")

    def writing(self) -> AbstractContextManager[Rows]:
        """Yield the entries under an exclusive lock. On exit, appended entries are durable; after an error, none is kept."""
        return self._transaction("BEGIN IMMEDIATE")

    def forget(self) -> None:
        """Forget a connection that a parent process opened, without closing it."""
        if self._connection is not None:
            _inherited.append(self._connection)
            self._connection = None

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Rows]:
        with self._explained():
            connection = self._connection or self._connect()
            self._require_same_file()
            noted = self._noted()  # before the transaction begins: other processes may add entries and note them
            connection.execute(begin)
            try:
                yield Rows(connection, self._identity, noted)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def note(self, head: Head) -> None:
        """Note the head of the chain at the file, where the file system keeps extended attributes. The file is not synced."""
        with contextlib.suppress(AttributeError), self._explained():
            try:
                os.setxattr(self.path, _NOTED, f"{head.seq} {head.hash}".encode())
            except OSError as error:
                if error.errno != errno.ENOTSUP:
                    raise

    def _noted(self) -> Head | None:
        """Return the head that was noted at the file; None if none was, or if the file system keeps no extended attributes."""
        try:
            seq, head = os.getxattr(self.path, _NOTED).decode().split(" ")
            return Head(int(seq), head)
        except (AttributeError, OSError, ValueError):  # macOS has no such functions in Python
            return None

    def _require_same_file(self) -> None:
        """Raise LedgerError if the file was moved, replaced, or got a second name since it was opened."""
        found = self.path.stat()
        if (found.st_dev, found.st_ino) != self._file:
            raise LedgerError(
                f"the ledger {str(self.path)!r} was moved or replaced while it was in use: put it back, and end all "
                "processes that use it before you move it"
            )
        if found.st_nlink > 1:
            self._require_one_name()

    def _require_one_name(self) -> None:
        if why := second_name(self.path):
            raise LedgerError(
                f"the ledger {str(self.path)!r} is refused, since processes that open it under different names lose one "
                f"another's charges: {why}"
            )

    def _connect(self) -> sqlite3.Connection:
        if not self.path.exists():
            raise LedgerError(
                f"there is no ledger at {str(self.path)!r}: its data owner creates one with: "
                f"vfl ledger cap {self.path} DATASET --epsilon E --delta D"
            )
        if self.path.is_dir():
            raise LedgerError(f"{str(self.path)!r} is a folder, but a ledger is a file: name the file")
        self._require_local()
        self._require_one_name()
        found = self.path.stat()
        self._file = found.st_dev, found.st_ino
        connection = self._open("ro" if self.readonly else "rw")
        try:
            self._identity = self._read_identity(connection)
            if not self.readonly:
                self._write_ahead(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _require_local(self) -> None:
        if self.readonly or self.allow_network_file_system:
            return
        found = network_file_system(self.path)
        if found is not None:
            raise LedgerError(
                f"the ledger {str(self.path)!r} is on a network file system ({found}), which can lose charges. Keep it "
                "on a local disk of one machine, or accept the risk with allow_network_file_system (vfl: "
                "--allow-network-file-system; a party's policy: allow_network_file_system = true)"
            )

    def _open(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            uri=True,
            timeout=self.timeout,
            isolation_level=None,
            check_same_thread=False,
        )

    def _write_ahead(self, connection: sqlite3.Connection) -> None:
        # Switching the journal mode needs exclusive access and does not wait for it, so try again until the deadline.
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        if mode != "wal":
            raise LedgerError(
                f"the file system of {str(self.path)!r} cannot keep a write-ahead log: put the ledger on a local disk"
            )
        connection.execute("PRAGMA synchronous=FULL")
        if sys.platform == "darwin":  # where a plain fsync stops at the drive's cache
            connection.execute("PRAGMA fullfsync=ON")

    def _read_identity(self, connection: sqlite3.Connection) -> str:
        # Compare the schema before any query: a view in place of a table could run a query that never ends.
        made = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE name IN ('format', 'entries')"))
        plain = made.get("format") == _SCHEMA[0]
        found = connection.execute("SELECT version, ledger FROM format LIMIT 2").fetchall() if plain else []
        if len(found) != 1:
            raise LedgerError(f"{str(self.path)!r} is not a ledger: name another file")
        version, identity = found[0]
        if version != FORMAT:
            raise LedgerError(
                f"the ledger {str(self.path)!r} has format {version}, but this vfl writes format {FORMAT}: "
                "use the version of vfl that created it; nothing was changed"
            )
        if made.get("entries") != _SCHEMA[1]:
            raise LedgerError(f"{str(self.path)!r} is not a ledger: its table of entries is not one that vfl makes")
        return str(identity)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's message may quote damaged text
            name = getattr(error, "sqlite_errorname", "SQLITE_CORRUPT")
            cause = next((text for start, text in _CAUSES.items() if name.startswith(start)), "SQLite refused")
            raise LedgerError(
                f"the ledger {str(self.path)!r} could not be used, so nothing was charged or released: "
                f"{cause} ({error})"
            ) from error


_CAUSES = {
    "SQLITE_FULL": "the disk is full; make room and resume",
    "SQLITE_READONLY": "it is not writable; check the permissions of the file and of its folder",
    "SQLITE_CANTOPEN": "it cannot be opened; check that its folder exists and is writable",
    "SQLITE_BUSY": "another process held it for too long; find that process, or wait longer",
    "SQLITE_NOTADB": "it is not an SQLite file; name another, or restore a copy",
    "SQLITE_CORRUPT": "the file is damaged; restore the newest copy whose chain head was noted elsewhere",
    "SQLITE_IOERR": "the disk failed or is full; repair it and resume",
}


def _sync_folder(folder: Path) -> None:
    """Sync a folder, so that the directory entry of a new file survives a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Rows:
    """Entries of a ledger, as one transaction sees them. noted : head that the entries must contain, if any was noted."""

    __slots__ = ("_connection", "identity", "noted")

    def __init__(self, connection: sqlite3.Connection, identity: str, noted: Head | None) -> None:
        self._connection = connection
        self.identity, self.noted = identity, noted

    def since(self, seq: int) -> Iterator[tuple[Entry, bytes]]:
        """Yield the stored entries from number `seq` on, in order, each entry with its hash."""
        for row in self._connection.execute(_SINCE, (seq,)):
            yield Entry._make(row[:9]), row[9]

    def append(self, rows: Sequence[tuple[Entry, bytes]]) -> None:
        """Add entries at the end."""
        self._connection.executemany(_APPEND, [(*entry, digest) for entry, digest in rows])
