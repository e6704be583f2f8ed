"""Limits of a service: records per day, counted on disk, and records per second."""

from __future__ import annotations

import datetime as dt
import threading
import time
from typing import TYPE_CHECKING

from vfl.base.store import Store
from vfl.errors import ConsentRefused

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from parties.consent import Policy

WAIT_SECONDS = 60.0
AHEAD, MOST_AHEAD = 100, 1024
"""A service counts limit/AHEAD records in advance, at most MOST_AHEAD, so that later requests need not wait for the disk."""
_TO_TODAY = (
    "INSERT OR REPLACE INTO predicted SELECT party, :now, sum(records) FROM predicted WHERE day >= :now GROUP BY party"
)
_TABLES = {"predicted": "CREATE TABLE predicted (party TEXT, day TEXT, records INTEGER, PRIMARY KEY (party, day))"}


class DailyCount:
    """Counts predicted records per party, and per caller of a service, for each day (UTC), in a file next to the party ledger.

    A count is on disk before its records are predicted. Each count is one transaction, so processes that count at the same time
    stay within one limit together. A clock that is set back by at most a day does not start a new day. If the file holds counts
    of days after tomorrow, the clock was ahead or is behind: all counts from today on then count for today, and later days are
    not blocked. The file stays open from the first count on.
    A file with other tables is refused, never started anew.

    allow_network_file_system : as in the owner's policy.
    """

    def __init__(self, path: Path, *, allow_network_file_system: bool = False) -> None:
        self._arguments = path, allow_network_file_system
        self._lock = threading.Lock()
        self._store = Store(
            path, _TABLES, ValueError, WAIT_SECONDS, allow_network_file_system=allow_network_file_system
        )
        self.close = self._store.close

    @classmethod
    def of(cls, policy: Policy) -> DailyCount:
        """Return the count of an owner, in a file next to the owner's party ledger."""
        return cls(
            policy.ledger.with_suffix(".predictions"), allow_network_file_system=policy.allow_network_file_system
        )

    def __reduce__(self) -> tuple[Callable[..., DailyCount], tuple[Path, bool]]:
        return _again, self._arguments  # another process opens the file again

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
                self._store.create()
                with self._store.transaction() as file:
                    return _taken(file, wanted)
        except ValueError as error:
            raise ConsentRefused(
                f"party {party!r} refuses a prediction: the count of predicted records, {self._arguments[0].name!r}, cannot "
                f"be kept: {error}. The party's process must be able to write to the folder of the owner's policy file"
            ) from None


def _again(path: Path, allow_network_file_system: bool) -> DailyCount:
    return DailyCount(path, allow_network_file_system=allow_network_file_system)


def _taken(file: sqlite3.Connection, wanted: Mapping[str, tuple[int, int]]) -> str:
    if file.execute("SELECT 1 FROM predicted WHERE day > ?", (_today(1),)).fetchone() is not None:
        file.execute(_TO_TODAY, {"now": _today()})
        file.execute("DELETE FROM predicted WHERE day > ?", (_today(),))
    counted: dict[tuple[str, str], int] = {}
    for name, (records, most) in wanted.items():
        (last,) = file.execute("SELECT max(day) FROM predicted WHERE party = ?", (name,)).fetchone()
        where = (name, max(_today(), last or ""))
        found = file.execute("SELECT records FROM predicted WHERE party = ? AND day = ?", where).fetchone()
        counted[where] = (found[0] if found else 0) + records
        if counted[where] > most:
            return name
    file.executemany("INSERT OR REPLACE INTO predicted VALUES (?, ?, ?)", [(*own, n) for own, n in counted.items()])
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


class Rate:
    """Token bucket: at most `per_second` records per second in the long run, and at most as many at once.

    A single request for more records than `per_second` is never admitted. A restart fills the bucket. That is acceptable,
    since this limit shapes load; only the daily count must survive restarts.
    """

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self._left, self._at = max(per_second, 1.0), time.monotonic()

    def take(self, records: int) -> bool:
        """Return True, and take the records from the bucket, if the bucket allows them now; else return False."""
        now = time.monotonic()
        most = max(self.per_second, 1.0)
        self._left = min(most, self._left + (now - self._at) * self.per_second)
        self._at = now
        if records > self._left:
            return False
        self._left -= records
        return True
