"""DP-SCD: the optimum without noise for ridge, logistic and hinge, its releases, and their price."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model as peers
from sklearn.svm import LinearSVC

import vfl
from coordinator.states.linear_predictors import LinearPredictors
from tests.solvers import setting
from vfl.base.losses import Hinge, Logistic, Squared
from vfl.errors import PrivacyError, SpecificationError
from vfl.planning import plan as make_plan
from vfl.planning import problem_of
from vfl.privacy.events import ReleaseKey
from vfl.privacy.geometry import Clip
from vfl.privacy.noise import SeededNoise
from vfl.solvers.scd import DUALS, PERTURBATION, DualStep, Perturb


def columns() -> np.ndarray:
    return np.column_stack([setting.table("logistic")[c] for c in setting.COLUMNS])


@pytest.mark.parametrize("sampling", ["poisson", "disjoint"])
def test_ridge(sampling: str) -> None:
    y = setting.table("squared")["y"]
    peer = peers.Ridge(setting.STRENGTH * setting.N, fit_intercept=False).fit(columns(), y).coef_
    assert (
        setting.distance(
            setting.job(vfl.solvers.SCD(sampling=sampling, batch_size=30, overlap=10, passes=60), "squared"), peer
        )
        < 1e-6
    )


def test_logistic() -> None:
    fitted = peers.LogisticRegression(C=1 / (setting.STRENGTH * setting.N), fit_intercept=False, tol=1e-10)
    peer = np.ravel(fitted.fit(columns(), setting.table("logistic")["y"]).coef_)
    assert setting.distance(setting.job(vfl.solvers.SCD(batch_size=30, overlap=10, passes=60)), peer) < 1e-6


def test_hinge() -> None:
    svm = LinearSVC(C=1 / (setting.STRENGTH * setting.N), loss="hinge", fit_intercept=False, tol=1e-10, max_iter=10**6)
    peer = np.ravel(svm.fit(columns(), setting.table("hinge")["y"]).coef_)
    assert setting.distance(setting.job(vfl.solvers.SCD(batch_size=30, overlap=10, passes=250), "hinge"), peer) < 1e-6


@pytest.mark.parametrize("loss", ["smoothed_hinge", "squared"])
def test_other_smooth_losses_and_a_penalised_intercept(loss: str) -> None:
    spec = setting.job(vfl.solvers.SCD(batch_size=30, overlap=10, passes=100), loss, intercept=True)
    assert setting.distance(spec, setting.optimum(loss, column_of_ones=True)) < 1e-6
    assert "intercept included" in make_plan(spec, setting.N).explain()


def test_a_dual_step_maximises_its_bound() -> None:
    """Brute force over ζ of −ℓ*(−(α + ζ)) − ζv − (q/2)ζ²; for logistic loss, at least as good as ζ = 0."""
    rng = np.random.default_rng(0)
    v, y, q = rng.normal(size=50), np.sign(rng.normal(size=50)), rng.uniform(0.1, 3, 50)
    β = rng.uniform(0.05, 0.95, 50)
    grid = np.linspace(0, 1, 20_001)[:, None]
    value = grid - (grid * y - β * y) * v - q / 2 * (grid * y - β * y) ** 2
    best = grid[np.argmax(value, axis=0), 0] * y - β * y
    np.testing.assert_allclose(Hinge().dual_step(v, y, β * y, q), best, atol=1e-4)
    α = rng.normal(size=50)
    slope = y - (α + Squared().dual_step(v, y, α, q)) - v - q * Squared().dual_step(v, y, α, q)
    np.testing.assert_allclose(slope, 0.0, atol=1e-12)

    def gain(b: np.ndarray) -> np.ndarray:
        return -b * np.log(b) - (1 - b) * np.log(1 - b) - (b - β) * y * v - q / 2 * (b - β) ** 2

    moved = β + y * Logistic().dual_step(v, y, β * y, q)
    assert ((moved > 0) & (moved < 1)).all()
    assert (gain(moved) >= gain(β)).all()


def test_the_state_equals_the_releases() -> None:
    """α moves by the clipped step of the batch only: without noise v = Σ α_i x_i until the end."""
    margins = LinearPredictors(np.array([1.0, -1.0, 1.0]))
    kept = {"norms": np.array([4.0, 1.0, 0.0]), "batch": np.array([1.0, 0.0, 1.0])}
    r, state = DualStep(Hinge(), 0.1, 1e-3)(np.zeros(3), np.array([1.0, -1.0, 1.0]), kept)
    np.testing.assert_allclose(r, [0.05, 0.0, 1.0])
    np.testing.assert_array_equal(state[DUALS], r)
    assert DUALS not in kept
    assert margins.state()[0].shape == (3,)


def test_only_v_is_released() -> None:
    spec = setting.job(vfl.solvers.SCD(passes=2, batch_size=100), epsilon=1.0)
    made, _ = setting.drive(spec)
    assert {record.kind for record in made if record.released} == {"Backward"}
    assert all(sum(u.size for u in record.released) == 4 for record in made if record.released)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"penalty": vfl.L1(0.1)}, "give an L2 penalty"),
        ({"penalty": vfl.penalties.NoPenalty()}, "give an L2 penalty"),
        ({"penalty": vfl.L2(0.0)}, "positive strength"),
    ],
)
def test_a_penalty_without_a_dual_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecificationError, match=said):
        make_plan(setting.job(vfl.solvers.SCD(), **options), setting.N)


def test_a_loss_without_a_dual_step_is_refused() -> None:
    class Pinball(Hinge):
        name = "pinball"
        closed_dual = False

    problem = problem_of(setting.job(vfl.solvers.SCD(), "hinge"), setting.N)
    object.__setattr__(problem, "loss", Pinball())
    with pytest.raises(SpecificationError, match="neither"):
        vfl.solvers.SCD().resolve(problem)


class TestBoth:
    """The paper's release of [α; v], and its price."""

    def test_it_costs_the_root_of_two(self) -> None:
        options: dict[str, Any] = {"sampling": "disjoint", "passes": 3, "batch_size": 100, "clip": 0.5}
        (alone, count), (both, again) = (
            make_plan(setting.job(vfl.solvers.SCD(release=release, **options), epsilon=2.0), setting.N).releases[0]
            for release in ("v", "both")
        )
        assert count == again == 3
        assert both.sensitivity >= math.hypot(alone.sensitivity, Clip(0.5, 1).sensitivity)
        assert both.sensitivity == pytest.approx(2.0 * math.sqrt(2.0) * 0.5, rel=1e-5)
        assert both.sigma / alone.sigma == pytest.approx(both.sensitivity / alone.sensitivity)

    def test_a_record_moves_both_parts_by_no_more(self) -> None:
        """α by brute force over any two records and any past; v is bounded as in every solver here."""
        rng = np.random.default_rng(0)
        clip = Clip(0.3, 1)
        step = DualStep(Squared(), 0.3, 1e-3, clip.grid)
        for scale in (1e-3, 1.0, 1e3):
            kept = {
                "norms": rng.exponential(scale, 200), "batch": np.ones(200), PERTURBATION: np.zeros(200),
                DUALS: rng.normal(size=200) * scale,
            }  # fmt: skip
            r, replaced = step(rng.normal(size=200), scale * rng.normal(size=200), kept)
            assert abs(replaced[DUALS] - kept[DUALS]).max() <= clip.sensitivity / 2 * (1 + 1e-12)
            assert (abs(r) * np.sqrt(kept["norms"])).max() <= 0.3 * (1 + 1e-12)

    def test_alpha_is_noised_on_the_batch_alone(self) -> None:
        event = Clip(0.3, 4).event(2.0)
        _, (noise,) = Perturb(event, Clip(0.3, 1)).drawn((20_000,), SeededNoise(1), ReleaseKey(0))
        assert np.std(noise) == pytest.approx(event.sigma, rel=0.03)
        batch = np.arange(20_000) % 2.0
        kept = {"norms": np.ones(20_000), "batch": batch, PERTURBATION: noise}
        moved = DualStep(Squared(), 0.3, 1e-3, Clip(0.3, 1).grid)(np.zeros(20_000), np.ones(20_000), kept)[1][DUALS]
        np.testing.assert_array_equal(moved[batch == 0], 0.0)
        np.testing.assert_allclose(moved[batch == 1] - noise[batch == 1], 0.3, atol=1e-6)

    def test_without_noise_there_is_nothing_to_add(self) -> None:
        options: dict[str, Any] = {"sampling": "disjoint", "passes": 3}
        alone, both = (setting.drive(setting.job(vfl.solvers.SCD(release=r, **options)))[1].w for r in ("v", "both"))
        np.testing.assert_array_equal(alone, both)

    def test_a_resumed_run_ends_in_the_same_model_to_the_bit(self) -> None:
        spec = setting.job(vfl.solvers.SCD(release="both", batch_size=100, passes=2), epsilon=2.0)
        made, outcome = setting.drive(spec)
        assert outcome.plan.solver.sampling == "disjoint"  # type: ignore[attr-defined]
        for length in (2, 5, len(made) - 1):
            assert setting.drive(spec, setting.log_of(made, length))[1].w.tobytes() == outcome.w.tobytes()

    def test_secret_samples_are_refused(self) -> None:
        with pytest.raises(PrivacyError, match="shows which records were drawn"):
            vfl.solvers.SCD(release="both", sampling="poisson")
        with pytest.raises(SpecificationError, match="one of v, both"):
            vfl.solvers.SCD(release="alpha")


def test_one_record_at_a_time_is_sequential_ascent() -> None:
    """Against SDCA as its paper writes it (Shalev-Shwartz & Zhang 2013, Fig. 1), in the same order."""
    X, y, λn = columns(), setting.table("squared")["y"], setting.STRENGTH * setting.N
    w, α = np.zeros(4), np.zeros(setting.N)
    for number in range(2):
        for i in np.random.default_rng((7, number)).permutation(setting.N):
            ζ = (y[i] - X[i] @ w - α[i]) / (1.0 + X[i] @ X[i] / λn)
            α[i] += ζ
            w += ζ * X[i] / λn
    solver = vfl.solvers.SCD(batch_size=1, overlap=1.0, sampling="disjoint", passes=2, seed=7)
    np.testing.assert_allclose(setting.drive(setting.job(solver, "squared"))[1].w, w, atol=1e-12)
