"""Mean and spread of the labels: charge, exact sensitivity, and benefit under a wide declared range."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vfl
from vfl.base.losses import SmoothedHinge, majority
from vfl.errors import SpecificationError
from vfl.planning import plan, problem_of
from vfl.privacy.events import Gaussian
from vfl.queries import Tally
from vfl.queries.statistics import LabelMean
from vfl.solvers.releases.labels import BINS, LabelCounts, shrunk, spread_of
from vfl.solvers.rules import defaults

N, P = 4_000, 4


def job(label: tuple[float, float] = (-5.0, 5.0), solver: object = None, seed: int | None = None, **options: object):
    names = [f"x{j}" for j in range(P)]
    noise = None if seed is None else vfl.SeededNoise(seed)
    given = {"loss": "squared", "privacy": vfl.Privacy(epsilon=1.0, delta=1e-8, noise=noise)} | options
    return vfl.Job(
        partition=vfl.FeaturePartition({"a": names[:2], "b": names[2:]}, label=("b", "y")),
        bounds=dict.fromkeys(names, (-1.0, 1.0)) | {"y": label},
        solver=solver or vfl.SkGD(),
        **given,
    )


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (N, P))
    y = X @ np.array([1.0, -0.5, 0.25, 0.0]) + 2.0 + 0.5 * rng.standard_normal(N)
    return {f"x{j}": X[:, j] for j in range(P)} | {"y": np.clip(y, -5.0, 5.0)}


def test_one_record_moves_the_counts_by_its_two_bins() -> None:
    statistic, y = LabelCounts(-1.0, 3.0), np.linspace(-2.0, 4.0, 50)
    whole = statistic(np.zeros(50), y) * statistic.grid
    assert whole.sum() == 50
    for odd in (-np.inf, -1.0, 0.3, 3.0, np.inf, np.nan):
        other = y.copy()
        other[7] = odd
        moved = statistic(np.zeros(50), other) * statistic.grid - whole
        assert np.linalg.norm(moved) <= statistic.sensitivity
        assert np.linalg.norm(moved) in (0.0, np.sqrt(2.0))


def test_mean_and_spread_are_those_of_the_labels() -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(1.0, 0.5, 100_000)
    statistic = LabelCounts(-4.0, 6.0)
    found = spread_of(statistic(y, y) * statistic.grid, statistic, y.size)
    assert found.mean == pytest.approx(1.0, abs=0.01)
    assert found.deviation == pytest.approx(0.5, rel=0.05)
    noisy = spread_of(statistic(y, y) * statistic.grid + rng.normal(0, 100, BINS), statistic, y.size)
    assert noisy.deviation == pytest.approx(0.5, rel=0.3)
    assert spread_of(np.zeros(BINS), statistic, y.size).deviation > 0


def test_the_plan_charges_the_runs_releases(table) -> None:
    made = plan(job(), N)
    assert made.epsilon <= 1.0
    assert [count for _, count in made.releases[:2]] == [1, 1]
    assert isinstance(made.releases[1][0], Gaussian)
    assert made.releases[1][0].dimension == BINS
    schedule = made.schedule()
    query, tallies = next(schedule), []
    for _ in range(3):
        if isinstance(query, Tally):
            tallies.append(query.event)
        query = schedule.send(tuple(np.zeros(size) for size in query.sizes()))
    assert tallies == [made.releases[1][0]]
    assert vfl.train(job(seed=0), table, at="inprocess").certificate.epsilon <= 1.0
    assert "mean and spread of the labels" in "\n".join(made.solver.explain(made.problem))


@pytest.mark.parametrize(
    ("changed", "share"),
    [
        ({}, True),
        ({"solver": vfl.SkGD(clip=1.0)}, False),  # the user's cap is kept
        ({"solver": vfl.SkGD(details=vfl.solvers.Details(label_share=0.0))}, False),
        ({"intercept": False}, False),
        ({"privacy": None}, False),
        ({"privacy": vfl.Privacy(epsilon=0.05, delta=1e-8)}, True),  # the mean alone
        ({"privacy": vfl.Privacy(epsilon=0.05, delta=1e-8), "solver": vfl.SkGD(clip="coordinate")}, False),
        ({"loss": vfl.losses.Huber(width=1.0)}, True),  # the mean
        ({"loss": vfl.losses.Huber(width=1.0), "intercept": False}, False),
    ],
)
def test_it_is_released_where_it_helps(changed, share) -> None:
    made = plan(job(**changed), N)
    assert bool(made.solver.label_share) == share
    assert made.solver.resolve(made.problem) == made.solver


anything = st.lists(st.floats() | st.floats(-2, 3), min_size=1, max_size=5)


@given(labels=anything, other=st.floats())
def test_replacing_a_label_moves_the_sum_by_at_most_one(labels: list[float], other: float) -> None:
    """In whole steps of the grid, whatever the floats are."""
    statistic = LabelMean(-1.0, 2.0)
    y = np.array(labels)
    before = int(statistic(y, y)[0])
    y[0] = other
    assert abs(int(statistic(y, y)[0]) - before) * statistic.grid <= statistic.sensitivity
    assert statistic(y, y).dtype == np.int64


def test_a_noisy_mean_is_drawn_to_the_middle() -> None:
    assert shrunk(0.3, 1e-6) == pytest.approx(0.3)
    assert shrunk(0.3, 1e6) == pytest.approx(0.0, abs=1e-9)
    assert 0.0 < shrunk(0.3, 0.2) < 0.3


def test_with_few_records_the_run_starts_at_the_mean() -> None:
    """μn = 26: the declared middle is 1.6 deviations from the mean, which would leave 2.6 times the labels' variance."""
    rng = np.random.default_rng(4)
    n = 1_000
    X = rng.uniform(-1, 1, (n, P))
    y = np.clip(1.6 + 0.3 * X[:, 0] + rng.normal(size=n), -4, 4)
    table = dict(zip((f"x{j}" for j in range(P)), X.T, strict=True)) | {"y": y}
    spec = job((-4.0, 4.0))
    left = []
    for seed in range(8):
        private = vfl.Privacy(epsilon=0.1, delta=1e-6, noise=vfl.SeededNoise(seed))
        found = vfl.train(replace(spec, privacy=private), table, at="inprocess")
        left.append(np.mean((X @ found.coef_ + found.intercept_ - y) ** 2) / y.var())
    assert np.mean(left) < 1.5
    made = plan(replace(spec, privacy=vfl.Privacy(epsilon=0.1, delta=1e-6)), n)
    assert [event.dimension for event, count in made.releases[:2]][1] == 1
    assert made.epsilon <= 0.1
    assert "mean of the labels for 30 % of the privacy budget: the intercept starts there." in made.solver.explain(
        made.problem
    )


def test_the_share_falls_with_the_records() -> None:
    problem = problem_of(job(), N)
    shares = [defaults.label_share(replace(problem, n_records=n)) for n in (2_000, 10**4, 10**5, 10**7)]
    assert shares == sorted(shares, reverse=True)
    assert 0.002 <= shares[-1] <= shares[0] <= 0.05


@pytest.mark.parametrize(
    ("solver", "options"), [(vfl.SkGD(details=vfl.solvers.Details(label_share=0.1)), {"intercept": False})]
)
def test_a_share_without_use_is_refused(solver, options) -> None:
    with pytest.raises(SpecificationError, match=r"label_share=0\.1 spends budget on the spread of labels"):
        plan(job(solver=solver, **options), N)


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_an_invalid_share_is_refused(share) -> None:
    with pytest.raises(SpecificationError, match="label_share must lie between 0 and 1"):
        vfl.SkGD(details=vfl.solvers.Details(label_share=share))


def test_a_wide_range_costs_little(table) -> None:
    """Ten times the range: without the labels' spread the clip is ten times too wide, and the start is far away."""
    X, y = np.column_stack([table[f"x{j}"] for j in range(P)]), table["y"]

    def excess(label: tuple[float, float], **options: object) -> float:
        def one(seed: int) -> float:
            result = vfl.train(job(label, vfl.SkGD().changed(**options), seed), table, at="inprocess")
            return float(np.mean((X @ result.coef_ + result.intercept_ - y) ** 2) / np.mean((y - y.mean()) ** 2))

        floor = np.linalg.lstsq(np.column_stack([X, np.ones(N)]), y, rcond=None)[1][0] / N / np.var(y)
        return float(np.mean([one(seed) for seed in range(3)])) - float(floor)

    wide = excess((-50.0, 50.0))
    assert wide < excess((-50.0, 50.0), label_share=0.0) / 5
    assert wide < 0.05


@pytest.mark.parametrize("share", [0.05, 0.3, 0.49, 0.7, 1.0])
@pytest.mark.parametrize("width", [0.2, 0.5, 1.0])
def test_the_start_of_smoothed_hinge_is_its_best_constant(share, width):
    loss, b = SmoothedHinge(width), np.linspace(-1.5, 1.5, 3001)
    values = share * loss.value(b, np.ones_like(b)) + (1 - share) * loss.value(b, -np.ones_like(b))
    start = np.array([majority(share, 1e-9, width)])
    there = share * loss.value(start, np.ones(1)) + (1 - share) * loss.value(start, -np.ones(1))
    assert there[0] <= values.min() + 1e-6


def test_a_start_of_smoothed_hinge_near_one_half_is_short():
    assert majority(0.5, 0.1, 0.5) == 0.0
    assert 0.0 < majority(0.55, 0.1, 0.5) < 0.25 < majority(0.7, 0.1, 0.5)
    assert majority(0.45, 0.1, 0.5) == pytest.approx(-majority(0.55, 0.1, 0.5))
    assert majority(-0.2, 0.1, 0.5) == -1.0


def test_smoothed_hinge_buys_the_balance_where_little_can_be_learnt():
    given = {"loss": SmoothedHinge(), "bounds": dict.fromkeys([f"x{j}" for j in range(P)], (-1.0, 1.0))}
    shares = []
    for epsilon in (0.02, 1.0):
        spec = replace(job(), privacy=vfl.Privacy(epsilon=epsilon, delta=1e-8), **given)
        shares.append(plan(spec, N).solver.label_share)
    assert shares[0] > 0.0
    assert shares[1] == 0.0
