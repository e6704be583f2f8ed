"""Durable charges against bare SQLite inserts, in one run; both keep a journal and sync each commit.

    python tests/benchmarks/ledger.py [charges]

Rounds alternate between the contenders, and the median of the rounds' ratios is what counts.
"""

from __future__ import annotations

import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.base.types import Adjacency
from vfl.privacy.events import Gaussian, ReleaseKey
from vfl.privacy.ledger import DatasetBudget, SqliteLedger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROUNDS = 9
EVENT = Gaussian(Adjacency.REPLACE_ONE, 1e-7, 1.0, 4)


def bare(folder: Path, charges: int) -> Callable[[int], None]:
    """Insert rows of a charge's size."""
    connection = sqlite3.connect(folder / "bare.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.execute("PRAGMA synchronous=EXTRA")
    connection.execute("CREATE TABLE charge (seq INTEGER PRIMARY KEY, run TEXT, round INTEGER, body TEXT, hash BLOB)")
    body, digest = "x" * 160, b"h" * 32

    def work(start: int) -> None:
        for i in range(start, start + charges):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO charge VALUES (?, ?, ?, ?, ?)", (i + 1, "run", i, body, digest))
            connection.execute("COMMIT")

    return work


def ledger(folder: Path, charges: int) -> Callable[[int], None]:
    """Charge releases one by one."""
    book = SqliteLedger(folder / "ledger.sqlite")
    book.set_cap("data", epsilon=1.0, delta=1e-9)
    reservation = DatasetBudget(book, "data").reserve([(EVENT, charges * ROUNDS)], job="job", run="run")

    def work(start: int) -> None:
        for i in range(start, start + charges):
            reservation.charge([(ReleaseKey(i), EVENT)])

    return work


def rates(charges: int, folder: Path) -> Iterator[tuple[str, list[float], list[float]]]:
    """Yield (name, charges a second, of bare SQLite in the same round) of each contender, a value a round."""
    work = {
        "bare SQLite": bare(folder, charges),
        "ledger": ledger(folder, charges),
    }
    seconds: dict[str, list[float]] = {label: [] for label in work}
    for i in range(ROUNDS):
        for label, run in work.items():
            start = time.perf_counter()
            run(i * charges)
            seconds[label].append(time.perf_counter() - start)
    for label, taken in seconds.items():
        ratios = [b / t for b, t in zip(seconds["bare SQLite"], taken, strict=True)]
        yield label, [charges / t for t in taken], ratios


def main() -> None:
    """Print charges a second and their ratios to bare inserts, then the cost of verifying the chain."""
    charges = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        for label, found, ratios in rates(charges, folder):
            ratio = statistics.median(ratios)
            print(f"{label:>17}: {statistics.median(found):9,.0f} charges/s, {ratio:7.0%} of bare SQLite")
        start = time.perf_counter()
        head = SqliteLedger(folder / "ledger.sqlite").verify()
        rate = head.seq / (time.perf_counter() - start)
        print(f"{'verify':>17}: {rate:9,.0f} entries/s")


if __name__ == "__main__":
    main()
