"""Kernels on stored entries: equal to the dense kernels on the same columns, to the last integer and bit."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from vfl.errors import SpecificationError
from vfl.kernels import dense, sparse
from vfl.kernels import sparse_loops as loops
from vfl.kernels.dense import LOGISTIC, SQUARED, WEIGHTS
from vfl.kernels.dense_loops import PANEL
from vfl.kernels.geometry import Geometry
from vfl.kernels.sparse import SparseBlock

GRID = 2.0**-20
WIDTHS = [1, 2, 3, 4, 5, 8, 11]
LOSSES = [SQUARED, LOGISTIC, WEIGHTS]


def block_of(X):
    """Return the block of X's nonzero entries; NaN and infinities are entries."""
    entries = scipy.sparse.csc_array(X)
    return SparseBlock.of(entries.data, entries.indices, entries.indptr, len(X))


def problem(n, s, dtype=np.float64, density=0.4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, s)) * (rng.random((n, s)) < density)
    X[:, -1] = X[:, -1] if s < 3 else 0.0  # an empty column
    return np.asfortranarray(X.astype(dtype)), rng.normal(size=n), np.sign(rng.normal(size=n)), rng.uniform(0.5, 2.0, s)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("s", WIDTHS)
@pytest.mark.parametrize("loss", LOSSES)
def test_sums_and_margins_equal_those_of_the_dense_kernels(loss, s, dtype):
    X, v, y, scale = problem(700, s, dtype)
    S, c, delta = block_of(X), np.zeros(s), np.linspace(-1, 1, s) * (np.arange(s) != 1)
    for clip in (0.3, 3.0 * math.sqrt(s)):  # most records clipped; few
        for grid in (GRID, 2.0**-46):  # on the finest grid the last bit of a norm matters
            at = v, y, loss, Geometry(c, scale, clip, grid)
            np.testing.assert_array_equal(sparse.gradient(S, *at), dense.gradient(X, *at))
            np.testing.assert_array_equal(sparse.singles(S, *at), dense.singles(X, *at))
            if loss != dense.SQUARED:
                bounds = dense.bounds_of(abs(y - 0.4 * v), y, loss)
                sums = [
                    k.capped_step(A, delta, 0.25, v.copy(), loss, A, at[3], bounds)
                    for k, A in ((dense, X), (sparse, S))
                ]
                np.testing.assert_array_equal(*sums)
        moved = [k.forward(A, delta, v.copy(), 0.25) for k, A in ((dense, X), (sparse, S))]
        assert moved[0].tobytes() == moved[1].tobytes()
        assert not S.scratch.any()
    np.testing.assert_allclose(
        sparse.plain_gradient(S, v, y, loss, Geometry(c, scale)),
        dense.plain_gradient(X, v, y, loss, Geometry(c, scale)),
        atol=1e-12,
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_moments_and_norms_equal_those_of_the_dense_kernels(dtype):
    X, *_, scale = problem(700, 7, dtype)
    S = block_of(X)
    for name in ("first_moments", "second_moments"):
        ours, theirs = (getattr(k, name)(A, scale, GRID) for k, A in ((sparse, S), (dense, X)))
        np.testing.assert_array_equal(ours, theirs)
    zeros = np.zeros(7)
    assert sparse.record_norms(S, zeros, scale).tobytes() == dense.record_norms(X, zeros, scale).tobytes()
    for ours, theirs in zip(sparse.plain_moments(S), dense.plain_moments(X), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5 if dtype == np.float32 else 1e-13)


def test_singles_clip_every_column_separately():
    X, v, y, scale = problem(500, 5)
    at = v, y, LOGISTIC
    alone = [Geometry(np.zeros(1), scale[j : j + 1], 0.4, GRID) for j in range(5)]
    one_by_one = [dense.gradient(X[:, j : j + 1], *at, alone[j])[0] for j in range(5)]
    for k, A in ((dense, X), (sparse, block_of(X))):
        assert k.singles(A, *at, Geometry(np.zeros(5), scale, 0.4, GRID)).tolist() == one_by_one


def test_a_function_without_a_kernel_is_evaluated_where_there_are_entries():
    X, v, y, scale = problem(200, 2)
    S, seen = block_of(X), []

    def hinge(margins, labels):
        seen.append(len(margins))
        return np.where(margins * labels < 1, -labels, 0.0)

    r, full = sparse.weigh(S, hinge, v, y), dense.weigh(X, hinge, v, y)
    assert seen == [len(S.data), 200]
    at = Geometry(np.zeros(2), scale, 1.0, GRID)
    np.testing.assert_array_equal(
        sparse.gradient(S, r, y, WEIGHTS, at),
        dense.gradient(X, full, y, WEIGHTS, at),
    )


anything = st.one_of(
    st.just(0.0),
    st.floats(-2, 2),
    st.floats(),
    st.sampled_from([-0.0, 1.0, -1.0, 1e308, -1e308, 1e-308, 5e-324, math.nan, math.inf, -math.inf]),
)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), s=st.integers(1, 6), loss=st.sampled_from(LOSSES))
def test_any_floats_give_the_dense_result(data, s, loss):
    """The proof of the dense kernels' sensitivity, NaN and overflow included, therefore covers these kernels."""
    n = 4
    X = np.asfortranarray(data.draw(st.lists(st.lists(anything, min_size=s, max_size=s), min_size=n, max_size=n)))
    v, y = (np.array(data.draw(st.lists(anything, min_size=n, max_size=n))) for _ in range(2))
    scale = np.array(data.draw(st.lists(st.floats(1e-290, 1e290) | st.floats(0.1, 10), min_size=s, max_size=s)))
    S, c, clip = block_of(X), np.zeros(s), data.draw(st.sampled_from([1.0, 1e-6, 1e6]))
    for name in ("gradient", "singles"):
        grid = clip * 2.0**-20 if clip == 1.0 else 2.0 ** (math.frexp(clip)[1] - 21)
        at = v, y, loss, Geometry(c, scale, clip, grid)
        ours, theirs = (getattr(k, name)(A, *at) for k, A in ((sparse, S), (dense, X)))
        np.testing.assert_array_equal(ours, theirs)
    assert not S.scratch.any()
    reach = np.clip(scale, 1e-140, 1e140)
    for name in ("first_moments", "second_moments"):
        ours, theirs = (getattr(k, name)(A, reach, GRID) for k, A in ((sparse, S), (dense, X)))
        np.testing.assert_array_equal(ours, theirs)


def test_compiled_loops_equal_their_python():
    X, v, y, scale = problem(60, 6)
    S = block_of(X)
    at = S.between(0, 60)
    # The sum of bits wraps and Python's integers do not, so compare only the loops without it.
    plain = loops.plain_gradient
    np.testing.assert_allclose(plain(at, v, y, LOGISTIC), plain.py_func(at, v, y, LOGISTIC), rtol=1e-15)
    for name in ("forward", "record_norms"):
        loop, out = getattr(loops, name), (np.zeros(60), np.zeros(60))
        for function, o in zip((loop, loop.py_func), out, strict=True):
            function(at, scale, o)
        np.testing.assert_array_equal(*out)


@pytest.mark.parametrize("s", [1, 5])
def test_threads_change_no_bit(s, monkeypatch):
    monkeypatch.setattr(dense, "TASK", 1)
    n = 5 * PANEL + 77
    X, v, y, scale = problem(n, s)
    S, c, delta = block_of(X), np.zeros(s), np.linspace(-1, 1, s) + 0.1

    def run(threads):
        at = Geometry(c, scale, 1.0, 2.0**-40)
        return [
            sparse.gradient(S, v, y, LOGISTIC, at, threads=threads),
            sparse.singles(S, v, y, LOGISTIC, at, threads=threads),
            sparse.plain_gradient(S, v, y, LOGISTIC, Geometry(c, scale), threads=threads),
            sparse.forward(S, delta, v.copy(), 0.5, threads=threads),
        ]

    alone = run(1)
    for threads in (2, 3, 8):
        for one, many in zip(alone, run(threads), strict=True):
            np.testing.assert_array_equal(one, many)
    assert not S.scratch.any()


TWICE = "increasing rows in every column"


@pytest.mark.parametrize(
    ("data", "rows", "starts"),
    [
        ([1.0, 1.0], [0, 0], [0, 2]),  # a record twice: it would be clipped twice
        ([1.0, 1.0], [1, 0], [0, 2]),
        ([1.0], [3], [0, 1]),
        ([1.0], [-1], [0, 1]),
        ([1.0, 1.0], [0, 1], [0, 2, 1]),
        ([1.0, 1.0], [0, 1], [0, 1]),
        ([1.0], [0, 1], [0, 2]),
    ],
)
def test_entries_in_another_order_are_refused(data, rows, starts):
    with pytest.raises(SpecificationError, match=TWICE):
        SparseBlock.of(np.array(data), np.array(rows, dtype=np.int32), np.array(starts), 3)


def test_centred_sparse_columns_and_other_shapes_are_refused():
    X, v, y, scale = problem(50, 2)
    S = block_of(X)
    with pytest.raises(SpecificationError, match="cannot be centred"):
        sparse.gradient(S, v, y, SQUARED, Geometry(np.ones(2), scale, 1.0, GRID))
    with pytest.raises(SpecificationError, match="contiguous float64 vectors"):
        sparse.gradient(S, v[:-1], y, SQUARED, Geometry(np.zeros(2), scale, 1.0, GRID))
    with pytest.raises(SpecificationError, match="power of two"):
        sparse.gradient(S, v, y, SQUARED, Geometry(np.zeros(2), scale, 1.0, 0.3))


def test_a_step_costs_entries_not_records():
    """With the same entries in a thousand times the records, a step takes the same time, up to effects of caches."""
    times = {}
    for n in (2_000, 2_000_000):
        rows = np.linspace(0, n - 1, 200).astype(np.int32)
        S = SparseBlock.of(np.ones(200), rows, np.array([0, 100, 200]), n)
        v, y, two, taken = np.zeros(n), np.ones(n), np.ones(2), []
        for _ in range(60):
            start = time.thread_time()  # without the time of other processes
            sparse.forward(S, 1e-9 * two, v)
            sparse.gradient(S, v, y, LOGISTIC, Geometry(0 * two, two, 1.0, GRID))
            taken.append(time.thread_time() - start)
        times[n] = min(taken)
    assert times[2_000_000] < 20 * times[2_000]
