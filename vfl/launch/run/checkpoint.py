"""Log of a run, from which an interrupted run is resumed. The log holds released values only.

The first line names the job's digest, the run and its ledger. One line states the reservation of the budget. Then there is
one line per query, with the keys under which the query's releases were charged: round, attempt, and parts 0, 1, …. In a run
on shares, the line of the first query on products of columns holds all of these products. Every line carries a hash of itself
and of the line before it, so that damage is detected. An incomplete last line, which a crash may leave, is dropped: its
releases stay charged and are not used. A sealed run releases nothing before its final model. The rounds in its log hold no
values, so each process of the run writes them from round 0 on.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from coordinator.charging.budget import Budget, Reserved
from coordinator.rounds import LEFT, Log, Round
from vfl.base.csv import OPTIONS
from vfl.base.documents import opened, parse_json, read_bytes
from vfl.base.writing import append, owners_file
from vfl.errors import OutputError
from vfl.planning.certificate.verification import charges
from vfl.privacy.events import ReleaseKey
from vfl.privacy.ledger import Head

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from vfl.job import Job
    from vfl.privacy.events import Event
    from vfl.queries.protocol import Released

FORMAT = 1
NAME = "rounds.log"
LEDGER = "ledger.db"
"""Name of the ledger file in the folder of a run that names no data set."""
REMEDY = (
    "restore the file from a copy, or start a new run; the releases of this one stay charged, and vfl ledger settle frees the "
    "rest of its reservation"
)
LARGEST_LOG, LARGEST_LINE = 1 << 34, 1 << 30
SYNC_SECONDS = 1.0
"""Seconds between two fsyncs of the log. A power cut may lose the last lines. Their releases stay charged and are repeated."""


@dataclass(frozen=True, slots=True)
class Start:
    """First line of the log of a run.

    job : digest of the job. run : id of the run. ledger : path of the run's ledger. environment : site of the run and sources
        of its data.
    """

    job: str
    run: str
    ledger: str | None
    environment: dict[str, Any]
    format: int = FORMAT


class Checkpoint:
    """Writer of the log of one run. The writer locks the log against other processes."""

    def __init__(self, folder: Path, start: Start | None = None) -> None:
        """Start a new log; without `start`, continue the log that exists."""
        path = folder / NAME
        try:
            # Unbuffered, so that closing the file does not repeat a write that failed on a full disk.
            mode = "r+b" if start is None else "x+b"
            self._file = open(path, mode, buffering=0, opener=owners_file)  # noqa: SIM115 - `close` closes it
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise OutputError(f"another process is at work on the run in {str(folder)!r}") from None
        except FileNotFoundError:
            raise OutputError(f"there is no run to resume in {str(folder)!r}") from None
        except OSError as error:
            raise OutputError(f"cannot write the log of the run in {str(folder)!r}: {error.strerror}") from error
        self._synced = time.monotonic()
        self._hash = ""
        self.reserved = start is None
        if start is None:
            try:
                lines, size = _lines(self._file.read(), folder)
            except OutputError:
                self._file.close()
                raise
            self._hash = lines[-1][0]
            self._file.truncate(size)
            self._file.seek(size)
        else:
            self._write({"start": {name: getattr(start, name) for name in Start.__slots__}})
            self._sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(*([OutputError] if error is not None else [])):  # report the first error
            self._sync()
        self._file.close()

    def __call__(self, event: object) -> None:
        """Write the reservation of the budget, or the releases of a query."""
        if isinstance(event, Reserved):
            head = event.head and [event.head.seq, event.head.hash]
            self.reserved = True
            self._write({"reserved": {"n_records": event.n_records, "head": head, "flags": list(event.flags)}})
            self._sync()
        elif isinstance(event, Round):
            attempt = event.charges[0][0].attempt if event.charges else 0
            self._write(
                {"round": event.number, "kind": event.kind, "attempt": attempt}
                | {"charged": len(event.charges), "released": None if event.refused else _spelt(event.released)}
                | ({"left": event.parties[0]} if event.kind == LEFT else {})
                | ({"products": _spelt(event.products)} if event.products else {})
            )
            if time.monotonic() - self._synced > SYNC_SECONDS:
                self._sync()

    def _write(self, entry: dict[str, Any]) -> None:
        text = json.dumps(entry, separators=(",", ":"))
        digest = chained(self._hash, text)
        with _refusing():
            append(self._file.fileno(), f"{digest} {text}\n".encode())
        self._hash = digest

    def _sync(self) -> None:
        with _refusing():
            os.fsync(self._file.fileno())
        self._synced = time.monotonic()


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Turn an OSError during a write into an OutputError."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write the log of the run: {error.strerror}; the run can be resumed") from error


def chained(previous: str, text: str) -> str:
    """Return the digest of a line of the log. The digest also covers the digest of the line before."""
    return hashlib.sha256(f"{previous} {text}".encode()).hexdigest()[:32]


def _damaged(folder: Path, where: str = "") -> OutputError:
    return OutputError(f"the log of the run in {str(folder)!r} is damaged{where}: {REMEDY}")


def _lines(content: bytes, folder: Path) -> tuple[list[tuple[str, dict[str, Any]]], int]:
    """Return (hash, entry) for every complete line, and the total size of these lines in bytes."""
    lines: list[tuple[str, dict[str, Any]]] = []
    size, previous = 0, ""
    for number, line in enumerate(content.splitlines(keepends=True), 1):
        digest, _, text = line.decode(errors="replace").rstrip("\n").partition(" ")
        if not line.endswith(b"\n") or digest != chained(previous, text):
            if size + len(line) == len(content):
                break
            raise _damaged(folder, f" at line {number}")
        previous, entry = digest, None
        with contextlib.suppress(ValueError):
            entry = parse_json(text)
        if not isinstance(entry, dict):
            raise _damaged(folder, f" at line {number}")
        lines.append((digest, entry))
        size += len(line)
    if not lines or "start" not in lines[0][1]:
        raise OutputError(f"there is no log of a run in {str(folder)!r}")
    return lines, size


def ledger_of(ledger: str | None, folder: Path) -> str | None:
    """Return the ledger's path. A run's own ledger moves with its folder; its hash chain shows that it is the same ledger."""
    moved = folder / LEDGER
    if ledger is None or Path(ledger).exists() or Path(ledger).name != LEDGER or not moved.exists():
        return ledger
    return str(moved.resolve())


def processes(folder: Path) -> int:
    """Return the number of processes that worked on the run: one plus the number of resumptions; 0 without a log."""
    try:
        lines, _ = _lines(read_bytes(folder / NAME, LARGEST_LOG, follow=False), folder)
    except OSError:
        return 0
    return sum("reserved" in entry for _, entry in lines)


def formats_of_run(folder: Path) -> dict[str, dict[str, Any]]:
    """Return {party: format of its text file} as the run's log states it; {} without a readable log."""
    try:
        with opened(folder / NAME, follow=False) as log:
            lines, _ = _lines(log.readline(LARGEST_LINE), folder)
        data = lines[0][1]["start"]["environment"].get("data") or {}
        return {
            party: {key: value for key, value in source.items() if key in OPTIONS}
            for party, source in data.items()
            if isinstance(source, dict)
        }
    except (OSError, OutputError, KeyError, TypeError, AttributeError):
        return {}


def read(folder: Path, job: Job) -> tuple[Start, Budget, Log]:
    """Return a run's first line, budget and releases. OutputError if the log is damaged or belongs to another job."""
    try:
        lines, _ = _lines(read_bytes(folder / NAME, LARGEST_LOG, follow=False), folder)
    except OSError as error:
        raise OutputError(f"there is no run to resume in {str(folder)!r}: {error.strerror}") from error
    try:
        return _read(folder, job, [entry for _, entry in lines])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _damaged(folder) from error


def _read(folder: Path, job: Job, entries: list[dict[str, Any]]) -> tuple[Start, Budget, Log]:
    if entries[0]["start"].get("format") != FORMAT:
        raise OutputError(f"this vfl resumes runs of format {FORMAT}; {str(folder)!r} holds another")
    start = Start(**entries[0]["start"])
    start = replace(start, ledger=ledger_of(start.ledger, folder))
    if start.job != job.digest:
        raise OutputError(f"the job in {str(folder)!r} is not the one that the run began with")
    # Each process logs the ledger's head after it reserves the plan or resumes the run. The newest ledger has the last head.
    reserved = next((entry["reserved"] for entry in reversed(entries) if "reserved" in entry), None)
    made = _rounds(entries)
    if [entry["round"] for entry in made] != list(range(len(made))):
        raise _damaged(folder, ", its rounds are out of order")
    charged = tuple(
        tuple(ReleaseKey(number, part, entry["attempt"]) for part in range(entry["charged"]))
        for number, entry in enumerate(made)
    )
    released = tuple(None if entry["released"] is None else _vectors(entry["released"]) for entry in made)
    left = {number: entry["left"] for number, entry in enumerate(made) if "left" in entry}
    flags = dict.fromkeys(flag for entry in entries for flag in entry.get("reserved", {}).get("flags", ()))
    products = next((_vectors(entry["products"]) for entry in made if "products" in entry), ())
    head = Head(*reserved["head"]) if reserved and reserved["head"] else None
    allowed = bool(start.environment.get("allow_network_file_system"))
    budget = Budget(start.run, start.ledger, resumed=True, head=head, allow_network_file_system=allowed)
    n_records = reserved["n_records"] if reserved else None
    earlier = Log(released, charged, n_records, left, tuple(flags), resumed=True, products=products)
    return start, budget, earlier


def _rounds(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rounds in a log. In a sealed run, a process that finds no released value begins again at round 0."""
    made: list[dict[str, Any]] = []
    for before, entry in pairwise(entries):
        if entry.get("round") == 0 and "reserved" in before and not any(earlier["released"] for earlier in made):
            made = []
        if "round" in entry:
            made.append(entry)
    return made


def _spelt(released: Released) -> list[list[str]]:
    return [[float(value).hex() for value in u] for u in released]


def _vectors(released: list[list[str]]) -> Released:
    return tuple(np.array([float.fromhex(x) for x in u]) for u in released)


def charged_before(folder: Path, job: Job) -> Mapping[Event, int]:
    """Return {event: count} of the charges of a run's earlier processes. Lost releases count, since they stay charged."""
    _, budget, log = read(folder, job)
    if budget.ledger is None or not Path(budget.ledger).exists():
        return {}
    # Seeded noise repeats a lost release to the bit under the charged key, so the release is not charged again.
    seeded = job.privacy is not None and job.privacy.noise is not None
    return charges(budget.ledger, budget.run, before=len(log.released) if seeded else math.inf)
