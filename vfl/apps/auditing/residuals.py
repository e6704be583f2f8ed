"""White-box checks of a job's runs: noise has the stated size and never repeats; no record moves a sum by more than Δ.

The residual of a Gaussian release is (u − s)/σ: the released value u minus the exact sum s, in units of the charged noise.
The noise is a normal variable rounded to the public grid g of the release. The checks therefore draw each residual anew from
the normal distribution within the residual's rounding interval, (u − s ± g/2)/σ. In a correct run the drawn residuals are
exactly independent standard normal variables, for every solver and every grid. Noise on a coarser grid than the public one
stays on that grid and fails the checks. Every p-value bounds the probability of a false alarm, for any number of runs and
releases whose grid is known.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vfl.apps.auditing.bounds import allowed, moved
from vfl.privacy.events import Gaussian, PoissonSubsampledGaussian

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.apps.auditing.rehearsal import Release, Transcript
    from vfl.base.types import Vector

ROUNDING = 1e-9
"""Relative error of doubles in the difference between two exact sums."""
MOST_COLUMNS = 1500
"""Largest number of residuals per run that are tested for correlation."""
FINE = 2.0**-40
"""Residuals whose grid is finer than this share of σ are not drawn anew."""
TEMPERATURES = (0.25, 0.5, 0.7, 1.4, 2.0, 4.0)


@dataclass(frozen=True)
class Check:
    """Outcome of one check.

    p : bound on the probability that a correct job gives this outcome or a worse one; 0 if a correct job never does.
    passed : True if p is not below the level of the check. said : finding of the check, in words.
    """

    name: str
    p: float
    passed: bool
    said: str


def checks_of(runs: Sequence[Transcript], *, size: int, paid: float, level: float) -> tuple[Check, ...]:
    """Return all checks of these runs, which together give a false alarm with probability at most `level`.

    size : k, number of canaries. paid : √Σ (Δ/σ)² of all charges to one record.
    """
    found = [_charges(runs), _shifts(runs, size, paid)]
    made = [check for check in (_variance(runs), _repeats(runs), _choices(runs), _batches(runs)) if check is not None]
    return (*found, *(Check(name, p, p >= level / len(made), said) for name, p, said in made))


Made = tuple[str, float, str]


def _charges(runs: Sequence[Transcript]) -> Check:
    made = [release for run in runs for release in run.releases]
    unpaid = [release.name for release in made if not release.paid]
    said = f"{unpaid[0]}: nothing is charged for it" if unpaid else f"all {len(made):,} releases are paid for"
    return Check("charges", 0.0 if unpaid else 1.0, not unpaid, said)


def _shifts(runs: Sequence[Transcript], size: int, paid: float) -> Check:
    """Check that no release moves by more than kΔ, and that the charges pay for all moves together."""
    worst, where, farthest = 0.0, "", 0.0
    for run in runs:
        farthest = max(farthest, math.sqrt(math.fsum(moved(release) ** 2 for release in run.releases)))
        for release in run.releases:
            shift = moved(release)
            ratio = math.inf if release.event is None and shift else 0.0
            if release.event is not None:
                ratio = shift / (size * allowed(release.event))
                if release.absent is not None:  # Δ of a sampled release bounds 2‖contribution‖
                    σ = release.event.sigma  # type: ignore[attr-defined]
                    alone = max(float(np.linalg.norm(s - release.absent)) for s in release.exact) / σ
                    ratio = max(ratio, 2.0 * alone / allowed(release.event))
            if ratio > worst:
                worst, where = ratio, release.name + (f", party {release.party}" if release.party else "")
    largest = "no release moves" if not where else f"largest shift {worst:.4f} of its sensitivity ({where})"
    together = farthest / (size * paid) if paid else math.inf if farthest else 0.0
    said = f"{largest}; all shifts together {together:.4f} of the charged total"
    fits = worst <= 1.0 + ROUNDING and together <= 1.0 + ROUNDING
    return Check("shifts", 0.0 if not fits else 1.0, fits, said)


def _differences(release: Release) -> Vector | None:
    """Return u − s, (s,); None for a release without Gaussian noise."""
    if release.selection or not isinstance(release.event, Gaussian | PoissonSubsampledGaussian):
        return None
    return np.asarray(release.value - release.true)


def _rows(runs: Sequence[Transcript]) -> list[list[tuple[str, Vector]]]:
    """Return the residuals of every run, [(name of the release, residuals)]. A fixed seed makes the random draws repeatable."""
    rng = np.random.default_rng(0)
    made = []
    for run in runs:
        row = [(r, d) for r in run.releases if (d := _differences(r)) is not None]
        made.append([(r.name, _unrounded(d / (σ := r.event.sigma), r.grid, σ, rng)) for r, d in row])  # type: ignore[union-attr]
    return made


def _unrounded(rounded: Vector, of_sums: Vector | None, sigma: float, rng: np.random.Generator) -> Vector:
    """Return standard normal variables given their roundings, (s,). of_sums : (s,) grids in the unit of the sums."""
    from scipy.special import ndtr, ndtri

    grid = np.zeros(rounded.size) if of_sums is None else of_sums / sigma
    if not (grid > FINE).any():
        return rounded
    near, far = -abs(rounded) + grid / 2, -abs(rounded) - grid / 2  # in the lower tail, where ndtr is precise
    low, high = ndtr(far), ndtr(near)
    q = low + (high - low) * rng.random(rounded.size)
    found = np.where((q > 0.0) & (grid > FINE), ndtri(np.maximum(q, 5e-324)), -abs(rounded))
    return np.where(rounded > 0, -found, found)


def _variance(runs: Sequence[Transcript]) -> Made | None:
    """Check by two-sided χ² tests the variance of all residuals, and of each release over the runs. Check the grid, too."""
    from scipy.stats import chi2

    rows = _rows(runs)
    groups: dict[int, list[Vector]] = {}
    names: dict[int, str] = {}
    for row in rows:
        for place, (name, e) in enumerate(row):
            groups.setdefault(place, []).append(e)
            names.setdefault(place, name)
    if not groups:
        return None

    def tail(values: Vector) -> float:
        total = float(values @ values)
        return 2.0 * min(float(chi2.cdf(total, values.size)), float(chi2.sf(total, values.size)), 0.5)

    everything = np.concatenate([e for group in groups.values() for e in group])
    whole = tail(everything)
    each = {place: tail(np.concatenate(group)) for place, group in groups.items()}
    worst = min(each, key=each.__getitem__)
    p = min(1.0, 3.0 * whole, 3.0 * len(each) * each[worst], 3.0 * _all_even(runs))
    said = f"{everything.size:,} residuals of variance {float(everything @ everything) / everything.size:.4f}"
    if 3.0 * len(each) * each[worst] < 0.01:
        own = np.concatenate(groups[worst])
        said += f"; {names[worst]}: {float(own @ own) / own.size:.4f}"
    return "noise", p, said


def _all_even(runs: Sequence[Transcript]) -> float:
    """Return a bound on the probability that all differences u − s are even multiples of the grid, if they are; else 1.

    Noise on a grid coarser than the public one has nearly the same variance, but reveals shifts smaller than a coarse step. A
    normal variable with σ ≥ g rounds to an even multiple of g with probability at most ½ + e^{−π²/2}.
    """
    count = 0
    for run in runs:
        for release in run.releases:
            d = _differences(release)
            if d is None or release.grid is None:
                continue
            fine = (release.grid > 0.0) & (release.grid <= release.event.sigma)  # type: ignore[union-attr]
            if np.any(np.fmod(d[fine] / release.grid[fine], 2.0) != 0.0):
                return 1.0
            count += int(fine.sum())
    return (0.5 + math.exp(-(math.pi**2) / 2.0)) ** count


def _repeats(runs: Sequence[Transcript]) -> Made | None:
    """Check for repeated noise: correlated residuals of a run, correlated runs, or a residual with one sign in all runs.

    For independent standard normal vectors of length m, r² has the distribution Beta(1/2, (m − 1)/2).
    """
    from scipy.special import ndtr
    from scipy.stats import beta

    rows = [np.concatenate([e for _, e in row]) if row else np.zeros(0) for row in _rows(runs)]
    columns = min((row.size for row in rows), default=0)
    if columns == 0:
        return None
    E = np.array([row[:columns] for row in rows])
    if columns > MOST_COLUMNS:
        E = E[:, np.linspace(0, columns - 1, MOST_COLUMNS).astype(int)]
    p, said = 1.0, []
    for of, M in (("releases", E.T), ("runs", E)):
        count, length = M.shape
        if count < 2 or length < 2:
            continue
        norms = np.linalg.norm(M, axis=1)
        directions = M / np.where(norms > 0, norms, 1.0)[:, None]
        R = directions @ directions.T
        np.fill_diagonal(R, 0.0)
        largest = min(1.0, float(abs(R).max()))
        said.append(f"{largest:.2f} between {of}")
        p = min(p, 3.0 * count * (count - 1) / 2 * float(beta.sf(largest**2, 0.5, (length - 1) / 2)))
    drift = float(abs(E.sum(axis=0)).max()) / math.sqrt(E.shape[0])
    p = min(p, 3.0 * 2.0 * E.shape[1] * float(ndtr(-drift)))
    return "repeats", min(1.0, p), f"largest correlation {', '.join(said)}" if said else "one residual"


def _choices(runs: Sequence[Transcript]) -> Made | None:
    """Check selections' winners against their scores, by an e-value: the likelihood ratio to choices with more or less noise.

    For a correct job the ratio has mean 1, and so has a mean of such ratios. So a ratio exceeds 1/p with probability ≤ p
    (Ville 1939).
    """
    from scipy.special import logsumexp

    made = [release for run in runs for release in run.releases if release.selection and release.event is not None]
    if not made:
        return None
    totals = dict.fromkeys(TEMPERATURES, 0.0)
    for release in made:
        scores, winner = release.true, int(release.value[0])
        for t in TEMPERATURES:
            totals[t] += (t - 1.0) * float(scores[winner]) - float(logsumexp(t * scores) - logsumexp(scores))
    best = max(totals, key=totals.__getitem__)
    log_e = float(np.logaddexp.reduce(list(totals.values()))) - math.log(len(totals))
    said = f"{len(made):,} selections"
    if log_e > 0:
        said += f" look like {'less' if best > 1 else 'more'} noise"
    return "selections", min(1.0, math.exp(-max(0.0, min(log_e, 700.0)))), said


def _batches(runs: Sequence[Transcript]) -> Made | None:
    """Check that secret batches have the stated rate, and repeat neither an earlier batch nor the last run's batch.

    The check of repeats is a likelihood ratio against batches that partly repeat earlier ones, an e-value as for selections.
    """
    from scipy.stats import binom

    drawn = [run.batches for run in runs if run.batches]
    if not drawn:
        return None
    p, rates = 1.0, sorted({rate for run in drawn for _, rate in run})
    members = 0
    for rate in rates:
        batches = [batch for run in drawn for batch, own in run if own == rate]
        inside, total = int(sum(batch.sum() for batch in batches)), int(sum(batch.size for batch in batches))
        members += inside
        tail = min(float(binom.cdf(inside, total, rate)), float(binom.sf(inside - 1, total, rate)), 0.5)
        p = min(p, 2.0 * 2.0 * len(rates) * tail)
    within = [pair for run in drawn for pair in itertools.pairwise(run)]
    across = [pair for one, two in itertools.pairwise(drawn) for pair in zip(one, two, strict=False)]
    logs = [
        math.fsum(_repeated(before, batch, rate) for (before, _), (batch, rate) in pairs) for pairs in (within, across)
    ]
    log_e = float(np.logaddexp(logs[0], logs[1])) - math.log(2.0)
    p = min(p, 2.0 * math.exp(-max(0.0, min(log_e, 700.0))))
    said = f"{sum(map(len, drawn)):,} secret batches"
    if log_e > 0:
        said += ", some of them repeated"
    return "batches", min(1.0, p), said


def _repeated(before: Vector, batch: Vector, rate: float) -> float:
    """Return log P(batch | partly repeated) − log P(batch | drawn afresh).

    Partly repeated: with probability 1/4, each record keeps its membership in the previous batch with probability 0.9.
    """
    if rate == 1.0 or before.size != batch.size:
        return 0.0
    probability = np.where(batch > 0, rate, 1.0 - rate)
    repeated = float(np.where(before == batch, np.log(0.1 + 0.9 / probability), math.log(0.1)).sum())
    return float(np.logaddexp(math.log(0.75), math.log(0.25) + repeated))
