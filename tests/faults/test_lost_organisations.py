"""Participants of a federation that are killed, hang, or lose the network: nothing is released that is not charged."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from coordinator.rounds import Lost, Round
from tests.coordinator.organisations import POLICY, Joined, federation
from tests.faults.proxy import Proxy
from tests.ports import free_address
from vfl.errors import PartyLost
from vfl.job import file as jobfile
from vfl.job.site import Faults
from vfl.launch.sites.open_site import Organisations
from vfl.launch.train import resume
from vfl.privacy.ledger import SqliteLedger

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[2]
PARTITION = vfl.FeaturePartition({"bank": ["a0", "a1", "a2"], "telco": ["b0", "b1"]}, label=("telco", "y"))
BOUNDS = dict.fromkeys(("a0", "a1", "a2", "b0", "b1"), (-1.0, 2.0))
FAULTS = Faults(wait_timeout_s=120.0, answer_timeout_s=120.0)
"""Limits that only a participant that is gone exceeds, on a slow machine too."""
HANGS = Faults(wait_timeout_s=120.0, answer_timeout_s=6.0)
"""Far above the time of an answer, and far below that after which the stream itself breaks: twice KEEPALIVE_SECONDS."""


def table(n: int = 300) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    X = rng.uniform(-1.5, 2.5, (n, 5))
    return dict(zip(BOUNDS, X.T, strict=True)) | {"y": (X[:, 0] - X[:, 3] + rng.logistic(size=n) > 0).astype(int)}


def job(*, seeded: bool = True, passes: int = 8, **changes: Any) -> vfl.Job:
    return vfl.Job(
        **{
            "partition": PARTITION,
            "bounds": BOUNDS,
            "penalty": vfl.L2(1e-2),
            "privacy": vfl.Privacy(epsilon=2.0, noise=vfl.SeededNoise(3) if seeded else None),
            "solver": vfl.SkGD(passes=passes, details=vfl.solvers.Details(message="block")),
        }
        | changes
    )


class Members:
    """Processes of participants; a party's process can be killed and started again."""

    def __init__(self, joined: Joined, spec: vfl.Job) -> None:
        self.joined, self.folder = joined, joined.folder
        self.running: dict[str, subprocess.Popen[str]] = {}
        whole = table()
        for party in PARTITION.parties:
            columns = {c: whole[c] for c in PARTITION.wanted(party)}
            rows = "\n".join(",".join(repr(v.item()) for v in row) for row in zip(*columns.values(), strict=True))
            (self.folder / f"{party}.csv").write_text(f"{','.join(columns)}\n{rows}\n")
            joined.policy(party, POLICY.replace('["trusted"]', '["trusted", "secure"]'))
        jobfile.write(spec, self.folder / "job.toml")

    def start(self, name: str, *argv: str) -> subprocess.Popen[str]:
        said = (self.folder / f"{name}.out").open("a")
        self.running[name] = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.member", *argv],
            stdout=said,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_NUM_THREADS": "1"},
        )
        said.close()
        return self.running[name]

    def party(self, name: str) -> None:
        self.start(name, "party", str(self.folder), name)

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running[name].wait()

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text()

    def wait_for(self, name: str, text: str, seconds: float = 120.0) -> None:
        until = time.monotonic() + seconds
        while text not in self.said(name):
            assert time.monotonic() < until, self.said(name)
            time.sleep(0.02)

    def close(self) -> None:
        for process in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


@contextlib.contextmanager
def members(folder: Path, spec: vfl.Job) -> Iterator[Members]:
    dealer = "notary" if spec.secure is not None and spec.secure.dealer == "separate" else None
    with federation(folder, faults=FAULTS, dealer=dealer) as joined:
        made = Members(joined, spec)
        try:
            for name in joined.federation.joining:
                made.party(name)
            yield made
        finally:
            made.close()


def charged(folder: Path, account: str) -> int:
    """Return the number of charges of an account."""
    with SqliteLedger(folder, readonly=True).read() as state:
        return sum(run.account.count for run in state.scopes[account].runs.values())


def answered(folder: Path) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(folder)) as file:
        return file.execute("SELECT round, attempt, part FROM answered ORDER BY round, attempt").fetchall()


@pytest.mark.parametrize("party", PARTITION.parties)
@pytest.mark.parametrize("at", [5, *(pytest.param(k, marks=pytest.mark.slow) for k in range(25) if k != 5)])
def test_a_party_that_is_killed_comes_back_and_the_model_is_the_same(tmp_path, at: int, party: str) -> None:
    spec = job()
    with members(tmp_path, spec) as made:
        lost = []

        def watch(event: Any) -> None:
            if isinstance(event, Lost):
                lost.append(event)
            if isinstance(event, Round) and event.number == at:
                made.kill(party)
                made.party(party)

        there = vfl.train(spec, at=made.joined.place, watch=watch)
    here = vfl.train(spec, table(), at="inprocess")
    assert there.coef_.tobytes() == here.coef_.tobytes()
    assert {event.party for event in lost} == {party}


def test_true_noise_is_charged_again_after_a_loss(tmp_path) -> None:
    spec = job(seeded=False)
    with members(tmp_path, spec) as made:
        lost = []

        def watch(event: Any) -> None:
            if isinstance(event, Lost):
                lost.append(event)
            if isinstance(event, Round) and event.number == 6:
                made.kill("bank")
                made.party("bank")

        result = vfl.train(spec, at=made.joined.place, watch=watch, output=tmp_path / "out")
        assert lost
        assert result.certificate.private
        keys = answered(tmp_path / "bank.policy.answered")
        assert len(keys) == len(set(keys))
        assert any(attempt > 0 for _, attempt, _ in keys)
        assert made.joined.folder.joinpath("bank.policy.ledger").exists()


@pytest.mark.parametrize("seeded", [True, False])
def test_a_coordinator_that_is_killed_is_resumed(tmp_path, seeded: bool) -> None:
    spec = job(seeded=seeded, passes=80)  # so that the kill, which follows the line, is within the run
    with members(tmp_path, spec) as made:
        made.start("hub", "coordinator", str(tmp_path), "new")
        made.wait_for("hub", "Round 6\n")
        made.kill("hub")
        result = resume(tmp_path / "run", at=made.joined.place)
        keys = None if seeded else answered(tmp_path / "bank.policy.answered")
    if seeded:
        here = vfl.train(spec, table(), at="inprocess")
        assert result.coef_.tobytes() == here.coef_.tobytes()
    else:
        assert len(keys) == len(set(keys))
        assert result.certificate.private


def test_a_party_that_hangs_is_lost_and_heard_again(tmp_path) -> None:
    spec = job()
    with members(tmp_path, spec) as made:
        lost = []

        def watch(event: Any) -> None:
            if isinstance(event, Lost):
                lost.append(event)
                made.running["bank"].send_signal(signal.SIGCONT)
            if isinstance(event, Round) and event.number == 4:
                made.running["bank"].send_signal(signal.SIGSTOP)

        place = Organisations(made.joined.federation, made.joined.identities["hub"], HANGS)
        there = vfl.train(spec, at=place, watch=watch)
    assert [event.party for event in lost] == ["bank"]
    assert "did not answer within 6 s" in lost[0].why
    assert there.coef_.tobytes() == vfl.train(spec, table(), at="inprocess").coef_.tobytes()


def test_a_party_that_stays_away_is_left_out_or_ends_the_run(tmp_path) -> None:
    with members(tmp_path, job()) as made:

        def watch(event: Any) -> None:
            if isinstance(event, Round) and event.number == 4:
                made.kill("bank")

        joined = made.joined
        left = Organisations(
            joined.federation, joined.identities["hub"], Faults(on_party_lost="skip", wait_timeout_s=1.0)
        )
        result = vfl.train(job(), at=left, watch=watch)
        assert any("bank" in flag for flag in result.certificate.flags)
        made.party("bank")
        ended = Organisations(joined.federation, joined.identities["hub"], Faults(on_party_lost="abort"))
        with pytest.raises(PartyLost, match="'bank'"):
            vfl.train(job(), at=ended, watch=watch)


@pytest.mark.parametrize("how", ["cut", "altered"])
def test_a_connection_that_breaks_is_opened_again(tmp_path, how: str) -> None:
    """The party keeps its columns, and its process goes on. A byte that a proxy alters breaks the connection: TLS sees it.

    A party that connects again between two calls is not lost, so a cut lasts until a loss is found.
    """
    spec, opened = job(), []
    listening = free_address()
    with (
        federation(tmp_path, faults=FAULTS) as joined,
        Proxy(joined.federation.address, listening) as proxy,
    ):
        whole = table()
        for party in PARTITION.parties:
            source = {c: whole[c] for c in PARTITION.wanted(party)}
            joined.start(party, lambda party=party, source=source: opened.append(party) or source)
        lost = []

        def watch(event: Any) -> None:
            if isinstance(event, Lost):
                lost.append(event)
                proxy.open()
            if isinstance(event, Round) and event.number == 5:
                proxy.close() if how == "cut" else proxy.alter()

        place = Organisations(
            joined.federation, joined.identities["hub"], FAULTS, gather_seconds=120.0, listen=listening
        )
        there = vfl.train(spec, at=place, watch=watch)
    assert lost
    assert sorted(opened) == ["bank", "telco"]
    assert there.coef_.tobytes() == vfl.train(spec, table(), at="inprocess").coef_.tobytes()


def test_nobody_who_watches_the_connection_reads_it(tmp_path) -> None:
    spec, listening = job(passes=2), free_address()
    with (
        federation(tmp_path, faults=FAULTS) as joined,
        Proxy(joined.federation.address, listening) as proxy,
    ):
        whole = table()
        for party in PARTITION.parties:
            joined.start(party, {c: whole[c] for c in PARTITION.wanted(party)})
        place = Organisations(
            joined.federation, joined.identities["hub"], FAULTS, gather_seconds=120.0, listen=listening
        )
        vfl.train(spec, at=place)
    assert proxy.seen
    assert hashlib.sha256(proxy.seen).digest()  # bytes did pass
    for secret in (b"prox_step", b"gaussian", spec.digest.encode(), b"bounds"):
        assert secret not in proxy.seen
