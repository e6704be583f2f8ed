"""From released sums to measures with standard errors: post-processing, so nothing here costs privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from vfl import markup
from vfl.evaluation.curves import Histogram
from vfl.evaluation.statistics import CELLS, GRID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.evaluation.statistics import Outcomes, Residuals
    from vfl.types import Vector

IN_A_LINE = 6
"""Largest number of measures that are printed in one line."""
SEEN = 2.0
"""A class is measured if its noisy count exceeds this many standard deviations of the noise."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measure with its standard error, which covers the noise and the sampling of the records together.

    baseline : the measure of a model without features, from released values: the best constant prediction. For the true and the
        false positive rate, predictions at random that are positive as often. None where it is not known.
    best : the measure of a perfect model.
    noiseless : interval in which the measure of the model without noise lies; shift : the same for its difference from
        this model's measure. None where nothing is stated (vfl.evaluation.gaps).
    """

    value: float
    error: float
    baseline: float | None = None
    best: float = 1.0
    noiseless: tuple[float, float] | None = None
    shift: tuple[float, float] | None = None

    @property
    def too_noisy(self) -> bool:
        """Return True if an interval of ±2 standard errors is wider than the distance from the baseline to a perfect model.

        Without a baseline, return True if 0 is the best value and the interval contains it.
        """
        if self.baseline is None:
            return self.best == 0.0 and 2.0 * self.error >= self.value
        return 4.0 * self.error > abs(self.best - self.baseline)

    def __str__(self) -> str:
        shown = f"{self.value:.4g} ± {self.error:.2g}"
        if self.baseline is not None:
            shown += f" (baseline {self.baseline:.2g})"
        if self.noiseless is not None:
            shown += f", of the model without noise: between {self.noiseless[0]:.2g} and {self.noiseless[1]:.2g}"
        return f"too noisy to tell: {shown}" if self.too_noisy else shown


@dataclass(frozen=True, slots=True)
class Findings:
    """Measures that were released beside the model.

    measures : by name; measures that the noise hides are left out. n_records : size of the part of the records.
    note : protection under which they were released, in words.
    thresholds : {group: threshold on the margin}, where they were chosen (vfl.Fairness).
    histogram : released counts of scores, of which the area under the curve was computed; None without classes.
    """

    measures: Mapping[str, Estimate]
    n_records: int
    note: str
    thresholds: Mapping[str, float] | None = None
    histogram: Histogram | None = None

    def __str__(self) -> str:
        each = [f"{name} {estimate}" for name, estimate in self.measures.items()]
        if self.thresholds is not None:
            each.append("thresholds " + ", ".join(f"{group} {value:.3g}" for group, value in self.thresholds.items()))
        if len(each) > IN_A_LINE:
            return "\n  ".join((f"of {self.n_records} records ({self.note})", *each))
        return f"{', '.join(each) or 'nothing was measured'}, of {self.n_records} records ({self.note})"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        intervals = any(e.noiseless is not None for e in self.measures.values())
        head = (
            "measure",
            markup.Cell("value", number=True),
            markup.Cell("standard error", number=True),
            markup.Cell("baseline", number=True),
            "",
            *(("model without noise",) if intervals else ()),
        )
        rows = [
            (
                name,
                markup.Cell(f"{e.value:.4g}", number=True),
                markup.Cell(f"± {e.error:.2g}", number=True),
                markup.Cell("" if e.baseline is None else f"{e.baseline:.2g}", number=True),
                "too noisy to tell" if e.too_noisy else "",
                *(
                    ("" if e.noiseless is None else f"{e.noiseless[0]:.2g} to {e.noiseless[1]:.2g}",)
                    if intervals
                    else ()
                ),
            )
            for name, e in self.measures.items()
        ]
        note = markup.line(f"of {self.n_records:,} records ({self.note})")
        return markup.whole(*([markup.table(head, rows)] if rows else []), note)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; `from_dict` gives the findings back."""
        measures = {
            name: {"value": e.value, "error": e.error}
            | ({} if e.baseline is None else {"baseline": e.baseline})
            | ({} if e.baseline is None and e.best == 1.0 else {"best": e.best})
            | ({} if e.noiseless is None else {"noiseless": list(e.noiseless)})
            | ({} if e.shift is None else {"shift": list(e.shift)})
            for name, e in self.measures.items()
        }
        plain = {"measures": measures, "n_records": self.n_records, "note": self.note}
        if self.histogram is not None:
            plain["histogram"] = self.histogram.to_dict()
        return plain if self.thresholds is None else {**plain, "thresholds": dict(self.thresholds)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Return the findings that `to_dict` wrote; raise KeyError, TypeError or ValueError for other values."""
        measures = {
            name: Estimate(
                float(e["value"]),
                float(e["error"]),
                float(e["baseline"]) if "baseline" in e else None,
                float(e.get("best", 1.0)),
                _interval(e.get("noiseless")),
                _interval(e.get("shift")),
            )
            for name, e in plain["measures"].items()
        }
        thresholds = plain.get("thresholds")
        if thresholds is not None:
            thresholds = {str(group): float(value) for group, value in thresholds.items()}
        histogram = Histogram.from_dict(plain["histogram"]) if "histogram" in plain else None
        return cls(measures, int(plain["n_records"]), str(plain["note"]), thresholds, histogram)


def _interval(plain: Any) -> tuple[float, float] | None:
    if plain is None:
        return None
    low, high = plain
    return float(low), float(high)


def on_simplex(noisy: Vector, total: float) -> Vector:
    """Return the nonnegative vector with this sum that is nearest to a noisy vector (s,).

    Counts are not negative, and their total is public. Under Gaussian noise the nearest such vector is the most likely one.
    """
    ordered = np.sort(noisy)[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, noisy.size + 1)
    kept = int(np.nonzero(ordered > excess)[0][-1])
    return np.asarray(np.maximum(noisy - excess[kept], 0.0))


def outcomes(released: Vector, statistic: Outcomes, n_records: int, sigma: float) -> dict[str, Estimate]:
    """Return accuracy, true and false positive rate, and the mean clamped loss.

    released : (5,) noisy sums. sigma : standard deviation of the noise of each; 0 for none.
    """
    a, b = (step * GRID for step in statistic.steps)
    noise, found = sigma / a, {}
    negative, positive = on_simplex(released[:CELLS] / a, n_records).reshape(2, 2)
    accuracy = float(negative[0] + positive[1]) / n_records
    share = float(positive.sum()) / n_records
    error = noise * _length(np.array([1.0, 1.0]) / n_records)
    found["accuracy"] = replace(_share(accuracy, n_records, error), baseline=max(share, 1.0 - share))
    predicted = min(max(float(negative[1] + positive[1]) / n_records, 0.0), 1.0)
    for name, (misses, hits), best in (("tpr", positive, 1.0), ("fpr", negative, 0.0)):
        count = float(misses + hits)
        if count > SEEN * noise:
            rate = float(hits) / count
            measured = _share(rate, count, noise * _length(np.array([1.0 - rate, -rate]) / count))
            found[name] = replace(measured, baseline=predicted, best=best)
    mean = min(max(float(released[-1]) / b / n_records, 0.0), 1.0)
    # A variable within [0, 1] of this mean has at most this variance.
    spread = math.hypot(sigma / b / n_records, math.sqrt(mean * (1.0 - mean) / n_records))
    constant = constant_loss(statistic, share)
    found["loss"] = Estimate(mean * statistic.cap, spread * statistic.cap, baseline=constant, best=0.0)
    return found


def constant_loss(statistic: Outcomes, share: float) -> float:
    """Return the mean clamped loss of the best constant margin, where this share of the labels is positive.

    The best margin minimises the loss before the clamp, as training does. Minimising the clamped loss would prefer a margin of
    −20 for a rare class: it loses nothing on negative labels, and on each positive label only the cap, which calibrated models
    nearly lose, too.
    """
    margins = np.linspace(-20.0, 20.0, 4001)
    lost = [statistic.loss.value(margins, np.full(margins.size, y)) for y in (-1.0, 1.0)]
    best = int(np.argmin((1.0 - share) * lost[0] + share * lost[1]))
    negative, positive = (min(float(own[best]), statistic.cap) for own in lost)
    return (1.0 - share) * negative + share * positive


def positives_of(released: Vector, statistic: Outcomes, n_records: int) -> float:
    """Return the number of positive labels. Its noise is that of one cell, since the total is public."""
    return float(on_simplex(released[:CELLS] / (statistic.steps[0] * GRID), n_records)[2:].sum())


def base_rate(positives: float, n_records: int) -> float:
    """Return the share of positive labels, at least one record away from 0 and 1."""
    return min(max(positives / n_records, 1.0 / (n_records + 1)), n_records / (n_records + 1.0))


def scores(released: Vector, n_records: int, sigma: float, positives: float, noise: float) -> dict[str, Estimate]:
    """Return the area under the ROC curve: the probability that a positive record is in a higher bin than a negative one.

    Ties count one half. The noisy counts are used unchanged, negative ones included, and divided by the class sizes released
    before. The area is then nearly unbiased; counts projected onto possible ones would pull it towards ½.
    Its sampling error is that of Hanley & McNeil 1982, eq. 2.

    released : noisy histograms, the negative class first. sigma : standard deviation of the noise of a bin.
    positives, noise : number of positive records, as released before, and the standard deviation of its noise.
    """
    negative, positive = released.reshape(2, -1)
    P, N = positives, n_records - positives
    if min(N, P) <= max(SEEN * noise, 0.5):
        return {}
    # A − ½ = ½ Σ_ij sign(j − i) negative_i positive_j / (NP): odd in the order of bins, which cancels most of the noise.
    below = (np.cumsum(negative) - 0.5 * negative - 0.5 * negative.sum()) / N
    above = (0.5 * positive.sum() - np.cumsum(positive) + 0.5 * positive) / P
    A = min(max(0.5 + float(positive @ below) / P, 0.0), 1.0)
    gradient = np.concatenate([above / N, below / P])
    counted = math.hypot(sigma * float(np.linalg.norm(gradient)), noise * (A - 0.5) * (1.0 / P - 1.0 / N))
    return {"auc": Estimate(A, math.hypot(counted, _area_sampling(A, P, N)), baseline=0.5)}


def _area_sampling(A: float, P: float, N: float) -> float:
    """Return the sampling error of an area A with P positive and N negative records (Hanley & McNeil 1982, eq. 2)."""
    first, second = A / (2.0 - A), 2.0 * A * A / (1.0 + A)
    spread = A * (1.0 - A) + (P - 1.0) * (first - A * A) + (N - 1.0) * (second - A * A)
    return math.sqrt(max(spread, 0.0) / (P * N))


def residuals(released: Vector, statistic: Residuals, n_records: int, sigma: float) -> dict[str, Estimate]:
    """Return mean absolute and root mean squared error and R² of clamped errors, and mean deviance and D² of clamped deviances.

    R² = 1 − A/B, where A and B are the mean squared errors of the model and of the constant. D² is the same ratio of mean
    deviances: the fraction of the deviance that the model explains. A has the variance of its noise, (σ/bn)², and that of
    sampling; B likewise. The error of R² follows by the delta method: noise (σ_A/B)² + (A·σ_B/B²)², and for sampling the bound
    E(t − u·A/B)² ≤ A + A²/B for parts t, u of records in [0, 1] with means A, B, divided by nB². The bound leaves out a
    covariance that would lower it. Without a constant there are no baselines, no R² and no D². A baseline, R² or D² is
    also left out if noise alone could explain the sum of the constant.
    """
    shares = released / (np.array(statistic.steps) * GRID) / n_records
    noise = sigma / (np.array(statistic.steps) * GRID) / n_records
    each = statistic.each
    found = _errors(shares[:each], noise[:each], statistic, n_records)
    if statistic.constant is None:
        return found
    bases = _errors(shares[each:], noise[each:], statistic, n_records)
    for k, name in enumerate(("mae", "rmse", "deviance")[:each]):
        hidden = shares[each + k] <= SEEN * noise[each + k]
        if name in found:
            found[name] = replace(found[name], baseline=None if hidden else bases[name].value, best=0.0)
        if name != "mae" and not hidden:
            A, B = (min(max(float(shares[at]), 0.0), 1.0) for at in (k, each + k))
            squared = (noise[k] / B) ** 2 + (A * noise[each + k] / B**2) ** 2 + (A + A * A / B) / (n_records * B * B)
            explained = Estimate(1.0 - A / B, math.sqrt(float(squared)), baseline=0.0)
            found["r2" if name == "rmse" else "d2"] = explained
    return found


def _errors(shares: Vector, noise: Vector, statistic: Residuals, n_records: int) -> dict[str, Estimate]:
    """Return both errors and the deviance of one model, given the means of t, t² and s and the noise of each."""
    cap, means = statistic.cap, [min(max(float(share), 0.0), 1.0) for share in shares]
    absolute, square = means[:2]
    variance = max(square - absolute**2, 0.0)
    # A variable in [0, 1] with mean m has variance at most m(1 − m).
    spread = [math.sqrt(variance / n_records), *(math.sqrt(m * (1.0 - m) / n_records) for m in means[1:])]
    errors = [math.hypot(own, sampled) for own, sampled in zip(noise, spread, strict=True)]
    found = {"mae": Estimate(absolute * cap, errors[0] * cap)}
    if square > 0.0:
        root = math.sqrt(square)
        found["rmse"] = Estimate(root * cap, errors[1] / (2.0 * root) * cap)
    if statistic.deviance_cap is not None:
        found["deviance"] = Estimate(means[2] * statistic.deviance_cap, errors[2] * statistic.deviance_cap)
    return found


def area_error(bins: int, n_records: int, sigma: float, share: float) -> float:
    """Return the expected standard error of the area under the curve, noise and sampling together, for an area of ¾.

    A bin's noise moves the area by (share of the other class below it − ½) / (records of its class). The mean square of
    the bracket is 1/12 for scores that are uniform over the bins and ¼ for scores in one bin; 1/6 is taken.

    bins : of one class. sigma : standard deviation of the noise of a bin. share : of positive labels.
    """
    P, N = max(1.0, share * n_records), max(1.0, (1.0 - share) * n_records)
    noise = sigma * math.sqrt(bins / 6.0 * (1.0 / P**2 + 1.0 / N**2))
    return min(0.5, math.hypot(noise, _area_sampling(0.75, P, N)))


def _share(rate: float, count: float, noise: float) -> Estimate:
    rate = min(max(rate, 0.0), 1.0)  # rounding may move sums of counts out of [0, 1]
    return Estimate(rate, math.hypot(noise, math.sqrt(rate * (1.0 - rate) / count)))


def _length(gradient: Vector) -> float:
    """Return the length of a gradient orthogonal to the direction in which all cells change alike, since the total is public.

    gradient : of the cells on which the measure depends.
    """
    return math.sqrt(max(float(gradient @ gradient) - float(gradient.sum()) ** 2 / CELLS, 0.0))
