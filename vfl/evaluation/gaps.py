"""Gaps between groups with standard errors and intervals, from released counts. Post-processing costs no privacy.

A notion of fairness compares rates r = A/B. B is a set of records, such as those with a positive label; A ⊆ B are the
records in B that are counted, such as those predicted correctly. The gap of group g is

    F_g = (1 − π_g)(r_g − r_rest) = r_g − r,    π_g = share of g in B.

A positive gap means that the model favours g. Raw counts are used, negative ones included: projecting counts onto possible
ones would pull the counts of small groups upwards.

Thresholds per group are chosen from released histograms of one half of the held-out records, and measured on the other half.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vfl.evaluation.distance import ERROR, OF_DISTANCE
from vfl.evaluation.estimates import Estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from vfl.types import Integers, Vector

    Interval = tuple[float, float]

SEEN = 5.0
"""A group is compared only if its noisy count, and that of all other groups together, exceed this many standard deviations of
the noise. With 2 instead of 5, intervals cover 0.84 to 0.93 of the true values instead of 0.95.
"""
_NOISE, _SAMPLING = 0.5, 0.5
"""Shares of the error probability ζ for the noise of the counts and for the sampling of the records. Both are shares of ERROR −
OF_DISTANCE (vfl.evaluation.distance).
"""


@dataclass(frozen=True, slots=True)
class Notion:
    """One notion of fairness: the rate A/B that is compared between groups.

    label : label of the records in B, 0 or 1; None for both. correct : True if A holds the records that are predicted
        correctly; False if it holds those that are predicted positive.
    """

    name: str
    label: int | None
    correct: bool

    @property
    def counted(self) -> npt.NDArray[np.bool_]:
        """Return A as a table, (2, 2): True for each (label, prediction) in A."""
        right = np.eye(2, dtype=bool) if self.correct else np.array([[False, True], [False, True]])
        return right & self.looked_at

    @property
    def looked_at(self) -> npt.NDArray[np.bool_]:
        """Return B as a table like that of A."""
        rows = np.ones(2, dtype=bool) if self.label is None else np.arange(2) == self.label
        return np.broadcast_to(rows[:, None], (2, 2))


def notions_of(names: Sequence[str]) -> tuple[Notion, ...]:
    """Return the comparisons that the named notions need: one per label for equalized odds, one for any other notion."""
    found = []
    if "opportunity" in names:
        found.append(Notion("opportunity", 1, correct=True))
    if "odds" in names:
        found.append(Notion("odds (negative)", 0, correct=True))
        if "opportunity" not in names:
            found.append(Notion("odds (positive)", 1, correct=True))
    if "parity" in names:
        found.append(Notion("parity", None, correct=False))
    if "accuracy" in names:
        found.append(Notion("accuracy", None, correct=True))
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Noisy counts of records by group, for one group column.

    counts : (G, 2, 2) by group, label and prediction; (G, 2, 2, 2) if records are also counted by `near`, the last axis.
    cells : number of released counts that each entry of `counts` sums; the shape is that of `counts`.
    sigma : standard deviation of the noise of one released count; 0 without noise.
    """

    counts: Vector
    cells: Vector
    sigma: float

    def total(self, group: int, chosen: npt.NDArray[np.bool_], near: int | None = None, *, rest: bool = False) -> Count:
        """Return the number of records, in the chosen cells (label, prediction), of one group or of all other groups.

        near : 0 or 1; None for both.
        """
        groups = np.arange(len(self.counts)) != group if rest else np.arange(len(self.counts)) == group

        def summed(table: Vector) -> float:
            if table.ndim == 4:
                table = table.sum(axis=3) if near is None else table[..., near]
            return float(table[groups][:, chosen].sum())

        return Count(summed(self.counts), self.sigma * math.sqrt(summed(self.cells)))


@dataclass(frozen=True, slots=True)
class Count:
    """Noisy number of records. noise : standard deviation of the count's Gaussian noise."""

    value: float
    noise: float

    def __add__(self, other: Count) -> Count:
        return Count(self.value + other.value, math.hypot(self.noise, other.noise))

    @property
    def seen(self) -> bool:
        """True if noise alone cannot explain the count, and the count is at least one."""
        return self.value > SEEN * self.noise and self.value >= 0.5


def gap(table: Table, notion: Notion, group: int) -> Estimate | None:
    """Return the gap F_g with a standard error by the delta method over all counts; None if the noise hides a count.

    The variance is σ²Σ(∂F/∂count)² + Σ count·(∂F/∂count)². The second term is the multinomial sampling of the records. The
    mean part of that term vanishes, because F does not change when all counts are multiplied by one factor.
    """
    A, missed = notion.counted, notion.looked_at & ~notion.counted
    parts = [table.total(group, chosen, rest=rest) for rest in (False, True) for chosen in (A, missed)]
    own, others = parts[0] + parts[1], parts[2] + parts[3]
    if not (own.seen and others.seen):
        return None
    whole = own.value + others.value
    r_own, r = parts[0].value / own.value, (parts[0].value + parts[2].value) / whole
    gradient = [(1 - r_own) / own.value - (1 - r) / whole, r / whole - r_own / own.value, (r - 1) / whole, r / whole]
    noise = sum((part.noise * slope) ** 2 for part, slope in zip(parts, gradient, strict=True))
    sampling = sum(max(part.value, 0.0) * slope**2 for part, slope in zip(parts, gradient, strict=True))
    return Estimate(r_own - r, math.sqrt(noise + sampling))


class _Bounds:
    """One-sided bounds on probabilities, which all hold, except with probability ERROR − OF_DISTANCE (Bonferroni).

    pairs : number of bounds. Each is a Clopper–Pearson limit from two rounded noisy counts, of hits and of misses.
    """

    def __init__(self, pairs: int, *, noisy: bool) -> None:
        left = ERROR - OF_DISTANCE
        self._sampling = left * (_SAMPLING if noisy else 1.0) / pairs
        self._noise = left * _NOISE / (2 * pairs)

    def _rounded(self, count: Count, side: float) -> float:
        from scipy.special import ndtri

        return max(count.value - side * count.noise * float(ndtri(self._noise)), 0.0)

    def most(self, hits: Count, misses: Count) -> float:
        """Return an upper bound on the probability of a hit, given counts of independent hits and misses."""
        from scipy.special import betaincinv

        k, f = self._rounded(hits, 1.0), self._rounded(misses, -1.0)
        return float(betaincinv(k + 1.0, f, 1.0 - self._sampling)) if f > 0.0 else 1.0

    def least(self, hits: Count, misses: Count) -> float:
        """Return a lower bound on the probability of a hit."""
        return 1.0 - self.most(misses, hits)


def shift(table: Table, notion: Notion, group: int) -> Interval:
    """Return an interval for F_g(h*) − F_g(h) on the population. h is the released model, h* the model without noise.

    The two models differ only on records near the decision boundary. With probability 1 − ζ, F_g(h*) − F_g(h) lies between

        −(1 − π_g)(P(A near | g) + P(B∖A near | rest))   and   (1 − π_g)(P(B∖A near | g) + P(A near | rest)).
    """
    at = _Bounds(5, noisy=table.sigma > 0.0)
    B, A = notion.looked_at, notion.counted
    missed = B & ~A

    def near(chosen: npt.NDArray[np.bool_], *, rest: bool) -> float:
        others = table.total(group, B, 0, rest=rest) + table.total(group, B & ~chosen, 1, rest=rest)
        return at.most(table.total(group, chosen, 1, rest=rest), others)

    weight = at.most(table.total(group, B, rest=True), table.total(group, B))
    low = -weight * (near(A, rest=False) + near(missed, rest=True))
    high = weight * (near(missed, rest=False) + near(A, rest=True))
    return max(low, -2.0), min(high, 2.0)


def noiseless(table: Table, notion: Notion, group: int) -> Interval:
    """Return an interval for F_g(h*) as in `shift`, from P(A far | g) ≤ r_g(h*) ≤ P(A or near | g)."""
    at = _Bounds(6, noisy=table.sigma > 0.0)
    B, A = notion.looked_at, notion.counted
    missed = B & ~A

    def rate(*, rest: bool) -> Interval:
        sure, never = table.total(group, A, 0, rest=rest), table.total(group, missed, 0, rest=rest)
        near = table.total(group, B, 1, rest=rest)
        return at.least(sure, never + near), at.most(sure + near, never)

    own, others = rate(rest=False), rate(rest=True)
    rest, group_count = table.total(group, B, rest=True), table.total(group, B)
    weights = at.least(rest, group_count), at.most(rest, group_count)
    low, high = own[0] - others[1], own[1] - others[0]
    ends = [weight * end for weight in weights for end in (low, high)]
    return max(min(ends), -1.0), min(max(ends), 1.0)


ALLOWED = 0.02
"""Largest gap between groups that is not penalised. Beyond it, one unit of gap costs as much as one unit of accuracy."""


OUTWARD = (0.05, 0.12, 0.2, 0.32, 0.5, 0.75, 1.1)
"""Distances of the edges from 0, on both sides, in units of the margins' spread for uniform columns (`spread_of`): 16 bins."""


def edges_of(spread: float) -> Vector:
    """Return the edges of the histograms, which are the possible thresholds; 0 is one of them."""
    outward = spread * np.array(OUTWARD)
    return np.concatenate([-outward[::-1], [0.0], outward])


def cut(histograms: Vector, thresholds: Integers) -> tuple[Vector, Vector]:
    """Return counts (G, 2, 2) by group, label and prediction, and the number of bins in each count.

    histograms : (G, 2, bins). thresholds : (G,) positions among the edges; margins above the edge are predicted positive.
    """
    above = np.arange(histograms.shape[2])[None, None, :] > thresholds[:, None, None]
    sides = np.stack([~above, above], axis=3) & np.ones_like(histograms, dtype=bool)[..., None]
    return (histograms[..., None] * sides).sum(axis=2), sides.sum(axis=2).astype(np.float64)


def chosen(histograms: Vector, notion: Notion, *, seen: npt.NDArray[np.bool_]) -> Integers:
    """Return the groups' thresholds (G,), as positions among the edges, that maximise accuracy − max(0, gap − ALLOWED).

    gap : largest difference, between groups, of the rate that the notion compares. The search is exhaustive: for every pair of
        a lowest and a highest rate, each group takes the group's most accurate threshold with a rate between them.

    histograms : (G, 2, bins), noisy. seen : (G,) False for a group whose counts the noise hides; such a group keeps the
        threshold 0.
    """
    G, _, bins = histograms.shape
    default = (bins - 2) // 2
    options = np.arange(bins - 1)
    right, rates = np.zeros((G, bins - 1)), np.zeros((G, bins - 1))
    for option in options:
        counts, _ = cut(histograms, np.full(G, option))
        right[:, option] = counts[:, 0, 0] + counts[:, 1, 1]
        looked_at = (counts * notion.looked_at).sum(axis=(1, 2))
        rates[:, option] = (counts * notion.counted).sum(axis=(1, 2)) / np.maximum(looked_at, 1.0)
    right, rates = right / max(float(histograms.sum()), 1.0), np.clip(rates, 0.0, 1.0)
    right[~seen], rates[~seen] = 0.0, np.nan
    best, found = -np.inf, np.full(G, default)
    levels = np.unique(rates[seen])
    for low in levels:
        for high in levels[levels >= low]:
            inside = (rates >= low) & (rates <= high)
            if not inside[seen].any(axis=1).all():
                continue
            taken = np.where(inside, right, -np.inf).argmax(axis=1)
            value = float(right[seen, taken[seen]].sum()) - max(0.0, float(high - low) - ALLOWED)
            if value > best:
                best, found = value, np.where(seen, taken, default)
    return found
