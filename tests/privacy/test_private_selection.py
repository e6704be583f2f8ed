"""The curve of a private selection against mechanisms that attain it, and its rounding to the safe side."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import betabinom

from vfl.base.types import Adjacency
from vfl.errors import LedgerError, PrivacyError
from vfl.privacy import gaussian_dp, private_selection
from vfl.privacy.accountants import (
    GaussianAccountant,
    PldAccountant,
    SelectionAccountant,
    ZCdpAccountant,
    choose_accountant,
)
from vfl.privacy.events import Gaussian, OnPart, Selection
from vfl.privacy.ledger import Accounting, FitBudget
from vfl.privacy.ledger.codec import decode, encode
from vfl.privacy.ledger.composition import accounting_for, cost
from vfl.privacy.private_selection import delta_of, dominating_mu, epsilon_of, mu_of
from vfl.privacy.spending import UNIT_BITS

REPLACE = Adjacency.REPLACE_ONE
SETTINGS = [(2, 1), (2, 9), (4, 4), (8, 4), (8, 9), (16, 1), (16, 4), (64, 4)]


def inclusion(u, m, a):
    """Return m ∫ a p^a (1 − pu)^{m−1} dp by its binomial series, which is exact for small m."""
    return sum(m * math.comb(m - 1, i) * (-u) ** i * a / (a + 1 + i) for i in range(m))


def attacked(epsilon, mu, m, a, slopes=(0.0,)):
    """Return δ of the strongest attack that is known: a true mechanism, so a lower bound of every valid curve.

    Each outcome is y ~ N(μ, 1) on one data set and N(0, 1) on the other, in cells. Scores put low outcomes first, the lowest on
    top, and each high outcome y ≥ e right after the low ones below τ(y). On the first data set an outcome of a large y, whose
    likelihood ratio is high, has few rivals above it; on the other it has more.
    """
    edges = np.concatenate([[-40.0], np.linspace(-8.0, 9.0 + mu, 3_000), [40.0]])
    y = (edges[:-1] + edges[1:]) / 2
    p, weights = (x / 2 for x in np.polynomial.legendre.leggauss((m + a) // 2 + 2))
    p = p + 0.5
    nothing = a * math.gamma(a) * math.gamma(m + 1) / math.gamma(a + m + 1)
    ratio = private_selection.Curve.of(mu, m, a).ratio
    start = max(2.0, (epsilon - math.log(ratio)) / mu + mu / 2)
    best = 0.0
    for tau, slope in itertools.product(ndtri(np.linspace(0.03, 0.97, 20)) + mu, slopes):
        ranks = np.argsort(np.where(y < start, y, tau + slope * (y - start)), kind="stable")
        sides = []
        for shift in (mu, 0.0):
            # Differences of Φ on the side where it is small.
            mass = np.where(y < shift, np.diff(ndtr(edges - shift)), -np.diff(ndtr(shift - edges)))
            above = np.empty_like(mass)
            above[ranks] = np.cumsum(mass[ranks]) - mass[ranks] / 2
            share = m * a * sum(q * v**a * (1 - v * above) ** (m - 1) for v, q in zip(p, weights, strict=True))
            sides.append(mass * (share + nothing))
        best = max(best, float(np.maximum(sides[0] - math.exp(epsilon) * sides[1], 0.0).sum()))
    return best


@pytest.mark.parametrize(  # every pair of two of the three
    ("m", "a", "mu", "steps"),
    [(*own, mu, (0.5, 3.5)[(k + j) % 2]) for k, own in enumerate(SETTINGS) for j, mu in enumerate((0.05, 0.4, 2.0))],
)
def test_the_curve_is_above_the_attack(m, a, mu, steps):
    epsilon = mu * steps
    assert delta_of(epsilon, mu, m, a) >= attacked(epsilon, mu, m, a) * (1 - 1e-6)


@pytest.mark.parametrize(("m", "a", "mu"), [(2, 4, 0.15), (4, 4, 0.14), (8, 4, 0.12), (8, 9, 0.5), (16, 4, 0.1)])
def test_the_curve_is_within_one_percent_of_the_attack(m, a, mu):
    epsilon = epsilon_of(mu, 1e-9, m, a)
    assert attacked(0.99 * epsilon, mu, m, a, slopes=(0.0, 0.3, -0.3, 0.8)) > 1e-9


@pytest.mark.parametrize("mu", [0.01, 0.3, 2.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 5.0])
def test_one_candidate_is_one_gaussian_run(mu, epsilon):
    assert delta_of(epsilon, mu, 1, 4) == gaussian_dp.delta_of(epsilon, mu)
    assert epsilon_of(mu, 1e-6, 1, 4) == gaussian_dp.epsilon_of(mu, 1e-6)
    assert dominating_mu(mu, 1, 4) == (1, 1)


def test_unequal_rivals_are_no_worse_than_equal_ones():
    """E[P ∏(1 − P u_i)] − k·E[P ∏(1 − P g(u_i))] is at most the supremum over equal u_i."""
    rng = np.random.default_rng(5)
    nodes, weights = np.polynomial.legendre.leggauss(24)
    p, weights = (nodes + 1) / 2, weights / 2
    for m, a, mu in itertools.product((2, 3, 4, 6), (1, 4, 9), (0.1, 0.7, 2.0)):
        weight = weights * a * p**a
        u = ndtr(rng.normal(0.0, 2.0, (1_000, m - 1)))
        u = np.concatenate([u, rng.choice([0.0, 1e-6, 0.5, 1.0], (200, m - 1))])
        with np.errstate(divide="ignore"):
            risen = ndtr(ndtri(u) + mu)
        one = np.prod(1 - p * u[:, :, None], axis=1) @ weight
        other = np.prod(1 - p * risen[:, :, None], axis=1) @ weight
        curve = private_selection.Curve.of(mu, m, a)
        for k in (0.3, 1.0, 1.05, 1.2, 0.98 * curve.ratio):
            best = np.interp(k, curve.k, curve.suprema, left=curve.peak, right=0.0) / m
            assert np.max(one - k * other) <= best + 1e-12


def test_candidates_with_unequal_laws_are_no_worse():
    """Mechanisms of two and three candidates on few outcomes, each with a law of its own, brought to the same μ."""
    rng = np.random.default_rng(11)
    mu, a = 0.8, 4
    for m in (2, 3):
        for _ in range(60):
            laws = []
            for _ in range(m):
                cuts = np.sort(rng.normal(0.4, 1.2, 3))
                one, other = (np.diff(np.r_[0.0, ndtr(cuts - shift), 1.0]) for shift in (mu, 0.0))
                laws.append((rng.permutation(4) + 0.1 * rng.random(4), one, other))
            masses = []
            for side in (1, 2):
                mass = np.zeros((m, 4))
                p, w = (x / 2 for x in np.polynomial.legendre.leggauss(16))
                p = p + 0.5
                for j, y in itertools.product(range(m), range(4)):
                    above = [float(law[side][law[0] > laws[j][0][y]].sum()) for i, law in enumerate(laws) if i != j]
                    wins = float(np.sum(w * a * p**a * np.prod([1 - p * u for u in above], axis=0)))
                    nothing = float(np.sum(w * a * p ** (a - 1) * (1 - p) ** m)) if j == 0 else 0.0
                    mass[j, y] = laws[j][side][y] * (wins + nothing)
                assert mass.sum() == pytest.approx(1.0)
                masses.append(mass)
            for epsilon in (0.0, 0.5, 1.5):
                for one, other in (masses, masses[::-1]):
                    assert np.maximum(one - math.exp(epsilon) * other, 0).sum() <= delta_of(epsilon, mu, m, a)


def test_the_inclusion_function_is_exact():
    u = np.linspace(0.0, 1.0, 11)
    for m, a in SETTINGS:
        if m <= 8:
            assert private_selection.inclusion(u, m, a) == pytest.approx(inclusion(u, m, a), rel=1e-12)
        assert private_selection.Curve.of(0.3, m, a).counts == pytest.approx(betabinom(m, a, 1).pmf(range(m + 1)))


@pytest.mark.parametrize(("m", "a"), SETTINGS)
def test_the_rounding_is_safe(m, a):
    """A finer grid gives a smaller bound, by less than 1 % of ε."""
    mu = 0.12
    coarse = epsilon_of(mu, 1e-8, m, a)
    fine = private_selection.Curve.of(mu, m, a, finer=4)
    assert fine.by_selection(coarse, 40_000) <= 1e-8
    assert fine.by_selection(0.992 * coarse, 40_000) > 1e-8


@pytest.mark.parametrize("delta", [1e-5, 1e-15])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 20.0])
def test_calibration_fits_and_wastes_nothing(epsilon, delta):
    for m, a in ((2, 1), (8, 4), (64, 4)) if epsilon == 1.0 else ((4, 4),):
        mu = mu_of(epsilon, delta, m, a)
        assert 0.9999 * epsilon <= epsilon_of(mu, delta, m, a) <= epsilon
        assert gaussian_dp.mu_of(epsilon, delta) / math.sqrt(m) * 0.99 <= mu <= gaussian_dp.mu_of(epsilon, delta)


def test_the_table_of_the_documentation():
    trial = {m: gaussian_dp.epsilon_of(mu_of(1.0, 1e-9, m, 4), 1e-9) for m in (4, 8, 16)}
    assert trial == pytest.approx({4: 0.772, 8: 0.655, 16: 0.556}, abs=1e-3)
    mu = gaussian_dp.mu_of(1.0, 1e-9)
    whole = {m: epsilon_of(mu, 1e-9, m, 4) for m in (4, 8, 16)}
    assert whole == pytest.approx({4: 1.294, 8: 1.520, 16: 1.785}, abs=1e-3)


def test_delta_is_never_zero():
    assert delta_of(30.0, 0.05, 4, 4) == 1e-290
    assert delta_of(0.0, 30.0, 4, 4) == 1.0


def test_delta_falls_with_epsilon_and_rises_with_mu_and_m():
    for m, a in ((2, 4), (8, 1)):
        falling = [delta_of(e, 0.3, m, a) for e in np.linspace(0.0, 2.0, 30)]
        assert falling == sorted(falling, reverse=True)
        rising = [delta_of(0.5, mu, m, a) for mu in np.linspace(0.02, 1.0, 30)]
        assert rising == sorted(rising)
    more = [delta_of(0.5, 0.2, m, 4) for m in (1, 2, 4, 8, 16)]
    assert more == sorted(more)


# --- the ledger ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mu", "m", "a"), [(0.002, 4, 4), (0.002, 64, 9), (0.4, 2, 1), (0.4, 16, 4), (8.0, 2, 1), (8.0, 64, 9)]
)
def test_the_dominating_gaussian_covers_the_curve_at_every_epsilon(mu, m, a):
    steps, of = dominating_mu(mu, m, a)
    dominating = mu * steps / of
    assert mu <= dominating <= mu * math.sqrt(m) * (1 + 1 / 256)
    for epsilon in mu * np.concatenate([[0.0], np.geomspace(1e-3, 30.0, 30)]):
        bound = min(delta_of(epsilon, mu, m, a), private_selection.Curve.of(mu, m, a).by_composition(epsilon))
        assert bound <= gaussian_dp.delta_of(epsilon, dominating) * (1 + 1e-9) + 1e-300


def test_the_factors_of_the_ledger_never_change():
    """They are part of the ledger's format: a ledger that was written with them is refused when they differ."""
    known = {(0.02, 2): 338, (0.02, 16): 923, (0.14, 4): 468, (0.14, 8): 656, (2.0, 4): 456, (2.0, 16): 834}
    assert {(mu, m): dominating_mu(mu, m, 4) for mu, m in known} == {key: (steps, 256) for key, steps in known.items()}


def test_a_tiny_mu_is_counted_by_composition():
    assert dominating_mu(1e-5, 4, 4) == (512, 256)
    assert delta_of(0.0, 1e-5, 4, 4) <= gaussian_dp.delta_of(0.0, 2e-3)


EVENT = Selection(REPLACE, 0.14, 8, 4)
DOMINATING = 0.14 * 656 / 256


def test_costs_of_a_selection():
    assert cost(EVENT, Accounting.GDP) / 2**UNIT_BITS == pytest.approx(DOMINATING**2, rel=1e-12)
    assert cost(EVENT, Accounting.ZCDP) / 2**UNIT_BITS == pytest.approx(DOMINATING**2 / 2, rel=1e-12)
    assert accounting_for([(EVENT, 1)]) is Accounting.GDP
    with pytest.raises(PrivacyError, match="Selection"):
        PldAccountant().compose(EVENT)
    with pytest.raises(PrivacyError, match="Selection"):
        GaussianAccountant().compose(EVENT)
    assert ZCdpAccountant().compose(EVENT).rho == pytest.approx(DOMINATING**2 / 2)


def test_a_selection_alone_is_counted_by_its_curve_and_with_others_by_its_gaussian():
    one = choose_accountant([EVENT], committed=True).compose(EVENT)
    assert isinstance(one, SelectionAccountant)
    assert one.epsilon(1e-9) == epsilon_of(0.14, 1e-9, 8, 4)
    two = SelectionAccountant().compose(EVENT).compose(Gaussian(REPLACE, 1.0, 10.0, 1))
    assert two.epsilon(1e-9) == pytest.approx(gaussian_dp.epsilon_of(math.hypot(DOMINATING, 0.1), 1e-9))
    sides = [OnPart(REPLACE, EVENT, "s", side) for side in ("training", "held out")]
    parts = SelectionAccountant().compose(sides[0]).compose(sides[1])
    parts.compose(OnPart(REPLACE, Gaussian(REPLACE, 1.0, 20.0, 1), "s", "test"))
    assert parts.epsilon(1e-9) == one.epsilon(1e-9)
    assert parts.delta(0.5) == one.delta(0.5)


def test_a_book_in_memory_grants_a_selection_that_fits():
    epsilon = epsilon_of(0.14, 1e-9, 8, 4)
    preview = FitBudget(epsilon * 1.0001, 1e-9).preview([(EVENT, 1)])
    assert preview.fits
    assert preview.accounting == "selection"
    assert preview.asked == epsilon
    assert not FitBudget(epsilon * 0.999, 1e-9).preview([(EVENT, 1)]).fits


def test_the_codec_restores_a_selection():
    for event in (EVENT, OnPart(REPLACE, EVENT, "s", "training")):
        assert decode(encode(event)) == event
    with pytest.raises(LedgerError, match="Selection event: mu"):
        decode(encode(EVENT).replace((0.14).hex(), (-1.0).hex()))


@pytest.mark.parametrize(
    ("mu", "candidates", "concentration"),
    [
        (0.0, 8, 4),
        (31.0, 8, 4),
        (math.nan, 8, 4),
        (0.1, 0, 4),
        (0.1, 65, 4),
        (0.1, 8, 0),
        (0.1, 8, 2.5),
        (0.1, True, 4),
    ],
)
def test_bad_events_are_refused(mu, candidates, concentration):
    with pytest.raises(PrivacyError, match=r"(?i)selection"):
        Selection(REPLACE, mu, candidates, concentration)


def test_bad_arguments_are_refused():
    for call in (
        lambda: delta_of(-1.0, 0.1, 4, 4),
        lambda: delta_of(1.0, 40.0, 4, 4),
        lambda: delta_of(1.0, -0.1, 4, 4),
        lambda: delta_of(1.0, 0.1, 65, 4),
        lambda: epsilon_of(0.1, 0.0, 4, 4),
        lambda: epsilon_of(0.1, 1e-6, 4, 1.5),
        lambda: mu_of(0.0, 1e-6, 4, 4),
        lambda: mu_of(1.0, 1.0, 4, 4),
        lambda: dominating_mu(math.inf, 4, 4),
    ):
        with pytest.raises(PrivacyError):
            call()
    with pytest.raises(PrivacyError, match="too small to choose among 64"):
        mu_of(1e-3, 1e-9, 64, 4)
