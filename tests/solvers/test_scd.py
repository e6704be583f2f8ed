"""DP-SCD: the optimum without noise for ridge, logistic and hinge, what leaves and what does not, and an audit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.linear_model as peers
from sklearn.svm import LinearSVC

import vfl
from coordinator.margins import Margins
from tests.solvers import setting
from vfl.errors import PrivacyError, SpecificationError
from vfl.losses import Hinge, Logistic, Squared
from vfl.messages import Sample
from vfl.planning import plan as make_plan
from vfl.planning import problem_of
from vfl.solvers.scd import DUALS, DualStep, dual_step


def columns() -> np.ndarray:
    return np.column_stack([setting.table("logistic")[c] for c in setting.COLUMNS])


@pytest.mark.parametrize("sampling", ["poisson", "disjoint"])
def test_ridge(sampling: str) -> None:
    y = setting.table("squared")["y"]
    peer = peers.Ridge(setting.STRENGTH * setting.N, fit_intercept=False).fit(columns(), y).coef_
    assert setting.distance(setting.job(vfl.SCD(sampling=sampling, batch_size=30), "squared"), peer) < 1e-6


def test_logistic() -> None:
    fitted = peers.LogisticRegression(C=1 / (setting.STRENGTH * setting.N), fit_intercept=False, tol=1e-10)
    peer = np.ravel(fitted.fit(columns(), setting.table("logistic")["y"]).coef_)
    assert setting.distance(setting.job(vfl.SCD(batch_size=30)), peer) < 1e-6


def test_hinge() -> None:
    svm = LinearSVC(C=1 / (setting.STRENGTH * setting.N), loss="hinge", fit_intercept=False, tol=1e-10, max_iter=10**6)
    peer = np.ravel(svm.fit(columns(), setting.table("hinge")["y"]).coef_)
    assert setting.distance(setting.job(vfl.SCD(batch_size=10, passes=400), "hinge"), peer) < 1e-6


@pytest.mark.parametrize("loss", ["smoothed_hinge", "squared"])
def test_other_smooth_losses_and_a_penalised_intercept(loss: str) -> None:
    spec = setting.job(vfl.SCD(batch_size=30), loss, intercept=True)
    assert setting.distance(spec, setting.optimum(loss, column_of_ones=True)) < 1e-6
    assert "intercept included" in str(make_plan(spec, setting.N))


def test_a_dual_step_maximises_its_bound() -> None:
    """By brute force: over ζ, −ℓ*(−(α + ζ)) − ζv − (q/2)ζ²; for logistic, no worse than staying."""
    rng = np.random.default_rng(0)
    v, y, q = rng.normal(size=50), np.sign(rng.normal(size=50)), rng.uniform(0.1, 3, 50)
    β = rng.uniform(0.05, 0.95, 50)
    grid = np.linspace(0, 1, 20_001)[:, None]
    value = grid - (grid * y - β * y) * v - q / 2 * (grid * y - β * y) ** 2
    best = grid[np.argmax(value, axis=0), 0] * y - β * y
    np.testing.assert_allclose(dual_step(Hinge(), v, y, β * y, q), best, atol=1e-4)
    α = rng.normal(size=50)
    slope = y - (α + dual_step(Squared(), v, y, α, q)) - v - q * dual_step(Squared(), v, y, α, q)
    np.testing.assert_allclose(slope, 0.0, atol=1e-12)

    def gain(b: np.ndarray) -> np.ndarray:
        return -b * np.log(b) - (1 - b) * np.log(1 - b) - (b - β) * y * v - q / 2 * (b - β) ** 2

    moved = β + y * dual_step(Logistic(), v, y, β * y, q)
    assert ((moved > 0) & (moved < 1)).all()
    assert (gain(moved) >= gain(β)).all()


def test_the_state_is_what_was_released() -> None:
    """α moves by the clipped step of the batch alone: without noise v = Σ α_i x_i to the end."""
    margins = Margins(np.array([1.0, -1.0, 1.0]))
    kept = {"norms": np.array([4.0, 1.0, 0.0]), "batch": np.array([1.0, 0.0, 1.0])}
    r, state = DualStep(Hinge(), 0.1, 1e-3)(np.zeros(3), np.array([1.0, -1.0, 1.0]), kept)
    np.testing.assert_allclose(r, [0.05, 0.0, 1.0])
    np.testing.assert_array_equal(state[DUALS], r)
    assert DUALS not in kept
    assert margins.n_records == 3


def test_nothing_but_v_leaves() -> None:
    spec = setting.job(vfl.SCD(passes=2, batch_size=100), epsilon=1.0)
    made, _ = setting.drive(spec)
    assert {record.kind for record in made if record.released} == {"Backward"}
    assert all(sum(u.size for u in record.released) == 4 for record in made if record.released)


@pytest.mark.parametrize("sampling", ["poisson", "disjoint"])
def test_audit(sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setting.price_once(monkeypatch)
    options: dict[str, Any] = {"passes": 4, "batch_size": 2, "clip": 1e-3, "overlap": 1e-6}
    spec = setting.loud(vfl.SCD(sampling=sampling, **options))
    bound, claimed = setting.audit(spec)
    assert 2.0 < claimed < 4.0
    assert 0.3 * claimed < bound <= claimed
    if sampling == "poisson":
        monkeypatch.setattr(Sample, "answer", lambda query, n, noise, key: ((), np.ones(n)))
    else:
        setting.halve_the_noise(monkeypatch)
    assert setting.audit(spec)[0] > claimed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"penalty": vfl.L1(0.1)}, "penalty=L2"),
        ({"penalty": vfl.NoPenalty()}, "penalty=L2"),
        ({"penalty": vfl.L2(0.0)}, "positive strength"),
    ],
)
def test_a_penalty_without_a_dual_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecificationError, match=said):
        make_plan(setting.job(vfl.SCD(), **options), setting.N)


def test_a_loss_without_a_dual_step_is_refused() -> None:
    class Pinball(Hinge):
        name = "pinball"

    problem = problem_of(setting.job(vfl.SCD(), "hinge"), setting.N)
    object.__setattr__(problem, "loss", Pinball())
    with pytest.raises(SpecificationError, match="neither"):
        vfl.SCD().resolve(problem)


def test_releasing_the_duals_is_refused() -> None:
    with pytest.raises(PrivacyError, match="shows who was drawn"):
        vfl.SCD(release="both")
