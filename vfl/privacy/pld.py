"""Accounting by privacy loss distributions (PLD), with dp-accounting (Koskela et al. 2020; Doroshenko et al. 2022).

Used for mixed events and for sampling, in plans fixed beforehand. Each event is represented by a pair (P, Q) that dominates
it:
the hockey-stick divergence H_α of (P, Q) is at least that of every adjacent pair of outputs, for every α ≥ 0. Such pairs
compose (Zhu, Dong, Wang 2022, Thm. 10). This module decides adjacency and scale, and gives the library the parameters of each
pair, since the library has other conventions (its PLD doubles the sensitivity under REPLACE_ONE).

**Gaussian.** N(0, 1) and N(μ, 1), with μ² = Σ (Δ/σ)² over all Gaussian events at once: exact (Dong, Roth, Su 2022).

**Laplace**, L1 sensitivity Δ in any dimension: Lap(0, b) and Lap(Δ, b). Decompose a shift v into its coordinates. For a
log-concave density, the best power at level a against a shift by |v_j| is F(F⁻¹(a) + |v_j|), a semigroup in |v_j|.
Chaining the tests can only increase power, so the power against v is at most F(F⁻¹(a) + |v|₁).

**Bounded range ε** (the exponential mechanism). The loss lies in an interval [t − ε, t]. Moving the loss's mass to the two ends
raises every H_α, and the best t is (ε + log α)/2. Hence H_α = (e^{ε/2} − √α)²/(e^ε − 1) for |log α| ≤ ε. A supremum of
divergences is itself the divergence of a pair (Zhu, Dong, Wang 2022, Prop. 8). The bound is sharp for one event. For many
events the best t depends on α, and ε²/8-zCDP can be tighter (for 100 events of ε = 0.1 by 8 % at δ = 1e-6 and by 9 % at 1e-9),
so `PldAccountant` takes the minimum.

**Poisson-subsampled Gaussian**, rate q, contributions of norm at most C = Δ/2, replace-one:

    P = (1−q) N(0, σ²) + q N(C, σ²),    Q = (1−q) N(0, σ²) + q N(−C, σ²).

Condition on the other sampled records: H is jointly convex, so one record's two values x, x′ of norm ≤ C remain. For α ≥ 1
write H_α = sup_A [q N_x(A) − (α−1)(1−q) N_0(A) − αq N_x′(A)] and split q = a + b between the two negative terms:

    H_α ≤ a H_{(α−1)(1−q)/a}(N_x ‖ N_0) + b H_{αq/b}(N_x ‖ N_x′),

Both terms increase in the distances, which are at most C and 2C. At x = C, x′ = −C on a line, all likelihood ratios are
monotone, so the best A is a half-line. The split for which both terms change sign at its end attains the bound.
For α < 1 exchange P and Q, which are mirror images. So one pair covers both directions, unlike add/remove. The proof
needs the bound C on the *norm*, that is, on the distance from 0, the contribution of an absent record. A bound Δ on
differences alone is not enough.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.errors import PrivacyError
from vfl.privacy import spending, zcdp
from vfl.privacy.events import BoundedRange, Event, Gaussian, Laplace, PoissonSubsampledGaussian, bare

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vfl.base.types import Vector

_VERSION = "0.6."
_INTERVAL = 1e-4  # largest step of the loss grid; a step of 1/100 of an event's μ changes ε by less than 1e-5
_CELLS = 2.0**20  # largest number of cells of the composed distribution
_TRUNCATED = 1e-15  # mass that one composition may move to infinite loss
_REACH = 10.0  # in standard deviations: the library cuts its Gaussians there, at mass e^−50
_LARGEST_LOSS = 600.0  # e^loss must be a double


class PldAccountant(spending.AccountantOfViews):
    """Accountant by privacy loss distributions. The events together are (ε, δ)-DP if their plan is fixed beforehand.

    Events may come in any order, but this is not a filter: events, counts and noise must not depend on released values.
    Supports Gaussian, Laplace, BoundedRange and PoissonSubsampledGaussian events. Without sampling, the answer is the smaller
    of this bound and zCDP's, since both hold for a fixed plan. With sampling, `epsilon` and `delta` raise PrivacyError if δ
    is too small, or the loss too large, for a distribution in double precision. Needs the extra `accounting`; without it,
    `check` and `compose` raise PrivacyError.
    """

    def _require_known(self, event: Event) -> None:
        _library()
        if type(bare(event)) not in (Gaussian, Laplace, BoundedRange, PoissonSubsampledGaussian):
            raise spending.unknown(
                event, "accounting by privacy loss distributions", "charge an event that dominates it instead"
            )

    def _epsilon_of(self, view: Mapping[Event, int], delta: float) -> float:
        return _smaller(
            view,
            lambda: _epsilon_of(tuple(view.items()), _within_precision(view, delta)),
            lambda rho: zcdp.epsilon_of_rho(rho, delta),
        )

    def _delta_of(self, view: Mapping[Event, int], epsilon: float) -> float:
        return _smaller(
            view,
            lambda: min(1.0, _compose(tuple(view.items())).get_delta_for_epsilon(epsilon) + _allowance(view)),
            lambda rho: zcdp.delta_of_rho(epsilon, rho),
        )


def _smaller(view: Mapping[Event, int], by_loss: Callable[[], float], by_rho: Callable[[float], float]) -> float:
    """Return the smaller of the bounds by loss distribution and by zCDP. With sampling, only the first bound is valid."""
    if any(type(event) is PoissonSubsampledGaussian for event in view):
        return _finite(float(by_loss()))
    bound = by_rho(spending.float_above(sum(spending.units(event, spending.rho) * n for event, n in view.items())))
    try:
        return min(bound, _finite(float(by_loss())))
    except PrivacyError:
        return bound


def _within_precision(view: Mapping[Event, int], delta: float) -> float:
    """Return δ minus an allowance for rounding. Raise PrivacyError if δ is below four times the allowance."""
    allowance = _allowance(view)
    if delta < 4.0 * allowance:
        raise PrivacyError(
            f"delta = {delta!r} is too small for the privacy loss distribution of a sampled plan, computed in "
            f"double precision: use a delta of at least {4.0 * allowance:.0e}"
        )
    return delta - allowance


def _allowance(view: Mapping[Event, int]) -> float:
    """Return an allowance in δ for the rounding of the curves (one ulp per event) and of the Fourier transforms.

    The allowance is a judgement, not a proof: it is about 20 times the largest underestimate measured on plain Gaussians.
    """
    return 2.0**-51 * (64 + sum(view.values()))


def _finite(value: float) -> float:
    if not 0.0 <= value < math.inf:
        raise PrivacyError("the plan has no finite privacy loss at this delta: use more noise, or a larger delta")
    return value


@lru_cache(maxsize=64)
def _epsilon_of(counts: tuple[tuple[Event, int], ...], delta: float) -> float:
    """Return ε at δ of all events together. The search takes up to a second, so results are cached."""
    return float(_compose(counts).get_epsilon_for_delta(delta))


@lru_cache(maxsize=8)
def _compose(counts: tuple[tuple[Event, int], ...]) -> Any:
    """Return the library's privacy loss distribution of all events together.

    Composition takes up to seconds. Calibration, planning and charging need the same few distributions, so the newest are
    cached.
    """
    gaussian = spending.root_above(
        sum(spending.units(e, spending.mu_squared) * c for e, c in counts if type(e) is Gaussian)
    )
    others = [(event, count) for event, count in counts if type(event) is not Gaussian]
    interval = _interval(gaussian, others)
    parts = [_pair(event, interval).self_compose(count, _TRUNCATED) for event, count in others]
    if gaussian:
        parts.append(gaussian_pair(1.0 / gaussian, interval))
    composed, *rest = parts
    for part in rest:
        composed = composed.compose(part, _TRUNCATED)
    return composed


def _pair(event: Event, interval: float) -> Any:
    """Return the library's privacy loss distribution of one event, from the pair in the module docstring."""
    if isinstance(event, PoissonSubsampledGaussian):
        # The library's replace-one sensitivity is the shift of each mixture: C, not Δ = 2C.
        return gaussian_pair(event.sigma / (event.sensitivity / 2.0), interval, event.rate)
    factories, masses, _ = _library()
    if isinstance(event, Laplace):
        return factories.from_laplace_mechanism(event.scale / event.sensitivity, value_discretization_interval=interval)
    if isinstance(event, BoundedRange):
        last = math.ceil(event.epsilon / interval)
        curve = bounded_range_curve(np.arange(-last, last + 1, dtype=np.float64) * interval, event.epsilon)
        pmf = masses.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -last, last, curve)
        return factories.PrivacyLossDistribution(pmf)
    raise spending.unknown(event, "accounting by privacy loss distributions", "charge an event that dominates it")


def gaussian_pair(deviation: float, interval: float, rate: float | None = None) -> Any:
    """Return the library's privacy loss distribution of N(0, s²) and N(1, s²), or for a rate of the sampled pair with C = 1.

    The distribution equals that of the library's `from_gaussian_mechanism` to the bit. The library calls Python for every cell.
    """
    factories, masses, mechanisms = _library()
    adjacency = mechanisms.AdjacencyType.REMOVE if rate is None else mechanisms.AdjacencyType.REPLACE
    pair = mechanisms.GaussianPrivacyLoss(deviation, sampling_prob=rate or 1.0, adjacency_type=adjacency)
    bounds = pair.connect_dots_bounds()
    first, last = math.floor(bounds.epsilon_lower / interval), math.ceil(bounds.epsilon_upper / interval)
    losses = np.arange(first, last + 1) * interval
    ends = -0.5 - losses * deviation**2 if rate is None else _ends(losses, deviation, rate)
    curve = np.clip(pair.mu_upper_cdf(ends) - np.exp(losses + pair.mu_lower_log_cdf(ends)), 0.0, 1.0)
    pmf = masses.create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, curve)
    return factories.PrivacyLossDistribution(pmf)


def _ends(losses: Vector, deviation: float, rate: float) -> Vector:
    """Return the largest outputs x at which the sampled pair has at least these losses L, (m,).

    The outputs solve sinh(x/s² + L/2) = −sinh(L/2) e^{1/(2s²)} (1−q)/q.
    """
    if rate == 1.0:
        return -losses * deviation**2 / 2.0
    # log(sinh(|L|/2)), by the functions of `math`: those of NumPy round differently on some processors.
    half = 0.5 * abs(losses)
    tails = [math.log1p(-math.exp(-2.0 * a)) if a else -math.inf for a in half.tolist()]
    right = 0.5 * (1.0 / deviation) ** 2 + math.log1p(-rate) - math.log(rate) + (half + tails - math.log(2.0))
    inverse = np.logaddexp(0.5 * np.logaddexp(0.0, 2.0 * right), right)
    ends: Vector = deviation**2 * (np.where(losses < 0.0, inverse, -inverse) - losses / 2.0)
    return ends


def bounded_range_curve(log_alpha: Vector, epsilon: float) -> Vector:
    """Return sup H_α over all pairs of bounded range ε: (e^{ε/2} − √α)²/(e^ε − 1); beyond |log α| = ε, max(0, 1 − α).

    log_alpha : (m,) float64. Source: Dong, Durfee, Rogers 2020; derivation in the module docstring. The form of the formula in
        the code does not overflow.
    """
    inside = np.clip(log_alpha, -epsilon, epsilon)
    curve = np.expm1(0.5 * (inside - epsilon)) ** 2 / -np.expm1(-epsilon)
    return np.asarray(np.where(log_alpha < -epsilon, -np.expm1(np.minimum(log_alpha, 0.0)), curve))


def _interval(gaussian: float, others: list[tuple[Event, int]]) -> float:
    """Return the step of the loss grid: 1/100 of the smallest event's loss, or more if the grid would be too large.

    Every step is valid, since the library rounds losses up. A large step only makes the bound less tight.
    """
    scales = [(gaussian, gaussian * (_REACH + 0.5 * gaussian), 1)] if gaussian else []
    for event, count in others:
        if isinstance(event, PoissonSubsampledGaussian):
            μ = event.sensitivity / event.sigma
            # The typical loss follows from χ² of either mixture against N(0, σ²); the extremes follow from Δ/σ.
            typical = min(μ, 2.0 * event.rate * math.sqrt(math.sinh(min(0.25 * μ * μ, 50.0))))
            scales.append((typical, μ * (_REACH + 0.5 * μ), count))
        else:
            ε = event.sensitivity / event.scale if isinstance(event, Laplace) else event.epsilon  # type: ignore[attr-defined]
            scales.append((ε, ε, count))
    variance = sum(typical * typical * count for typical, _, count in scales)
    reach = max(extreme for _, extreme, _ in scales) + 0.5 * variance + _REACH * math.sqrt(variance)
    if reach > _LARGEST_LOSS:
        raise PrivacyError(
            "the sampled plan loses more privacy than a privacy loss distribution can represent: "
            "use more noise or fewer releases"
        )
    return max(min(_INTERVAL, 0.01 * min(typical for typical, _, _ in scales)), 2.0 * reach / _CELLS)


def _library() -> tuple[Any, Any, Any]:
    """Return dp-accounting's factories, mass functions and mechanisms; raise PrivacyError if it is not installed."""
    remedy = "accounting for mixes and sampling needs dp-accounting 0.6: pip install 'vfl[accounting]'"
    try:
        version = importlib.metadata.version("dp-accounting")
        if not version.startswith(_VERSION):
            # Conventions of adjacency and counting differ between versions of dp-accounting.
            raise PrivacyError(f"{remedy} (found {version})")
        factories = importlib.import_module("dp_accounting.pld.privacy_loss_distribution")
        masses = importlib.import_module("dp_accounting.pld.pld_pmf")
        mechanisms = importlib.import_module("dp_accounting.pld.privacy_loss_mechanism")
    except ImportError as error:
        raise PrivacyError(f"{remedy} ({error})") from None
    return factories, masses, mechanisms
