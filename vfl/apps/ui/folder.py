"""Jobs, runs, tuning runs and ledgers below a folder, recognised by the names and contents of their files.

A request can only name an item that this search found, by the item's path relative to the folder. Symbolic links are neither
followed nor listed, so every item lies below the folder.

The progress of a run is read from its log and its ledger while another process writes them. This module locks and writes
nothing. The log holds released values only. This module does not check the chain of hashes; the report and `vfl verify` do.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.base.documents import opened, parse_json
from vfl.errors import VflError
from vfl.job import file as jobfile
from vfl.launch.run import checkpoint
from vfl.launch.run.folder import MODEL, TUNE
from vfl.planning import plan as make_plan
from vfl.planning.certificate.verification import charges
from vfl.privacy.accountants import choose_accountant

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vfl.planning import Plan

DEPTH, MOST, MOST_FILES = 4, 2000, 20_000
"""Largest number of levels of the search, of folders to search, and of files to read."""
SKIPPED = ("node_modules", "site-packages", "__pycache__")
MAGIC = b"SQLite format 3\x00"
TABLE = "[partition"
"""Start of a table heading that every job file contains. A file without this text is not a job file."""


@dataclass(frozen=True, slots=True)
class FolderItems:
    """Items below a folder: {name: path} for each kind, in the order in which pages list the items.

    A name is the item's path relative to the folder, with '/' on every system.

    jobs : job files. runs : folders of running and finished runs. tunes : folders of unfinished tuning runs.
    ledgers : files of ledgers, except those inside the folders of runs.
    """

    jobs: dict[str, Path] = field(default_factory=dict)
    runs: dict[str, Path] = field(default_factory=dict)
    tunes: dict[str, Path] = field(default_factory=dict)
    ledgers: dict[str, Path] = field(default_factory=dict)


def find(root: Path, ledgers: Sequence[Path] = ()) -> FolderItems:
    """Return all items below `root`. ledgers : ledger files elsewhere, listed by their whole paths."""
    found, left = FolderItems(), MOST_FILES
    for number, (folder, files) in enumerate(_folders(root)):
        if number >= MOST:
            break
        name = folder.relative_to(root).as_posix()
        if MODEL in files or checkpoint.NAME in files:
            found.runs[name] = folder
        elif TUNE in files:
            found.tunes[name] = folder
        else:
            candidates = [file for file in files if file.endswith((".toml", ".db"))][:left]
            left -= len(candidates)
            for file in candidates:
                path = folder / file
                if path.suffix == ".toml" and _holds(path, TABLE.encode(), 1 << 20):
                    found.jobs[path.relative_to(root).as_posix()] = path
                elif path.suffix == ".db" and _holds(path, MAGIC, len(MAGIC)):
                    found.ledgers[path.relative_to(root).as_posix()] = path
    found.ledgers.update((str(path), path) for path in ledgers)
    return found


def _folders(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield folders in order, with the names of their regular files. Folders inside a run or a tuning run are skipped."""
    for where, folders, names in os.walk(root):
        folder = Path(where)
        files = sorted(name for name in names if not (folder / name).is_symlink())
        yield folder, files
        inside = {MODEL, checkpoint.NAME, TUNE} & set(files)
        deep = len(folder.relative_to(root).parts) >= DEPTH
        folders[:] = sorted(f for f in folders if not (inside or deep or f.startswith(".") or f in SKIPPED))


def _holds(path: Path, text: bytes, limit: int) -> bool:
    try:
        with opened(path, follow=False) as file:
            return text in file.read(limit)
    except OSError:
        return False


def ledger_of(run: Path, named: str | None, known: Sequence[Path]) -> Path | None:
    """Return a run's ledger: the one in the run's folder, or a known one that the run's log names. Open no other file."""
    if (own := run / checkpoint.LEDGER).is_file() and not own.is_symlink():
        return own
    return next((path for path in known if named is not None and path.resolve() == Path(named).resolve()), None)


KERNEL = Path("/proc/locks")
LONGEST = 1 << 26
"""Largest length, in bytes, of a log line that is read."""
UNREADABLE = "unreadable"
REST = 10.0
"""Pause between two computations of ε, as a multiple of the time that the last one took. Verifying a long chain takes long."""


@dataclass(frozen=True, slots=True)
class Progress:
    """State of a run.

    state : 'finished', 'running', 'interrupted' (no process has locked the run's log), or 'unreadable'. For a finished run the
        numbers below are missing; the certificate states them.
    rounds : number of answered queries. of : the plan's upper limit on that number; None if unknown.
    epsilon : ε of all charges so far, at the plan's δ; None without privacy, or if the ledger cannot be read.
    cap : ε of the whole plan. resumed : how often the run was resumed. why : reason why a number is missing.
    """

    state: str
    rounds: int = 0
    of: int | None = None
    epsilon: float | None = None
    cap: float | None = None
    resumed: int = 0
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the progress as plain values, for the page's script."""
        return {name: getattr(self, name) for name in self.__slots__} | {"said": self.said}

    @property
    def said(self) -> str:
        """The state, in one line of text."""
        if self.state == UNREADABLE:
            return f"{self.state}: {self.why}"
        rounds = f"round {self.rounds:,}" + ("" if self.of is None else f" of at most {self.of:,}")
        resumed = {0: "", 1: ", resumed once"}.get(self.resumed, f", resumed {self.resumed} times")
        return f"{self.state}: {rounds}{resumed}"


@dataclass(slots=True)
class WatchedRun:
    """A run whose log is read repeatedly. Each reading continues where the last one ended."""

    folder: Path
    _at: int = 0
    _rounds: int = 0
    _processes: int = 0
    _n_records: int | None = None
    _start: dict[str, Any] = field(default_factory=dict)
    _plan: Plan | None = None
    _spent: float | None = None
    _asked: tuple[int, int] = (-1, -1)
    _again: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def progress(self, known: Sequence[Path] = ()) -> Progress:
        """Return the present state of the run. known : ledgers that may be opened, in addition to the run's own ledger."""
        if os.path.lexists(self.folder / MODEL):
            return Progress("finished")
        try:
            self._read()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return Progress(UNREADABLE, why="its log cannot be read")
        state = "running" if _locked(self.folder / checkpoint.NAME) else "interrupted"
        resumed = max(0, self._processes - 1)
        begun = Progress(state, self._rounds, resumed=resumed)
        try:
            if self._plan is None and self._n_records is not None:
                job, _ = jobfile.read(self.folder / jobfile.NAME, follow=False)
                self._plan = make_plan(job, self._n_records)
            plan = self._plan
        except VflError as error:
            return replace(begun, why=f"its job cannot be planned: {error}")
        if plan is None:
            return begun
        if plan.problem.delta is None:
            return replace(begun, of=plan.messages, why="no privacy")
        planned = replace(begun, of=plan.messages, cap=plan.epsilon)
        ledger = ledger_of(self.folder, self._start.get("ledger"), known)
        if ledger is None:
            return replace(planned, why="its ledger is not in this folder: name it with --ledger")
        try:
            return replace(planned, epsilon=self._epsilon(plan, ledger))
        except VflError as error:
            return replace(planned, why=str(error))

    def _read(self) -> None:
        """Read the complete lines that were added to the log since the last reading."""
        path = self.folder / checkpoint.NAME
        with opened(path, follow=False) as file:
            if file.seek(0, os.SEEK_END) < self._at:
                self._at = self._rounds = self._processes = 0
            file.seek(self._at)
            while (line := file.readline(LONGEST)).endswith(b"\n"):
                self._at += len(line)
                entry = parse_json(line.partition(b" ")[2])
                if "start" in entry:
                    self._start = dict(entry["start"])
                elif "reserved" in entry:
                    self._processes += 1
                    self._n_records = int(entry["reserved"]["n_records"])
                elif "round" in entry:
                    self._rounds = int(entry["round"]) + 1

    def _epsilon(self, plan: Plan, ledger: Path) -> float | None:
        if self._asked != (self._rounds, self._processes) and time.monotonic() >= self._again:
            started, asked = time.monotonic(), (self._rounds, self._processes)
            accountant = choose_accountant(plan.releases, committed=plan.committed)
            accountant.compose_all(charges(ledger, self._start["run"]).items())
            self._spent = accountant.epsilon(plan.problem.delta) if plan.problem.delta is not None else None
            self._asked, self._again = asked, time.monotonic() + REST * (time.monotonic() - started)
        return self._spent


def _locked(path: Path) -> bool:
    """Return True if a process has locked the log. On Linux, ask the kernel's table: trying the lock could block the run."""
    try:
        ending = f":{path.stat().st_ino}"
        with KERNEL.open(encoding="ascii") as table:
            locks = (line.split() for line in table if "FLOCK" in line)
            return any(field.endswith(ending) for lock in locks for field in lock)
    except OSError:
        pass
    try:
        with opened(path, follow=False) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False
