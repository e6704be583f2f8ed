"""Contract of every registered loss: derivative, curvature and slope are as claimed."""

from __future__ import annotations

import copy
import math
import pickle
import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_tweedie_deviance

from vfl.base import losses
from vfl.base.losses import (
    LOSSES,
    ClassWeighted,
    Gamma,
    Hinge,
    Huber,
    Logistic,
    Poisson,
    Power,
    SmoothedHinge,
    Squared,
    Tweedie,
    loss_of,
)
from vfl.errors import SpecificationError

WITH_OPTIONS = (
    Huber(0.3),
    Poisson(1.0),
    SmoothedHinge(2.0),
    ClassWeighted("logistic", negative=0.5, positive=3.0),
    ClassWeighted("hinge", positive=2.0),
    Gamma(-1.0, 1.0, 3.0),
    Tweedie(-1.0, 1.0, 3.0),
    Tweedie(-1.0, 1.0, 3.0, power=1.9),
)
SINGLE = tuple(kind for name, kind in LOSSES.items() if name != "multinomial")
"""Losses of one margin per record; tests/solvers/test_multinomial.py has the other."""
LISTED = (*(kind().declared(6.7) for kind in SINGLE if not issubclass(kind, Power)), *WITH_OPTIONS)
"""The constants of Power depend on the largest label, which no default declares."""
EACH = pytest.mark.parametrize("loss", LISTED, ids=repr)
SMOOTH = pytest.mark.parametrize("loss", [loss for loss in LISTED if loss.curvature < math.inf], ids=repr)
KINKED = pytest.mark.parametrize("loss", [loss for loss in LISTED if loss.curvature == math.inf], ids=repr)
BOUNDED = pytest.mark.parametrize("loss", [loss for loss in LISTED if loss.slope < math.inf], ids=repr)
DEFAULT = pytest.mark.parametrize("loss", [kind() for kind in SINGLE], ids=lambda loss: loss.name)
KINKS = 1e-3
"""How near to a kink of ℓ or of ℓ' finite differences are not taken."""


def _labels(loss, n, rng):
    return rng.choice([-1.0, 1.0], n) if loss.classification else 3.0 * rng.standard_normal(n)


def _points(loss, n=4000, spread=6.0):
    """Margins at random and near the points where a derivative of some loss jumps or ends; never at these points."""
    rng = np.random.default_rng(11)
    v, y = spread * rng.standard_normal(n), _labels(loss, n, rng)
    ends = [1.0, -1.0, 0.5, -0.5, 3.0, 0.0, *(y[:3] + 1.35), *(y[3:6] - 1.35)][: n // 2]
    v[: len(ends)] = np.array(ends) - 4 * KINKS
    near = np.zeros(n, bool)
    for width in (getattr(loss, "width", 0.0) or 1.35, 0.0):
        for kink in (1.0 - width, y + width, y - width, -(1.0 - width), 1.0, -1.0, getattr(loss, "margin", 1.0)):
            near |= abs(v - kink) < KINKS
    return np.where(near, v + 2 * KINKS, v), y


@EACH
def test_derivative_is_that_of_the_value(loss):
    v, y = _points(loss)
    h = 1e-4
    slopes = (loss.value(v + h, y) - loss.value(v - h, y)) / (2 * h)
    np.testing.assert_allclose(loss.derivative(v, y), slopes, atol=1e-7, rtol=1e-7)


@SMOOTH
def test_curvature_is_the_largest_second_derivative(loss):
    v, y = _points(loss, spread=2.0)
    h = 1e-3
    second = (loss.derivative(v + h, y) - loss.derivative(v - h, y)) / (2 * h)
    assert 0 < loss.curvature < math.inf
    assert second.min() >= -1e-9, "convex"
    assert second.max() <= loss.curvature * (1 + 1e-9), "a step of 1/M would be too long"
    assert second.max() >= loss.curvature * (1 - 1e-2), "a step of 1/M would be needlessly short"


@KINKED
def test_a_loss_without_curvature_has_a_jump_in_its_derivative(loss):
    y = np.ones(2)
    at = loss.derivative(np.array([1.0 - 1e-12, 1.0 + 1e-12]), y)
    assert abs(at[0] - at[1]) > 0.5
    assert loss.derivative(np.ones(1), y[:1]) <= 0.0, "a subgradient at the kink"


@EACH
@settings(max_examples=50, deadline=None)
@given(a=st.floats(-50, 50), b=st.floats(-50, 50), y=st.floats(-50, 50))
def test_a_loss_is_convex(loss, a, b, y):
    y = math.copysign(1.0, y) if loss.classification else y
    value = loss.value(np.array([a, (a + b) / 2, b]), np.full(3, y))
    assert value[1] <= (value[0] + value[2]) / 2 + 1e-9 * (1 + abs(value).max())
    below = loss.value(np.array([a]), np.array([y])) + loss.derivative(np.array([a]), np.array([y])) * (b - a)
    assert value[2] >= below - 1e-9 * (1 + abs(below)), "the derivative is a subgradient"


@SMOOTH
@settings(max_examples=50, deadline=None)
@given(a=st.floats(-50, 50), b=st.floats(-50, 50), y=st.floats(-50, 50))
def test_derivative_is_lipschitz_between_any_two_points(loss, a, b, y):
    y = math.copysign(1.0, y) if loss.classification else y
    at = loss.derivative(np.array([a, b]), np.array([y, y]))
    assert abs(at[0] - at[1]) <= loss.curvature * abs(a - b) + 1e-12


@BOUNDED
def test_slope_bounds_the_derivative_wherever_it_is_taken(loss):
    far = np.concatenate([-np.logspace(-8, 300, 400), [0.0], np.logspace(-8, 300, 400)])
    largest = []
    for y in (-1.0, 1.0) if loss.classification else (-1e3, 0.0, 1e3):
        r = loss.derivative(far, np.full_like(far, y))
        assert np.isfinite(r).all()
        largest.append(abs(r).max())
    assert max(largest) <= loss.slope
    assert max(largest) >= 0.999 * loss.slope, "noise would be larger than it needs to be"


@EACH
def test_an_infinite_slope_is_not_claimed_for_a_bounded_derivative(loss):
    if loss.slope < math.inf:
        assert loss.slope > 0
        return
    r = loss.derivative(np.zeros(3), np.array([1.0, 1e3, 1e6]))
    assert (np.diff(abs(r)) > 100).all()


@pytest.mark.parametrize("loss", [x for x in LISTED if x.slope < math.inf and not isinstance(x, Power)], ids=repr)
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
    v.flags.writeable = y.flags.writeable = False  # read-only, as they come from an object store
    loss.derivative(v, y)
    assert loss.value(v[:0], y[:0]).shape == (0,)


@EACH
def test_a_record_does_not_depend_on_its_neighbours(loss):
    v, y = _points(loss, n=50)
    alone = np.concatenate([loss.derivative(v[i : i + 1], y[i : i + 1]) for i in range(50)])
    np.testing.assert_array_max_ulp(loss.derivative(v, y), alone, maxulp=2)


@EACH
def test_the_response_is_where_the_derivative_is_zero(loss):
    if loss.classification:
        return
    v = np.linspace(-3.0, 0.9, 50)
    np.testing.assert_allclose(loss.derivative(v, loss.response(v)), 0.0, atol=1e-12)


@DEFAULT
def test_a_loss_is_a_frozen_value(loss):
    assert loss == type(loss)() == copy.deepcopy(loss) == pickle.loads(pickle.dumps(loss))  # noqa: S301  # our own
    assert hash(loss) == hash(type(loss)())
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
        loss.slope = 0.0


@DEFAULT
def test_losses_are_found_by_name(loss):
    assert loss_of(loss.name) == loss
    assert loss_of(loss) is loss
    assert LOSSES[loss.name] is type(loss)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_in_reports_and_in_the_tables_of_the_docs(name):
    docs = Path(__file__).parents[2] / "docs"
    assert LOSSES[name].words, f"{name}: plans and reports need `words`"
    assert f"| {name} |" in losses.__doc__, f"add {name} to the table of vfl/base/losses.py"
    assert f"`{name}`" in (docs / "choosing.md").read_text(encoding="utf-8"), f"docs/choosing.md does not name {name}"
    row = next(
        (row for row in (docs / "mathematics.md").read_text(encoding="utf-8").splitlines() if _is_row(row, name)), ""
    )
    assert row, f"docs/mathematics.md has no row of {name}"


def _is_row(line, name):
    return line.startswith("| ") and re.search(rf"\b{name.replace('_', ' ')}\b", line.split("|")[1]) is not None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("logistik", "did you mean 'logistic'"),
        ("l2", "known: class_weighted, gamma, hinge, huber"),
        ("", "unknown loss ''"),
    ],
)
def test_an_unknown_name_suggests_near_and_known_ones(name, said):
    with pytest.raises(SpecificationError, match=said):
        loss_of(name)


def test_squared_is_scikit_learns_half_squared_error():
    v, y = _points(Squared())
    np.testing.assert_allclose(Squared().value(v, y), (v - y) ** 2 / 2)
    np.testing.assert_array_equal(Squared().derivative(v, y), v - y)


@pytest.mark.parametrize("v", [-700.0, -40.0, -1.0, -1e-9, 0.0, 0.3, 36.0, 700.0])
@pytest.mark.parametrize("y", [-1.0, 1.0])
def test_logistic_is_accurate_to_the_last_digits(v, y):
    with mpmath.workdps(400):
        value = float(mpmath.log1p(mpmath.exp(-y * mpmath.mpf(v))))
        derivative = float(-y / (1 + mpmath.exp(y * mpmath.mpf(v))))
    at, label = np.array([v]), np.array([y])
    np.testing.assert_allclose(Logistic().value(at, label), value, rtol=4e-15)
    np.testing.assert_allclose(Logistic().derivative(at, label), derivative, rtol=4e-15)


def test_huber_is_squared_loss_near_and_linear_far():
    v, y = _points(Squared())
    near, loss = abs(v - y) <= 1.35, Huber()
    np.testing.assert_allclose(loss.value(v, y)[near], Squared().value(v, y)[near])
    np.testing.assert_allclose(loss.value(v, y)[~near], 1.35 * abs(v - y)[~near] - 1.35**2 / 2)
    np.testing.assert_allclose(Huber(1e9).derivative(v, y), v - y)


@pytest.mark.parametrize("loss", [Gamma(-2.0, 2.0, 9.0), Tweedie(-2.0, 2.0, 9.0, power=1.3)], ids=repr)
def test_power_losses_are_scikit_learns_between_their_ends(loss):
    v, y = np.linspace(-1.9, 1.9, 40), np.linspace(0.1, 9.0, 40)
    for k in range(40):  # equal up to a constant in y
        constant = mean_tweedie_deviance(y[k : k + 1], [1.0], power=loss.power) / 2 - loss.value(
            np.zeros(1), y[k : k + 1]
        )
        half = mean_tweedie_deviance(y[k : k + 1], np.exp(v[k : k + 1]), power=loss.power) / 2
        assert loss.value(v[k : k + 1], y[k : k + 1]) == pytest.approx(half - constant, abs=1e-12)
    slope = loss.derivative(np.array([2.0]), np.array([3.0]))
    np.testing.assert_allclose(loss.derivative(np.array([7.0]), np.array([3.0])), slope)
    np.testing.assert_array_equal(loss.derivative(v, np.full(40, 1e9)), loss.derivative(v, np.full(40, 9.0)))


def test_poisson_is_the_likelihood_below_its_margin_and_a_line_beyond():
    loss, y = Poisson(2.0), np.array([0.0, 3.0, 7.0])
    v = np.array([-1.0, 0.5, 1.9])
    np.testing.assert_allclose(loss.value(v, y), np.exp(v) - y * v)
    np.testing.assert_allclose(loss.derivative(v + 10, y), math.exp(2.0) - y)
    np.testing.assert_array_equal(loss.value(v, np.full(3, -4.0)), loss.value(v, np.zeros(3)))
    assert np.isfinite(loss.value(np.full(1, 1e5), y[:1])).all()


def test_smoothed_hinge_is_near_hinge():
    v, y = _points(Hinge())
    apart = Hinge().value(v, y) - SmoothedHinge(0.4).value(v, y)
    assert apart.min() >= 0.0
    assert apart.max() <= 0.2 + 1e-12


def test_class_weights_multiply_and_are_declared():
    v, y = _points(Logistic(), n=50)
    weighted = ClassWeighted("logistic", negative=0.5, positive=2.0)
    np.testing.assert_allclose(weighted.derivative(v, y), np.where(y > 0, 2.0, 0.5) * Logistic().derivative(v, y))
    assert (weighted.slope, weighted.curvature) == (2.0, 0.5)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Huber(0.0), "huber: width must be positive and finite, not 0.0"),
        (lambda: Huber(math.nan), "huber: width must be positive"),
        (lambda: SmoothedHinge(-1.0), "smoothed_hinge: width must be positive"),
        (lambda: Poisson(math.inf), "poisson: margin must lie between ±50"),
        (lambda: Poisson(51.0), "poisson: margin must lie between ±50"),
        (lambda: Gamma(1.0, 1.0), "gamma: low and high are logarithms"),
        (lambda: Gamma(low=math.nan), "gamma: low and high are logarithms"),
        (lambda: Gamma(largest=0.0), "gamma: largest is the largest label, above 0"),
        (lambda: Tweedie(power=2.0), "tweedie: power lies between 1"),
        (lambda: ClassWeighted(positive=0.0), "class_weighted: positive must be positive"),
        (lambda: ClassWeighted(positive="balanced"), "'balanced' weights are computed from the number of labels"),
        (lambda: ClassWeighted("squared"), "not 'squared'"),
        (lambda: ClassWeighted("class_weighted"), "needs a loss of two classes"),
        (lambda: ClassWeighted("logit"), "not 'logit'"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(make, said):
    with pytest.raises(SpecificationError, match=said):
        make()
