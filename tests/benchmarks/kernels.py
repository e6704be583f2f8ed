"""Kernel rates as ratios in one run: `python -m tests.benchmarks.kernels`. Contenders alternate; the best time counts.

The machine's own rate varies by a factor of two, so only ratios are meaningful.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numba
import numpy as np

from vfl.kernels import dense as kernels
from vfl.kernels import dense_loops as loops
from vfl.kernels.geometry import Geometry
from vfl.kernels.records import SUMS, WIDTH, add_to, cells, entries, lanes

if TYPE_CHECKING:
    from collections.abc import Callable

GRID = 2.0**-20


@numba.njit(error_model="numpy")
def unrounded(columns, centre, v, y, loss, scale, clip):
    """Return the clipped sum in floating point without the grid, to compare with rounding."""
    s, n = columns.shape
    sums = np.zeros((s, SUMS))
    for i in range(0, n - n % WIDTH, WIDTH):
        h2 = lanes()
        for j in range(s):
            t = scale[j] * (cells(columns, j, i, h2) - centre[j])
            h2 = h2 + t * t
        r = loops.clipped(loops.weight(entries(v, i, h2), entries(y, i, h2), loss), h2, clip, 1.0)
        for j in range(s):
            add_to(sums, j, (scale[j] * (cells(columns, j, i, h2) - centre[j])) * r)
    return sums.sum(axis=1)


@numba.njit
def bare_pass(X, w, v, y, scale, clip, rate):
    """Do a single-coordinate logistic pass as one would write it: scalar exp, clip, sum, margin update."""
    for j in range(X.shape[1]):
        x, u = X[:, j], 0.0
        for i in range(v.size):
            c = -y[i] / (1.0 + math.exp(y[i] * v[i])) * x[i] * scale[j]
            u += min(max(c, -clip), clip)
        delta = -rate * u
        w[j] += delta
        for i in range(v.size):
            v[i] += delta * x[i]


def our_pass(X, w, v, y, scale, clip, rate):
    """Do the same pass with exactly summed steps."""
    previous, delta, centre = X[:, :0], np.zeros(0), np.zeros(1)
    for j in range(X.shape[1]):
        block = X[:, j : j + 1]
        at = Geometry(centre, scale[j : j + 1], clip, GRID)
        kernels.forward(previous, delta, v)
        q = kernels.gradient(block, v, y, kernels.LOGISTIC, at)
        previous, delta = block, -rate * GRID * q
        w[j : j + 1] += delta
    kernels.forward(previous, delta, v)


def our_capped_pass(X, w, v, bounds, loss, cap, rate):
    """Do the same pass under a record cap, whose limits stand in `bounds`."""
    previous, delta, centre, one = X[:, :0], np.zeros(0), np.zeros(1), np.ones(1)
    at = Geometry(centre, one, cap, GRID)
    for j in range(X.shape[1]):
        block = X[:, j : j + 1]
        q = kernels.capped_step(previous, delta, 0.0, v, loss, block, at, bounds)
        previous, delta = block, -rate * GRID * q
        w[j : j + 1] += delta
    kernels.forward(previous, delta, v)


def best(repeats: int, **runs: Callable[[], object]) -> dict[str, float]:
    """Return the best time in seconds of each, alternating."""
    times = dict.fromkeys(runs, math.inf)
    for run in runs.values():
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name] = min(times[name], time.perf_counter() - start)
    return times


def show(title: str, times: dict[str, float], base: str) -> None:
    """Print times and their ratios to the base."""
    print(f"\n{title}")
    for name, seconds in times.items():
        print(f"  {name:28s} {1e6 * seconds:12.1f} µs   {seconds / times[base]:6.2f} × {base}")


def large(n: int, s: int, dtype: type, repeats: int = 15) -> dict[str, float]:
    """Time everything on one block that no cache holds; print and return the best seconds of each."""
    rng = np.random.default_rng(0)
    X = np.asfortranarray(rng.normal(size=(n, s)).astype(dtype))
    X_prev = np.asfortranarray(rng.normal(size=(n, s)).astype(dtype))
    v, y = rng.normal(size=n), np.sign(rng.normal(size=n))
    c, scale, delta, clip = np.zeros(s), np.ones(s), 1e-9 * np.ones(s), 3.0 * math.sqrt(s)
    k, at = kernels, Geometry(c, scale, clip, GRID)
    times = best(
        repeats,
        sum=X.sum,
        gradient_squared=lambda: k.gradient(X, v, y, k.SQUARED, at),
        gradient_logistic=lambda: k.gradient(X, v, y, k.LOGISTIC, at),
        unrounded_squared=lambda: unrounded(X.T, c, v, y, k.SQUARED, scale, clip),
        plain_squared=lambda: k.plain_gradient(X, v, y, k.SQUARED, at),
        plain_logistic=lambda: k.plain_gradient(X, v, y, k.LOGISTIC, at),
        forward=lambda: k.forward(X, delta, v),
        two_sums=lambda: (X.sum(), X_prev.sum()),
        second_moments=lambda: k.second_moments(X, scale, GRID),
        gradient_logistic_2_threads=lambda: k.gradient(X, v, y, k.LOGISTIC, at, threads=2),
    )
    show(f"{n} × {s} {np.dtype(dtype).name}", times, "sum")
    return times


def single_coordinates(n: int = 45_312, p: int = 9) -> None:
    """Time a single-coordinate pass of Electricity's shape, Python calls included."""
    rng = np.random.default_rng(0)
    X = np.asfortranarray(rng.normal(size=(n, p)))
    y, scale, rate = np.sign(rng.normal(size=n)), np.ones(p), 1.0 / n
    w, v, w2, v2 = np.zeros(p), np.zeros(n), np.zeros(p), np.zeros(n)
    bare_pass(X, w, v, y, scale, 3.0, rate)
    our_pass(X, w2, v2, y, scale, 3.0, rate)
    np.testing.assert_allclose(w2, w, rtol=0, atol=1e-6)
    times = best(
        100,
        bare=lambda: bare_pass(X, w, v, y, scale, 3.0, rate),
        ours=lambda: our_pass(X, w2, v2, y, scale, 3.0, rate),
    )
    show(f"single-coordinate pass, {n} × {p}", times, "bare")


@numba.njit(error_model="numpy", fastmath=True)
def five_vectors(previous, delta, v, x, bounds):
    """Read and write the same bytes as a step in a single column, with two multiplications per record and no sigmoid."""
    total = 0.0
    for i in range(v.size):
        v[i] += delta * previous[i]
        total += min(v[i], bounds[i]) * x[i]
    return total


def single_columns(n: int, p: int = 4, repeats: int = 25) -> dict[str, float]:
    """Time steps in single columns, alternately, and a loop that only moves their 40 bytes per record."""
    rng = np.random.default_rng(0)
    X = np.asfortranarray(rng.normal(size=(n, p)))
    v, bounds, one, delta = rng.normal(size=n), np.full(n, 2.0), np.ones(1), np.full(1, 1e-9)
    at, turns = Geometry(np.zeros(1), one, 2.0, GRID), [(j, (j + 1) % p) for j in range(p)]

    def steps(loss: int) -> None:
        for j, k in turns:
            kernels.capped_step(X[:, j : j + 1], delta, 0.0, v, loss, X[:, k : k + 1], at, bounds)

    times = best(
        repeats,
        sum=lambda: [X[:, k].sum() for _, k in turns],
        five_vectors=lambda: [five_vectors(X[:, j], 1e-9, v, X[:, k], bounds) for j, k in turns],
        residuals=lambda: steps(kernels.WEIGHTS),
        logistic=lambda: steps(kernels.LOGISTIC),
    )
    show(f"a step in a single column of {n} records", {name: took / p for name, took in times.items()}, "sum")
    return times


def calls() -> None:
    """Time the overhead of a call without any work."""
    X, v, c, one = np.ones((1, 1), order="F"), np.ones(1), np.zeros(1), np.ones(1)
    k, at = kernels, Geometry(c, one, 1.0, GRID)
    times = best(
        3000,
        gradient=lambda: k.gradient(X, v, v, k.SQUARED, at),
        forward=lambda: k.forward(X, one, v),
        plain_gradient=lambda: k.plain_gradient(X, v, v, k.SQUARED, at),
    )
    show("call overhead", times, "gradient")


if __name__ == "__main__":
    large(1_000_000, 16, np.float64)
    large(1_000_000, 16, np.float32)
    large(100_000, 10, np.float64)
    large(100_000, 100, np.float64)
    single_coordinates()
    single_columns(1_000_000)
    single_columns(100_000)
    calls()
