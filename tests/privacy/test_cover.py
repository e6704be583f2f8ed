"""The rule of what a charge covers, against an oracle that keeps every release, at the coordinator and at a party.

Each world makes random sequences of queries, losses, refused charges, replays and restarts. The oracle knows no rule: it keeps
all releases that may have been made, with the charge that paid, and complains about a charge that paid for a unit twice, for
releases in different frames, or that was never made. Defects that are put into `Cover` must make it complain.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vfl
from coordinator.charging import charger as coordinators
from coordinator.charging.budget import Earlier
from coordinator.charging.charger import Charger
from parties import charges as books
from parties import record_cap
from parties.charges import Charges
from parties.record_cap import OwnCap
from tests.privacy.test_record_cap import ROWS, P, cap_of, visit
from tests.solvers import setting
from vfl.base.losses import loss_of
from vfl.base.types import Adjacency
from vfl.errors import BudgetExceeded, ConsentRefused, PrivacyError
from vfl.privacy.cover import Answer, Cover, Frame
from vfl.privacy.events import PoissonSubsampledGaussian, ReleaseKey
from vfl.privacy.geometry import Clip
from vfl.privacy.noise import CryptographicNoise, SeededNoise
from vfl.queries import Backward, Fold, Sample
from vfl.queries.protocol import Derivative

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from vfl.queries import Query, RecordCap

RUNS = 150
"""Random sequences per test."""


# ---- the rule alone ----


class Oracle:
    """The rule, from a list of everything that was accepted."""

    def __init__(self) -> None:
        self.accepted: list[tuple[Any, Frame, tuple[int, ...]]] = []

    def admit(self, frame: Frame, units: Sequence[int], charge: Any, after: int | None) -> Answer:
        own = [(known, used) for name, known, used in self.accepted if name == charge]
        answers = (Answer.RECORDS, Answer.EVENTS, Answer.WHOLE)
        for known, _ in own[:1]:
            for k, answer in enumerate(answers):
                if known[k] != frame[k]:
                    return answer
        before = [unit for _, used in own for unit in used]
        if any((before + list(units)).count(unit) > 1 for unit in units):
            return Answer.TWICE
        if after is not None and after not in before:
            return Answer.ORDER
        self.accepted.append((charge, frame, tuple(units)))
        return Answer.COVERED if own else Answer.NEW


FRAMES = st.builds(Frame, st.sampled_from([None, 0, 1]), st.sampled_from("ef"), st.sampled_from("vw"))
CHARGES = st.sampled_from([None, ReleaseKey(1)])
ASKED = st.tuples(
    st.just("admit"), FRAMES, st.lists(st.integers(0, 3), max_size=3), CHARGES, st.none() | st.integers(0, 3)
)
STEPS = st.lists(ASKED | st.tuples(st.sampled_from(["void", "save", "restore"]), CHARGES), max_size=14)


def differences(steps: list[Any]) -> list[str]:
    """Return where `Cover` answers differently from the oracle."""
    cover, oracle, found = coordinators.Cover(), Oracle(), []
    saved: tuple[Cover, list[Any]] = cover.copy(), []
    for name, *given_ in steps:
        if name == "admit":
            frame, units, charge, after = given_
            made, expected = cover.admit(frame, units, charge, after=after), oracle.admit(frame, units, charge, after)
            if made is not expected:
                found.append(f"{made} instead of {expected}")
        elif name == "void":
            cover.void(given_[0])
            oracle.accepted = [one for one in oracle.accepted if one[0] != given_[0]]
        elif name == "save":
            saved = cover.copy(), list(oracle.accepted)
        else:
            cover = saved[0].copy()
            oracle.accepted = list(saved[1])
    return found


@settings(max_examples=400, deadline=None)
@given(steps=STEPS)
def test_the_rule_answers_like_a_list_of_everything(steps: list[Any]) -> None:
    assert differences(steps) == []


def test_a_repeated_release_is_no_second_one_with_seeded_noise() -> None:
    cover, frame = Cover(repeats=True), Frame(None, "e", "w")
    assert [cover.admit(frame, [k], after=k - 1 if k else None) for k in (0, 1, 1, 0, 2)] == [
        Answer.NEW,
        *[Answer.COVERED] * 4,
    ]
    assert cover.admit(frame._replace(events="f"), [3]) is Answer.EVENTS
    assert cover.admit(frame, [5], after=4) is Answer.ORDER


# ---- both ends of a run ----


@dataclass
class Ledger:
    """Charges that were made; it refuses some."""

    rng: random.Random
    refuses: float = 0.1
    made: dict[ReleaseKey, Any] = field(default_factory=dict)

    def charge(self, items: Any) -> None:
        if self.rng.random() < self.refuses:
            raise BudgetExceeded("no more")
        self.made.update(items)


@dataclass
class Releases:
    """All releases that may have been made: {what paid: {(noise, frame, unit)}}, or every attempt if noise never repeats."""

    ledger: Ledger
    repeats: bool
    paid: dict[Any, Counter[Any]] = field(default_factory=dict)

    def add(self, payer: Any, noise: Any, frame: Any, units: Sequence[Hashable]) -> None:
        known = self.paid.setdefault(payer, Counter())
        for unit in units:
            one = noise, frame, unit
            known[one] = 1 if self.repeats else known[one] + 1

    def complaints(self) -> list[str]:
        found = []
        for payer, releases in self.paid.items():
            units = Counter(unit for _, _, unit in releases.elements())
            frames = {frame for _, frame, _ in releases}
            if max(units.values(), default=0) > 1:
                found.append(f"{payer} paid for a unit twice")
            if len(frames) > 1:
                found.append(f"{payer} paid for releases in different frames")
            if isinstance(payer, ReleaseKey) and payer not in self.ledger.made:
                found.append(f"{payer} was never charged")
            if payer is None:
                found.append("nothing paid")
        return found


CLIP = Clip(1.0, P)
EVENT = CLIP.event(1.0)


def batch(fold: Fold, event: Any = EVENT) -> Backward:
    return Backward(Derivative(loss_of("squared")), (ROWS[0],), (ROWS[1],), (ROWS[2],), CLIP, event, fold=fold)


def sampled() -> Backward:
    event = PoissonSubsampledGaussian(Adjacency.REPLACE_ONE, EVENT.sensitivity, EVENT.sigma, 0.5)
    return replace(batch(Fold(0, 1, ())), fold=None, event=event)


class Run:
    """The coordinator's end: a schedule that asks anything, parties that are lost, and processes that end."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - sequences of a test
        self.private = seed % 2 == 0
        self.ledger = Ledger(self.rng)
        self.releases = Releases(self.ledger, not self.private)
        self.caps = [replace(cap_of(1.0), paid=None) for _ in range(2)]
        self.log: list[tuple[str, Query]] = []
        self.complaints: list[str] = []
        self.attempts = 0
        self.batch_payer: Any = None
        self.sample: Any = None
        self.subsample = 0
        self.charger = self.process()

    def process(self) -> Charger:
        noise = CryptographicNoise() if self.private else SeededNoise(1)
        made = self.ledger.made if self.private else {}
        earlier = Earlier(max((key.attempt + 1 for key in made), default=0), Counter(key.round for key in made))
        return Charger(self.ledger, noise=noise, earlier=earlier)  # type: ignore[arg-type]

    def resume(self) -> None:
        """Start a process, which replays the log."""
        self.charger, subsample = self.process(), 0
        for number, (kind, query) in enumerate(self.log):
            if query.subsample != subsample:
                subsample = query.subsample or 0
                self.charger.begin()
            if kind == "left":
                self.charger.given_up(query, number)
            elif kind == "answered":
                key = self.charger.replayed(query, number)
                if query.draws is not None:  # a replay draws it again
                    self.sample = self.drawn(key)
        if subsample != self.subsample:
            self.charger.begin()

    def drawn(self, key: ReleaseKey) -> Any:
        self.attempts += 1
        return ("sample", self.attempts if self.private else key)

    def query(self) -> Query:
        rng = self.rng
        match rng.choice(["visit", "visit", "visit", "batch", "batch", "next", "next", "sample", "sampled"]):
            case "visit":
                cap = self.caps[rng.random() < 0.2]
                asked: Query = replace(
                    visit(cap_of(1.0), [rng.randrange(P) for _ in range(rng.choice([1, 1, 2]))]), capped=cap
                )
            case "batch":
                of = rng.choice([2, 3])
                event = EVENT if rng.random() < 0.8 else replace(EVENT, sigma=2 * EVENT.sigma)
                asked = batch(Fold(rng.randrange(of), of, (rng.randrange(2),)), event)
            case "next":
                last = next((q for _, q in reversed(self.log) if isinstance(q, Backward) and q.fold is not None), None)
                fold = Fold(0, 3, (0,)) if last is None or last.fold is None else last.fold
                asked = batch(replace(fold, number=(fold.number + (last is not None)) % fold.of))
            case "sample":
                asked = Sample(0.5)
            case _:
                asked = sampled()
        return replace(asked, subsample=self.subsample)

    def attempt(self, query: Query, number: int) -> Any:
        """Ask once. Return the charges, None if the query was refused."""
        try:
            made = self.charger.charge(query, number)
        except PrivacyError:
            return None
        self.attempts += 1
        noise = self.attempts if self.private else (made.key.round, made.key.attempt)
        if made.sample is not None:
            self.sample = self.drawn(made.sample[1])
        if query.draws is not None:
            self.sample = self.drawn(made.key)
        cap, fold = made.query.capped, query.batch
        if cap is not None:
            assert cap.paid is not None
            columns = [j for term in query.terms() for j in range(term.block.start, term.block.stop)]
            self.releases.add(cap.paid.key, noise, (id(query.capped), self.subsample), columns)
            if self.ledger.made.get(cap.paid.key) != cap.paid.event:
                self.complaints.append("a pass was charged under another event")
        elif fold is not None:
            if made.charges:
                self.batch_payer = made.charges[0][0]
            frame = fold.of, fold.seed, query.events(), self.subsample
            self.releases.add(self.batch_payer, noise, frame, [fold.number])
        elif any(isinstance(event, PoissonSubsampledGaussian) for event in query.events()):
            self.releases.add(self.sample, noise, "sampled", ["use"])
        return made.charges

    def step(self) -> None:
        rng, number = self.rng, len(self.log)
        if rng.random() < 0.03:
            self.subsample += 1
            self.charger.begin()
        query = self.query()
        kind, charges, first = "answered", None, True
        while True:
            try:
                again = self.attempt(query, number)
            except BudgetExceeded:
                kind = "refused"
                break
            if again is None:
                kind = "refused"
                if not first:
                    self.complaints.append("a repetition was refused")
                break
            if not first and not self.private and again != charges:
                self.complaints.append("a repetition with the same noise was charged differently")
            charges, first = again, False
            lost = rng.random()
            if lost < 0.1:  # the process ends before it logs the answer
                self.resume()
                first = True
            elif lost < 0.25:
                self.charger.lost()
                if rng.random() < 0.3:
                    self.charger.given_up(query, number)
                    kind = "left"
                    break
            else:
                break
        self.log.append((kind, query))
        if rng.random() < 0.05:
            self.resume()


def of_coordinator(seed: int) -> list[str]:
    """Return the complaints about a run's charges."""
    run = Run(seed)
    for _ in range(25):
        run.step()
    return run.complaints + run.releases.complaints()


class Owner:
    """A party's end, with a coordinator that lies about keys, events, caps, batches and subsamples."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - sequences of a test
        self.ledger = Ledger(self.rng, refuses=0.2)
        self.releases = Releases(self.ledger, repeats=False)
        self.payer: Any = None
        self.rounds = 0
        self.caps = [cap_of(1.0), cap_of(1.0, scale=np.full(P, 2.0))]
        self.start()

    def start(self) -> None:
        """Start a process of the party, which finds its account."""
        spec = setting.job(vfl.SkGD(), privacy=vfl.Privacy(epsilon=1.0))
        self.charges, self.cap = Charges(spec, "a"), OwnCap("a", P, repeats=False)
        self.charges._reservation = self.ledger  # type: ignore[assignment]
        self.charges._made = set(self.ledger.made)

    def query(self) -> tuple[Query, RecordCap | None]:
        rng = self.rng
        if rng.random() < 0.5:
            event = EVENT if rng.random() < 0.8 else replace(EVENT, sigma=2 * EVENT.sigma)
            of, subsample = rng.choice([2, 3]), rng.choice([None, 0])
            number = rng.randrange(of) if self.rounds % 3 else (self.rounds // 3) % of
            return replace(batch(Fold(number, of, (0,)), event), subsample=subsample), None
        whole = self.caps[rng.random() < 0.2]
        assert whole.paid is not None
        z = rng.choice([1.0, 1.0, 2.0])
        event = replace(whole.paid.event, sigma=z * whole.paid.event.sensitivity)
        paid = replace(whole.paid, key=ReleaseKey(rng.randrange(4), attempt=9), event=event)
        asked = visit(whole, [rng.randrange(P) for _ in range(rng.choice([1, 1, 2]))], z=z, paid=paid)
        _, centre, scale = whole.rows["a"]
        steps = {
            "a": tuple(
                replace(step, centre=centre[step.block.local], scale=scale[step.block.local])
                for step in asked.steps["a"]
            )
        }
        asked = replace(asked, steps=steps, subsample=rng.choice([None, None, 1]))
        return asked, asked.capped

    def step(self) -> None:
        if self.rng.random() < 0.05:
            self.start()
        query, cap = self.query()
        self.rounds += 1
        before = set(self.ledger.made)
        try:
            if cap is not None:
                self.cap.admit(query, cap)
            self.charges.record(query, ReleaseKey(100 + self.rounds))
        except (PrivacyError, ConsentRefused):
            return
        if cap is not None:
            assert cap.paid is not None
            columns = [j for term in query.terms() for j in range(term.block.start, term.block.stop)]
            frame = cap.paid.event.sigma, cap.rows["a"][2].tobytes(), query.subsample
            self.releases.add(cap.paid.key, self.rounds, frame, columns)
            return
        new = set(self.ledger.made) - before
        self.payer = new.pop() if new else self.payer
        fold = query.batch
        assert fold is not None
        self.releases.add(self.payer, self.rounds, (fold.of, query.events(), query.subsample), [fold.number])


def of_party(seed: int) -> list[str]:
    """Return the complaints about a party's charges."""
    owner = Owner(seed)
    for _ in range(30):
        owner.step()
    return owner.releases.complaints()


@pytest.mark.parametrize("world", [of_coordinator, of_party])
def test_no_charge_pays_twice(world: Callable[[int], list[str]]) -> None:
    for seed in range(RUNS):
        assert world(seed) == [], seed


@pytest.mark.parametrize("kind", ["visit", "batch"])
def test_a_query_that_is_inconsistent_opens_no_charge(kind: str) -> None:
    """The query is refused before it is paid for, so nothing pays for the query that follows."""
    ledger = Ledger(random.Random(0), refuses=0.0)  # noqa: S311 - refuses nothing
    charger, cap = Charger(ledger, noise=CryptographicNoise()), replace(cap_of(1.0), paid=None)  # type: ignore[arg-type]
    asked: list[Any]
    if kind == "visit":
        asked = [replace(visit(cap_of(1.0), [j]), capped=cap) for j in (0, 1)]
        (step,) = asked[0].steps["a"]
        asked[0] = replace(asked[0], steps={"a": (replace(step, scale=np.ones(P + 1)),)})
    else:
        asked = [batch(Fold(k, 3, (0,))) for k in (0, 1)]
        asked[0] = replace(asked[0], scales=(np.ones(P + 1),))
    with pytest.raises(PrivacyError, match="a vector of another length"):
        charger.charge(asked[0], 0)
    try:
        assert charger.charge(asked[1], 1).charges
    except PrivacyError:
        assert kind == "batch"  # a batch that follows none is refused


# ---- defects ----


class ForgetsUnits(Cover):
    """Records no unit."""

    def admit(self, frame: Frame, units: Any, charge: Any = None, *, after: Any = None) -> Answer:
        answer = super().admit(frame, units, charge, after=None)
        self._charges = {name: (known, frozenset()) for name, (known, _) in self._charges.items()}
        return answer


def blind(part: str) -> type[Cover]:
    """Return a `Cover` that does not compare a part of the frame."""

    class Blind(Cover):
        def admit(self, frame: Frame, units: Any, charge: Any = None, *, after: Any = None) -> Answer:
            return super().admit(frame._replace(**{part: None}), units, charge, after=after)

    return Blind


class KeepsCharges(Cover):
    """Keeps a charge that was refused or lost."""

    def void(self, charge: Any = None) -> None:
        pass

    def renew(self, frame: Frame, units: Any, charge: Any = None) -> Answer:
        self._charges.pop(charge, None)
        return self.admit(frame, units, charge)


class NeverGoesBack(Cover):
    """Keeps the units of a lost release with seeded noise."""

    def copy(self) -> Cover:
        return self


class CountsOnce(Cover):
    """Sees no unit twice within one query."""

    def admit(self, frame: Frame, units: Any, charge: Any = None, *, after: Any = None) -> Answer:
        return super().admit(frame, list(dict.fromkeys(units)), charge, after=after)


class NeedsNoOrder(Cover):
    """Takes a batch after any other."""

    def admit(self, frame: Frame, units: Any, charge: Any = None, *, after: Any = None) -> Answer:
        return super().admit(frame, units, charge)


class RefusesAreRecorded(Cover):
    """Opens a charge with a refused release."""

    def admit(self, frame: Frame, units: Any, charge: Any = None, *, after: Any = None) -> Answer:
        answer = super().admit(frame, units, charge, after=after)
        self._charges.setdefault(charge, (frame, frozenset(units)))
        return answer


DEFECTS: dict[str, tuple[type[Cover], set[str]]] = {
    "forgets units": (ForgetsUnits, {"rule", "coordinator", "party"}),
    "compares no subsample": (blind("records"), {"rule", "party"}),  # a coordinator begins anew with each subsample
    "compares no event": (blind("events"), {"rule", "coordinator", "party"}),
    "compares no whole": (blind("whole"), {"rule", "coordinator", "party"}),
    "keeps a refused charge": (KeepsCharges, {"rule", "coordinator", "party"}),
    "never goes back": (NeverGoesBack, {"rule", "coordinator"}),
    "counts a unit once per query": (CountsOnce, {"rule"}),  # both ends count repetitions by themselves
    # A coordinator closes its charges after every refusal, so no later query finds them open.
    "needs no order": (NeedsNoOrder, {"rule"}),
    "records what it refuses": (RefusesAreRecorded, {"rule"}),
}


def noticed(end: str, seed: int) -> bool:
    """Return True if an oracle complains about a random sequence."""
    if end == "rule":
        rng = random.Random(seed)  # noqa: S311 - sequences of a test
        frames = [Frame(records, event, whole) for records in (None, 0) for event in "ef" for whole in "vw"]
        steps: list[Any] = []
        for _ in range(14):
            charge = rng.choice([None, 1])
            asked = (
                (rng.choice(frames[:2]) if rng.random() < 0.7 else rng.choice(frames)),
                [rng.randrange(4) for _ in range(rng.randrange(3))],
            )
            steps.append(
                ("admit", *asked, charge, rng.choice([None, None, 0, 1]))
                if rng.random() < 0.7
                else (rng.choice(["void", "save", "restore"]), charge)
            )
        return differences(steps) != []
    try:
        return {"coordinator": of_coordinator, "party": of_party}[end](seed) != []
    except AssertionError:
        return True


@pytest.mark.parametrize("defect", DEFECTS)
def test_every_defect_is_noticed(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, ends = DEFECTS[defect]
    for module in (coordinators, books, record_cap):
        monkeypatch.setattr(module, "Cover", kind)
    assert {end for end in ends if any(noticed(end, seed) for seed in range(RUNS))} == ends
