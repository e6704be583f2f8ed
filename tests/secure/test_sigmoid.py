"""The Fourier sigmoid: its table is recomputed and its bounds are proven on grids, not trusted."""

from __future__ import annotations

import math

import flint
import numpy as np
import pytest
from scipy.optimize import linprog

from vfl.secure import sigmoid
from vfl.secure.sigmoid import SERIES

PLACES = range(len(SERIES))


def pi(series, v):
    """Return π(v)."""
    f = np.arange(1, series.terms + 1)
    return np.sin(2 * np.pi * np.multiply.outer(v, f) / series.period) @ (np.array(series.coefficients) * 2.0**-30)


def curvature(series) -> float:
    """Return a bound on |π″| + |σ″|: between points h apart, |f| exceeds its largest value on them by at most h²/8 times it."""
    f = np.arange(1, series.terms + 1)
    return float(np.abs(series.coefficients) @ (2 * np.pi * f / series.period) ** 2 * 2.0**-30) + 0.1


@pytest.mark.parametrize("place", PLACES)
def test_the_stated_error_and_maximum_hold_between_the_points_of_a_grid(place):
    series = SERIES[place]
    v = np.linspace(0.0, series.period / 2, 20001)
    slack = (v[1] - v[0]) ** 2 / 8 * curvature(series) + 1e-12
    assert abs(pi(series, v)).max() + slack <= series.largest
    v = np.linspace(0.0, series.margin, 20001)
    slack = (v[1] - v[0]) ** 2 / 8 * curvature(series) + 1e-12
    found = abs(pi(series, v) - (1 / (1 + np.exp(-v)) - 0.5)).max()
    assert found + slack <= series.error
    assert found >= 0.98 * series.error


@pytest.mark.parametrize("place", PLACES)
def test_no_series_of_its_terms_and_period_is_better(place):
    """Solve the linear programme again, on a coarser grid."""
    series = SERIES[place]
    f = np.arange(1, series.terms + 1)
    inside, outside = np.linspace(0, series.margin, 400), np.linspace(series.margin, series.period / 2, 200)
    A, B = (np.sin(2 * np.pi * np.outer(v, f) / series.period) for v in (inside, outside))
    target, one, none = 1 / (1 + np.exp(-inside)) - 0.5, np.ones((400, 1)), np.zeros((200, 1))
    left = np.vstack([np.hstack([A, -one]), np.hstack([-A, -one]), np.hstack([B, none]), np.hstack([-B, none])])
    right = np.concatenate([target, -target, np.full(400, 0.501)])
    cost = np.append(np.zeros(series.terms), 1.0)
    best = linprog(cost, A_ub=left, b_ub=right, bounds=[(None, None)] * series.terms + [(0, None)]).fun
    assert best <= series.error <= 1.01 * best + 2e-6


def test_the_fine_sine_is_rounded_right_and_no_entry_is_near_a_half():
    table = sigmoid.fine_sine()
    a = np.arange(sigmoid.ANGLES)
    assert (table == -table[(-a) % sigmoid.ANGLES]).all()
    assert (table[: 2**15] == table[2**15 - a[: 2**15]]).all()
    least = 1.0
    for angle in range(1, 2**14):
        distance = float(flint.arb(2) ** 30 * (flint.arb(angle) / 2**15).sin_pi() - int(table[angle]))
        least = min(least, 0.5 - abs(distance))
    assert least > 2.0**-20, "a sine with an error of 2^-50 would give another table"


@pytest.mark.parametrize("place", PLACES)
def test_products_of_tables_stay_within_the_rounding_and_the_bound(place):
    series = SERIES[place]
    left, right = sigmoid.responses(place).astype(np.int64), sigmoid.fourier_terms(series.terms).astype(np.int64)
    rng = np.random.default_rng(place)
    δ, ρ = rng.integers(0, 2**16, (2, 200_000))
    found = (left[δ] * right[ρ]).sum(axis=1)
    exact = pi(series, ((δ - ρ) % 2**16) * (series.period / 2**16))
    assert abs(found * 2.0**-26 - exact).max() <= series.rounding
    assert abs(found).max() + 2**25 <= sigmoid.residual_bound([place]) <= sigmoid.residual_bound()


def test_the_bound_of_a_run_is_that_of_its_worst_series():
    assert sigmoid.residual_bound([0]) < sigmoid.residual_bound([0, 6]) == sigmoid.residual_bound([6])
    assert sigmoid.residual_bound() == max(sigmoid.residual_bound([place]) for place in PLACES)


def test_series_are_chosen_by_margin():
    assert [SERIES[sigmoid.chosen(needed)].margin for needed in (0, 4, 4.1, 8, 9, 23, 1e9)] == [4, 4, 6, 8, 12, 24, 24]
    assert SERIES[sigmoid.chosen(7)].terms == 6
    assert SERIES[sigmoid.chosen(7, fine=True)].terms == 8


def test_clamped_parts_stay_within_the_margin_and_certain_records_stay_certain():
    """A margin clamped to V keeps its sign; clamped to L/2 its residual is that of no decision; unclamped its sign flips."""
    series = SERIES[2]
    reaches = {"a": 30.0, "b": 7.0}
    clamps = sigmoid.clamps(series.margin, reaches)
    assert math.fsum(clamps.values()) == pytest.approx(series.margin)
    assert sigmoid.clamps(series.margin, {"a": 3.0, "b": 5.0}) == {"a": None, "b": None}
    assert pi(series, np.array([series.margin]))[0] > 0.49
    assert abs(pi(series, np.array([series.period / 2]))[0]) < 1e-9
    assert pi(series, np.array([0.5 * series.period + 4.0]))[0] < -0.4


def test_the_error_adds_up():
    series = SERIES[2]
    assert sigmoid.error(series, 2, 0.0) == pytest.approx(series.error + series.rounding + 2 * 24 / 2**19)
    assert sigmoid.error(series, 2, 8.0) - sigmoid.error(series, 2, 0.0) == pytest.approx(8.0 / 2**17)
