"""Calibration and lift from histograms of scores: exact without noise, with stated errors under noise."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.metrics import confusion_matrix, precision_score

from vfl.measures.confusion import calibration, points
from vfl.measures.estimates import Estimate, Findings, Histogram
from vfl.queries.statistics import GRID, Scores


def scored(n: int = 20_000, share: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    margins = 1.5 * rng.normal(size=n) + share
    return margins, np.where(rng.random(n) < expit(margins), 1.0, -1.0)


def histogram(
    margins: np.ndarray, y: np.ndarray, edges: np.ndarray, sigma: float = 0.0, seed: int = 0, *, logistic: bool = True
) -> Histogram:
    statistic = Scores(edges)
    counts = statistic(margins, y) * GRID + sigma * np.random.default_rng(seed).normal(size=statistic.dimension)
    return Histogram.of(edges, counts, sigma, logistic=logistic)


EDGES = np.linspace(-3.0, 3.0, 11)


def test_a_calibrated_model_agrees_and_another_does_not() -> None:
    margins, y = scored()
    assert all(b.agrees for b in calibration(histogram(margins, y, EDGES), len(y)))
    off = calibration(histogram(margins + 1.0, y, EDGES), len(y))
    assert sum(not b.agrees for b in off) >= len(off) - 3


def test_bins_are_the_exact_shares_without_noise() -> None:
    margins, y = scored(2000)
    for b in calibration(histogram(margins, y, EDGES), len(y)):
        inside = (expit(margins) > b.low) & (expit(margins) <= b.high)
        assert b.records == pytest.approx(inside.sum())
        assert b.share.value == pytest.approx((y[inside] > 0).mean(), abs=1e-12)


def test_measures_below_their_noise_are_left_out() -> None:
    margins, y = scored(200)
    drowned = histogram(margins, y, EDGES, sigma=1e4)
    assert calibration(drowned, 200) == ()
    assert {p.tpr or p.precision or p.lift for p in points(drowned, 200)} == {None}
    assert calibration(histogram(margins, y, EDGES, logistic=False), 200) == ()  # margins are no log-odds
    assert points(histogram(margins, y, EDGES, logistic=False), 200)[-1].threshold == EDGES[0]


def test_points_are_scikit_learns_without_noise() -> None:
    """A record whose margin is the threshold is predicted negative, as by `Result.predict`."""
    margins, y = scored(3000)
    margins[:5] = EDGES[4]
    for p in points(histogram(margins, y, EDGES), len(y)):
        flagged = margins > logit(p.threshold) + 1e-12
        (tn, fp), (fn, tp) = confusion_matrix(y > 0, flagged)
        assert p.flagged.value == pytest.approx(flagged.mean())
        assert (p.tpr.value, p.fpr.value) == (pytest.approx(tp / (tp + fn)), pytest.approx(fp / (fp + tn)))
        assert p.precision.value == pytest.approx(precision_score(y > 0, flagged))
        assert p.lift.value == pytest.approx(p.precision.value / (y > 0).mean())


def test_no_noise_makes_them_fail() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        m, n = int(rng.integers(1, 8)), int(rng.integers(1, 1000))
        counts = rng.normal(scale=10 ** rng.uniform(-2, 4), size=(2, m + 1))
        h = Histogram.of(np.sort(rng.normal(size=m)), counts.ravel(), float(10 ** rng.uniform(-3, 3)), logistic=True)
        found = [b.share for b in calibration(h, n)]
        for p in points(h, n):
            found += [e for e in (p.flagged, p.tpr, p.fpr, p.precision) if e is not None]
            assert p.lift is None or math.isfinite(p.lift.interval[1])
        assert all(0.0 <= e.interval[0] <= e.value <= e.interval[1] <= 1.0 for e in found)


def test_findings_keep_the_histogram() -> None:
    margins, y = scored(100)
    h = histogram(margins, y, EDGES, 2.0)
    found = Findings({"auc": Estimate(0.8, 0.1)}, 100, "noisy", histogram=h)
    again = Findings.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again == found
    assert again.histogram == h
    assert "histogram" not in Findings({}, 1, "").to_dict()
    with pytest.raises(ValueError, match="one bin more than edges"):
        Histogram.from_dict({**h.to_dict(), "negative": [1.0]})
