"""Audit of every solver at ε = 14: the best attacker guesses no better than the charges allow.

In each scene the record saturates the sensitivity, so the audit is sharp: guesses reach the limit. Noise that is too
small by √2 is found by 1,000 runs in either world.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

import vfl
from tests.solvers import setting
from tests.solvers.audits import Scene, World, least_rate, wrong_guesses
from vfl.base.losses import SmoothedHinge
from vfl.planning import plan
from vfl.solvers import SOLVERS

QUICK, SLOW = 120, 2000
CLIP = 1e-3


def flipped(n: int = 4) -> tuple[World, World]:
    """Record 0 is a row of ones with either label, and all others are zero: its gradient changes its sign."""
    X, y = np.zeros((n, 4)), np.ones(n)
    X[0] = 1.0
    return (X, y), (X, np.r_[-1.0, y[1:]])


def across(n: int = 200) -> tuple[World, World]:
    """All others push w along the first column; record 0 follows a little, and lies to either side of it.

    For a convex loss ℓ'(v) − ℓ'(ṽ) has the sign of v − ṽ, so a difference never points against w − w̃: two of them are
    2D apart where both are nearly orthogonal to it.
    """
    X, y = np.zeros((n, 4)), np.ones(n)
    X[1:, 0] = 1.0
    mirrored = X.copy()
    X[0, :2], mirrored[0, :2] = (0.1, 1.0), (0.1, -1.0)
    return (X, y), (mirrored, y)


def swapped(n: int = 2) -> tuple[World, World]:
    """Record 0 is the first or the last unit vector: its products differ by √2·C²."""
    X, Z = np.zeros((n, 4)), np.zeros((n, 4))
    X[0, 0] = Z[0, 3] = 1.0
    return (X, np.zeros(n)), (Z, np.zeros(n))


def scene(solver: Any, worlds: tuple[World, World], loss: Any = "logistic", **options: Any) -> Scene:
    spec = setting.job(solver, loss, **({"epsilon": 14.0, "penalty": vfl.L2(1e-3)} | options))
    assert spec.privacy is not None
    return Scene(replace(spec, privacy=replace(spec.privacy, smoothness="bounds")), worlds)


STILL: dict[str, Any] = {"clip": CLIP, "step_size": 1e-3}
"""Tiny steps: margins stay near 0, where |ℓ'| = ½ exceeds the clip by far."""
DUAL: dict[str, Any] = {"clip": CLIP, "overlap": 1e-6, "passes": 2}
SVRG: dict[str, Any] = {"clip": CLIP, "difference_clip": CLIP / 10, "step_size": 100.0, "passes": 2}

SCENES: dict[str, Scene] = {
    "SkGD": scene(vfl.SkGD().changed(block_size=2, passes=2, **STILL), flipped()),
    "CD": scene(vfl.solvers.CD().changed(passes=1, **STILL), flipped()),
    "GCD": scene(vfl.solvers.GCD(rounds=3, clip=CLIP, step_size=1e-3, selection_share=0.01), flipped()),
    "GD": scene(vfl.solvers.GD(passes=3, **STILL), flipped()),
    "SGD-poisson": scene(vfl.solvers.SGD(sampling="poisson", batch_size=2, passes=2, **STILL), flipped()),
    "SGD-disjoint": scene(vfl.solvers.SGD(sampling="disjoint", batch_size=2, passes=2, **STILL), flipped()),
    "SVRG-poisson": scene(
        vfl.solvers.SVRG(sampling="poisson", batch_size=100, **SVRG), across(), penalty=vfl.penalties.NoPenalty()
    ),
    "SVRG-disjoint": scene(
        vfl.solvers.SVRG(sampling="disjoint", batch_size=100, **SVRG), across(), penalty=vfl.penalties.NoPenalty()
    ),
    "SCD-poisson": scene(vfl.solvers.SCD(sampling="poisson", batch_size=2, **DUAL), flipped()),
    "SCD-disjoint": scene(vfl.solvers.SCD(sampling="disjoint", batch_size=2, **DUAL), flipped()),
    "OutputPerturbation": scene(
        vfl.solvers.OutputPerturbation(constant=False), flipped(2), SmoothedHinge(0.5), penalty=vfl.L2(10.0)
    ),
    "NoisyGram": scene(vfl.solvers.NoisyGram(clip=1.0, label_scale=1.0), swapped(), "squared"),
}


def rate(name: str) -> float:
    """Return the least share of wrong guesses that the plan promises."""
    found = plan(SCENES[name].spec, len(SCENES[name].worlds[0][1]))
    assert found.epsilon <= 14.0
    return least_rate(found.releases)


def test_every_solver_is_covered() -> None:
    assert {name.split("-")[0] for name in SCENES} == set(SOLVERS)


DEAR = ("SVRG-poisson", "SGD-poisson")
"""Their plans take seconds to calibrate; in the quick run SCD's samples stand for theirs, beside all disjoint batches."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in DEAR)) for n in SCENES])
def test_guesses_reach_the_limit_of_the_charges(name: str) -> None:
    wrong = wrong_guesses(SCENES[name], QUICK)
    assert 0.05 < rate(name) < 0.2
    assert binom.cdf(wrong, QUICK, rate(name)) > 0.005, "more is learnt than was charged"
    assert binom.sf(wrong - 1, QUICK, rate(name)) > 0.005, "the audit is not sharp"


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_a_thousand_runs_in_either_world(name: str) -> None:
    wrong = wrong_guesses(SCENES[name], SLOW)
    assert binom.cdf(wrong, SLOW, rate(name)) > 1e-3
    assert binom.cdf(wrong_guesses(replace(SCENES[name], weaken=2**0.5), SLOW), SLOW, rate(name)) < 1e-3
