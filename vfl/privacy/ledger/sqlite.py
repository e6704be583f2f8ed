"""Storage of a ledger in an SQLite file (`vfl.base.store`). Only one process writes at a time."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vfl.base.store import Store
from vfl.errors import LedgerError
from vfl.privacy.ledger.codec import FORMAT, Entry, Head, broken

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_TABLES = {
    "format": "CREATE TABLE format (version INTEGER NOT NULL, ledger TEXT NOT NULL)",
    "entries": """CREATE TABLE entries (
        seq INTEGER PRIMARY KEY, recorded TEXT NOT NULL, dataset TEXT NOT NULL, kind TEXT NOT NULL, run TEXT NOT NULL,
        round INTEGER, part INTEGER, attempt INTEGER, body TEXT NOT NULL, hash BLOB NOT NULL)""",
}
# The triggers prevent accidental changes; the hash chain reveals intended ones.
_TRIGGERS = (
    """CREATE TRIGGER entries_are_not_changed BEFORE UPDATE ON entries
        BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
    """CREATE TRIGGER entries_are_not_deleted BEFORE DELETE ON entries
        BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
)
_SINCE = "SELECT * FROM entries WHERE seq >= ? ORDER BY seq"
_APPEND = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_NOTED = "user.vfl.head"
"""Extended attribute with the newest head: an older copy that overwrites the file has fewer entries."""
_MOST = 1 << 31
"""SQLite's user_version has 32 bits with a sign."""


class SqliteStore:
    """Append-only storage that survives a loss of power. Every failure to read or write raises LedgerError.

    Options as for `SqliteLedger`.
    """

    def __init__(
        self,
        path: Path,
        timeout: float = 30.0,
        readonly: bool = False,
        allow_network_file_system: bool = False,
        owner_only: bool = False,
    ) -> None:
        self.path = path
        self._store = Store(
            path, _TABLES, self._refusal, timeout, readonly, allow_network_file_system, owner_only=owner_only
        )
        self.forget = self._store.forget

    def create(self) -> None:
        """Create an empty ledger, unless there is one."""
        begun = ("INSERT INTO format VALUES (?, ?)", (FORMAT, uuid.uuid4().hex))
        self._store.create([*((trigger, ()) for trigger in _TRIGGERS), begun])

    @contextmanager
    def reading(self, begin: str = "BEGIN") -> Iterator[Rows]:
        """Yield the entries as seen by one consistent read transaction."""
        if not self.path.exists():
            raise LedgerError(
                f"there is no ledger at {str(self.path)!r}: its data owner creates one with: "
                f"vfl ledger cap {self.path} DATASET --epsilon E --delta D"
            )
        if self.path.is_dir():
            raise LedgerError(f"{str(self.path)!r} is a folder, but a ledger is a file: name the file")
        noted = self._noted()  # before the transaction begins: other processes may add entries and note them
        with self._store.transaction(begin) as connection:
            yield Rows(connection, self._identity(connection), noted)

    @contextmanager
    def writing(self) -> Iterator[Rows]:
        """Yield the entries under an exclusive lock. On exit, appended entries are durable; after an error, none is kept."""
        with self.reading("BEGIN IMMEDIATE") as rows:
            yield rows

    def note(self, head: Head) -> None:
        """Note the head of the chain at the file, where the file system keeps extended attributes. The file is not synced."""
        with contextlib.suppress(AttributeError):  # macOS has no such functions in Python
            try:
                os.setxattr(self.path, _NOTED, f"{head.seq} {head.hash}".encode())
            except OSError as error:
                if error.errno != errno.ENOTSUP:
                    raise self._refusal(
                        f"its head cannot be stored in an extended attribute of the file ({error.strerror})"
                    ) from error

    def _noted(self) -> Head | None:
        """Return the head stored in an extended attribute of the file; None if there is none or the file system keeps none."""
        try:
            seq, head = os.getxattr(self.path, _NOTED).decode().split(" ")
            return Head(int(seq), head)
        except (AttributeError, OSError, ValueError):
            return None

    def _identity(self, connection: sqlite3.Connection) -> str:
        found = connection.execute("SELECT version, ledger FROM format LIMIT 2").fetchall()
        if len(found) != 1:
            raise self._refusal("it states no format, or several; restore the newest copy")
        version, identity = found[0]
        if version != FORMAT:
            raise LedgerError(
                f"the ledger {str(self.path)!r} has format {version}, but this vfl writes format {FORMAT}: "
                "use the version of vfl that created it; nothing was changed"
            )
        return str(identity)

    def _refusal(self, cause: str) -> LedgerError:
        return LedgerError(
            f"the ledger {str(self.path)!r} could not be used, so nothing was charged or released: {cause}"
        )


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
        """Add entries at the end, and state their number in the file's first page."""
        self._connection.executemany(_APPEND, [(*entry, digest) for entry, digest in rows])
        self._connection.execute(f"PRAGMA user_version = {rows[-1][0].seq % _MOST}")

    def require_end(self, seq: int) -> None:
        """Raise LedgerError unless the first page states `seq` entries. A copy made during a commit may state another number.

        An older ledger states 0 until its next entry.
        """
        (stated,) = self._connection.execute("PRAGMA user_version").fetchone()
        if stated not in (0, seq % _MOST):
            raise broken(seq, f"the file states {stated} entries, so its end is missing or not whole")
