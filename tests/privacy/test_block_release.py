"""Attacks on a party's releases: replace one record by anything, and check the charge that precedes the release.

A sum without noise (event=None) shows the exact integers to which the noise is added. Under replace-one they may move
by the event's sensitivity at most, whatever the record was and becomes.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import parties.party
import vfl
from coordinator.charging.charger import Charger
from coordinator.executor import Executor
from coordinator.rounds import rounds
from coordinator.states.linear_predictors import LinearPredictors
from parties.storage.dense import Columns
from tests.parties.alone import party_over
from vfl.base.losses import Logistic, Squared
from vfl.base.problem import Block
from vfl.base.types import Adjacency
from vfl.errors import BudgetExceeded, PrivacyError
from vfl.job.flags import exact_queries
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.planning import plan as make_plan
from vfl.privacy.events import Gaussian, ReleaseKey
from vfl.privacy.geometry import GRID_BITS, Clip
from vfl.privacy.ledger import FitBudget
from vfl.privacy.noise import SeededNoise
from vfl.queries import Backward, Descend, Moments, Query, Records, Step
from vfl.queries.moments import PAIR, moments_sensitivity
from vfl.queries.protocol import Derivative

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parties.party import Party
    from vfl.queries import Reply

KEY = ReleaseKey(0)
N = 5


@dataclass(frozen=True)
class Inverse:
    """A weighting without a kernel of its own: 1/(v − y), with infinities and NaN."""

    kernel: ClassVar[str] = ""

    def __call__(self, margins: np.ndarray, labels: np.ndarray, kept: dict) -> tuple[np.ndarray, dict]:
        with np.errstate(all="ignore"):
            return 1.0 / (margins - labels), {}


@dataclass(frozen=True)
class Given:
    """A rule that moves by given amounts, so that runs on both neighbours take the same path."""

    delta: np.ndarray

    def __call__(self, w: np.ndarray, u: np.ndarray) -> np.ndarray:
        return self.delta


anything = st.one_of(
    st.floats(),  # NaN, infinities, subnormal and huge numbers included
    st.floats(-2, 2),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1e308, -1e308, 1e-308, 5e-324, math.nan, math.inf, -math.inf]),
)
WEIGHTINGS = (Derivative(Logistic()), Derivative(Squared()), Inverse())


def party_of(X: np.ndarray, *, name: str = "a", seed: int = 0) -> Party:
    columns = Columns(np.asfortranarray(X, dtype=np.float64), tuple(f"x{j}" for j in range(X.shape[1])))
    return party_over(name, columns, SeededNoise(seed), exact=(Query,))


def moved(one: np.ndarray, other: np.ndarray, grid: float) -> Fraction:
    """Return ‖one − other‖² in units of the grid, exactly."""
    steps = [Fraction(a) / Fraction(grid) - Fraction(b) / Fraction(grid) for a, b in zip(one, other, strict=True)]
    assert all(step.denominator == 1 for step in steps), "released sums are whole multiples of the grid"
    return sum((step**2 for step in steps), Fraction())


def allowed(sensitivity: float, grid: float) -> Fraction:
    return (Fraction(sensitivity) / Fraction(grid)) ** 2


@st.composite
def neighbours(draw: st.DrawFn) -> dict[str, Any]:
    """Two data sets that differ in one record: its row, its label, and its margin or weight are arbitrary."""
    s = draw(st.integers(1, 4))
    row = st.lists(anything, min_size=s + 2, max_size=s + 2)
    rows = np.array(draw(st.lists(row, min_size=N, max_size=N)))
    if draw(st.booleans()):
        rows[1:] = rows[1]  # ties
    other = rows.copy()
    other[draw(st.integers(0, N - 1))] = draw(row)
    positive = st.one_of(st.floats(1e-3, 1e3), st.floats(1e-290, 1e290))
    return {
        "s": s,
        "rows": (rows, other),
        "scale": np.array(draw(st.lists(positive, min_size=s, max_size=s))),
        "centre": np.array(draw(st.lists(st.floats(-1, 1), min_size=s, max_size=s))),
        "clip": Clip(draw(st.floats(1e-6, 1e6) | st.sampled_from([1.0, 2.0**-20, 1 - 2**-53])), s),
    }


class TestSensitivity:
    @settings(max_examples=150, deadline=None)
    @given(case=neighbours())
    def test_backward(self, case: dict[str, Any]) -> None:
        s, clip = case["s"], case["clip"]
        block = Block(0, "a", 0, s, 0)
        query = Backward(WEIGHTINGS[0], (block,), (case["centre"],), (case["scale"],), clip, None)
        one, other = (
            party_of(rows[:, :s]).answer(query, Records(weights=rows[:, s].copy()), KEY).released[0]
            for rows in case["rows"]
        )
        assert moved(one, other, clip.grid) <= allowed(clip.sensitivity, clip.grid)

    @settings(max_examples=150, deadline=None)
    @given(case=neighbours(), weighting=st.sampled_from(WEIGHTINGS), delta=anything, recomputes=st.booleans())
    def test_every_step_of_a_visit(self, case: dict[str, Any], weighting: Any, delta: float, recomputes: bool) -> None:
        """Each step is a separate release: given the earlier ones, it moves by its own sensitivity."""
        s = case["s"]
        cuts = [0, s] if s == 1 else [0, s // 2, s]
        steps = []
        for k, (start, stop) in enumerate([*itertools.pairwise(cuts), (0, s)]):
            S = slice(start, stop)
            clip = Clip(case["clip"].cap, stop - start)
            rule = Given(np.full(stop - start, delta))
            steps.append(Step(Block(k, "a", start, stop, 0), case["centre"][S], case["scale"][S], clip, rule, None))
        query = Descend(weighting, {"a": tuple(steps)}, {"a": np.zeros(s)}, recomputes=recomputes)
        released = []
        for rows in case["rows"]:
            X, y, v = rows[:, :s], rows[:, s].copy(), rows[:, s + 1].copy()
            records = Records(margins=v, labels=y) if recomputes else Records(weights=v)
            with np.errstate(all="ignore"):
                released.append(party_of(X).answer(query, records, KEY).released)
        for step, one, other in zip(steps, *released, strict=True):
            assert moved(one, other, step.clip.grid) <= allowed(step.clip.sensitivity, step.clip.grid)

    @settings(max_examples=150, deadline=None)
    @given(case=neighbours(), means=st.booleans(), split=st.integers(0, 4))
    def test_moments_of_all_parties_together(self, case: dict[str, Any], means: bool, split: int) -> None:
        """One event covers all parties jointly: a record may be extreme at every party."""
        s = case["s"]
        cut = min(split, s)
        owned = {"a": slice(0, cut), "b": slice(cut, s)}
        owned = {q: S for q, S in owned.items() if S.stop > S.start}
        widths = {q: S.stop - S.start for q, S in owned.items()}
        reach = {q: np.clip(case["scale"][S], 1e-140, 1e140) for q, S in owned.items()}
        shares = Moments(widths, reach, means, None).shares()
        one, other = (
            np.concatenate(
                [party_of(rows[:, S], name=q).answer(shares[q], Records(), KEY).released[0] for q, S in owned.items()]
            )
            for rows in case["rows"]
        )
        grid = 2.0**-GRID_BITS
        assert moved(one, other, grid) <= allowed(moments_sensitivity(s, means=means), grid)

    @pytest.mark.parametrize("s", [1, 2, 3, 8])
    @pytest.mark.parametrize("cap", [0.7, 1.0, 3e-5, 1e4])
    def test_the_worst_record_attains_the_sensitivity(self, s: int, cap: float) -> None:
        """The sensitivity cannot be smaller: a record that changes its sign moves the sum by Δ up to rounding."""
        clip = Clip(cap * math.sqrt(s), s)
        block = Block(0, "a", 0, s, 0)
        query = Backward(WEIGHTINGS[0], (block,), (np.zeros(s),), (np.ones(s),), clip, None)
        X = np.ones((N, s))
        one, other = (
            party_of(X).answer(query, Records(weights=np.array([sign * 1e6, 1.0, 1.0, 1.0, 1.0])), KEY).released[0]
            for sign in (1, -1)
        )
        attained = math.sqrt(moved(one, other, clip.grid)) * clip.grid
        assert attained == pytest.approx(clip.sensitivity, rel=1e-5)

    @pytest.mark.parametrize("means", [True, False])
    def test_the_worst_record_attains_the_sensitivity_of_the_moments(self, means: bool) -> None:
        x = 1.0 - (6.0 - math.sqrt(2.0)) / 4.0 if means else 0.0
        grid, m = 2.0**-GRID_BITS, 3
        query = Moments({"a": m}, {"a": np.ones(m)}, means, None)
        one, other = (
            party_of(np.vstack([np.full(m, x0), np.full((N, m), 0.3)])).answer(query, Records(), KEY).released[0]
            for x0 in (1.0, x)
        )
        attained = math.sqrt(moved(one, other, grid)) * grid
        assert attained <= moments_sensitivity(m, means=means)
        assert attained == pytest.approx(moments_sensitivity(m, means=means), rel=3e-5)

    def test_the_constant_of_a_pair_is_the_maximum(self) -> None:
        """Maximise ((x − x')/2)² + (x² − x'²)² over the square on a fine grid, then around its best point."""
        centre, width = (0.0, 0.0), 1.0
        for _ in range(12):
            x, y = (np.clip(np.linspace(c - width, c + width, 401), -1.0, 1.0) for c in centre)
            values = ((x[:, None] - y[None, :]) / 2) ** 2 + (x[:, None] ** 2 - y[None, :] ** 2) ** 2
            i, j = np.unravel_index(values.argmax(), values.shape)
            centre, width = (float(x[i]), float(y[j])), width / 10
        assert values.max() <= PAIR < values.max() + 1e-4

    @settings(max_examples=200, deadline=None)
    @given(x=st.floats(-1, 1), y=st.floats(-1, 1))
    @example(x=1.0, y=1.0 - (6.0 - math.sqrt(2.0)) / 4.0)
    @example(x=1.0, y=-1.0)
    def test_no_pair_beats_the_constant(self, x: float, y: float) -> None:
        assert ((x - y) / 2) ** 2 + (x * x - y * y) ** 2 <= PAIR

    def test_sums_without_a_clip_cannot_be_charged(self) -> None:
        """Noise off is event None. An event on unbounded sums is refused before noise is drawn."""
        block, event = Block(0, "a", 0, 1, 0), Gaussian(Adjacency.REPLACE_ONE, 1.0, 1.0, 1)
        records = Records(weights=np.ones(N))
        plain = Backward(WEIGHTINGS[0], (block,), (np.zeros(1),), (np.ones(1),), Clip(math.inf, 1), None)
        assert party_of(np.ones((N, 1))).answer(plain, records, KEY).released[0] == [N]
        with pytest.raises(PrivacyError, match="exact integer sums"):
            party_of(np.ones((N, 1))).answer(replace(plain, event=event), records, KEY)
        exact = Moments({"a": 1}, None, means=True, event=event)
        with pytest.raises(PrivacyError, match="exact integer sums"):
            party_of(np.ones((N, 1))).answer(exact, Records(), KEY)


def test_releases_of_one_query_have_noise_of_their_own() -> None:
    """Columns of zeros release only noise, so no two numbers of a run may be equal."""
    event = Gaussian(Adjacency.REPLACE_ONE, 3.0, 150.0, 2)
    clip, zeros, ones = Clip(1.0, 2), np.zeros(2), np.ones(2)
    blocks = {q: [Block(2 * k + j, q, 2 * j, 2 * j + 2, 4 * k) for j in range(2)] for k, q in enumerate("ab")}
    actors = {q: party_of(np.zeros((N, 4)), name=q) for q in "ab"}
    records = Records(margins=np.zeros(N), labels=np.ones(N), weights=np.ones(N))
    steps = {q: tuple(Step(b, zeros, ones, clip, Given(zeros), event) for b in own) for q, own in blocks.items()}
    first = tuple(own[0] for own in blocks.values())
    w = dict.fromkeys("ab", np.zeros(4))
    asked = [
        (0, Moments({"a": 4, "b": 4}, dict.fromkeys("ab", np.ones(4)), False, event)),
        (1, Descend(WEIGHTINGS[0], steps, w, recomputes=True)),
        (2, Descend(WEIGHTINGS[0], steps, w, recomputes=False)),
        (3, Backward(WEIGHTINGS[0], first, (zeros,) * 2, (ones,) * 2, clip, event)),
        *((4, Backward(WEIGHTINGS[0], (b,), (zeros,), (ones,), clip, event, part)) for part, b in enumerate(first)),
        (5, Backward(WEIGHTINGS[0], (first[0],), (zeros,), (ones,), clip, event)),
    ]
    noise = np.concatenate(
        [
            u
            for number, query in asked
            for q, share in query.shares().items()
            for u in actors[q].answer(share, records, ReleaseKey(number)).released
        ]
    )
    assert len(noise) == 8 + 8 + 8 + 4 + 4 + 2
    assert len(np.unique(noise)) == len(noise)


N_RUN = 12
PARTITION = vfl.FeaturePartition({"bank": ["a0", "a1", "a2"], "telco": ["b0"]}, label=("telco", "y"))
BOUNDS = dict.fromkeys(PARTITION.features, (-1.0, 1.0))


class Spy:
    """A reservation and a transport in one, which record all calls in one list."""

    def __init__(self, spec: vfl.Job, refuse_at: int | None = None, fail_at: int | None = None) -> None:
        self.log: list[tuple[str, Any]] = []
        self.plan = make_plan(spec, N_RUN)
        self.refuse_at, self.fail_at = refuse_at, fail_at
        problem = self.plan.problem
        self.granted = problem.private and FitBudget(problem.epsilon, problem.delta).reserve(
            self.plan.releases, job="job", run="run"
        )
        rng = np.random.default_rng(0)
        owned = {"bank": rng.uniform(-1, 1, (N_RUN, 3)), "telco": rng.uniform(-1, 1, (N_RUN, 2))}
        owned["telco"][:, 1] = 1.0  # the intercept
        self.inner = InProcessTransport({q: party_of(X, name=q) for q, X in owned.items()})

    def count(self, kind: str) -> int:
        return sum(said == kind for said, _ in self.log)

    def charge(self, items: Any) -> None:
        self.log.append(("charge", list(items)))
        if self.count("charge") == self.refuse_at:
            raise BudgetExceeded("no more")
        self.granted.charge(items)

    def newly_opened(self) -> tuple[()]:
        return ()

    def ask(self, shares: Mapping[str, Query], records: Records, key: ReleaseKey) -> Mapping[str, Reply]:
        self.log.append(("ask", (shares, key)))
        if self.count("ask") == self.fail_at:
            raise RuntimeError("a party died")
        return self.inner.ask(shares, records, key)

    def executor(self, *, expand: bool = False, reserved: bool = True) -> Executor:
        margins = LinearPredictors(np.where(np.arange(N_RUN) % 2, 1.0, -1.0))
        kinds = exact_queries(self.plan.job)
        return Executor(self, margins, Charger(self if reserved else None, exact=kinds), expand=expand)

    def run(self, **options: Any) -> np.ndarray:
        running = rounds(self.plan.solver.schedule(self.plan.problem), self.executor(**options))
        while True:
            try:
                next(running)
            except StopIteration as end:
                return end.value


def job(*, private: bool = True, smoothness: Any = "private", **solver: Any) -> vfl.Job:
    privacy = vfl.Privacy(epsilon=1.0, noise=vfl.SeededNoise(0), smoothness=smoothness) if private else None
    return vfl.Job(
        partition=PARTITION,
        bounds=BOUNDS,
        privacy=privacy,
        solver=vfl.SkGD().changed(**({"passes": 2, "clip": "coordinate"} | solver)),
    )


SOLVERS = {
    "message per party": {},
    "one block a message": {"message": "block", "block_size": 2},
    "full": {"sampling": "full", "block_size": 1},
    "several outer rounds": {"outer_rounds": 2, "inner_rounds": 3, "passes": None},
}


@pytest.mark.parametrize("expand", [False, True], ids=["whole", "expanded"])
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
class TestCharges:
    def test_every_draw_of_noise_follows_a_charge_of_the_same_event(
        self, solver: dict[str, Any], expand: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spy = Spy(job(**solver))
        true_release = parties.party.release

        def release(sums: Any, grid: float, event: Any, noise: Any, key: ReleaseKey, *rest: Any) -> Any:
            spy.log.append(("draw", (key, event)))
            return true_release(sums, grid, event, noise, key, *rest)

        monkeypatch.setattr(parties.party, "release", release)
        spy.run(expand=expand)

        charged: dict[ReleaseKey, Gaussian] = {}
        drawn: dict[ReleaseKey, Gaussian] = {}
        for kind, what in spy.log:
            if kind == "charge":
                assert charged.keys().isdisjoint(key for key, _ in what)
                charged |= dict(what)
            elif kind == "draw":
                key, event = what
                joint = replace(key, part=0) if key.round == 0 else key  # the parties' shares of one event
                assert charged[joint] == event
                assert key not in drawn
                drawn[key] = event
        assert {replace(key, part=0) if key.round == 0 else key for key in drawn} == charged.keys()
        assert len(charged) == sum(count for _, count in spy.plan.releases)
        assert spy.granted.charged() == charged.keys()

    @pytest.mark.parametrize("refuse_at", [1, 2, 3])
    def test_a_refused_charge_asks_nobody(self, solver: dict[str, Any], expand: bool, refuse_at: int) -> None:
        spy = Spy(job(**solver), refuse_at=refuse_at)
        spend(spy, spy.executor(expand=expand))
        assert spy.count("charge") == refuse_at
        assert spy.log[-1][0] == "charge"

    def test_a_failure_after_the_charge_leaves_it_charged(self, solver: dict[str, Any], expand: bool) -> None:
        spy = Spy(job(**solver), fail_at=2)
        with pytest.raises(RuntimeError, match="a party died"):
            spy.run(expand=expand)
        charges = [key for kind, what in spy.log if kind == "charge" for key, _ in what]
        assert spy.granted.charged() == set(charges)
        assert len(charges) > 1  # smoothness, and the query that was lost
        assert spy.count("ask") == 2  # no query is repeated

    def test_without_noise_nothing_is_charged_or_drawn(self, solver: dict[str, Any], expand: bool) -> None:
        spy = Spy(job(private=False, **solver))
        spy.run(expand=expand, reserved=False)
        assert spy.count("charge") == 0
        events = [e for kind, what in spy.log if kind == "ask" for share in what[0].values() for e in share.events()]
        assert events
        assert set(events) == {None}


class TestPartyRefuses:
    """With or without an account, a party checks the event that it receives, and refuses a missing one."""

    ASKED: ClassVar[dict[str, Query]] = {
        "moments": Moments({"a": 3}, {"a": np.ones(3)}, True, Gaussian(Adjacency.REPLACE_ONE, 1.9, 5.0, 6)),
        "second moments": Moments({"a": 3}, {"a": np.ones(3)}, False, Gaussian(Adjacency.REPLACE_ONE, 1.7, 5.0, 3)),
        "exact moments": Moments({"a": 3}, None, True, Gaussian(Adjacency.REPLACE_ONE, 1e9, 5.0, 6)),
        "a sum": Backward(
            WEIGHTINGS[0],
            (Block(0, "a", 0, 2, 0),),
            (np.zeros(2),),
            (np.ones(2),),
            Clip(1.0, 2),
            Gaussian(Adjacency.REPLACE_ONE, 1.99, 5.0, 2),
        ),
    }

    @pytest.mark.parametrize("asked", ASKED)
    def test_too_little_noise_for_its_sum(self, asked: str) -> None:
        with pytest.raises(PrivacyError, match=r"does not cover|exact integer sums"):
            party_of(np.ones((4, 3))).answer(self.ASKED[asked], Records(weights=np.ones(4)), KEY)

    @pytest.mark.parametrize("asked", ASKED)
    def test_a_release_without_noise(self, asked: str) -> None:
        columns = Columns(np.asfortranarray(np.ones((4, 3))), ("x0", "x1", "x2"))
        query = replace(self.ASKED[asked], event=None)
        with pytest.raises(PrivacyError, match=r"'a' was asked.*without noise"):
            party_over("a", columns, SeededNoise(0)).answer(query, Records(weights=np.ones(4)), KEY)


class TestExecutorRefuses:
    def test_a_release_that_names_no_event(self) -> None:
        @dataclass(frozen=True, slots=True, eq=False)
        class Slip(Moments):
            def events(self) -> tuple[()]:
                return ()

        spy = Spy(job())
        with pytest.raises(PrivacyError, match=r"Slip.*without a charge"):
            spy.executor()(Slip({"a": 3}, {"a": np.ones(3)}, True, None))
        assert spy.log == []

    def test_an_undeclared_release_without_noise(self) -> None:
        """An error in a solver must not become a leak: with privacy, no party answers an event of None."""
        spy = Spy(job())
        schedule = spy.plan.solver.schedule(spy.plan.problem)
        with pytest.raises(PrivacyError, match=r"Moments.*without noise.*not declare"):
            spy.executor()(replace(next(schedule), event=None))
        assert spy.log == []

    def test_smoothness_from_data_allows_no_other_release(self) -> None:
        """smoothness='data' declares exact moments, and nothing else."""
        spy = Spy(job(smoothness="data"))
        execute = spy.executor()
        schedule = spy.plan.solver.schedule(spy.plan.problem)
        descend = schedule.send(execute(next(schedule))[0])
        assert spy.count("charge") == 0
        bare = {q: tuple(replace(step, event=None) for step in steps) for q, steps in descend.steps.items()}
        with pytest.raises(PrivacyError, match="Descend would release without noise"):
            execute(replace(descend, steps=bare))
        mixed = {q: (replace(steps[0], event=None), *steps[1:]) for q, steps in descend.steps.items()}
        with pytest.raises(PrivacyError, match="Descend would release without noise"):
            execute(replace(descend, steps=mixed))
        assert spy.count("ask") == 1

    def test_a_charge_without_a_reservation(self) -> None:
        spy = Spy(job())
        schedule = spy.plan.solver.schedule(spy.plan.problem)
        with pytest.raises(PrivacyError, match=r"Moments.*nothing was reserved"):
            spy.executor(reserved=False)(next(schedule))
        assert spy.log == []


def test_a_run_stops_at_its_reservation() -> None:
    """The account stops a solver that asks for more than its plan, before the release."""
    spy = Spy(job())
    execute = spy.executor()
    for _ in rounds(spy.plan.solver.schedule(spy.plan.problem), execute):
        pass
    granted = spy.granted.charged()
    spend(spy, execute)  # repeat it
    assert spy.log[-1][0] == "charge"
    assert spy.granted.charged() == granted


def spend(spy: Spy, execute: Executor) -> None:
    """Send the queries of a schedule until one is refused."""

    def until_refused() -> None:
        schedule = spy.plan.solver.schedule(spy.plan.problem)
        query = next(schedule)
        while True:
            query = schedule.send(execute(query)[0])

    with pytest.raises(BudgetExceeded):
        until_refused()
