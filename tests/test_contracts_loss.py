"""The contract of a loss, held to by every registered one: derivative, curvature and slope are what they claim."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import FrozenInstanceError

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfl.errors import SpecificationError
from vfl.losses import LOSSES, Logistic, Squared, loss_of

EACH = pytest.mark.parametrize("loss", [kind() for kind in LOSSES.values()], ids=lambda loss: loss.name)
BOUNDED = pytest.mark.parametrize(
    "loss", [kind() for kind in LOSSES.values() if kind().slope < math.inf], ids=lambda loss: loss.name
)


def _labels(loss, n, rng):
    return rng.choice([-1.0, 1.0], n) if loss.classification else 3.0 * rng.standard_normal(n)


def _points(loss, n=4000, spread=6.0):
    rng = np.random.default_rng(11)
    return spread * rng.standard_normal(n), _labels(loss, n, rng)


@EACH
def test_derivative_is_that_of_the_value(loss):
    v, y = _points(loss)
    h = 1e-4
    slopes = (loss.value(v + h, y) - loss.value(v - h, y)) / (2 * h)
    np.testing.assert_allclose(loss.derivative(v, y), slopes, atol=1e-7, rtol=1e-7)


@EACH
def test_curvature_is_the_largest_second_derivative(loss):
    v, y = _points(loss, spread=2.0)
    h = 1e-3
    second = (loss.derivative(v + h, y) - loss.derivative(v - h, y)) / (2 * h)
    assert 0 < loss.curvature < math.inf
    assert second.min() >= -1e-9, "convex"
    assert second.max() <= loss.curvature * (1 + 1e-9), "a step of 1/M would be too long"
    assert second.max() >= loss.curvature * (1 - 1e-3), "a step of 1/M would be needlessly short"


@EACH
@settings(deadline=None)
@given(a=st.floats(-50, 50), b=st.floats(-50, 50), y=st.floats(-50, 50))
def test_derivative_is_lipschitz_between_any_two_points(loss, a, b, y):
    y = math.copysign(1.0, y) if loss.classification else y
    at = loss.derivative(np.array([a, b]), np.array([y, y]))
    assert abs(at[0] - at[1]) <= loss.curvature * abs(a - b) + 1e-12


@BOUNDED
def test_slope_bounds_the_derivative_wherever_it_is_taken(loss):
    far = np.concatenate([-np.logspace(-8, 300, 400), [0.0], np.logspace(-8, 300, 400)])
    for y in (-1.0, 1.0) if loss.classification else (-1e3, 0.0, 1e3):
        r = loss.derivative(far, np.full_like(far, y))
        assert np.isfinite(r).all()
        assert abs(r).max() <= loss.slope
        assert abs(r).max() >= 0.999 * loss.slope, "noise would be larger than it needs to be"


@EACH
def test_an_infinite_slope_is_not_claimed_for_a_bounded_derivative(loss):
    if loss.slope < math.inf:
        assert loss.slope > 0
        return
    r = loss.derivative(np.array([0.0, 1e3, 1e6]), np.full(3, 1.0))
    assert (np.diff(abs(r)) > 100).all()


@BOUNDED
def test_value_neither_overflows_nor_loses_small_losses(loss):
    far = np.array([-1e300, -800.0, 0.0, 800.0, 1e300])
    for y in (-1.0, 1.0):
        value = loss.value(far, np.full_like(far, y))
        assert np.isfinite(value).all()
        assert (value >= 0).all()


@EACH
def test_vectors_keep_their_shape_and_are_not_written_to(loss):
    v, y = _points(loss, n=7)
    before = v.copy(), y.copy()
    for vector in (loss.value(v, y), loss.derivative(v, y)):
        assert vector.shape == (7,)
        assert vector.dtype == np.float64
        assert not np.shares_memory(vector, v)
        assert not np.shares_memory(vector, y)
    np.testing.assert_array_equal((v, y), before)
    v.flags.writeable = y.flags.writeable = False  # as they come out of an object store
    loss.derivative(v, y)
    assert loss.value(v[:0], y[:0]).shape == (0,)


@EACH
def test_a_record_does_not_depend_on_its_neighbours(loss):
    v, y = _points(loss, n=50)
    alone = np.concatenate([loss.derivative(v[i : i + 1], y[i : i + 1]) for i in range(50)])
    np.testing.assert_array_max_ulp(loss.derivative(v, y), alone, maxulp=2)


@EACH
def test_a_loss_is_a_frozen_value(loss):
    assert loss == type(loss)() == copy.deepcopy(loss) == pickle.loads(pickle.dumps(loss))  # noqa: S301  # our own
    assert hash(loss) == hash(type(loss)())
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
        loss.slope = 0.0


@EACH
def test_names_lead_to_losses(loss):
    assert loss_of(loss.name) == loss
    assert loss_of(loss) is loss
    assert LOSSES[loss.name] is type(loss)


@pytest.mark.parametrize(
    ("name", "said"),
    [("logistik", "did you mean 'logistic'"), ("hinge", "known: logistic, squared"), ("", "unknown loss ''")],
)
def test_an_unknown_name_gets_the_near_and_the_known_ones(name, said):
    with pytest.raises(SpecificationError, match=said):
        loss_of(name)


def test_squared_is_scikit_learns_half_squared_error():
    v, y = _points(Squared())
    np.testing.assert_allclose(Squared().value(v, y), (v - y) ** 2 / 2)
    np.testing.assert_array_equal(Squared().derivative(v, y), v - y)


@pytest.mark.parametrize("v", [-700.0, -40.0, -1.0, -1e-9, 0.0, 0.3, 36.0, 700.0])
@pytest.mark.parametrize("y", [-1.0, 1.0])
def test_logistic_to_the_last_digits(v, y):
    with mpmath.workdps(400):
        value = float(mpmath.log1p(mpmath.exp(-y * mpmath.mpf(v))))
        derivative = float(-y / (1 + mpmath.exp(y * mpmath.mpf(v))))
    at, label = np.array([v]), np.array([y])
    np.testing.assert_allclose(Logistic().value(at, label), value, rtol=4e-15)
    np.testing.assert_allclose(Logistic().derivative(at, label), derivative, rtol=4e-15)
