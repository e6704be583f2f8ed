"""Durable count of the records predicted per day."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import sqlite3
import threading
from typing import TYPE_CHECKING

from vfl.errors import ConsentRefused

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

WAIT_SECONDS = 60.0
AHEAD, MOST_AHEAD = 100, 1024
"""A service counts limit/AHEAD records before they are asked for, at most MOST_AHEAD."""
_TABLE = "CREATE TABLE IF NOT EXISTS predicted (party TEXT, day TEXT, records INTEGER, PRIMARY KEY (party, day))"


def open_durable(path: Path, table: str) -> sqlite3.Connection:
    """Open a file of SQLite for its owner alone, with this table. When a statement returns, its changes are on disk."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    file = sqlite3.connect(path, WAIT_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("PRAGMA synchronous = FULL")
        file.execute(table)
    except sqlite3.Error:
        file.close()
        raise
    return file


class DailyCount:
    """Counts the predicted records of each party, and of each caller of a service, per day (UTC), beside the party's book.

    A count is on disk before the records are predicted, in one transaction, so that processes that count at the same time
    stay within the limit together. A clock that is set back does not begin a new day. The file is open from the first count
    on, with a write-ahead log, so that a count takes one write to the disk.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file: sqlite3.Connection | None = None

    def __reduce__(self) -> tuple[type[DailyCount], tuple[Path]]:
        return DailyCount, (self._path,)  # another process opens the file itself

    def take(self, party: str, records: int, most: int) -> bool:
        """Count records for today unless the total would exceed `most`; return True if they were counted.

        Raises ConsentRefused if the file cannot be read or written, since uncounted records are not predicted.
        """
        return not self.take_all(party, {party: (records, most)})

    def take_all(self, party: str, wanted: Mapping[str, tuple[int, int]]) -> str:
        """Count records for parties or callers, all or none; return the first name whose limit is too low, '' if counted.

        party : owner of the file, for errors. wanted : {name of a party or a caller: records, most per day}.
        """
        try:
            with self._lock:
                return self._taken(wanted)
        except (OSError, sqlite3.Error):
            self.close()
            problem = f"the count of predicted records, {self._path.name!r}, cannot be kept"
        raise ConsentRefused(
            f"party {party!r} refuses a prediction: {problem}; give its owner's process write access to the policy's folder"
        )

    def close(self) -> None:
        """Close the file; the next count opens it again."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(sqlite3.Error):
                file.close()

    def _taken(self, wanted: Mapping[str, tuple[int, int]]) -> str:
        file = self._file = self._file or open_durable(self._path, _TABLE)
        file.execute("BEGIN IMMEDIATE")
        try:
            for name, (records, most) in wanted.items():
                (last,) = file.execute("SELECT max(day) FROM predicted WHERE party = ?", (name,)).fetchone()
                today = max(_today(), last or "")
                where = (name, today)
                found = file.execute("SELECT records FROM predicted WHERE party = ? AND day = ?", where).fetchone()
                counted = (found[0] if found else 0) + records
                if counted > most:
                    file.execute("ROLLBACK")
                    return name
                file.execute("INSERT OR REPLACE INTO predicted VALUES (?, ?, ?)", (*where, counted))
            file.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                file.execute("ROLLBACK")
            raise
        return ""


class CountedAhead:
    """Counts the records of a service a little ahead, so that few requests wait for the disk.

    Guarantee. The count on disk is never below the records answered. A process that is killed leaves at most `most` / AHEAD
    records per party or caller counted and not answered; under a limit below AHEAD records, each record is counted exactly.
    """

    def __init__(self, count: DailyCount) -> None:
        self._count, self._day = count, ""
        self._left: dict[tuple[str, int], int] = {}

    def covers(self, wanted: Mapping[str, tuple[int, int]]) -> bool:
        """Return True if `take_all` would count these records without waiting for the disk."""
        return self._day == _today() and all(
            records <= self._left.get((name, most), 0) for name, (records, most) in wanted.items()
        )

    def take_all(self, party: str, wanted: Mapping[str, tuple[int, int]]) -> str:
        """Count records for several parties or callers, all or none; arguments and errors as for `DailyCount.take_all`."""
        if self._day != _today():
            self._day, self._left = _today(), {}
        short = {
            name: (records - self._left.get((name, most), 0), most)
            for name, (records, most) in wanted.items()
            if records > self._left.get((name, most), 0)
        }
        ahead = {name: min(MOST_AHEAD, most // AHEAD) for name, (_, most) in short.items()}
        if short and any(ahead.values()):
            whole = {name: (records + ahead[name], most) for name, (records, most) in short.items()}
            if self._count.take_all(party, whole) != "":
                ahead = dict.fromkeys(short, 0)
                if over := self._count.take_all(party, short):
                    return over
        elif short and (over := self._count.take_all(party, short)):
            return over
        for name, (records, most) in wanted.items():
            left = self._left.get((name, most), 0)
            self._left[name, most] = ahead[name] if name in short else left - records
        return ""


def _today() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()
