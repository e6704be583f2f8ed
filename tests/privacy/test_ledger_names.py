"""A ledger under two names, or without its write-ahead log: refused, in every process, before anything is charged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parties.daily_count import DailyCount
from vfl.errors import ConsentRefused, LedgerError
from vfl.privacy.events import Gaussian, ReleaseKey
from vfl.privacy.ledger import DatasetBook, SqliteLedger
from vfl.types import Adjacency

EVENT = Gaussian(Adjacency.REPLACE_ONE, 1.0, 50.0, 1)
USE = """
import sys
from vfl.privacy.ledger import DatasetBook, SqliteLedger
from vfl.privacy.events import Gaussian, ReleaseKey
from vfl.types import Adjacency
event = Gaussian(Adjacency.REPLACE_ONE, 1.0, 50.0, 1)
ledger = SqliteLedger(sys.argv[1])
DatasetBook(ledger, "d").reserve([(event, 1)], job="j", run=sys.argv[2]).charge([(ReleaseKey(0), event)])
"""


def used(path: Path, run: str, *before: str) -> str:
    """Charge a release to the ledger in another process; return the last line that the process prints about an error."""
    done = subprocess.run([*before, sys.executable, "-c", USE, str(path), run], capture_output=True, text=True)
    return done.stderr.strip().rpartition("\n")[2]


@pytest.fixture
def ledger(tmp_path: Path) -> SqliteLedger:
    """A ledger that this process keeps open, with its newest entries in the write-ahead log alone."""
    made = SqliteLedger(tmp_path / "home" / "budget.db")
    made.path.parent.mkdir()
    made.set_cap("d", epsilon=1.0, delta=1e-6)
    DatasetBook(made, "d").reserve([(EVENT, 5)], job="j", run="first").charge(
        [(ReleaseKey(k), EVENT) for k in range(3)]
    )
    return made


def test_a_hard_link_is_refused_under_both_names_until_one_is_gone(ledger: SqliteLedger, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    assert used(ledger.path, "a") == ""
    os.link(ledger.path, other)
    for path in (ledger.path, other):
        assert "hard links" in used(path, "b")
    for use in (ledger.head, ledger.verify, lambda: DatasetBook(ledger, "d").resume("first", job="j")):
        with pytest.raises(LedgerError, match="hard links"):
            use()
    with pytest.raises(LedgerError, match="hard links"):
        SqliteLedger(other, readonly=True).verify()
    other.unlink()
    assert used(ledger.path, "b") == ""
    assert len(ledger.show()[0].runs) == 3


def test_a_file_that_is_a_mount_point_is_refused(ledger: SqliteLedger, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    other.touch()
    inside = ("unshare", "-m", "sh", "-c", f'mount --bind "{ledger.path}" "{other}" && exec "$@"', "sh")
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    assert "mount its folder" in used(other, "a", *inside)
    folder = tmp_path / "folder"
    folder.mkdir()
    inside = ("unshare", "-m", "sh", "-c", f'mount --bind "{ledger.path.parent}" "{folder}" && exec "$@"', "sh")
    assert used(folder / ledger.path.name, "b", *inside) == ""
    assert [run.run for run in ledger.show()[0].runs] == ["first", "b"]


def test_a_ledger_that_moves_while_it_is_open_is_refused(ledger: SqliteLedger, tmp_path: Path) -> None:
    moved = ledger.path.rename(tmp_path / "moved.db")
    with pytest.raises((LedgerError, FileNotFoundError)):
        ledger.head()
    shutil.copy(moved, ledger.path)
    with pytest.raises(LedgerError, match="moved or replaced"):
        ledger.head()


@pytest.fixture
def killed(ledger: SqliteLedger, tmp_path: Path) -> Path:
    """A ledger as a killed process leaves it: the newest entries are in its write-ahead log."""
    path = tmp_path / "killed" / "budget.db"
    path.parent.mkdir()
    for end in ("", "-wal"):
        shutil.copy2(f"{ledger.path}{end}", f"{path}{end}")
    if "user.vfl.head" not in os.listxattr(path):
        pytest.skip("this file system keeps no extended attributes")
    return path


def test_the_log_of_a_killed_process_is_read(killed: Path, ledger: SqliteLedger) -> None:
    assert SqliteLedger(killed).verify() == ledger.head()


@pytest.mark.parametrize("damage", ["left behind", "cut", "flipped", "zeroed"])
def test_a_write_ahead_log_that_lost_entries_is_no_smaller_spending(killed: Path, damage: str) -> None:
    log, rng = Path(f"{killed}-wal"), np.random.default_rng(1)
    content = bytearray(log.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        for _ in range(20):
            content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    elif damage == "zeroed":
        content[1000:5000] = bytes(4000)
    log.unlink() if damage == "left behind" else log.write_bytes(content)
    ledger = SqliteLedger(killed)
    for use in (ledger.show, ledger.verify, lambda: ledger.set_cap("e", epsilon=1.0, delta=1e-6)):
        with pytest.raises(LedgerError, match=r"are missing|damaged|could not be used"):
            use()


def test_a_count_of_predictions_under_two_names_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bank.count"
    assert DailyCount(path).take("bank", 1, 10)
    os.link(path, tmp_path / "other.count")
    for each in (path, tmp_path / "other.count"):
        with pytest.raises(ConsentRefused, match="names"):
            DailyCount(each).take("bank", 1, 10)
