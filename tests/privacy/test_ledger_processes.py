"""Several processes on one ledger: the cap holds, and charges before a kill stay charged."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from vfl.base.types import Adjacency
from vfl.errors import BudgetError, BudgetExceeded, LedgerError
from vfl.privacy import gaussian_dp
from vfl.privacy.calibration import noise_multiplier
from vfl.privacy.events import Gaussian, ReleaseKey
from vfl.privacy.ledger import DatasetBudget, SqliteLedger
from vfl.privacy.ledger.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable

SLOTS = 12
EVENT = Gaussian(Adjacency.REPLACE_ONE, 1.0, noise_multiplier(gaussian_dp.mu_of(1.0, 1e-9), SLOTS), 1)


def fork(action: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            action()
            code = 0
        os._exit(code)
    return pid


def wait(pids: list[int]) -> None:
    """Wait for success; kill a child that hangs, which counts as failure."""
    deadline = time.monotonic() + 120
    codes = []
    for pid in pids:
        done, status = os.waitpid(pid, os.WNOHANG)
        while not done:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
            done, status = os.waitpid(pid, os.WNOHANG)
        codes.append(os.waitstatus_to_exitcode(status))
    assert codes == [0] * len(pids)


@pytest.mark.parametrize("repetition", range(4))
def test_four_processes_together_get_exactly_the_cap(tmp_path, repetition):
    ledger = SqliteLedger(tmp_path / "account.sqlite")
    ledger.set_cap("credit", epsilon=1.0, delta=1e-9)
    gate, release = os.pipe()

    def ask(worker: int) -> None:
        os.close(release)
        os.read(gate, 1)  # returns in all children when the parent closes its end
        refused = 0
        for i in range(SLOTS // 2):
            try:
                reservation = DatasetBudget(ledger, "credit").reserve([(EVENT, 1)], job="j", run=f"{worker}-{i}")
            except BudgetExceeded:
                refused += 1
                continue
            reservation.charge([(ReleaseKey(0), EVENT)])
            reservation.settle()
        (tmp_path / f"refused-{worker}").write_text(str(refused))

    pids = [fork(lambda worker=worker: ask(worker)) for worker in range(4)]
    os.close(gate)
    os.close(release)
    wait(pids)
    ledger.verify()
    (balance,) = ledger.show()
    assert sum(run.releases for run in balance.runs) == len(balance.runs) == SLOTS
    assert sum(int((tmp_path / f"refused-{worker}").read_text()) for worker in range(4)) == 4 * (SLOTS // 2) - SLOTS
    assert 1 - 1e-9 < balance.spent <= 1


def test_processes_that_create_a_ledger_at_once_share_one(tmp_path):
    def make(worker: int) -> None:
        SqliteLedger(tmp_path / "account.sqlite").set_cap(f"data-{worker}", epsilon=1.0, delta=1e-9)

    wait([fork(lambda worker=worker: make(worker)) for worker in range(4)])
    assert {balance.dataset for balance in SqliteLedger(tmp_path / "account.sqlite").show()} == {
        f"data-{i}" for i in range(4)
    }


@pytest.mark.parametrize("repetition", range(4))
def test_a_kill_never_leaves_a_release_uncharged(tmp_path, repetition):
    event = Gaussian(Adjacency.REPLACE_ONE, 1e-6, 1.0, 1)
    ledger = SqliteLedger(tmp_path / "account.sqlite")
    ledger.set_cap("credit", epsilon=1.0, delta=1e-9)
    reservation = DatasetBudget(ledger, "credit").reserve([(event, 100_000)], job="j", run="r")
    drawn, noise = os.pipe()

    def train() -> None:
        for i in range(100_000):
            reservation.charge([(ReleaseKey(i), event)])
            os.write(noise, b".")  # the release: the parent sees it even if the child dies here

    pid = fork(train)
    os.close(noise)
    released = len(os.read(drawn, 1))  # it is running
    time.sleep(random.Random(repetition).uniform(0.0, 0.15))  # noqa: S311
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while chunk := os.read(drawn, 65536):
        released += len(chunk)
    os.close(drawn)
    after = SqliteLedger(ledger.path)
    after.verify()
    charged = DatasetBudget(after, "credit").resume("r", job="j").charged()
    assert {ReleaseKey(i) for i in range(released)} <= charged
    assert len(charged) <= released + 1


def test_a_ledger_in_use_survives_a_fork(tmp_path):
    ledger = SqliteLedger(tmp_path / "account.sqlite")
    ledger.set_cap("credit", epsilon=1.0, delta=1e-9)
    reservation = DatasetBudget(ledger, "credit").reserve([(EVENT, SLOTS)], job="j", run="r")
    reservation.charge([(ReleaseKey(0), EVENT)])
    with ledger.read():  # as another thread may, at the fork
        pid = fork(lambda: reservation.charge([(ReleaseKey(1), EVENT)]))
    wait([pid])
    reservation.charge([(ReleaseKey(2), EVENT)])
    assert len(reservation.charged()) == 3
    ledger.verify()


def test_threads_share_an_instance(tmp_path):
    ledger = SqliteLedger(tmp_path / "account.sqlite")
    ledger.set_cap("credit", epsilon=1.0, delta=1e-9)
    reservation = DatasetBudget(ledger, "credit").reserve([(EVENT, SLOTS)], job="j", run="r")
    refused = []

    def charge(part: int) -> None:
        for i in range(5):
            try:
                reservation.charge([(ReleaseKey(i, part), EVENT)])
            except BudgetExceeded:
                refused.append(part)

    threads = [threading.Thread(target=charge, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 20 - SLOTS
    assert reservation.settle().releases == SLOTS


def test_two_concurrent_resumes_of_one_run_leave_one(tmp_path):
    ledger = SqliteLedger(tmp_path / "account.sqlite")
    ledger.set_cap("credit", epsilon=1.0, delta=1e-9)
    DatasetBudget(ledger, "credit").reserve([(EVENT, SLOTS)], job="j", run="r")
    holders = [DatasetBudget(SqliteLedger(ledger.path), "credit").resume("r", job="j") for _ in range(2)]
    with pytest.raises(BudgetError, match="resumed by another"):
        holders[0].charge([(ReleaseKey(0), EVENT)])
    holders[1].charge([(ReleaseKey(0), EVENT)])


def test_a_ledger_held_for_too_long_is_an_error(tmp_path):
    ledger = SqliteLedger(tmp_path / "account.sqlite", timeout=0.05)
    ledger.set_cap("credit", epsilon=1.0, delta=1e-9)
    reservation = DatasetBudget(ledger, "credit").reserve([(EVENT, SLOTS)], job="j", run="r")
    with SqliteStore(ledger.path).writing(), pytest.raises(LedgerError, match="another process held it"):
        reservation.charge([(ReleaseKey(0), EVENT)])
    assert reservation.charged() == frozenset()
    reservation.charge([(ReleaseKey(0), EVENT)])
