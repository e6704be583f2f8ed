"""Held-out records: excluded from training, measured with noise that protects each of them, and charged."""

from __future__ import annotations

import functools
import itertools
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import (
    accuracy_score,
    d2_tweedie_score,
    log_loss,
    mean_absolute_error,
    mean_squared_error,
    mean_tweedie_deviance,
    r2_score,
    roc_auc_score,
)

import vfl
from coordinator.charging.charger import Charger
from coordinator.coordinator import Coordinator
from coordinator.executor import Executor
from coordinator.rounds import Log, Round
from coordinator.states.linear_predictors import LinearPredictors
from parties.loading import load
from vfl.base.holdout import Side
from vfl.base.losses import loss_of
from vfl.base.problem import Targets
from vfl.base.types import Adjacency
from vfl.errors import BudgetExceeded, ConsentRefused, PrivacyError, SpecificationError, VflError
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.launch.train import resume
from vfl.measures import estimates
from vfl.measures.confusion import FN, TP, mean_loss, of_outcomes
from vfl.measures.evaluations import EDGES, HeldOut
from vfl.planning import plan as make_plan
from vfl.privacy.accountants import GaussianAccountant
from vfl.privacy.events import Gaussian, OnPart
from vfl.privacy.ledger import SqliteLedger
from vfl.privacy.noise import SeededNoise
from vfl.queries import HELD_OUT, ExactTally, Forward, Tally
from vfl.queries.statistics import (
    GRID,
    ErrorSizes,
    LabelRate,
    Losses,
    Outcomes,
    Positives,
    Residuals,
    Scores,
    on_simplex,
)
from vfl.solvers import SOLVERS
from vfl.solvers.releases.labels import ClassCounts
from vfl.solvers.releases.residuals import ResidualCounts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.coordinator.shared_parties import SharedParties

pytestmark = pytest.mark.usefixtures("encoded")

N = 400
PARTITION = vfl.FeaturePartition({"bank": ["a0", "a1"], "telco": ["b0"]}, label=("telco", "y"))
BOUNDS = {"a0": (-1.0, 1.0), "a1": (-1.0, 1.0), "b0": (-1.0, 1.0)}


@functools.cache
def table(loss: str = "logistic", n: int = N) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    X = rng.uniform(-1, 1, (n, 3))
    signal = X @ np.array([2.0, -1.0, 1.5]) + 0.5
    y = signal + 0.5 * rng.normal(size=n)
    return dict(zip(BOUNDS, X.T, strict=True)) | {"y": (y > 0).astype(int) if loss == "logistic" else y}


def held(**options: Any) -> vfl.Evaluation:
    return vfl.Evaluation(**{"holdout": 0.25} | options)


def job(loss: str = "logistic", *, epsilon: float | None = 2.0, seed: int | None = 3, **options: Any) -> vfl.Job:
    of_privacy = {name: options.pop(name) for name in ("smoothness",) if name in options}
    noise = None if seed is None else SeededNoise(seed)
    privacy = None if epsilon is None else vfl.Privacy(epsilon=epsilon, delta=1e-5, noise=noise, **of_privacy)
    bounds = BOUNDS | ({"y": (-5.0, 5.0)} if loss == "squared" else {})
    fixed: dict[str, Any] = {
        "evaluation": vfl.Evaluation(holdout=0.25),
        "penalty": vfl.L2(1e-2),
        "solver": vfl.SkGD(passes=2),
    }
    return vfl.Job(partition=PARTITION, loss=loss, bounds=bounds, privacy=privacy, **(fixed | options))


def train(spec: vfl.Job, data: Any = None, **options: Any) -> vfl.Result:
    return vfl.train(spec, table(str(spec.loss)) if data is None else data, at="inprocess", **options)


def rounds_of(spec: vfl.Job, data: Any) -> list[Round]:
    seen: list[Any] = []
    train(spec, data, watch=seen.append)
    return [event for event in seen if isinstance(event, Round)]


def changed(i: int, **cells: Any) -> dict[str, np.ndarray]:
    """Return the table with other cells in record i."""
    data = {name: column.copy() for name, column in table().items()}
    for name, value in cells.items():
        data[name][i] = value
    return data


class Exposed:
    """A statistic that takes offsets, here those of exposures from 1e-15 to 5."""

    def __init__(self, statistic: Any) -> None:
        self.statistic, self.dimension = statistic, statistic.dimension
        self.sensitivity, self.grid = statistic.sensitivity, statistic.grid

    def __call__(self, margins: np.ndarray, labels: np.ndarray) -> np.ndarray:
        offsets = np.clip(margins, np.log(1e-15), np.log(5.0))
        return np.asarray(self.statistic(margins, labels, np.where(np.isnan(offsets), 0.0, offsets)))


# Sensitivity: every pair of these records, as margin and label.
EXTREMES = (-math.inf, -1e300, -9.0, -1.0, -1e-9, 0.0, 1e-9, 0.3, 1.0, 9.0, 1e300, math.inf, math.nan)
STATISTICS = {
    "outcomes": (Outcomes(loss_of("logistic"), 2.0, (600_000, 900_000)), (-1.0, 1.0)),
    "outcomes of little weight": (Outcomes(loss_of("hinge"), 4.0, (3, 700_001)), (-1.0, 1.0)),
    "scores": (Scores(np.array([-1.0, 0.0, 0.2, 3.0])), (-1.0, 1.0)),
    "residuals": (Residuals(loss_of("squared"), 1.5, (700_000, 500_000)), (-5.0, 0.0, 1e-3, 5.0)),
    "residuals beside a constant": (
        Residuals(loss_of("squared"), 1.5, (700_000, 600_000, 500_000, 400_000), 0.0),
        (-5.0, 0.0, 5.0),
    ),
    "residuals of counts": (Residuals(loss_of("poisson"), 4.0, (1, 10)), (0.0, 1.0, 100.0)),
    "deviances of counts": (Residuals(loss_of("poisson"), 4.0, (300_000,) * 6, 4.0, 8.0), (-2.0, 0.0, 4.0, 100.0)),
    "deviances of amounts": (
        Residuals(loss_of("gamma"), 4.0, (9, 8, 700_000) * 2, 1.0, 8.0),
        (0.0, 1.0, 1e300, math.inf),
    ),
    "deviances of costs": (
        Residuals(loss_of("tweedie"), 4.0, (9, 8, 700_000) * 2, 1.0, 8.0),
        (0.0, 1.0, 1e300, math.nan),
    ),
    "deviances from a constant of zero": (Residuals(loss_of("poisson"), 4.0, (9,) * 6, 0.0, 8.0), (0.0, 9.0)),
    "rates": (Exposed(LabelRate(9.0, 1e-15, 5.0, 1.0)), (0.0, 9.0, -1.0, 1e300, math.nan)),
    "rates of costs": (Exposed(LabelRate(9.0, 1e-15, 5.0, 1.5)), (0.0, 9.0, math.inf)),
    "deviances from a rate": (
        Exposed(Residuals(loss_of("poisson"), 4.0, (300_000,) * 6, 4.0, 8.0, 5.0)),
        (-2.0, 0.0, 4.0, 100.0),
    ),
    "sizes of errors": (
        ErrorSizes(Residuals(loss_of("squared"), 8.0, (9,) * 4, 0.4), -2.0, 2.0),
        (-2.0, 0.0, 0.4, 2.0, math.nan),
    ),
    "sizes of errors and deviances": (
        Exposed(ErrorSizes(Residuals(loss_of("poisson"), 4.0, (9,) * 6, 4.0, 8.0, 5.0), 0.0, 1e300)),
        (0.0, 4.0, 9.0, 1e300, -2.0, math.nan),
    ),
    "positives": (Positives(), (-1.0, 1.0)),
    "class counts": (ClassCounts(3), (0.0, 2.0, -5.0, 9.0, math.inf, -math.inf, math.nan)),
    "residual counts": (ResidualCounts(0.7), (0.0, 2.0, -5.0, 1e300, math.inf, -math.inf, math.nan)),
}


@pytest.mark.parametrize("case", STATISTICS.values(), ids=STATISTICS)
def test_replacing_one_record_moves_a_statistic_by_its_sensitivity_and_no_more(case: Any) -> None:
    statistic, labels = case
    others = (np.array([0.1, -4.0, 2.0]), np.array([labels[0], labels[-1], labels[0]]))
    base = statistic(*others)
    sums = []
    for margin, label in itertools.product(EXTREMES, labels):
        of_all = statistic(np.append(others[0], margin), np.append(others[1], label))
        assert of_all.dtype == np.int64
        assert of_all.shape == (statistic.dimension,)
        sums.append(of_all - base)
    moves = [math.sqrt(int(((a - b) ** 2).sum())) * statistic.grid for a in sums for b in sums]
    assert max(moves) <= statistic.sensitivity
    assert max(moves) >= statistic.sensitivity * (1 - 1e-6) - statistic.grid


def test_the_sums_are_the_documented_ones() -> None:
    rng = np.random.default_rng(0)
    v, y = rng.normal(size=50), np.where(rng.random(50) < 0.4, 1.0, -1.0)
    first = Outcomes(loss_of("logistic"), 2.0, (1 << 20, 1 << 20))
    cells = [((y == label) & ((v > 0) == hit)).sum() for label in (-1, 1) for hit in (False, True)]
    total = np.minimum(np.log1p(np.exp(-y * v)), 2.0).sum() / 2.0
    np.testing.assert_allclose(first(v, y) * GRID, [*cells, total], atol=50 * GRID)
    edges = np.array([-1.0, 0.5])
    histograms = [np.histogram(v[y == label], [-np.inf, *edges, np.inf])[0] for label in (-1, 1)]
    assert (Scores(edges)(v, y) * GRID).tolist() == np.concatenate(histograms).tolist()
    e = np.minimum(abs(v - y) / 1.5, 1.0)
    sums = Residuals(loss_of("squared"), 1.5, (1 << 20, 1 << 20))(v, y) * GRID
    np.testing.assert_allclose(sums, [e.sum(), (e**2).sum()], atol=50 * GRID)
    assert Positives()(v, y) * GRID == (y > 0).sum()


def test_a_tally_refuses_noise_for_a_smaller_sensitivity() -> None:
    statistic = Positives()
    with pytest.raises(PrivacyError, match="too small for the sensitivity"):
        Tally(statistic, Gaussian(Adjacency.REPLACE_ONE, 0.5, 1.0, 1))
    with pytest.raises(PrivacyError, match="too small for the sensitivity"):
        Tally(Losses(loss_of("logistic")), Gaussian(Adjacency.REPLACE_ONE, 1e6, 1.0, 1))


def outcomes(released: np.ndarray, statistic: Outcomes, n: int, sigma: float) -> dict[str, estimates.Estimate]:
    found = of_outcomes(released, statistic, n, sigma).measures()
    base = estimates.constant_loss(statistic, positives_of(released, statistic, n) / n)
    return found | {"loss": mean_loss(released, statistic, n, sigma, base)}


def positives_of(released, statistic, n):
    return float(of_outcomes(released, statistic, n, 0.0).possible[[FN, TP]].sum())


class TestEstimates:
    """Post-processing: exact without noise, and with standard errors that cover the noise."""

    def records(self, n: int = 4000) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(1)
        v = rng.normal(0.4, 1.0, n)
        return v, np.where(rng.random(n) < 1 / (1 + np.exp(-2 * v)), 1.0, -1.0)

    def test_without_noise_they_are_exact(self) -> None:
        v, y = self.records()
        first = Outcomes(loss_of("logistic"), 50.0, (1 << 20, 1 << 20))
        found = outcomes(first(v, y) * GRID, first, len(v), 0.0)
        assert found["accuracy"].value == pytest.approx(((v > 0) == (y > 0)).mean())
        assert found["tpr"].value == pytest.approx((v > 0)[y > 0].mean())
        assert found["fpr"].value == pytest.approx((v > 0)[y < 0].mean())
        assert found["loss"].value == pytest.approx(np.log1p(np.exp(-y * v)).mean(), rel=1e-4)
        edges = np.linspace(-3, 3, 400)
        area = estimates.scores(Scores(edges)(v, y) * GRID, len(v), 0.0, float((y > 0).sum()), 0.0)["auc"]
        assert area.value == pytest.approx(roc_auc_score(y, v), abs=1e-4)
        second = Residuals(loss_of("squared"), 50.0, (1 << 20, 1 << 20))
        errors = estimates.residuals(second(v, y) * GRID, second, len(v), 0.0)
        assert errors["mae"].value == pytest.approx(abs(v - y).mean(), rel=1e-4)
        assert errors["rmse"].value == pytest.approx(math.sqrt(((v - y) ** 2).mean()), rel=1e-4)

    def test_baselines_are_those_of_the_best_constant_prediction(self) -> None:
        v, y = self.records()
        first = Outcomes(loss_of("logistic"), 50.0, (1 << 20, 1 << 20))
        found = outcomes(first(v, y) * GRID, first, len(v), 0.0)
        share = (y > 0).mean()
        entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
        assert found["accuracy"].baseline == pytest.approx(max(share, 1 - share))
        assert found["loss"].baseline == pytest.approx(entropy, rel=1e-4)
        # Under the clamp, a constant of −20 loses 4 · ln 2 for each positive label. No calibrated model is that good.
        rare = Outcomes(loss_of("logistic"), 4 * math.log(2), (1 << 20, 1 << 20))
        honest = 0.04 * 4 * math.log(2) - 0.96 * math.log(0.96)
        assert estimates.constant_loss(rare, 0.04) == pytest.approx(honest, rel=1e-3)
        assert found["tpr"].baseline == found["fpr"].baseline == pytest.approx((v > 0).mean())
        assert (found["tpr"].best, found["fpr"].best) == (1.0, 0.0)
        findings = estimates.Findings(found, len(v), "exact")
        assert estimates.Findings.from_dict(json.loads(json.dumps(findings.to_dict()))) == findings

    def test_errors_are_compared_with_those_of_the_constant_model(self) -> None:
        rng = np.random.default_rng(3)
        v = rng.normal(1.0, 1.0, 4000)
        y = v + rng.normal(0.0, 0.5, 4000)
        k = float(y.mean())
        statistic = Residuals(loss_of("squared"), 8.0, (1 << 30,) * 4, k)
        found = estimates.residuals(statistic(v, y) * GRID, statistic, len(v), 0.0)
        assert found["mae"].baseline == pytest.approx(abs(y - k).mean())
        assert found["rmse"].baseline == pytest.approx(y.std())
        assert found["r2"].value == pytest.approx(r2_score(y, v))
        assert (found["r2"].baseline, found["r2"].best, found["rmse"].best) == (0.0, 1.0, 0.0)
        assert not any(estimate.too_noisy for estimate in found.values())

    @pytest.mark.parametrize(("name", "power"), [("poisson", 1.0), ("tweedie", 1.5), ("gamma", 2.0)])
    def test_deviances_are_scikit_learns(self, name: str, power: float) -> None:
        rng = np.random.default_rng(6)
        v = rng.normal(0.5, 0.6, 3000)
        y = rng.poisson(np.exp(v)) if name == "poisson" else rng.gamma(2.0, np.exp(v) / 2.0) * (rng.random(3000) < 0.7)
        y = np.maximum(y, 1e-3) if name == "gamma" else np.asarray(y, float)
        loss = loss_of(name)
        statistic = Residuals(loss, 99.0, (1 << 30,) * 6, float(y.mean()), 99.0)
        found = estimates.residuals(statistic(v, y) * GRID, statistic, len(v), 0.0)
        assert found["deviance"].value == pytest.approx(
            mean_tweedie_deviance(y, loss.response(v), power=power), rel=1e-6
        )
        constant = np.full(len(y), y.mean())
        assert found["deviance"].baseline == pytest.approx(mean_tweedie_deviance(y, constant, power=power), rel=1e-6)
        assert found["d2"].value == pytest.approx(d2_tweedie_score(y, loss.response(v), power=power), abs=1e-6)
        assert (found["deviance"].best, found["d2"].best, found["d2"].baseline) == (0.0, 1.0, 0.0)

    def test_the_error_of_d2_covers_noise_and_sampling(self) -> None:
        """Of 400 samples, at least 95 in 100 intervals of two standard errors hold the population's D²."""
        rng = np.random.default_rng(4)
        statistic, n, sigma = Residuals(loss_of("poisson"), 20.0, (1 << 20,) * 6, 1.65, 20.0), 2000, 2.0

        def sums(size: int) -> np.ndarray:
            v = rng.normal(0.0, 1.0, size)
            return statistic(v, rng.poisson(np.exp(v)).astype(float)) * GRID

        true = estimates.residuals(sums(10**6), statistic, 10**6, 0.0)["d2"].value
        found = [
            estimates.residuals(sums(n) + sigma * rng.normal(size=6), statistic, n, sigma)["d2"] for _ in range(400)
        ]
        assert sum(abs(d2.value - true) <= 2.0 * d2.error for d2 in found) >= 380

    def test_the_error_of_r2_covers_noise_and_sampling(self) -> None:
        """Of 1000 samples, at least 95 in 100 intervals of two standard errors hold the population's R²."""
        rng = np.random.default_rng(4)
        statistic, n, sigma = Residuals(loss_of("squared"), 6.0, (1 << 20,) * 4, 1.0), 500, 2.0
        inside = 0
        for _ in range(1000):
            v = rng.normal(1.0, 1.0, n)
            y = v + rng.normal(0.0, 0.5, n)
            noisy = statistic(v, y) * GRID + sigma * rng.normal(size=4)
            found = estimates.residuals(noisy, statistic, n, sigma).get("r2")
            inside += found is None or abs(found.value - 0.8) <= 2.0 * found.error
        assert inside >= 950

    def test_r2_is_left_out_where_noise_may_explain_the_spread_of_the_labels(self) -> None:
        statistic = Residuals(loss_of("squared"), 1.0, (1 << 20,) * 4, 0.0)
        found = estimates.residuals(np.array([1.0, 1.0, 3.0, 3.0]), statistic, 10, 2.0)
        assert found.keys() == {"mae", "rmse"}
        assert (found["mae"].baseline, found["rmse"].baseline) == (None, None)
        assert str(found["rmse"]).startswith("too noisy to tell: [0, ")
        assert estimates.residuals(np.array([1.0, 1.0, 3.0, 0.0]), statistic, 10, 0.0).keys() == {"mae", "rmse"}

    def test_a_measure_with_a_wide_interval_is_called_too_noisy(self) -> None:
        """Four standard errors of an area may not exceed the distance from 0.5 to 1."""
        assert str(estimates.Estimate(1.0, 0.2, baseline=0.5)) == "too noisy to tell: [0.6, 1.4] (baseline 0.5)"
        assert str(estimates.Estimate(0.9, 0.1, baseline=0.5)) == "0.9 [0.7, 1.1] (baseline 0.5)"
        assert str(estimates.Estimate(0.3, 0.1, baseline=0.69, best=0.0)) == "0.3 [0.1, 0.5] (baseline 0.69)"
        assert str(estimates.Estimate(0.9, 0.5)) == "0.9 [-0.1, 1.9]"
        unknown = estimates.Estimate(0.9, 0.5, best=0.0)
        assert str(unknown) == "too noisy to tell: [-0.1, 1.9]"
        findings = estimates.Findings({"rmse": unknown}, 9, "exact")
        assert findings.shown()["measures"]["rmse"].keys() == {"best", "interval", "too_noisy"}
        assert "0.9" not in f"{findings}{findings._repr_html_()}"
        assert estimates.Findings.from_dict(json.loads(json.dumps(findings.to_dict()))) == findings

    def test_the_noise_has_the_stated_standard_error(self) -> None:
        """Fresh noise on the same records: errors over their stated standard error have a standard deviation of one."""
        v, y = self.records(1000)
        rng = np.random.default_rng(4)
        first, second = Outcomes(loss_of("logistic"), 4.0, (1 << 20, 1 << 20)), Scores(np.array([-1.0, 0, 0.5, 1.0]))
        sigma, runs = 6.0, 400
        exact = outcomes(first(v, y) * GRID, first, len(v), 0.0)
        positives = float((y > 0).sum())
        exact |= estimates.scores(second(v, y) * GRID, len(v), 0.0, positives, 0.0)
        errors: dict[str, list[float]] = {name: [] for name in exact}
        for _ in range(runs):
            noisy = [s(v, y) * GRID + sigma * rng.normal(size=s.dimension) for s in (first, second)]
            found = outcomes(noisy[0], first, len(v), sigma)
            about = positives_of(noisy[0], first, len(v))
            found |= estimates.scores(noisy[1], len(v), sigma, about, sigma)
            for name, estimate in found.items():
                noise = math.sqrt(estimate.error**2 - exact[name].error ** 2)
                errors[name].append((estimate.value - exact[name].value) / noise)
        for name, ratios in errors.items():
            assert len(ratios) == runs
            assert 0.8 < np.std(ratios) < 1.2, name
            assert abs(np.mean(ratios)) < 0.3, name

    @pytest.mark.parametrize("share", [0.5, 0.11, 0.03])
    @pytest.mark.parametrize("width", [0.3, 1.0, 2.0], ids=["scores in few bins", "spread", "wide"])
    def test_the_error_of_the_area_is_foretold_at_any_class_balance(self, share: float, width: float) -> None:
        rng = np.random.default_rng(8)
        n, sigma = 9000, 18.0
        y = np.where(np.arange(n) < share * n, 1.0, -1.0)
        v = width * (rng.normal(size=n) + 0.5 * y)
        statistic = Scores(np.concatenate([-np.array(EDGES)[::-1], [0.0], EDGES]))
        noisy = statistic(v, y) * GRID + sigma * rng.normal(size=statistic.dimension)
        stated = estimates.scores(noisy, n, sigma, share * n, 10.0)["auc"].error
        foretold = estimates.area_error(statistic.bins, n, sigma, share)
        assert 0.6 < foretold / stated < 1.7

    def test_the_area_is_unbiased(self) -> None:
        """Counts projected onto possible values would bias it towards ½ by more than a tenth of this distance."""
        v, y = self.records(500)
        rng, statistic = np.random.default_rng(6), Scores(np.linspace(-2, 2, 11))
        counts, positives = statistic(v, y) * GRID, float((y > 0).sum())
        exact = estimates.scores(counts, len(v), 0.0, positives, 0.0)["auc"].value
        found = [
            estimates.scores(counts + 5.0 * rng.normal(size=24), len(v), 5.0, positives + 3.0 * rng.normal(), 3.0)[
                "auc"
            ]
            for _ in range(2000)
        ]
        error = np.mean([area.value for area in found]) - exact
        assert abs(error) < 0.1 * (exact - 0.5) / 2
        assert abs(error) < 5 * np.std([area.value for area in found]) / math.sqrt(2000)

    def test_measures_below_their_noise_are_left_out(self) -> None:
        first = Outcomes(loss_of("logistic"), 4.0, (1 << 20, 1 << 20))
        assert set(outcomes(np.zeros(5), first, 10, 100.0)) == {"accuracy", "flagged", "loss"}
        assert estimates.scores(np.zeros(24), 10, 100.0, 5.0, 100.0) == {}

    def test_no_noise_makes_measures_fail(self) -> None:
        """A crash after a release would reveal something of it. Every result lies in the range of its measure."""
        rng = np.random.default_rng(5)
        first, second = (
            Outcomes(loss_of("logistic"), 4.0, (1 << 20, 1 << 20)),
            Residuals(loss_of("poisson"), 2.0, (9,) * 6, 0.5, 3.0),
        )
        for _ in range(1000):
            n, sigma = int(rng.integers(1, 30)), float(10 ** rng.uniform(-3, 3))
            cells, bins = rng.multinomial(n, np.full(4, 0.25)), rng.multinomial(n, rng.dirichlet(np.full(24, 0.1)))
            noisy = [np.append(cells, n / 3.0), bins.astype(float), rng.uniform(0, n, 6)]
            noisy = [sums + sigma * rng.normal(size=sums.size) for sums in noisy]
            found = outcomes(noisy[0], first, n, sigma)
            found |= estimates.scores(noisy[1], n, sigma, positives_of(noisy[0], first, n), sigma)
            assert all(0 <= found[name].value <= 1 for name in set(found) - {"loss"})
            found |= estimates.residuals(noisy[2], second, n, sigma)
            assert all(math.isfinite(e.value) and e.error >= 0 for e in found.values())
            assert 0 < estimates.base_rate(positives_of(noisy[0], first, n), n) < 1

    @pytest.mark.parametrize("noisy", [[3.0, -9.0, 1.0], [0.0, 0.0, 0.0], [-5.0, -6.0, -7.0], [1e9, 0.0, -1e9]])
    def test_the_nearest_counts(self, noisy: list[float]) -> None:
        found = on_simplex(np.array(noisy), 10.0)
        assert found.sum() == pytest.approx(10.0)
        assert (found >= 0).all()
        rng = np.random.default_rng(0)
        others = rng.dirichlet(np.ones(3), 500) * 10
        distance = np.linalg.norm(found - noisy)
        assert (np.linalg.norm(others - noisy, axis=1) >= distance * (1 - 1e-12)).all()


@pytest.mark.parametrize("loss", ["logistic", "squared", "poisson", "multinomial"])
def test_measures_without_noise_are_scikit_learns(loss: str) -> None:
    """Nothing is clamped and nothing is binned, however far out a record lies."""
    rng, n = np.random.default_rng(5), 3000
    frame = {name: rng.uniform(-1.0, 1.0, n) for name in ("a", "b")}
    s = 30.0 * frame["a"] - 10.0 * frame["b"]
    labels = {
        "logistic": s + rng.standard_t(1, n) > 0,
        "squared": s + rng.standard_t(2, n),
        "poisson": rng.poisson(np.exp(s / 16.0)),
        "multinomial": np.digitize(s + 4.0 * rng.standard_t(1, n), [-8.0, 8.0]),
    }
    frame["y"] = labels[loss].astype(float)
    bounds: dict[str, Any] = {"a": (-1.0, 1.0), "b": (-1.0, 1.0)}
    bounds |= {"squared": {"y": (-40.0, 40.0)}, "poisson": {"y": (0.0, 200.0)}}.get(loss, {})
    partition = vfl.FeaturePartition({"p": ["a"], "q": ["b"]}, label=("p", "y"))
    classes = (0, 1, 2) if loss == "multinomial" else None
    spec = vfl.Job(partition=partition, loss=loss, bounds=bounds, privacy=None, classes=classes)
    result = vfl.train(spec, frame, at="inprocess")
    found = vfl.evaluate(result, frame).measures
    y = np.clip(frame["y"], *bounds["y"]) if "y" in bounds else frame["y"]
    if spec.classification:
        p = result.predict_proba(frame)
        expected = {"loss": log_loss(y, p), "accuracy": accuracy_score(y, result.predict(frame))}
        expected |= {} if loss == "multinomial" else {"auc": roc_auc_score(y, p[:, 1])}
    else:
        mean = result.predict(frame)
        squares = mean_squared_error(y, mean)
        expected = {"mae": mean_absolute_error(y, mean), "rmse": math.sqrt(squares), "r2": r2_score(y, mean)}
    if loss == "poisson":
        expected |= {"deviance": mean_tweedie_deviance(y, mean, power=1), "d2": d2_tweedie_score(y, mean, power=1)}
    assert {name: found[name].value for name in expected} == pytest.approx(expected, rel=2e-6)


class TestApart:
    """A record enters the releases of one part only."""

    def test_a_held_out_record_is_in_no_training_release(self) -> None:
        spec = job()
        i = int(spec.split.held_out(N).nonzero()[0][0])
        before, after = rounds_of(spec, table()), rounds_of(spec, changed(i, a0=-1.0, b0=1.0, y=1 - table()["y"][i]))
        assert [record.kind for record in before[-3:]] == ["Forward", "Tally", "Tally"]
        for one, other in zip(before[:-3], after[:-3], strict=True):
            assert [u.tobytes() for u in one.released] == [u.tobytes() for u in other.released]
        assert before[-2].released[0].tobytes() != after[-2].released[0].tobytes()  # a change that would show

    def test_a_training_record_is_in_no_evaluation_release(self) -> None:
        """Given the model, the margins and sums of the held-out part are the same to the bit."""
        spec = job()
        i = int((~spec.split.held_out(N)).nonzero()[0][0])
        w = np.array([0.5, -0.25, 1.0, 0.1])
        sums = []
        for data in (table(), changed(i, a0=-1.0, b0=1.0, y=1 - table()["y"][i])):
            parties = {name: load(spec.for_party(name), source) for name, source in sources_of(spec, data).items()}
            margins = LinearPredictors(parties["telco"].labels(), spec.split.held_out(N))
            plan = make_plan(spec, N)
            execute = Executor(InProcessTransport(parties), margins, Charger(None, exact=(ExactTally,)))
            evaluation = HeldOut(plan.problem, vfl.Evaluation(), plan.n_records - plan.problem.n_records, None)
            schedule = evaluation.schedule(w)
            query, found = next(schedule), []
            while len(found) < 3:
                found.append(execute(query)[0])
                try:
                    query = schedule.send(found[-1])
                except StopIteration:
                    break
            sums.append([u.tobytes() for released in found for u in released])
        assert sums[0] == sums[1]
        assert len(sums[0]) == 2

    def test_training_on_the_other_records_alone_gives_the_same_model(self) -> None:
        spec = job()
        kept = ~spec.split.held_out(N)
        rest = {name: column[kept] for name, column in table().items()}
        alone = train(replace(spec, evaluation=None), rest)
        assert train(spec).w.tobytes() == alone.w.tobytes()

    def test_a_weighting_never_sees_held_out_margins(self) -> None:
        margins = LinearPredictors(np.arange(4.0), np.array([True, False, True, False]))
        margins.absorb(HELD_OUT, [np.array([7.0, 8.0])])
        assert margins.state()[2] == {}
        assert margins.state()[0].shape == (2,)
        assert Forward({}, into="reset", side=Side.HELD_OUT).target == HELD_OUT
        with pytest.raises(PrivacyError, match="before their margins are known"):
            LinearPredictors(np.arange(4.0), np.array([True, False, True, False])).tally(
                Tally(Positives(), None, Side.HELD_OUT)
            )

    def test_a_party_without_held_out_records_refuses_queries_about_them(self) -> None:
        spec = job(evaluation=None)
        parties = {name: load(spec.for_party(name), source) for name, source in sources_of(spec, table()).items()}
        whole = make_plan(spec, N).problem.layout.whole()
        query = Forward({q: (b, np.zeros(b.size)) for q, b in whole.items()}, side=Side.HELD_OUT)
        with pytest.raises(PrivacyError, match="has no held-out records"):
            Executor(InProcessTransport(parties), LinearPredictors(np.ones(N)), Charger(None))(query)


class TestCharged:
    @pytest.mark.parametrize("loss", ["logistic", "squared"])
    def test_the_run_costs_the_larger_part(self, loss: str) -> None:
        plan = make_plan(job(loss), N)
        sides = {event.part for event, _ in plan.releases if isinstance(event, OnPart)}
        assert sides == {"training", "held out"}
        assert 1.99 < plan.epsilon <= 2.0
        result = train(job(loss))
        assert 1.99 < result.certificate.epsilon <= 2.0
        assert "larger of their two costs" in result.certificate.scope
        assert result.certificate.n_records == N

    @pytest.mark.parametrize("solver", [kind() for kind in SOLVERS.values()], ids=SOLVERS)
    def test_every_accounting_that_a_solver_needs(self, solver: Any) -> None:
        loss = "squared" if solver.name == "NoisyGram" else "logistic"
        spec = job(loss, solver=solver, penalty=vfl.L2(0.1), intercept=False)
        result = train(spec)
        assert result.certificate.epsilon <= make_plan(spec, N).epsilon <= 2.0
        assert {"accuracy", "mae"} & set(result.findings["held out"].measures)

    def test_a_data_set_is_charged_the_larger_part(self, tmp_path: Path) -> None:
        ledger = SqliteLedger(tmp_path / "l.db")
        ledger.set_cap("d", epsilon=2.0, delta=1e-5)
        result = train(job(seed=None, dataset="d"), ledger=tmp_path / "l.db", output=tmp_path / "run")
        (balance,) = ledger.show()
        assert 1.99 < balance.spent <= 2.0
        assert result.findings.keys() == {"held out"}
        assert all(check.holds is not False for check in result.verify(ledger=tmp_path / "l.db").checks)
        with pytest.raises(BudgetExceeded):
            train(job(seed=None, dataset="d", name="again"), ledger=tmp_path / "l.db")

    def test_an_uncharged_release_is_not_made(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[Any] = []
        monkeypatch.setattr("coordinator.executor.release", lambda *arguments: made.append(arguments))

        class Refusing:
            run = "r"

            def charge(self, items: Any) -> None:
                ((_, event),) = items
                assert isinstance(event, OnPart)
                assert event.part == "held out"
                raise BudgetExceeded("no")

        margins = LinearPredictors(np.ones(4), np.array([True, True, False, False]))
        margins.absorb(HELD_OUT, [np.zeros(2)])
        execute: Any = Executor(None, margins, Charger(Refusing(), split="s"))  # type: ignore[arg-type]
        event = Gaussian(Adjacency.REPLACE_ONE, 1.0, 1.0, 1)
        with pytest.raises(BudgetExceeded):
            execute(Tally(Positives(), event, Side.HELD_OUT))
        with pytest.raises(PrivacyError, match="without noise"):
            execute(Tally(Positives(), None, Side.HELD_OUT))
        with pytest.raises(PrivacyError, match="without noise"):
            execute(ExactTally(Losses(loss_of("logistic")), None))
        assert made == []

    def test_losses_of_training_records_are_weighed(self) -> None:
        """The objective that a run without noise asks for is the one that it descends: a record of weight 0 is not in it."""
        given = np.concatenate([[1.0, -1.0, 1.0], [1.0, 0.5, 0.0]])
        margins = LinearPredictors(given, targets=Targets(weights=True))
        margins.absorb("add", [np.array([2.0, 3.0, np.inf])])
        (total,) = margins.tally(Tally(Losses(loss_of("squared")), None))
        assert total == 0.5 * (2.0 - 1.0) ** 2 + 0.5 * 0.5 * (3.0 + 1.0) ** 2

    def test_a_smaller_share_for_the_evaluation_changes_only_its_noise(self) -> None:
        whole, less = (make_plan(job(evaluation=held(epsilon=e)), N) for e in (None, 0.5))
        assert less.epsilon == pytest.approx(whole.epsilon, rel=1e-9)
        for plan, part, epsilon in ((whole, "held out", 2.0), (less, "held out", 0.5), (less, "training", 2.0)):
            events = [(e.event, count) for e, count in plan.releases if isinstance(e, OnPart) and e.part == part]
            accountant = GaussianAccountant()
            accountant.compose_all(events)
            assert accountant.epsilon(1e-5) == pytest.approx(epsilon, rel=1e-9)

    def test_a_party_records_it_in_its_book(self, tmp_path: Path) -> None:
        policy = tmp_path / "telco.toml"
        policy.write_text('format = 1\njobs = ["*"]\n[total]\nepsilon = 2.0\ndelta = 1e-5\n', encoding="utf-8")
        spec = job(seed=None)
        train(spec, vfl.Source(table(str(spec.loss)), policy={"telco": policy}))
        (balance,) = SqliteLedger(tmp_path / "telco.ledger").show()
        assert 1.99 < balance.spent <= 2.0
        public = job(seed=None, evaluation=held(public=True))
        with pytest.raises(ConsentRefused, match="allow_non_private"):
            train(public, vfl.Source(table("logistic"), policy={"telco": policy}))


class TestBoth:
    @pytest.mark.parametrize("loss", ["logistic", "squared"])
    def test_ray_agrees(self, parties_on_ray: SharedParties, loss: str) -> None:
        here = train(job(loss))
        there = parties_on_ray.train(job(loss), table(loss))
        assert here.findings == there.findings
        assert here.w.tobytes() == there.w.tobytes()

    @pytest.mark.parametrize("kept", [-4, -3, -2, -1])
    def test_a_resumed_run_ends_with_the_same_findings(self, kept: int) -> None:
        spec = job()
        made = rounds_of(spec, table())
        cut = made[:kept]
        log = Log(tuple(record.released for record in cut), n_records=N)
        sources = sources_of(spec, table()).items()
        coordinator = Coordinator(
            InProcessTransport({name: load(spec.for_party(name), source) for name, source in sources})
        )
        *_, outcome = coordinator.stream(spec, log=log)
        assert outcome.findings == train(spec).findings

    def test_a_lost_release_stays_charged_and_is_not_repeated(self, tmp_path: Path) -> None:
        """With fresh noise a repetition is another release. Its budget is spent, so the measure is left out."""
        noted: list[Round] = []

        def watch(event: object) -> None:
            if isinstance(event, Round):
                noted.append(event)
                if event.kind == "Tally":
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            # No share for the labels: the tally of the measures is the only one.
            train(
                job(seed=None, solver=vfl.SkGD(passes=2, details=vfl.solvers.Details(label_share=0.0))),
                output=tmp_path / "run",
                watch=watch,
            )
        log = tmp_path / "run" / "rounds.log"
        log.write_bytes(
            b"".join(log.read_bytes().splitlines(keepends=True)[:-1])
        )  # the tally was made, and its line in the log is lost
        result = resume(tmp_path / "run", table(), at="inprocess")
        assert result.certificate.epsilon <= 2.0
        found = result.findings["held out"]
        assert found.measures == {}
        assert "charged; a run that was cut off" in found.note
        assert resume(tmp_path / "run", table(), at="inprocess").findings == result.findings


STAMPED: dict[str, dict[str, Any]] = {
    "diagnostics": {"evaluation": held(diagnostics=True)},
    "public": {"evaluation": held(public=True)},
}


class TestOnRequest:
    """Numbers without noise only if the job asks for them, and flagged."""

    @pytest.mark.parametrize("options", STAMPED.values(), ids=STAMPED)
    def test_it_is_flagged(self, options: dict[str, Any]) -> None:
        result = train(job(seed=None, **options))
        assert result.certificate.private is False
        assert any(flag.startswith("NOT PRIVATE as a whole") for flag in result.certificate.flags)
        assert any("exact and uncharged" in found.note for found in result.findings.values())
        assert train(job(seed=None)).certificate.private is True

    def test_both_flags_are_stated(self) -> None:
        both = job(seed=None, evaluation=held(diagnostics=True, public=True))
        assert all(word in both.uncharged for word in ("(diagnostics)", "(evaluation.public)"))

    @pytest.mark.parametrize("options", STAMPED.values(), ids=STAMPED)
    def test_a_ledger_of_several_jobs_refuses_it(self, options: dict[str, Any], tmp_path: Path) -> None:
        with pytest.raises(PrivacyError, match="NOT PRIVATE as a whole"):
            train(job(seed=None, dataset="d", **options), ledger=tmp_path / "l.db")

    def test_the_objective_is_that_of_the_model(self) -> None:
        result = train(job(evaluation=vfl.Evaluation(diagnostics=True, holdout=None)))
        problem = make_plan(result.job, N).problem
        value = problem.value(result.w, result.decision_function(table()), 2.0 * table()["y"] - 1.0)
        assert result.findings["diagnostics"].measures["objective"].value == pytest.approx(value, rel=1e-12)

    def test_public_measures_are_exact(self) -> None:
        spec = job(evaluation=held(public=True))
        result = train(spec)
        out = {name: column[spec.split.held_out(N)] for name, column in table().items()}
        found = result.findings["held out"].measures
        assert found["accuracy"].value == pytest.approx((result.predict(out) == out["y"]).mean())
        assert found["auc"].value == pytest.approx(roc_auc_score(out["y"], result.decision_function(out)), abs=1e-6)

    def test_without_privacy_measures_are_exact_and_flagged(self) -> None:
        found = train(job(epsilon=None)).findings["held out"]
        assert found.note.endswith("uncharged: NOT PRIVATE")


class TestClassBalance:
    def test_it_is_paid_from_the_solvers_share(self) -> None:
        plain, asked = make_plan(job(), N), make_plan(job(evaluation=held(class_balance=0.05)), N)
        assert asked.epsilon <= 2.0
        assert asked.epsilon == pytest.approx(plain.epsilon, rel=1e-3)
        blocks = [p.releases[1][0].event for p in (plain, asked)]
        z = [event.sigma / event.sensitivity for event in blocks]
        assert z[1] / z[0] == pytest.approx(1 / math.sqrt(0.95), rel=1e-9)

    def test_it_is_approximately_right(self) -> None:
        spec = job(evaluation=held(class_balance=0.2))
        found = train(spec).findings["class balance"].measures["positive"]
        true = table()["y"][~spec.split.held_out(N)].mean()
        assert abs(found.value - true) < 5 * found.error

    def test_a_job_on_all_records_still_pays_for_it(self) -> None:
        """Plans, checks and forecasts that leave the hold-out out have the budget of the run."""
        whole = job(evaluation=held(class_balance=0.2)).on_all_records()
        assert (whole.holdout, whole.class_balance) == (None, 0.2)
        assert make_plan(whole, N).problem.mu < make_plan(job().on_all_records(), N).problem.mu

    def test_other_solvers(self) -> None:
        for solver in (vfl.solvers.GD(), vfl.solvers.GCD()):
            result = train(job(evaluation=held(class_balance=0.05), solver=solver))
            assert "class balance" in result.findings
            assert result.certificate.epsilon <= 2.0


WRONG: dict[str, tuple[Callable[[], object], type[VflError], str]] = {
    "all held out": (
        lambda: job(evaluation=vfl.Evaluation(holdout=1.0)),
        SpecificationError,
        "holdout is a fraction of the records",
    ),
    "none held out": (
        lambda: job(evaluation=vfl.Evaluation(holdout=0.0)),
        SpecificationError,
        "holdout is a fraction of the records",
    ),
    "nothing to measure on": (
        lambda: vfl.Evaluation(holdout=None, loss_cap=1.0),
        SpecificationError,
        "are of records that are held out: set holdout=0.2",
    ),
    "more than the budget": (
        lambda: job(evaluation=held(epsilon=2.5)),
        PrivacyError,
        r"epsilon = 2\.5 exceeds the job's budget",
    ),
    "a budget without privacy": (
        lambda: job(epsilon=None, evaluation=held(epsilon=1.0)),
        PrivacyError,
        "exceeds the job's budget",
    ),
    "a budget for public records": (
        lambda: held(epsilon=1.0, public=True),
        PrivacyError,
        "leave one of the two out",
    ),
    "a cap of nothing": (lambda: held(loss_cap=0.0), SpecificationError, "loss_cap must be positive"),
    "a cap on deviances without use": (
        lambda: job(evaluation=held(deviance_cap=1.0)),
        SpecificationError,
        "deviance_cap has no use under logistic loss",
    ),
    "a cap without use": (
        lambda: job(evaluation=held(error_cap=1.0)),
        SpecificationError,
        "error_cap has no use under logistic loss",
    ),
    "a balance of numbers": (
        lambda: job("squared", evaluation=held(class_balance=0.1)),
        SpecificationError,
        "leave class_balance out",
    ),
    "a balance without privacy": (
        lambda: job(epsilon=None, evaluation=held(class_balance=0.1)),
        PrivacyError,
        "leave it out",
    ),
    "a label without bounds": (
        lambda: make_plan(
            vfl.Job(
                partition=PARTITION,
                loss="huber",
                bounds=BOUNDS,
                evaluation=vfl.Evaluation(holdout=0.2),
                privacy=vfl.Privacy(epsilon=1.0),
                solver=vfl.SkGD(clip=1.0),
            ),
            N,
        ),
        SpecificationError,
        "declare bounds for the label, or give error_cap",
    ),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_errors_name_the_problem(case: Any) -> None:
    make, kind, said = case
    with pytest.raises(kind, match=said):
        make()


def test_a_job_file_holds_all_options(tmp_path: Path) -> None:
    spec = job(evaluation=held(diagnostics=True, epsilon=0.5, loss_cap=3.0))
    (tmp_path / "job.toml").write_text(spec.to_toml(), encoding="utf-8")
    again, _ = vfl.Job.from_toml(str(tmp_path / "job.toml"))
    assert again == spec
    assert again.digest == spec.digest != job().digest
    assert job(evaluation=held()) == job()


def test_a_measure_that_may_be_perfect_is_too_noisy_to_tell() -> None:
    assert estimates.Estimate(0.0, 1.0, baseline=4.2, best=0.0, cap=9.0, within=(0.0, 2.0)).too_noisy
    assert estimates.Estimate(0.9, 0.7, baseline=4.8, best=0.0, cap=9.0, within=(0.0, 2.8)).too_noisy
    assert not estimates.Estimate(1.0, 0.1, baseline=4.2, best=0.0).too_noisy
    assert not estimates.Estimate(0.0, 0.0, baseline=4.2, best=0.0).too_noisy  # exact
    assert not estimates.Estimate(
        0.0, 0.01, baseline=0.3, best=0.0, within=(0.0, 0.02)
    ).too_noisy  # a rate, such as fpr
    assert estimates.Estimate(
        1.0, 0.2, baseline=0.5, within=(0.8, 1.0)
    ).too_noisy  # the end of the range cuts the interval
    ruled = {flag: estimates.Estimate(0.9, 0.5 * (not flag), baseline=0.5, withheld=flag) for flag in (False, True)}
    assert [own.too_noisy for own in ruled.values()] == [False, True]  # a rule of other releases decides
    findings = estimates.Findings({str(flag): own for flag, own in ruled.items()}, 9, "")
    assert estimates.Findings.from_dict(json.loads(json.dumps(findings.to_dict()))) == findings


def test_baselines_that_noise_moves_by_more_than_a_tenth_are_left_out() -> None:
    """Those that merely stand out from the noise are too large on average."""
    rng = np.random.default_rng(0)
    statistic = Residuals(loss_of("squared"), 100.0, (1 << 10,) * 4, constant=0.0)
    n, truth = 1000, np.array([0.05, 0.004, 0.06, 0.006])
    exact = truth * np.array(statistic.steps) * GRID * n
    for sigma, shown in (
        (truth[2] * (1 << 10) * GRID * n / 4.0, False),
        (truth[2] * (1 << 10) * GRID * n / 40.0, True),
    ):
        found = [
            estimates.residuals(exact + rng.normal(0, sigma, 4), statistic, n, sigma)["mae"].baseline for _ in range(50)
        ]
        assert (sum(one is not None for one in found) > 25) == shown
        values = [one for one in found if one is not None]
        assert not values or np.mean(values) == pytest.approx(6.0, rel=0.1)


def test_a_measure_of_cut_amounts_says_so_wherever_it_is_shown() -> None:
    own = estimates.Estimate(0.5, 0.01, best=0.0, cap=2.7726)
    findings = estimates.Findings({"loss": own, "rmse": replace(own, cap=12.0), "d2": replace(own, best=1.0)}, 9, "")
    for shown in (str(findings), findings._repr_html_().replace("&#x27;", "'").replace("&#39;", "'")):
        assert "loss (each record's at most 2.77)" in shown
        assert "rmse (each record's error at most 12)" in shown
        assert "d2 (each record's deviance at most 2.77)" in shown
    assert estimates.Findings.from_dict(json.loads(json.dumps(findings.to_dict()))) == findings


def _bounded(seed: int, n_records: int, bound: float) -> tuple[Any, estimates.Findings]:
    """Return labels with unit errors around a line, and the measures of a run that declares −bound and bound for them."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": rng.uniform(-1, 1, n_records)})
    frame["y"] = 2.0 * frame["a"] + rng.normal(size=n_records)
    spec = vfl.Job(
        partition=vfl.FeaturePartition({"p": ["a"]}, ("p", "y")),
        bounds={"a": (-1, 1), "y": (-bound, bound)},
        loss="squared",
        evaluation=vfl.Evaluation(holdout=0.5),
        privacy=vfl.Privacy(epsilon=4.0, delta=1e-6, noise=vfl.SeededNoise(1)),
    )
    return frame["y"], vfl.train(spec, frame, at=vfl.InProcess(num_cpus=1)).findings["held out"]


def test_errors_are_cut_where_their_released_sizes_end() -> None:
    """Bounds 200 times too wide: the noise of the errors is that of a cap near the errors, and wide bounds tell nothing."""
    _, found = _bounded(8, 8000, 400)
    rmse = found.measures["rmse"]
    assert 2.0 < rmse.cap < 100.0
    assert rmse.interval[1] - rmse.interval[0] < 1.0
    assert not rmse.too_noisy
    assert "[-400, 400]" in found.note


def test_labels_at_their_bounds_are_counted() -> None:
    labels, findings = _bounded(9, 4000, 1)
    found = findings.measures["at_bounds"]
    assert found.interval[0] < (abs(labels) >= 1).mean() < found.interval[1]
    assert found.interval[1] - found.interval[0] < 0.2
