"""Curves on kinds of columns: nothing is invented where no record lies, and knots fit few values and wide bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

import vfl
from tests.benchmarks.curve_shapes import KINDS
from vfl.base.features.curve import edges_of, histogram
from vfl.privacy.gaussian_dp import mu_of
from vfl.solvers.releases.knots import LINE, SHARE, Knots, event_for

N = 3000


@pytest.mark.parametrize(
    ("name", "error", "measure", "most"),
    [
        ("two values, no effect", 0.06, "invented", 0.2),
        ("two values", 0.11, "invented", 0.2),
        ("integers 0 to 5, wide", 0.43, "drawn", 0.3),
        ("200 times too wide", 0.2, "invented", 1.0),
    ],
)
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_a_curve_follows_its_records_and_invents_nothing_elsewhere(
    name: str, error: float, measure: str, most: float, loss: str
) -> None:
    """Means of 4 seeds. Bounds: mean of 4 or 6 seeds with the worse loss, plus three standard errors of a mean of 4.

    Without knots on values and ends near records, means of `invented` are 0.6 to 16, and errors of narrow columns 0.7. Rare
    values in wide bounds are not always told from others (one seed in four): there the curve must be dashed.
    """
    runs = [KINDS[name].run(2.0, seed, N, loss) for seed in (1, 2, 3, 4)]
    assert np.mean([run["error"] for run in runs]) < error
    assert np.mean([run[measure] for run in runs]) < most


def drawn(bounds: tuple[float, float], x: np.ndarray, epsilon: float) -> tuple[Knots, np.ndarray, list[np.ndarray]]:
    """Return the release of the knots of a column, the edges of the histogram's cells, and 40 draws of the histogram."""
    event = event_for(1, mu_of(epsilon, N**-2) * math.sqrt(SHARE), N)
    release = Knots({"a": (("x", vfl.Curve(bounds=bounds)),)}, N, LINE, event)
    edges, rng = edges_of(bounds, release.cells), np.random.default_rng(8)
    return release, edges, [histogram(x, edges) + rng.normal(0, event.sigma, release.cells) for _ in range(40)]


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("name", list(KINDS))
def test_ends_of_a_curve_hold_the_records_and_lie_near_them_where_bounds_are_far(name: str, epsilon: float) -> None:
    """Over draws of the noise."""
    kind, x = KINDS[name], KINDS[name].draw(np.random.default_rng(7), N)
    release, edges, histograms = drawn(kind.bounds, x, epsilon)
    width = float(np.diff(edges).max())
    outside, lost = [], []
    for noisy in histograms:
        first, *inner, last = release.placed((noisy,))["a"][0]
        assert len(inner) <= 3
        assert kind.bounds[0] <= first < last <= kind.bounds[1]
        outside.append(max(x.min() - first, last - x.max()) / width)
        lost.append(float(((x < first - width) | (x > last + width)).mean()))
    assert np.mean(lost) < 0.06
    # At ε = 0.1, one draw in six misses bounds that are 200 times too wide.
    if "two values" in name or (name == "200 times too wide" and epsilon >= 1.0):
        assert np.mean(np.array(outside) > 2) < 0.1


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("name", list(KINDS))
def test_stretches_without_records_are_found_in_a_noisy_histogram(name: str, epsilon: float) -> None:
    """Over draws of the noise, at most a tenth of what is empty is taken for records, and unseen cells hold few."""
    kind, x = KINDS[name], KINDS[name].draw(np.random.default_rng(7), N)
    release, edges, histograms = drawn(kind.bounds, x, epsilon)
    true, width = histogram(x, edges), np.diff(edges)
    wrong, hidden = [], []
    for noisy in histograms:
        stretches = release.seen((noisy,))["x"]
        inside = np.zeros(release.cells, dtype=bool)
        for low, high in stretches:
            inside |= (edges[:-1] >= low) & (edges[1:] <= high)
        wrong.append(width[inside & (true == 0)].sum())
        hidden.append(max(true[~inside], default=0))
    assert np.mean(wrong) <= 0.1 * max(width[true == 0].sum(), width.max())
    assert np.mean(hidden) < 6.0 * release.sigma


def test_a_column_of_few_values_has_its_knots_on_them() -> None:
    release = Knots({"a": (("x", vfl.Curve(bounds=(0, 10))),)}, 1000, LINE, None)
    edges = edges_of((0.0, 10.0), release.cells)

    def knots(values: list[float]) -> tuple[float, ...]:
        return release.placed((histogram(np.repeat(values, 1000 // len(values)), edges).astype(float),))["a"][0]

    half = float(np.diff(edges).max()) / 2
    assert knots([2, 3]) == pytest.approx((2, 3), abs=1.01 * half)
    assert knots([1, 2, 5, 7, 8]) == pytest.approx((1, 2, 5, 7, 8), abs=1.01 * half)
    assert len(knots(list(range(10)))) == 5


def test_ends_of_a_curve_differ_whatever_noise_shows() -> None:
    """Next to 0, cells may have width 0. Under noise, one of them may seem to hold all of a few records."""
    rng, event = np.random.default_rng(3), event_for(3, 0.2, 5)
    for low, high in ((-1.0, 1.0), (0.0, 1e-300), (0.0, 1.0), (-1.0, 1e-300)):
        release = Knots({"a": (("x", vfl.Curve(bounds=(low, high))),)}, 5, LINE, event)
        for _ in range(200):
            ((knots,),) = release.placed((rng.normal(0.0, event.sigma, release.cells).round(),)).values()
            assert release.curves["a"][0][1].at(knots).points[0] < release.curves["a"][0][1].at(knots).points[-1]
