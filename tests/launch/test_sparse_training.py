"""Jobs on sparse matrices: the model equals that of the same dense columns to the bit, and zeros are never stored."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import scipy.sparse

import vfl
from parties.loading import load
from parties.storage.sparse import SparseColumns
from tests.parties.alone import party_over
from vfl.planning import problem_of
from vfl.privacy.events import ReleaseKey
from vfl.privacy.geometry import GRID_BITS
from vfl.queries import Moments, Records
from vfl.queries.moments import PAIR
from vfl.solvers.releases.smoothness import moments_event

if TYPE_CHECKING:
    from tests.coordinator.shared_parties import SharedParties

N = 600
PARTITION = vfl.FeaturePartition({"a": ["a0", "a1", "a2", "a3", "a4"], "b": ["b0", "b1"]}, label=("b", "y"))


def table(n: int = N) -> np.ndarray:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 7)) * (rng.random((n, 7)) < 0.2)
    X[:, 4] = 0.0
    return np.column_stack([X, X[:, 0] - X[:, 5] + 0.3 * rng.logistic(size=n) > 0])


def job(solver: Any, **changes: Any) -> vfl.Job:
    given: dict[str, Any] = {
        "partition": PARTITION.changed(sparse=["a", "b"]),
        "bounds": {"a.*": (-2, 1.5), "b.*": (0, 2)},
        "penalty": vfl.ElasticNet(1e-3),
        "privacy": vfl.Privacy(epsilon=2.0, noise=vfl.SeededNoise(5)),
        "solver": solver,
    }
    return vfl.Job(**given | changes)


SOLVERS = {
    "single coordinates": (vfl.SkGD(passes=2), {}),
    "blocks": (vfl.SkGD(passes=2, block_size=5, details=vfl.solvers.Details(noise_geometry="isotropic")), {}),
    "one block a message": (
        vfl.SkGD(passes=2, block_size=2, details=vfl.solvers.Details(message="block"), sampling="importance"),
        {},
    ),
    "bounds instead of clipping": (vfl.SkGD(passes=1, clip="bounds"), {}),
    "a loss without a kernel": (vfl.SkGD(passes=2), {"loss": "smoothed_hinge"}),
    "squared": (vfl.SkGD(passes=2), {"loss": "squared", "bounds": {"*": (-2, 2), "y": (0, 1)}}),
    "greedy": (vfl.solvers.GCD(rounds=6), {}),
    "gradient descent": (vfl.solvers.GD(), {}),
    "sampled": (vfl.solvers.SGD(), {}),
    "variance reduced": (vfl.solvers.SVRG(), {}),
    "dual": (vfl.solvers.SCD(), {"penalty": vfl.L2(1e-2)}),
    "float32": (vfl.SkGD(passes=1, block_size=3), {"precision": "float32"}),
    "no intercept": (vfl.SkGD(passes=1), {"intercept": False}),
    "unscaled": (vfl.SkGD(passes=1), {"scaling": "none"}),
    "explicit blocks": (
        vfl.SkGD(passes=1),
        {
            "partition": vfl.FeaturePartition(
                {q: PARTITION.columns(q) for q in "ab"},
                PARTITION.label,
                blocks={"a": [["a3", "a0"], ["a2", "a1", "a4"]], "b": [["b1"], ["b0"]]},
                sparse=["a", "b"],
            )
        },
    ),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_the_model_equals_that_of_the_dense_columns_to_the_bit(name: str) -> None:
    solver, changes = SOLVERS[name]
    spec, dense = job(solver, **changes), table()
    models = [vfl.train(spec, data, at="inprocess") for data in (dense, scipy.sparse.csr_array(dense))]
    assert models[0].w.tobytes() == models[1].w.tobytes()
    assert abs(models[0].w).max() > 0
    new = dense[:50, :7]
    margins = [models[0].decision_function(data) for data in (new, scipy.sparse.csc_matrix(new))]
    np.testing.assert_array_equal(*margins)


def test_ray_and_files_give_the_same_model(parties_on_ray: SharedParties, tmp_path: Any) -> None:
    spec, dense = job(vfl.SkGD(passes=2, block_size=2)), table()
    files = {}
    for party, columns in (("a", slice(0, 5)), ("b", slice(5, 8))):
        files[party] = str(tmp_path / f"{party}.npz")
        scipy.sparse.save_npz(files[party], scipy.sparse.csr_matrix(dense[:, columns]))
    models = [
        vfl.train(spec, data, at="inprocess").w.tobytes() for data in (dense, scipy.sparse.coo_array(dense), files)
    ]
    models.append(parties_on_ray.train(spec, files).w.tobytes())
    assert len(set(models)) == 1


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_without_noise_the_optimum_is_the_same(loss: str) -> None:
    bounds = {"a.*": (-2, 1.5), "b.*": (0, 2), "y": (0, 1)}
    spec = job(
        vfl.SkGD(), loss=loss, privacy=None, penalty=vfl.L2(1e-3), bounds=bounds if loss == "squared" else bounds | {}
    )
    dense = table()
    one, other = (vfl.train(spec, data, at="inprocess") for data in (dense, scipy.sparse.csc_array(dense)))
    np.testing.assert_allclose(one.w, other.w, atol=1e-8)
    # Shifting and centring reparametrise F, except for a penalty on scaled columns.
    plain = replace(spec, partition=PARTITION, penalty=vfl.penalties.NoPenalty())
    unpenalised = vfl.train(
        replace(spec, penalty=vfl.penalties.NoPenalty()), scipy.sparse.csc_array(dense), at="inprocess"
    )
    shifted = vfl.train(plain, dense, at="inprocess")
    np.testing.assert_allclose(
        shifted.decision_function(dense[:, :7]), unpenalised.decision_function(dense[:, :7]), atol=1e-4
    )


def test_one_party_sparse_the_other_dense() -> None:
    dense = table()
    spec = job(vfl.SkGD(passes=1), partition=PARTITION.changed(sparse=["a"]))
    scaling = spec.scaling_of(PARTITION.features)
    assert scaling.shift.tolist() == [0.0] * 5 + [1.0] * 2
    assert scaling.width.tolist() == [2.0] * 5 + [1.0] * 2
    sources = {"a": scipy.sparse.csc_array(dense[:, :5]), "b": dense[:, 5:]}
    mixed, whole = (vfl.train(spec, data, at="inprocess") for data in (sources, dense))
    assert mixed.w.tobytes() == whole.w.tobytes()
    assert "neither shifted nor centred" in str(vfl.plan(spec, N))


def test_moments_of_uncentred_columns_are_charged_for_the_released_sums() -> None:
    """One party releases means, the other does not: the worst record attains the joint sensitivity, none exceeds it."""
    spec = job(vfl.SkGD(passes=1), partition=PARTITION.changed(sparse=["a"]), bounds={"*": (-1, 1)})
    problem = problem_of(spec, 3)
    assert problem.centred_coordinates.tolist() == [False] * 5 + [True] * 2 + [False]
    event = moments_event(problem)
    assert event is not None
    assert event.dimension == 5 + 2 * 2
    query = Moments({"a": 5, "b": 2}, {"a": np.ones(5), "b": np.ones(2)}, True, None, uncentred=problem.sparse)
    assert query.sizes() == (5, 4)
    released = []
    for x_a, x_b in ((1.0, 1.0), (0.0, 1.0 - (6.0 - math.sqrt(2.0)) / 4.0)):
        rows = np.zeros((3, 8))
        rows[0, :5], rows[0, 5:7] = x_a, x_b
        parts = {"a": scipy.sparse.csc_array(rows[:, :5]), "b": rows[:, 5:]}
        columns = {q: load(spec.for_party(q), part).rows.columns for q, part in parts.items()}
        parties = [party_over(q, own, vfl.SeededNoise(0), exact=(Moments,)) for q, own in columns.items()]
        answers = [party.answer(query.shares()[party.name], Records(), ReleaseKey(0)) for party in parties]
        released.append(np.concatenate([answer.released[0] for answer in answers]))
    attained = math.sqrt(sum(Fraction(float(d)) ** 2 for d in released[0] - released[1]))
    assert attained <= event.sensitivity
    assert attained == pytest.approx(event.sensitivity, rel=3e-5)
    assert event.sensitivity == pytest.approx(math.sqrt(5 + 2 * PAIR), rel=2.0 ** (2 - GRID_BITS))


def test_a_wide_sparse_job_is_never_made_dense() -> None:
    """4,000 × 8,011: dense it takes 256 MB. Each greedy round is one pass over its stored entries."""
    n, p, stored = 4_000, 8_011, 80_000
    rng = np.random.default_rng(1)
    X = scipy.sparse.csc_array(
        (rng.uniform(0, 1, stored), (rng.integers(0, n, stored), rng.integers(0, p, stored))), (n, p)
    )
    partition = vfl.FeaturePartition(
        {"a": [f"x{j}" for j in range(5_000)], "b": [f"x{j}" for j in range(5_000, p)], "lab": []},
        label=("lab", "y"),
        sparse=["a", "b"],
    )
    privacy = vfl.Privacy(epsilon=5.0, smoothness="bounds", noise=vfl.SeededNoise(0))
    spec = vfl.Job(partition=partition, bounds={"*": (0, 1)}, privacy=privacy, solver=vfl.solvers.GCD(rounds=2))
    data = {"a": X[:, :5_000], "b": X[:, 5_000:], "lab": {"y": rng.integers(0, 2, n)}}
    party = load(spec.for_party("a"), data["a"])
    assert isinstance(party.rows.columns, SparseColumns)
    tracemalloc.start()
    result = vfl.train(spec, data, at="inprocess")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80e6 < n * p * 8
    assert 1 <= np.count_nonzero(result.coef_) <= 2
