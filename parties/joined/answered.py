"""Record, on disk, of the keys under which a party has drawn noise."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

from parties.daily_count import open_durable
from vfl.errors import ConsentRefused

if TYPE_CHECKING:
    from pathlib import Path

    from vfl.privacy.events import ReleaseKey

_TABLE = (
    "CREATE TABLE IF NOT EXISTS answered (run TEXT, round INTEGER, attempt INTEGER, part INTEGER, "
    "PRIMARY KEY (run, round, attempt, part)) WITHOUT ROWID"
)
_TAKE = (
    "WITH RECURSIVE parts (part) AS (SELECT ? UNION ALL SELECT part + 1 FROM parts WHERE part < ?) "
    "INSERT INTO answered SELECT ?, ?, ?, part FROM parts"
)


class Answered:
    """Keys of answered releases, in a file next to the party's book.

    Guarantee. `take` returns only once for a key of a run, across all processes, and the key is then on disk. Noise is
    therefore drawn at most once under a key. To ask again, a coordinator needs a new attempt, which its ledger and the party's
    book charge.

    path : path of the file. run : id of the run.
    """

    def __init__(self, path: Path, party: str, run: str) -> None:
        self._path, self._party, self._run = path, party, run
        try:
            self._file = open_durable(path, _TABLE)
        except (OSError, sqlite3.Error):
            raise self._unusable() from None

    def take(self, key: ReleaseKey, part: int, parts: int = 1) -> None:
        """Record the keys of `parts` releases from number `part` on: all of these keys, or none of them.

        Raises ConsentRefused if a key was taken before, or if the keys cannot be recorded.
        """
        try:
            self._file.execute(_TAKE, (part, part + parts - 1, self._run, key.round, key.attempt))
        except sqlite3.IntegrityError:
            numbers = f"part {part}" if parts == 1 else f"parts {part} to {part + parts - 1}"
            raise ConsentRefused(
                f"party {self._party!r} has answered round {key.round}, attempt {key.attempt}, {numbers} of this run before: "
                "asking again is another release, under a new attempt"
            ) from None
        except (sqlite3.Error, OverflowError):
            raise self._unusable() from None

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(sqlite3.Error):
            self._file.close()

    def _unusable(self) -> ConsentRefused:
        return ConsentRefused(
            f"party {self._party!r} cannot record which releases it has made, in {self._path.name!r}: give its process write "
            "access to the policy's folder"
        )
