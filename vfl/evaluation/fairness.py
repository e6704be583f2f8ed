"""Fairness of the released model between groups of the held-out records, as an inquiry (a release after training).

Guarantee: all results follow from one Gaussian release on the held-out records (`GroupCells` or `GroupScores`), μ-GDP for each
held-out record. The coordinator sees the margins and groups of these records. For a bound on the gaps of the model without
noise, the coordinator also sees the norms of their rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.errors import BudgetExceeded, PartyLost
from vfl.evaluation import distance as distances
from vfl.evaluation.estimates import Estimate, Findings, share_error
from vfl.evaluation.gaps import SEEN, Table, chosen, cut, edges_of, gap, noiseless, notions_of, shift
from vfl.evaluation.inquiries import NOISED, PUBLIC, UNNOISED, HeldOut, Inquiry, event_of, moved, spread_of, tally
from vfl.evaluation.statistics import GroupCells, GroupScores, strides
from vfl.evaluation.thresholds import ALL
from vfl.messages import Forward, Groups, RecordNorms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from vfl.evaluation.gaps import Notion
    from vfl.evaluation.inquiries import Found
    from vfl.evaluation.specification import Fairness
    from vfl.privacy.events import Gaussian
    from vfl.problem import Problem
    from vfl.solvers.protocol import Exchange
    from vfl.types import Vector


OF = " of "
"""Separator between the notion of fairness and the group in the name of a gap."""


@dataclass(frozen=True, slots=True)
class GroupColumn:
    """Column that names each record's group. party : the column's owner. categories : the groups, in order of their codes."""

    name: str
    party: str
    categories: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GroupFairness(Inquiry):
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
        if self.spec.thresholds:
            return GroupScores(self._sizes[0], edges_of(spread_of(self.problem, w)))
        return GroupCells(self._sizes, d, threshold)

    @property
    def _event(self) -> Gaussian | None:
        nowhere = np.zeros(self.problem.layout.n_coordinates)
        return event_of(self._statistic(nowhere, 0.0 if self.bounded else None), self.mu)  # Δ depends on neither

    @property
    def _events(self) -> tuple[Gaussian | None]:
        return (self._event,)

    def schedule(self, w: Vector, found: Found = None, gone: Collection[str] = ()) -> Exchange[Findings]:
        """Query margins, groups and norms, which stay at the coordinator; then query the counts.

        found : findings of earlier inquiries, including the distance and the threshold of the model.
        """
        of_distance = (found or {}).get(distances.Distance.name)
        d = math.inf if self.bounded and not gone else None
        if d is not None and of_distance is not None and distances.MEASURE in of_distance.measures:
            d = of_distance.measures[distances.MEASURE].value
        measured = (found or {}).get(HeldOut.name)
        t = 0.0 if measured is None or measured.thresholds is None else measured.thresholds.get(ALL, 0.0)
        note = NOISED if self.mu is not None else PUBLIC if self.problem.private else UNNOISED
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
            said = f"by {named}; measured {PUBLIC if self.problem.private else UNNOISED}"
        else:
            noise = max(self.guessed(len(column.categories)) for column in self.columns)
            known = (
                f"error of a gap about {noise:.2g}"
                if math.isfinite(noise)
                else "TOO NOISY: every gap would be left out"
            )
            said = f"by {named}; {known}, for groups of equal size, if half of the labels are positive"
        if self.spec.thresholds:
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
        """Return the number of queries: margins, groups, norms if there is a bound, and counts."""
        return 4 if self.bounded else 3


def _accuracy(table: Table) -> Estimate:
    counts, right = table.counts, np.eye(2, dtype=bool)
    hits, misses = float(counts[:, right].sum()), float(counts[:, ~right].sum())
    total = max(hits + misses, 1.0)
    rate = min(max(hits / total, 0.0), 1.0)
    cells = float(table.cells[:, right].sum()), float(table.cells[:, ~right].sum())
    noise = table.sigma * math.hypot((1 - rate) * math.sqrt(cells[0]), rate * math.sqrt(cells[1])) / total
    return Estimate(rate, share_error(rate, noise, total))


def _left_out(names: list[str]) -> str:
    return f"; left out, since noise hides a count: {', '.join(names)}" if names else ""
