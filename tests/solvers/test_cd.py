"""DP-CD equals SkGD with blocks of one and the options of its paper, to the bit, and has no options of blocks."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import sklearn.linear_model as peers

import vfl
from vfl.errors import PrivacyError, SpecificationError
from vfl.planning import plan, problem_of
from vfl.privacy.geometry import Clip
from vfl.solvers.blocks.messages import Walk
from vfl.solvers.releases.curvature import Curvature

N = 200
COLUMNS = ("a0", "a1", "b0")
PARTIES = {"bank": ["a0", "a1"], "telco": ["b0"]}
PARTITION = vfl.FeaturePartition(PARTIES, label=("telco", "y"))
BOUNDS = dict.fromkeys(COLUMNS, (-1.0, 1.0))


def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    X = rng.uniform(-1.0, 1.0, (N, 3))
    y = X @ np.array([2.0, -1.0, 0.5]) + 0.3 + 0.3 * rng.normal(size=N)
    return {c: X[:, j] for j, c in enumerate(COLUMNS)} | {"y": y}


def job(**options: object) -> vfl.Job:
    given = {
        "loss": "squared",
        "privacy": None,
        "bounds": BOUNDS | {"y": (-4.0, 4.0)},
        "solver": vfl.solvers.CD(passes=100),
    }
    return vfl.Job(partition=PARTITION, **(given | options))


def private(seed: int = 0) -> vfl.Privacy:
    return vfl.Privacy(epsilon=1.0, noise=vfl.SeededNoise(seed))


@pytest.mark.parametrize("sampling", ["shuffled", "cyclic", "uniform", "importance"])
def test_the_optimum_is_scikit_learns(sampling: str) -> None:
    peer = peers.Lasso(0.05, tol=1e-14).fit(np.column_stack([table()[c] for c in COLUMNS]), table()["y"])
    result = vfl.train(
        job(penalty=vfl.L1(0.05), solver=vfl.solvers.CD(passes=100, sampling=sampling)), table(), at="inprocess"
    )
    np.testing.assert_allclose([*result.coef_, result.intercept_], [*peer.coef_, peer.intercept_], atol=1e-6)


def test_it_is_the_preset_to_the_bit() -> None:
    preset = vfl.SkGD(block_size=1, step_size=1.0, details=vfl.solvers.Details(iterate="last"), passes=5, clip=2.0)
    models = [
        vfl.train(job(privacy=private(), solver=solver), table(), at="inprocess").w
        for solver in (vfl.solvers.CD(passes=5, clip=2.0), preset)
    ]
    np.testing.assert_array_equal(*models)


def test_every_release_is_one_coordinate_at_its_own_sensitivity() -> None:
    (_, (event, count)) = plan(job(privacy=private(), solver=vfl.solvers.CD(passes=7, clip=2.0)), N).releases
    assert count == 7 * 4
    assert event.dimension == 1
    assert event.sensitivity == Clip(2.0, 1).sensitivity
    assert 4.0 < event.sensitivity < 4.0 * (1 + 2.0**-19)


def test_the_clip_is_the_papers_rule() -> None:
    """C_j = C√(M_j/ΣM): κ√M_j on the raw gradient, which is κ on the scaled one for any M_j."""
    problem = problem_of(job(privacy=private()), N)
    solver = vfl.solvers.CD(clip=1.5).resolve(problem)
    M = np.array([1.0, 4.0, 9.0, 2.0])
    for step in Walk(solver, problem, Curvature(np.zeros(4), M)).steps():
        own = M[step.block.coordinates][0]
        assert step.clip.cap == 1.5
        assert step.scale[0] == pytest.approx(1 / math.sqrt(own))
        # Δ = −γ√M_j u/(n M_j): a step of 1/M_j on the mean gradient.
        assert step.rule(np.zeros(1), np.ones(1))[0] == pytest.approx(-math.sqrt(own) / (N * own))


def test_a_job_file_keeps_it() -> None:
    from vfl.job.file import decode

    spec = job(solver=vfl.solvers.CD(passes=3, clip=0.5))
    assert decode(spec.to_dict()) == spec
    assert isinstance(decode(spec.to_dict()).solver, vfl.solvers.CD)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sampling": "nice"}, "CD: sampling='nice' moves several coordinates"),
        ({"sampling": "full"}, "CD: sampling='full' moves several coordinates"),
        ({"clip": -1.0}, "CD: clip must be positive"),
        ({"passes": 0}, "CD: passes must be a whole number"),
    ],
)
def test_unsupported_options_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(SpecificationError, match=said):
        vfl.solvers.CD().changed(**options)


def test_it_has_no_options_of_blocks() -> None:
    own = {f.name for f in fields(vfl.solvers.CD)}
    assert {f.name for f in fields(vfl.SkGD)} - own == {"block_size", "joint"}
    for option, value in (("tau", 2), ("parallel", 2), ("noise_geometry", "isotropic")):
        with pytest.raises(SpecificationError, match=f"leave {option} out of details"):
            vfl.solvers.CD().changed(**{option: value})
    with pytest.raises(SpecificationError, match="CD has no option"):
        vfl.solvers.CD(block_size=4)
    assert (replace(vfl.solvers.CD(), passes=3).block_size, vfl.solvers.CD().parallel) == (1, 1)


def test_blocks_of_the_partition_are_refused() -> None:
    blocks = {"bank": [["a0", "a1"]], "telco": [["b0"]]}
    partition = vfl.FeaturePartition(PARTIES, label=("telco", "y"), blocks=blocks)
    spec = vfl.Job(partition=partition, privacy=None, bounds=BOUNDS, solver=vfl.solvers.CD())
    with pytest.raises(SpecificationError, match="leave the blocks out of the partition"):
        plan(spec, N)


def test_an_infinite_clip_is_refused_under_the_solvers_own_name() -> None:
    with pytest.raises(PrivacyError, match="CD: clip=inf bounds no record's influence"):
        plan(job(privacy=private(), solver=vfl.solvers.CD(clip=math.inf)), N)


class TestLosses:
    """Each loss that coordinate descent supports reaches the optimum of a general optimiser."""

    @pytest.mark.parametrize("loss", ["huber", "poisson", "smoothed_hinge", "weighted"])
    def test_the_optimum(self, loss: str) -> None:
        from scipy.optimize import minimize

        from vfl.base.losses import ClassWeighted, Huber, Poisson, SmoothedHinge

        kind = {
            "huber": Huber(0.4),
            "poisson": Poisson(2.5),
            "smoothed_hinge": SmoothedHinge(0.5),
            "weighted": ClassWeighted("logistic", negative=1.0, positive=3.0),
        }[loss]
        data = table()
        if kind.classification:
            data["y"] = (data["y"] > 0.3).astype(int)
        elif loss == "poisson":
            data["y"] = np.floor(np.exp(data["y"] / 2.0))
        bounds = BOUNDS | ({} if kind.classification else {"y": (-10.0, 30.0)})
        spec = job(
            loss=kind,
            penalty=vfl.L2(0.05),
            bounds=bounds,
            solver=vfl.solvers.CD(passes=900 if loss == "poisson" else 300, clip=math.inf),
        )
        result = vfl.train(spec, data, at="inprocess")
        Z = np.column_stack([*(data[c] for c in COLUMNS), np.ones(N)])
        y = 2.0 * data["y"] - 1 if kind.classification else data["y"].astype(float)
        problem = problem_of(spec, N)

        def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
            return problem.value(w, Z @ w, y), Z.T @ kind.derivative(Z @ w, y) / N + 0.05 * w * problem.penalised

        best = minimize(objective, np.zeros(4), jac=True, method="BFGS", options={"gtol": 1e-9})
        np.testing.assert_allclose(result.w, best.x, atol=1e-6)

    def test_a_poisson_model_predicts_means(self) -> None:
        data = table() | {"y": np.floor(np.exp(table()["y"] / 2.0))}
        result = vfl.train(job(loss="poisson", solver=vfl.solvers.CD(passes=700)), data, at="inprocess")
        predicted = result.predict(data)
        np.testing.assert_allclose(predicted, np.exp(result.decision_function(data)))
        assert predicted.mean() == pytest.approx(data["y"].mean(), rel=1e-4)  # the intercept's condition

    @pytest.mark.parametrize(
        "solver", [vfl.SkGD(), vfl.solvers.CD(), vfl.solvers.GCD()], ids=lambda solver: solver.name
    )
    def test_hinge_lacks_curvature(self, solver: object) -> None:
        spec = vfl.Job(partition=PARTITION, privacy=private(), bounds=BOUNDS, loss="hinge", solver=solver)
        with pytest.raises(SpecificationError, match="with loss='hinge' needs a bounded second derivative"):
            plan(spec, N)

    def test_a_loss_with_options_survives_a_job_file(self) -> None:
        from vfl.base.losses import ClassWeighted, Huber
        from vfl.job.file import decode

        for loss in (Huber(2.0), ClassWeighted("hinge", positive=2.0)):
            spec = vfl.Job(partition=PARTITION, privacy=None, bounds=BOUNDS, loss=loss)
            assert decode(spec.to_dict()) == spec
            assert decode(spec.to_dict()).loss == loss
        assert vfl.Job(partition=PARTITION, privacy=None, bounds=BOUNDS, loss=Huber()).loss == "huber"
