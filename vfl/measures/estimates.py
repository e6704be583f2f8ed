"""Measures with intervals, and thresholds of decisions, from released sums. Post-processing costs no privacy.

A 95 % interval contains the population's value of the measure in at least 0.95 of runs (tests/evaluation/test_coverage.py).
Each interval inverts a test: a value is inside if the released sums lie within `WIDTH` standard deviations of the sums that
the value implies. The variance is that of the noise plus that of sampling *at that value*. The interval therefore stays
right where noise dominates and near the ends of a measure's range. For a quotient such as R² or a rate this is Fieller's
interval.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from vfl.base import markup
from vfl.base.losses import unit_deviance
from vfl.errors import SpecificationError
from vfl.queries.statistics import GRID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.base.losses import Loss
    from vfl.base.types import Vector
    from vfl.queries.statistics import ErrorSizes, Outcomes, Residuals

ALL = "all records"
"""Key in `Findings.thresholds` for a single threshold that applies to all records."""


def score_of(threshold: float, loss: Loss) -> float:
    """Return the score above which a record is predicted positive.

    threshold : a probability with logistic loss, a score with other losses of two classes.

    Raises SpecificationError for a threshold that is not on this scale, and for a loss without two classes.
    """
    if not loss.classification or loss.multinomial:
        raise SpecificationError(
            f"a threshold separates two classes, and {loss.name} loss does not have exactly two: leave the threshold out"
        )
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not math.isfinite(threshold):
        raise SpecificationError(f"a threshold is a finite number, not {threshold!r}")
    if not loss.log_odds:
        return float(threshold)
    if not 0.0 < threshold < 1.0:
        raise SpecificationError(
            f"under {loss.name} loss a threshold is a probability strictly between 0 and 1, not {threshold!r}"
        )
    return math.log(threshold / (1.0 - threshold))


def threshold_of(score: float, *, log_odds: bool) -> float:
    """Return the threshold for a score, on the scale of `score_of`. log_odds : True if scores are log-odds."""
    return float(0.5 * (1.0 + math.tanh(0.5 * score))) if log_odds else float(score)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Released counts of scores per class. Bins lie between edges, so there is one bin more than edges.

    edges : (m,) ascending; a score at an edge counts below the edge. negative, positive : (m + 1,) counts, each with noise
        N(0, sigma²).
    logistic : True if scores are log-odds.
    """

    edges: tuple[float, ...]
    negative: tuple[float, ...]
    positive: tuple[float, ...]
    sigma: float
    logistic: bool

    @classmethod
    def of(cls, edges: Vector, counts: Vector, sigma: float, *, logistic: bool) -> Self:
        """Return the histogram for released counts (2(m + 1),), the negative class first."""
        negative, positive = counts.reshape(2, -1).tolist()
        return cls(tuple(edges.tolist()), tuple(negative), tuple(positive), float(sigma), logistic)

    def shown(self, score: float) -> float:
        """Return a score on the scale of thresholds: a probability if scores are log-odds."""
        return threshold_of(score, log_odds=self.logistic)

    def nearest(self, scores: Sequence[float] | Vector) -> list[int]:
        """Return the positions of the edges nearest to the scores, ascending and without repeats."""
        return sorted({int(np.argmin(abs(np.array(self.edges) - score))) for score in scores})

    def to_dict(self) -> dict[str, Any]:
        """Return the histogram as plain values, which `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Return the histogram that `to_dict` wrote; raise KeyError, TypeError or ValueError for any other input."""
        edges, negative, positive = (tuple(map(float, plain[name])) for name in ("edges", "negative", "positive"))
        if not len(negative) == len(positive) == len(edges) + 1:
            raise ValueError("a histogram has one bin more than edges")
        return cls(edges, negative, positive, float(plain["sigma"]), bool(plain["logistic"]))


IN_A_LINE = 6
"""Largest number of measures per printed line."""
SEEN = 3.0
"""Noise hides a count of at most this many standard deviations of the noise. With 2 instead of 3, intervals of the shown
classes contained 0.89 of the true rates of small classes instead of 0.95.
"""
SURE = 4.0
"""Number of standard deviations of the noise by which a count of errors of one size must exceed 0 to be relied on."""
RARE = 0.01
"""Share of the records that the noise of a count may hide without a change of the caps (`sizes_of`)."""
SELECTED = 2.44
"""Half-width, in standard deviations, of an interval that is reported depending on its own noisy count. Such an interval misses
the true value in at most 1.5 % of runs.
"""
ROUGH = 0.125
"""Largest standard error of a reported rate or area: its interval may be as wide as the distance from ½ to 1. Public facts and
another release determine the standard error, since intervals selected by their own noise would be wrong too often.
"""
KNOWN = 10.0
"""Smallest reported mean error of the constant prediction, in standard deviations of its noise. With a limit just above the
noise, reported means would be too large: 1.4 to 8 times in runs with heavy noise.
"""
WIDTH = 2.0
"""Half-width of an interval of 95 %, in standard deviations."""

TOLD = 4.0
"""Smallest reported mean error, as measured by a release with other noise, in standard deviations of its noise: an interval
twice as wide would still exclude 0.
"""
FEW, NEAR, FAR = 16.0, 1.5, 10.0
"""R² and D² are reported if the sum of the constant's errors is at least FEW records' caps, and the constant's excess
(`_excess`) is at most 1/NEAR of the model's mean error or 1/FAR of the constant's mean error. If only the constant's mean
decided, runs whose constant is far off would report intervals with a coverage of 0 to 0.6.
"""
COARSE = 0.05
"""Largest standard deviation of the noise of the share of labels on a bound, for this share to be reported."""

Interval: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measure with an interval of 95 % that covers both the noise and the sampling of the records.

    error : standard error. For a measure that is a root or a quotient, `error` is a quarter of the interval's width.
    baseline : the measure of the best constant prediction, from released values. For the true and the false positive rate, the
        rate of random predictions with the same share of positives. None if the baseline is not known.
    best : the measure of a perfect model.
    noiseless : interval for the measure of the model without noise. shift : interval for the measure of the model without noise
        minus this measure. Both are None if no bound was asked for (vfl.measures.fairness).
    within : the interval; None means `value` ± two standard errors.
    cap : largest amount that a record's loss, error or deviance counts with; None if nothing is cut. Measure and interval are
        those of the cut amounts.
    withheld : True or False if a rule that does not depend on the measure's own noise calls the measure too noisy or
        reportable; None without such a rule.
    """

    value: float
    error: float
    baseline: float | None = None
    best: float = 1.0
    noiseless: Interval | None = None
    shift: Interval | None = None
    within: Interval | None = None
    cap: float | None = None
    withheld: bool | None = None

    @classmethod
    def inside(cls, low: float, high: float, value: float, error: float, **given: Any) -> Self:
        """Return the estimate whose interval is `value` ± two standard errors, cut to the range [low, high] of the measure."""
        reach = WIDTH * error
        return cls(value, error, within=(max(value - reach, low), min(value + reach, high)), **given)

    @property
    def interval(self) -> Interval:
        """Return the interval of 95 %."""
        reach = WIDTH * self.error
        return (self.value - reach, self.value + reach) if self.within is None else self.within

    @property
    def too_noisy(self) -> bool:
        """Return `withheld`; without it, True if the interval is wider than the distance from the baseline to a perfect model.

        An interval that the end of a range cuts counts as four standard errors wide: otherwise, noise beyond the end would
        select which measures are reported. Except for rates, return True if 0 is the best value and the interval contains it.
        """
        if self.withheld is not None:
            return self.withheld
        low, high = self.interval
        of_amounts = self.baseline is None or self.cap is not None
        if of_amounts and self.best == 0.0 and low <= 0.0 < high:
            return True
        width = max(high - low, 2.0 * WIDTH * self.error)
        return self.baseline is not None and width > abs(self.best - self.baseline)

    @property
    def worse(self) -> bool:
        """Return True if the whole interval is worse than the baseline."""
        low, high = self.interval
        return self.baseline is not None and (
            high < self.baseline if self.best > self.baseline else low > self.baseline
        )

    @property
    def spread(self) -> str:
        """Return the interval in brackets; '' for a value without error."""
        low, high = self.interval
        return "" if low == high else f"[{low:.3g}, {high:.3g}]"

    def __str__(self) -> str:
        shown = f"{self.said} {self.spread}".strip()
        if self.baseline is not None:
            shown += f" (baseline {self.baseline:.2g})"
        if self.noiseless is not None:
            shown += f", of the model without noise: between {self.noiseless[0]:.2g} and {self.noiseless[1]:.2g}"
        return f"too noisy to tell: {shown}" if self.too_noisy else shown

    @property
    def said(self) -> str:
        """Return the value; '' if it is too noisy to tell, since a reader would take the number for the measure."""
        return "" if self.too_noisy else f"{self.value:.4g}"


@dataclass(frozen=True, slots=True)
class Findings:
    """Measures that were released with the model.

    measures : {name: estimate}, without the measures that noise hides. n_records : number of measured records.
    note : protection under which the measures were released, in words.
    thresholds : {group: threshold on the score}, if the job asks for thresholds (vfl.Evaluation, vfl.Fairness). The group is
        vfl.measures.estimates.ALL where the model has one threshold for all records.
    histogram : released counts of scores, used for the area under the ROC curve; None without classes.
    confusion : numbers of true and false negatives and positives at the threshold; None without two classes.
    selected : number of thresholds among which one was chosen on these records; 0 if no threshold was chosen.
    """

    measures: Mapping[str, Estimate]
    n_records: int
    note: str
    thresholds: Mapping[str, float] | None = None
    histogram: Histogram | None = None
    confusion: Mapping[str, Estimate] | None = None
    selected: int = 0

    @property
    def named(self) -> dict[str, Estimate]:
        """The measures by the names for readers, which state what a record counts at most."""
        return {name_of(name, estimate): estimate for name, estimate in self.measures.items()}

    def __str__(self) -> str:
        each = [f"{name} {estimate}" for name, estimate in self.named.items()]
        for group, at in self.shown_thresholds.items():
            each.append(f"threshold{'' if group == ALL else f' of {group}'} {at:.3g}")
        if len(each) > IN_A_LINE:
            return "\n  ".join((f"of {self.n_records} records ({self.note})", *each))
        return f"{', '.join(each) or 'nothing was measured'}, of {self.n_records} records ({self.note})"

    def __repr__(self) -> str:
        return str(self)

    @property
    def shown_thresholds(self) -> dict[str, float]:
        """Thresholds by group: probabilities if the histogram says that scores are log-odds, else scores."""
        found = dict(self.thresholds or {})
        return found if self.histogram is None else {name: self.histogram.shown(at) for name, at in found.items()}

    def _repr_html_(self) -> str:
        rows = [
            (
                name,
                e.said,
                e.spread,
                "" if e.baseline is None else f"{e.baseline:.2g}",
                "too noisy to tell" if e.too_noisy else "",
                "" if e.noiseless is None else f"{e.noiseless[0]:.2g} to {e.noiseless[1]:.2g}",
            )
            for name, e in self.named.items()
        ]
        head = ("measure", "value", "interval of 95 %", "baseline", "", "model without noise")
        shown = len(head) if any(row[-1] for row in rows) else len(head) - 1
        note = markup.line(f"of {self.n_records:,} records ({self.note})")
        made = markup.table(head[:shown], [row[:shown] for row in rows], numbers=(1, 2, 3)) if rows else ""
        return markup.whole(made, note)

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as plain values, which `from_dict` reads."""
        plain = {"measures": _plain(self.measures), "n_records": self.n_records, "note": self.note}
        if self.confusion is not None:
            plain["confusion"] = _plain(self.confusion)
        if self.selected:
            plain["selected"] = self.selected
        if self.histogram is not None:
            plain["histogram"] = self.histogram.to_dict()
        return plain if self.thresholds is None else {**plain, "thresholds": dict(self.thresholds)}

    def shown(self) -> dict[str, Any]:
        """Return the findings as plain values for readers: measures that are too noisy to tell have an interval alone."""
        plain = self.to_dict()
        for name, e in self.measures.items():
            if e.too_noisy:
                kept = {key: own for key, own in plain["measures"][name].items() if key not in ("value", "error")}
                plain["measures"][name] = kept | {"too_noisy": True, "interval": list(e.interval)}
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Return the findings that `to_dict` wrote; raise KeyError, TypeError or ValueError for any other input."""
        measures = _estimates(plain["measures"])
        confusion = _estimates(plain["confusion"]) if "confusion" in plain else None
        thresholds = plain.get("thresholds")
        if thresholds is not None:
            thresholds = {str(group): float(value) for group, value in thresholds.items()}
        histogram = Histogram.from_dict(plain["histogram"]) if "histogram" in plain else None
        n_records, note, selected = int(plain["n_records"]), str(plain["note"]), int(plain.get("selected", 0))
        return cls(measures, n_records, note, thresholds, histogram, confusion, selected)


COUNTED = {"loss": "", "deviance": "", "d2": " deviance"}
"""Amount of a record that the cap of a measure cuts, if not its error; '' if the measure has the name of the amount."""


def name_of(measure: str, estimate: Estimate) -> str:
    """Return the name of a measure for readers, such as 'rmse (each record's error at most 12)'."""
    if estimate.cap is None:
        return measure
    return f"{measure} (each record's{COUNTED.get(measure, ' error')} at most {estimate.cap:.3g})"


def _plain(measures: Mapping[str, Estimate]) -> dict[str, Any]:
    """Return the fields that are not None; `within` is called 'interval'."""
    found = {name: asdict(e) for name, e in measures.items()}
    for plain in found.values():
        plain["interval"] = plain.pop("within")
    return {name: {key: value for key, value in plain.items() if value is not None} for name, plain in found.items()}


def _estimates(plain: Mapping[str, Any]) -> dict[str, Estimate]:
    found = {}
    for name, given in plain.items():
        numbers = ("value", "error", "baseline", "best", "cap")
        own: dict[str, Any] = {key: float(given[key]) for key in numbers if key in given}
        for key in ("noiseless", "shift", "interval"):
            if key in given:
                low, high = given[key]
                own["within" if key == "interval" else key] = float(low), float(high)
        found[name] = Estimate(**own, withheld=bool(given["withheld"]) if "withheld" in given else None)
    return found


def mean_interval(mean: float, noise: float, n_records: int, variance: float = 1.0, width: float = WIDTH) -> Interval:
    """Return all m in [0, 1] with |mean − m| ≤ width·√(noise² + v(m)/n): Wilson's interval, widened by noise.

    v(m) = min(m(1 − m), variance − m²) is at least the variance of a variable in [0, 1] with mean m.

    mean : noisy mean of n records. variance : upper bound on the mean square.
    """
    mean = min(max(mean, 0.0), 1.0)  # clipping moves the mean closer to every m in [0, 1]
    z = width * width
    sides = [
        _solutions(1.0 + z / n_records, -2.0 * mean - z / n_records, mean * mean - z * noise * noise),
        _solutions(1.0 + z / n_records, -2.0 * mean, mean * mean - z * (noise * noise + variance / n_records)),
    ]
    low, high = max(side[0] for side in sides), min(side[1] for side in sides)
    return min(max(low, 0.0), mean), max(min(high, 1.0), mean)


def share_interval(
    hits: float, misses: float, sigma: float, cells: int, bins: tuple[int, int] = (1, 1), width: float = WIDTH
) -> Interval:
    """Return Fieller's interval for hits/(hits + misses) of noisy counts, within [0, 1]. Counts below 0 count as 0.

    Let hits be the sum of k released counts, and hits + misses the sum of K released counts. If the true rate is r, then
    (1 − r)·hits − r·misses has mean 0, and variance
    σ²((1 − r)²k + r²(K − k) − (k − rK)²/cells) + count·r(1 − r).

    sigma : standard deviation of the noise of each of `cells` counts, all shifted by one amount to have their public sum.
    bins : k and K − k.
    """
    hits, misses = max(hits, 0.0), max(misses, 0.0)  # (1 − r)·hits − r·misses is then closer to 0 for every r in [0, 1]
    count, z = hits + misses, width * width
    square, k, K = z * sigma * sigma, float(bins[0]), float(sum(bins))
    sampled = z * max(count, 0.0)
    a = count * count + sampled - square * (K - K * K / cells)
    b = -2.0 * count * hits - sampled + 2.0 * square * (k - k * K / cells)
    low, high = _solutions(a, b, hits * hits - square * (k - k * k / cells))
    return min(max(low, 0.0), 1.0), max(min(high, 1.0), 0.0)


def _solutions(a: float, b: float, c: float) -> Interval:
    """Return the ends of {x: a x² + b x + c ≤ 0}; ±inf if a ≤ 0, or if rounding leaves no solution."""
    if not a > 0.0:
        return -math.inf, math.inf
    root = math.sqrt(max(b * b - 4.0 * a * c, 0.0))
    return (-b - root) / (2.0 * a), (-b + root) / (2.0 * a)


def share_error(share: float, noise: float, n: float) -> float:
    """Return the standard error of a share of n records, due to noise and sampling."""
    return math.hypot(noise, math.sqrt(max(share * (1.0 - share), 0.0) / n))


def rough(baseline: float, noise: float, n: float, best: float = 1.0) -> bool:
    """Return True if the standard error of a share near the baseline is above a quarter of its distance from the best share."""
    return 2.0 * WIDTH * share_error(baseline, noise, n) > abs(best - baseline)


def around(value: float, within: Interval) -> Interval:
    """Return an interval, extended to include the value, which the projection onto possible counts may have moved outside."""
    return min(within[0], value), max(within[1], value)


def scaled(estimate: Estimate, unit: float) -> Estimate:
    """Return the estimate in another unit."""
    low, high = estimate.interval
    return replace(estimate, value=estimate.value * unit, error=estimate.error * unit, within=(low * unit, high * unit))


def root_of(square: Estimate) -> Estimate:
    """Return the root of a mean square. Each end of the root's interval is the root of an end of the mean square's interval."""
    low, high = (math.sqrt(end) for end in square.interval)
    return Estimate(math.sqrt(square.value), (high - low) / (2.0 * WIDTH), within=(low, high))


def bounded_mean(mean: float, noise: float, n_records: int, unit: float = 1.0) -> Estimate:
    """Return the estimate of the mean of a variable in [0, unit], given its noisy mean in units of `unit`."""
    inside = min(max(mean, 0.0), 1.0)
    # A variable in [0, 1] with this mean has at most this variance.
    error = share_error(inside, noise, n_records)
    return scaled(Estimate(inside, error, within=mean_interval(mean, noise, n_records)), unit)


def constant_loss(statistic: Outcomes, share: float) -> float:
    """Return the mean clamped loss of the best constant score, given the share of positive labels.

    The best score minimises the unclamped loss, as training does. Minimising the clamped loss would prefer a score of −20
    for a rare class. At −20 the loss is 0 on negative labels, and the cap on positive ones, where calibrated models lose
    nearly as much.
    """
    scores = np.linspace(-20.0, 20.0, 4001)
    lost = [statistic.loss.value(scores, np.full(scores.size, y)) for y in (-1.0, 1.0)]
    best = int(np.argmin((1.0 - share) * lost[0] + share * lost[1]))
    negative, positive = (min(float(own[best]), statistic.cap) for own in lost)
    return (1.0 - share) * negative + share * positive


def base_rate(positives: float, n_records: int) -> float:
    """Return the share of positive labels, kept at least one record away from 0 and from 1."""
    return min(max(positives / n_records, 1.0 / (n_records + 1)), n_records / (n_records + 1.0))


def scores(released: Vector, n_records: int, sigma: float, positives: float, noise: float) -> dict[str, Estimate]:
    """Return the area under the ROC curve: the probability that a positive record is in a higher bin than a negative one.

    Ties count one half. The noisy counts are used unchanged, negative ones included, and divided by the class sizes, which an
    earlier release gave. The area is then nearly unbiased; projecting the counts onto nonnegative ones would bias the area
    towards ½. The sampling error of the area is that of Hanley & McNeil 1982, eq. 2.

    released : noisy histograms, the negative class first. sigma : standard deviation of the noise of a bin.
    positives, noise : number of positive records, from an earlier release, and the standard deviation of the number's noise.
    """
    negative, positive = released.reshape(2, -1)
    P, N = positives, n_records - positives
    if min(N, P) <= max(SEEN * noise, 0.5):
        return {}
    # A − ½ = ½ Σ_ij sign(j − i) negative_i positive_j / (NP) is odd in the order of bins, which cancels most of the noise.
    below = (np.cumsum(negative) - 0.5 * negative - 0.5 * negative.sum()) / N
    above = (0.5 * positive.sum() - np.cumsum(positive) + 0.5 * positive) / P
    # A dot product may round otherwise in another process, depending on where its arrays lie in memory.
    A = min(max(0.5 + math.fsum(positive * below) / P, 0.0), 1.0)
    gradient = np.concatenate([above / N, below / P])
    counted = math.hypot(sigma * float(np.linalg.norm(gradient)), noise * (A - 0.5) * (1.0 / P - 1.0 / N))
    inside = (at for at in _areas(A) if abs(A - at) <= WIDTH * math.hypot(counted, _area_sampling(at, P, N)))
    ends = [A, *inside]
    within = min(ends), max(ends)
    withheld = area_error(negative.size, n_records, sigma, P / n_records) > ROUGH if sigma else None
    error = math.hypot(counted, _area_sampling(A, P, N))
    return {"auc": Estimate(A, error, baseline=0.5, within=within, withheld=withheld)}


def _areas(A: float) -> list[float]:
    """Return the areas to test for the interval around an area A, spaced more closely near A."""
    steps = [sign * 0.5 ** (k / 16.0) for k in range(1, 240) for sign in (-1.0, 1.0)]
    return [min(max(A + step, 0.0), 1.0) for step in steps]


def _area_sampling(A: float, P: float, N: float) -> float:
    """Return the sampling error of an area A with P positive and N negative records (Hanley & McNeil 1982, eq. 2)."""
    first, second = A / (2.0 - A), 2.0 * A * A / (1.0 + A)
    spread = A * (1.0 - A) + (P - 1.0) * (first - A * A) + (N - 1.0) * (second - A * A)
    return math.sqrt(max(spread, 0.0) / (P * N))


def residuals(
    released: Vector,
    statistic: Residuals,
    n_records: int,
    sigma: float,
    apart: float = 0.0,
    exposures: float = 1.0,
    known: Sequence[float] | None = None,
) -> dict[str, Estimate]:
    """Return mean absolute error, root mean squared error and R² of clamped errors; with deviances, their clamped mean and D².

    R² = 1 − A/B, where A and B are the mean squared errors of the model and of a constant prediction. D² is the same ratio of
    mean deviances: the fraction of the deviance that the model explains. The intervals of R² and D² are Fieller's
    (`_explained`). The interval of the root mean squared error has the roots of the ends of the mean square's interval, since
    the delta method fails for a mean that noise dominates. Without a constant there are no baselines, no R² and no D². They are
    also left out if the constant's mean error is below `KNOWN`, and R² or D² if the interval of the quotient is unbounded.

    apart : bound on the distance between the constant and the labels' mean, which holds in 95 of 100 runs. The constant's mean
        error exceeds that of the labels' mean by exactly the deviance between both (a Bregman divergence). The lower ends of R²
        and D² are lowered to allow for this excess. exposures : bound on the mean of e^(2−p) for exposures e, else 1.
    known : the means of the same errors by a release with other noise (`sizes_of`). They decide which measures are reported,
        since the interval of a measure selected by its own noise would be wrong. None takes the released means.
    """
    shares = released / (np.array(statistic.steps) * GRID) / n_records
    noise = sigma / (np.array(statistic.steps) * GRID) / n_records
    each = statistic.each
    found = _errors(shares[:each], noise[:each], statistic, n_records)
    if statistic.constant is None:
        return found
    bases = _errors(shares[each:], noise[each:], statistic, n_records)
    means = shares if known is None else np.array(known)
    for k, name in enumerate(("mae", "rmse", "deviance")[:each]):
        at = each + k
        base = bases[name].value if means[at] >= KNOWN * noise[at] else None
        withheld = True if known is not None and means[k] < TOLD * noise[k] else None
        found[name] = replace(found[name], baseline=base, best=0.0, withheld=withheld)
        excess = _excess(statistic, apart, exposures, name, max(float(shares[at]), 0.0))
        # A large constant has a small excess, so also compute the excess of the least possible constant.
        lower = replace(statistic, constant=max(statistic.constant - apart, 1e-12))
        most = max(excess, _excess(lower, apart, exposures, name, float(means[at])))
        close = means[k] >= NEAR * most or means[at] >= FAR * most
        if name == "mae" or base is None or not (close and means[at] >= FEW / n_records and shares[at] > 0.0):
            continue
        of_model, of_constant = ((float(shares[j]), float(noise[j])) for j in (k, at))
        explained = _explained(of_model, of_constant, n_records, excess)
        if explained is not None:
            found["r2" if name == "rmse" else "d2"] = replace(explained, cap=found[name].cap)
    return found


def sizes_of(
    released: Vector, statistic: ErrorSizes, n_records: int, sigma: float, kept: tuple[bool, bool], *, low_end: bool
) -> tuple[tuple[float, ...], tuple[float, ...], Estimate]:
    """Return caps, means and the share of the labels at an end of their bounds, from released counts of errors by their size.

    The new caps of errors and deviances, as shares of the caps used in counting, lie above all errors that the noise does not
    hide. The means are rough, in the order of `Residuals` and in units of these caps; 0 if the noise hides most records.

    kept : True for a cap that the job declares, of errors and of deviances. low_end : False if no label is cut at the low end.

    Only bins whose counts exceed SURE standard deviations of the noise are used. If these bins hold less than half of the
    records, the caps stay as they are. Where a bin beyond may hide more than RARE of the records, the caps are twice as large:
    cutting skewed errors moves the best constant away from the mean, which `residuals` takes for the best.
    """
    kinds = released[:-2].reshape(2, -1, statistic.bins)  # by model, kind of error and bin
    clear = np.where(kinds > SURE * sigma, kinds, 0.0)
    seen = clear.sum(axis=2) >= 0.5 * n_records
    top = np.maximum(np.argmax((clear > 0.0).any(axis=0), axis=1) - (SURE * sigma > RARE * n_records), 0)
    caps = np.where(seen.all(axis=0) & ~np.array(kept[: len(top)]), 2.0**-top, 1.0)
    t = np.minimum(0.75 * 2.0 ** -np.arange(statistic.bins) / caps[:, None], 1.0)
    powers = (t[0], t[0] ** 2, *t[1:])
    means = [float(clear[m, max(j - 1, 0)] @ u) * seen[m, max(j - 1, 0)] for m in (0, 1) for j, u in enumerate(powers)]
    ends = released[-2 if low_end else -1 :]
    noise = sigma * math.sqrt(ends.size) / n_records
    at_bounds = replace(bounded_mean(float(ends.sum()) / n_records, noise, n_records), withheld=noise > COARSE or None)
    return tuple(caps.tolist()), tuple(mean / n_records for mean in means), at_bounds


def _excess(statistic: Residuals, apart: float, exposures: float, name: str, base: float) -> float:
    """Return an upper bound on the constant's average u² (or q, as in `Residuals`) minus that of the labels' mean.

    With exposures e and rates k for that mean and k̃ for the constant, the average of q exceeds the mean's by E e^(2−p) times
    the deviance between k and k̃. The roots of the averages of u² differ by at most a = |k̃ − k|·√(E e²)/C (Minkowski), where
    E e² is at most h^p·E e^(2−p) with the largest exposure h.

    base : the constant's average.
    """
    power = statistic.loss.power
    if name == "rmse" and statistic.exposure and power is not None:
        a, root = apart / statistic.cap * math.sqrt(statistic.exposure**power * exposures), math.sqrt(base)
        return base if a >= root else (2.0 * root - a) * a
    if name == "rmse" or power is None or statistic.constant is None or statistic.deviance_cap is None:
        return (apart / statistic.cap) ** 2
    ends = np.array([statistic.constant - apart, statistic.constant + apart])
    most = exposures * float(unit_deviance(ends, np.full(2, statistic.constant), power).max()) / statistic.deviance_cap
    return most if math.isfinite(most) else 1.0


def _explained(
    of_model: tuple[float, float], of_constant: tuple[float, float], n_records: int, excess: float
) -> Estimate | None:
    """Return 1 − A/B from noisy means A, B of quantities t, u in [0, 1], or None if its interval has no lower end.

    If ρ is the true ratio, A − ρB has mean 0 and variance σ_A² + ρ²σ_B² + E(t − ρu)²/n. The last term is at most
    (A + ρ²B)/n, without a covariance that would lower the term, and A = ρB. So ρ solves a quadratic inequality.

    excess : largest amount by which B may exceed the mean of the best constant prediction.
    """
    (A, noise), (B, base) = of_model, of_constant
    A, B, z = min(max(A, 0.0), 1.0), min(B, 1.0), WIDTH * WIDTH

    def ratios(B: float) -> Interval:
        a, b = B * B - z * (base * base + B / n_records), -2.0 * A * B - z * B / n_records
        return _solutions(a if B > 0.0 else 0.0, b, A * A - z * noise * noise)

    low, high = ratios(B)[0], ratios(B - excess)[1]
    value = 1.0 - A / B
    if math.isinf(high):
        return None
    within = around(value, (1.0 - high, min(1.0 - low, 1.0)))
    return Estimate(value, (within[1] - within[0]) / (2.0 * WIDTH), baseline=0.0, within=within)


def _errors(shares: Vector, noise: Vector, statistic: Residuals, n_records: int) -> dict[str, Estimate]:
    """Return both errors and the deviance of one model, given the means of t, t² and s and the noise of each mean."""
    square = bounded_mean(float(shares[1]), float(noise[1]), n_records)
    absolute = min(max(float(shares[0]), 0.0), 1.0)
    most = square.interval[1]
    error = math.hypot(float(noise[0]), math.sqrt(max(min(square.value, absolute) - absolute**2, 0.0) / n_records))
    within = mean_interval(float(shares[0]), float(noise[0]), n_records, most)
    C, D = statistic.cap, statistic.deviance_cap
    found = {"mae": replace(scaled(Estimate(absolute, error, within=within), C), cap=C)}
    found["rmse"] = replace(scaled(root_of(square), C), cap=C)
    if D is not None:
        found["deviance"] = replace(bounded_mean(float(shares[2]), float(noise[2]), n_records, D), cap=D)
    return found


def area_error(bins: int, n_records: int, sigma: float, share: float) -> float:
    """Return the expected standard error of the area under the curve, noise and sampling together, for an area of ¾.

    A bin's noise moves the area by (share of the other class below the bin − ½) / (records of the bin's class). The mean
    square of the first bracket is 1/12 for scores that are uniform over the bins and ¼ for scores in one bin; 1/6 is used here.

    bins : number of bins of one class. sigma : standard deviation of the noise of a bin. share : share of positive labels.
    """
    P, N = max(1.0, share * n_records), max(1.0, (1.0 - share) * n_records)
    return min(0.5, math.hypot(area_noise(bins, P, N, sigma), _area_sampling(0.75, P, N)))


def area_noise(bins: int, P: float, N: float, sigma: float) -> float:
    """Return the noise's part of `area_error`, for P positive and N negative records."""
    return sigma * math.sqrt(bins / 6.0 * (1.0 / P**2 + 1.0 / N**2))
