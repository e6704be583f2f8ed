"""Calibration and lift from histograms of scores: exact without noise, with stated errors under noise."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.special import expit

from vfl.evaluation.curves import Histogram, calibration, gains
from vfl.evaluation.estimates import Estimate, Findings
from vfl.evaluation.statistics import GRID, Scores


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
    assert all(b.agrees for b in calibration(histogram(margins, y, EDGES)))
    off = calibration(histogram(margins + 1.0, y, EDGES))
    assert sum(not b.agrees for b in off) >= len(off) - 2


def test_bins_are_the_exact_shares_without_noise() -> None:
    margins, y = scored(2000)
    for b in calibration(histogram(margins, y, EDGES)):
        inside = (expit(margins) >= b.low) & (expit(margins) < b.high)
        assert b.records == inside.sum()
        assert b.share == pytest.approx((y[inside] > 0).mean(), abs=1e-12)


def test_bins_below_their_noise_are_left_out() -> None:
    margins, y = scored(200)
    assert calibration(histogram(margins, y, EDGES, sigma=1e4)) == ()
    assert gains(histogram(margins, y, EDGES, sigma=1e4)) == ()
    assert calibration(histogram(margins, y, EDGES, logistic=False)) == ()  # margins are no log-odds
    assert gains(histogram(margins, y, EDGES, logistic=False))


@pytest.mark.parametrize("what", ["share", "captured"])
def test_errors_have_the_stated_size(what: str) -> None:
    """Fresh noise on the same records: errors over the stated noise have a standard deviation of about one."""
    margins, y = scored(6000, share=-1.0)
    sigma = 15.0

    def values(h: Histogram) -> dict[float, tuple[float, float]]:
        found = calibration(h) if what == "share" else gains(h)
        return {getattr(f, "low", 0.0) + getattr(f, "top", 0.0): (getattr(f, what), f.error) for f in found}

    exact = values(histogram(margins, y, EDGES))
    ratios: dict[float, list[float]] = {}
    for seed in range(300):
        for key, (value, error) in values(histogram(margins, y, EDGES, sigma, seed)).items():
            noise = math.sqrt(max(error**2 - exact[key][1] ** 2, 1e-12))
            if exact[key][0] not in (0.0, 1.0):
                ratios.setdefault(key, []).append((value - exact[key][0]) / noise)
    whole = {key: found for key, found in ratios.items() if len(found) == 300 and 0.02 < exact[key][0] < 0.98}
    assert len(whole) >= 5
    assert 0.5 < np.median([np.std(found) for found in whole.values()]) < 1.5


def test_gains_rise_to_the_whole_and_match_a_sorted_list() -> None:
    margins, y = scored()
    fine = gains(histogram(margins, y, np.linspace(-5, 5, 201)))
    assert [g.top for g in fine] == [k / 10 for k in range(1, 11)]
    assert fine[-1].captured == 1.0
    order = np.argsort(-margins)
    for g in fine:
        top = order[: int(g.top * len(y))]
        assert g.captured == pytest.approx((y[top] > 0).sum() / (y > 0).sum(), abs=5e-3)
        assert g.lift == pytest.approx(g.captured / g.top)


def test_no_noise_makes_them_fail() -> None:
    rng = np.random.default_rng(1)
    for _ in range(500):
        m = int(rng.integers(1, 8))
        counts = rng.normal(scale=10 ** rng.uniform(-2, 4), size=(2, m + 1))
        h = Histogram.of(np.sort(rng.normal(size=m)), counts.ravel(), float(10 ** rng.uniform(-3, 3)), logistic=True)
        for b in calibration(h):
            assert 0.0 <= b.share <= 1.0
            assert b.error >= 0.0
        for g in gains(h):
            assert 0.0 <= g.captured <= 1.0
            assert math.isfinite(g.error)


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
