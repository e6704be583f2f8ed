"""Simulated records: data sets D1 and D0 that differ in k records, the canaries, and in nothing else.

A canary is worth k records: k equal records and their k equal replacements. A release with Δ and σ is Δ/σ-GDP, so for the
group it is at most kΔ/σ-GDP (Dong, Roth, Su 2022, Thm. 2.14), and equal canaries that meet in every release reach this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.job.task import label_of
from vfl.schema import BinaryLabel, Boolean, Categorical

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vfl.job import Job
    from vfl.types import Integers, Vector

FARTHEST = 1e3
"""Label of a canary if the job declares no bounds for the label; the clip caps what it adds."""
MEAN_AND_SQUARE = 0.146
"""x = 1 and x' = −0.146 move the mean and the square of a column together the most (vfl.privacy.geometry.PAIR)."""


@dataclass(frozen=True, eq=False)
class Record:
    """One simulated record.

    cells : (columns,) in [−1, 1], share of the way from the scaled 0 to a bound. label : −1, 0 or 1, from the lower end up.
    """

    cells: Vector
    label: int

    def __neg__(self) -> Record:
        return Record(self.cells, -self.label)

    def times(self, factor: float) -> Record:
        """Return the record with its cells multiplied."""
        return Record(factor * self.cells, self.label)


@dataclass(frozen=True, eq=False)
class Canary:
    """Two data sets: k canaries are `first` in D1 and `second` in D0; all other records are `rest` in both.

    rest : None for records at the scaled 0, whose labels alternate.
    name : description of the pair, for print.
    """

    name: str
    first: Record
    second: Record
    rest: Record | None = None


def candidates(columns: int) -> Iterator[Canary]:
    """Yield pairs of canaries. For every kind of release, some pair comes close to its sensitivity.

    Records of opposite labels differ most while their margins stay near 0. So small records, or records in one column, serve
    noisy runs whose models move far.
    """
    ones, turns = np.ones(columns), np.where(np.arange(columns) % 2, -1.0, 1.0)
    signs = np.where(np.random.default_rng(columns).random(columns) < 0.5, -1.0, 1.0)
    one, last = np.zeros(columns), np.zeros(columns)
    one[0] = last[-1] = 1.0
    along, aside = np.where(np.arange(columns) == 0, 0.1, 1.0), np.where(np.arange(columns) == 0, 0.1, -1.0)
    whole = {"equal signs": ones, "random signs": signs}
    for size in (1.0, 0.3, 0.1):
        for name, cells in {**whole, "one column": one}.items():
            x = Record(size * cells, 1)
            yield Canary(f"x of size {size:g}, labels differ, {name}", x, -x)
    for name, cells in {**whole, "alternating signs": turns}.items():
        x = Record(cells, 1)
        yield Canary(f"x and −x, {name}", x, x.times(-1.0))
        yield Canary(f"x and −{MEAN_AND_SQUARE}x, {name}", x, x.times(-MEAN_AND_SQUARE))
        yield Canary(f"x and {MEAN_AND_SQUARE}x, labels differ, {name}", x, -x.times(MEAN_AND_SQUARE))
    yield Canary("orthogonal rows", Record(ones, 0), Record(turns, 0))
    yield Canary("one column and another", Record(one, 0), Record(last, 0))
    pull, pull_one = Record(ones, 1), Record(one, 1)
    yield Canary("x, labels differ; the others pull along x", Record(ones, 1), Record(ones, -1), pull)
    x = Record(turns, 1)
    yield Canary("x and −x, alternating signs; the others pull along equal signs", x, x.times(-1.0), pull)
    yield Canary("both sides of the direction that the others pull along", Record(along, 1), Record(aside, 1), pull_one)


def group_size(mu: float, most: int) -> int:
    """Return k, the number of canaries that makes a μ-GDP run easiest to audit: kμ about 2.75; at most `most`."""
    return max(1, min(most, math.ceil(2.75 / mu))) if mu > 0 else most


def tables(
    job: Job, canary: Canary, positions: Integers, n_records: int, public: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Return the tables of D1 and D0, {column: cells}.

    positions : (k,) positions of the canaries. public : {column: n cells} of records that are declared public, which stand in
        for all other records; None simulates them.
    """
    columns = job.partition.features
    label = job.partition.label_column
    made = []
    for record in (canary.first, canary.second):
        whole: dict[str, Any] = {}
        for j, column in enumerate(columns):
            filler = _cell(job, column, 0.0 if canary.rest is None else float(canary.rest.cells[j]))
            cells = [filler] * n_records if public is None else list(public[column])
            own = _cell(job, column, float(record.cells[j]))
            for i in positions:
                cells[i] = own
            whole[column] = cells
        if public is not None:
            labels = list(public[label])
        elif canary.rest is not None:
            labels = [_label(job, canary.rest.label)] * n_records
        else:
            labels = [_label(job, _alternating(job, i)) for i in range(n_records)]
        for i in positions:
            labels[i] = _label(job, record.label)
        whole[label] = labels
        made.append(whole)
    return made


def meeting(members: Sequence[Vector], eligible: Integers, size: int) -> Integers:
    """Return `size` of the eligible records that share as many public batches as possible.

    members : for each batch, (n,) 1 for its records, else 0.
    """
    if not members:
        return eligible[:size]
    batches = np.array(members)[:, eligible]
    found: list[int] = []
    shared = batches.sum(axis=1) * 0.0
    for _ in range(size):
        gain = shared @ batches + 1e-9 * batches.sum(axis=0)
        gain[found] = -math.inf
        if not found:  # start from the most common sequence of batches
            _, inverse, counts = np.unique(batches, axis=1, return_inverse=True, return_counts=True)
            gain = counts[inverse.ravel()].astype(float)
        found.append(int(gain.argmax()))
        shared += batches[:, found[-1]]
    chosen: Integers = eligible[np.array(found)]
    return chosen


def _cell(job: Job, column: str, share: float) -> Any:
    """Return the value of a column at a share of the way from the scaled 0 to its upper (or, below 0, lower) bound."""
    declared = job.schema[column]
    if isinstance(declared, Boolean):
        return share > 0
    if isinstance(declared, Categorical):
        return declared.categories[0 if share > 0 else -1 if share < 0 else len(declared.categories) // 2]
    low, high = declared.limits
    zero = min(max(float(job.scaling_of([column]).shift[0]), low), high)
    return zero + share * (high - zero) if share >= 0 else zero - share * (low - zero)


def _label(job: Job, which: int) -> Any:
    """Return the lower end, the middle or the upper end of the labels; a class for classification."""
    declared = label_of(job)
    if isinstance(declared, BinaryLabel):
        classes: Any = declared.classes or (0, 1)
        negative = classes[0][0] if isinstance(classes[0], tuple) else classes[0]
        return classes[1] if which >= 0 else negative
    low, high = declared.bounds or (-FARTHEST, FARTHEST)
    return {-1: low, 0: low / 2 + high / 2, 1: high}[which]


def _alternating(job: Job, i: int) -> int:
    return (1 if i % 2 else -1) if job.classification else 0
