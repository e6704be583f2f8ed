"""Edge cases in process: each job ends in a finite model, or in an error that names its remedy."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest

import vfl
from vfl.errors import DataError, PrivacyError, SpecificationError
from vfl.planning import plan as make_plan
from vfl.privacy.noise import SeededNoise

if TYPE_CHECKING:
    from collections.abc import Mapping

RIDGE = 0.1
LOSSES = pytest.mark.parametrize("loss", ["squared", "logistic"])
PRIVATELY = pytest.mark.parametrize("private", [False, True], ids=["plain", "private"])


def job(
    parties: Mapping[str, tuple[str, ...]],
    loss: str = "squared",
    *,
    private: bool = False,
    label: tuple[str, str] | None = None,
    **options: object,
) -> vfl.Job:
    columns = [c for owned in parties.values() for c in owned]
    noise = vfl.Privacy(epsilon=1.0, delta=1e-6, noise=SeededNoise(0)) if private else None
    kept = {"privacy": noise, "bounds": dict.fromkeys([*columns, *(["y"] if loss == "squared" else [])], (-1.0, 1.0))}
    kept |= {"penalty": vfl.L2(RIDGE), "solver": vfl.SkGD(passes=4 if private else 60)} | options
    return vfl.Job(
        partition=vfl.FeaturePartition(parties, label=label or (next(iter(parties)), "y")), loss=loss, **kept
    )


def columns_of(parties: Mapping[str, tuple[str, ...]], n: int = 60, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    data = {c: rng.uniform(-1, 1, n) for owned in parties.values() for c in owned}
    total = sum(data.values()) if data else rng.normal(size=n)
    data["y"] = np.clip(0.3 * total + 0.1 * rng.normal(size=n), -1, 1)
    return data


def labelled(data: dict[str, np.ndarray], loss: str) -> dict[str, np.ndarray]:
    """Return labels for the loss: numbers, or their signs."""
    return data | {"y": (data["y"] > 0).astype(int)} if loss == "logistic" else data


def trained(spec: vfl.Job, data: object) -> vfl.Result:
    """Train with every floating-point warning as an error; the model must be finite and within its limits."""
    with warnings.catch_warnings(), np.errstate(invalid="raise", divide="raise", over="raise"):
        warnings.simplefilter("error")
        result = vfl.train(spec, data, at="inprocess")
    assert np.isfinite(result.w).all()
    assert np.isfinite(result.coef_).all()
    assert math.isfinite(result.intercept_)
    if spec.privacy is not None:
        assert result.certificate.epsilon <= spec.privacy.epsilon
    return result


def ridge(data: dict[str, np.ndarray]) -> np.ndarray:
    """Return the ridge coefficients with an intercept, for columns that are scaled already."""
    X = np.column_stack([x for c, x in data.items() if c != "y"])
    Z = X - X.mean(axis=0)
    return np.linalg.solve(Z.T @ Z / len(X) + RIDGE * np.eye(X.shape[1]), Z.T @ (data["y"] - data["y"].mean()) / len(X))


TWO = {"bank": ("a", "b"), "telco": ("c",)}


class TestValues:
    @PRIVATELY
    @LOSSES
    def test_infinities_are_clamped_to_declared_bounds(self, loss: str, private: bool) -> None:
        data = labelled(columns_of(TWO), loss)
        data["a"][3], data["c"][4] = math.inf, -math.inf
        clamped = {c: np.clip(x, -1, 1) for c, x in data.items()}
        spec = job(TWO, loss, private=private)
        assert np.array_equal(trained(spec, data).w, trained(spec, clamped).w)

    @pytest.mark.parametrize("value", [math.inf, -math.inf])
    def test_infinities_without_bounds_are_refused_at_their_owner(self, value: float) -> None:
        data = columns_of(TWO)
        data["c"][4] = value
        spec = job(TWO, scaling="none", bounds={})
        with pytest.raises(DataError, match=r"telco.*'c'.*declare its bounds"):
            vfl.train(spec, data, at="inprocess")

    def test_infinite_labels_are_refused_without_bounds_and_clamped_with(self) -> None:
        data = columns_of(TWO)
        data["y"][0] = math.inf
        assert trained(job(TWO), data)
        with pytest.raises(DataError, match=r"label 'y' holds infinite values"):
            vfl.train(job(TWO, bounds=dict.fromkeys("abc", (-1, 1))), data, at="inprocess")

    @PRIVATELY
    @LOSSES
    @pytest.mark.parametrize("size", [1e-300, 1e-12, 1e12, 1e100, 1e300])
    def test_units_do_not_matter_where_bounds_are_declared(self, size: float, loss: str, private: bool) -> None:
        """Even with bounds of ±10³⁰⁰ the scaled column is trained."""
        data = labelled(columns_of(TWO), loss)
        scaled = data | {"b": data["b"] * size}
        bounds = {"a": (-1, 1), "c": (-1, 1), "b": (-size, size), **({"y": (-1, 1)} if loss == "squared" else {})}
        there, here = (
            trained(job(TWO, loss, private=private, bounds=bounds), scaled),
            trained(job(TWO, loss, private=private), data),
        )
        np.testing.assert_allclose(there.w, here.w, rtol=1e-6, atol=1e-9)

    @pytest.mark.parametrize("size", [1e-100, 1e100])
    def test_raw_columns_of_any_unit_have_the_same_predictions(self, size: float) -> None:
        """Without penalty and scaling, steps of 1/M_j adapt to the unit."""
        data = columns_of(TWO)
        spec = job(TWO, scaling="none", bounds={}, penalty=vfl.penalties.NoPenalty())
        here = trained(spec, data).decision_function(data)
        scaled = data | {"b": data["b"] * size}
        np.testing.assert_allclose(trained(spec, scaled).decision_function(scaled), here, rtol=0, atol=1e-8)

    @LOSSES
    @pytest.mark.parametrize("size", [1e200, 1e300])
    def test_raw_columns_whose_squares_overflow_end_in_an_error(self, size: float, loss: str) -> None:
        data = labelled(columns_of(TWO), loss)
        data["b"] = data["b"] * size
        with np.errstate(over="ignore"), pytest.raises(DataError, match="declare bounds with scaling='bounds'"):
            vfl.train(job(TWO, loss, scaling="none", bounds={}), data, at="inprocess")

    @pytest.mark.parametrize("size", [1e-200, 1e200])
    @pytest.mark.parametrize("smoothness", ["private", "bounds"])
    def test_raw_bounds_whose_squares_overflow_are_refused_by_the_plan(self, smoothness: str, size: float) -> None:
        bounds = {"a": (-1, 1), "b": (-size, size), "c": (-1, 1), "y": (-1, 1)}
        privacy = vfl.Privacy(epsilon=1.0, delta=1e-6, smoothness=smoothness)
        with pytest.raises(SpecificationError, match="bounds of column 'b'"):
            make_plan(job(TWO, privacy=privacy, scaling="none", bounds=bounds), 60)


class TestColumns:
    @PRIVATELY
    @LOSSES
    @pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
    def test_a_constant_column_gets_no_weight_and_disturbs_no_other(
        self, value: float, loss: str, private: bool
    ) -> None:
        data = labelled(columns_of(TWO), loss)
        data["b"] = np.full(60, value)
        result = trained(job(TWO, loss, private=private), data)
        if not private:
            assert abs(result.coef_[1]) < 1e-12
            other = {c: x for c, x in data.items() if c != "b"}
            without = trained(job({"bank": ("a",), "telco": ("c",)}, loss), other)
            np.testing.assert_allclose(result.coef_[[0, 2]], without.coef_, rtol=0, atol=1e-7)

    @PRIVATELY
    def test_a_constant_raw_column_far_from_0(self, private: bool) -> None:
        data = columns_of(TWO)
        data["b"] = np.full(60, 1e9 + 0.1)
        bounds = {"a": (-1, 1), "b": (0, 2e9), "c": (-1, 1), "y": (-1, 1)}
        result = trained(job(TWO, private=private, scaling="none", bounds=bounds), data)
        if not private:
            np.testing.assert_allclose(result.coef_[[0, 2]], ridge(data)[[0, 2]], rtol=0, atol=1e-7)

    @PRIVATELY
    def test_all_columns_constant(self, private: bool) -> None:
        data = columns_of(TWO) | {c: np.full(60, 0.5) for c in "abc"}
        result = trained(job(TWO, private=private), data)
        if not private:
            assert result.intercept_ == pytest.approx(data["y"].mean(), abs=1e-9)

    @PRIVATELY
    @pytest.mark.parametrize("draw", [{}, {"parallel": 2}, {"sampling": "full"}, {"block_size": 50}], ids=str)
    def test_duplicate_columns_share_their_weight(self, draw: dict, private: bool) -> None:
        """The same column at one party twice, and at another; ridge splits the weight evenly."""
        parties = {"bank": ("a", "b", "d"), "telco": ("c",)}
        data = columns_of(parties)
        data["b"] = data["c"] = data["a"]
        result = trained(
            job(parties, private=private, solver=vfl.SkGD().changed(passes=4 if private else 300, **draw)), data
        )
        if not private:
            np.testing.assert_allclose(result.coef_, ridge({c: data[c] for c in "abdcy"}), rtol=0, atol=1e-7)

    @PRIVATELY
    @LOSSES
    def test_a_column_that_equals_the_label(self, loss: str, private: bool) -> None:
        data = labelled(columns_of(TWO), loss)
        data["c"] = 0.9 * data["y"]
        assert trained(job(TWO, loss, private=private), data).coef_[2] != 0.0

    @PRIVATELY
    def test_labels_of_one_class(self, private: bool) -> None:
        data = columns_of(TWO) | {"y": np.ones(60, int)}
        assert trained(job(TWO, "logistic", private=private), data)


class TestShapes:
    @PRIVATELY
    @LOSSES
    def test_more_columns_than_records(self, loss: str, private: bool) -> None:
        parties = {"bank": tuple(f"a{k}" for k in range(40)), "telco": tuple(f"b{k}" for k in range(30))}
        data = labelled(columns_of(parties, n=12), loss)
        spec = job(parties, loss, private=private, solver=vfl.SkGD(passes=4 if private else 100))
        result = trained(spec, data)
        if not private and loss == "squared":
            np.testing.assert_allclose(result.coef_, ridge(data), rtol=0, atol=1e-4)

    @PRIVATELY
    @LOSSES
    def test_one_party_with_one_column(self, loss: str, private: bool) -> None:
        data = labelled(columns_of({"bank": ("a",)}), loss)
        result = trained(job({"bank": ("a",)}, loss, private=private), data)
        if not private and loss == "squared":
            np.testing.assert_allclose(result.coef_, ridge(data), rtol=0, atol=1e-9)

    @pytest.mark.parametrize(  # every pair of two of the four
        ("draw", "intercept", "loss", "private"),
        [
            (draw, bool((k + loss + private) % 2), ("squared", "logistic")[loss], bool(private))
            for k, draw in enumerate([{}, {"parallel": 3}, {"sampling": "full"}, {"message": "block"}])
            for loss in (0, 1)
            for private in (0, 1)
        ],
        ids=str,
    )
    def test_a_party_without_columns_may_own_the_label(
        self, draw: dict, intercept: bool, loss: str, private: bool
    ) -> None:
        """With the intercept it owns a block; without, it is asked for its labels only."""
        parties = {"registry": (), "bank": ("a", "b"), "telco": ("c",)}
        data = labelled(columns_of(parties), loss)
        spec = job(
            parties,
            loss,
            private=private,
            label=("registry", "y"),
            intercept=intercept,
            solver=vfl.SkGD().changed(passes=4 if private else 100, **draw),
        )
        result = trained(spec, data)
        if not private:
            columns_first = job({"bank": ("a", "b"), "telco": ("c",)}, loss, intercept=intercept)
            np.testing.assert_allclose(result.coef_, trained(columns_first, data).coef_, rtol=0, atol=1e-6)

    @LOSSES
    def test_only_an_intercept(self, loss: str) -> None:
        data = labelled(columns_of({"registry": ()}), loss)
        for private in (False, True):
            result = trained(job({"registry": ()}, loss, private=private), {"y": data["y"]})
            assert result.coef_.size == 0
        plain = trained(job({"registry": ()}, loss), {"y": data["y"]})
        mean = data["y"].mean()
        assert plain.intercept_ == pytest.approx(mean if loss == "squared" else math.log(mean / (1 - mean)), abs=1e-6)

    @PRIVATELY
    @LOSSES
    def test_one_record(self, loss: str, private: bool) -> None:
        data = {"a": np.array([0.2]), "b": np.array([-0.7]), "c": np.array([0.1]), "y": np.array([1])}
        assert trained(job(TWO, loss, private=private), data)

    def test_no_records_are_refused(self) -> None:
        with pytest.raises(DataError, match="no records"):
            vfl.train(job(TWO), {c: np.zeros(0) for c in "abcy"}, at="inprocess")

    @PRIVATELY
    @pytest.mark.parametrize("draw", [{}, {"parallel": 200}, {"sampling": "nice", "tau": 70}], ids=str)
    def test_two_hundred_parties(self, draw: dict, private: bool) -> None:
        parties = {f"p{k:03}": (f"c{k}",) for k in range(200)}
        data = columns_of(parties, n=40)
        spec = job(parties, private=private, solver=vfl.SkGD().changed(passes=2, **draw))
        plan = make_plan(spec, 40)
        if draw.get("parallel"):
            assert plan.messages <= 8
        result = trained(spec, data)
        assert result.coef_.size == 200

    @PRIVATELY
    @LOSSES
    def test_blocks_larger_than_any_party(self, loss: str, private: bool) -> None:
        data = labelled(columns_of(TWO), loss)
        ends = [
            trained(job(TWO, loss, private=private, solver=vfl.SkGD(passes=3, block_size=size)), data).w
            for size in (3, 10**9)
        ]
        assert np.array_equal(*ends)


class TestBudgets:
    @pytest.mark.parametrize(  # every pair of two of the four
        ("smoothness", "delta", "epsilon", "loss"),
        [
            (("private", "bounds")[(k + m + j) % 2], delta, epsilon, loss)
            for k, delta in enumerate([1e-30, 1e-9, None])
            for m, epsilon in enumerate([1e-3, 50.0])
            for j, loss in enumerate(["squared", "logistic"])
        ],
    )
    def test_very_small_and_very_large_budgets(
        self, smoothness: str, delta: float | None, epsilon: float, loss: str
    ) -> None:
        """The certificate's ε equals the requested one up to rounding, and does not exceed it."""
        privacy = vfl.Privacy(epsilon=epsilon, delta=delta, noise=SeededNoise(0), smoothness=smoothness)
        data = labelled(columns_of(TWO, n=500), loss)
        result = trained(job(TWO, loss, privacy=privacy, solver=vfl.SkGD(passes=4)), data)
        assert result.certificate.epsilon == pytest.approx(epsilon, rel=1e-6)

    @pytest.mark.parametrize(
        "draw", [{}, {"sampling": "importance", "parallel": 2}, {"noise_geometry": "isotropic"}], ids=str
    )
    def test_a_very_large_budget_comes_near_the_optimum(self, draw: dict) -> None:
        privacy = vfl.Privacy(epsilon=50.0, delta=1e-30, noise=SeededNoise(0))
        data = columns_of(TWO, n=20_000)
        solver = vfl.SkGD().changed(passes=20, clip=2.0, step_size=1.0, **draw)
        assert abs(trained(job(TWO, privacy=privacy, solver=solver), data).coef_ - ridge(data)).max() < 0.02

    @pytest.mark.parametrize("smoothness", ["private", "bounds"])
    @pytest.mark.parametrize(
        "solver",
        [{"clip": "coordinate"}, {"clip": "coordinate", "noise_geometry": "isotropic"}, {"sampling": "importance"}],
        ids=str,
    )
    @pytest.mark.parametrize("epsilon", [1e-300, 1e-12, 1e-6])
    def test_a_tiny_budget_is_refused_by_the_plan(self, epsilon: float, solver: dict, smoothness: str) -> None:
        """Noise beyond the range of integers is a public fact: nothing is charged, and the user has a remedy."""
        privacy = vfl.Privacy(epsilon=epsilon, delta=1e-30, noise=SeededNoise(0), smoothness=smoothness)
        with pytest.raises(PrivacyError, match="raise epsilon"):
            make_plan(job(TWO, privacy=privacy, solver=vfl.SkGD().changed(**solver)), 60)

    def test_the_smallest_budget_that_the_plan_accepts_can_be_drawn(self) -> None:
        """Bisect for the limit; a budget at most twice a refused one trains to its end."""
        epsilon, data = 1e-4, columns_of(TWO)
        while True:
            privacy = vfl.Privacy(epsilon=epsilon, delta=1e-30, noise=SeededNoise(0))
            spec = job(TWO, privacy=privacy, solver=vfl.SkGD(passes=4))
            try:
                make_plan(spec, 60)
            except PrivacyError:
                break
            assert trained(spec, data).certificate.epsilon <= epsilon
            epsilon /= 1.5

    @pytest.mark.parametrize("clip", [1e-90, 1e-9, 1e9, 1e90])
    def test_clips_of_any_size(self, clip: float) -> None:
        assert trained(job(TWO, private=True, solver=vfl.SkGD(passes=2, clip=clip)), columns_of(TWO))

    @pytest.mark.parametrize("clip", [1e-200, 1e200])
    def test_clips_beyond_exact_sums_are_refused_before_the_job_is_made(self, clip: float) -> None:
        with pytest.raises(SpecificationError, match="exact sums"):
            vfl.SkGD(clip=clip)


class TestSinglePrecision:
    @PRIVATELY
    @LOSSES
    def test_single_precision_takes_half_the_memory_for_nearly_the_same_model(self, loss: str, private: bool) -> None:
        data = labelled(columns_of(TWO), loss)
        single, double = (trained(job(TWO, loss, private=private, precision=s), data) for s in ("float32", "float64"))
        np.testing.assert_allclose(single.coef_, double.coef_, rtol=1e-4, atol=1e-5)

    @PRIVATELY
    def test_values_that_single_precision_cannot_hold_are_clamped_or_refused(self, private: bool) -> None:
        data = columns_of(TWO)
        data["b"][7] = 1e300
        assert trained(job(TWO, private=private, precision="float32"), data)
        if not private:
            with pytest.raises(DataError, match="larger ones"):
                vfl.train(job(TWO, precision="float32", scaling="none", bounds={}), data, at="inprocess")

    def test_bounds_that_round_outwards_keep_their_sensitivity(self) -> None:
        """0.1 is larger in single precision than in double; stored values stay within the declared reach."""
        data = columns_of(TWO)
        bounds = {"a": (-0.1, 0.1), "b": (-0.7, 0.7), "c": (-1, 1), "y": (-1, 1)}
        assert float(np.float32(0.1)) > 0.1
        spec = job(TWO, private=True, precision="float32", scaling="none", bounds=bounds)
        assert trained(spec, data)
