"""Everything that a coordinator refuses to charge or to ask for, whatever its solver yields and whatever parties answer."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from coordinator.charging.budget import Budget
from coordinator.coordinator import Coordinator
from coordinator.rounds import Round
from parties.loading import load
from tests.coordinator.shares import Watched
from tests.coordinator.shares import job as on_shares
from tests.coordinator.shares import table as of_shares
from tests.neighbours import setting
from tests.parties.test_claims import N
from tests.parties.test_refusals import (
    BLOCKS,
    CURVES,
    FOLDS,
    PASS,
    PICK,
    PRODUCTS,
    SAMPLED,
    SMALLER,
    SUM,
    VISIT,
    alone,
    as_sum,
    both,
    capped,
    event,
    field,
    longer,
    same,
    sampled,
    spec_of,
    step,
    wider,
)
from vfl.base.holdout import Side
from vfl.base.losses import Logistic
from vfl.base.types import Adjacency
from vfl.errors import BudgetExceeded, FederationError, PartyLost, PrivacyError
from vfl.job.site import Faults
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.network.messages import Notice, Phase
from vfl.planning import Plan
from vfl.privacy.events import Gaussian, ReleaseKey
from vfl.privacy.geometry import Clip
from vfl.privacy.ledger import SqliteLedger
from vfl.privacy.selection import NoisyScore
from vfl.queries import (
    Backward,
    Descend,
    ExactTally,
    Fold,
    Forward,
    Gram,
    Moments,
    Paid,
    Piece,
    Ranges,
    RecordNorms,
    Reply,
    Sample,
    Select,
    SharedTally,
    Tally,
)
from vfl.queries.protocol import Derivative
from vfl.queries.statistics import Scores
from vfl.secure.measures import Moments as HistogramMoments
from vfl.secure.requests import Contribution
from vfl.solvers.releases.labels import ClassCounts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vfl.queries import Query

WAIT = Faults(on_party_lost="wait", wait_timeout_s=1.0)
GIVEN = {
    "float32": setting.job(vfl.SkGD(passes=2, clip="record"), precision="float32"),
    "nothing private": setting.job(vfl.solvers.GD(passes=2), privacy={}),
}
GIVEN["nothing private"] = replace(GIVEN["nothing private"], privacy=None)


def spec(name: str) -> Any:
    return GIVEN[name] if name in GIVEN else spec_of(name)


class Seen(InProcessTransport):
    """A transport that notes whom it asks for what.

    kind, after, lost : of the queries of this kind, the answers that are lost: so many, after so many others.
    """

    def __init__(self, job: Any, kind: type | None = None, after: int = 0, lost: int = 0) -> None:
        sources = sources_of(job, setting.table(job.loss, N)).items()
        super().__init__({name: load(job.for_party(name), source) for name, source in sources})
        self.asked: list[tuple[ReleaseKey, str, Query]] = []
        self.kind, self.after, self.lost = kind, after, lost

    def ask(self, shares: Any, records: Any, key: ReleaseKey) -> Any:
        self.asked += [(key, to, share) for to, share in shares.items()]
        replies = super().ask(shares, records, key)
        if any(type(share) is self.kind for share in shares.values()) and self.lost:
            self.after -= 1
            if self.after < 0:
                self.lost -= 1
                raise PartyLost("'bank' died", "bank")
        return replies

    def revive(self, party: str, seconds: float) -> Any:
        return self._parties[party].greet()


@dataclass
class Lie:
    """A solver that yields the honest queries, but for one.

    number : of the query of this kind that is changed.
    change : function of the query. It returns a query, None to leave the query out, or several queries, which end the run.
    goes_on : True if the solver goes on where a charge is refused, with the next of the lies. asked : number of questions
        that were sent before the lie. spent : charges in the ledger before it.
    """

    kind: type
    number: int
    change: Callable[[Any], Any]
    goes_on: bool = False
    told: bool = False
    asked: int = -1
    spent: float = -1.0

    def install(self, monkeypatch: pytest.MonkeyPatch, before: Callable[[], tuple[int, float]]) -> None:
        honest, lie = Plan.schedule, self

        def schedule(plan: Plan) -> Any:
            inner, seen = honest(plan), Counter[type]()
            query = next(inner)
            while True:
                due = type(query) is lie.kind and seen[lie.kind] == lie.number
                seen[type(query)] += 1
                if due:
                    lie.told, (lie.asked, lie.spent) = True, before()
                told = lie.change(query) if due else query
                if isinstance(told, list):
                    for each in told:
                        with contextlib.suppress(*([BudgetExceeded] if lie.goes_on else [])):
                            yield each
                    raise Enough
                released = () if told is None else (yield told)
                try:
                    query = inner.send(released)
                except StopIteration as end:
                    return end.value

        monkeypatch.setattr(Plan, "schedule", schedule)


class Enough(Exception):
    """The solver has told all of its lies."""


class Run:
    """A run of a job with a lie. charged : keys that its rounds charged."""

    def __init__(self, job: Any, folder: Path, transport: Callable[[Any], Any] | None = None) -> None:
        self.ledger: SqliteLedger | None = None
        if job.privacy is not None and "sampling='poisson'" not in repr(job.solver):
            self.ledger = SqliteLedger(folder / "ledger.db")
            self.ledger.set_cap("d", epsilon=1e6, delta=1e-6)
            job = replace(job, dataset="d")
        self.job = job
        self.transport: Any = (transport or Seen)(job)
        self.rounds: list[Round] = []

    @property
    def now(self) -> tuple[int, float]:
        spent = 0.0 if self.ledger is None else sum(r.spent for balance in self.ledger.show() for r in balance.runs)
        return len(self.transport.asked), spent

    def go(self) -> None:
        budget = Budget("r", None if self.ledger is None else str(self.ledger.path))
        for made in Coordinator(self.transport, faults=WAIT).stream(self.job, budget):
            if isinstance(made, Round):
                self.rounds.append(made)


# ---- lies that are refused before anything is charged or asked for ----


def tally(side: Side = Side.TRAINING, **changes: Any) -> Callable[[Any], Tally]:
    statistic = ClassCounts(2)
    own = Gaussian(Adjacency.REPLACE_ONE, statistic.sensitivity, 1e3 * statistic.sensitivity, statistic.dimension)
    return lambda _: Tally(statistic, replace(own, **changes), side)


def paid(query: Descend) -> Any:
    """Return the first step of a visit as a sum of its own, under a charge that the solver invents."""
    own, cap = query.ordered()[0], query.capped
    assert cap is not None
    assert own.event is not None
    cap = replace(cap, paid=Paid(ReleaseKey(3), own.event))
    return Backward(query.weighting, (own.block,), (own.centre,), (own.scale,), own.clip, own.event, capped=cap)


def twice(query: Descend) -> Descend:
    ((party, steps),) = query.steps.items()
    return replace(query, steps={party: (steps[0], steps[0])})


def replayed(query: Descend) -> Descend:
    return replace(query, replayed=tuple(np.zeros(size) for size in query.sizes()))


def moments_of_one(query: Moments) -> Moments:
    """Claim the sensitivity of one of the parties."""
    own: Any = query.event
    Δ = own.sensitivity / np.sqrt(2.0)
    return replace(query, event=replace(own, sensitivity=Δ, sigma=own.sigma / np.sqrt(2.0)))


class Quiet(Backward):
    """A sum that names no event."""

    def events(self) -> tuple[Any, ...]:
        return ()


def of_telco(own: Any) -> Any:
    return {"telco": own["telco"]}


LOUD = event(sensitivity=100.0, sigma=100.0)
"""As costly, and large enough for any order."""
REFUSED: dict[str, tuple[str, type, int, Callable[[Any], Any]]] = {
    # Records.
    "a subsample in a job without": (VISIT, Descend, 0, field("subsample", 0)),
    "no subsample in a job with some": ("subsamples", Descend, 0, field("subsample", None)),
    # Noise.
    "exact moments": (VISIT, Moments, 0, field("event", None)),
    "exact histograms": (CURVES, Ranges, 0, field("event", None)),
    "an exact sum": (SUM, Backward, 1, field("event", None)),
    "an exact batch": (FOLDS, Backward, 1, field("event", None)),
    "an exact step": (VISIT, Descend, 1, step(event=None)),
    "an exact block of a pass": (PASS, Descend, 1, step(event=None)),
    "an exact selection": (PICK, Select, 1, field("event", None)),
    "exact products": (PRODUCTS, Gram, 0, field("event", None)),
    "an exact tally": (VISIT, Descend, 0, lambda _: Tally(ClassCounts(2), None)),
    "an undeclared exact tally": (VISIT, Descend, 0, lambda _: ExactTally(ClassCounts(2), None)),
    "a sum that names no event": (
        SUM,
        Backward,
        1,
        lambda q: Quiet(q.weighting, q.blocks, q.centres, q.scales, q.clip, q.event),
    ),
    "a visit that is given as replayed": (VISIT, Descend, 0, replayed),
    # Sensitivities.
    "moments' sensitivity": (VISIT, Moments, 0, SMALLER),
    "moments' sensitivity at one party": (VISIT, Moments, 0, moments_of_one),
    "histograms' sensitivity": (CURVES, Ranges, 0, SMALLER),
    "a sum's sensitivity": (SUM, Backward, 0, SMALLER),
    "a sum's sensitivity over both parties": (
        SUM,
        Backward,
        0,
        field("weighting", lambda own: replace(own, cap=2.0 * own.cap)),
    ),
    "a sum over both parties without a cap": (SUM, Backward, 0, field("weighting", lambda own: Derivative(own.loss))),
    "a batch's sensitivity": (FOLDS, Backward, 0, SMALLER),
    "a sample's sensitivity": (SAMPLED, Backward, 0, SMALLER),
    "a step's sensitivity": (VISIT, Descend, 0, SMALLER),
    "products' sensitivity": (PRODUCTS, Gram, 0, SMALLER),
    "products under the clip of a sum": (PRODUCTS, Gram, 0, field("clip", lambda own: Clip(own.cap, own.dimension))),
    "products in another scale": (PRODUCTS, Gram, 0, field("scales", lambda own: tuple(2.0 * s for s in own))),
    "products under another weighting": (PRODUCTS, Gram, 0, field("weighting", lambda _: Derivative("squared"))),
    "products of a larger order": (
        PRODUCTS,
        Gram,
        0,
        both(field("clip", lambda own: replace(own, dimension=own.dimension + 1)), LOUD),
    ),
    "products of a smaller order": (
        PRODUCTS,
        Gram,
        0,
        both(field("clip", lambda own: replace(own, dimension=5)), LOUD),
    ),
    "products of a wider row": (PRODUCTS, Gram, 0, both(wider, LOUD)),
    "a sum under the clip of products": (PRODUCTS, Gram, 0, lambda q: LOUD(as_sum(q))),
    "a sum under the clip of slopes": ("slopes", Gram, 0, lambda q: LOUD(as_sum(q))),
    "slopes of another cap": ("slopes", Gram, 0, both(field("clip", lambda own: replace(own, cap=2.0)), LOUD)),
    "slopes of a larger order": (
        "slopes",
        Gram,
        0,
        both(field("clip", lambda own: replace(own, dimension=own.dimension + 1)), LOUD),
    ),
    "slopes of a smaller order": ("slopes", Gram, 0, both(field("clip", lambda own: replace(own, dimension=3)), LOUD)),
    "coordinates of fewer parties than scores": (PICK, Select, 0, field("coordinates", of_telco)),
    "scales and rules of fewer parties than scores": (
        PICK,
        Select,
        0,
        both(field("scales", of_telco), field("rules", of_telco)),
    ),
    "a tally's sensitivity": (VISIT, Descend, 0, tally(sensitivity=0.1)),
    "a sum with more scales": (SUM, Backward, 0, field("scales", lambda own: tuple(map(longer, own)))),
    # A pass under a record cap.
    "a column twice in a visit": (PASS, Descend, 1, twice),
    "a block with less noise than its pass": (PASS, Descend, 1, event(sigma=0.99)),
    "a block with the sensitivity of its own columns": (
        PASS,
        Descend,
        1,
        step(
            event=lambda own: replace(
                own.event, sensitivity=Clip(own.clip.cap, 1).sensitivity, sigma=own.event.sigma * 0.9999999
            )
        ),
    ),
    "a block under another cap than its pass": (
        PASS,
        Descend,
        1,
        step(clip=lambda own: replace(own.clip, cap=0.5 * own.clip.cap)),
    ),
    "a block on a grid of fewer columns": (
        PASS,
        Descend,
        1,
        step(clip=lambda own: replace(own.clip, dimension=1)),
    ),
    "a block of a secret sample": (PASS, Descend, 1, step(event=lambda own: sampled(own.event))),
    "a pass without a price": (PASS, Descend, 1, capped(prices=())),
    "a sum in a pass, charged by the solver": (PASS, Descend, 1, paid),
    "a sum in a pass, not charged": (
        PASS,
        Descend,
        1,
        lambda q: replace(paid(q), capped=replace(q.capped, paid=None, prices=q.capped.prices)),
    ),
    # Batches.
    "the second batch first": (FOLDS, Backward, 0, field("fold", lambda own: replace(own, number=1))),
    "a batch left out": (FOLDS, Backward, 1, field("fold", lambda own: replace(own, number=own.number + 1))),
    "a batch again": (FOLDS, Backward, 2, field("fold", lambda own: replace(own, number=own.number - 1))),
    "a batch of another pass": (FOLDS, Backward, 1, field("fold", lambda own: replace(own, seed=(5, 5)))),
    "a batch of another division": (FOLDS, Backward, 1, field("fold", lambda own: replace(own, of=own.of + 1))),
    "a batch with less noise": (FOLDS, Backward, 1, event(sigma=0.5)),
    "a batch with more noise": (FOLDS, Backward, 1, event(sigma=2.0)),
    "a batch over other columns' sensitivity": (FOLDS, Backward, 1, event(sensitivity=2.0, sigma=2.0)),
    "a batch that is a piece": (FOLDS, Backward, 1, field("fold", lambda own: Piece(own.number, own.of, own.seed))),
    # Samples.
    "a release at another rate": (SAMPLED, Backward, 0, event(rate=0.5)),
    "a release before a sample": (SAMPLED, Sample, 0, lambda _: None),
    "a second release of a sample": (SAMPLED, Backward, 0, lambda q: [q, q]),
    # Nothing was reserved.
    "noise in a job without": (
        "nothing private",
        Backward,
        0,
        lambda q: replace(q, clip=Clip(1.0, 4), event=Clip(2.0, 4).event(1e3)),
    ),
    # State that is not there.
    "a tally of held-out records without margins": (VISIT, Descend, 0, tally(Side.HELD_OUT)),
    "a pass without norms": (PASS, RecordNorms, 0, lambda _: None),
}
LOST = {
    "a tally of held-out records without margins",
    "a pass without norms",
    "a second release of a sample",
}
"""Queries that are charged and then refused, before a party is asked."""


def lying(
    case: tuple[str, type, int, Callable[[Any], Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Run, Lie]:
    name, kind, number, change = case
    run, told = Run(spec(name), tmp_path), Lie(kind, number, change)
    told.install(monkeypatch, lambda: run.now)
    return run, told


@pytest.mark.parametrize("lie", REFUSED)
def test_a_coordinator_neither_charges_nor_asks_what_it_refuses(
    lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, told = lying(REFUSED[lie], tmp_path, monkeypatch)
    with pytest.raises(PrivacyError):
        run.go()
    assert told.told
    later = [query for _, _, query in run.transport.asked[told.asked :] if query.sizes()]
    assert len(later) == (2 if lie == "a second release of a sample" else 0)  # the first one is sound
    assert lie in LOST or run.now[1] == told.spent


CHARGED: dict[str, tuple[str, type, int, Callable[[Any], Any]]] = {
    "a visit twice in a pass": (PASS, Descend, 0, lambda q: [q, q]),
    "a block twice in a pass": (PASS, Descend, 0, lambda q: [alone(0)(q), q]),
    "a block twice under another offset": (
        PASS,
        Descend,
        0,
        lambda q: [alone(0)(q), alone(0)(q)],
    ),
    "another cap": (PASS, Descend, 0, lambda q: [alone(0)(q), both(alone(1), only(0.5))(q)]),
    "other centres": (
        PASS,
        Descend,
        0,
        lambda q: [alone(0)(q), shifted(alone(1)(q))],
    ),
    "a block of a pass of blocks twice": (BLOCKS, Descend, 0, lambda q: [q, q]),
    "a first batch twice": (FOLDS, Backward, 0, lambda q: [q, q]),
    "a sum twice": (SUM, Backward, 0, lambda q: [q, q]),
    "moments twice": (VISIT, Moments, 0, lambda q: [q, q]),
    "a selection twice": (PICK, Select, 0, lambda q: [q, q]),
    "products twice": (PRODUCTS, Gram, 0, lambda q: [q, q]),
}


def only(factor: float) -> Callable[[Any], Any]:
    """Scale the cap of a pass, in its blocks too."""

    def changed(query: Descend) -> Descend:
        ((party, steps),) = query.steps.items()
        new = tuple(
            replace(
                own,
                clip=replace(own.clip, cap=factor * own.clip.cap),
                event=replace(own.event, sensitivity=factor * own.event.sensitivity, sigma=factor * own.event.sigma),
            )
            for own in steps
        )
        assert query.capped is not None
        return capped(cap=factor * query.capped.cap)(replace(query, steps={party: new}))

    return changed


def shifted(query: Descend) -> Descend:
    """Centre the columns of a party elsewhere, in a pass and in its blocks."""
    ((party, steps),) = query.steps.items()
    new = tuple(replace(own, centre=own.centre + 1.0) for own in steps)

    def rows(own: Any) -> Any:
        return {to: (entry[0], entry[1] + (to == party), entry[2]) for to, entry in own.items()}

    return capped(rows=rows)(replace(query, steps={party: new}))


@pytest.mark.parametrize("lie", CHARGED)
def test_what_no_charge_covers_is_charged_again_or_not_asked_for(
    lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, told = lying(CHARGED[lie], tmp_path, monkeypatch)
    with contextlib.suppress(BudgetExceeded, Enough):
        run.go()
    queries: dict[ReleaseKey, list[Query]] = {}
    for key, _, query in run.transport.asked[told.asked :]:
        if type(query) is CHARGED[lie][1] and query.events():
            queries.setdefault(key, []).append(query)
    keys = list(queries)
    paid_for = [key for made in run.rounds for key, _ in made.charges]
    for key in keys[:2]:
        assert any((own.round, own.attempt) == (key.round, key.attempt) for own in paid_for), "asked for, not charged"
    assert len(keys) >= 1


@pytest.mark.parametrize("name", [PASS, BLOCKS])
@pytest.mark.parametrize(("after", "lost"), [(0, 1), (1, 1), (1, 2)])
def test_after_a_loss_no_charge_covers_a_column_twice(name: str, after: int, lost: int, tmp_path: Path) -> None:
    """The lost answer may have been seen, so that its repetition needs a charge of its own."""
    run = Run(spec(name), tmp_path, lambda job: Seen(job, Descend, after, lost))
    run.go()
    asked: list[tuple[ReleaseKey, str, int]] = []
    for _, to, query in run.transport.asked:
        if isinstance(query, Descend) and query.capped is not None and query.events():
            assert query.capped.paid is not None
            blocks = [own.block for own in query.ordered()]
            asked += [(query.capped.paid.key, to, j) for own in blocks for j in range(own.start, own.stop)]
    assert asked
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize("after", [0, 1, 3])
def test_after_a_loss_no_batch_is_asked_again_for_the_same_charge(after: int, tmp_path: Path) -> None:
    """The plan has one pass, so that a second charge is beyond it, and the run ends."""
    run = Run(spec(FOLDS), tmp_path, lambda job: Seen(job, Backward, after, 1))
    run.go()
    asked = [query.fold.number for _, to, query in run.transport.asked if to == "bank" and isinstance(query, Backward)]
    assert asked == list(range(after + 1))


@pytest.mark.parametrize(("after", "lost"), [(0, 1), (2, 3)])
def test_after_a_loss_a_sample_is_drawn_anew(after: int, lost: int, tmp_path: Path) -> None:
    """Seeded noise alone repeats a batch."""
    run = Run(spec(SAMPLED), tmp_path, lambda job: Seen(job, Backward, after, lost))
    batches: list[bytes] = []
    ask = run.transport.ask

    def noticed(shares: Any, records: Any, key: ReleaseKey) -> Any:
        if any(share.events() for share in shares.values()):
            batches.append((records.weights != 0.0).tobytes())
        return ask(shares, records, key)

    run.transport.ask = noticed
    run.go()
    assert len(batches) == len(set(batches)) > lost


@pytest.mark.parametrize(
    ("name", "kind", "lies"),
    [
        (PASS, Descend, lambda q: [alone(at)(told) for told in [dear(q)] for at in (0, 1)]),
        (FOLDS, Backward, lambda q: [cheaper(q), replace(cheaper(q), fold=Fold(1, q.fold.of, q.fold.seed))]),
    ],
)
def test_a_refused_charge_covers_nothing_that_follows(
    name: str, kind: type, lies: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a loss, a solver goes on where its budget ends. A part that follows the refused one is refused as well."""
    run = Run(spec(name), tmp_path, lambda job: Seen(job, RecordNorms, 0, 1))
    told = Lie(kind, 0, lies, goes_on=True)
    told.install(monkeypatch, lambda: run.now)
    with contextlib.suppress(PrivacyError, BudgetExceeded, Enough):
        run.go()
    assert told.told
    assert run.transport.lost == 0
    assert not [query for _, _, query in run.transport.asked[told.asked :] if query.events()]


def dear(query: Descend) -> Descend:
    """Price a pass so that no plan covers it."""
    ((party, steps),) = query.steps.items()
    new = tuple(replace(own, event=replace(own.event, sigma=1e-6 * own.event.sigma)) for own in steps)
    prices = tuple((replace(own, sigma=1e-6 * own.sigma), count) for own, count in query.capped.prices)  # type: ignore[union-attr]
    return capped(prices=prices)(replace(query, steps={party: new}))


def cheaper(query: Backward) -> Backward:
    return event(sigma=1e-6)(query)  # type: ignore[no-any-return]


# ---- replies ----


def released(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda reply: replace(reply, released=tuple(change(own) for own in reply.released))


def vector(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda reply: replace(reply, vector=None if reply.vector is None else change(reply.vector))


REPLIES: dict[str, tuple[str, type, Callable[[Any], Any]]] = {
    "a longer release": (SUM, Backward, released(longer)),
    "a shorter release": (SUM, Backward, released(lambda own: own[:-1])),
    "no release": (SUM, Backward, lambda reply: replace(reply, released=())),
    "two releases": (SUM, Backward, lambda reply: replace(reply, released=2 * reply.released)),
    "one step of two": (PASS, Descend, lambda reply: replace(reply, released=reply.released[:1])),
    "a release that is no number": (SUM, Backward, released(lambda own: own * np.nan)),
    "an infinite release": (VISIT, Descend, released(lambda own: own + np.inf)),
    "a release of norms": (PASS, RecordNorms, lambda reply: replace(reply, released=(np.zeros(1),))),
    "a selection of a sum": (SUM, Backward, lambda reply: replace(reply, selected=NoisyScore(0, 0))),
    "no selection": (PICK, Select, lambda reply: replace(reply, selected=None)),
    "a selection and a release": (PICK, Select, lambda reply: replace(reply, released=(np.zeros(1),))),
    "a selection before the first column": (
        PICK,
        Select,
        lambda reply: replace(reply, selected=NoisyScore(-1, 1 << 99)),
    ),
    "a selection behind the last column": (PICK, Select, lambda reply: replace(reply, selected=NoisyScore(4, 1 << 99))),
    "a negative time": (SUM, Backward, lambda reply: replace(reply, seconds=-1.0)),
    "a time that is no number": (SUM, Backward, lambda reply: replace(reply, seconds=np.nan)),
    "an infinite time": (SUM, Backward, lambda reply: replace(reply, seconds=np.inf)),
    "no reply": (SUM, Backward, lambda reply: Notice(Phase.OPEN, "r", "run r")),
    "margins of a float32 vector, reset": (SUM, Forward, vector(lambda own: own.astype(np.float32))),
    "norms of a float32 vector": (PASS, RecordNorms, vector(lambda own: own.astype(np.float32))),
    "norms of a float32 vector beside float32 margins": (
        "float32",
        RecordNorms,
        vector(lambda own: own.astype(np.float32)),
    ),
    "a visit of a float32 vector": (VISIT, Descend, vector(lambda own: own.astype(np.float32))),
}


class Lying(Seen):
    """A transport whose party 'bank' lies in each reply to a kind of query."""

    def __init__(self, job: Any, kind: type, lie: Callable[[Any], Any]) -> None:
        super().__init__(job)
        self.kind, self.lie = kind, lie

    def _post(self, call: Any) -> Any:
        posted = super()._post(call)
        query = call.message[0] if isinstance(call.message, tuple) else None
        if call.to != "bank" or type(query) is not self.kind:
            return posted
        reply, sent = posted.answer
        given = self.lie(replace(reply, vector=sent.get("vector")) if isinstance(reply, Reply) else reply)
        if isinstance(given, Reply) and given.vector is not None:
            sent = {"vector": given.vector}
        return replace(posted, answer=(replace(given, vector=None) if isinstance(given, Reply) else given, sent))


@pytest.mark.parametrize(("name", "kind"), sorted({(name, kind) for name, kind, _ in REPLIES.values()}, key=repr))
def test_a_coordinator_takes_the_honest_replies(name: str, kind: type, tmp_path: Path) -> None:
    run = Run(spec(name), tmp_path, lambda job: Lying(job, kind, same))
    run.go()
    assert [made for made in run.rounds if made.kind == kind.__name__ and "bank" in made.parties]


@pytest.mark.parametrize("lie", REPLIES)
def test_a_coordinator_takes_no_reply_that_does_not_answer_its_query(lie: str, tmp_path: Path) -> None:
    name, kind, change = REPLIES[lie]
    run = Run(spec(name), tmp_path, lambda job: Lying(job, kind, change))
    with pytest.raises((PrivacyError, FederationError)):
        run.go()
    assert not [made for made in run.rounds if made.kind == kind.__name__ and "bank" in made.parties]


# ---- training on shares ----

ROWS, COLUMNS = 24, 3
DATA = of_shares(ROWS, COLUMNS)
SHARED = {
    "gradient": on_shares(p=COLUMNS, solver=vfl.solvers.GD(passes=1)),
    "pass": on_shares(p=COLUMNS, solver=vfl.SkGD(block_size=2, passes=1)),
    "products": on_shares(
        p=COLUMNS, loss="squared", solver=vfl.solvers.NoisyGram(), bounds={"*": (-2, 2), "y": (-1, 2)}
    ),
}
ALONE: dict[str, tuple[str, type, Callable[[Any], Any]]] = {
    "a selection": ("gradient", Backward, lambda q: Select(q.weighting, {}, {}, {}, q.clip, {}, None)),
    "a tally of margins": ("pass", Moments, lambda q: of_margins(q)),  # noqa: PLW0108 - defined below
    "a tally of held-out labels": ("pass", Moments, tally(Side.HELD_OUT)),
    "a measure of held-out records": ("gradient", Backward, lambda q: of_moments()),
    "a secret sample": ("gradient", Backward, lambda q: Sample(1.0)),
    "a gradient in a job of products": (
        "products",
        Gram,
        lambda q: Backward(
            Derivative(Logistic()), q.blocks, q.centres, q.scales, Clip(1.0, 4), Clip(1.0, 4).event(1e3)
        ),
    ),
    "a second part of products": ("products", Gram, field("fold", Piece(1, 2, ()))),
    "products under another event": ("products", Gram, event(sigma=2.0)),
    "an exact gradient": ("gradient", Backward, field("event", None)),
    "an exact block": ("pass", Descend, step(event=None)),
    "exact products": ("products", Gram, field("event", None)),
    "a gradient of a batch": ("gradient", Backward, field("fold", Fold(0, 2, (1,)))),
    "a gradient of a subsample": ("gradient", Backward, field("subsample", 0)),
}


def of_moments() -> SharedTally:
    statistic = HistogramMoments(64)
    event = Gaussian(Adjacency.REPLACE_ONE, statistic.sensitivity, 1e3, statistic.dimension)
    return SharedTally(statistic, event, Side.HELD_OUT, 0)


def of_margins(query: Moments) -> Tally:
    statistic = Scores(np.zeros(1))
    return Tally(statistic, Gaussian(Adjacency.REPLACE_ONE, statistic.sensitivity, 1e3, statistic.dimension))


@pytest.mark.parametrize("lie", ALONE)
def test_no_participant_learns_of_records_on_shares(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, kind, change = ALONE[lie]
    data = DATA if name != "products" else {**DATA, "y": DATA["y"] + 0.1 * DATA["x0"]}
    transport = Watched(SHARED[name], data)
    told = Lie(kind, 0, change)
    told.install(monkeypatch, lambda: (len(transport.replies), 0.0))
    with pytest.raises(PrivacyError):
        list(Coordinator(transport).stream(transport.spec))
    assert told.told
    assert not [own for own in transport.replies[told.asked :] if isinstance(own, Contribution | Reply)]


def test_no_vector_with_an_entry_per_record_is_taken_on_shares() -> None:
    class Open(Watched):
        def ask(self, shares: Any, records: Any, key: Any) -> Any:
            replies = super().ask(shares, records, key)
            return {to: replace(reply, vector=np.zeros(ROWS)) for to, reply in replies.items()}

    transport = Open(SHARED["pass"], DATA)
    with pytest.raises(PrivacyError, match="entry per record"):
        list(Coordinator(transport).stream(transport.spec))
