"""A party ledger: entries precede noise, whole jobs count under the owner's cap, chain heads reveal old copies."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sqlite3
import stat
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from coordinator.charging.budget import Budget, Reserved
from coordinator.coordinator import Outcome
from coordinator.rounds import Log, Round
from parties.consent import Policy
from parties.ledger import OTHERS, PartyLedger, account_of
from parties.loading import load
from vfl.base.problem import Block
from vfl.errors import BudgetError, BudgetExceeded, ConsentRefused, LedgerError, PrivacyError
from vfl.launch.sites import inprocess
from vfl.launch.sites.open_site import Arrangement
from vfl.launch.train import resume
from vfl.network.kinds import from_plain, to_plain
from vfl.network.messages import Notice, Phase
from vfl.planning import plan as make_plan
from vfl.privacy.accountants import GaussianAccountant
from vfl.privacy.events import PoissonSubsampledGaussian, ReleaseKey
from vfl.privacy.geometry import Clip
from vfl.privacy.ledger import Head, SqliteLedger
from vfl.privacy.ledger.dataset import DatasetReservation
from vfl.privacy.noise import CryptographicNoise
from vfl.queries import Backward, Descend, Fold, Forward, Paid, Query, RecordCap, Records
from vfl.queries.kinds import encode
from vfl.solvers.gcd import GCD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.coordinator.shared_parties import SharedParties

N = 60
PARTITION = vfl.FeaturePartition({"bank": ["a0", "a1", "a2"], "telco": ["b0", "b1"]}, label=("telco", "y"))
BOUNDS = dict.fromkeys(("a0", "a1", "a2", "b0", "b1"), (-1.0, 1.0))
DELTA = 1e-6
FOLDS = ((0, 1), (1, 1), (2, 1), (2, 1), (0, 2), (1, 3), (2, 3))
"""(number, pass): a whole pass, its last batch again, the first of another, then one whose first was never seen."""


def job(epsilon: float = 1.0, *, dataset: str | None = "credit", **privacy: Any) -> vfl.Job:
    return vfl.Job(
        partition=PARTITION,
        bounds=BOUNDS,
        privacy=vfl.Privacy(epsilon=epsilon, delta=DELTA, **privacy),
        solver=vfl.SkGD(passes=3, block_size=1, clip="coordinate"),
        dataset=dataset,
    )


def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {c: rng.uniform(-1, 1, N) for c in BOUNDS} | {"y": rng.integers(0, 2, N)}


class Place:
    """Make a folder with a ledger and with policies and books of both parties."""

    def __init__(self, folder: Path, *, total: float = 4.0) -> None:
        self.ledger = folder / "ledger.db"
        self.party_ledgers = {party: folder / f"{party}.ledger" for party in PARTITION.parties}
        self.policies = {party: folder / f"{party}.toml" for party in PARTITION.parties}
        for party in PARTITION.parties:
            self.allow(party, total)
        SqliteLedger(self.ledger).set_cap("credit", epsilon=100.0, delta=DELTA)

    def allow(self, party: str, total: float, more: str = "") -> None:
        self.policies[party].write_text(
            f'format = 1\njobs = ["*"]\nallow_non_private = true\n{more}[total]\nepsilon = {total}\ndelta = {DELTA}\n'
        )

    def events(self, spec: vfl.Job, run: str = "r1", **options: Any) -> Iterator[Any]:
        sources = {q: {c: table()[c] for c in PARTITION.wanted(q)} for q in PARTITION.parties}
        budget = Budget(run, str(self.ledger), **options)
        policies = {party: str(path) for party, path in self.policies.items()}
        yield from inprocess.run(
            spec, sources, budget, Log(), site=vfl.InProcess(), arrangement=Arrangement(policies=policies)
        )

    def run(self, spec: vfl.Job, run: str = "r1") -> Outcome:
        *_, outcome = self.events(spec, run)
        assert isinstance(outcome, Outcome)
        return outcome

    def balance(self, party: str) -> Any:
        (balance,) = SqliteLedger(self.party_ledgers[party]).show()
        return balance


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def recorded(path: Path) -> list[tuple[ReleaseKey, str]]:
    entries = json.loads(SqliteLedger(path).export())["entries"]
    return [
        (ReleaseKey(e["round"], e["part"], e["attempt"]), e["body"]["type"]) for e in entries if e["kind"] == "charge"
    ]


class TestRecording:
    def test_every_draw_is_in_the_owners_book_before_it_is_made(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drawn: dict[str, list[ReleaseKey]] = {party: [] for party in PARTITION.parties}
        stream = CryptographicNoise.stream

        def look(source: CryptographicNoise, key: ReleaseKey) -> Any:
            owners = [q for q in PARTITION.parties if key in {k for k, _ in recorded(place.party_ledgers[q])}]
            assert owners
            for party in owners:
                drawn[party].append(key)
            return stream(source, key)

        monkeypatch.setattr(CryptographicNoise, "stream", look)
        place.run(job())
        for party in PARTITION.parties:
            *own, last = (key for key, _ in recorded(place.party_ledgers[party]))
            assert last == OTHERS
            assert set(drawn[party]) == set(own)
            assert len(own) == 10  # moments, and three passes over three coordinates (telco has the intercept)

    def test_a_visit_is_one_transaction(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        writes: list[Any] = []
        monkeypatch.setattr(SqliteLedger, "write", _counted(SqliteLedger.write, writes, place.party_ledgers["bank"]))
        events = list(place.events(job()))
        visits = [r for r in events if isinstance(r, Round) and "bank" in r.parties and r.events]
        assert 2 <= len(visits) < len(recorded(place.party_ledgers["bank"])) - 1
        # cap, reserve, note; the visits; the others' releases, settle, note
        assert len(writes) == 3 + len(visits) + 3

    def test_the_whole_job_counts(self, place: Place) -> None:
        """Through the margins, every party's records enter every release."""
        outcome = place.run(job())
        for party in PARTITION.parties:
            (run,) = place.balance(party).runs
            assert run.status == "settled"
            assert run.job == job().digest
            assert run.spent == pytest.approx(run.reserved, rel=1e-12)
            assert run.spent == pytest.approx(outcome.plan.epsilon, rel=1e-9)
            whole = SqliteLedger(place.party_ledgers[party]).replay(account_of(party), GaussianAccountant())
            assert whole.epsilon(DELTA) == pytest.approx(outcome.plan.epsilon, rel=1e-9)
            SqliteLedger(place.party_ledgers[party]).verify()

    def test_selections_are_added_up_as_in_the_ledger(self, place: Place) -> None:
        """A mix of Gaussian and bounded-range events is counted in ρ, and so is the rest of the reservation."""
        spec = dataclasses.replace(job(), solver=GCD(rounds=6))
        place.run(spec)
        for party in PARTITION.parties:
            assert place.balance(party).accounting == "zcdp"
            (run,) = place.balance(party).runs
            assert run.status == "settled"
            assert run.spent == pytest.approx(run.reserved, rel=1e-12)
            assert {"bounded-range", "gaussian"} <= {kind for _, kind in recorded(place.party_ledgers[party])}

    def test_the_runs_certificate_and_files_name_the_books(self, place: Place) -> None:
        place.policies.pop("telco")
        outcome = place.run(job())
        assert outcome.party_ledgers == {"bank": SqliteLedger(place.party_ledgers["bank"]).head()}
        assert not place.party_ledgers["telco"].exists()

    def test_books_do_not_change_the_model(self, place: Place) -> None:
        spec = job(noise=vfl.SeededNoise(5), dataset=None)
        there = place.run(spec, "with")
        place.policies.clear()
        here = place.run(spec, "without")
        assert here.party_ledgers == {}
        assert here.w.tobytes() == there.w.tobytes()

    def test_on_ray(self, place: Place, parties_on_ray: SharedParties) -> None:
        spec = job(noise=vfl.SeededNoise(5), dataset=None)
        here = vfl.train(spec, vfl.Source(table(), policy=place.policies), at="inprocess")
        there = parties_on_ray.train(spec, table(), place.policies)
        assert here.w.tobytes() == there.w.tobytes()
        for party in PARTITION.parties:
            first, second = place.balance(party).runs
            assert (first.releases, first.status) == (second.releases, second.status) == (11, "settled")


class TestCap:
    def test_jobs_together_stay_under_the_total(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        place.allow("telco", 2.0)
        place.run(job(1.5), "r1")
        monkeypatch.setattr(CryptographicNoise, "stream", _never)
        late = dataclasses.replace(job(), privacy=vfl.Privacy(epsilon=1.2))  # δ = 1/n²: its cost waits for n
        with pytest.raises(ConsentRefused) as raised:
            place.run(late, "r2")
        said = str(raised.value)
        assert said.startswith(
            "party 'telco' refuses job 'job' by its policy's [total]: its ledger has ε = 1.5 of ε = 2"
        )
        assert "the job asks for ε = " in said
        # Its reservation is free again, in the ledger and in the book that had agreed.
        (ledger,) = SqliteLedger(place.ledger).show()
        assert [run.status for run in ledger.runs] == ["settled", "refunded"]
        assert [run.status for run in place.balance("bank").runs] == ["settled", "refunded"]
        assert [run.status for run in place.balance("telco").runs] == ["settled"]

    def test_a_full_book_refuses_before_records_are_aligned(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec = dataclasses.replace(job(1.6), id="id", dataset=None)
        data = {q: {c: table()[c] for c in PARTITION.wanted(q)} | {"id": range(N)} for q in PARTITION.parties}
        asked = {party: vfl.Source(data[party], policy=place.policies[party]) for party in data}
        place.allow("telco", 1.5)
        monkeypatch.setattr("parties.services.aligning.open_for", _never)
        for begin in (vfl.align, vfl.train):
            with pytest.raises(ConsentRefused, match=r"'telco' refuses job 'job' by its policy's \[total\]"):
                begin(spec, asked, at=vfl.InProcess())

    def test_a_run_that_reserved_goes_on_under_a_full_book(self, place: Place) -> None:
        place.allow("telco", 1.5)
        begun = place.events(job(1.5))
        next(event for event in begun if isinstance(event, Reserved))
        begun.close()
        *_, outcome = place.events(job(1.5), resumed=True)
        assert isinstance(outcome, Outcome)

    def test_delta_left_open_is_checked_once_n_is_known(self, place: Place) -> None:
        place.allow("bank", 4.0, "[job]\nepsilon = 1.0\ndelta = 1e-5\n")
        spec = dataclasses.replace(job(), privacy=vfl.Privacy(epsilon=1.0), dataset=None)
        with pytest.raises(ConsentRefused, match=r"\[job\]: it asks for delta = 0\.0002778"):
            place.run(spec)

    def test_the_owner_may_change_the_cap_and_the_chain_records_it(self, place: Place) -> None:
        place.run(job(1.5), "r1")
        place.allow("bank", 1.0)
        with pytest.raises(ConsentRefused, match=r"\[total\]: more than"):
            place.run(job(0.1), "r2")
        place.allow("bank", 5.0)
        place.run(job(1.5), "r3")
        assert place.balance("bank").epsilon == 5.0
        kinds = [
            line.split('"')[3]
            for line in SqliteLedger(place.party_ledgers["bank"]).export().splitlines()
            if '"kind"' in line
        ]
        assert kinds.count("cap") == 2

    def test_a_run_that_never_closes_keeps_its_reservation(self, place: Place) -> None:
        events = place.events(job(1.5))
        next(event for event in events if isinstance(event, Round) and event.kind == "Descend")
        events.close()
        (run,) = place.balance("bank").runs
        assert run.status == "open"
        place.allow("bank", 2.0)
        with pytest.raises(ConsentRefused, match=r"\[total\]"):
            place.run(job(1.5), "r2")


def test_a_book_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    """The umask of the owner's process does not decide that. SQLite gives its other files the mode of the book."""
    place = Place(tmp_path)
    before = os.umask(0)
    try:
        for _ in place.events(job()):
            files = [path for path in tmp_path.iterdir() if ".ledger" in path.name]
            assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    finally:
        os.umask(before)
    assert {path.name for path in files} >= {"bank.ledger", "telco.ledger"}


def test_the_same_head_is_noted_once(tmp_path: Path) -> None:
    """A coordinator that repeats a notice does not lengthen the book."""
    place = Place(tmp_path)
    list(place.events(job()))
    book = PartyLedger(Policy.read(place.policies["bank"]), job(), "bank")
    head = Head(1, "0" * 64)
    lengths = []
    for _ in range(3):
        book.hear(Notice(Phase.OPEN, "r2", "credit", head), N)
        lengths.append(SqliteLedger(place.party_ledgers["bank"]).head().seq)
    assert lengths[1] == lengths[2] - 1  # the entry of the resume


class TestReleases:
    """The party itself refuses these queries, whatever the coordinator does."""

    @pytest.fixture
    def party(self, place: Place) -> Any:
        source = {c: table()[c] for c in PARTITION.wanted("bank")}
        party = load(job().for_party("bank"), source, str(place.policies["bank"]))
        party.hear(Notice(Phase.OPEN, "r1", "credit"))
        return party

    def visit(self, **changed: Any) -> tuple[Descend, Records]:
        schedule = _schedule(job())
        query = next(q for q in schedule if isinstance(q, Descend) and "bank" in q.steps).shares()["bank"]
        if changed:
            first, *rest = query.steps["bank"]
            query = dataclasses.replace(query, steps={"bank": (dataclasses.replace(first, **changed), *rest)})
        return query, Records(margins=np.zeros(N), labels=np.ones(N))

    def test_a_repeated_release(self, party: Any) -> None:
        party.answer(*self.visit(), ReleaseKey(1))
        with pytest.raises(ConsentRefused, match="made the release of round 1"):
            party.answer(*self.visit(), ReleaseKey(1))
        party.answer(*self.visit(), ReleaseKey(1, attempt=1))

    def test_a_restarted_party_remembers(self, party: Any, place: Place) -> None:
        party.answer(*self.visit(), ReleaseKey(1))
        source = {c: table()[c] for c in PARTITION.wanted("bank")}
        again = load(job().for_party("bank"), source, str(place.policies["bank"]))
        again.hear(Notice(Phase.OPEN, "r1", "credit"))
        with pytest.raises(ConsentRefused, match="before"):
            again.answer(*self.visit(), ReleaseKey(1))
        with pytest.raises(BudgetError, match="resumed by another process"):  # the first one was superseded
            party.answer(*self.visit(), ReleaseKey(2))

    def test_killed_between_the_last_charge_and_settling(
        self, party: Any, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def killed(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        party.answer(*self.visit(), ReleaseKey(1))
        with monkeypatch.context() as patched:
            patched.setattr(DatasetReservation, "settle", killed)
            with pytest.raises(KeyboardInterrupt):
                party.hear(Notice(Phase.CLOSE, "r1", "credit"))
        spent = place.balance("bank").spent
        again = load(
            job().for_party("bank"), {c: table()[c] for c in PARTITION.wanted("bank")}, str(place.policies["bank"])
        )
        again.hear(Notice(Phase.OPEN, "r1", "credit"))
        again.hear(Notice(Phase.CLOSE, "r1", "credit"))
        (run,) = place.balance("bank").runs
        assert run.status == "settled"
        assert place.balance("bank").spent == spent

    def test_a_release_beyond_the_plan(self, party: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(1, 7):  # three steps each; the plan has 18 of them, and the moments, which cost less than 3
            party.answer(*self.visit(), ReleaseKey(number))
        monkeypatch.setattr(CryptographicNoise, "stream", _never)
        with pytest.raises(ConsentRefused, match="beyond the plan") as raised:
            party.answer(*self.visit(), ReleaseKey(7))
        assert not isinstance(raised.value, BudgetExceeded)  # the schedule treats it as the end of its own budget

    def test_a_release_without_noise(self, party: Any) -> None:
        with pytest.raises(PrivacyError, match=r"without noise .Descend."):
            party.answer(*self.visit(event=None), ReleaseKey(1))

    def test_noise_for_a_smaller_sensitivity(self, party: Any) -> None:
        event = self.visit()[0].steps["bank"][0].event
        smaller = dataclasses.replace(event, sensitivity=event.sensitivity / 2, sigma=event.sigma / 2)
        with pytest.raises(PrivacyError, match="does not cover"):
            party.answer(*self.visit(event=smaller), ReleaseKey(1))

    def test_an_unannounced_run(self, place: Place) -> None:
        source = {c: table()[c] for c in PARTITION.wanted("bank")}
        party = load(job().for_party("bank"), source, str(place.policies["bank"]))
        with pytest.raises(ConsentRefused, match="was not announced"):
            party.answer(*self.visit(), ReleaseKey(1))

    def test_queries_without_releases_need_no_entry(self, party: Any, place: Place) -> None:
        before = SqliteLedger(place.party_ledgers["bank"]).head()
        block = self.visit()[0].steps["bank"][0].block
        party.answer(Forward({"bank": (block, np.ones(block.size))}), Records(), ReleaseKey(1))
        assert SqliteLedger(place.party_ledgers["bank"]).head() == before

    def test_a_pass_over_disjoint_batches_is_one_entry(self, party: Any, place: Place) -> None:
        """A batch that is not the next of its pass pays for itself."""
        step = self.visit()[0].steps["bank"][0]

        def ask(number: int, fold: Fold) -> int:
            parts = (self.visit()[0].weighting, (step.block,), (step.centre,), (step.scale,), step.clip, step.event)
            party.answer(Backward(*parts, fold=fold), Records(weights=np.ones(N)), ReleaseKey(number))
            return len(recorded(place.party_ledgers["bank"]))

        counts = [ask(k, Fold(fold, 3, (seed,))) for k, (fold, seed) in enumerate(FOLDS, 1)]
        assert counts == [1, 1, 1, 2, 3, 4, 4]

    def test_a_batch_does_not_rest_on_a_charge_that_was_refused(self, party: Any, place: Place) -> None:
        step = self.visit()[0].steps["bank"][0]
        dear = dataclasses.replace(step.event, sigma=step.event.sigma / 1e3)
        for number in range(2):
            fold = Fold(number, 3, (1,))
            parts = (self.visit()[0].weighting, (step.block,), (step.centre,), (step.scale,), step.clip, dear)
            with pytest.raises(ConsentRefused, match="beyond the plan"):
                party.answer(Backward(*parts, fold=fold), Records(weights=np.ones(N)), ReleaseKey(number))
        assert recorded(place.party_ledgers["bank"]) == []

    @pytest.mark.parametrize("fold", [None, Fold(0, 3, (1,))])
    @pytest.mark.parametrize("sampled", [True, False])
    @pytest.mark.parametrize("sender", ["here", "message"])
    def test_no_noise_under_a_cap_that_nothing_pays_for(
        self, party: Any, place: Place, sampled: bool, fold: Fold | None, sender: str
    ) -> None:
        """The party answers no such query, as an object or as a message, whatever its event is."""
        size = party.n_coordinates
        block, zeros, ones, clip = Block(0, "bank", 0, size, 0), np.zeros(size), np.ones(size), Clip(1.0, size)
        event: Any = clip.event(1e-9)
        cap, r = RecordCap(1.0, {"bank": (block, zeros, ones)}), Records(weights=np.ones(N))
        tiny = PoissonSubsampledGaussian(event.adjacency, event.sensitivity, event.sigma, 1.0) if sampled else event
        parts = self.visit()[0].weighting, (block,), (zeros,), (ones,), clip

        def forged() -> Query:
            if sender == "here":
                return Backward(*parts, tiny, fold=fold, capped=cap)
            whole = dataclasses.replace(cap, paid=Paid(ReleaseKey(1), event))
            *fields, capped, knots, subsample = to_plain(Backward(*parts, event, fold=fold, capped=whole))
            plain = (
                *(encode("event", tiny) if f == encode("event", event) else f for f in fields),
                (*capped[:-1], None),
                knots,
                subsample,
            )
            return from_plain(plain, Query)

        with pytest.raises(PrivacyError):
            party.answer(forged(), r, ReleaseKey(1))
        for noise in {tiny, event}:  # a charge that is paid for a sample pays for no pass
            paid = dataclasses.replace(cap, paid=Paid(ReleaseKey(1), tiny))
            if sampled:
                with pytest.raises(PrivacyError):
                    party.answer(Backward(*parts, noise, fold=fold, capped=paid), r, ReleaseKey(1))
        assert recorded(place.party_ledgers["bank"]) == []

    def test_no_release_takes_the_place_of_the_rest_of_the_plan(self, party: Any, place: Place) -> None:
        with pytest.raises(ConsentRefused, match="round -1"):
            party.answer(*self.visit(), OTHERS)
        assert recorded(place.party_ledgers["bank"]) == []

    def test_exact_smoothness_is_allowed_when_the_job_declares_it(self, place: Place) -> None:
        place.run(job(smoothness="data", dataset=None))
        assert next(key.round for key, _ in recorded(place.party_ledgers["bank"])) > 0  # the moments carried no noise


class TestBackups:
    """A restored copy is detected when ledger and book next meet, and stays detected."""

    def test_of_a_partys_book(self, place: Place) -> None:
        place.run(job(0.2), "r1")
        backup = _copy(place.party_ledgers["bank"])
        place.run(job(0.2), "r2")
        backup()
        for run in ("r3", "r4"):
            with pytest.raises(LedgerError, match="party ledger of 'bank' is not"):
                place.run(job(0.2), run)

    def test_of_the_ledger(self, place: Place) -> None:
        place.run(job(0.2), "r1")
        backup = _copy(place.ledger)
        place.run(job(0.2), "r2")
        backup()
        for run in ("r3", "r4"):
            with pytest.raises(LedgerError, match=r"ledger is not .*'bank'"):
                place.run(job(0.2), run)
        assert len(SqliteLedger(place.ledger).show()[0].runs) == 1

    def test_a_missing_book(self, place: Place) -> None:
        place.run(job(0.2), "r1")
        _delete(place.party_ledgers["bank"])
        with pytest.raises(LedgerError, match="'bank' is gone"):
            place.run(job(0.2), "r2")
        assert not place.party_ledgers["bank"].exists()

    def test_a_missing_or_new_ledger(self, place: Place) -> None:
        place.run(job(0.2), "r1")
        _delete(place.ledger)
        with pytest.raises(LedgerError, match="'credit' is missing"):
            place.run(job(0.2), "r2")
        SqliteLedger(place.ledger).set_cap("credit", epsilon=100.0, delta=DELTA)
        with pytest.raises(LedgerError, match=r"ledger is not .*'bank'"):
            place.run(job(0.2), "r2")

    def test_other_data_sets_and_unrelated_runs_are_not_affected(self, place: Place) -> None:
        place.run(job(0.2), "r1")
        place.run(job(0.2, dataset=None), "r2")
        _delete(place.ledger)
        place.run(job(0.2, dataset=None), "r3")


def test_a_resumed_run_uses_the_same_books(place: Place, tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut(event: Any) -> None:
        if isinstance(event, Round) and event.number == 3:
            raise Cut

    spec = job(noise=vfl.SeededNoise(9), dataset=None)
    data = vfl.Source(table(), policy=place.policies)
    whole = vfl.train(spec, data, output=tmp_path / "whole")
    with pytest.raises(Cut):
        vfl.train(spec, data, output=tmp_path / "cut", watch=cut)
    assert [run.status for run in place.balance("bank").runs] == ["settled", "open"]
    resumed = resume(tmp_path / "cut", table(), at="inprocess")  # which remembers the policies
    assert resumed.w.tobytes() == whole.w.tobytes()
    for party in PARTITION.parties:
        first, second = place.balance(party).runs
        assert (first.status, first.releases) == (second.status, second.releases)
        SqliteLedger(place.party_ledgers[party]).verify()


def _counted(write: Callable[..., None], writes: list[Any], path: Path) -> Callable[..., None]:
    def count(ledger: Any, decide: Any) -> None:
        if ledger.path == path:
            writes.append(decide)
        write(ledger, decide)

    return count


def _never(*_: Any) -> Any:
    raise AssertionError("noise was drawn")


def _schedule(spec: vfl.Job) -> Iterator[Any]:
    plan = make_plan(spec, N)
    schedule = plan.solver.schedule(plan.problem)
    query = next(schedule)
    while True:
        yield query
        try:
            query = schedule.send(tuple(np.ones(size) for size in query.sizes()))
        except StopIteration:
            return


def _copy(path: Path) -> Callable[[], None]:
    """Copy a ledger in its present state; return a function that restores the copy."""
    copy = path.with_suffix(".backup")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)

    def restore() -> None:
        _delete(path)
        shutil.copy(copy, path)

    return restore


def _delete(path: Path) -> None:
    for file in path.parent.glob(path.name + "*"):
        file.unlink()
