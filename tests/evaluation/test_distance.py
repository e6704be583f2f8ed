"""Distance to the model without noise: the inversion, subgradients, and where there is none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import chdtri

import vfl
from vfl.base.losses import loss_of
from vfl.measures.distance import BoundedDerivative, Distance, longest, subgradient, why_none
from vfl.planning import problem_of

PARTITION = vfl.FeaturePartition({"a": ["x0", "x1"], "b": ["x2"]}, label=("b", "y"))


def problem_for(**options: Any) -> Any:
    fixed: dict[str, Any] = {"bounds": {"*": (-1.0, 1.0)}, "privacy": vfl.Privacy(epsilon=1.0), "penalty": vfl.L2(0.1)}
    return problem_of(vfl.Job(partition=PARTITION, **(fixed | options)), 1000)


@pytest.mark.parametrize("p", [1, 3, 30, 400])
@pytest.mark.parametrize("length", [0.0, 0.3, 2.0, 40.0])
def test_the_bound_of_a_norm_holds_with_its_probability(p: int, length: float) -> None:
    rng, sigma, chance, draws = np.random.default_rng(p), 0.7, 0.1, 400
    v = rng.normal(size=p)
    v *= length / np.linalg.norm(v)
    found = np.array([longest(v + sigma * rng.normal(size=p), sigma, chance, free=True) for _ in range(draws)])
    assert (found < length).mean() < chance + 4 * math.sqrt(chance / draws)


def test_a_short_release_never_says_that_nothing_differs() -> None:
    """Below the lower quantile the inversion returns about 0, though a vector as long as the noise is possible."""
    p, sigma = 50, 1.0
    short = np.full(p, 1e-6)
    found = longest(short, sigma, 0.025, free=True)
    assert found == pytest.approx(longest(np.full(p, 1.0), sigma, 0.025, free=True))
    assert found > sigma * p**0.25


def test_the_inversion_is_tighter_than_the_triangle() -> None:
    rng = np.random.default_rng(0)
    for p, length in ((3, 0.1), (30, 1.0), (300, 30.0)):
        noisy = length / math.sqrt(p) + rng.normal(size=p)
        triangle = longest(noisy, 1.0, 0.025, free=False)
        assert triangle == pytest.approx(np.linalg.norm(noisy) + math.sqrt(chdtri(p, 0.025)))
        assert longest(noisy, 1.0, 0.025, free=True) < triangle
    assert longest(np.array([3.0, 4.0]), 0.0, 0.025, free=True) == pytest.approx(5.0)


@pytest.mark.parametrize("length", [1e-9, 1e5, 1e9])
def test_extreme_releases_have_a_bound(length: float) -> None:
    for p in (1, 2000):
        noisy = np.full(p, length / math.sqrt(p))
        found = longest(noisy, 1.0, 0.025, free=True)
        assert math.isfinite(found)
        assert found >= 0.999 * min(length, 1e9)


def test_the_subgradient_is_the_shortest() -> None:
    ridge, net = problem_for(penalty=vfl.L2(0.5)), problem_for(penalty=vfl.ElasticNet(1.0, l1_ratio=0.4))
    w, g = np.array([1.0, 0.0, -2.0, 0.0]), np.array([0.3, -0.1, 0.2, 0.9])
    s, free = subgradient(ridge, w, g)
    assert free
    np.testing.assert_allclose(s, g + 0.5 * w)
    s, free = subgradient(net, w, g)
    assert not free
    np.testing.assert_allclose(s, [0.3 + 0.6 + 0.4, 0.0, 0.2 - 1.2 - 0.4, 0.5])
    rng = np.random.default_rng(1)
    for _ in range(200):  # no other choice at the zeros is shorter
        other = g + 0.6 * w + 0.4 * np.where(w == 0, rng.uniform(-1, 1, 4), np.sign(w))
        assert np.linalg.norm(s) <= np.linalg.norm(other) + 1e-12
    assert subgradient(net, np.ones(4), g)[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "the intercept is not penalised"),
        ({"intercept": False}, ""),
        ({"solver": vfl.solvers.OutputPerturbation()}, ""),
        ({"penalty": vfl.penalties.NoPenalty(), "intercept": False}, "not strongly convex"),
        ({"penalty": vfl.L2(0.0), "intercept": False}, "not strongly convex"),
        ({"penalty": vfl.L1(0.1), "intercept": False}, "not strongly convex"),
        ({"penalty": vfl.ElasticNet(0.1, l1_ratio=1.0), "intercept": False}, "not strongly convex"),
        ({"penalty": vfl.ElasticNet(0.1), "intercept": False}, ""),
        ({"loss": "hinge", "intercept": False}, ""),
    ],
)
def test_where_there_is_a_distance(options: dict[str, Any], said: str) -> None:
    found = why_none(problem_for(**options))
    assert said in found
    assert bool(found) == bool(said)


def test_the_weights_bound_every_contribution_and_change_none() -> None:
    rng, loss = np.random.default_rng(2), loss_of("logistic")
    X = rng.choice([-1.0, 1.0], (500, 7))
    v, y = 40.0 * rng.normal(size=500), rng.choice([-1.0, 1.0], 500)
    reach = math.sqrt(7.0)
    r, replaced = BoundedDerivative(loss, reach, reach)(v, y, {})
    assert not replaced
    np.testing.assert_allclose(r, loss.derivative(v, y), rtol=1e-15)
    assert (np.linalg.norm(r[:, None] * X, axis=1) <= reach * (1 + 1e-15)).all()
    assert BoundedDerivative(loss, 0.5, 1.0)(np.array([math.nan, -1e9]), np.ones(2), {})[0].tolist() == [0.0, -0.5]


def test_the_plan_expects_a_distance_and_says_when_it_is_too_far() -> None:
    near = Distance(problem_for(intercept=False, penalty=vfl.L2(2.0)), 1.0)
    assert 0 < near.expected < 1
    assert "at best" in near.explain()
    assert "too far" not in near.explain()
    far = Distance(problem_for(intercept=False, penalty=vfl.L2(1e-4)), 0.1)
    assert "too far for any bound" in far.explain()
    public = Distance(problem_for(intercept=False), 1.0, 0.25)
    assert public.releases() == ()
    assert public.explain().endswith("at most 0.25, from public facts")
