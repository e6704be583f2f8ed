"""Momentum of SkGD: faster along nearly parallel columns, never divergent, and the same model on both sides of a message."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vfl
from tests.solvers import setting
from vfl.errors import SpecificationError
from vfl.planning import plan, problem_of
from vfl.solvers.iterates.trail import Momentum

PAIRS = vfl.FeaturePartition({"bank": ["a0", "a1"], "telco": ["b0", "b1"]}, label=("telco", "y"))

PLAIN: dict[str, Any] = {"intercept": False, "scaling": "none"}


def parallel(loss: str) -> dict[str, np.ndarray]:
    """Return columns of two parties, each nearly parallel to one of the other party."""
    rng = np.random.default_rng(5)
    A = rng.uniform(-0.9, 0.9, (400, 2))
    B = A + 0.1 * rng.uniform(-1, 1, (400, 2))
    v = 3.0 * (A[:, 0] - B[:, 0]) + 5.0 * (B[:, 1] - A[:, 1])
    y = v if loss == "squared" else (v + rng.logistic(scale=0.3, size=400) > 0).astype(int)
    return dict(zip(("a0", "a1", "b0", "b1"), (*A.T, *B.T), strict=True)) | {"y": y}


def left(loss: str, momentum: float, **options: Any) -> float:
    """Return F(w) − F(w*) after 12 passes without noise."""

    def objective(passes: int, strength: float, **given: Any) -> float:
        solver = vfl.SkGD(passes=passes, momentum=strength, block_size=1, **given)
        job = vfl.Job(partition=PAIRS, loss=loss, penalty=vfl.L2(1e-4), solver=solver, privacy=None, **PLAIN)
        data = parallel(loss)
        w = vfl.train(job, data, at="inprocess").w
        X, y = np.column_stack([data[c] for c in ("a0", "a1", "b0", "b1")]), np.asarray(data["y"], float)
        return problem_of(job, 400).value(w, X @ w, y if loss == "squared" else 2.0 * y - 1.0)

    return objective(12, momentum, **options) - objective(400, 0.5)


@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize("sweep", ["party", "block"])
def test_nearly_parallel_columns_converge_faster(loss: str, sweep: str) -> None:
    assert left(loss, 0.5, sweep=sweep) < 0.8 * left(loss, 0.0, sweep=sweep)


@pytest.mark.parametrize("step", [0.5, 1.0, 1.6])
def test_the_energy_of_the_proof_never_rises(step: float) -> None:
    """F + β/(2γ)‖w − w₋‖²_M with L1, at the largest momentum, over orders that change with every pass."""
    rng = np.random.default_rng(2)
    β, strength = 1.0 - step / 2.0, 0.01
    for _ in range(20):
        A = rng.standard_normal((6, 5)) @ np.diag(rng.uniform(0.1, 3.0, 5))
        A[:, 1] = A[:, 0] + 0.05 * A[:, 1]
        H, target = A.T @ A, rng.standard_normal(5)
        M, w, heavy, energies = np.diag(H), rng.standard_normal(5), Momentum(β), []
        for number in range(40):
            before, push = w.copy(), heavy.push(number, w)
            for j in rng.permutation(5):
                s = step / M[j]
                v = w[j] + (0.0 if push is None else push[j]) - s * (H[j] @ w - target[j])
                w[j] = np.sign(v) * max(abs(v) - s * strength, 0.0)
            F = w @ H @ w / 2.0 - target @ w + strength * abs(w).sum()
            energies.append(F + β / (2.0 * step) * M @ (w - before) ** 2)
        assert (np.diff(energies) <= 1e-9 * (1.0 + abs(np.array(energies[1:])))).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [({"momentum": 0.6}, "step_size"), ({"momentum": -0.1}, "momentum"), ({"momentum": 0.4, "step_size": 1.6}, "0.2")],
)
def test_momentum_that_may_diverge_is_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(SpecificationError, match=said):
        vfl.SkGD(**options)


def test_the_rule_leaves_the_charge_and_takes_fewer_passes() -> None:
    """At the same total ε, up to half of the messages; not for a last iterate, whose noise is not averaged."""
    spec = setting.job(vfl.SkGD(local_passes=1), "logistic", epsilon=1.0, intercept=True)
    spec = replace(spec, privacy=replace(spec.privacy, noise=None))
    ours, plain = plan(spec, 1_500), plan(replace(spec, solver=vfl.SkGD(local_passes=1, momentum=0.0)), 1_500)
    assert ours.solver.momentum > 0.0
    assert ours.round_trips < plain.round_trips
    assert ours.epsilon == pytest.approx(plain.epsilon, rel=1e-6)
    last = plan(replace(spec, solver=vfl.SkGD(iterate="last")), 1_500).solver
    assert last.momentum == 0.0


def test_a_run_goes_on_where_it_was_cut_off() -> None:
    spec = setting.job(vfl.SkGD(passes=6, momentum=0.5), epsilon=2.0)
    made, whole = setting.drive(spec)
    for cut in (5, len(made) - 2):
        np.testing.assert_array_equal(setting.drive(spec, setting.log_of(made, cut))[1].w, whole.w)
