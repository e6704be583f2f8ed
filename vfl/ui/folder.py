"""Jobs, runs, tunes and ledgers below a folder, found by the names and first bytes of their files.

A page can only ask for what is found here, by its path relative to the folder: no request names a file. Symbolic links are
neither followed nor listed, so that everything found lies below the folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.launch.run import checkpoint
from vfl.launch.run.folder import MODEL, TUNE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DEPTH, MOST = 4, 2000
"""Levels of folders that are searched, and the largest number of folders."""
SKIPPED = ("node_modules", "site-packages", "__pycache__")
MAGIC = b"SQLite format 3\x00"
TABLE = "[partition"
"""Every job file holds a table whose heading begins so."""


@dataclass(frozen=True, slots=True)
class Found:
    """Paths by their name in the folder, with '/' between its parts; names sort as the pages list them.

    jobs : job files. runs : folders of runs that train or have trained. tunes : folders of unfinished tunes.
    ledgers : files of ledgers, without the runs' own.
    """

    jobs: dict[str, Path] = field(default_factory=dict)
    runs: dict[str, Path] = field(default_factory=dict)
    tunes: dict[str, Path] = field(default_factory=dict)
    ledgers: dict[str, Path] = field(default_factory=dict)


def find(root: Path, ledgers: Sequence[Path] = ()) -> Found:
    """Return everything below `root`. ledgers : files elsewhere, listed under their whole paths."""
    found = Found()
    for number, (folder, files) in enumerate(_folders(root)):
        if number >= MOST:
            break
        name = folder.relative_to(root).as_posix()
        if MODEL in files or checkpoint.NAME in files:
            found.runs[name] = folder
        elif TUNE in files:
            found.tunes[name] = folder
        else:
            for file in files:
                path = folder / file
                if path.suffix == ".toml" and _holds(path, TABLE.encode(), 1 << 20):
                    found.jobs[path.relative_to(root).as_posix()] = path
                elif path.suffix == ".db" and _begins(path, MAGIC):
                    found.ledgers[path.relative_to(root).as_posix()] = path
    found.ledgers.update((str(path), path) for path in ledgers)
    return found


def _folders(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield folders with the names of their regular files, in order. The inside of a run or a tune is not entered."""
    for where, folders, names in os.walk(root):
        folder = Path(where)
        files = sorted(name for name in names if not (folder / name).is_symlink())
        yield folder, files
        inside = {MODEL, checkpoint.NAME, TUNE} & set(files)
        deep = len(folder.relative_to(root).parts) >= DEPTH
        folders[:] = sorted(f for f in folders if not (inside or deep or f.startswith(".") or f in SKIPPED))


def _begins(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


def _holds(path: Path, text: bytes, limit: int) -> bool:
    try:
        with path.open("rb") as file:
            return text in file.read(limit)
    except OSError:
        return False


def ledger_of(run: Path, named: str | None, known: Sequence[Path]) -> Path | None:
    """Return the ledger of a run: its own, or one of the known ones if the run's log names it. No other file is opened."""
    if (own := run / checkpoint.LEDGER).is_file() and not own.is_symlink():
        return own
    return next((path for path in known if named is not None and path.resolve() == Path(named).resolve()), None)
