"""Multinomial loss: the joint cap of all classes, the fit against scikit-learn's, and all uses of a model."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.special import softmax
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

import vfl
from parties.prediction import ModelPart
from parties.storage.classes import ClassColumns
from parties.storage.dense import Columns
from parties.storage.sparse import SparseColumns
from tests.coordinator.test_transports import in_process
from tests.parties.alone import party_over
from tests.privacy.test_record_cap import anything
from vfl.apps.report import write_card, write_run
from vfl.base.losses import Multinomial
from vfl.base.problem import Block
from vfl.errors import OutputError, PrivacyError, SpecificationError
from vfl.kernels import dense
from vfl.kernels.class_loops import class_residuals
from vfl.kernels.classes import ClassKernels
from vfl.kernels.dense import MULTINOMIAL, WEIGHTS, bounds_of
from vfl.kernels.geometry import Geometry, capped, record_limits
from vfl.kernels.sparse import SparseBlock
from vfl.launch.run.result import Result
from vfl.measures.classes import ClassOutcomes
from vfl.privacy.events import ReleaseKey
from vfl.privacy.geometry import Clip
from vfl.privacy.noise import SeededNoise
from vfl.queries import Descend, Query, RecordCap, Records, Step
from vfl.queries.rules import ClassesStep
from vfl.queries.statistics import weight

if TYPE_CHECKING:
    from tests.coordinator.shared_parties import SharedParties
from vfl.base.problem import beside, weighed
from vfl.queries.protocol import Derivative
from vfl.solvers.releases.labels import ClassCounts, class_margins

IRIS, SPECIES = load_iris(return_X_y=True)
NAMES = ("sepal_length", "sepal_width", "petal_length", "petal_width")
CLASSES = ("setosa", "versicolor", "virginica")
LOW, HIGH = IRIS.min(axis=0), IRIS.max(axis=0)
TABLE = pd.DataFrame(IRIS, columns=NAMES).assign(species=np.array(CLASSES)[SPECIES])
PARTITION = vfl.FeaturePartition({"bank": NAMES[:2], "telco": NAMES[2:]}, label=("telco", "species"))
PENALTY = 0.02
LOSS = Multinomial()


def job_of(**changes: Any) -> vfl.Job:
    options: dict[str, Any] = {
        "partition": PARTITION,
        "privacy": None,
        "loss": "multinomial",
        "classes": CLASSES,
        "penalty": vfl.L2(PENALTY),
        "bounds": {name: (low, high) for name, low, high in zip(NAMES, LOW, HIGH, strict=True)},
    }
    return vfl.Job(**{**options, **changes})


def fitted(job: vfl.Job, table: pd.DataFrame = TABLE, **options: Any) -> Result:
    return vfl.train(job, table, at="inprocess", **options)


@pytest.fixture(scope="module")
def exact() -> Result:
    return fitted(job_of())


@pytest.fixture(scope="module")
def private() -> Result:
    noise = vfl.SeededNoise(3)
    return fitted(job_of(privacy=vfl.Privacy(epsilon=8.0, noise=noise), evaluation=vfl.Evaluation(holdout=0.3)))


def reference() -> LogisticRegression:
    scaled = (IRIS - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2)
    return LogisticRegression(C=1 / (PENALTY * len(IRIS)), tol=1e-12, max_iter=20000).fit(scaled, TABLE["species"])


def by_class(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients (K, p) and intercepts (K,) on the scaled features."""
    w = dict(zip(result.coordinates, result.w, strict=True))
    rows = [[w[f"{name}[{label}]"] for name in (*NAMES, "(intercept)")] for label in CLASSES]
    return np.array(rows)[:, :-1], np.array(rows)[:, -1]


# The loss.


def test_the_derivative_is_that_of_the_value_and_sums_to_zero() -> None:
    rng = np.random.default_rng(0)
    n, K, h = 50, 4, 1e-6
    v, y = 3 * rng.normal(size=K * n), rng.integers(0, K, n).astype(float)
    r = LOSS.derivative(v, y).reshape(K, n)
    for k in range(K):
        e = np.zeros((K, n))
        e[k] = h
        slope = (LOSS.value(v + e.ravel(), y) - LOSS.value(v - e.ravel(), y)) / (2 * h)
        np.testing.assert_allclose(r[k], slope, atol=1e-8)
    assert abs(r.sum(axis=0)).max() < 1e-15
    assert np.linalg.norm(r, axis=0).max() <= LOSS.slope
    assert np.isfinite(LOSS.value(np.array([1e4, -1e4]), np.zeros(1))).all()


def test_curvature_bounds_the_second_derivatives() -> None:
    rng = np.random.default_rng(1)
    for K in (2, 3, 7):
        for _ in range(200):
            p = softmax(6 * rng.normal(size=K))
            assert np.linalg.eigvalsh(np.diag(p) - np.outer(p, p))[-1] <= LOSS.curvature + 1e-12


# The joint cap.


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_norm_of_all_classes_residuals_is_held_within_the_limit(data: st.DataObject) -> None:
    """Hold for derivatives of the loss and for any other residuals, NaN and infinities included; for margins in the kernel."""
    K, n = data.draw(st.integers(2, 5)), 3
    numbers = st.lists(anything, min_size=K * n, max_size=K * n)
    r = np.array(data.draw(numbers))
    if data.draw(st.booleans()):
        with np.errstate(all="ignore"):
            r = LOSS.derivative(r, np.arange(n) % K * 1.0)
    limit = st.just(0.0) | st.floats(1e-250, 1e6)  # C/‖z_i‖ is 0 or at least 1e-240
    limits = np.array(data.draw(st.lists(limit, min_size=n, max_size=n)))
    labels = np.array(data.draw(st.lists(st.integers(0, K - 1) | anything, min_size=n, max_size=n)), dtype=float)
    fused = np.empty(K * n)
    class_residuals(r, labels, limits, K, fused, 0, n)
    capped_all = [capped(r, limits, kernel) for kernel in ("multinomial", "")]
    for rho in (*capped_all, np.where(np.isnan(fused), 0.0, fused)):  # NaN adds nothing to a sum
        for i in range(n):
            square = sum(Fraction(float(value)) ** 2 for value in rho.reshape(K, n)[:, i])
            assert square <= Fraction(float(limits[i])) ** 2


@pytest.mark.parametrize("limit", [0.05, 0.4, 1.2])
def test_the_cap_is_unbiased_at_the_true_probabilities(limit: float) -> None:
    rng = np.random.default_rng(2)
    for K in (2, 3, 6):
        v = 2 * rng.normal(size=K)
        each = [capped(LOSS.derivative(v, np.array([float(k)])), np.array([limit]), "multinomial") for k in range(K)]
        assert abs(softmax(v) @ np.array(each)).max() < 1e-12
        assert max(map(np.linalg.norm, each)) == pytest.approx(min(limit, max(map(np.linalg.norm, each))), rel=1e-9)


@pytest.mark.parametrize("n", [1, 16, 37])
def test_the_fused_kernel_computes_the_capped_derivatives(n: int) -> None:
    rng, K = np.random.default_rng(3), 5
    v, y, limits = 3 * rng.normal(size=K * n), rng.integers(0, K, n).astype(float), rng.uniform(0, 2, n)
    kernels = ClassColumns(Columns(np.asfortranarray(np.ones((n, 1))), ("one",)), K).kernels
    X, at = kernels.nothing, Geometry(np.zeros(K), np.ones(K), 2.0, 2.0**-20)
    ones = np.asfortranarray(np.ones((n, 1)))
    sums = kernels.capped_step(X, np.zeros(0), 0.0, v.copy(), MULTINOMIAL, ones, at, bounds_of(limits, y, MULTINOMIAL))
    expected = capped(LOSS.derivative(v, y), limits, "multinomial").reshape(K, n).sum(axis=1)
    np.testing.assert_allclose(sums * 2.0**-20, expected, atol=n * 2.0**-20)
    plain = kernels.plain_gradient(ones, v, y, MULTINOMIAL, at)
    np.testing.assert_allclose(plain, LOSS.derivative(v, y).reshape(K, n).sum(axis=1), atol=1e-12)


@pytest.mark.parametrize("n", [1, 16, 37])
def test_the_fused_kernel_weighs_the_capped_derivatives(n: int) -> None:
    """As `LinearPredictors.records` does for a visit without the kernel: first the cap, then the weight."""
    rng, K = np.random.default_rng(3), 5
    v, y, limits = 3 * rng.normal(size=K * n), rng.integers(0, K, n).astype(float), rng.uniform(0, 2, n)
    s = rng.choice([0.0, 0.3, 1.0], n)
    columns = Columns(np.asfortranarray(rng.normal(size=(n, 2))), ("a", "b"))
    X, at = columns.block(0, 2), Geometry(np.zeros(2 * K), np.ones(2 * K), 2.0, 2.0**-20)
    r = weighed(capped(LOSS.derivative(v, y), limits, "multinomial"), s).reshape(K, n)
    both = beside(y, s)
    bounds = bounds_of(limits, both, MULTINOMIAL)
    found = []
    for kernels in (ClassColumns(columns, K).kernels, ClassKernels(dense, K, columns.block(0, 0))):
        sums = kernels.capped_step(kernels.nothing, np.zeros(0), 0.0, v.copy(), MULTINOMIAL, X, at, bounds)
        np.testing.assert_allclose(sums.reshape(2, K) * 2.0**-20, X.T @ r.T, atol=n * 2.0**-20)
        found.append((sums.tobytes(), kernels.gradient(X, v, both, MULTINOMIAL, at).tobytes()))
        plain = kernels.plain_gradient(X, v, both, MULTINOMIAL, at).reshape(2, K)
        free = weighed(LOSS.derivative(v, y), s).reshape(K, n)
        np.testing.assert_allclose(plain, X.T @ free.T, atol=1e-12)
    assert found[0] == found[1]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_weights_stay_within_the_cap(data: st.DataObject) -> None:
    """No weight makes the K residuals of a record exceed its limit, not even one that lies outside [0, 1]."""
    K, n = data.draw(st.integers(2, 5)), data.draw(st.sampled_from([1, 9, 16]))

    def drawn(of: st.SearchStrategy[float], size: int) -> np.ndarray:
        return np.array(data.draw(st.lists(of, min_size=size, max_size=size)))

    v, limits = drawn(anything, K * n), drawn(st.floats(0.0, 3.0), n)
    y = drawn(st.sampled_from([float(k) for k in range(K)]), n)
    s = drawn(st.floats(0.0, 1.0) | st.sampled_from([1e300, -1e300, math.inf, -math.inf, math.nan, -0.0]), n)
    rho = np.empty(K * n)
    class_residuals(v, beside(y, s), limits, K, rho, 0, n)
    for i in range(n):
        square = sum(Fraction(float(value)) ** 2 for value in np.nan_to_num(rho.reshape(K, n)[:, i], nan=0.0))
        assert square <= Fraction(float(limits[i])) ** 2


def test_one_pass_for_all_classes_gives_the_integers_of_a_pass_per_class() -> None:
    rng, K, n = np.random.default_rng(6), 3, 70
    columns = Columns(np.asfortranarray(rng.normal(size=(n, 2))), ("a", "b"))
    columns.block(0, 2)[:3] = [[math.nan, 1.0], [math.inf, 0.0], [1e200, -1e-300]]
    fused = ClassColumns(columns, K).kernels
    each = ClassKernels(dense, K, fused.nothing)
    assert type(fused) is not type(each)
    X, y, limits = columns.block(0, 2), rng.integers(0, K, n).astype(float), rng.uniform(0, 1.5, n)
    Δ, shift, v = np.array([0.0, 1.0, -2.0, 0.0, 0.0, 0.5]), rng.normal(size=K), 2 * rng.normal(size=K * n)
    v[:2] = [math.inf, math.nan]
    at = Geometry(np.repeat([0.5, -1.0], K), np.repeat([1.0, 0.7], K), 2.0, 2.0**-20)
    for loss in (MULTINOMIAL, WEIGHTS):
        found = []
        for kernels in (fused, each):
            own = v.copy()
            sums = kernels.capped_step(X, Δ, shift, own, loss, X, at, bounds_of(limits, y, loss))
            found.append((sums.tobytes(), own.tobytes(), kernels.gradient(X, v, y, loss, at).tobytes()))
        assert found[0] == found[1]
    v, X = np.nan_to_num(v, posinf=1.0), np.asfortranarray(X[3:])
    plain = [
        kernels.plain_gradient(X, v.reshape(K, n)[:, 3:].ravel(), y[3:], MULTINOMIAL, at) for kernels in (fused, each)
    ]
    np.testing.assert_allclose(*plain, rtol=1e-12)


def pass_of(z: np.ndarray, K: int, C: float, residuals: np.ndarray, cuts: list[int]) -> tuple[np.ndarray, Clip]:
    """Return what one record adds to all p·K coordinates in a pass over blocks, in steps of the grid.

    residuals : (blocks, K), which differ between blocks.
    """
    p = z.size
    storage = ClassColumns(Columns(np.asfortranarray(z[None, :]), tuple(map(str, range(p)))), K)
    kernels, clip = storage.kernels, Clip(C, p * K)
    zeros, ones = np.zeros(p * K), np.ones(p * K)
    limits = record_limits(kernels.record_norms(storage.block(0, p * K), zeros, ones), C)
    sums = []
    for (a, b), r in zip(zip([0, *cuts], [*cuts, p], strict=True), residuals, strict=False):
        at = Geometry(zeros[a * K : b * K], ones[a * K : b * K], clip.cap, clip.grid)
        nothing, block = storage.block(0, 0), storage.block(a * K, b * K)
        sums.append(kernels.capped_step(nothing, np.zeros(0), 0.0, r.copy(), 0, block, at, limits))
    return np.concatenate(sums), clip


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_pass_over_all_classes_moves_by_the_sensitivity_of_one_release(data: st.DataObject) -> None:
    """Mass in one, √p or all coordinates; its opposite, disjoint support, or anything; residuals of any size per block."""
    p, K = data.draw(st.integers(1, 9)), data.draw(st.integers(2, 4))
    support = data.draw(st.sampled_from([1, math.isqrt(p), p]))
    z = np.zeros(p)
    z[:support] = data.draw(st.lists(st.floats(-1e3, 1e3), min_size=support, max_size=support))
    others = [-z, z[::-1] * (np.arange(p) >= support), z]
    z2 = data.draw(st.sampled_from(others) | st.lists(anything, min_size=p, max_size=p).map(np.array))
    cuts = sorted(data.draw(st.sets(st.integers(1, p - 1)))) if p > 1 else []
    C = data.draw(st.floats(1e-6, 1e6))
    huge = st.sampled_from([1e300, -1e300, 1e6, -1e6]) | anything
    residuals = [np.array(data.draw(st.lists(huge, min_size=p * K, max_size=p * K))).reshape(p, K) for _ in range(2)]
    (one, clip), (other, _) = (pass_of(own, K, C, r, cuts) for own, r in zip((z, z2), residuals, strict=True))
    moved = sum((int(a) - int(b)) ** 2 for a, b in zip(one, other, strict=True))
    assert moved <= (Fraction(clip.sensitivity) / Fraction(clip.grid)) ** 2


@pytest.mark.parametrize("support", [1, 3, 9])
def test_the_bound_is_reached_and_a_cap_per_class_breaks_it(support: int) -> None:
    """A record with mass in one, √p and all coordinates, against its opposite; the cap on each class alone costs √K."""
    z, K = np.zeros(9), 4
    z[:support] = 1.0
    r, cuts = np.full((9, K), 1e6), list(range(1, 9))
    (one, clip), (other, _) = (pass_of(s * z, K, 1.0, r, cuts) for s in (1.0, -1.0))
    reached = math.sqrt(float(((one - other) ** 2).sum())) * clip.grid
    assert 0.9999 < reached / clip.sensitivity <= 1.0
    alone = [pass_of(s * z, 1, 1.0, r[:, :1], cuts)[0] for s in (1.0, -1.0)]
    assert math.sqrt(K * float(((alone[0] - alone[1]) ** 2).sum())) * clip.grid > 1.9 * clip.sensitivity


def test_classes_of_a_column_share_block_centre_and_scale() -> None:
    storage = ClassColumns(Columns(np.asfortranarray(np.ones((2, 2))), ("a", "b")), 3)
    with pytest.raises(PrivacyError, match="all classes of its columns"):
        storage.block(0, 4)
    at = Geometry(np.zeros(3), np.array([1.0, 1.0, 1e-9]), 1.0, 2.0**-20)
    with pytest.raises(PrivacyError, match="one centre and one scale"):
        storage.kernels.record_norms(storage.block(0, 3), at.centre, at.scale)


ANY = [1e9, -1e9, math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("n", [1, 13])
@pytest.mark.parametrize("stored", ["dense", "sparse"])
@pytest.mark.parametrize("recomputes", [True, False])
def test_a_party_holds_all_classes_to_its_own_norms_whatever_it_is_given(stored: str, n: int, recomputes: bool) -> None:
    """NaN among limits, weights and margins switches no cap off, in single records and in lanes."""
    p, K, C = 4, 3, 5e-3
    X = np.asfortranarray([[3.0, 0.0, 4.0, 0.0]] * n)
    kept: Any = Columns(X, tuple("abcd"))
    if stored == "sparse":
        rows = np.tile(np.arange(n, dtype=np.int32), 2)
        block = SparseBlock.of(np.repeat([3.0, 4.0], n), rows, np.array([0, n, n, 2 * n, 2 * n]), n)
        kept = SparseColumns(block, tuple("abcd"))
    party = party_over("a", kept, SeededNoise(0), exact=(Query,), n_outputs=K)
    row = Block(0, "a", 0, p * K, 0)
    cap = RecordCap(C, {"a": (row, np.zeros(p * K), np.ones(p * K))})
    rule = ClassesStep(np.zeros(K), np.zeros(K), vfl.L2(1.0), K)
    clip = Clip(C, p * K)
    steps = tuple(
        Step(Block(j, "a", j * K, (j + 1) * K, 0), np.zeros(K), np.ones(K), clip, rule, None) for j in range(p)
    )
    query = Descend(Derivative(LOSS), {"a": steps}, {"a": np.zeros(p * K)}, recomputes, capped=cap)
    for margin, limit, share in product(ANY, ANY, [None, *ANY]):
        y = np.full(n, 2.0) if share is None else np.repeat([2.0, share], n)
        wild = Records(np.repeat([1e6, margin, 1.0], n), np.repeat([margin, 0.0, -9.0], n), y, np.full(n, limit))
        u = np.concatenate(party.answer(query, wild, ReleaseKey(0)).released)
        assert np.linalg.norm(u) <= n * C * (1.0 + 1e-4), (margin, limit, share)


@pytest.mark.parametrize("limit", [math.nan, -math.inf, -1.0])
def test_a_limit_that_is_no_limit_leaves_no_residual(limit: float) -> None:
    """The kernel does not rest on its callers for this."""
    n, K = 13, 3
    r = np.empty(K * n)
    class_residuals(np.linspace(-9.0, 9.0, K * n), np.zeros(n), np.full(n, limit), K, r, 0, n)
    assert not r.any()


# The fit.


@pytest.mark.parametrize(
    "solver",
    [
        vfl.SkGD(),
        vfl.solvers.CD(),
        vfl.solvers.GD(),
        vfl.SkGD(block_size=2),
        vfl.SkGD(details=vfl.solvers.Details(message="block", parallel=2)),
    ],
    ids=lambda solver: f"{solver.name}-{getattr(solver, 'block_size', None)}-{getattr(solver, 'message', None)}",
)
def test_without_noise_the_fit_is_scikit_learns(solver: Any) -> None:
    coef, intercept = by_class(fitted(job_of(solver=solver)))
    expected = reference()
    np.testing.assert_allclose(coef, expected.coef_, atol=1e-5)
    np.testing.assert_allclose(intercept, expected.intercept_, atol=1e-5)


def test_sparse_columns_give_the_same_model() -> None:
    zeros = np.where(np.median(IRIS, axis=0) < IRIS, IRIS, 0.0)
    bounds = dict.fromkeys(NAMES, (0.0, 10.0))
    parts = {"bank": zeros[:, :2], "telco": np.column_stack([zeros[:, 2:], SPECIES])}
    table = pd.DataFrame(zeros, columns=NAMES).assign(species=SPECIES)
    job = job_of(
        bounds=bounds, partition=PARTITION.changed(sparse=["bank", "telco"]), classes=(0, 1, 2), penalty=vfl.L2(0.05)
    )
    dense = fitted(job, table)
    given = {party: sparse.csr_array(part) for party, part in parts.items()}
    np.testing.assert_allclose(vfl.train(job, given, at="inprocess").w, dense.w, atol=1e-7)


def test_a_private_run_is_within_its_budget_and_learns(private: Result) -> None:
    assert private.certificate.epsilon <= 8.0
    found = private.findings["held out"].measures
    assert {"accuracy", "loss"} <= set(found)
    assert found["accuracy"].value > 0.7
    assert found["accuracy"].baseline == pytest.approx(1 / 3, abs=0.2)


def test_noise_without_the_common_part_leaves_classes_that_sum_to_zero(private: Result) -> None:
    assert abs(private.w.reshape(-1, 3).sum(axis=1)).max() < 1e-9 * abs(private.w).max()


def test_ray_gives_the_same_bits(private: Result, parties_on_ray: SharedParties) -> None:
    on_ray = parties_on_ray.train(private.job, TABLE)
    assert on_ray.w.tobytes() == private.w.tobytes()
    assert on_ray.findings == private.findings


def test_a_visit_sent_as_single_steps_gives_the_same_model() -> None:
    job = job_of(privacy=vfl.Privacy(epsilon=4.0, noise=vfl.SeededNoise(1)), solver=vfl.solvers.CD(passes=3))
    whole, parts = (in_process(job, TABLE, expand=expand)[1] for expand in (False, True))
    np.testing.assert_allclose(parts.w, whole.w, rtol=0, atol=1e-6)


# The start.


def test_the_intercept_starts_at_the_shares_of_the_classes() -> None:
    y = np.repeat([0.0, 1.0, 2.0], [60, 30, 10])
    counts = ClassCounts(3)(np.zeros(0), y) * ClassCounts.grid
    margins = class_margins(counts / 100, 0.0)
    assert softmax(margins) == pytest.approx([0.6, 0.3, 0.1])
    assert abs(margins.sum()) < 1e-12
    assert abs(class_margins(counts / 100, 50.0)).max() < 1e-3  # nothing but noise: equal shares
    assert np.isfinite(class_margins(np.array([1.0, 0.0, -0.2]), 1e-3)).all()
    with pytest.raises(ValueError, match="2 to 100 classes"):
        ClassCounts(1 << 40)


@pytest.mark.parametrize(
    "solver",
    [
        vfl.SkGD(passes=3, step_size=1e-9, details=vfl.solvers.Details(label_share=0.5)),
        vfl.SkGD(passes=3, step_size=1e-9, details=vfl.solvers.Details(message="block", label_share=0.5)),
        vfl.solvers.GD(passes=1, step_size=1e-9, label_share=0.5),
    ],
    ids=["SkGD", "SkGD by block", "GD"],
)
def test_a_run_without_progress_ends_at_the_shares_of_the_classes(solver: Any) -> None:
    shares = [0.6, 0.3, 0.1]
    table = TABLE.iloc[np.repeat([0, 50, 100], [600, 300, 100])]
    job = job_of(privacy=vfl.Privacy(epsilon=8.0, noise=vfl.SeededNoise(0)), solver=solver)
    assert "for 50 % of the privacy budget: the intercept starts there" in vfl.plan(job, 1000).explain()
    found = fitted(job, table)
    assert found.certificate.epsilon <= 8.0
    np.testing.assert_allclose(softmax(by_class(found)[1]), shares, atol=0.02)


# Places that a model passes through.


def test_coefficients_are_those_of_scikit_learn_in_original_units(exact: Result) -> None:
    expected = LogisticRegression(C=np.inf).fit(IRIS, SPECIES)
    assert exact.coef_.shape == expected.coef_.shape
    assert exact.intercept_.shape == (3,)
    margins = IRIS @ exact.coef_.T + exact.intercept_
    np.testing.assert_allclose(exact.decision_function(TABLE), margins, atol=1e-9)
    assert list(exact.original)[:3] == [f"sepal_length[{label}]" for label in CLASSES]


def test_predictions_of_the_whole_and_of_parts_agree(exact: Result, tmp_path: Any) -> None:
    margins = exact.decision_function(TABLE)
    np.testing.assert_allclose(exact.predict_proba(TABLE), softmax(margins, axis=1))
    assert (exact.predict(TABLE) == np.array(CLASSES)[margins.argmax(axis=1)]).all()
    data = {"bank": TABLE[list(NAMES[:2])], "telco": TABLE[list(NAMES[2:])]}
    found = vfl.predict(exact.save_parts(tmp_path / "parts"), data)
    assert (found.scores == margins).all()
    frame = found.to_pandas()
    assert list(frame)[:2] == ["label", "probability[setosa]"]
    assert list(frame)[-1] == "score[virginica]"
    part = exact.part("bank")
    plain = json.loads(part.to_json()) | {"intercept": [1.0]}
    with pytest.raises(OutputError, match="numbers of intercepts"):
        ModelPart.parse(json.dumps(plain), "the part")


def test_a_saved_result_predicts_the_same_and_its_job_file_reads_back(exact: Result, tmp_path: Any) -> None:
    again = Result.load(exact.save(tmp_path / "run"))
    assert again.verify().ok
    assert again.job == exact.job
    assert (again.decision_function(TABLE) == exact.decision_function(TABLE)).all()
    document = json.loads((tmp_path / "run" / "model.json").read_text())
    assert set(document["intercept"]) == set(CLASSES)
    assert len(document["coef"]) == 12


def test_export_to_scikit_learn(exact: Result) -> None:
    pipeline = exact.to_sklearn()
    np.testing.assert_allclose(pipeline.predict_proba(TABLE[list(NAMES)]), exact.predict_proba(TABLE), atol=1e-9)
    two = TABLE[TABLE["species"] != "setosa"]
    of_two = fitted(job_of(classes=CLASSES[1:]), two)
    np.testing.assert_allclose(
        of_two.to_sklearn().predict_proba(two[list(NAMES)]), of_two.predict_proba(two), atol=1e-9
    )


def test_measures_of_new_records_are_exact(exact: Result) -> None:
    found = vfl.evaluate(exact, TABLE).measures
    proba = exact.predict_proba(TABLE)
    assert found["accuracy"].value == pytest.approx((exact.predict(TABLE) == TABLE["species"]).mean())
    assert found["loss"].value == pytest.approx(-np.log(proba[np.arange(150), SPECIES]).mean(), abs=1e-5)
    assert found["recall[setosa]"].value == pytest.approx(1.0)
    assert found["loss"].baseline == pytest.approx(math.log(3.0))


def test_outcomes_move_by_their_sensitivity() -> None:
    K = 3
    statistic = ClassOutcomes(LOSS, 4 * math.log(K), (weight(2 / 3, 2.0), weight(1 / 3, 1.0)), K)
    right, wrong = np.array([50.0, 0.0, 0.0]), np.array([50.0, 0.0, 0.0])
    moved = statistic(right, np.array([0.0])) - statistic(wrong, np.array([1.0]))
    assert np.linalg.norm(moved.astype(float)) * statistic.grid == pytest.approx(statistic.sensitivity, rel=1e-6)
    rng, sums = np.random.default_rng(4), []
    for _ in range(300):
        v = rng.choice([math.nan, math.inf, -math.inf, 1e308, 0.0, 1.0, -30.0], K)
        sums.append(statistic(v, rng.choice([0.0, 1.0, 2.0, math.nan, -5.0, 9.0], 1)).astype(float))
    apart = max(np.linalg.norm(a - b) for a in sums for b in sums) * statistic.grid
    assert apart <= statistic.sensitivity


def test_a_score_alone(exact: Result) -> None:
    spec = vfl.Evaluation(holdout=0.3, score="accuracy")
    job = job_of(
        privacy=vfl.Privacy(epsilon=8.0, noise=vfl.SeededNoise(5)),
        evaluation=spec,
    )
    assert 0.5 < fitted(job).findings["score"].measures["accuracy"].value < 1.3


def test_plan_report_and_repr_name_the_model(private: Result, tmp_path: Any) -> None:
    text = str(vfl.plan(private.job, 150))
    assert "multinomial logistic regression, 4 features" in text
    assert "sepal_width[virginica]" in repr(private)
    run = private.save(tmp_path / "run")
    assert "petal_width[setosa]" in write_run(run)[0].read_text(encoding="utf-8")
    assert "multinomial logistic regression" in write_card(run)[0].read_text(encoding="utf-8")


def test_estimators_fit_more_than_two_classes() -> None:
    X = (IRIS - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2)
    expected = LogisticRegression(C=2.0, tol=1e-10, max_iter=5000).fit(X, SPECIES)
    found = vfl.sklearn.VerticalLogisticRegression(epsilon=None, C=2.0, partition=2).fit(X, SPECIES)
    np.testing.assert_allclose(found.coef_, expected.coef_, atol=1e-4)
    np.testing.assert_allclose(found.intercept_, expected.intercept_, atol=1e-4)
    np.testing.assert_allclose(found.predict_proba(X), expected.predict_proba(X), atol=1e-4)
    assert (found.predict(X) == expected.predict(X)).all()
    declared = vfl.sklearn.VerticalLogisticRegression(
        epsilon=8.0, classes=(0, 1, 2), bounds=(-1, 1), noise=vfl.SeededNoise(0)
    )
    assert declared.fit(X, SPECIES).score(X, SPECIES) > 0.7


# Refusals, before any data.


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"classes": None}, "multinomial loss needs all labels that may occur"),
        ({"classes": ("a",)}, "two or more different labels"),
        ({"classes": ("a", "a", "b")}, "two or more different labels"),
        ({"classes": (("a", "b"), "c")}, "two or more different labels"),
        ({"classes": tuple(map(str, range(101)))}, "at most 100 classes"),
        ({"loss": "logistic"}, "use loss='multinomial'"),
        (
            {"evaluation": vfl.Evaluation(fairness=vfl.Fairness(group="sepal_width"), holdout=0.3)},
            "fairness compares predictions of two classes",
        ),
        (
            {"privacy": vfl.Privacy(epsilon=1.0), "evaluation": vfl.Evaluation(class_balance=0.1)},
            "class_balance counts the labels of two classes",
        ),
    ],
)
def test_a_job_refuses_what_does_not_fit(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecificationError, match=said):
        job_of(**changes)


@pytest.mark.parametrize(
    "solver",
    [
        vfl.solvers.SGD(),
        vfl.solvers.SVRG(),
        vfl.solvers.GCD(),
        vfl.solvers.SCD(),
        vfl.solvers.OutputPerturbation(),
        vfl.solvers.NoisyGram(),
    ],
)
def test_other_solvers_refuse_in_one_sentence(solver: Any) -> None:
    with pytest.raises(
        SpecificationError, match=f"{solver.name} moves one linear predictor per record.*use SkGD, CD or GD"
    ):
        vfl.plan(job_of(privacy=vfl.Privacy(epsilon=1.0), solver=solver), 150)


def test_labels_beyond_the_classes_are_refused() -> None:
    with pytest.raises(vfl.errors.DataError, match="holds values that are not declared classes"):
        fitted(job_of(classes=CLASSES[:2]))
