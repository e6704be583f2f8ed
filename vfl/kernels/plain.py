"""Operations in plain Numba: a few that all loops use, and replacements, for one record, of those in vfl.kernels.machine.

The replacements are used where hand-made LLVM code does not compile. Integer sums and margins are equal to the bit. Sums of
floats, which occur only without privacy, are added in a different order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from vfl.kernels.compile import MAGIC, MAGIC_BITS, part

WIDTH, SUMS = 1, 1
_BIAS = np.uint64(MAGIC_BITS)
_POWERS = np.array([0.0, *np.ldexp(1.0, np.arange(-1022, 1024)), math.inf])  # 2^(e − 1023) at e


@part
def load(columns: Any, j: Any, i: int) -> Any:
    """Return columns[j, i]. Unsigned indices need no test for negative values, which would cost more than an addition."""
    return columns[np.uint64(j), np.uint64(i)]


@part
def at(vector: Any, i: int) -> Any:
    """Return vector[i], without testing the index (see `load`)."""
    return vector[np.uint64(i)]


@part
def add_bits(total: Any, x: Any) -> Any:
    """Return total + bits(x) modulo 2⁶⁴. Unsigned sums may wrap; Numba promises the compiler that signed sums never wrap."""
    return np.int64(np.uint64(total) + np.float64(x).view(np.uint64))


@part
def unbiased(total: Any, count: Any) -> Any:
    """Return total − count·bits(MAGIC) modulo 2⁶⁴. This turns a sum of bits into the sum of the integers."""
    return np.int64(np.uint64(total) - np.uint64(count) * _BIAS)


@part
def lanes() -> float:
    """Return 0, the counterpart of a zero in every lane."""
    return 0.0


@part
def at_least(a: Any, b: Any, then: Any, other: Any) -> Any:
    """Return `then` where a ≥ b, else `other`. Where a or b is NaN, return `other`."""
    return then if a >= b else other


@part
def align_stack() -> None:
    """Do nothing: only loops with vector registers need this."""


@part
def least(a: Any, b: Any) -> Any:
    """Return a where a < b, else b. Where a or b is NaN, return b."""
    return a if a < b else b


@part
def most(a: Any, b: Any) -> Any:
    """Return a where a > b, else b. Where a or b is NaN, return b."""
    return a if a > b else b


@part
def signed_by(x: Any, sign: Any) -> Any:
    """Return x with its sign changed where the sign bit of `sign` is set."""
    return x * math.copysign(1.0, sign)


@part
def magnitude(x: Any) -> Any:
    """Return x without its sign."""
    return abs(x)


@part
def root(x: Any) -> Any:
    """Return √x."""
    return math.sqrt(x)


@part
def power_of_two(k: Any) -> Any:
    """Return 2^k for k given as k + 1023 + MAGIC, −1022 ≤ k ≤ 1024 (the last gives infinity); NaN for NaN."""
    return k if k != k else _POWERS[int(k - MAGIC)]


@part
def cells(columns: Any, j: int, i: int, _like: float) -> float:
    """Return columns[j, i]."""
    return np.float64(columns[j, i])


@part
def entries(vector: Any, i: int, _like: float) -> float:
    """Return vector[i]."""
    return np.float64(vector[i])


@part
def put(vector: Any, i: int, x: Any) -> None:
    """Write x to vector[i]."""
    vector[i] = x


def _sum(total: Any, x: Any) -> Any:
    return total + x


@overload(_sum)
def _choose(total, x):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, ARG001 - numba compares this signature with the lambda's
    if isinstance(total, types.Integer):
        return lambda total, x: add_bits(total, x)  # noqa: PLW0108 - numba compiles a function of Python
    return lambda total, x: total + x


@part
def add_to(sums: Any, j: int, x: float) -> None:
    """Add x to row j of sums, (s, 1): as a number if sums are float64, as bits modulo 2⁶⁴ if sums are int64."""
    sums[j, 0] = _sum(sums[j, 0], x)


@part
def fetch(_columns: Any, _j: int, _i: int, _like: float) -> None:
    """Do nothing: plain operations do not prefetch."""


@part
def fetch_row(_table: Any, _row: int) -> None:
    """Do nothing: plain operations do not prefetch."""
