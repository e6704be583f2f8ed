"""Jobs, runs, tuning runs and ledgers below a folder, recognised by the names and contents of their files.

A request can only name an item that this search found, by the item's path relative to the folder. Symbolic links are neither
followed nor listed, so every item lies below the folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.documents import opened
from vfl.launch.run import checkpoint
from vfl.launch.run.folder import MODEL, TUNE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DEPTH, MOST, MOST_FILES = 4, 2000, 20_000
"""Largest number of levels of the search, of folders to search, and of files to read."""
SKIPPED = ("node_modules", "site-packages", "__pycache__")
MAGIC = b"SQLite format 3\x00"
TABLE = "[partition"
"""Start of a table heading that every job file contains. A file without this text is not a job file."""


@dataclass(frozen=True, slots=True)
class Found:
    """Items below a folder: {name: path} for each kind, in the order in which pages list the items.

    A name is the item's path relative to the folder, with '/' on every system.

    jobs : job files. runs : folders of running and finished runs. tunes : folders of unfinished tuning runs.
    ledgers : files of ledgers, except those inside the folders of runs.
    """

    jobs: dict[str, Path] = field(default_factory=dict)
    runs: dict[str, Path] = field(default_factory=dict)
    tunes: dict[str, Path] = field(default_factory=dict)
    ledgers: dict[str, Path] = field(default_factory=dict)


def find(root: Path, ledgers: Sequence[Path] = ()) -> Found:
    """Return all items below `root`. ledgers : ledger files elsewhere, listed by their whole paths."""
    found, left = Found(), MOST_FILES
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
    """Return True if the first `limit` bytes of a file contain `text`."""
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
