"""Fairness of the released model between groups of the held-out records, as an evaluation (a release after training).

A notion of fairness compares rates r = A/B. B is a set of records, such as those with a positive label; A ⊆ B are the
records in B that are counted, such as those predicted correctly. The gap of group g is

    F_g = (1 − π_g)(r_g − r_rest) = r_g − r,    π_g = share of g in B.

A positive gap means that the model favours g. Raw counts are used, negative ones included: projecting them onto nonnegative
counts would bias the counts of small groups upwards.

Thresholds per group are chosen from released histograms of one half of the held-out records, and measured on the other half.

Guarantee: all results follow from one Gaussian release on the held-out records (`GroupCells` or `GroupScores`), μ-GDP for each
held-out record. The coordinator sees the scores and groups of these records. For a bound on the gaps of the model without
noise, the coordinator also sees the norms of their rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.errors import BudgetExceeded, PartyLost
from vfl.measures import distance as distances
from vfl.measures.distance import ERROR, OF_DISTANCE
from vfl.measures.estimates import ALL, Estimate, Findings, share_error
from vfl.measures.evaluations import (
    EXACT,
    NOISED,
    PUBLIC,
    HeldOut,
    ReleasedEvaluation,
    event_of,
    moved,
    spread_of,
    tally,
)
from vfl.queries import Forward, Groups, RecordNorms
from vfl.queries.statistics import GroupCells, GroupScores, strides

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import numpy.typing as npt

    from vfl.base.problem import Problem
    from vfl.base.types import Integers, Vector
    from vfl.measures.evaluations import Found
    from vfl.measures.specification import Fairness
    from vfl.privacy.events import Gaussian
    from vfl.queries.protocol import Exchange

    Interval = tuple[float, float]

SEEN = 5.0
"""A group is compared only if its noisy count, and that of all other groups together, exceed this many standard deviations of
the noise. With 2 instead of 5, intervals cover 0.84 to 0.93 of the true values instead of 0.95.
"""
_NOISE, _SAMPLING = 0.5, 0.5
"""Shares of the error probability ERROR − OF_DISTANCE (vfl.measures.distance): for the noise of the counts, and for the
sampling of the records.
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
    return Estimate.inside(-1.0, 1.0, r_own - r, math.sqrt(noise + sampling))


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
"""Distances of the edges from 0, on both sides, in units of the scores' spread for uniform columns (`spread_of`): 16 bins."""


def edges_of(spread: float) -> Vector:
    """Return the edges of the histograms, which are the possible thresholds; 0 is one of them."""
    outward = spread * np.array(OUTWARD)
    return np.concatenate([-outward[::-1], [0.0], outward])


def cut(histograms: Vector, thresholds: Integers) -> tuple[Vector, Vector]:
    """Return counts (G, 2, 2) by group, label and prediction, and the number of bins in each count.

    histograms : (G, 2, bins). thresholds : (G,) positions among the edges; scores above the edge are predicted positive.
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


OF = " of "
"""Separator between the notion of fairness and the group in the name of a gap."""


@dataclass(frozen=True, slots=True)
class GroupColumn:
    """Column that names each record's group. party : the column's owner. categories : the groups, in order of their codes."""

    name: str
    party: str
    categories: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GroupFairness(ReleasedEvaluation):
    """Gaps between groups of held-out records, with errors; on request, with bounds on the gaps of the model without noise.

    problem : problem of the training records. columns : the group columns. n_records : number of held-out records.
    mu : budget of the counts; None counts without noise.
    why_unbounded : reason why a requested bound is missing; '' otherwise.
    """

    problem: Problem
    spec: Fairness
    columns: tuple[GroupColumn, ...]
    n_records: int
    mu: float | None
    why_unbounded: str = ""

    name: ClassVar[str] = "fairness"

    @property
    def bounded(self) -> bool:
        """True if records near the decision boundary are counted separately, for the bound."""
        return self.spec.bound and not self.why_unbounded

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(len(column.categories) for column in self.columns)

    def _statistic(self, w: Vector, d: float | None, threshold: float = 0.0) -> GroupCells | GroupScores:
        if self.spec.threshold_per_group:
            return GroupScores(self._sizes[0], edges_of(spread_of(self.problem, w)))
        return GroupCells(self._sizes, d, threshold)

    @property
    def _event(self) -> Gaussian | None:
        nowhere = np.zeros(self.problem.layout.n_coordinates)
        # Δ depends neither on the model nor on the distance, so both are 0 here.
        return event_of(self._statistic(nowhere, 0.0 if self.bounded else None), self.mu)

    @property
    def _events(self) -> tuple[Gaussian | None]:
        return (self._event,)

    def schedule(self, w: Vector, found: Found = None, gone: Collection[str] = ()) -> Exchange[Findings]:
        """Query scores, groups and norms, which stay at the coordinator; then query the counts.

        found : findings of earlier evaluations, including the distance and the threshold of the model.
        """
        of_distance = (found or {}).get(distances.Distance.name)
        d = math.inf if self.bounded and not gone else None
        if d is not None and of_distance is not None and distances.MEASURE in of_distance.measures:
            d = of_distance.measures[distances.MEASURE].value
        measured = (found or {}).get(HeldOut.name)
        t = 0.0 if measured is None or measured.thresholds is None else measured.thresholds.get(ALL, 0.0)
        note = NOISED if self.mu is not None else PUBLIC if self.problem.private else EXACT
        if measured is not None and measured.selected:
            note += "; the threshold was chosen on the same records, and these intervals leave that out"
        needed = (
            *(column.party for column in self.columns),
            *(q for q, own in moved(self.problem, w).items() if own[1].any()),
        )
        lost = next((party for party in needed if party in gone), None)
        if lost is not None:
            return Findings({}, self.n_records, f"not measured, since party {lost!r} was lost")
        try:
            released, statistic = yield from self._asked(w, d, t)
        except BudgetExceeded:
            return Findings({}, self.n_records, f"{note}; a run that was cut off had paid for it")
        except PartyLost as error:
            return Findings({}, self.n_records, f"not measured, since party {error.party!r} was lost")
        event = self._event
        sigma = event.sigma if event is not None else 0.0
        if isinstance(statistic, GroupScores):
            return self._chosen(released, statistic, sigma, note)
        return self._compared(released, statistic, sigma, note, w)

    def _asked(self, w: Vector, d: float | None, threshold: float) -> Exchange[tuple[Vector, GroupCells | GroupScores]]:
        yield Forward(moved(self.problem, w), side=self.side)
        owned: dict[str, list[tuple[str, int]]] = {}
        for column, stride in zip(self.columns, strides(self._sizes), strict=True):
            owned.setdefault(column.party, []).append((column.name, stride))
        yield Groups({party: tuple(own) for party, own in owned.items()})
        if d is not None:
            whole = self.problem.layout.whole()
            rows = {q: (block, np.zeros(block.size), np.ones(block.size)) for q, block in whole.items()}
            yield RecordNorms(rows, side=self.side)
        statistic = self._statistic(w, d, threshold)
        (released,) = yield tally(statistic, event_of(statistic, self.mu), self.side)
        return released, statistic

    @property
    def _notions(self) -> tuple[Notion, ...]:
        return notions_of(self.spec.notions)

    def _tables(self, released: Vector, statistic: GroupCells, sigma: float) -> Iterator[tuple[GroupColumn, Table]]:
        start, shape = 0, (2, 2) if statistic.distance is None else (2, 2, 2)
        for column, size in zip(self.columns, self._sizes, strict=True):
            stop = start + statistic.kinds * size
            counts = released[start:stop].reshape(size, *shape)
            yield column, Table(counts, np.ones_like(counts), sigma)
            start = stop

    def _compared(self, released: Vector, statistic: GroupCells, sigma: float, note: str, w: Vector) -> Findings:
        found: dict[str, Estimate] = {}
        unseen: list[str] = []
        d, length = statistic.distance, float(np.linalg.norm(w))
        told = d is not None and d < length
        for column, table in self._tables(released, statistic, sigma):
            for group, notion, name in self._each(column):
                measured = gap(table, notion, group)
                if measured is None:
                    unseen.append(name)
                elif told:
                    known, moved_by = noiseless(table, notion, group), shift(table, notion, group)
                    found[name] = replace(measured, noiseless=known, shift=moved_by)
                else:
                    found[name] = measured
        note += "; each is the share in the group minus the share of all"
        if told:
            note += (
                f"; each interval of the model without noise holds with probability {1 - distances.ERROR:g} by itself"
            )
        elif d is not None:
            far = f"d = {d:.3g}" if math.isfinite(d) else "its distance is not known"
            note += (
                f"; nothing is known of the model without noise, which may predict anything ({far}, ‖w‖ = {length:.3g})"
            )
        elif self.bounded:
            note += f"; the model without noise is {distances.LOST}"
        elif self.why_unbounded:
            note += f"; no bound for the model without noise: {self.why_unbounded}"
        return Findings(found, self.n_records, note + _left_out(unseen))

    def _each(self, column: GroupColumn) -> Iterator[tuple[int, Notion, str]]:
        for notion in self._notions:
            for group, category in enumerate(column.categories):
                yield group, notion, f"{notion.name}{OF}{column.name}={category}"

    def _chosen(self, released: Vector, statistic: GroupScores, sigma: float, note: str) -> Findings:
        (column,) = self.columns
        histograms = released.reshape(2, statistic.size, 2, statistic.bins)
        counts = histograms[0].sum(axis=2)
        seen = (counts > SEEN * sigma * math.sqrt(statistic.bins)).all(axis=1) & (counts >= 0.5).all(axis=1)
        default = np.full(statistic.size, len(statistic.edges) // 2)
        picked = chosen(histograms[0], self._notions[0], seen=seen) if seen.sum() > 1 else default
        found: dict[str, Estimate] = {}
        unseen: list[str] = []
        for positions, said in ((default, ", one threshold"), (picked, ", thresholds per group")):
            table = Table(*cut(histograms[1], positions), sigma)
            found[f"accuracy{said}"] = _accuracy(table)
            for group, notion, name in self._each(column):
                measured = gap(table, notion, group)
                if measured is None:
                    unseen.append(name + said)
                else:
                    found[name + said] = measured
        note += (
            "; thresholds chosen on one half of the records, and all measured on the other; predicting with them needs each "
            "record's group"
        )
        thresholds = {
            category: float(statistic.edges[k]) for category, k in zip(column.categories, picked, strict=True)
        }
        return Findings(found, self.n_records, note + _left_out(unseen), thresholds)

    def explain(self) -> str:
        """Return a sentence for the plan on the groups, the bound, and the noise of a gap for guessed shares."""
        named = ", ".join(f"{column.name} ({len(column.categories)} groups)" for column in self.columns)
        event = self._event
        if event is None:
            said = f"by {named}; measured {PUBLIC if self.problem.private else EXACT}"
        else:
            noise = max(self.guessed(len(column.categories)) for column in self.columns)
            known = (
                f"error of a gap about {noise:.2g}"
                if math.isfinite(noise)
                else "TOO NOISY: every gap would be left out"
            )
            said = f"by {named}; {known}, for groups of equal size, if half of the labels are positive"
        if self.spec.threshold_per_group:
            return f"{said}; chooses a threshold for each group: predicting with them needs each record's group"
        if self.why_unbounded:
            return f"{said}; no bound for the model without noise: {self.why_unbounded}"
        return said + ("; with bounds for the model without noise" if self.bounded else "")

    def guessed(self, size: int) -> float:
        """Return the standard error of a gap: groups of `size`, half of the labels positive, 0.8 of the predictions right."""
        nowhere = np.zeros(self.problem.layout.n_coordinates)
        event, statistic = self._event, self._statistic(nowhere, 0.0 if self.bounded else None)
        each = self.n_records / size / 2 / (2 if isinstance(statistic, GroupScores) else 1)
        counts = np.broadcast_to(each * np.array([[0.8, 0.2], [0.2, 0.8]]), (size, 2, 2))
        merged = statistic.bins / 2 if isinstance(statistic, GroupScores) else statistic.kinds / 4
        table = Table(counts, np.full(counts.shape, merged), event.sigma if event is not None else 0.0)
        errors = [estimate.error for notion in self._notions if (estimate := gap(table, notion, 0)) is not None]
        return max(errors, default=math.inf)

    @property
    def queries(self) -> int:
        """Return the number of queries: scores, groups, norms if there is a bound, and counts."""
        return 4 if self.bounded else 3


def _accuracy(table: Table) -> Estimate:
    counts, right = table.counts, np.eye(2, dtype=bool)
    hits, misses = float(counts[:, right].sum()), float(counts[:, ~right].sum())
    total = max(hits + misses, 1.0)
    rate = min(max(hits / total, 0.0), 1.0)
    cells = float(table.cells[:, right].sum()), float(table.cells[:, ~right].sum())
    noise = table.sigma * math.hypot((1 - rate) * math.sqrt(cells[0]), rate * math.sqrt(cells[1])) / total
    return Estimate.inside(0.0, 1.0, rate, share_error(rate, noise, total))


def _left_out(names: list[str]) -> str:
    return f"; left out, since noise hides a count: {', '.join(names)}" if names else ""
