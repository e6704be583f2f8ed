"""Durable SQLite files that only one name leads to. The journal keeps a file whole, and a commit is in the file itself.

SQLite names its journal after the path. A process that opens the file under a second name (a hard link, or a mount of the
file alone) does not see the journal of the first, and may undo its commits after a crash. So a writer refuses such a file at
every transaction. There is no write-ahead log, whose commits a second name, a moved file or a copy would lack.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import sys
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vfl.base.writing import network_file_system, second_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import Any

_CAUSES = {
    "SQLITE_FULL": "the disk is full; make room and resume",
    "SQLITE_READONLY": "it is not writable; check the permissions of the file and of its folder",
    "SQLITE_CANTOPEN": "it cannot be opened; check that its folder exists and is writable",
    "SQLITE_BUSY": "another process held it for too long; find that process, or wait longer",
    "SQLITE_NOTADB": "it is not an SQLite file; name another, or restore a copy",
    "SQLITE_CORRUPT": "the file is damaged; restore the newest copy",
    "SQLITE_IOERR": "the disk failed or is full; repair it and resume",
}

_OF_DAMAGE = (UnicodeError, IndexError, OverflowError)
"""Errors that Python's module raises while it reads the content of a damaged file."""

# SQLite forbids using or closing a connection that a parent process opened, and garbage collection would close it.
_inherited: list[sqlite3.Connection] = []


@dataclass(eq=False)
class Store:
    """SQLite file whose commits survive a loss of power. Its path, its locks and its journal belong to one file.

    There is one connection per process, opened on first use. The caller admits one thread at a time. SQLite gives the journal
    the mode of the file.

    tables : {name: SQL that makes the table}. A file whose tables differ is refused, an empty file too.
    refusal : error for a cause, which is half a sentence with its remedy.
    timeout : seconds to wait for other writers. readonly : the file may then be on any file system.
    owner_only : create the file with mode 0600, whatever the umask.
    """

    path: Path
    tables: Mapping[str, str]
    refusal: Callable[[str], Exception]
    timeout: float = 30.0
    readonly: bool = False
    allow_network_file_system: bool = False
    owner_only: bool = True
    _connection: sqlite3.Connection | None = field(default=None, init=False)
    _file: tuple[int, int] | None = field(default=None, init=False)

    def create(self, more: Iterable[tuple[str, tuple[Any, ...]]] = ()) -> None:
        """Create the file atomically, unless there is one. If several processes try at once, one creates the file.

        more : further SQL, with its values.
        """
        if self.readonly or self.path.exists():
            return
        if self.path.is_symlink():  # a new file would take the place of the link, and the old file would be forgotten
            raise self.refusal("it is a link to a file that is not there; mount its disk, or repair or remove the link")
        self._require_local()
        part = self.path.with_name(f".{self.path.name}-{uuid.uuid4().hex}")
        with self._explained(OSError):
            try:
                os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600 if self.owner_only else 0o666))
                with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as connection:
                    connection.execute("PRAGMA journal_mode=MEMORY")
                    connection.execute("BEGIN IMMEDIATE")
                    for statement, values in (*((sql, ()) for sql in self.tables.values()), *more):
                        connection.execute(statement, values)
                    connection.execute("COMMIT")
                with _locked(self.path.parent) as folder:
                    if not self.path.exists():
                        part.replace(self.path)  # not a hard link: files with two names are refused
                    os.fsync(folder)
            finally:
                with contextlib.suppress(OSError):
                    part.unlink()

    @contextmanager
    def transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """Yield the connection in a transaction. On exit, all changes are durable; after an error, none is kept.

        Errors of SQLite become the store's refusal. All other errors of the caller's own code are raised as they are.
        """
        with self._explained():
            with self._explained(OSError, *_OF_DAMAGE):
                connection = self._connection or self._connect()
                connection.execute(begin)
            try:
                with self._explained(OSError):
                    self._require_same_file()
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def forget(self) -> None:
        """Forget a connection that a parent process opened, without closing it."""
        if self._connection is not None:
            _inherited.append(self._connection)
            self._connection = None

    def close(self) -> None:
        """Close the file. The next transaction opens the file again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _connect(self) -> sqlite3.Connection:
        self._require_local()
        self._require_one_name()
        found = self.path.stat()
        self._file = found.st_dev, found.st_ino
        mode = "ro" if self.readonly else "rw"
        connection = sqlite3.connect(
            f"{self.path.resolve().as_uri()}?mode={mode}",
            uri=True,
            timeout=self.timeout,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._require_whole(connection)
            if not self.readonly:
                self._keep_journal(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _require_whole(self, connection: sqlite3.Connection) -> None:
        # Compare the schema before any query: a view in place of a table could run a query that never ends.
        connection.execute("BEGIN")
        made = dict(connection.execute("SELECT name, sql FROM sqlite_master"))
        if any(made.get(name) != sql for name, sql in self.tables.items()):
            raise self.refusal(
                "its tables are not those that this vfl makes, or are damaged; name another file, or restore the newest copy"
            )
        pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        if pages * size != self.path.stat().st_size:  # SQLite reads a truncated page as if zeros followed
            raise self.refusal("its length is not that of its content; restore the newest copy")
        (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise self.refusal(f"{_CAUSES['SQLITE_CORRUPT']} ({found})")
        connection.execute("COMMIT")

    def _require_one_name(self) -> None:
        if why := second_name(self.path):
            raise self.refusal(f"processes that open it under different names lose one another's charges: {why}")

    def _require_same_file(self) -> None:
        found = self.path.stat()
        if (found.st_dev, found.st_ino) != self._file:
            raise self.refusal(
                "it was moved or replaced while it was in use: put it back, and end all processes that use it before "
                "you move it"
            )
        if found.st_nlink > 1:
            self._require_one_name()

    def _require_local(self) -> None:
        if self.readonly or self.allow_network_file_system:
            return
        kind = network_file_system(self.path)
        if kind is not None:
            raise self.refusal(
                f"it is on a network file system ({kind}), which can lose charges. Keep it "
                "on a local disk of one machine, or accept the risk with allow_network_file_system (job "
                "file: [ledger] allow_network_file_system = true; a party's policy: the same key; vfl ledger: "
                "--allow-network-file-system)"
            )

    def _keep_journal(self, connection: sqlite3.Connection) -> None:
        # SQLite leaves write-ahead logging only with exclusive access, and fails at once without: retry until the deadline.
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                connection.execute("PRAGMA journal_mode=DELETE").fetchone()
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        connection.execute("PRAGMA synchronous=EXTRA")  # syncs the folder after the journal is deleted, too
        if sys.platform == "darwin":  # where a plain fsync stops at the drive's cache
            connection.execute("PRAGMA fullfsync=ON")

    @contextmanager
    def _explained(self, *also: type[Exception]) -> Iterator[None]:
        """Turn errors of SQLite, and of the classes `also`, into the refusal."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, (sqlite3.Error, *also)):
                raise
            name = "SQLITE_CANTOPEN" if isinstance(error, OSError) else getattr(error, "sqlite_errorname", "")
            name = "SQLITE_CORRUPT" if isinstance(error, _OF_DAMAGE) else name
            cause = next((text for start, text in _CAUSES.items() if name.startswith(start)), "SQLite refused")
            why = error.strerror if isinstance(error, OSError) else error
            raise self.refusal(f"{cause} ({why})") from error


@contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Yield a descriptor of a folder, locked against other processes that create files in it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
