"""Durable count of the records predicted per day."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import sqlite3
from typing import TYPE_CHECKING

from vfl.errors import ConsentRefused

if TYPE_CHECKING:
    from pathlib import Path

WAIT_SECONDS = 60.0
_TABLE = "CREATE TABLE IF NOT EXISTS predicted (party TEXT, day TEXT, records INTEGER, PRIMARY KEY (party, day))"


class DailyCount:
    """Counts the predicted records of each party and day (UTC), in a file beside the party's book.

    A count is on disk before the records are predicted, in one transaction, so that processes that count at the same time
    stay within the limit together. A clock that is set back does not begin a new day.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self, party: str, records: int, most: int) -> bool:
        """Count records for today unless the total would exceed `most`; return True if they were counted.

        party : name whose records are counted: of a party, or of a caller of its service.
        Raises ConsentRefused if the file cannot be read or written, since uncounted records are not predicted.
        """
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
            with contextlib.closing(sqlite3.connect(self._path, WAIT_SECONDS, isolation_level=None)) as file:
                file.execute("PRAGMA synchronous = FULL")
                file.execute("BEGIN IMMEDIATE")
                file.execute(_TABLE)
                (last,) = file.execute("SELECT max(day) FROM predicted WHERE party = ?", (party,)).fetchone()
                today = max(dt.datetime.now(dt.UTC).date().isoformat(), last or "")
                where = (party, today)
                found = file.execute("SELECT records FROM predicted WHERE party = ? AND day = ?", where).fetchone()
                counted = (found[0] if found else 0) + records
                if counted > most:
                    file.execute("ROLLBACK")
                    return False
                file.execute("INSERT OR REPLACE INTO predicted VALUES (?, ?, ?)", (*where, counted))
                file.execute("COMMIT")
                return True
        except (OSError, sqlite3.Error):
            problem = f"the count of predicted records, {self._path.name!r}, cannot be kept"
        raise ConsentRefused(
            f"party {party!r} refuses a prediction: {problem}; give its owner's process write access to the policy's folder"
        )
