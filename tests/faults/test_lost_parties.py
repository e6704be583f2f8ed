"""Loss of a party at every kind of moment under every policy, and the budget afterwards.

In one process, with a transport that loses parties on purpose: the policy does not depend on the transport.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from coordinator.charging.budget import Budget
from coordinator.coordinator import Coordinator, Outcome
from coordinator.rounds import LEFT, Lost, Round
from parties.loading import load
from vfl.errors import DataError, FederationError, OutputError, PartyLost, SpecificationError
from vfl.job import file as jobfile
from vfl.job.site import Faults
from vfl.launch.run import checkpoint
from vfl.launch.run.execution import Settings, Witness
from vfl.launch.run.intervals import inference_from
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sites.open_site import Arrangement
from vfl.launch.sources import sources_of
from vfl.network.messages import Phase
from vfl.privacy.ledger import SqliteLedger
from vfl.queries import Descend
from vfl.solvers.rules import intervals

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vfl.privacy.events import ReleaseKey

PARTITION = vfl.FeaturePartition(
    {"bank": ["a0", "a1", "a2"], "telco": ["b0", "b1"], "shop": ["c0", "c1"]}, label=("telco", "y")
)
N = 400
EPSILON = 1.0


def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (N, 7))
    columns = {name: X[:, j] for j, name in enumerate(PARTITION.features)}
    return columns | {"y": (X[:, 0] - X[:, 3] + X[:, 5] + 0.3 * rng.logistic(size=N) > 0).astype(int)}


def job(*, noise: str = "seeded", solver: Any = None, passes: int = 6) -> vfl.Job:
    privacy = {
        "none": None,
        "seeded": vfl.Privacy(epsilon=EPSILON, delta=1e-6, noise=vfl.SeededNoise(5)),
        "true": vfl.Privacy(epsilon=EPSILON, delta=1e-6),
    }[noise]
    return vfl.Job(
        partition=PARTITION,
        bounds=dict.fromkeys(PARTITION.features, (-1.0, 1.0)),
        penalty=vfl.L2(1e-2),
        privacy=privacy,
        solver=solver or vfl.SkGD(passes=passes, block_size=1),
    )


@dataclass
class Lossy:
    """A transport that loses the party at query number `at`: 'before' or 'after' it answered, or answers too 'late'.

    returns : True if a lost party comes back. times : number of losses in a row. closing : lose it when the run is
        closed, not during a query. policies : folder of the owners' policies, with books; None for none.
    """

    job: vfl.Job
    party: str = "shop"
    at: int = -1
    moment: str = "before"
    returns: bool = True
    times: int = 1
    changed: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    closing: bool = False
    policies: Path | None = None
    asked: list[tuple[ReleaseKey, tuple[str, ...]]] = field(default_factory=list)
    folds: list[int] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.inner = InProcessTransport({name: self.loaded(name) for name in PARTITION.parties})

    def loaded(self, name: str) -> Any:
        whole = table() if self.changed is None or not self.asked else self.changed(table())
        policy = None if self.policies is None else str(self.policies / f"{name}.toml")
        return load(self.job.for_party(name), sources_of(self.job, whole)[name], policy)

    def greet(self) -> Any:
        return self.inner.greet()

    def hear(self, notices: Any) -> Any:
        (phase,) = {notice.phase for notice in notices.values()}
        if phase is Phase.CLOSE and self.closing and self.party in notices and self.times:
            self.times -= 1
            if self.moment == "after":
                self.inner.hear(notices)
            raise PartyLost(f"{self.party!r} died", self.party)
        return self.inner.hear(notices)

    def labels(self, party: str) -> Any:
        return self.inner.labels(party)

    def ask(self, shares: Any, records: Any, key: ReleaseKey) -> Any:
        number = len(self.asked)
        self.asked.append((key, tuple(shares)))
        batch = next((share.batch for share in shares.values()), None)  # a replayed query may address nobody
        self.folds.append(-1 if batch is None else batch.number)
        assert not self.gone & set(shares), "a party that was given up is asked"
        if self.party in shares and self.at <= number and self.times and not self.closing:
            self.times -= 1
            if self.moment == "after":
                self.inner.ask(shares, records, key)
            raise PartyLost(f"{self.party!r} died", self.party)
        return self.inner.ask(shares, records, key)

    def together(self, party: str) -> tuple[str, ...]:
        return self.inner.together(party)

    def newly_opened(self) -> tuple[()]:
        return ()

    def revive(self, party: str, seconds: float) -> Any:
        if not self.returns:
            self.gone.add(party)
            raise PartyLost(f"{party!r} did not answer within {seconds:g} s", party)
        self.inner._parties[party] = self.loaded(party)
        return self.inner.greet()[party]


@dataclass
class Killing(Lossy):
    """Ends the coordinator's process after the answer to the given number of queries with noise.

    noised : (key, party, part) of each query with noise.
    """

    dies: int = 10**9
    noised: list[tuple[ReleaseKey, str, int]] = field(default_factory=list)

    def ask(self, shares: Any, records: Any, key: ReleaseKey) -> Any:
        replies = super().ask(shares, records, key)
        for party, share in shares.items():
            if any(event is not None for event in share.events()):
                part = share.parts.get(party, 0) if isinstance(share, Descend) else getattr(share, "part", 0)
                self.noised.append((key, party, part))
                self.dies -= 1
        if self.dies <= 0:
            raise KeyboardInterrupt
        return replies


def policies(folder: Path) -> Path:
    """Write a policy for every party, which keeps its book next to it."""
    for party in PARTITION.parties:
        (folder / f"{party}.toml").write_text(
            'format = 1\njobs = ["*"]\nallow_non_private = true\nproducts = true\n[total]\nepsilon = 4.0\ndelta = 1e-6\n'
        )
    return folder


def drive(transport: Lossy, faults: Faults, budget: Budget | None = None, log: Any = None) -> tuple[list[Any], Outcome]:
    *events, outcome = Coordinator(transport, faults=faults).stream(transport.job, budget, log)
    return events, outcome


def charged(events: list[Any]) -> int:
    return sum(len(event.charges) for event in events if isinstance(event, Round | Lost))


WAIT, SKIP, ABORT = (Faults(on_party_lost=policy, wait_timeout_s=1.0) for policy in ("wait", "skip", "abort"))
MOMENTS = {"the moments": 0, "the first visit": 1, "a visit": 3, "the last visit": -1}
"""Which of the questions to the party."""


@pytest.fixture(scope="module")
def whole() -> dict[str, tuple[list[Any], Outcome]]:
    """Undisturbed runs."""
    return {noise: drive(Lossy(job(noise=noise), times=0), WAIT) for noise in ("seeded", "true", "none")}


COORDINATE = vfl.SkGD(passes=6, block_size=1, clip="coordinate")
"""Charges every release by itself. Passes under a record cap, the default, are charged whole."""


@pytest.fixture(params=MOMENTS.values(), ids=list(MOMENTS))
def at(request: Any) -> Callable[[vfl.Job], int]:
    """Number of the query of a run during which the party is lost."""

    def number(spec: vfl.Job) -> int:
        transport = Lossy(spec, times=0)
        drive(transport, WAIT)
        return [k for k, (_, parties) in enumerate(transport.asked) if "shop" in parties][request.param]

    return number


@pytest.mark.parametrize("moment", ["before", "after"])
class TestWait:
    """The party comes back, and only the policy 'abort' gives it up."""

    @pytest.mark.parametrize("noise", ["seeded", "none"])
    @pytest.mark.parametrize("faults", [WAIT, SKIP], ids=["wait", "skip"])
    def test_the_same_model_to_the_bit(self, whole: Any, at: Any, moment: str, noise: str, faults: Faults) -> None:
        """Xw is restored, and seeded noise repeats itself under the same key and charge."""
        spec = job(noise=noise)
        events, outcome = drive(Lossy(spec, at=at(spec), moment=moment), faults)
        assert [event.party for event in events if isinstance(event, Lost)] == ["shop"]
        assert outcome.w.tobytes() == whole[noise][1].w.tobytes()
        assert outcome.statement == whole[noise][1].statement
        assert outcome.left == ()

    def test_true_noise_under_a_record_cap(self, at: Any, moment: str) -> None:
        """Lost releases of a pass cost the next charge of the plan: the run has one pass less, at the ε of the plan."""
        spec = job(noise="true")
        assert vfl.plan(spec, N).solver.clip == "record"
        transport = Lossy(spec, at=at(spec), moment=moment)
        events, outcome = drive(transport, WAIT)
        undisturbed, planned = drive(Lossy(spec, times=0), WAIT)
        assert outcome.statement.releases == charged(events) <= charged(undisturbed)
        assert outcome.statement.epsilon <= planned.statement.epsilon <= EPSILON
        keys = [key for event in events if isinstance(event, Round | Lost) for key, _ in event.charges]
        assert len(keys) == len(set(keys))
        assert len(transport.asked) == len(set(transport.asked))

    def test_true_noise_pays_again_and_makes_fewer_releases(self, at: Any, moment: str) -> None:
        """The lost attempt stays charged, its repetition has keys of its own, and ε is that of the plan."""
        spec = job(noise="true", solver=COORDINATE)
        transport = Lossy(spec, at=at(spec), moment=moment)
        events, outcome = drive(transport, WAIT)
        undisturbed, planned = drive(Lossy(spec, times=0), WAIT)
        made = sum(len(event.charges) for event in events if isinstance(event, Round))
        lost = sum(len(event.charges) for event in events if isinstance(event, Lost))
        assert lost > 0
        assert made < charged(undisturbed)
        assert made + lost <= charged(undisturbed)
        assert outcome.statement.releases == made + lost
        assert outcome.statement.epsilon <= planned.statement.epsilon <= EPSILON
        keys = [key for event in events if isinstance(event, Round | Lost) for key, _ in event.charges]
        assert len(keys) == len(set(keys))
        drawn = [(key, parties) for key, parties in transport.asked]
        assert len(drawn) == len(set(drawn))


@pytest.mark.parametrize(
    "solver",
    [
        vfl.solvers.SGD(sampling="disjoint"),
        vfl.solvers.SVRG(sampling="disjoint"),
        vfl.solvers.SCD(sampling="disjoint", passes=10),
    ],
    ids=lambda solver: solver.name,
)
@pytest.mark.parametrize("noise", ["seeded", "true"])
@pytest.mark.parametrize("books", [False, True], ids=["", "with books"])
def test_lost_within_a_pass_over_disjoint_batches(tmp_path: Path, solver: Any, noise: str, books: bool) -> None:
    """A pass is paid for with its first fold. A repeated fold pays for itself, and the margins' state is restored.

    This also holds in the books of the owners: of the lost party, and of the others that were asked twice.
    """
    spec = job(noise=noise, solver=solver)
    undisturbed = Lossy(spec, times=0)
    whole = drive(undisturbed, WAIT)[1]
    second = [number for number, fold in enumerate(undisturbed.folds) if fold == 1][1]
    transport = Lossy(spec, at=second, moment="after", policies=policies(tmp_path) if books else None)
    events, outcome = drive(transport, WAIT)
    (lost,) = [event for event in events if isinstance(event, Lost)]
    (again,) = [event for event in events if isinstance(event, Round) and event.number == lost.number]
    if noise == "seeded":
        assert outcome.w.tobytes() == whole.w.tobytes()
    else:
        assert len(lost.charges) == 0
        assert len(again.charges) == 1
        assert outcome.statement.releases == charged(events)
        assert outcome.statement.epsilon <= EPSILON
    for party in PARTITION.parties if books else ():
        (kept,) = SqliteLedger(tmp_path / f"{party}.ledger").show()
        assert kept.spent <= EPSILON
        assert [run.status for run in kept.runs] == ["settled"]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("noise", ["seeded", "true"])
def test_lost_while_the_run_is_closed(tmp_path: Path, noise: str, moment: str) -> None:
    """All releases have been made, so the run waits for the party and closes every book."""
    transport = Lossy(job(noise=noise), moment=moment, closing=True, policies=policies(tmp_path))
    _, outcome = drive(transport, WAIT)
    assert transport.times == 0
    assert set(outcome.party_ledgers) == set(PARTITION.parties)
    for party in PARTITION.parties:
        (kept,) = SqliteLedger(tmp_path / f"{party}.ledger").show()
        assert [run.status for run in kept.runs] == ["settled"]
    with pytest.raises(PartyLost, match="'shop' died"):
        drive(Lossy(job(noise=noise), closing=True, policies=policies(tmp_path)), ABORT)


def test_a_party_lost_for_good_while_the_run_is_closed_stays_in_the_model(tmp_path: Path) -> None:
    """With 'skip' only the party ledger stays open; all its releases are in the model."""
    _, outcome = drive(Lossy(job(noise="true"), closing=True, returns=False, policies=policies(tmp_path)), SKIP)
    assert set(outcome.party_ledgers) == {"bank", "telco"}
    assert outcome.left == ()
    assert (outcome.w != 0).all()


PRODUCTS = 2 * 2 * 2
"""Queries for intervals: columns and a piece for each party but the last, for either matrix."""
DURING = {"the first piece": 1, "the second piece": 3, "the second matrix": 5, "the last piece": PRODUCTS - 1}
"""Which of these queries to "shop", which owns the last two coordinates."""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("at", DURING.values(), ids=list(DURING))
@pytest.mark.parametrize("noise", ["seeded", "true"])
@pytest.mark.parametrize(("faults", "returns"), [(WAIT, True), (SKIP, False)], ids=["wait", "skip"])
def test_lost_during_the_releases_for_intervals(
    tmp_path: Path, monkeypatch: Any, moment: str, at: int, noise: str, faults: Faults, returns: bool
) -> None:
    """Seeded noise repeats itself, so a party that returns changes nothing. Otherwise nothing pays for the lost piece again:
    no further piece is released, the run has no intervals, and ledger and books stay within the plan."""
    for name in ("LEAST", "SETTLED"):  # so few records may have intervals here
        monkeypatch.setattr(intervals, name, 0.0)
    spec = job(noise=noise)
    spec = dataclasses.replace(spec, penalty=vfl.penalties.NoPenalty(), intervals=0.3)
    undisturbed = Lossy(spec, times=0)
    whole, _ = drive(undisturbed, WAIT)
    kept = policies(tmp_path) if moment == "after" else None  # without books the coordinator alone refuses
    first = len(undisturbed.asked) - PRODUCTS
    events, outcome = drive(Lossy(spec, at=first + at, moment=moment, returns=returns, policies=kept), faults)
    before, after = ([event for event in own if isinstance(event, Round)] for own in (whole, events))
    (number,) = (event.number for event in events if isinstance(event, Lost))
    found = inference_from(
        outcome.plan,
        [None if event.kind == LEFT or event.refused else event.released for event in after],
        dict.fromkeys(outcome.plan.problem.layout.names, 0.0),
    )
    if noise == "seeded" and returns:
        assert [list(map(bytes, event.released)) for event in after] == [
            list(map(bytes, event.released)) for event in before
        ]
        assert found is not None
    else:
        assert not any(event.released for event in after if event.number >= number and event.kind == "Gram")
        assert found is None
    keys = {key for event in events if isinstance(event, Round | Lost) for key, _ in event.charges}
    assert outcome.statement.releases == len(keys)
    assert outcome.statement.epsilon <= EPSILON
    for party in outcome.party_ledgers:
        (balance,) = SqliteLedger(tmp_path / f"{party}.ledger").show()
        assert balance.spent <= EPSILON


def test_lost_between_the_parts_of_one_query() -> None:
    """The margins have changed by then and are restored, which gives the same model to the bit."""
    spec = job()

    def expanded(transport: Lossy) -> bytes:
        *_, outcome = Coordinator(transport, faults=WAIT, expand=True).stream(spec)
        return outcome.w.tobytes()

    undisturbed = Lossy(spec, times=0)
    model = expanded(undisturbed)
    asked = [number for number, (_, parties) in enumerate(undisturbed.asked) if parties == ("shop",)]
    assert expanded(Lossy(spec, at=asked[2])) == model  # the second of two steps, after the first one's Forward


@pytest.mark.parametrize("noise", ["seeded", "true"])
@pytest.mark.parametrize(("faults", "returns"), [(WAIT, True), (SKIP, False)], ids=["wait", "skip"])
def test_the_certificate_counts_lost_attempts(noise: str, faults: Faults, returns: bool) -> None:
    """With a budget in memory too, it counts all charges, lost attempts included, and names parties left out."""
    spec, budget = job(noise=noise, passes=12), Budget("run")
    events, outcome = drive(Lossy(spec, at=5, returns=returns, times=2), faults, budget)
    witness = Witness(Settings(budget=budget, site=vfl.InProcess(), data=None, arrangement=Arrangement()))
    for event in events:
        witness.note(event)
    certificate = witness.result(outcome).certificate
    assert sum(count for _, count in certificate.events) == outcome.statement.releases == certificate.releases
    assert certificate.epsilon <= EPSILON
    said = [flag for flag in certificate.flags if flag.startswith("party 'shop' was lost during the run and left out")]
    assert len(said) == (not returns)


@pytest.mark.parametrize("faults", [WAIT, ABORT], ids=["wait", "abort"])
def test_lost_for_good_ends_the_run(faults: Faults) -> None:
    with pytest.raises(PartyLost) as raised:
        drive(Lossy(job(), at=5, returns=False), faults)
    expected = {
        "abort": "'shop' died",
        "wait": "party 'shop' was lost and did not come back within 1 s ('shop' did not answer within 1 s); once it runs "
        "again, continue with: vfl resume",
    }
    assert str(raised.value) == expected[faults.on_party_lost]
    assert raised.value.party == "shop"


def test_repeated_loss_during_one_query_ends_the_run() -> None:
    """A query that kills its party is not paid for without limit."""
    transport = Lossy(job(noise="true"), at=5, times=99)
    with pytest.raises(PartyLost, match="came back 3 times and was lost again"):
        drive(transport, WAIT)
    assert len([parties for _, parties in transport.asked if parties == ("shop",)]) <= 6


def test_back_with_other_records() -> None:
    def fewer(columns: dict[str, Any]) -> dict[str, Any]:
        return {name: values[:-1] for name, values in columns.items()}

    with pytest.raises(DataError, match="'shop' came back with different"):
        drive(Lossy(job(), at=5, changed=fewer), WAIT)


class TestSkip:
    """The party is lost for good, and the run continues without its blocks."""

    @pytest.mark.parametrize("noise", ["seeded", "true", "none"])
    @pytest.mark.parametrize("at", [1, 5, 15, 18])
    def test_its_coefficients_are_zero_and_it_gets_no_more_queries(self, at: int, noise: str) -> None:
        spec = job(noise=noise, passes=12)
        events, outcome = drive(Lossy(spec, at=at, returns=False), SKIP)
        assert outcome.left == ("shop",)
        gone = outcome.plan.problem.layout.whole()["shop"].coordinates
        others = np.ones(len(outcome.w), dtype=bool)
        others[gone] = False
        assert (outcome.w[gone] == 0).all()
        assert (outcome.w[others] != 0).all()
        assert [event.kind for event in events if isinstance(event, Round)].count(LEFT) == 1
        if outcome.statement is not None:
            assert outcome.statement.releases == charged(events)
            assert outcome.statement.stopped_early
            assert outcome.statement.epsilon <= EPSILON

    @pytest.mark.parametrize("at", [3, 4, 5, 6])
    @pytest.mark.parametrize("noise", ["seeded", "true"])
    def test_lost_in_an_early_pass_of_all_parties(self, at: int, noise: str) -> None:
        """Such a pass is lost as a whole. Its charge counts as made, with seeded noise too: later passes are paid in full."""
        solver = vfl.SkGD(passes=12, sampling="full", clip="record", details=vfl.solvers.Details(early_share=0.15))
        events, outcome = drive(Lossy(job(noise=noise, solver=solver), at=at, returns=False), SKIP)
        assert outcome.left == ("shop",)
        assert outcome.statement.releases == charged(events)
        assert 0.99 * EPSILON < outcome.statement.epsilon <= EPSILON

    def test_without_noise_it_ends_where_training_without_the_party_ends(self) -> None:
        """Xw was rebuilt without it, intercept and centres included."""
        spec = job(noise="none", passes=300)
        _, outcome = drive(Lossy(spec, at=5, returns=False), SKIP)
        smaller = vfl.FeaturePartition({"bank": ["a0", "a1", "a2"], "telco": ["b0", "b1"]}, label=("telco", "y"))
        alone = vfl.Job(
            partition=smaller,
            bounds=dict.fromkeys(smaller.features, (-1.0, 1.0)),
            penalty=vfl.L2(1e-2),
            privacy=None,
            solver=vfl.SkGD(passes=300, block_size=1),
        )
        other = vfl.train(alone, {name: table()[name] for name in (*smaller.features, "y")}, at="inprocess")
        kept = [name in other.coordinates for name in outcome.plan.problem.layout.names]
        np.testing.assert_allclose(outcome.w[kept], other.w, rtol=0, atol=1e-9)

    @pytest.mark.parametrize("at", [5, "held out"])
    def test_the_model_is_evaluated_without_it(self, at: int | str) -> None:
        """A party lost in training is not asked for held-out margins.

        A loss during these ends the run, which can be resumed."""
        spec = dataclasses.replace(job(), evaluation=vfl.Evaluation(holdout=0.25))
        undisturbed = Lossy(spec, times=0)
        drive(undisturbed, SKIP)
        last = len(undisturbed.asked) - 1
        transport = Lossy(spec, at=last if at == "held out" else at, returns=False)
        if at == "held out":
            with pytest.raises(PartyLost):
                drive(transport, SKIP)
            return
        events, outcome = drive(transport, SKIP)
        assert outcome.left == ("shop",)
        assert list(outcome.findings) == ["held out"]
        assert outcome.statement.releases == charged(events)

    def test_the_label_party_is_not_given_up(self) -> None:
        with pytest.raises(PartyLost, match="'telco' was lost and did not"):
            drive(Lossy(job(), party="telco", at=5, returns=False), SKIP)

    def test_a_solver_that_cannot_is_refused_before_anything_is_charged(self) -> None:
        transport = Lossy(job(solver=vfl.solvers.GD()))
        with pytest.raises(SpecificationError, match="GD cannot continue"):
            drive(transport, SKIP)
        assert transport.asked == []


class TestLedger:
    """The same with a durable ledger and a log: a resumed run finds the losses and the parties that were left out."""

    def begin(self, folder: Path, transport: Lossy, faults: Faults, stop: int = 10**9) -> Outcome | None:
        budget = Budget("run", str(folder / checkpoint.LEDGER))
        jobfile.write(transport.job, folder / jobfile.NAME)
        start = checkpoint.Start(transport.job.digest, budget.run, budget.ledger, {})
        events = Coordinator(transport, faults=faults).stream(transport.job, budget)
        return self.follow(folder, start, events, stop)

    def go_on(self, folder: Path, transport: Lossy, faults: Faults) -> Outcome | None:
        with checkpoint.Checkpoint(folder) as log:
            _, budget, made = checkpoint.read(folder, transport.job)
            transport.gone |= set(made.left.values())
            for event in Coordinator(transport, faults=faults).stream(transport.job, budget, made):
                log(event)
        return event

    def follow(self, folder: Path, start: Any, events: Any, stop: int) -> Outcome | None:
        event = None
        with checkpoint.Checkpoint(folder, start) as log, contextlib.closing(events):
            for event in events:
                log(event)
                if isinstance(event, Round) and event.number == stop:
                    return None
        return event

    def charges(self, folder: Path) -> list[tuple[int, int, int]]:
        entries = json.loads(SqliteLedger(folder / checkpoint.LEDGER).export())["entries"]
        return [(e["round"], e["part"], e["attempt"]) for e in entries if e["kind"] == "charge"]

    @pytest.mark.parametrize("at", [1, 7, 15])
    @pytest.mark.parametrize("noise", ["seeded", "true"])
    def test_skipped_then_cut_off_then_resumed(self, tmp_path: Path, noise: str, at: int) -> None:
        spec = job(noise=noise, passes=12)
        for name, stop in (("whole", 10**9), ("cut", 18)):
            (tmp_path / name).mkdir()
            outcome = self.begin(tmp_path / name, Lossy(spec, at=at, returns=False), SKIP, stop)
            if name == "cut":
                assert outcome is None
                outcome = self.go_on(tmp_path / name, Lossy(spec, times=0), SKIP)
            assert outcome.left == ("shop",)
            assert outcome.statement.epsilon <= EPSILON
            keys = self.charges(tmp_path / name)
            assert len(keys) == len(set(keys)) == outcome.statement.releases
            if noise == "seeded" and name == "whole":
                undisturbed = outcome.w
        if noise == "seeded":
            np.testing.assert_array_equal(outcome.w, undisturbed)

    @pytest.mark.parametrize("faults", [WAIT, ABORT], ids=["wait", "abort"])
    @pytest.mark.parametrize("noise", ["seeded", "true"])
    @pytest.mark.parametrize("at", ["the moments", "the held out"])
    def test_lost_for_good_then_resumed(self, tmp_path: Path, at: str, noise: str, faults: Faults) -> None:
        """The run ends without an outcome. With the party back it continues, and pays for the lost releases."""
        spec = dataclasses.replace(job(noise=noise), evaluation=vfl.Evaluation(holdout=0.25))
        undisturbed = Lossy(spec, times=0)
        whole = drive(undisturbed, faults)[1]
        of_shop = [number for number, (_, parties) in enumerate(undisturbed.asked) if "shop" in parties]
        lost = Lossy(spec, at=of_shop[0 if at == "the moments" else -1], moment="after", returns=False)
        with pytest.raises(PartyLost):
            self.begin(tmp_path, lost, faults)
        before = self.charges(tmp_path)
        outcome = self.go_on(tmp_path, Lossy(spec, times=0), faults)
        keys = self.charges(tmp_path)
        assert set(before) <= set(keys)
        assert len(keys) == len(set(keys)) == outcome.statement.releases
        assert outcome.statement.epsilon <= EPSILON
        assert list(outcome.findings) == ["held out"]
        if noise == "seeded":
            assert outcome.w.tobytes() == whole.w.tobytes()
        else:
            # On held-out records no party releases anything.
            rounds = [number for number, part, _ in keys if part == 0]
            assert (len(rounds) > len(set(rounds))) == (at == "the moments")
            assert any(attempt for _, _, attempt in keys)

    @pytest.mark.parametrize("dies", [6, 9])
    @pytest.mark.parametrize(
        "solver",
        [vfl.SkGD(passes=12, block_size=1), vfl.solvers.SGD(sampling="disjoint")],
        ids=["a pass under a record cap", "a pass over disjoint batches"],
    )
    def test_no_party_is_asked_for_noise_twice_under_one_key(self, tmp_path: Path, solver: Any, dies: int) -> None:
        """The coordinator dies twice after an answer that its log lacks; one charge had paid for several answers."""
        spec = job(noise="true", solver=solver)
        first = Killing(spec, times=0, dies=dies)
        with pytest.raises(KeyboardInterrupt):
            self.begin(tmp_path, first, WAIT)
        second = Killing(spec, times=0, dies=2)
        with pytest.raises(KeyboardInterrupt):
            self.go_on(tmp_path, second, WAIT)
        third = Killing(spec, times=0)
        outcome = self.go_on(tmp_path, third, WAIT)
        assert outcome.statement.epsilon <= EPSILON
        keys = [each for transport in (first, second, third) for each in transport.noised]
        assert len(keys) == len(set(keys)) > dies + 2

    @pytest.mark.parametrize("noise", ["seeded", "true"])
    def test_resumed_within_a_pass_over_disjoint_batches(self, tmp_path: Path, noise: str) -> None:
        """All parties are restarted, and their books know that the pass had begun."""
        spec = job(noise=noise, solver=vfl.solvers.SGD(sampling="disjoint"))
        lossy = Lossy(spec, times=0, policies=policies(tmp_path))
        undisturbed = Lossy(spec, times=0)
        whole = drive(undisturbed, WAIT)[1]
        second = [number for number, fold in enumerate(undisturbed.folds) if fold == 1][1]
        assert self.begin(tmp_path, lossy, WAIT, stop=second) is None
        outcome = self.go_on(tmp_path, Lossy(spec, times=0, policies=tmp_path), WAIT)
        assert outcome.statement.epsilon <= EPSILON
        assert {
            run.status for p in PARTITION.parties for run in SqliteLedger(tmp_path / f"{p}.ledger").show()[0].runs
        } == {"settled"}
        if noise == "seeded":
            assert outcome.w.tobytes() == whole.w.tobytes()

    @pytest.mark.parametrize("size", [1, 2])
    @pytest.mark.parametrize("clip", ["coordinate", "record"])
    def test_charges_stay_and_no_further_ones_are_made(self, tmp_path: Path, size: int, clip: str) -> None:
        """Blocks of other sizes have other events: releases after a skip must not claim the keys that were charged."""
        spec = job(noise="true", solver=vfl.SkGD(passes=60, block_size=size, clip=clip))
        budget = Budget("run", str(tmp_path / checkpoint.LEDGER))
        events, outcome = drive(Lossy(spec, at=5, returns=False), SKIP, budget)
        assert outcome.left == ("shop",)
        assert outcome.statement.releases == charged(events)
        assert outcome.statement.epsilon <= EPSILON

    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_waited_for_with_a_ledger(self, tmp_path: Path, moment: str) -> None:
        transport = Lossy(job(noise="true", solver=dataclasses.replace(COORDINATE, passes=30)), at=20, moment=moment)
        outcome = self.begin(tmp_path, transport, WAIT)
        assert outcome.statement.epsilon <= EPSILON
        paid = set(self.charges(tmp_path))
        assert {(key.round, key.attempt) for key, _ in transport.asked if key.round} <= {(r, a) for r, _, a in paid} | {
            (key.round, key.attempt) for key, parties in transport.asked if len(parties) > 1
        }
        assert any(attempt == 1 for _, _, attempt in paid)

    def test_a_moved_run_keeps_its_own_ledger(self, tmp_path: Path) -> None:
        spec = job(noise="true")
        (tmp_path / "here").mkdir()
        self.begin(tmp_path / "here", Lossy(spec, times=0), WAIT, stop=5)
        (tmp_path / "here").rename(tmp_path / "there")
        outcome = self.go_on(tmp_path / "there", Lossy(spec, times=0), WAIT)
        assert outcome.statement.epsilon <= EPSILON


def test_a_restarted_party_of_an_aligned_job(tmp_path: Path) -> None:
    """It loads the aligned rows that the run kept, and refuses if none were kept."""
    from coordinator.alignment import align
    from parties.actor import PartyActor
    from vfl.crypto.alignment import IndexRules
    from vfl.network.kinds import to_plain
    from vfl.network.messages import Load

    spec = dataclasses.replace(job(), id="who")
    rng = np.random.default_rng(1)
    for party in PARTITION.parties:
        order = rng.permutation(N)[:300]
        names = ["who", *PARTITION.wanted(party)]
        rows = np.column_stack([(np.arange(N) if name == "who" else table()[name])[order] for name in names])
        np.savetxt(tmp_path / f"{party}.csv", rows, delimiter=",", header=",".join(names), comments="", fmt="%.17g")

    def actors(run: str | None) -> dict[str, PartyActor]:
        keeping = {party: IndexRules(str(tmp_path / f"{party}-index"), run) for party in PARTITION.parties}
        return {party: PartyActor(spec, party, None, keeping[party]) for party in PARTITION.parties}

    def sources() -> dict[str, str]:
        return {party: str(tmp_path / f"{party}.csv") for party in PARTITION.parties}

    first = actors("run")
    for party, actor in first.items():
        actor.prepare(sources()[party], b"s" * 32, 1)
    for _ in align(InProcessTransport({party: actor._service for party, actor in first.items()}), required=False):
        pass
    for party, actor in first.items():
        actor.load(sources()[party])
    with pytest.raises(PartyLost, match="'shop' was restarted"):
        actors("run")["shop"].call(to_plain(Load()), (), None)
    again = actors("run")["shop"]
    again.load(sources()["shop"])
    assert again.call(to_plain(Load()), (), None) == first["shop"].call(to_plain(Load()), (), None)
    with pytest.raises(FederationError, match="without an output folder"):
        actors(None)["shop"].load(sources()["shop"])
    shutil.rmtree(tmp_path / "shop-index")
    with pytest.raises(
        OutputError, match=r"'shop' was restarted, and its index folder .*shop-index.*restore it from a backup"
    ):
        actors("run")["shop"].load(sources()["shop"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('on_party_lost = "pray"', "[faults] on_party_lost must be one of wait, skip, abort, not 'pray'"),
        ("wait_timeout_s = 0", "[faults] wait_timeout_s must be positive and finite, not 0"),
        ("wait_secs = 3", "unknown key 'wait_secs' in [faults] (did you mean 'wait_timeout_s'?)"),
        ('wait_timeout_s = "long"', "[faults]: wait_timeout_s must be a number, not 'long'"),
    ],
)
def test_wrong_policies(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "job.toml"
    path.write_text(job().to_toml() + f"\n[faults]\n{text}\n")
    with pytest.raises(vfl.VflError) as raised:
        jobfile.read(path)
    assert said in str(raised.value)
