"""Contract of every registered penalty: its prox minimises the prox objective, to the digit."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfl.base.penalties import L1, L2, PENALTIES, Box, ElasticNet, GroupLasso, NoPenalty
from vfl.errors import SpecificationError

INSTANCES = [
    NoPenalty(),
    L1(0.0),
    L1(0.7),
    L2(0.0),
    L2(0.7),
    ElasticNet(0.7),
    ElasticNet(2.0, 0.0),
    ElasticNet(2.0, 1.0),
    ElasticNet(0.3, 0.9),
    Box(),
    Box(low=0.0),
    Box(-1.5, 2.0),
    Box(high=0.0),
    GroupLasso(0.0),
    GroupLasso(0.7),
]
SEPARABLE = pytest.mark.parametrize("penalty", [p for p in INSTANCES if not p.grouped], ids=repr)
GROUPED = pytest.mark.parametrize("penalty", [p for p in INSTANCES if p.grouped], ids=repr)
EACH = pytest.mark.parametrize("penalty", INSTANCES, ids=repr)
STRONG = [kind for kind in PENALTIES.values() if "strength" in {field.name for field in fields(kind)}]

coordinates = st.floats(-20, 20, allow_subnormal=False)
lengths = st.floats(1e-3, 10)


def _at(penalty, w):
    return penalty.value(np.array([w]))


def _inside(penalty, w):
    """Move w into the domain of ψ."""
    return min(max(w, getattr(penalty, "low", -math.inf)), getattr(penalty, "high", math.inf))


def _moreau(penalty, u, v, step):
    return step * _at(penalty, u) + 0.5 * (u - v) ** 2


def _least(penalty, v, step):
    """Minimise sψ(u) + ½(u − v)² by bisection on the sign of its slope, taken from either side."""
    low, high = _inside(penalty, min(v, 0.0) - 1.0), _inside(penalty, max(v, 0.0) + 1.0)
    for _ in range(60):
        third = (high - low) / 3
        if _moreau(penalty, low + third, v, step) <= _moreau(penalty, high - third, v, step):
            high -= third
        else:
            low += third
    return (low + high) / 2


def test_every_registered_penalty_is_covered():
    assert {type(penalty) for penalty in INSTANCES} == set(PENALTIES.values())
    assert all(PENALTIES[penalty.name] is type(penalty) for penalty in INSTANCES)


@EACH
@settings(max_examples=50, deadline=None)
@given(v=coordinates, step=lengths)
def test_prox_is_the_least_point_found_by_brute_force(penalty, v, step):
    (found,) = penalty.prox(np.array([v]), np.array([step]))
    least = _least(penalty, v, step)
    assert found == pytest.approx(least, abs=2e-6)
    assert _moreau(penalty, found, v, step) <= _moreau(penalty, least, v, step) + 1e-13 * (1 + v * v)


@SEPARABLE
@settings(max_examples=50, deadline=None)
@given(v=st.lists(coordinates, min_size=2, max_size=6), step=lengths)
def test_coordinates_do_not_affect_each_other(penalty, v, step):
    v = np.array(v)
    steps = step * np.arange(1.0, len(v) + 1)
    alone = [penalty.prox(v[j : j + 1], steps[j : j + 1])[0] for j in range(len(v))]
    np.testing.assert_array_equal(penalty.prox(v, steps), alone)
    assert penalty.value(v) == pytest.approx(sum(_at(penalty, w) for w in v))


@EACH
@settings(max_examples=50, deadline=None)
@given(a=coordinates, b=coordinates, step=lengths)
def test_prox_contracts_as_the_modulus_of_convexity_says(penalty, a, b, step):
    near, far = penalty.prox(np.array([a, b]), np.array([step, step]))
    assert abs(near - far) <= abs(a - b) / (1 + step * penalty.convexity) + 1e-12


@EACH
@settings(max_examples=50, deadline=None)
@given(a=coordinates, b=coordinates, share=st.floats(0, 1))
def test_convexity_is_a_modulus(penalty, a, b, share):
    a, b = _inside(penalty, a), _inside(penalty, b)
    between = share * a + (1 - share) * b
    chord = share * _at(penalty, a) + (1 - share) * _at(penalty, b)
    assert _at(penalty, between) <= chord - 0.5 * penalty.convexity * share * (1 - share) * (a - b) ** 2 + 1e-9


@EACH
def test_the_modulus_is_the_largest(penalty):
    side = -1.0 if penalty == Box(high=0.0) else 1.0
    bend = _at(penalty, 1.5 * side) - 2 * _at(penalty, side) + _at(penalty, 0.5 * side)
    assert penalty.convexity == pytest.approx(bend / 0.25, abs=1e-12)


@EACH
def test_a_step_of_zero_leaves_a_coordinate_unchanged(penalty):
    v = np.array([-3.0, 0.0, 1e-300, 0.2, 1e8])
    np.testing.assert_array_equal(penalty.prox(v, np.zeros(5)), v)


@EACH
def test_zero_is_a_minimum_and_a_fixed_point(penalty):
    assert penalty.value(np.zeros(3)) == 0.0
    assert isinstance(penalty.value(np.ones(3)), float)
    assert penalty.value(np.array([-1.0, 2.0])) >= 0.0
    np.testing.assert_array_equal(penalty.prox(np.zeros(3), np.full(3, 2.0)), np.zeros(3))


@EACH
def test_arguments_are_not_changed(penalty):
    v, steps = np.array([-3.0, 0.1, 2.0]), np.array([0.5, 1.0, 0.0])
    v.flags.writeable = steps.flags.writeable = False
    found = penalty.prox(v, steps)
    assert found.shape == (3,)
    assert found.dtype == np.float64


@EACH
def test_a_penalty_is_a_frozen_value(penalty):
    twin = pickle.loads(pickle.dumps(penalty))  # noqa: S301  # our own
    assert penalty == twin == copy.deepcopy(penalty)
    assert hash(penalty) == hash(twin)
    name = fields(penalty)[0].name if fields(penalty) else "strength"
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
        setattr(penalty, name, 9.0)


@EACH
def test_it_has_a_repr(penalty):
    shown = penalty.describe()
    assert shown
    if getattr(penalty, "strength", None):
        assert "w" in shown
        assert "nan" not in shown


groups = st.lists(st.tuples(coordinates, lengths), min_size=1, max_size=6)


@GROUPED
@settings(max_examples=50, deadline=None)
@given(group=groups)
def test_prox_of_a_group_meets_the_conditions_of_a_least_point(penalty, group):
    """0 ∈ (u_j − v_j)/s_j + ∂ψ(u) with ψ = λ√m‖u‖: with unequal steps, no threshold of the norm satisfies it."""
    v, steps = np.array(group).T.copy()
    u = penalty.prox(v, steps)
    pull, strength = (v - u) / steps, penalty.strength * math.sqrt(v.size)
    length = np.linalg.norm(u)
    assert np.linalg.norm(pull) <= strength * (1 + 1e-9) + 1e-9
    if length > 1e-6:
        np.testing.assert_allclose(pull, strength * u / length, rtol=0, atol=1e-8 * (1 + strength))


@GROUPED
@settings(deadline=None, max_examples=30)
@given(group=groups, seed=st.integers(0, 2**32))
def test_nothing_near_the_prox_of_a_group_is_less(penalty, group, seed):
    v, steps = np.array(group).T.copy()

    def moreau(u):
        return penalty.value(u) + float(((u - v) ** 2 / (2 * steps)).sum())

    u = penalty.prox(v, steps)
    rng = np.random.default_rng(seed)
    for size in (1e-3, 1e-1, 10.0):
        for _ in range(20):
            assert moreau(u) <= moreau(u + size * rng.normal(size=u.size)) + 1e-9


@GROUPED
@pytest.mark.parametrize("share", [1e-320, 1e-20, 1e-16, 1e-8, 1 - 1e-16, 1.0, 1 + 1e-15])
def test_prox_of_a_group_where_rounding_hides_the_root(penalty, share):
    """Thresholds far below an ulp of ‖v‖, and as large as ‖v‖, with warnings as errors."""
    rng = np.random.default_rng(4)
    for _ in range(200):
        v = rng.normal(size=4)
        twin = type(penalty)(share * float(np.linalg.norm(v)) / 2) if penalty.strength else penalty
        u = twin.prox(v, np.ones(4))
        shrunk = v * max(0.0, 1 - share) if penalty.strength else v
        np.testing.assert_allclose(u, shrunk, rtol=0, atol=1e-14)


@GROUPED
def test_a_coordinate_without_a_step_does_not_affect_its_group(penalty):
    v, steps = np.array([2.0, 7.0, -1.0]), np.array([0.5, 0.0, 2.0])
    u = penalty.prox(v, steps)
    assert u[1] == 7.0
    np.testing.assert_array_equal(u[[0, 2]], penalty.prox(v[[0, 2]], steps[[0, 2]]))


def test_equal_steps_shorten_a_group_by_the_known_formula():
    v = np.array([3.0, -4.0])
    np.testing.assert_allclose(GroupLasso(1.0).prox(v, np.full(2, 0.5)), v * (1 - 0.5 * math.sqrt(2) / 5), rtol=1e-14)


@pytest.mark.parametrize(("low", "high"), [(1.0, 2.0), (-2.0, -1.0), (0.0, 0.0), (math.nan, 1.0), (0.0, math.nan)])
def test_a_box_without_0_or_without_room_is_refused(low, high):
    with pytest.raises(SpecificationError, match="low ≤ 0 ≤ high"):
        Box(low, high)


def test_a_box_is_closed_up_to_rounding():
    """Updates are sums: w + (bound − w) may miss the bound by an ulp. Non-negativity holds exactly."""
    box = Box(-0.3, 0.7)
    assert box.value(np.array([0.3 + (0.7 - 0.3), -0.3, np.nextafter(0.7, 1.0)])) == 0.0
    assert box.value(np.array([0.7001])) == box.value(np.array([-0.3001])) == math.inf
    assert Box(low=0.0).value(np.array([-5e-324])) == math.inf


def test_values_are_scikit_learns():
    w = np.array([1.5, -2.0, 0.0])
    assert NoPenalty().value(w) == 0.0
    assert L1(0.5).value(w) == pytest.approx(0.5 * 3.5)
    assert L2(0.5).value(w) == pytest.approx(0.25 * 6.25)
    assert ElasticNet(0.5, 0.25).value(w) == pytest.approx(0.5 * 0.25 * 3.5 + 0.5 * 0.5 * 0.75 * 6.25)
    assert GroupLasso(0.5).value(w) == pytest.approx(0.5 * math.sqrt(3) * 2.5)
    assert Box(-2.0, 1.5).value(w) == 0.0
    assert Box(-1.9, 1.5).value(w) == math.inf


@pytest.mark.parametrize("kind", STRONG)
@pytest.mark.parametrize("strength", [-1e-9, math.nan, math.inf, -math.inf])
def test_an_invalid_strength_is_refused(kind, strength):
    with pytest.raises(SpecificationError, match="strength"):
        kind(strength)


@pytest.mark.parametrize("kind", STRONG)
@pytest.mark.parametrize("strength", ["0.1", None])
def test_a_strength_that_is_not_a_number_is_refused(kind, strength):
    with pytest.raises((SpecificationError, TypeError)):  # a job file turns TypeError into JobFileError
        kind(strength)


@pytest.mark.parametrize("ratio", [-0.01, 1.01, math.nan])
def test_an_invalid_ratio_is_refused(ratio):
    with pytest.raises(SpecificationError, match="l1_ratio"):
        ElasticNet(1.0, ratio)
