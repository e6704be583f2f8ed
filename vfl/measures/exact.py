"""Measures without noise: means of unclamped losses, errors and deviances, and the area under the ROC curve.

NOT PRIVATE: one record can change these sums by any amount. These measures are used by `evaluate`, by runs without privacy, and
for held-out records that were declared public. The terms are multiples of a grid step. So sums of up to 2¹⁷ caps do not
depend on the order of the records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.measures.estimates import WIDTH, Estimate, root_of
from vfl.queries import HELD_OFFSETS, Statistic
from vfl.queries.statistics import errors_of

if TYPE_CHECKING:
    from vfl.base.losses import Loss
    from vfl.base.types import Vector

STEP = 2.0**-36
"""Each record's loss, error or deviance is rounded to a multiple of this step, in units of the cap."""
EDGES = 2**14
"""Number of edges of the histogram from which the area under the ROC curve is computed. Ties within a bin count one half. For
scores spread over the edges the error of the area is below 1e-6.
"""
FAR = 13
"""The outermost edges are 2^FAR times as far from the centre as the last edge of the histogram."""


@dataclass(frozen=True, slots=True, eq=False)
class Unclamped(Statistic):
    """Sums Σ q and Σ qqᵀ over the records, without noise; q are the unclamped losses, errors and deviances of one record.

    With classes, q is the record's loss. Without classes, q holds |e| and e² of the model's error e, the deviance if the loss
    has one, and the same numbers for a constant model.

    loss : loss of the model. cap : unit of losses and errors. deviance_cap : unit of deviances.
    constant : prediction of the constant model; None leaves that model out. exposed : True if the constant is a rate, by which
        the exposure of each record is multiplied.
    """

    loss: Loss
    cap: float
    constant: float | None = None
    deviance_cap: float = 1.0
    exposed: bool = False

    grid: ClassVar[float] = 1.0
    sensitivity: ClassVar[float] = math.inf

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the vectors that the statistic takes in addition to margins and labels."""
        return (HELD_OFFSETS,) if self.exposed else ()

    @property
    def each(self) -> int:
        """Return how many losses, errors and deviances of a record are summed for each model (1 to 3)."""
        return 1 if self.loss.classification else 2 if self.loss.power is None else 3

    @property
    def quantities(self) -> int:
        """Return k, the length of q: the losses, errors and deviances of one record under all models."""
        return self.each * (1 if self.constant is None else 2)

    @property
    def dimension(self) -> int:
        """Return k + k²."""
        return self.quantities + self.quantities**2

    def __call__(self, margins: Vector, labels: Vector, offsets: Vector | None = None) -> Vector:
        """Return Σ q, then Σ qqᵀ row by row, in units of the caps."""
        with np.errstate(all="ignore"):
            if self.loss.classification:
                found = [self.loss.value(margins, labels) / self.cap]
            else:
                deviance_cap = None if self.loss.power is None else self.deviance_cap
                found = errors_of(self.loss, margins, labels, self.cap, self.constant, deviance_cap, offsets)
            products = [a * b for a in found for b in found]
            return np.array([float((np.rint(q / STEP) * STEP).sum()) for q in (*found, *products)])


@np.errstate(all="ignore")
def measures(sums: Vector, statistic: Unclamped, n_records: int) -> dict[str, Estimate]:
    """Return the mean loss, or errors and deviances with R² and D². The interval of each covers the sampling alone.

    A measure that is not finite is left out, such as the deviance of a label that the loss does not allow.
    """
    k, each, C = statistic.quantities, statistic.each, statistic.cap
    mean = sums[:k] / n_records
    spread = sums[k:].reshape(k, k) / n_records - np.outer(mean, mean)

    def average(at: int, unit: float) -> Estimate:
        error = math.sqrt(max(float(spread[at, at]), 0.0) / n_records)
        low, high = max(float(mean[at]) - WIDTH * error, 0.0), float(mean[at]) + WIDTH * error
        return Estimate(float(mean[at]) * unit, error * unit, within=(low * unit, high * unit))

    if statistic.loss.classification:
        return _finite({"loss": replace(average(0, C), best=0.0)})
    units = (C, C * C, statistic.deviance_cap)
    found = {}
    for at, name in enumerate(("mae", "rmse", "deviance")[:each]):
        of_model, base = average(at, units[at]), None
        if statistic.constant is not None:
            base, A, B = average(each + at, units[at]), float(mean[at]), float(mean[each + at])
            if name != "mae" and B > 0.0:
                slope = np.zeros(k)
                slope[[at, each + at]] = 1.0, -A / B
                error = math.sqrt(max(float(slope @ spread @ slope), 0.0) / n_records) / B
                explained = Estimate.inside(-math.inf, 1.0, 1.0 - A / B, error, baseline=0.0)
                found["r2" if name == "rmse" else "d2"] = explained
        if name == "rmse":
            of_model, base = root_of(of_model), None if base is None else root_of(base)
        found[name] = replace(of_model, baseline=None if base is None else base.value, best=0.0)
    order = ("mae", "rmse", "r2", "deviance", "d2")
    return _finite({name: found[name] for name in order if name in found})


def _finite(found: dict[str, Estimate]) -> dict[str, Estimate]:
    return {
        name: e
        for name, e in found.items()
        if all(map(math.isfinite, (e.value, *e.interval))) and (e.baseline is None or math.isfinite(e.baseline))
    }


def finer(edges: Vector, counts: Vector) -> Vector:
    """Return about `EDGES` edges, dividing each bin of a histogram in proportion to its share of the records.

    edges : (m,), ascending; the middle edge is the centre. counts : (m + 1,) records of both classes per bin.
    """
    centre, reach = edges[edges.size // 2], edges[-1] - edges[edges.size // 2]
    outward = reach * 2.0 ** np.arange(1, FAR + 1)
    ends = np.concatenate([(centre - outward)[::-1], edges, centre + outward])
    shares = np.zeros(ends.size - 1)
    shares[FAR : FAR + edges.size - 1] = counts[1:-1]
    shares[:FAR], shares[-FAR:] = counts[0] / FAR, counts[-1] / FAR
    pieces = np.maximum(1, np.rint(EDGES * shares / max(float(shares.sum()), 1.0))).astype(int)
    bins = zip(ends[:-1], ends[1:], pieces, strict=True)
    inner = [low + (high - low) * np.arange(count) / count for low, high, count in bins]
    return np.unique(np.append(np.concatenate(inner), ends[-1]))
