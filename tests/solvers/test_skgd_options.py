"""Options of SkGD against plain NumPy: the same optimum, the same iterates, and every draw charged."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy.optimize import lsq_linear
from sklearn.linear_model import LogisticRegression

import parties.party
import vfl
from coordinator.charging.budget import Budget
from coordinator.coordinator import Coordinator
from coordinator.rounds import Round
from parties.loading import load
from vfl.base.penalties import L1, Box, GroupLasso
from vfl.base.problem import Block
from vfl.errors import BudgetExceeded, PartitionError, PrivacyError, SpecificationError
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.planning import plan as make_plan
from vfl.planning import problem_of
from vfl.privacy import mechanisms
from vfl.privacy.noise import SeededNoise
from vfl.privacy.spending import mu_squared
from vfl.queries import Descend, Forward, Moments
from vfl.queries.samplers import grouped_by_owner, in_parallel, sampler_of
from vfl.solvers.blocks import messages
from vfl.solvers.releases.curvature import Curvature

if TYPE_CHECKING:
    from collections.abc import Iterator

N = 80
PARTIES = {"bank": ("a0", "a1", "a2"), "telco": ("b0", "b1"), "clinic": ("c0",)}
COLUMNS = tuple(c for columns in PARTIES.values() for c in columns)
BOUNDS = dict.fromkeys(COLUMNS, (-1.0, 1.0)) | {"y": (-4.0, 4.0)}
RIDGE = 0.3
DRAWS = [
    *({"sampling": s, "parallel": m} for s in ("shuffled", "cyclic", "uniform", "importance") for m in (1, 3)),
    {"sampling": "shuffled", "parallel": 2},
    {"sampling": "nice", "tau": 3},
    {"sampling": "full"},
]
SLOWER = {"full": 2, "importance": 2}
"""Small steps; draws that leave coordinates out for long."""


def short(value: object) -> str:
    return "-".join(str(v) for v in value.values()) if isinstance(value, dict) else str(value)


EACH_DRAW = pytest.mark.parametrize("draw", DRAWS, ids=short)


def pairwise(*axes: list, quick: int) -> list:
    """Return the product of the axes, whose values are tuples, with all but one of `quick` points marked as slow.

    As in a Latin square, the others hold each value of every axis, and of three axes each pair of values.
    """
    return [
        pytest.param(*itertools.chain(*point), marks=[pytest.mark.slow] * (sum(place) % quick != 0))
        for place, point in zip(
            itertools.product(*(range(len(axis)) for axis in axes)), itertools.product(*axes), strict=True
        )
    ]


@functools.cache
def table(loss: str) -> dict[str, np.ndarray]:
    """Return columns of three correlated parties, in units from 0.3 to 1, one of them far from its middle."""
    rng = np.random.default_rng(8)
    shared = rng.uniform(-1, 1, N)
    X = np.column_stack([0.5 * shared + 0.5 * rng.uniform(-1, 1, N) for _ in COLUMNS])
    X[:, 1] *= 0.3
    X[:, 4] = 0.5 + 0.4 * X[:, 4]
    signal = X @ np.array([1.0, -2.0, 0.5, -1.0, 2.0, 0.3]) - 0.4
    noise = rng.logistic(scale=0.5, size=N)
    label = (signal + noise > 0).astype(int) if loss == "logistic" else np.clip(signal + noise, -4, 4)
    return dict(zip(COLUMNS, X.T, strict=True)) | {"y": label}


def features(loss: str) -> np.ndarray:
    """Return (n, p) in the order of the layout, with the ones of the intercept among telco's columns."""
    X = {c: table(loss)[c] for c in COLUMNS}
    return np.column_stack([*(X[c] for c in ("a0", "a1", "a2", "b0", "b1")), np.ones(N), X["c0"]])


INTERCEPT = 5
PENALISED = np.array([1, 1, 1, 1, 1, 0, 1])


def job(
    loss: str = "squared", *, penalty: object = None, blocks: object = None, privacy: object = None, **options: object
) -> vfl.Job:
    options.setdefault("clip", None if privacy is None else "coordinate")
    kept = {k: options.pop(k) for k in ("precision", "intercept") if k in options}
    return vfl.Job(
        partition=vfl.FeaturePartition(PARTIES, label=("telco", "y"), blocks=blocks),
        loss=loss,
        penalty=vfl.L2(RIDGE) if penalty is None else penalty,
        privacy=privacy,
        bounds=BOUNDS if loss == "squared" else {c: BOUNDS[c] for c in COLUMNS},
        solver=vfl.SkGD().changed(**options),
        **kept,
    )


def fit(spec: vfl.Job, **options: object) -> vfl.Result:
    return vfl.train(spec, table(spec.loss), at="inprocess", **options)


# ---- the optimum, for every setting ----


@functools.cache
def optimum(loss: str) -> np.ndarray:
    """Return the minimiser with a ridge and a free intercept, by normal equations and by scikit-learn."""
    X, y = features(loss), table(loss)["y"]
    if loss == "squared":
        return np.linalg.solve(X.T @ X / N + RIDGE * np.diag(PENALISED), X.T @ y / N)
    peer = LogisticRegression(C=1 / (RIDGE * N), solver="newton-cholesky", tol=1e-12)
    peer.fit(np.delete(X, INTERCEPT, axis=1), y)
    return np.insert(peer.coef_[0], INTERCEPT, peer.intercept_[0])


@pytest.mark.parametrize(
    ("clip", "geometry", "iterate", "draw"),
    pairwise(
        [(math.inf, "scaled"), ("bounds", "scaled"), ("bounds", "isotropic")],
        [("last",), ("average",), ("tail",)],
        [(draw,) for draw in DRAWS],
        quick=3,
    ),
    ids=short,
)
def test_every_combination_of_options_reaches_the_optimum(
    clip: float | str, iterate: str, geometry: str, draw: dict
) -> None:
    """clip='bounds' clips nothing and rounds contributions to κ/2²⁰. An outer average lags by half an outer round."""
    passes = SLOWER.get(draw["sampling"], 1) * {"last": 60, "average": 120, "tail": 100}[iterate]
    parts = {"outer_rounds": passes // (5 if draw["sampling"] == "full" else 1)} if iterate == "average" else {}
    spec = job(
        "logistic", clip=clip, iterate=iterate, noise_geometry=geometry, block_size=2, passes=passes, **parts, **draw
    )
    assert abs(fit(spec).w - optimum("logistic")).max() < (1e-6 if clip == math.inf else 1e-5)


@EACH_DRAW
@pytest.mark.parametrize("block_size", [1, 2, 50])
def test_block_sizes_under_every_draw(block_size: int, draw: dict) -> None:
    spec = job(
        block_size=block_size, passes=(120 if block_size == 50 else 60) * SLOWER.get(draw["sampling"], 1), **draw
    )
    assert abs(fit(spec).w - optimum("squared")).max() < 1e-6


@pytest.mark.parametrize("iterate", ["last", "average", "tail"])
def test_float32_columns_lead_to_the_same_optimum_up_to_their_precision(iterate: str) -> None:
    near = fit(job(precision="float32", iterate=iterate, passes=100, block_size=1)).w
    assert 0 < abs(near - optimum("squared")).max() < 1e-5


# ---- the same iterates as a transcription of the papers ----


def order(spec: vfl.Job, known_M: np.ndarray, blocks: tuple[Block, ...]) -> Iterator[list[tuple[int, ...]]]:
    """Outer rounds of K draws each; with parallel parties, the draws of a pass are joined."""
    solver = spec.solver
    rng = np.random.default_rng(solver.seed)
    stream: list[tuple[int, ...]] = []
    while True:
        while len(stream) < solver.inner_rounds:
            draws = sampler_of(solver.sampling, solver.tau).draws(blocks, known_M, rng)
            stream += grouped_by_owner(draws, blocks) if (solver.message, solver.parallel) == ("party", 1) else draws
        own, stream = stream[: solver.inner_rounds], stream[solver.inner_rounds :]
        if solver.parallel > 1:
            passes = [own[k : k + len(blocks)] for k in range(0, len(own), len(blocks))]
            own = [joint for drawn in passes for joint in in_parallel(drawn, blocks, solver.parallel)]
        yield own


def transcription(spec: vfl.Job) -> np.ndarray:
    """Proximal block coordinate descent as in the papers, on centred columns, with a ridge and squared loss."""
    plan = make_plan(spec, N)
    solver, blocks = plan.solver, plan.problem.layout.blocks(plan.solver.block_size)
    X, y = features("squared"), table("squared")["y"]
    c = np.where(PENALISED, X.mean(axis=0), 0.0)
    Z, M = X - c, np.where(PENALISED, X.var(axis=0), 1.0)
    w, every, updates = np.zeros(7), [], []
    for draws in itertools.islice(order(spec, M, blocks), solver.outer_rounds):
        θ, own = w, []
        for draw in draws:
            g, θ = Z.T @ (Z @ θ - y) / N, θ.copy()
            moving = sum(blocks[b].size for b in draw)
            for b in draw:
                for j in range(blocks[b].coordinates.start, blocks[b].coordinates.stop):
                    s = solver.step_size / (M[j] * moving)
                    θ[j] = (θ[j] - s * g[j]) / (1 + s * RIDGE * PENALISED[j])
            own.append(θ)
            updates.append(len(draw))
        every += own
        w = np.mean(own, axis=0) if solver.iterate == "average" else θ
    if solver.iterate == "tail":
        made = np.cumsum(updates)
        w = np.mean([θ for θ, k in zip(every, made, strict=True) if k > made[-1] // 2], axis=0)
    w[INTERCEPT] -= c @ w
    return w


@EACH_DRAW
@pytest.mark.parametrize("iterate", ["last", "average", "tail"])
@pytest.mark.parametrize("message", ["party", "block"])
def test_iterates_and_averages_equal_the_transcriptions(message: str, iterate: str, draw: dict) -> None:
    """An odd number of draws, far from the optimum, with outer rounds that divide passes."""
    options = {"outer_rounds": 3, "inner_rounds": 5, "block_size": 2, "step_size": 0.7, "seed": 4}
    spec = job(iterate=iterate, message=message, **options, **draw)
    reached = fit(spec).w
    np.testing.assert_allclose(reached, transcription(spec), rtol=0, atol=1e-11)
    assert abs(reached - optimum("squared")).max() > 1e-3


def test_averages_differ_from_each_other() -> None:
    ends = [fit(job(iterate=i, passes=3, outer_rounds=1)).w for i in ("last", "average", "tail")]
    assert all(abs(a - b).max() > 1e-3 for a, b in itertools.combinations(ends, 2))


@pytest.mark.parametrize("geometry", ["scaled", "isotropic"])
def test_a_clip_shortens_the_gradient_in_its_geometry(geometry: str) -> None:
    """All of bank's columns as one block, once: Σ min(1, cap/‖a_i‖) a_i in the paper's units, or each in its own."""
    κ = 0.6
    spec = job(clip=κ, noise_geometry=geometry, block_size=3, sampling="cyclic", outer_rounds=1, inner_rounds=1)
    X, y = features("squared")[:, :3], table("squared")["y"]
    M = X.var(axis=0)
    a = (X - X.mean(axis=0)) * -y[:, None]
    a, cap, scale = (a, κ * math.sqrt(M.sum()), 1.0) if geometry == "isotropic" else (a / M**0.5, κ * 3**0.5, M**0.5)
    lengths = np.linalg.norm(a, axis=1)
    assert 0.2 < (lengths > cap).mean() < 0.95
    g = scale * (np.minimum(1, cap / lengths) @ a) / N
    s = 1 / (3 * M)
    np.testing.assert_allclose(fit(spec).w[:3], -s * g / (1 + s * RIDGE), rtol=0, atol=1e-5)


# ---- steps are safe, and not longer than that ----


@dataclass
class Walk:
    """Answers a schedule from plain matrices, and records F after every query."""

    X: np.ndarray
    y: np.ndarray
    problem: object

    def __call__(self, solver: vfl.SkGD) -> list[float]:
        problem, X = self.problem, self.X
        schedule, w, values, answer = solver.schedule(problem), np.zeros(X.shape[1]), [], None
        centre = np.zeros_like(w)
        while True:
            try:
                query = schedule.send(answer) if answer is not None else next(schedule)
            except StopIteration:
                return values
            answer = ()
            if isinstance(query, Moments):
                kept = [X[:, b.coordinates][:, : query.widths[q]] for q, b in problem.layout.whole().items()]
                answer = tuple(np.concatenate([A.sum(axis=0), (A**2).sum(axis=0)][not query.means :]) for A in kept)
            elif isinstance(query, Descend):
                v = X @ w - centre @ w
                r, _ = query.weighting(v, self.y, {})
                answer = []
                for step in query.ordered():
                    S = step.block.coordinates
                    centre[S] = step.centre
                    answer.append(step.scale * (r @ (X[:, S] - step.centre)))
                    w[S] += step.rule(w[S], answer[-1])
                values.append(problem.value(w, X @ w - centre @ w, self.y))
            else:
                assert isinstance(query, Forward)


def nasty(kind: str) -> np.ndarray:
    """Columns that are equal, nearly equal in mixed units, far from 0 and parallel, or with a constant and a spike."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(N, 1))
    return {
        "equal": np.repeat(x, 6, axis=1),
        "units": (x + 1e-3 * rng.normal(size=(N, 6))) * 10.0 ** np.arange(-3, 3),
        "far": 1e5 + x * np.array([1, -1, 1, -1, 1, 1]),
        "odd": np.column_stack([x, x, np.full(N, 3.0), np.zeros(N), np.arange(N) == 0, -x]).astype(float),
    }[kind]


def walk(kind: str, loss: str, *, intercept: bool = True, **options: object) -> list[float]:
    spec = vfl.Job(
        partition=vfl.FeaturePartition(PARTIES, label=("telco", "y")),
        loss=loss,
        privacy=None,
        scaling="none",
        penalty=vfl.L2(1e-6),
        intercept=intercept,
        solver=vfl.SkGD().changed(message="block", **options),
    )
    problem = problem_of(spec, N)
    A = nasty(kind)
    X = np.insert(A, INTERCEPT, 1.0, axis=1) if intercept else A
    # A signal along the columns' common direction, where too long a step is punished.
    y = A[:, 0] / A[:, 0].std() + 0.1 * np.random.default_rng(0).normal(size=N)
    return Walk(X, np.where(y > y.mean(), 1.0, -1.0) if loss == "logistic" else y, problem)(
        spec.solver.resolve(problem)
    )


@EACH_DRAW
@pytest.mark.parametrize("kind", ["equal", "units", "far", "odd"])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_f_never_rises(loss: str, kind: str, draw: dict) -> None:
    """f(w + h) ≤ f(w) + ⟨∇f, h⟩ + (β/2) Σ M_j h_j² for β = |S| of all that moves: each prox step can only gain."""
    for block_size in (1, 2, 50):
        values = np.array(walk(kind, loss, passes=6, block_size=block_size, **draw))
        assert (np.diff(values) <= 1e-9 * (1 + values[:-1])).all()
        assert values[-1] < values[0]


@pytest.mark.parametrize("draw", [{}, {"block_size": 3}, {"sampling": "full"}, {"parallel": 3}], ids=str)
def test_steps_twice_as_long_are_unsafe(draw: dict) -> None:
    """On equal columns β = |S| is tight. This also verifies that the test above can fail."""
    options = {"block_size": 1, "sampling": "cyclic", "outer_rounds": 1, "inner_rounds": 1, **draw}
    at_zero, safe, long = (
        walk("equal", "squared", intercept=False, step_size=s, **options)[0] for s in (1e-12, 1.0, 2.1)
    )
    assert safe < 0.1 * at_zero
    assert long > at_zero


@pytest.mark.parametrize("rounding", [1e-7, 3e-8])
def test_a_variance_that_cancels_does_not_make_a_step_too_long(rounding: float) -> None:
    """Columns at 1e9 ± 100: their mean square hides a variance far above the curvature of the loss."""
    rng = np.random.default_rng(0)
    A = 1e9 * (1 + rounding * rng.normal(size=(N, 6)))
    spec = vfl.Job(
        partition=vfl.FeaturePartition(PARTIES, label=("telco", "y")),
        loss="squared",
        privacy=None,
        scaling="none",
        solver=vfl.SkGD(details=vfl.solvers.Details(message="block"), passes=5, block_size=1),
    )
    problem = problem_of(spec, N)
    values = Walk(np.insert(A, INTERCEPT, 1.0, axis=1), rng.normal(size=N), problem)(spec.solver.resolve(problem))
    assert values[-1] <= values[0] * (1 + 1e-6)


# ---- charges equal draws, plans bound charges, and charges bound one record's effect ----


@dataclass(frozen=True)
class Watched(Budget):
    """A budget that records charges, by key."""

    charged: object = None

    def reserve(self, plan: vfl.Plan) -> object:
        outer, reservation = self, super().reserve(plan)

        class Watching:
            def charge(self, items: list) -> None:
                reservation.charge(items)
                for key, event in items:
                    assert key not in outer.charged
                    outer.charged[key] = event

            def __getattr__(self, name: str) -> object:
                return getattr(reservation, name)

        return Watching()


def run(
    spec: vfl.Job, data: dict, monkeypatch: pytest.MonkeyPatch, given: object = None
) -> tuple[vfl.Plan, dict, dict]:
    """Return the plan, {key: event} charged and {key: (exact sums in units, event)} drawn.

    given : what is released instead, a function of key and size alone, so that neighbours walk the same way.
    """
    charged, drawn = {}, {}

    def release(sums: np.ndarray, grid: float, event: object, noise: object, key: object, *rest: float) -> np.ndarray:
        drawn[key] = (sums * grid, event)
        return mechanisms.release(sums, grid, event, noise, key, *rest) if given is None else given(key, sums.size)

    monkeypatch.setattr(parties.party, "release", release)
    held = {name: load(spec.for_party(name), source) for name, source in sources_of(spec, data).items()}
    events = list(Coordinator(InProcessTransport(held)).stream(spec, Watched("run", charged=charged)))
    (plan,) = (event for event in events if isinstance(event, vfl.Plan))
    return plan, charged, drawn


PRIVATE = [
    {**draw, **extra}
    for draw in DRAWS
    for extra in (
        {},
        {"noise_geometry": "isotropic"},
        {"clip": "bounds"},
        {"clip": "bounds", "noise_geometry": "isotropic"},
        {"clip": 0.3, "message": "block", "iterate": "average", "block_size": 1},
    )
]
EACH_PRIVATE = pytest.mark.parametrize("options", PRIVATE, ids=lambda o: "-".join(str(v) for v in o.values()))


@EACH_PRIVATE
def test_draws_are_charged_and_charges_are_planned(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    # Little noise, so that the released M differ from column to column, and from those of the plan.
    privacy = vfl.Privacy(epsilon=30.0, delta=1e-6, noise=SeededNoise(1))
    spec = job("logistic", privacy=privacy, outer_rounds=2, inner_rounds=7, **{"block_size": 2} | options)
    plan, charged, drawn = run(spec, table("logistic"), monkeypatch)

    moments, releases = plan.releases
    (released,) = [event for key, event in charged.items() if key.round == 0]
    assert released == moments[0]
    assert moments[1] == 1
    for key, (_, event) in drawn.items():
        assert event == (released if key.round == 0 else charged[key])
    blocks = [event for key, event in charged.items() if key.round > 0]
    assert len(drawn) == len(PARTIES) + len(blocks)

    assert max(map(mu_squared, blocks)) <= mu_squared(releases[0])
    assert len(blocks) == releases[1]
    spent, planned = sum(map(mu_squared, charged.values())), sum(mu_squared(event) * k for event, k in plan.releases)
    assert spent <= planned <= plan.problem.mu**2 * (1 + 1e-12)
    assert plan.epsilon <= 30.0
    assert float(planned) == pytest.approx(plan.problem.mu**2, rel=1e-9)


@EACH_PRIVATE
def test_one_record_moves_no_release_by_more_than_its_event_says(
    options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours on the same trajectory: every exact sum of the run, with records at the ends of the bounds."""

    def given(key: object, size: int) -> np.ndarray:
        rng = np.random.default_rng([key.round, key.part])
        if key.round == 0:  # moments of a column that is off centre and far from filling its range
            return N * np.repeat([0.1, 0.06], size // 2)
        return 3.0 * rng.normal(size=size)

    spec = job("logistic", privacy=vfl.Privacy(epsilon=0.7, delta=1e-6), passes=3, **{"block_size": 2} | options)
    here = table("logistic")
    tightest = 0.0
    _, _, ours = run(spec, here, monkeypatch, given)
    for record in (np.ones(6), np.array([1, -1, 1, -1, 1, -1.0]), np.full(6, 1e9)):
        there = {c: x.copy() for c, x in here.items()}
        for c, value in zip(COLUMNS, record, strict=True):
            there[c][3] = value
        there["y"][3] = 1 - here["y"][3]
        _, _, theirs = run(spec, there, monkeypatch, given)
        assert ours.keys() == theirs.keys()
        moved = Counter()
        for key, (sums, _) in ours.items():
            joint = key if key.round else 0  # moments of all parties are one release
            moved[joint] += float(((sums - theirs[key][0]) ** 2).sum()) / ours[key][1].sensitivity ** 2
        tightest = max(tightest, *moved.values())
    assert 0.02 < tightest <= 1.0


def test_a_bound_that_is_slightly_too_small_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a record and its opposite, sums move by nearly all of Δ, so that a factor of 2 less would show."""
    spec = job(
        "logistic",
        privacy=vfl.Privacy(epsilon=1.0, delta=1e-6, smoothness="bounds"),
        clip=0.1,
        passes=1,
        block_size=1,
        sampling="full",
    )
    tables = []
    for label in (0, 1):
        there = {c: x.copy() for c, x in table("logistic").items()}
        for column in COLUMNS:
            there[column][0] = 1.0
        there["y"][0] = label
        tables.append(run(spec, there, monkeypatch)[2])
    shares = [abs(sums - tables[1][key][0]) / event.sensitivity for key, (sums, event) in tables[0].items()]
    assert min(share.item() for share in shares) > 0.999


@pytest.mark.parametrize("geometry", ["scaled", "isotropic"])
def test_clip_bounds_clips_nothing_and_costs_as_documented(geometry: str) -> None:
    """Records at the ends of their bounds with the largest residual: clipped at 'bounds' as with no clip at all."""
    rng = np.random.default_rng(0)
    data = {c: rng.choice([-1.0, 1.0], N) for c in COLUMNS} | {"y": rng.integers(0, 2, N)}
    ends = [
        vfl.train(job("logistic", clip=clip, noise_geometry=geometry, passes=5), data, at="inprocess").w
        for clip in ("bounds", math.inf, 0.2)
    ]
    np.testing.assert_allclose(ends[0], ends[1], rtol=0, atol=1e-5)
    assert abs(ends[2] - ends[1]).max() > 1e-3


def test_isotropic_is_scaled_where_all_columns_have_one_unit() -> None:
    """M_j = 1 for all: κ√ΣM is κ√|S| and the scale is 1, so the same sums, noise and model, to the bit."""
    privacy = vfl.Privacy(epsilon=1.0, delta=1e-6, noise=SeededNoise(3), smoothness=dict.fromkeys(COLUMNS, 1.0))
    specs = [job(clip=0.5, privacy=privacy, passes=2, noise_geometry=g, block_size=2) for g in ("scaled", "isotropic")]
    a, b = (fit(spec) for spec in specs)
    assert abs(a.w - b.w).max() < 1e-12 * abs(a.w).max()


def test_isotropic_noise_is_the_same_in_every_coordinate_of_the_gradient() -> None:
    """σ in the units of the sum, which are the columns' own; with 'scaled' it is √M_j times that of the scaled sum."""
    spec = job(clip=0.5, noise_geometry="isotropic", privacy=vfl.Privacy(epsilon=1.0, delta=1e-6, smoothness="data"))
    plan = make_plan(spec, N)
    query = None
    schedule = plan.solver.schedule(plan.problem)
    next(schedule)
    squares = {"bank": [9.0, 1.0, 4.0], "telco": [1.0, 1.0], "clinic": [1.0]}
    query = schedule.send(tuple(np.array([0.0] * len(s) + [N * m for m in s]) for s in squares.values()))
    for step in query.ordered():
        assert (step.scale == 1).all()
        M = np.array([9.0, 1.0, 4.0, 1.0, 1.0, 1.0, 1.0])[step.block.coordinates]
        assert step.clip.cap == pytest.approx(0.5 * math.sqrt(M.sum()))


@pytest.mark.parametrize("iterate", ["last", "average", "tail"])
def test_a_budget_that_ends_early_leaves_the_average_so_far(iterate: str) -> None:
    """The book refuses after 4 of the 8 draws of the second outer round, the last half of the run."""
    plan = make_plan(job(iterate=iterate, message="block", block_size=1, outer_rounds=2, inner_rounds=8), N)
    schedule, rng, answer = plan.solver.schedule(plan.problem), np.random.default_rng(0), None
    θ, own, rebuilt = np.zeros(7), [], False
    while True:
        query = schedule.send(answer) if answer is not None else next(schedule)
        if isinstance(query, Moments):
            answer = tuple(np.repeat([0.0, N], size // 2) for size in query.sizes())
        elif isinstance(query, Forward):
            θ, own, answer = np.mean(own, axis=0) if iterate == "average" else θ, [], ()
            rebuilt = True
        elif rebuilt and len(own) == 4:
            break
        else:
            (step,) = query.ordered()
            S, answer = step.block.coordinates, (N * rng.normal(size=step.block.size),)
            θ = θ.copy()
            θ[S] += step.rule(θ[S], answer[0])
            own.append(θ)
    with pytest.raises(StopIteration) as end:
        schedule.throw(BudgetExceeded("no more"))
    expected = θ if iterate == "last" else np.mean(own, axis=0)
    np.testing.assert_allclose(end.value.value, expected, rtol=0, atol=1e-12)


# ---- rounds of several parties ----


@pytest.mark.parametrize("together", [1, 2, 3, 9])
def test_rounds_of_several_parties(together: int) -> None:
    """Each round has at most one block per party, blocks keep their count and order, and rounds are fewest."""
    rng = np.random.default_rng(0)
    owners = ["a"] * 5 + ["b"] * 2 + ["c"]
    blocks = [Block(k, owner, 0, 1, k) for k, owner in enumerate(owners)]
    for _ in range(200):
        drawn = [(int(b),) for b in rng.integers(len(blocks), size=len(blocks))]
        rounds = in_parallel(drawn, blocks, together)
        assert Counter(b for r in rounds for b in r) == Counter(b for r in drawn for b in r)
        for r in rounds:
            assert len({owners[b] for b in r}) == len(r) <= together
            assert list(r) == sorted(r)
        for owner in "abc":
            assert [b for r in rounds for b in r if owners[b] == owner] == [b for (b,) in drawn if owners[b] == owner]
        queues = Counter(owners[b] for (b,) in drawn)
        assert len(rounds) == max(-(-len(drawn) // together), *queues.values())


def test_parallel_makes_fewer_and_wider_messages() -> None:
    one, three = (
        make_plan(job(parallel=m, passes=6, outer_rounds=1, message="block", block_size=1), N) for m in (1, 3)
    )
    assert one.messages == 1 + 6 * 7
    assert three.messages == 1 + 6 * 3


@pytest.mark.parametrize("sampling", ["shuffled", "cyclic", "uniform", "importance"])
@pytest.mark.parametrize("together", [2, 3])
def test_parallel_changes_only_which_blocks_move_together(together: int, sampling: str) -> None:
    """Most blocks at one party, and M that differ: rounds are narrower than `together`, and a pass is a pass."""
    privacy = vfl.Privacy(epsilon=30.0, delta=1e-6, noise=SeededNoise(0))
    made = []
    for m in (1, together):
        seen: list[object] = []
        spec = job("logistic", privacy=privacy, passes=6, block_size=1, message="block", sampling=sampling, parallel=m)
        fit(spec, watch=seen.append)
        (plan,) = (event for event in seen if isinstance(event, vfl.Plan))
        owners = Counter(q for e in seen if isinstance(e, Round) and e.kind == "Descend" for q in e.parties)
        assert sum(owners.values()) == plan.releases[-1][1] == 6 * 7
        made.append((plan.releases, owners))
    assert made[0] == made[1]


@pytest.mark.parametrize("sampling", ["shuffled", "uniform", "importance"])
def test_a_step_is_divided_by_the_number_of_blocks_that_move_with_it(sampling: str) -> None:
    """bank has 3 of the 7 blocks, so some of its blocks move alone with a whole step."""
    solver = make_plan(job(sampling=sampling, parallel=3, passes=5, block_size=1), N).solver
    problem = problem_of(job(), N)
    known = Curvature(np.zeros(7), np.array([9.0, 1, 4, 1, 1, 1, 2]))
    walk = messages.Walk(solver, problem, known)
    alone, widths = walk.steps(), Counter()
    for number, (drawn,) in itertools.chain.from_iterable(walk.outer()):
        draw = [step for own in walk.message(number, (drawn,)).values() for step in own]
        widths[len(draw)] += 1
        for step in draw:
            np.testing.assert_allclose(step.rule.steps * len(draw), alone[step.block.index].rule.steps, rtol=1e-15)
            np.testing.assert_allclose(step.rule.gain * len(draw), alone[step.block.index].rule.gain, rtol=1e-15)
    assert set(widths) == {1, 2, 3} if sampling != "shuffled" else {2, 3} <= set(widths)


@pytest.mark.parametrize("smoothness", ["bounds", "data", dict.fromkeys(COLUMNS, 1.0)], ids=str)
@EACH_DRAW
def test_messages_are_counted_right(draw: dict, smoothness: object) -> None:
    """Importance sampling draws by M. With unequal M the number of joined rounds is not known in advance."""
    privacy = vfl.Privacy(epsilon=1.0, delta=1e-6, noise=SeededNoise(0), smoothness=smoothness)
    spec = job("logistic", privacy=privacy, outer_rounds=3, inner_rounds=4, message="block", **draw)
    seen = []
    fit(spec, watch=seen.append)
    (plan,) = (event for event in seen if isinstance(event, vfl.Plan))
    made = sum(type(event).__name__ == "Round" for event in seen)
    if draw == {"sampling": "importance", "parallel": 3} and smoothness == "data":
        assert plan.messages / 2 < made < plan.messages * 2
    else:
        assert made == plan.messages


# ---- penalties that are not smooth, under every draw ----

GROUPS = {"bank": [["a2", "a0"], ["a1"]], "telco": [["b0", "b1"]], "clinic": [["c0"]]}
STRENGTH = 0.12


@functools.cache
def group_lasso_optimum() -> tuple[np.ndarray, float]:
    """Accelerated proximal gradient with one step for all, where the prox is the well-known formula. Order of COLUMNS."""
    X, y = np.column_stack([table("squared")[c] for c in COLUMNS]), table("squared")["y"]
    Z, t = X - X.mean(axis=0), y - y.mean()
    groups = [np.array([COLUMNS.index(c) for c in names]) for named in GROUPS.values() for names in named]
    step = N / np.linalg.norm(Z, 2) ** 2
    w = before = np.zeros(6)
    for k in range(20_000):
        at = w + k / (k + 3) * (w - before)
        v = at - step * Z.T @ (Z @ at - t) / N
        before, w = w, v.copy()
        for g in groups:
            w[g] *= max(0.0, 1 - step * STRENGTH * math.sqrt(g.size) / np.linalg.norm(v[g]))
        if k > 100 and abs(w - before).max() < 1e-15:
            break
    value = 0.5 * np.mean((Z @ w - t) ** 2) + STRENGTH * sum(math.sqrt(g.size) * np.linalg.norm(w[g]) for g in groups)
    return w, value


def group_value(result: vfl.Result) -> float:
    by_name = dict(zip(result.coordinates, result.w, strict=True))
    X, y = np.column_stack([table("squared")[c] for c in COLUMNS]), table("squared")["y"]
    w = np.array([by_name[c] for c in COLUMNS])
    norms = [math.sqrt(len(g)) * math.hypot(*(by_name[c] for c in g)) for named in GROUPS.values() for g in named]
    return 0.5 * np.mean((X @ w + by_name["(intercept)"] - y) ** 2) + STRENGTH * sum(norms)


@EACH_DRAW
def test_group_lasso_reaches_the_optimum(draw: dict) -> None:
    w, least = group_lasso_optimum()
    assert 0 < (w == 0).sum() < 6
    result = fit(job(penalty=GroupLasso(STRENGTH), blocks=GROUPS, passes=80 * SLOWER.get(draw["sampling"], 1), **draw))
    np.testing.assert_allclose(result.coef_, w, rtol=0, atol=1e-5)
    assert group_value(result) == pytest.approx(least, abs=1e-10)
    assert all((result.coef_[k] == 0) == (w[k] == 0) for k in range(6))


class Thresholded(GroupLasso):
    """A plausible mistake: shorten every coordinate of a group by its own step."""

    name = "group_lasso"

    def prox(self, v: np.ndarray, steps: np.ndarray) -> np.ndarray:
        length = max(float(np.linalg.norm(v)), 1e-300)
        return v * np.maximum(0.0, 1 - steps * self.strength * math.sqrt(max(1, (steps > 0).sum())) / length)


def test_thresholds_of_unequal_steps_have_another_fixed_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of one group in units 20 to 1: the naive prox converges to a point that is not the minimiser."""
    groups = {"bank": [["a0", "a1", "a2"]], "telco": [["b0", "b1"]], "clinic": [["c0"]]}
    spec = job(penalty=GroupLasso(0.02), blocks=groups, passes=200)
    problem = problem_of(spec, N)
    X, y = features("squared"), table("squared")["y"]

    def value(result: vfl.Result) -> float:
        return problem.value(result.w, X @ result.w, y)

    right = value(fit(spec))
    monkeypatch.setattr(GroupLasso, "prox", Thresholded.prox)
    naive = fit(spec)
    assert value(naive) > right + 1e-4
    longer = fit(job(penalty=GroupLasso(0.02), blocks=groups, passes=300))
    assert value(longer) == pytest.approx(value(naive), abs=1e-7)  # it has converged


def test_group_lasso_needs_named_blocks() -> None:
    with pytest.raises(SpecificationError, match=r"name them, FeaturePartition\(..., blocks=...\)"):
        make_plan(job(penalty=GroupLasso(0.1)), N)
    with pytest.raises(PartitionError, match="leave block_size out"):
        make_plan(job(penalty=GroupLasso(0.1), blocks=GROUPS, block_size=2), N)


@pytest.mark.parametrize(
    ("box", "draw"), pairwise([(Box(low=0.0),), (Box(-0.4, 0.5),)], [(draw,) for draw in DRAWS], quick=2), ids=short
)
def test_box_reaches_the_bounded_least_squares(box: Box, draw: dict) -> None:
    X, y = np.column_stack([table("squared")[c] for c in COLUMNS]), table("squared")["y"]
    best = lsq_linear(X - X.mean(axis=0), y - y.mean(), (box.low, box.high), tol=1e-14, method="bvls").x
    result = fit(job(penalty=box, passes=130 * SLOWER.get(draw["sampling"], 1), block_size=1, **draw))
    np.testing.assert_allclose(result.coef_, best, rtol=0, atol=1e-5)
    assert box.value(result.coef_) == 0.0


@pytest.mark.parametrize("iterate", ["last", "average", "tail"])
@pytest.mark.parametrize("draw", [{}, {"parallel": 3}, {"sampling": "nice", "tau": 2}], ids=str)
def test_a_private_model_stays_in_its_box_and_zeros_stay_zeros(draw: dict, iterate: str) -> None:
    """Bounds hold for the last iterate and for averages, whatever the noise; the intercept is not bounded."""
    privacy = vfl.Privacy(epsilon=0.5, delta=1e-6, noise=SeededNoise(2))
    result = fit(job("logistic", penalty=Box(0.0, 0.3), privacy=privacy, passes=6, iterate=iterate, **draw))
    assert Box(0.0, 0.3).value(np.array(result.w)[PENALISED > 0]) == 0.0
    assert (result.w[PENALISED > 0] > 0).any()
    sparse = fit(job("logistic", penalty=L1(50.0), privacy=privacy, passes=6, iterate=iterate, **draw))
    assert (sparse.coef_ == 0).all()


# ---- refusals ----


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clip": "bound"}, "positive number or one of record, coordinate, bounds"),
        ({"clip": -1.0}, "clip must be positive"),
        ({"clip": math.nan}, "clip must be positive"),
        ({"noise_geometry": "round"}, "noise_geometry must be one of scaled, isotropic"),
        ({"iterate": "mean"}, "iterate must be one of last, average, tail"),
        ({"parallel": 0}, "parallel must be a whole number"),
        ({"parallel": True}, "parallel must be a whole number"),
        ({"parallel": 2, "sampling": "full"}, "leave parallel at 1"),
        ({"parallel": 2, "sampling": "nice", "tau": 2}, "leave parallel at 1"),
        ({"passes": 3, "inner_rounds": 4}, "not both"),
    ],
)
def test_invalid_options_are_refused(options: dict, said: str) -> None:
    with pytest.raises(SpecificationError, match=said):
        vfl.SkGD().changed(**options)


def test_clip_bounds_needs_a_bounded_derivative() -> None:
    with pytest.raises(SpecificationError, match="bounded derivative"):
        make_plan(job("squared", clip="bounds"), N)


def test_no_clip_with_privacy_is_refused() -> None:
    with pytest.raises(PrivacyError, match="bounds no record's influence"):
        make_plan(job(clip=math.inf, privacy=vfl.Privacy(epsilon=1.0)), N)
