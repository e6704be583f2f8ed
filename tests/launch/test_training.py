"""Training without noise: every setting reaches scikit-learn's solution on the scaled columns."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import sklearn.linear_model as peers

import vfl
from coordinator.rounds import Round
from vfl.planning import Plan, problem_of
from vfl.planning import plan as make_plan
from vfl.queries import Descend
from vfl.solvers.releases import smoothness
from vfl.solvers.releases.curvature import Curvature

N = 160
TOLERANCE = 1e-6
COLUMNS = ("a0", "a1", "a2", "b0", "b1")
PARTIES = {"bank": ("a0", "a1", "a2"), "telco": ("b0", "b1")}
BOUNDS = {"a0": (-1.0, 3.0), "a1": (10.0, 20.0), "a2": (-5.0, -1.0), "b0": (0.0, 1e3), "b1": (-2e-3, 1e-3)}
SAMPLERS = {"shuffled": 1, "cyclic": 1, "uniform": 1, "importance": 2, "nice": 2, "full": 8}
"""Samplers, with how many times as many passes they take; steps are 1/(p·M_j) when all blocks move at once."""
PENALTIES = {
    "none": vfl.penalties.NoPenalty(),
    "l1": vfl.L1(0.02),
    "l2": vfl.L2(0.05),
    "elastic_net": vfl.ElasticNet(0.04, l1_ratio=0.3),
}


@functools.cache
def table(loss: str) -> dict[str, np.ndarray]:
    """Return correlated columns within bounds, in units that differ by six orders of magnitude, and a noisy label."""
    rng = np.random.default_rng(1)
    U = rng.uniform(0.05, 0.95, (N, len(COLUMNS)))
    U[:, 3] = 0.4 * U[:, 0] + 0.6 * U[:, 3]
    signal = (U - 0.5) @ np.array([3.0, -2.0, 0.1, 2.5, 0.0]) + 0.4
    noise = rng.logistic(scale=0.5, size=N)
    label = (signal + noise > 0).astype(int) if loss == "logistic" else signal + 0.3 * noise
    columns = {c: lo + (hi - lo) * U[:, j] for j, (c, (lo, hi)) in enumerate(BOUNDS.items())}
    return columns | {"y": label}


def job(loss: str, penalty: str, *, blocks: dict[str, list[list[str]]] | None = None, **options: object) -> vfl.Job:
    kept = {k: options.pop(k) for k in ("intercept", "scaling", "bounds", "privacy") if k in options}
    return vfl.Job(
        partition=vfl.FeaturePartition(PARTIES, label=("telco", "y"), blocks=blocks),
        loss=loss,
        penalty=PENALTIES[penalty],
        solver=vfl.SkGD().changed(**{"passes": 100, "block_size": None if blocks else 1, **options}),
        **{"privacy": None, "bounds": BOUNDS, **kept},
    )


def scaled(loss: str, *, intercept: bool) -> np.ndarray:
    """Scale the columns independently: bounds to [−1, 1], or only by a factor without an intercept."""
    lo, hi = np.array(list(BOUNDS.values())).T
    X = np.column_stack([table(loss)[c] for c in COLUMNS])
    return (2 * X - lo - hi) / (hi - lo) if intercept else X / np.maximum(abs(lo), abs(hi))


@functools.cache
def peer(loss: str, penalty: str, *, intercept: bool = True) -> tuple[np.ndarray, float]:
    """Return scikit-learn's minimiser on the scaled columns; λ is converted as our docstrings state."""
    kinds = {
        ("squared", "none"): lambda: peers.LinearRegression(fit_intercept=intercept),
        ("squared", "l1"): lambda: peers.Lasso(0.02, fit_intercept=intercept, tol=1e-14, max_iter=10**6),
        ("squared", "l2"): lambda: peers.Ridge(0.05 * N, fit_intercept=intercept, solver="cholesky"),
        ("squared", "elastic_net"): lambda: peers.ElasticNet(
            0.04, l1_ratio=0.3, fit_intercept=intercept, tol=1e-14, max_iter=10**6
        ),
        ("logistic", "none"): lambda: peers.LogisticRegression(
            C=np.inf, fit_intercept=intercept, solver="newton-cholesky", tol=1e-10
        ),
        ("logistic", "l1"): lambda: peers.LogisticRegression(
            C=1 / (0.02 * N), l1_ratio=1.0, fit_intercept=intercept, solver="saga", tol=1e-10, max_iter=10**5
        ),
        ("logistic", "l2"): lambda: peers.LogisticRegression(
            C=1 / (0.05 * N), fit_intercept=intercept, solver="newton-cholesky", tol=1e-10
        ),
        ("logistic", "elastic_net"): lambda: peers.LogisticRegression(
            C=1 / (0.04 * N), l1_ratio=0.3, fit_intercept=intercept, solver="saga", tol=1e-10, max_iter=10**5
        ),
    }
    fitted = kinds[loss, penalty]().fit(scaled(loss, intercept=intercept), table(loss)["y"])
    return np.ravel(fitted.coef_), float(np.ravel(fitted.intercept_)[0])


def fit(spec: vfl.Job) -> vfl.Result:
    return vfl.train(spec, table(spec.loss), at="inprocess")


def distance(result: vfl.Result, solution: tuple[np.ndarray, float]) -> float:
    """Return the largest difference of a coordinate on the scaled columns, the intercept included."""
    w = dict(zip(result.coordinates, result.w, strict=True))
    intercept = w.pop("(intercept)", 0.0)
    return max(abs(intercept - solution[1]), *(abs(w[c] - v) for c, v in zip(COLUMNS, solution[0], strict=True)))


@pytest.mark.parametrize(  # every pair of two of the three
    ("loss", "penalty", "sampling"),
    [
        (("squared", "logistic")[(k + m) % 2], penalty, sampling)
        for k, penalty in enumerate(PENALTIES)
        for m, sampling in enumerate(SAMPLERS)
    ],
)
def test_the_optimum_is_scikit_learns(loss: str, penalty: str, sampling: str) -> None:
    passes = (90 if penalty == "none" else 60) * SAMPLERS[sampling]
    spec = job(loss, penalty, sampling=sampling, tau=2 if sampling == "nice" else None, passes=passes)
    assert distance(fit(spec), peer(loss, penalty)) < TOLERANCE


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_without_an_intercept(loss: str, penalty: str) -> None:
    # The columns are far from 0 and nearly parallel, so they need more passes than centred ones.
    result = fit(job(loss, penalty, intercept=False, passes=600 if penalty == "none" else 200))
    assert result.intercept_ == 0.0
    assert distance(result, peer(loss, penalty, intercept=False)) < TOLERANCE


@pytest.mark.parametrize("message", ["party", "consecutive", "block"])
@pytest.mark.parametrize("block_size", [1, 3, 100], ids=["single", "three", "whole party"])
def test_block_sizes_and_messages(block_size: int, message: str) -> None:
    result = fit(job("logistic", "elastic_net", block_size=block_size, message=message, passes=70))
    assert distance(result, peer("logistic", "elastic_net")) < TOLERANCE


@pytest.mark.parametrize("sampling", SAMPLERS)
def test_explicit_blocks(sampling: str) -> None:
    """Blocks that list a party's columns in a different order from the declaration, for every sampler."""
    blocks = {"bank": [["a2", "a0"], ["a1"]], "telco": [["b1"], ["b0"]]}
    passes = 60 * SAMPLERS[sampling]
    spec = job("squared", "l1", blocks=blocks, sampling=sampling, tau=2 if sampling == "nice" else None, passes=passes)
    result = fit(spec)
    assert result.feature_names == COLUMNS
    assert distance(result, peer("squared", "l1")) < TOLERANCE


@pytest.mark.parametrize("clip", [1e3, float("inf")])
def test_a_clip_that_binds_no_record_changes_only_rounding(clip: float) -> None:
    """A finite clip uses the integer kernels, which round contributions to κ/2²⁰ per record."""
    result = fit(job("logistic", "l2", clip=clip))
    assert distance(result, peer("logistic", "l2")) < (1e-4 if clip < 1e6 else TOLERANCE)


def test_a_clip_that_binds_biases() -> None:
    """This verifies the test above: if clipping were ignored, this run would reach the peer."""
    assert distance(fit(job("logistic", "l2", clip=0.05)), peer("logistic", "l2")) > 1e-2


def test_outer_and_inner_rounds_divide_the_passes() -> None:
    """Rebuilding Xθ between outer rounds changes the iterates by rounding only."""
    in_one = fit(job("squared", "l2", sampling="cyclic", passes=None, outer_rounds=1, inner_rounds=24))
    in_four = fit(job("squared", "l2", sampling="cyclic", passes=None, outer_rounds=4, inner_rounds=6))
    np.testing.assert_allclose(in_four.w, in_one.w, rtol=0, atol=1e-12)
    assert distance(in_one, peer("squared", "l2")) > TOLERANCE  # far enough from the optimum to tell iterates apart


def test_messages_carry_the_same_sequential_algorithm() -> None:
    """With one order of blocks, joining them into messages changes only the messages."""
    consecutive = fit(job("logistic", "l1", sampling="cyclic", message="consecutive", passes=7))
    one_by_one = fit(job("logistic", "l1", sampling="cyclic", message="block", passes=7))
    np.testing.assert_allclose(consecutive.w, one_by_one.w, rtol=0, atol=1e-12)


def test_grouping_by_party_makes_one_message_per_party_and_pass() -> None:
    plan = make_plan(job("logistic", "l2", message="party", passes=4, outer_rounds=1), N)
    messages = [q for q in queries(plan) if isinstance(q, Descend)]
    assert all(len(q.steps) == 1 for q in messages)
    # Two parties per pass. If a pass ends with the party that begins the next one, their messages are joined.
    assert 5 <= len(messages) <= 8
    assert sum(len(q.ordered()) for q in messages) == 4 * (len(COLUMNS) + 1)


def test_messages_equal_the_plan() -> None:
    for options in ({}, {"message": "block"}, {"sampling": "nice", "tau": 2}, {"outer_rounds": 3, "inner_rounds": 5}):
        passes = {} if "inner_rounds" in options else {"passes": 6}
        spec = job("squared", "l2", **{"passes": None, **passes, **options})
        seen: list[object] = []
        vfl.train(spec, table("squared"), at="inprocess", watch=seen.append)
        (planned,) = (event for event in seen if isinstance(event, Plan))
        assert sum(isinstance(event, Round) for event in seen) == planned.messages


def queries(plan: vfl.Plan) -> list[object]:
    """Return all queries of a plan, each answered with zeros (and with ones for smoothness)."""
    schedule, asked, answer = plan.solver.schedule(plan.problem), [], None
    while True:
        try:
            query = schedule.send(answer) if asked else next(schedule)
        except StopIteration:
            return asked
        asked.append(query)
        if isinstance(query, Descend):
            answer = tuple(np.zeros(step.block.size) for step in query.ordered())
        else:
            answer = tuple(np.ones(2 * m) for m in getattr(query, "widths", {}).values())


class TestCentring:
    """Columns are centred at released means if an intercept absorbs the shift: F and its minimiser stay the same."""

    def test_columns_far_from_zero_have_the_same_model(self) -> None:
        """A shift of the data changes the intercept only; without centring 150 passes would not come near."""
        spec = job("squared", "l2", scaling="none", bounds={})
        X = {c: scaled("squared", intercept=True)[:, j] for j, c in enumerate(COLUMNS)}
        here, there = (
            vfl.train(spec, {c: x + shift for c, x in X.items()} | {"y": table("squared")["y"]}, at="inprocess")
            for shift in (0.0, 30.0)
        )
        assert distance(here, peer("squared", "l2")) < TOLERANCE
        np.testing.assert_allclose(there.coef_, here.coef_, rtol=0, atol=TOLERANCE)
        assert there.intercept_ == pytest.approx(here.intercept_ - 30.0 * here.coef_.sum(), abs=1e-4)

    def test_uncentred_steps_reach_the_same_optimum(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def uncentred(problem, event):
            yield from ()
            return Curvature(np.zeros(problem.layout.n_coordinates), problem.loss.curvature * problem.reach**2)

        spec = job("logistic", "l1", passes=300)
        centred = fit(spec)
        monkeypatch.setattr(smoothness, "curvature", uncentred)
        plain = fit(spec)
        assert distance(centred, peer("logistic", "l1")) < TOLERANCE
        np.testing.assert_allclose(plain.w, centred.w, rtol=0, atol=TOLERANCE)

    def test_wrong_means_do_not_change_the_optimum(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Noisy means are wrong means, and any centres lead to the same optimum."""

        def off(problem, event):
            yield from ()
            names = problem.layout.names
            centre = np.array([0.0 if name == "(intercept)" else 0.4 for name in names])
            return Curvature(centre, np.full(len(names), 2.0 * problem.loss.curvature))

        monkeypatch.setattr(smoothness, "curvature", off)
        assert distance(fit(job("logistic", "l2", passes=300)), peer("logistic", "l2")) < TOLERANCE


def test_the_objective_is_that_of_the_plan() -> None:
    """F of the problem is smaller at the solution than anywhere around it."""
    spec = job("logistic", "elastic_net")
    result, problem = fit(spec), problem_of(spec, N)
    Z = np.column_stack([scaled("logistic", intercept=True), np.ones(N)])
    y = 2.0 * table("logistic")["y"] - 1.0
    least = problem.value(result.w, Z @ result.w, y)
    rng = np.random.default_rng(0)
    for _ in range(50):
        w = result.w + 0.01 * rng.normal(size=result.w.size)
        assert problem.value(w, Z @ w, y) > least


@pytest.mark.filterwarnings("ignore:ε = ")  # of an ε that protects nothing
@pytest.mark.parametrize("given", ["private", "bounds", "data", dict.fromkeys(COLUMNS, 1.0)])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_with_little_noise_every_source_of_smoothness_comes_near_the_optimum(loss: str, given: object) -> None:
    """ε = 10¹⁰: only the grid and the clip remain, and the clip binds no record."""
    privacy = vfl.Privacy(epsilon=1e10, delta=1e-5, noise=vfl.SeededNoise(3), smoothness=given)
    bounds = BOUNDS | ({"y": (-10.0, 10.0)} if loss == "squared" else {})
    spec = job(loss, "l2", privacy=privacy, bounds=bounds, clip=50.0, passes=100)
    assert distance(fit(spec), peer(loss, "l2")) < 0.02


def test_same_seed_same_model_other_seed_another() -> None:
    def model(seed: int) -> np.ndarray:
        privacy = vfl.Privacy(epsilon=1.0, delta=1e-5, noise=vfl.SeededNoise(seed))
        return fit(job("logistic", "l2", privacy=privacy, passes=3)).w

    assert np.array_equal(model(5), model(5))
    assert not np.isclose(model(5), model(6)).any()


def test_true_noise_never_repeats() -> None:
    spec = job("logistic", "l2", privacy=vfl.Privacy(epsilon=1.0, delta=1e-5), passes=3)
    assert not np.isclose(fit(spec).w, fit(spec).w).any()
