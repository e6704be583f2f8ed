"""A ledger, account or count under two names: a charge under one is never lost under the other, in any order or process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parties.daily_count import DailyCount
from parties.joined.work import AnsweredKeys
from vfl.base.types import Adjacency
from vfl.errors import ConsentRefused, LedgerError
from vfl.privacy.events import Gaussian, ReleaseKey
from vfl.privacy.ledger import DatasetBudget, SqliteLedger

EVENT = Gaussian(Adjacency.REPLACE_ONE, 1e-3, 1.0, 2)
WHOLE = Gaussian(Adjacency.REPLACE_ONE, 1.0, 6.0, 1)
"""Release that costs most of the cap ε = 1, so two do not fit."""
SPEND = """
import sys
from tests.privacy.test_ledger_names import spend
spend(sys.argv[1], sys.argv[2])
"""


def spend(path: str, run: str) -> None:
    """Reserve most of the cap, charge it, and wait with the ledger open; print the outcome."""
    try:
        reservation = DatasetBudget(SqliteLedger(path), "credit").reserve([(WHOLE, 1)], job="j", run=run)
        reservation.charge([(ReleaseKey(0), WHOLE)])
        print("spent", flush=True)
    except Exception as error:  # noqa: BLE001 - the parent reads it
        print(f"{type(error).__name__}: {error}", flush=True)
    sys.stdin.read()


def process(path: Path, run: str, *before: str) -> subprocess.Popen[str]:
    command = [*before, sys.executable, "-c", SPEND, str(path), run]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def outcome(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.readline()


@pytest.fixture
def ledger(tmp_path: Path) -> SqliteLedger:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    ledger = SqliteLedger(tmp_path / "one" / "budget.db")
    ledger.set_cap("credit", epsilon=1.0, delta=1e-9)
    return SqliteLedger(ledger.path)


def spent_twice(running: list[subprocess.Popen[str]]) -> list[str]:
    said = [outcome(one) for one in running]
    for one in running:
        one.kill()
        one.communicate()
    return said


def test_two_processes_do_not_spend_the_cap_under_two_hard_links(ledger: SqliteLedger, tmp_path: Path) -> None:
    other = tmp_path / "two" / "budget.db"
    first = process(ledger.path, "first")
    said = outcome(first)
    assert said == "spent\n"
    os.link(ledger.path, other)  # after the first process opened the file
    second = spent_twice([process(other, "second"), process(ledger.path, "third")])
    first.kill()
    first.communicate()
    assert all(one.startswith("LedgerError") and "hard links" in one for one in second)
    other.unlink()
    assert ledger.show()[0].spent > 0.9


def test_a_charge_under_a_name_is_seen_under_the_next_one(ledger: SqliteLedger, tmp_path: Path) -> None:
    """The file is moved while a process that charged it has it open, which is then killed."""
    other = tmp_path / "two" / "budget.db"
    reservation = DatasetBudget(ledger, "credit").reserve([(EVENT, 9)], job="j", run="first")
    first = process(ledger.path, "other")
    assert outcome(first) == "spent\n"
    ledger.path.rename(other)
    first.kill()
    first.communicate()
    assert SqliteLedger(other).show()[0].spent > 0.9
    with pytest.raises(LedgerError, match=r"moved|there is no ledger|No such file"):
        reservation.charge([(ReleaseKey(1), EVENT)])
    shutil.copy(other, ledger.path)
    with pytest.raises(LedgerError, match="moved or replaced"):
        reservation.charge([(ReleaseKey(1), EVENT)])


def test_a_copy_of_the_file_alone_holds_every_charge(ledger: SqliteLedger, tmp_path: Path) -> None:
    reservation = DatasetBudget(ledger, "credit").reserve([(EVENT, 9)], job="j", run="first")
    reservation.charge([(ReleaseKey(i), EVENT) for i in range(5)])
    copy = SqliteLedger(shutil.copyfile(ledger.path, tmp_path / "copy.db"))
    assert copy.head() == ledger.head()


def test_two_mount_namespaces_do_not_spend_the_cap_twice(ledger: SqliteLedger, tmp_path: Path) -> None:
    """As `docker -v budget.db:/x/budget.db` mounts a file, once beside a process of the host that has it open already."""
    other = tmp_path / "two" / "budget.db"
    other.touch()
    mount = f'mount --bind "{ledger.path}" "{other}" && exec "$@"'
    inside = ("unshare", "-m", "--propagation", "private", "sh", "-c", mount, "sh")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*inside, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("this user cannot mount in a namespace of its own")
    said = spent_twice(
        [process(other, "first", *inside), process(ledger.path, "second"), process(other, "third", *inside)]
    )
    assert said[1] == "spent\n"
    assert all(one.startswith("LedgerError") and "mount its folder" in one for one in (said[0], said[2]))
    assert len(ledger.show()[0].runs) == 1


def test_a_mounted_folder_is_the_same_ledger(ledger: SqliteLedger, tmp_path: Path) -> None:
    mount = f'mount --bind "{ledger.path.parent}" "{tmp_path / "two"}" && exec "$@"'
    inside = ("unshare", "-m", "--propagation", "private", "sh", "-c", mount, "sh")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*inside, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("this user cannot mount in a namespace of its own")
    said = spent_twice([process(tmp_path / "two" / "budget.db", "first", *inside), process(ledger.path, "second")])
    assert sorted(one.partition(":")[0] for one in said) == ["BudgetExceeded", "spent\n"]


def test_counts_and_answers_refuse_a_second_name(tmp_path: Path) -> None:
    count, answered = tmp_path / "bank.predictions", tmp_path / "bank.answered"
    keys = AnsweredKeys(answered, "bank", "run")
    keys.take(ReleaseKey(0), 0)
    counts = DailyCount(count)
    assert counts.take("bank", 1, 2)
    for path in (count, answered):
        os.link(path, f"{path}.other")
    for take in (lambda: counts.take("bank", 1, 2), lambda: DailyCount(Path(f"{count}.other")).take("bank", 1, 2)):
        with pytest.raises(ConsentRefused, match="hard links"):
            take()
    for opened in (keys, AnsweredKeys(Path(f"{answered}.other"), "bank", "run")):
        with pytest.raises(ConsentRefused, match="hard links"):
            opened.take(ReleaseKey(1), 0)


@pytest.mark.parametrize("content", [b"", b"junk" * 999])
def test_a_damaged_count_is_never_started_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bank.predictions"
    path.write_bytes(content)
    with pytest.raises(ConsentRefused, match="cannot be kept"):
        DailyCount(path).take("bank", 1, 2)
    with pytest.raises(ConsentRefused, match="cannot record"):
        AnsweredKeys(path, "bank", "run").take(ReleaseKey(0), 0)
    assert path.read_bytes() == content


def test_a_link_to_a_file_that_is_away_is_never_replaced(ledger: SqliteLedger, tmp_path: Path) -> None:
    """A new ledger in place of the link would start at ε = 0, and stay in use once the disk is mounted again."""
    link, disk = tmp_path / "budget.db", ledger.path.parent
    DatasetBudget(ledger, "credit").reserve([(WHOLE, 1)], job="j", run="first").charge([(ReleaseKey(0), WHOLE)])
    link.symlink_to(ledger.path)
    spent = SqliteLedger(link).show()[0].spent
    away = disk.rename(tmp_path / "away")
    with pytest.raises(LedgerError, match="a link to a file that is not there"):
        SqliteLedger(link).set_cap("credit", epsilon=1.0, delta=1e-9)
    with pytest.raises(ConsentRefused, match="a link to a file that is not there"):
        DailyCount(link).take("bank", 1, 2)
    with pytest.raises(ConsentRefused, match="a link to a file that is not there"):
        AnsweredKeys(link, "bank", "run")
    assert link.is_symlink()
    away.rename(disk)
    assert SqliteLedger(link).show()[0].spent == spent > 0.9


def test_an_older_copy_that_overwrites_the_file_is_refused(ledger: SqliteLedger) -> None:
    older = ledger.path.read_bytes()
    ledger.set_cap("other", epsilon=1.0, delta=1e-9)
    if "user.vfl.head" not in os.listxattr(ledger.path):
        pytest.skip("this file system keeps no extended attributes")
    ledger.path.write_bytes(older)
    for use in (SqliteLedger(ledger.path).verify, SqliteLedger(ledger.path, readonly=True).show):
        with pytest.raises(LedgerError, match="an older copy was restored"):
            use()


def test_a_count_or_list_of_answers_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    """SQLite itself reads zeros where a page is cut, and would find no answer there."""
    for name, take in (
        ("count", lambda path: DailyCount(path).take("bank", 94, 100)),
        ("answered", lambda path: AnsweredKeys(path, "bank", "run").take(ReleaseKey(0), 0)),
    ):
        path = tmp_path / name
        if name == "count":
            DailyCount(path).take("bank", 7, 100)
        else:
            AnsweredKeys(path, "bank", "run").take(ReleaseKey(0), 0, 40)
        content = path.read_bytes()
        for size in range(len(content) - 1, 0, -97):
            cut = tmp_path / f"{name}{size}"
            cut.write_bytes(content[:size])
            with pytest.raises(ConsentRefused, match=r"cannot be kept|cannot record"):
                take(cut)
