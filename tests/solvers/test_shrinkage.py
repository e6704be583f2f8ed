"""Moves of short runs under an L1 penalty: kept where released gradients show a signal, dropped where they are noise."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vfl
from vfl.planning import plan, problem_of
from vfl.solvers.iterates.trail import Shrinkage
from vfl.solvers.rules import record_defaults

N, P = 1000, 200
COLUMNS = [f"x{j}" for j in range(P)]


def job(penalty: Any, epsilon: float = 1.0) -> vfl.Job:
    return vfl.Job(
        partition=vfl.FeaturePartition({"a": COLUMNS[:100], "b": COLUMNS[100:]}, label=("b", "y")),
        bounds=dict.fromkeys(COLUMNS, (-1.0, 1.0)),
        penalty=penalty,
        privacy=vfl.Privacy(epsilon=epsilon),
    )


def shrunk(g: np.ndarray, noise: float, *, strength: float, on: bool = True, rng: Any = None) -> tuple[Any, Any]:
    """Moves against noisy gradients of which the true ones are g, and what is left of them."""
    problem = problem_of(job(vfl.L1(strength)), N)
    known = Shrinkage(problem, np.zeros(P + 1), on=on)
    released = np.append(g + noise * rng.standard_normal(P), 5.0)
    block = SimpleNamespace(coordinates=slice(0, P + 1))
    step: Any = SimpleNamespace(block=block, scale=np.ones(P + 1), event=SimpleNamespace(sigma=noise * N))
    known.saw(step, N * released)
    moves = -0.5 * released
    return moves, known.applied(moves)


@pytest.mark.parametrize(("strength", "most"), [(0.003, 0.3), (0.1, 0.02)])
def test_noise_alone_leaves_the_start(strength: float, most: float) -> None:
    rng, kept = np.random.default_rng(0), []
    for _ in range(40):
        moves, left = shrunk(np.zeros(P), 0.2, strength=strength, rng=rng)
        assert left[-1] == moves[-1]  # the intercept keeps its move
        kept.append(abs(left[:-1]).sum() / abs(moves[:-1]).sum())
    assert np.mean(kept) < most


def test_clear_gradients_keep_their_moves() -> None:
    rng = np.random.default_rng(1)
    g = rng.choice([-1.0, 1.0], P)
    moves, left = shrunk(g, 0.02, strength=0.01, rng=rng)
    np.testing.assert_allclose(left, moves, atol=0.05)


def test_a_few_strong_columns_are_kept_and_noise_of_the_others_shrinks() -> None:
    rng = np.random.default_rng(2)
    g = np.zeros(P)
    g[:5] = 2.0
    kept = []
    for _ in range(20):
        moves, left = shrunk(g, 0.2, strength=0.05, rng=rng)
        assert np.all(left[:5] < 0.5 * moves[:5])
        kept.append(abs(left[5:-1]).sum() / abs(moves[5:-1]).sum())
    assert np.mean(kept) < 0.8


def test_the_estimate_is_of_what_is_gained() -> None:
    """Averaged over noise, the model kept is no worse than the start and than the moves as they were made."""
    rng, strength = np.random.default_rng(3), 0.02
    for spread in (0.0, 0.05, 0.2, 1.0):
        before, after = [], []
        for _ in range(60):
            g = spread * rng.standard_normal(P)
            moves, left = shrunk(g, 0.2, strength=strength, rng=rng)
            before.append(g @ moves[:-1] + strength * abs(moves[:-1]).sum())
            after.append(g @ left[:-1] + strength * abs(left[:-1]).sum())
        # The estimate is that of a linear F, and one standard deviation of its noise is given up.
        assert np.mean(after) < 0.06
        assert np.mean(after) < np.mean(before) + 0.25 * abs(np.mean(before))


def test_it_can_be_off() -> None:
    moves, left = shrunk(np.zeros(P), 0.2, strength=0.1, on=False, rng=np.random.default_rng(4))
    np.testing.assert_array_equal(left, moves)


@pytest.mark.parametrize(
    ("penalty", "epsilon", "expected"),
    [
        (vfl.L1(0.03), 1.0, True),
        (vfl.ElasticNet(0.03, l1_ratio=0.5), 1.0, True),
        (vfl.ElasticNet(0.03, l1_ratio=0.0), 1.0, False),
        (vfl.L2(0.03), 1.0, False),
        (vfl.L1(0.03), 30.0, False),
    ],
)
def test_short_runs_under_an_l1_part_shrink_and_say_so(penalty: Any, epsilon: float, expected: bool) -> None:
    made = plan(job(penalty, epsilon), N)
    assert record_defaults.shrinks(made.problem) == expected
    assert any("soft threshold" in sentence for sentence in made.solver.explain(made.problem)) == expected


def test_a_run_ends_near_the_constant_model_where_noise_hides_the_signal() -> None:
    """Without shrinkage these runs leave 1.4 to 1.5 times the loss of the constant model."""
    rng = np.random.default_rng(5)
    X = np.clip(rng.standard_normal((N, P)) / 4.0, -1.0, 1.0)
    y = (rng.random(N) < 1.0 / (1.0 + np.exp(-8.0 * X[:, :3].sum(axis=1)))).astype(float)
    table = dict(zip(COLUMNS, X.T, strict=True)) | {"y": y}
    spec, losses = job(vfl.L1(0.03)), []
    for seed in range(3):
        private = replace(spec, privacy=vfl.Privacy(epsilon=1.0, noise=vfl.SeededNoise(seed)))
        w = vfl.train(private, table, at="inprocess").w
        losses.append(problem_of(spec, N).value(w, np.column_stack([X, np.ones(N)]) @ w, 2.0 * y - 1.0))
    share = y.mean()
    assert np.mean(losses) < 1.1 * -(share * np.log(share) + (1.0 - share) * np.log(1.0 - share))
