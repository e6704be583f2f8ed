"""The compiled loops: exact integer sums, the bound on one record's share, and agreement with plain NumPy."""

from __future__ import annotations

import math
import os
import platform
import re
import signal
from fractions import Fraction

import numba
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vfl.errors import SpecificationError
from vfl.kernels import dense as kernels
from vfl.kernels import dense_loops as loops
from vfl.kernels.dense import LOGISTIC, SQUARED, WEIGHTS
from vfl.kernels.geometry import Geometry
from vfl.kernels.records import WIDTH

GRID = 2.0**-20
ROWS = [0, 1, WIDTH - 1, WIDTH, 129, 1025, loops.PANEL + 5]
WIDTHS = [1, 2, 3, loops.NEAR, loops.NEAR + 1, 16, 50]


def problem(n, s, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    X = np.asfortranarray(rng.normal(size=(n, s)).astype(dtype))
    return X, rng.normal(size=n), np.sign(rng.normal(size=n)), rng.uniform(0.5, 2.0, s)


def centres(s):
    return np.linspace(-0.7, 1.3, s)


def reference(X, r, scale, clip, grid):
    """Centre, clip by the norm, divide by the grid, round half to even, and sum, with NumPy's IEEE operations."""
    t = scale * (X.astype(np.float64) - centres(X.shape[1]))
    s = X.shape[1]
    if s == 1:
        return np.rint(np.clip(t * r[:, None], -clip, clip) / grid).astype(np.int64).sum(axis=0)
    h2 = np.zeros(len(X))
    for j in range(s):
        h2 = h2 + t[:, j] ** 2
    limit = clip / np.sqrt(h2)
    return np.rint(t * (np.clip(r, -limit, limit) / grid)[:, None]).astype(np.int64).sum(axis=0)


@pytest.mark.parametrize("n", ROWS)
@pytest.mark.parametrize("s", WIDTHS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_clipped_sum_equals_numpy_to_the_last_integer(n, s, dtype):
    X, v, y, scale = problem(n, s, dtype)
    for clip in (0.3, 3.0 * math.sqrt(s)):  # most records clipped; few
        got = kernels.gradient(X, v, y, SQUARED, Geometry(centres(s), scale, clip, GRID))
        assert got.dtype == np.int64
        np.testing.assert_array_equal(got, reference(X, v - y, scale, clip, GRID))


@pytest.mark.parametrize("s", [1, 2, 5])
def test_each_integer_is_the_nearest_to_the_exact_clipped_value(s):
    X, v, y, scale = problem(50, s)
    clip, grid = 1.0, 2.0**-22
    for i in range(50):
        one = slice(i, i + 1)
        q = kernels.gradient(X[one].copy(order="F"), v[one], y[one], SQUARED, Geometry(centres(s), scale, clip, grid))
        c = (v[i] - y[i]) * scale * (X[i] - centres(s))
        c *= min(1.0, clip / np.linalg.norm(c))
        assert np.all(np.abs(q - c / grid) < 0.5 + 1e-6)


@pytest.mark.parametrize(
    ("t", "s"), [(1, 1), (0, loops.NEAR), (loops.NEAR, 1), (2 * loops.NEAR + 1, 3 * loops.NEAR + 2)]
)
@pytest.mark.parametrize("loss", [WEIGHTS, LOGISTIC])
def test_groups_of_columns_change_no_bit(t, s, loss):
    """Compare sums over panels with those of each record alone, which reads all columns in one turn, and margins with NumPy."""
    n = WIDTH + 3
    X, v, y, scale = problem(n, s)
    X_prev, at = problem(n, t, seed=1)[0], Geometry(centres(s), scale, 2.0, GRID)
    X[3, 0], X[WIDTH, s - 1], v[7] = math.inf, math.nan, math.nan
    bounds = kernels.bounds_of(np.abs(v), y, loss)
    delta = np.where(np.arange(t) % 3 == 1, 0.0, np.linspace(-1.0, 1.0, t))
    runs = {
        "capped_step": lambda rows, w: kernels.capped_step(
            X_prev[rows], delta, 0.5, w, loss, X[rows], at, bounds[rows]
        ),
        "gradient": lambda rows, w: kernels.gradient(X[rows], w, y[rows], loss, at),
        "singles": lambda rows, w: kernels.singles(X[rows], w, y[rows], loss, at),
    }
    moved = v + 0.5
    for j in np.flatnonzero(delta):
        moved = moved + delta[j] * X_prev[:, j]
    X, X_prev = Rows(X), Rows(X_prev)
    for name, run in runs.items():
        whole, alone = v.copy(), v.copy()
        q = run(slice(None), whole)
        np.testing.assert_array_equal(q, sum(run(slice(i, i + 1), alone[i : i + 1]) for i in range(n)))
        np.testing.assert_array_equal(whole, alone)
        np.testing.assert_array_equal(whole, moved if "step" in name else v)


class Rows:
    """Rows of a column-major array, copied in column-major order."""

    def __init__(self, array):
        self.array = array

    def __getitem__(self, rows):
        return self.array[rows].copy(order="F")


def test_logistic_sum_is_the_sum_with_its_weights():
    X, v, y, scale = problem(3000, 6)
    r = kernels.weights(5 * v, y, LOGISTIC, np.empty(3000))
    np.testing.assert_allclose(r, -y / (1 + np.exp(5 * y * v)), rtol=2e-15)
    np.testing.assert_array_equal(
        kernels.gradient(X, 5 * v, y, LOGISTIC, Geometry(centres(6), scale, 2.0, GRID)),
        kernels.gradient(X, r, y, WEIGHTS, Geometry(centres(6), scale, 2.0, GRID)),
    )


def test_sigmoid_is_accurate_over_its_whole_range():
    rng = np.random.default_rng(1)
    m = np.concatenate([rng.uniform(-708, 708, 200_000), rng.uniform(-3, 3, 200_000), rng.normal(size=1000) * 1e-9])
    y = np.ones_like(m)
    got = -kernels.weights(m, y, LOGISTIC, np.empty_like(m))
    exact = 1 / (1 + np.exp(m.astype(np.longdouble)))
    if np.finfo(np.longdouble).nmant < 60:
        pytest.skip("needs a long double wider than double")
    assert np.max(np.abs(got / exact - 1)) < 1e-15


def test_sigmoid_saturates_and_keeps_nan():
    v = np.array([np.inf, -np.inf, 1e308, -1e308, 710.0, 0.0, -0.0, np.nan, 745.2, -745.2])
    r = kernels.weights(v, np.ones_like(v), LOGISTIC, np.empty_like(v))
    np.testing.assert_array_equal(r, [0, -1, 0, -1, 0, -0.5, -0.5, np.nan, 0, -1])
    r = kernels.weights(v, -np.ones_like(v), LOGISTIC, np.empty_like(v))
    np.testing.assert_array_equal(r, [1, 0, 1, 0, 1, 0.5, 0.5, np.nan, 1, 0])


ANY = st.floats(width=64)
HARSH = st.sampled_from(
    [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1e-310, 1e-170, 1e-154, 1e154, 1e170, 1.7e308]
)
NUMBER = ANY | HARSH | st.floats(-10, 10)
RECORD = st.integers(1, 9).flatmap(lambda s: st.tuples(st.lists(NUMBER, min_size=s, max_size=s), st.just(s)))


@settings(max_examples=600, deadline=None)
@given(RECORD, NUMBER, st.data(), st.floats(1e-3, 1e3), st.integers(0, 30))
def test_share_of_one_record_is_bounded_whatever_its_floats(record, r, data, clip, bits):
    x, s = record
    scale = data.draw(st.lists(st.floats(1e-3, 1e3) | NUMBER, min_size=s, max_size=s))
    centre = data.draw(st.lists(st.just(0.0) | NUMBER, min_size=s, max_size=s))
    check_share(x, r, scale, clip, bits, centre)


@pytest.mark.parametrize("s", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("x", [1e-170, 1e-162, 1e-160, 1e-140, 5e-324, 1e154, 1e160, 1.7e308, math.inf, math.nan])
@pytest.mark.parametrize("r", [1e140, 1e170, 1e300, 1.7e308, math.inf, -math.inf, math.nan, 0.0])
def test_share_of_one_record_is_bounded_where_squares_under_and_overflow(s, x, r):
    check_share([x] * s, r, [1.0] * s, 1.0, 20)
    check_share([x] + [1e-3] * (s - 1), r, [1.0] * s, 1.0, 20)
    check_share([x] * s, r, [1e150] * s, 1.0, 20)
    check_share([x] * s, r, [1.0] * s, 1.0, 20, [1e-170, -1.7e308, math.inf, math.nan, x, -x, 1.0, 0.0][:s])


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 9), st.integers(0, 2**32 - 1), st.floats(-135, 150))
def test_clipped_records_reach_the_cap_and_stay_under_it(s, seed, exponent):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=s) * 10.0**exponent
    q = check_share(list(x), 1e250, [1.0] * s, 1.0, 49)
    norm = math.sqrt(sum(k * k for k in q)) * 2.0**-49
    assert norm > 1 - 1e-9


def check_share(x, r, scale, clip, bits, centre=None):
    """Assert g‖q‖ ≤ κ(1 + s·2⁻⁵⁰) + g√s/2 in exact arithmetic; return q."""
    s = len(x)
    grid = 2.0 ** (math.frexp(clip)[1] - 1 - bits)
    X = np.array([x]).reshape(1, s, order="F")
    c = np.zeros(s) if centre is None else np.array(centre)
    q = [
        int(k)
        for k in kernels.gradient(X, np.array([r]), np.array([1.0]), WEIGHTS, Geometry(c, np.array(scale), clip, grid))
    ]
    A = Fraction(clip) * (1 + Fraction(s, 2**50)) / Fraction(grid)
    excess = sum(k * k for k in q) - A * A - Fraction(s, 4)  # ≤ A√s
    assert excess <= 0 or excess * excess <= A * A * s, (x, r, scale, clip, grid, centre, q)
    return q


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 6), st.integers(1, 40), st.data())
def test_the_sum_equals_the_sum_of_shares_even_with_broken_records_between(s, n, data):
    x = np.array(data.draw(st.lists(NUMBER, min_size=n * s, max_size=n * s))).reshape(n, s, order="F")
    r = np.array(data.draw(st.lists(NUMBER, min_size=n, max_size=n)))
    one, c, scale = np.ones(1), centres(s), np.ones(s)
    shares = [
        kernels.gradient(x[i : i + 1].copy(order="F"), r[i : i + 1], one, WEIGHTS, Geometry(c, scale, 1.0, GRID))
        for i in range(n)
    ]
    np.testing.assert_array_equal(
        kernels.gradient(x, r, r, WEIGHTS, Geometry(c, scale, 1.0, GRID)), np.sum(shares, axis=0)
    )


def test_broken_records_count_as_zero_and_do_not_affect_others():
    X, v, _, scale = problem(3000, 6)
    r = v.copy()
    r[5], r[1500], r[1501] = np.nan, np.inf, -1e301
    clean = r.copy()
    clean[[5, 1500, 1501, 2000]] = 0
    harsh = X.copy(order="F")
    harsh[2000, 2] = 1e200  # its square overflows
    c = centres(6)
    np.testing.assert_array_equal(
        kernels.gradient(harsh, r, r, WEIGHTS, Geometry(c, scale, 1.0, GRID)),
        kernels.gradient(X, clean, r, WEIGHTS, Geometry(c, scale, 1.0, GRID)),
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_forward_and_plain_sums_equal_numpy_in_double(dtype):
    X, v, y, scale = problem(2000, 7, dtype)
    delta = np.array([0.5, 0, 0, 0, 0, -1, 2.0])
    wide, c = X.astype(np.float64), centres(7)
    np.testing.assert_allclose(kernels.forward(X, delta, v.copy()), v + wide @ delta, rtol=0, atol=1e-13)
    u = kernels.plain_gradient(X, v, y, SQUARED, Geometry(c, scale))
    np.testing.assert_allclose(u, scale * ((wide - c).T @ (v - y)), rtol=1e-12, atol=1e-10)


def test_unmoved_columns_are_not_read():
    X, v, _, _ = problem(300, 6)
    X[:, [0, 1, 2, 3, 5]] = np.nan
    assert np.all(np.isfinite(kernels.forward(X, np.array([0, 0, 0, 0, 1.0, 0]), v)))


@pytest.mark.parametrize("s", [1, 5])
def test_threads_change_no_bit(s, monkeypatch):
    monkeypatch.setattr(kernels, "TASK", 1)
    n = 5 * loops.PANEL + 77
    X, v, y, scale = problem(n, s)
    delta, c = np.linspace(-1, 1, s), centres(s)

    def run(threads):
        return [
            kernels.gradient(X, v, y, LOGISTIC, Geometry(c, scale, 1.0, GRID), threads=threads),
            kernels.plain_gradient(X, v, y, LOGISTIC, Geometry(c, scale), threads=threads),
            kernels.second_moments(X, np.ones(s), GRID, threads=threads),
            kernels.first_moments(X, np.ones(s), GRID, threads=threads),
            kernels.forward(X, delta, v.copy(), 0.5, threads=threads),
        ]

    alone = run(1)
    for threads in (2, 3, 8):
        for one, many in zip(alone, run(threads), strict=True):
            np.testing.assert_array_equal(one, many)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_gets_its_own_threads(monkeypatch):
    monkeypatch.setattr(kernels, "TASK", 1)
    X, v, y, scale = problem(3 * loops.PANEL, 2)
    before = kernels.gradient(X, v, y, SQUARED, Geometry(centres(2), scale, 1.0, GRID), threads=2)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        same = np.array_equal(
            before, kernels.gradient(X, v, y, SQUARED, Geometry(centres(2), scale, 1.0, GRID), threads=2)
        )
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_second_moments_equal_numpy_and_stay_within_zero_and_one():
    X, *_ = problem(5000, 5)
    cap = np.array([0.5, 1, 2, 4, 100.0])
    expected = np.rint(np.minimum(X * X * (1 / cap), 1) / GRID).astype(np.int64).sum(axis=0)
    np.testing.assert_array_equal(kernels.second_moments(X, cap, GRID), expected)


@settings(max_examples=300, deadline=None)
@given(NUMBER, NUMBER)
@example(math.nan, 1.0)
@example(0.0, 0.0)
@example(math.inf, math.inf)
def test_second_moment_of_any_float_is_between_zero_and_one(x, cap):
    (q,) = kernels.second_moments(np.array([[x]]), np.array([cap]), GRID)
    assert 0 <= q <= 2**20


def test_first_moments_equal_numpy():
    X, *_ = problem(5000, 5)
    reach = np.array([0.5, 1, 2, 4, 100.0])
    expected = np.rint(np.clip(X * (0.5 / reach), -0.5, 0.5) / GRID).astype(np.int64).sum(axis=0)
    np.testing.assert_array_equal(kernels.first_moments(X, reach, GRID), expected)


@settings(max_examples=300, deadline=None)
@given(NUMBER, NUMBER)
@example(math.nan, 1.0)
@example(0.0, 0.0)
@example(-math.inf, math.inf)
def test_first_moment_of_any_float_is_within_a_half(x, reach):
    (q,) = kernels.first_moments(np.array([[x]]), np.array([reach]), GRID)
    assert abs(q) <= 2**19


def test_read_only_arrays_are_accepted_as_inputs():
    X, v, y, scale = problem(200, 3)
    c = centres(3)
    expected = kernels.gradient(X, v, y, SQUARED, Geometry(c, scale, 1.0, GRID))
    for array in (X, c, v, y, scale):
        array.flags.writeable = False
    np.testing.assert_array_equal(kernels.gradient(X, v, y, SQUARED, Geometry(c, scale, 1.0, GRID)), expected)
    with pytest.raises(SpecificationError, match="read-only"):
        kernels.forward(X, scale, v)


def bad_calls():
    X, v, y, scale = problem(40, 3)
    good = {"X": X, "centre": centres(3), "v": v, "y": y, "loss": SQUARED, "scale": scale, "cap": 1.0, "grid": GRID}
    yield "row-major", {**good, "X": np.ascontiguousarray(X)}, "column-major"
    yield "integers", {**good, "X": np.asfortranarray(X.astype(int))}, "float64 or float32"
    yield "one axis", {**good, "X": v}, "1-dimensional"
    yield "fewer records", {**good, "X": np.asfortranarray(X[:9])}, "align"
    yield "short label", {**good, "y": y[:9]}, "an entry per record"
    yield "strided", {**good, "v": np.repeat(v, 2)[::2]}, "contiguous"
    yield "single precision margins", {**good, "v": v.astype(np.float32)}, "float64"
    yield "wide scale", {**good, "scale": np.ones(4)}, "column"
    yield "narrow centre", {**good, "centre": centres(2)}, "column"
    yield "unknown loss", {**good, "loss": 7}, "WEIGHTS"
    for clip in (0.0, -1.0, math.nan, math.inf, 1e-101):
        yield f"clip {clip}", {**good, "cap": clip}, "clip must lie"
    for grid in (0.0, -GRID, math.nan, math.inf, 3 * GRID, 2.0, 2.0**-51):
        yield f"grid {grid}", {**good, "grid": grid}, "power of two"


@pytest.mark.parametrize(("arguments", "message"), [pytest.param(a, m, id=i) for i, a, m in bad_calls()])
def test_unsuitable_arrays_are_refused(arguments, message):
    geometry = Geometry(*(arguments[name] for name in Geometry._fields))
    others = {name: value for name, value in arguments.items() if name not in Geometry._fields}
    with pytest.raises(SpecificationError, match=message):
        kernels.gradient(**others, geometry=geometry)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="reads x86 assembly")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_loop_processes_records_side_by_side_without_counting_references(dtype):
    X, v, y, scale = problem(WIDTH, 2, dtype)
    kernels.gradient(X, v, y, LOGISTIC, Geometry(centres(2), scale, 1.0, GRID))
    columns = numba.typeof(kernels.read_only(X).T)
    vector, whole = numba.typeof(kernels.read_only(v)), numba.int64
    at = numba.typeof(kernels.checked(Geometry(centres(2), scale, 1.0, GRID), 2, WIDTH))
    signature = (columns, vector, vector, whole, at, whole, whole)
    fresh = numba.njit(nogil=True, error_model="numpy")(loops.gradient.py_func)
    fresh.compile(signature)
    (assembly,) = fresh.inspect_asm().values()
    lines = assembly.splitlines()
    costly = [k for k, line in enumerate(lines) if re.search(r"\bv?(divpd|sqrtpd)\b", line)]
    assert costly
    body = lines[costly[0] : costly[-1]]
    assert not [line for line in body if re.search(r"\bcallq?\b", line)]
