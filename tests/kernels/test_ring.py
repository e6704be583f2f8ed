"""The loops on shares agree with Python's integers, and with themselves uncompiled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfl.errors import SpecificationError
from vfl.kernels import ring as kernels
from vfl.kernels import ring_loops as loops

EXTREMES = np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1], dtype=np.uint64)


def words(rng, *shape: int) -> np.ndarray:
    """Return random words, with those among them at which a half of a word carries."""
    found = rng.integers(0, 2**64, shape, dtype=np.uint64)
    flat = found.reshape(-1)
    count = min(len(EXTREMES), flat.size)
    flat[:count] = EXTREMES[:count]
    rng.shuffle(flat)
    return found


def exact(left: np.ndarray, right: np.ndarray) -> int:
    return sum(int(a) * int(b) for a, b in zip(left, right, strict=True)) % 2**64


@pytest.mark.parametrize("n", [1, 7, loops.PANEL - 1, loops.PANEL + 3])
@pytest.mark.parametrize("kind", [np.int16, np.int32, np.uint64])
def test_products_are_those_of_integers(n, kind):
    rng = np.random.default_rng(n)
    limits = np.iinfo(kind)
    columns = (
        words(rng, 3, n) if kind is np.uint64 else rng.integers(limits.min, limits.max, (3, n), kind, endpoint=True)
    )
    columns[:, 0] = limits.min
    columns[:, -1] = limits.max
    r = words(rng, n)
    assert kernels.products(columns, r).tolist() == [exact(column, r) for column in columns]
    other = words(rng, 2, n)
    expected = [[exact(column, right) for right in other] for column in columns]
    assert kernels.cross_products(columns, other).tolist() == expected


@pytest.mark.parametrize("cell", [-(2**15), 2**15 - 1])
@pytest.mark.parametrize("word", [2**64 - 1, 2**63, 0x8000_8000_07FF_FFFF, 0x7FFF_7FFF_07FF_FFFF, 0])
def test_blocks_hold_the_sums_of_extreme_products(cell, word):
    n = 2 * loops.PANEL + 3
    r = np.full(n, word, dtype=np.uint64)
    for columns in (np.full((3, n), cell, np.int16), np.full((3, n), cell, np.int64).view(np.uint64)):
        assert kernels.products(columns, r).tolist() == 3 * [n * cell * word % 2**64]


@pytest.mark.parametrize("cell", [-(2**15), 2**15 - 1])
def test_angles_hold_the_sums_of_extreme_products(cell):
    # A digit is largest in magnitude, -2^11, where twelve bits of a weight are 100000000000.
    weights = np.array([-(2**63), 2**63 - 1, -1, 0, sum(2**11 << 12 * f for f in range(5))] * 13)
    columns = np.full((len(weights), 2 * loops.PANEL + 1), cell, dtype=np.int16)
    columns[weights == 0] = 1  # not read
    parts = np.full(columns.shape[1], 5, dtype=np.int64)
    kernels.add_products(columns, weights, parts)
    expected = 5 + cell * sum(int(weight) for weight in weights)
    assert set(parts.view(np.uint64).tolist()) == {expected % 2**64}


@pytest.mark.parametrize("s", [1, 2, 31, 61])
def test_angles_add_any_number_of_columns(s):
    rng = np.random.default_rng(s)
    columns = rng.integers(-(2**15), 2**15, (s, 37), np.int16)
    weights = rng.integers(-(2**48), 2**48, s) * (rng.random(s) < 0.8)
    parts = rng.integers(-(2**40), 2**40, 37)
    expected = parts + weights @ columns.astype(np.int64)
    kernels.add_products(columns, weights, parts)
    assert (parts == expected).all()


@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_shares_of_residuals_are_those_of_integers(n, terms, seed):
    rng = np.random.default_rng(seed)
    table = rng.integers(-(2**15), 2**15, (2**16, 2 * terms)).astype(np.int16)
    angles = rng.integers(0, 2**16, n).astype(np.uint16)
    shares = words(rng, n, 2 * terms)
    expected = [exact(table[angle], share) for angle, share in zip(angles, shares, strict=True)]
    assert kernels.residual_shares(table, angles, shares).tolist() == expected
    last = kernels.last_shares(table, angles, shares.copy())
    assert (last + shares == table[angles].astype(np.int64).view(np.uint64)).all()


@pytest.mark.parametrize("limit", [2**61, 2**40])
def test_angles_are_those_of_integers(limit):
    rng = np.random.default_rng(0)
    columns = rng.integers(-(2**14), 2**14, (4, loops.PANEL + 5), np.int16, endpoint=True)
    weights = np.array([2**45, -(2**44) - 1, -1, 2**32 + 2**31])
    shift = -(2**50) - 7
    sums = [sum(int(q) * int(w) for q, w in zip(row, weights, strict=True)) + shift for row in columns.T]
    expected = [((min(max(value, -limit), limit) + 2**31) >> 32) % 2**16 for value in sums]
    parts = np.zeros(columns.shape[1], dtype=np.int64)
    kernels.add_products(columns, 3 * weights, parts)
    kernels.add_products(columns, -2 * weights, parts)
    assert kernels.rounded_angles(parts, shift, limit).tolist() == expected


def test_compiled_loops_agree_with_python():
    rng = np.random.default_rng(0)
    X = np.asfortranarray(rng.standard_cauchy((30, 3))).T
    X[0, 3], X[1, 4] = np.nan, np.inf
    for name, args in {
        "capped": (X, np.full(3, 0.1), np.array([100.0, 50.0, 1.0]), 4**7, np.empty((3, 30), np.int16)),
        "small": (X, np.full(3, 2.0**14 / 3), np.empty((3, 30), np.int16)),
    }.items():
        loop = getattr(loops, name)
        outs = [args[-1].copy(), args[-1].copy()]
        found = loop(*args[:-1], outs[0])
        with np.errstate(invalid="ignore"):
            assert loop.py_func(*args[:-1], outs[1]) == found
        assert (outs[0] == outs[1]).all()


def test_capped_rows_keep_their_direction_and_no_record_that_fits_is_cut():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(4, 200)) * np.linspace(1, 2000, 200)
    out = np.empty(X.shape, np.int16)
    cut = kernels.capped_rows(X, np.zeros(4), np.ones(4), 4**10, out)
    norms = np.sqrt((X**2).sum(axis=0))
    assert (out[:, norms < 1000] == np.rint(X[:, norms < 1000])).all()
    assert abs(cut - (norms > 1024).sum()) <= 2
    long = norms > 1030
    expected = X[:, long] * (1024 / norms[long])
    assert abs(out[:, long] - expected).max() < 1.0
    assert (out.astype(np.int64) ** 2).sum(axis=0).max() <= 4**10
    assert np.sqrt((out[:, long].astype(np.int64) ** 2).sum(axis=0)).min() > 1021


@pytest.mark.parametrize(
    "call",
    [
        lambda: kernels.products(np.zeros((2, 3), np.int16), np.zeros(4, np.uint64)),
        lambda: kernels.products(np.zeros((2, 3), np.int16), np.zeros(3, np.int64)),
        lambda: kernels.products(np.zeros((3, 2), np.int16).T, np.zeros(3, np.uint64)),
        lambda: kernels.residual_shares(
            np.zeros((2**16, 4), np.int16), np.zeros(3, np.uint16), np.zeros((3, 2), np.uint64)
        ),
        lambda: kernels.residual_shares(
            np.zeros((2**16, 2), np.int16), np.zeros(3, np.int64), np.zeros((3, 2), np.uint64)
        ),
        lambda: kernels.add_products(np.zeros((2, 3), np.int16), np.array([1]), np.zeros(3, np.int64)),
        lambda: kernels.add_products(np.zeros((2, 3), np.int32), np.array([1, 2]), np.zeros(3, np.int64)),
        lambda: kernels.rounded_angles(np.zeros(3, np.int64), 2**63, 1),
        lambda: kernels.capped_rows(np.zeros((2, 3)), np.zeros(2), np.ones(2), 2**31, np.empty((2, 3), np.int16)),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call):
    with pytest.raises(SpecificationError):
        call()
