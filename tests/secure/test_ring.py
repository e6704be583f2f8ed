"""Bits, caps and decoding: every admitted run decodes, and one bit more does not."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfl.errors import PrivacyError
from vfl.kernels import ring as kernels
from vfl.privacy.geometry import Clip
from vfl.secure import noise, ring, sigmoid
from vfl.secure.columns import OwnAngles, own_columns

R = sigmoid.residual_bound()


@given(st.integers(1, 10**10), st.floats(1e-6, 1e9), st.integers(2, 9), st.booleans())
@settings(max_examples=120, deadline=None)
def test_bits_are_the_most_that_decode(n, deviation, m, dealt):
    m, of, limit, noises = (m, ring.WORDS, 2**59, math.isqrt(m) + 2) if dealt else (2, ring.MODULAR, 2**55, 2)

    def fits(total: int) -> bool:
        return n * R * 2 ** (total - 26) + noises * 2**52 < limit and Fraction(deviation) * 2**total <= 2**48

    if not fits(34):
        with pytest.raises(PrivacyError, match="fewer than 34 bits"):
            ring.bits(n, R, deviation, m, of)
        return
    total = ring.bits(n, R, deviation, m, of).total
    assert 34 <= total <= 40
    assert fits(total)
    assert total == 40 or not fits(total + 1)


@given(st.integers(1, 3 * 10**8), st.integers(2, 9), st.booleans())
@settings(max_examples=60, deadline=None)
def test_adversarial_rows_are_in_range_and_the_ring_has_four_bits_more(n, m, negative):
    """n records whose rows lie in one column at the cap, with the largest residual and the largest draws."""
    try:
        bits = ring.bits(n, R, 1.0, m)
    except PrivacyError:
        return
    sign = -1 if negative else 1

    def summed(columns: int) -> int:
        return sign * (n * R * 2**columns + (math.isqrt(m) + 2) * 2**52)

    def word(value: int) -> np.ndarray:
        return np.array([value % 2**64], dtype=np.uint64)

    largest = summed(bits.columns)
    assert int(ring.decoded(word(largest))[0]) == largest
    limit = ring.largest_sum(n, R << bits.columns, (math.isqrt(m) + 2) * 2**48)
    assert ring.within(ring.decoded(word(largest)), limit) == largest
    with pytest.raises(PrivacyError, match="out of range"):
        ring.within(ring.decoded(word(largest + sign)), limit)
    assert 16 * limit < 2**63


@pytest.mark.parametrize(("m", "k"), [(2, 1), (3, 2), (5, 1), (9, 8)])
def test_draws_of_all_contributors_at_their_limit_are_in_the_range_that_bits_reserve(m, k):
    """At most 2^-170 for 2^18 draws: each exceeds 16 deviations with probability 2^-188, roundings included."""
    drawn = noise.deviations(2.0**48, 1.0, m, k).total(m)
    assert drawn <= (math.isqrt(m) + 2) * 2**48
    assert noise.deviations(2.0**48, 1.0, 2, 1, dealt=False).total(2) == 2 * 2**48
    assert 2**18 * math.erfc((16 - 1 / 128) / math.sqrt(2)) <= 2.0**-170
    assert ring.bits(10**7, R, 1.0, m).total == 35


def test_a_small_ring_decodes_exactly_below_half():
    """The rule by enumeration in Z/2^8: all sums of magnitude below 2^7 decode, and the next ones do not."""
    for value in range(-200, 201):
        decoded = (value % 256 + 128) % 256 - 128
        assert (decoded == value) == (-128 <= value < 128)


@given(
    st.floats(1e-6, 1e6),
    st.dictionaries(st.sampled_from("abcde"), st.floats(1e-8, 1e8), min_size=1, max_size=5),
    st.integers(2**25, 2**27),
)
@settings(max_examples=80, deadline=None)
def test_caps_of_all_parties_add_up_to_the_cap_exactly(cap, squares, residual):
    caps = ring.caps(cap, residual, squares)
    r = Fraction(residual, 2**26)
    joint = sum((Fraction(own) * r) ** 2 for own in caps.values())
    assert joint <= Fraction(cap) ** 2
    assert float(joint) == pytest.approx(cap**2, rel=1e-12)


@given(st.integers(0, 2**32), st.integers(1, 6), st.sampled_from([1.0, 1e-3, 1e5, 1e200]), st.integers(8, 14))
@settings(max_examples=30, deadline=None)
def test_integer_rows_keep_the_cap_over_all_columns(seed, p, size, columns):
    rng = np.random.default_rng(seed)
    X = np.asfortranarray(rng.standard_cauchy(size=(50, p)) * size)
    X[0], X[1, 0], X[2, -1] = 0.0, np.nan, np.inf
    bits = ring.Bits(columns)
    own = own_columns(X, np.zeros(p), np.ones(p), np.full(p, 1e3), 1.0, bits)
    squares = (own.rows.astype(object) ** 2).sum(axis=0)
    assert squares.max() <= bits.limit
    assert squares[1] == squares[2] == squares[0] == 0
    exact = X * 2.0**columns
    with np.errstate(over="ignore", invalid="ignore"):
        small = (exact**2).sum(axis=1) < bits.limit - 2 * np.sqrt(p) * 2**columns - p
    assert (own.rows.T[small] == np.rint(exact[small])).all()


def test_a_pass_of_all_parties_moves_by_twice_the_cap_and_its_event_covers_that():
    """Σ over parties and blocks of (g_q ‖Q_S‖ R)² ≤ C² in exact arithmetic, at rows beyond their caps."""
    rng = np.random.default_rng(1)
    cap = 0.7
    caps = ring.caps(cap, R, {"a": 4.0, "b": 9.0, "c": 0.3})
    bits = ring.bits(1000, R, 10.0, 3)
    total = np.zeros(30, dtype=object)
    for own in caps.values():
        X = np.asfortranarray(rng.normal(size=(30, 5)) * 10)
        columns = own_columns(X, np.zeros(5), np.ones(5), np.full(5, 40.0), own, bits)
        assert columns.cut == 30
        step = Fraction(bits.step(own))
        for start, stop in ((0, 2), (2, 3), (3, 5)):
            block = (columns.rows[start:stop].astype(object) ** 2).sum(axis=0)
            total += np.array([step**2 * int(value) * R * R for value in block], dtype=object)
    assert total.max() <= Fraction(cap) ** 2
    assert float(total.max()) > 0.99 * cap**2
    assert Clip(cap, 15).sensitivity >= 2 * cap


def test_angles_are_those_of_exact_integers_and_clamped():
    rng = np.random.default_rng(0)
    X = np.asfortranarray(rng.uniform(-2, 2, size=(300, 4)))
    columns = own_columns(X, np.full(4, 0.1), np.ones(4), np.full(4, 2.0), 1.0, ring.Bits(10))
    w = rng.normal(size=4)
    assert columns.reach(w) == pytest.approx((2.1 * abs(w)).sum())
    weights = [round(2.0**34 * (2.0 * value / 24.0)) for value in w]
    shift = round(-(2.0**48) * math.fsum(0.1 * w / 24.0))
    for clamp, limit in ((None, 2**61), (0.5, math.floor(2.0**48 * 0.5 / 24.0))):
        exact = [
            sum(int(q) * weight for q, weight in zip(row, weights, strict=True)) + shift for row in columns.units.T
        ]
        clamped = [min(max(value, -limit), limit) for value in exact]
        expected = [((value + 2**31) >> 32) % 2**16 for value in clamped]
        assert OwnAngles(columns).at(w, 24.0, clamp).tolist() == expected
        moved = OwnAngles(columns)
        for other in (-3.0 * w, np.array([w[0], 0.0, 0.0, 1.0]), 1e3 * w):
            moved.at(other, 16.0, None)
        assert moved.at(w, 24.0, clamp).tolist() == expected
    with pytest.raises(Exception, match="too large for the angles"):
        OwnAngles(columns).at(w * 1e6, 24.0, None)
    assert kernels.unit_columns(np.array([[np.nan, 9.0, -9.0]]), np.ones(1)).tolist() == [[0, 2**14, -(2**14)]]


@pytest.mark.parametrize("of", [ring.WORDS, ring.MODULAR])
def test_a_refusal_states_how_many_records_fit(of):
    with pytest.raises(PrivacyError) as refused:
        ring.bits(10**9, R, 1.0, 2, of)
    digits, power = re.search(r"at most ([\d.]+)·10\^(\d) records", str(refused.value)).groups()
    most = round(float(digits) * 10 ** int(power))
    assert ring.bits(most, R, 1.0, 2, of).total == 34
    with pytest.raises(PrivacyError, match="fewer than 34 bits"):
        ring.bits(most + most // 8, R, 1.0, 2, of)
