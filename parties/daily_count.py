"""Count of the records predicted per day, kept on disk."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import os
import sqlite3
import threading
from typing import TYPE_CHECKING

from vfl.errors import ConsentRefused
from vfl.file_systems import second_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

WAIT_SECONDS = 60.0
AHEAD, MOST_AHEAD = 100, 1024
"""A service counts limit/AHEAD records in advance, at most MOST_AHEAD, so that later requests need not wait for the disk."""
_TABLE = "CREATE TABLE IF NOT EXISTS predicted (party TEXT, day TEXT, records INTEGER, PRIMARY KEY (party, day))"

_TO_TODAY = (
    "INSERT OR REPLACE INTO predicted SELECT party, :now, sum(records) FROM predicted WHERE day >= :now GROUP BY party"
)


def open_durable(path: Path, table: str) -> sqlite3.Connection:
    """Open an SQLite file that only its owner can read, and create `table`. Changes are on disk when a statement returns.

    Raises OSError for a file that has a second name (vfl.file_systems).
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    if why := second_name(path):
        raise OSError(errno.EMLINK, why, str(path))
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
    """Counts predicted records per party, and per caller of a service, for each day (UTC), in a file next to the release log.

    A count is on disk before its records are predicted. It is one transaction, so processes that count at the same time stay
    within one limit together. A clock that is set back by at most a day does not start a new day. If the file holds counts of
    days after tomorrow, the clock was ahead or is behind: all counts from today on then count for today, and later days are not
    blocked. The file stays open from the first count on.
    It has a write-ahead log, so a count needs one write to the disk.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file: sqlite3.Connection | None = None

    def __reduce__(self) -> tuple[type[DailyCount], tuple[Path]]:
        return DailyCount, (self._path,)  # another process opens the file again

    def take(self, party: str, records: int, most: int) -> bool:
        """Count records for today and return True, unless the day's total would exceed `most`; then return False.

        Raises ConsentRefused if the file cannot be read or written, since no record is predicted without being counted.
        """
        return not self.take_all(party, {party: (records, most)})

    def take_all(self, party: str, wanted: Mapping[str, tuple[int, int]]) -> str:
        """Count records for all of these parties or callers, or for none of them if one limit is too low.

        Returns the first name whose limit is too low, or '' if the records were counted.

        party : owner of the file, for errors. wanted : {name of a party or caller: (records, most per day)}.
        """
        try:
            with self._lock:
                return self._taken(wanted)
        except (OSError, sqlite3.Error) as error:
            self.close()
            why = f": {error.strerror}" if isinstance(error, OSError) else ""
            problem = f"the count of predicted records, {self._path.name!r}, cannot be kept{why}"
        raise ConsentRefused(
            f"party {party!r} refuses a prediction: {problem}. Let the party's process write to the folder of the owner's "
            "policy file"
        )

    def close(self) -> None:
        """Close the file. The next count opens the file again."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(sqlite3.Error):
                file.close()

    def _taken(self, wanted: Mapping[str, tuple[int, int]]) -> str:
        file = self._file = self._file or open_durable(self._path, _TABLE)
        ahead = file.execute("SELECT 1 FROM predicted WHERE day > ?", (_today(1),)).fetchone() is not None
        file.execute("BEGIN IMMEDIATE")
        try:
            if ahead:
                file.execute(_TO_TODAY, {"now": _today()})
                file.execute("DELETE FROM predicted WHERE day > ?", (_today(),))
                file.execute("COMMIT")
                file.execute("BEGIN IMMEDIATE")
            for name, (records, most) in wanted.items():
                (last,) = file.execute("SELECT max(day) FROM predicted WHERE party = ?", (name,)).fetchone()
                where = (name, max(_today(), last or ""))
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
    """Counts the records of a service in advance, so that few requests wait for the disk.

    Guarantee. The count on disk is never below the number of answered records. A killed process leaves at most `most` / AHEAD
    records per party or caller counted but not answered. A limit below AHEAD records is counted exactly.
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
        """Count records for several parties or callers, for all or none; otherwise as `DailyCount.take_all`."""
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


def _today(later: int = 0) -> str:
    return (dt.datetime.now(dt.UTC).date() + dt.timedelta(later)).isoformat()
