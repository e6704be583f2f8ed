"""Simulated data sets D1 and D0 of an audit. The two data sets differ only in k records, the canaries.

The canaries are k equal records in D1, and k equal replacements in D0. A release with Δ and σ is Δ/σ-GDP for one record, and
so at most kΔ/σ-GDP for a group of k records (Dong, Roth, Su 2022, Thm. 2.14). Equal canaries attain this bound if all of them
take part in every release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.base.columns import Boolean, Categorical
from vfl.base.schema import BinaryLabel, ClassLabel
from vfl.job.job import label_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vfl.apps.auditing.bounds import Claim
    from vfl.base.types import Integers, Vector
    from vfl.job import Job

FARTHEST = 1e3
"""Label of a canary if the job declares no bounds for the label. The clip caps what the canary contributes."""
EASIEST, MOST_ACCURATE = 2.75, 0.93
"""EASIEST: μ of the group at which guesses prove most. MOST_ACCURATE: largest share of right guesses that a claim may allow."""
MEAN_AND_SQUARE = 0.146
"""Size of the second canary for releases of moments. From x = 1 to x' = −0.146 a column's mean and square together move
farthest (vfl.privacy.geometry.PAIR); to +0.146 they move nearly as far.
"""


@dataclass(frozen=True, eq=False)
class Record:
    """One simulated record, in scaled positions.

    cells : (columns,) positions: −1 and 1 are the bounds, 0 is the value that scaling maps to 0. label : −1 for a low, 0 for a
        middle, 1 for a high label.
    """

    cells: Vector
    label: int

    def __neg__(self) -> Record:
        return Record(self.cells, -self.label)

    def times(self, factor: float) -> Record:
        """Return the record with its cells multiplied by the factor."""
        return Record(factor * self.cells, self.label)


@dataclass(frozen=True, eq=False)
class Canary:
    """Two data sets D1 and D0. The k canaries are `first` in D1 and `second` in D0; all other records are the same in both.

    rest : cells of the other records, which alternate between (cells, label 1) and (−cells, label −1). These records pull the
        model along the cells and leave the means at 0. None puts the other records at the scaled 0.
    name : printed description of the two data sets.
    """

    name: str
    first: Record
    second: Record
    rest: Record | None = None


def candidates(columns: int) -> Iterator[Canary]:
    """Yield canaries to try. For every kind of release, some candidate comes close to the sensitivity of the release.

    Records of opposite labels differ most if their margins stay near 0. In noisy runs models move far, so small records, or
    records that are nonzero in one column only, work better there.
    """
    ones, turns = np.ones(columns), np.where(np.arange(columns) % 2, -1.0, 1.0)
    signs = np.where(np.random.default_rng(columns).random(columns) < 0.5, -1.0, 1.0)
    one, last = np.zeros(columns), np.zeros(columns)
    one[0] = last[-1] = 1.0
    along, aside = np.where(np.arange(columns) == 0, 0.1, 1.0), np.where(np.arange(columns) == 0, 0.1, -1.0)
    for size in (1.0, 0.3, 0.1, 0.03):
        for name, cells in (("equal signs", ones), ("one column", one), ("random signs", signs)):
            x = Record(size * cells, 1)
            yield Canary(f"x and x of size {size:g}, labels differ, {name}", x, -x)
    for name, cells in (("equal signs", ones), ("random signs", signs), ("alternating signs", turns)):
        x = Record(cells, 1)
        yield Canary(f"x and −x, {name}", x, x.times(-1.0))
        yield Canary(f"x and {MEAN_AND_SQUARE}x, labels differ, {name}", x, -x.times(MEAN_AND_SQUARE))
    yield Canary("x and 0, equal signs", Record(ones, 1), Record(0.0 * ones, 1))
    yield Canary("orthogonal rows", Record(ones, 0), Record(turns, 0))
    yield Canary("one column and another", Record(one, 0), Record(last, 0))
    pull, said = Record(0.3 * ones, 1), "the others pull along equal signs"
    x, turned = Record(signs, 1), Record(turns, 1)
    yield Canary(f"x and −x, random signs; {said}", x, x.times(-1.0), pull)
    yield Canary(f"x and x of size 0.3, labels differ, random signs; {said}", x.times(0.3), -x.times(0.3), pull)
    yield Canary(
        f"x and {MEAN_AND_SQUARE}x, labels differ, alternating signs; {said}",
        turned,
        -turned.times(MEAN_AND_SQUARE),
        pull,
    )
    yield Canary(f"x and x, labels differ, equal signs; {said}", Record(ones, 1), Record(ones, -1), Record(ones, 1))
    yield Canary(f"x and −x, equal signs; {said}", Record(ones, 1), Record(-ones, 1), Record(ones, 1))
    yield Canary(
        f"the farthest and the nearest label, equal signs; {said}", Record(-ones, 1), Record(0.0 * ones, 0), pull
    )
    yield Canary("both sides of the others' column", Record(along, 1), Record(aside, 1), Record(one, 1))


def group_size(claim: Claim, most: int) -> int:
    """Return k ≤ `most`, the number of canaries that detects too little noise in the fewest runs: kμ is about 2.75.

    Sampled releases are audited with one canary, because the privacy cost of a sampled release for several records is
    unknown.
    """
    if claim.sampled:
        return 1
    size = max(1, min(most, math.ceil(EASIEST / claim.mu)))
    while size > 1 and not claim.gaussian and claim.accuracy(size) > MOST_ACCURATE:
        size -= 1
    return size


def tables(
    job: Job, canary: Canary, positions: Integers, n_records: int, public: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Return the tables of D1 and D0, each {column: cells}.

    positions : (k,) positions of the canaries. public : {column: n cells} of records that are declared public, used as the
        other records; None simulates them.
    """
    columns, label = job.partition.features, job.partition.label_column
    others = [column for column in job.partition.group_columns if column != label]
    factors = job.partition.factor_columns
    made = []
    for record in (canary.first, canary.second):
        whole: dict[str, Any] = {}
        for j, column in enumerate(columns):
            if public is None:
                share = 0.0 if canary.rest is None else float(canary.rest.cells[j])
                ends = _cell(job, column, -share), _cell(job, column, share)
                whole[column] = [ends[i % 2] for i in range(n_records)]
            else:
                whole[column] = list(public[column])
        for column in others:
            whole[column] = [_cell(job, column, 0.0)] * n_records if public is None else list(public[column])
        ends_of = [_alternating(job, canary, i) for i in range(n_records)]
        whole[label] = [_label(job, which) for which in ends_of] if public is None else list(public[label])
        for column in factors:
            cells = [_factor(job, column, which) for which in ends_of] if public is None else public[column]
            whole[column] = list(cells)
        for i in positions:
            for j, column in enumerate(columns):
                whole[column][i] = _cell(job, column, float(record.cells[j]))
            for column in others:
                whole[column][i] = _cell(job, column, 1.0 if record is canary.first else -1.0)
            whole[label][i] = _label(job, record.label)
            for column in factors:
                whole[column][i] = _factor(job, column, record.label)
        made.append(whole)
    return made


def meeting(members: Sequence[Vector], eligible: Integers, size: int) -> Integers:
    """Return `size` of the eligible records: those that share as many public batches as possible.

    members : (n,) per batch, 1 for the batch's records, else 0.
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
            gain = counts[inverse.ravel()] * batches.sum(axis=0)
        found.append(int(gain.argmax()))
        shared += batches[:, found[-1]]
    return np.asarray(eligible[np.array(found)])


def _cell(job: Job, column: str, share: float) -> Any:
    """Return a column's value at a position between the scaled 0 and the column's upper bound (lower bound if share < 0)."""
    declared = job.schema[column]
    if isinstance(declared, Boolean):
        return share > 0
    if isinstance(declared, Categorical):
        return declared.categories[0 if share > 0 else -1 if share < 0 else len(declared.categories) // 2]
    low, high = declared.limits
    zero = min(max(float(job.scaling_of([column]).shift[0]), low), high)
    return zero + share * (high - zero) if share >= 0 else zero - share * (low - zero)


def _label(job: Job, which: int) -> Any:
    """Return the low, middle or high label; for classification, a class."""
    declared = label_of(job)
    if isinstance(declared, ClassLabel):
        return declared.classes[-1 if which >= 0 else 0]
    if isinstance(declared, BinaryLabel):
        classes: Any = declared.classes or (0, 1)
        negative = classes[0][0] if isinstance(classes[0], tuple) else classes[0]
        return classes[1] if which >= 0 else negative
    low, high = declared.bounds or (-FARTHEST, FARTHEST)
    return {-1: low, 0: low / 2 + high / 2, 1: high}[which]


def _factor(job: Job, column: str, which: int) -> float:
    """Return the largest weight, or the exposure that takes the record's mean farthest from its label."""
    low, high = job.schema[column].limits
    return low if column == job.partition.exposure and which > 0 else high


def _alternating(job: Job, canary: Canary, i: int) -> int:
    """Return the label of a non-canary record: classes alternate; a number is the middle unless `canary.rest` is given."""
    if canary.rest is None and not job.classification:
        return 0
    return 1 if i % 2 else -1
