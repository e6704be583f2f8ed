"""Private selection among m candidates, each trained once: curve δ(ε), calibration, and a Gaussian that dominates it.

The mechanism. Every candidate is trained once, and nothing is released yet. Each outcome (model, score) is μ-GDP, and the
outcomes are independent given the data. Then P is drawn: the maximum of `a` uniform numbers, where a is `concentration`. Each
candidate is included with probability P, independently, and the best included candidate is released with its score. If no
candidate is included, candidate 1 is released.

Guarantee. The release is (ε, δ)-DP for every ε ≥ 0 with

    δ(ε) = ∫ φ(z − μ) · sup_{0≤u≤1} [c(u) − e^{ε − μz + μ²/2} c(g(u))]₊ dz  +  a·B(a, m+1) · δ(ε; μ),
    c(u) = m ∫₀¹ a p^a (1 − pu)^{m−1} dp,     g(u) = Φ(Φ⁻¹(u) + μ),

where δ(ε; μ) is the function of `gaussian_dp`. docs/mathematics.md has the proof. The release is also
(ε, E δ(ε; √max(K, 1)·μ))-DP, where K is the number of included candidates: by composition, the K outcomes together are
√K·μ-GDP, and one of these outcomes is released.

All functions round to the safe side. Let s = Φ⁻¹(u) and C = c∘Φ, which is decreasing. On a cell [s, s + h] and for s′ in it:

    C(s′) − k·C(s′ + μ) ≤ C(s) − k·C(s + h + μ).

So the supremum over u is at most a maximum of lines in k. This maximum is computed on a grid of k, once for each μ. The
maximum is convex, so between two grid points it is at most the chord. The integrand's supremum rises with z, so each cell of
z gets the value at the cell's right end times the exact Gaussian mass of the cell. `_ROUNDING` allows for floating point.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import PrivacyError
from vfl.privacy import gaussian_dp
from vfl.privacy.events import LARGEST_SELECTED_MU, require_selection
from vfl.privacy.gaussian_dp import require_delta, require_epsilon

if TYPE_CHECKING:
    from vfl.base.types import Vector

_SMALLEST_MU = 1e-3
_SMALLEST_DELTA = 1e-290  # below it, normal tails underflow
_CELLS_OF_MU = 250  # cells of s per μ; rounding to cells has the effect of a μ larger by one cell
_FINEST = 1e-4  # smallest width of a cell of s
_SPAN = 8.0  # largest |s|; beyond it, c(u) changes by less than 1e-13 of itself
_K_POINTS = 600
_Z_CELLS = 8_000
_REACH = 10.0  # standard deviations of z beyond the first point with a positive integrand
_ROUNDING = 1e-11  # relative error of C, of sums and of masses, with a wide margin
_STEPS_OF_FACTOR = 256


def delta_of(epsilon: float, mu: float, candidates: int, concentration: int) -> float:
    """Return a δ, rounded up, for which a selection among μ-GDP outcomes is (ε, δ)-DP; at most 1.

    epsilon : ε ≥ 0. mu : 0 ≤ μ ≤ 30. candidates, concentration : m and a. For m = 1 the result is δ(ε; μ) of the one outcome.
        Rounding to the safe side costs less than 1 % of ε for μ ≥ 0.005. Raises PrivacyError for values outside these ranges.
    """
    require_epsilon(epsilon, zero=True)
    require_selection(candidates, concentration)
    if candidates == 1 or _require_mu(mu) == 0.0:
        return gaussian_dp.delta_of(epsilon, mu)
    curve = Curve.of(max(mu, _SMALLEST_MU), candidates, concentration)
    return max(_SMALLEST_DELTA, min(1.0, curve.by_selection(epsilon), curve.by_composition(epsilon)))


@lru_cache(maxsize=256, typed=True)
def epsilon_of(mu: float, delta: float, candidates: int, concentration: int) -> float:
    """Return an ε, rounded up, for which a selection among μ-GDP outcomes is (ε, δ)-DP; 0 if δ alone is enough.

    Arguments and errors as in `delta_of`, with 0 < δ < 1.
    """
    require_selection(candidates, concentration)
    require_delta(delta)
    if candidates == 1 or _require_mu(mu) == 0.0:
        return gaussian_dp.epsilon_of(mu, delta)

    def holds(epsilon: float) -> bool:
        return delta_of(epsilon, mu, candidates, concentration) <= delta

    if holds(0.0):
        return 0.0
    # By composition, the outcomes of all candidates together are √m·μ-GDP.
    low, high = 0.0, gaussian_dp.epsilon_of(mu * math.sqrt(candidates) * (1.0 + 1e-12), delta)
    while not holds(high):
        low, high = high, high * 1.01
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


@lru_cache(maxsize=256, typed=True)
def mu_of(epsilon: float, delta: float, candidates: int, concentration: int) -> float:
    """Return the budget μ of one trial (one candidate's training), rounded down.

    It is the largest budget with which the selection is (ε, δ)-DP.

    epsilon : ε > 0 of the whole selection. delta : 0 < δ < 1. candidates, concentration : m and a, whole numbers from 1 to 64.
        Raises PrivacyError for other values, and for an ε that leaves a trial with μ below 0.001. `epsilon_of(mu_of(epsilon,
        delta, m, a), delta, m, a) <= epsilon` always holds.
    """
    require_selection(candidates, concentration)
    plain = gaussian_dp.mu_of(epsilon, delta)
    if candidates == 1:
        return plain
    # An ε of 1e-7 less leaves room for the bisection in `epsilon_of`.
    target, goal = epsilon * (1.0 - 1e-7), math.log(delta)

    def excess(mu: float) -> float:
        return math.log(delta_of(target, mu, candidates, concentration)) - goal

    # All outcomes together are √m·μ-GDP, and a selection costs at least as much as one candidate.
    low, high = max(_SMALLEST_MU, plain / math.sqrt(candidates) * 0.999), min(plain, LARGEST_SELECTED_MU)
    if not low < high or (below := excess(low)) > 0.0:
        raise PrivacyError(
            f"epsilon = {epsilon!r} at delta = {delta!r} is too small to choose among {candidates} candidates: raise "
            "epsilon, or name fewer candidates"
        )
    above, halve = excess(high), False
    while high - low > 1e-7 * low and not -1e-5 < below <= 0.0:
        # The logarithm of δ is nearly linear in that of μ; every second step halves the bracket.
        share = 0.5 if halve else min(0.99, max(0.01, (below + 5e-6) / (below - above)))
        middle = low * (high / low) ** share
        value = excess(middle)
        if value > 0.0:
            high, above = middle, value
        else:
            low, below = middle, value
        halve = not halve
    return low


@lru_cache(maxsize=256, typed=True)
def dominating_mu(mu: float, candidates: int, concentration: int) -> tuple[int, int]:
    """Return integers (k, d): a selection among μ-GDP outcomes is (k/d)·μ-GDP. k/d is at most √candidates.

    Let μ′ = (k/d)·μ. The bound δ(ε; μ′) holds for all ε ≥ 0, in both directions, and therefore as a trade-off function (Dong,
    Roth, Su 2022, Cor. 2.13). k/d is the smallest multiple of 1/256 that passes the check below. The ledger stores only the
    event and recomputes k/d. The grid of 1/256 is part of the ledger's format, and coarse so that all machines compute the same
    k/d.

    The check compares cells of ε one after another, up to a point E from which one comparison is valid for all larger ε. Both
    bounds of `delta_of` fall with ε. So on a cell [ε_i, ε_{i+1}] it is enough if their value at the left end is at most
    δ(ε_{i+1}; μ′). From E on, with L = log sup c(u)/c(g(u)), the first bound is at most (c(0) + aB(a, m+1))·δ(ε − L; μ). With
    t = (ε−L)/μ − μ/2, t′ = ε/μ′ − μ′/2 and Mills' ratio R, the logarithm of δ(ε−L; μ)/δ(ε; μ′) has the derivative

        −R(t+μ)/(R(t) − R(t+μ)) + R(t′+μ′)/(R(t′) − R(t′+μ′)).

    R is log-convex, so R(t)/R(t+μ) falls with t and rises with μ. If t ≥ t′ and μ ≤ μ′, the derivative is therefore at most
    0. Both inequalities stay true as ε grows. So one check at E is valid for the tail.
    """
    require_selection(candidates, concentration)
    if candidates == 1 or _require_mu(mu) == 0.0:
        return 1, 1
    most = math.ceil(math.sqrt(candidates) * _STEPS_OF_FACTOR)  # composition: all outcomes together
    if mu < _SMALLEST_MU:
        return most, _STEPS_OF_FACTOR
    curve = Curve.of(mu, candidates, concentration)
    cells = curve.cells()
    low, high = _STEPS_OF_FACTOR, most
    while high - low > 1:
        middle = (low + high) // 2
        if _dominated_by(curve, cells, mu * middle / _STEPS_OF_FACTOR):
            high = middle
        else:
            low = middle
    return high, _STEPS_OF_FACTOR


def _require_mu(mu: float) -> float:
    if not (mu == 0 or 1e-140 <= mu <= LARGEST_SELECTED_MU):
        raise PrivacyError(f"private selection: μ of a candidate must be 0, or positive and at most 30, not {mu!r}")
    return mu


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Upper bounds on δ of a selection at every ε, for one μ > 0, m ≥ 2 and a.

    k, suprema : (l,) ascending grid points k, and at each point an upper bound on sup_u [c(u) − k·c(g(u))]₊. The supremum is
        convex in k, so between two points it is at most the chord. Below the first point it is at most `peak`.
    ratio : last grid point, at least sup_u c(u)/c(g(u)); from this point on the supremum is 0. peak : upper bound on c(0).
    counts : (m + 1,) probabilities of K = 0, 1, ..., m included candidates.
    """

    mu: float
    k: Vector
    suprema: Vector
    ratio: float
    peak: float
    counts: Vector

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, mu: float, m: int, a: int, finer: int = 1) -> Curve:
        """Return the curve, from a cache. finer : factor on the numbers of grid points. Larger factors give tighter bounds."""
        from scipy.special import ndtr

        cells = max(1, min(finer * _CELLS_OF_MU, round(mu / _FINEST)))
        cells = max(cells, math.ceil(400.0 * mu))
        h = mu / cells
        n = math.ceil((2.0 * _SPAN + mu) / h)
        s = -_SPAN - mu + h * np.arange(n + cells + 2)
        C = inclusion(ndtr(s), m, a)
        ends = inclusion(np.array([0.0, 1.0]), m, a)
        # The cells, from u = 0 to u = 1; the first and the last cell are unbounded in s.
        levels = np.concatenate([ends[:1], C[: n + 1]])
        slopes = np.concatenate([C[cells : cells + 1], C[cells + 1 : cells + 1 + n], ends[1:]])
        levels, slopes = levels * (1.0 + _ROUNDING), slopes * (1.0 - _ROUNDING)
        ratio = float(np.max(levels / slopes)) * (1.0 + _ROUNDING)
        # k = ratio·e^{−μt}, where t is the distance from the first z that counts; finer near 0.
        k = ratio * np.exp(-mu * 2.1 * _REACH * np.linspace(1.0, 0.0, finer * _K_POINTS) ** 2)
        suprema = np.array([max(0.0, float(np.max(levels - point * slopes))) for point in k])
        counts = [math.comb(m, n) * a * (1.0 / ((n + a) * math.comb(m + a, n + a))) for n in range(m + 1)]
        return cls(mu, k, suprema, ratio, float(levels[0]), np.array(counts))

    def by_selection(self, epsilon: float, z_cells: int = _Z_CELLS) -> float:
        """Return the first bound of the module docstring at ε ≥ 0, rounded up."""
        from scipy.special import ndtr

        mu = self.mu
        # t = z − μ. Below `first` the integrand is 0.
        first = (epsilon - math.log(self.ratio)) / mu - 0.5 * mu
        low = max(first, -_REACH)
        high = math.hypot(max(low, 0.0), _REACH)
        t = np.linspace(low, high, z_cells + 1)
        k = np.exp(np.minimum(epsilon - mu * t - 0.5 * mu * mu, 700.0)) * (1.0 - _ROUNDING)
        value = np.interp(k, self.k, self.suprema, left=self.peak, right=0.0)
        # Differences of Φ on the side where it is small.
        mass = np.where(t[1:] <= 0.0, ndtr(t[1:]) - ndtr(t[:-1]), ndtr(-t[:-1]) - ndtr(-t[1:]))
        whole = float(value[1:] @ mass) + self.peak * float(ndtr(-high))
        if first < low:
            whole += float(value[0]) * float(ndtr(low))
        return (whole + float(self.counts[0]) * gaussian_dp.delta_of(epsilon, mu)) * (1.0 + 1e-9)

    def by_composition(self, epsilon: float) -> float:
        """Return the second bound of the module docstring, E δ(ε; √max(K, 1)·μ), rounded up."""
        each = (
            p * gaussian_dp.delta_of(epsilon, math.sqrt(max(k, 1)) * self.mu * (1.0 + 1e-15))
            for k, p in enumerate(self.counts)
        )
        return math.fsum(each) * (1.0 + 1e-9)

    def cells(self) -> tuple[tuple[float, float, float], ...]:
        """Return (start, end, bound) for consecutive cells of ε from 0 on. `bound` is δ at `start`, the largest in a cell."""
        x = np.concatenate([np.arange(0.0, 12.0, 0.008), np.geomspace(12.0, 36.0, 120)]) * self.mu
        points = x.tolist()
        return tuple(
            (start, end, max(_SMALLEST_DELTA, min(self.by_selection(start, 2_000), self.by_composition(start))))
            for start, end in itertools.pairwise(points)
        )

    def falls_below(self, epsilon: float, mu: float) -> bool:
        """Return True if one check at ε shows that the curve stays below δ(·; μ′) from ε on (see `dominating_mu`). mu : μ′."""
        rest = epsilon - math.log(self.ratio)
        if rest < 0.0 or rest / self.mu - 0.5 * self.mu < epsilon / mu - 0.5 * mu:
            return False
        factor = math.log(self.peak + float(self.counts[0]))
        # log_delta_of rounds up, by far less than 1e-9.
        return factor + gaussian_dp.log_delta_of(rest, self.mu) <= gaussian_dp.log_delta_of(epsilon, mu) - 1e-9


def _dominated_by(curve: Curve, cells: tuple[tuple[float, float, float], ...], mu: float) -> bool:
    """Return True if the check of `dominating_mu` shows that δ of the curve is at most δ(·; μ′). mu : μ′."""
    for start, end, bound in cells:
        if curve.falls_below(start, mu):
            return True
        if bound > gaussian_dp.delta_of(end, mu) * (1.0 - 1e-9):
            return False
    return False


def inclusion(u: Vector, m: int, a: int) -> Vector:
    """Return c(u) = m ∫₀¹ a p^a (1 − pu)^{m−1} dp for u (n,), exact up to rounding: the integrand is a polynomial."""
    nodes, weights = np.polynomial.legendre.leggauss((a + m) // 2 + 2)
    p, weights = 0.5 * (nodes + 1.0), 0.5 * weights
    total = np.zeros_like(u)
    for node, weight in zip(p, weights, strict=True):
        total += weight * node**a * (1.0 - node * u) ** (m - 1)
    return total * (m * a)
