"""Sums over records of bounded contributions, from which measures are computed. Each sum derives its own sensitivity.

Every contribution is a vector of whole numbers, in steps of GRID, so sums are exact and independent of order. Replacing a
record may change the record's margin and label arbitrarily, but no other record's contribution.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.base.losses import unit_deviance
from vfl.base.problem import weighed
from vfl.queries import HELD_GROUPS, HELD_NORMS, HELD_OFFSETS, HELD_POSITIONS, Statistic

if TYPE_CHECKING:
    import numpy.typing as npt

    from vfl.base.losses import Loss
    from vfl.base.types import Integers, Vector

GRID = 2.0**-20
CELLS = 4


def weight(share: float, square: float) -> int:
    """Return the weight, in steps of GRID, that gives a part of squared sensitivity `square` this share of the joint Δ²."""
    return max(1, round(math.sqrt(share / square) / GRID))


def root(square: int) -> float:
    """Return √square, in steps of GRID, as a double rounded up."""
    whole = math.isqrt(square)
    return math.nextafter((whole + (whole * whole < square)) * GRID, math.inf)


def steps_of(values: Vector, steps: int) -> int:
    """Return Σ rint(steps·t) for t clamped to [0, 1], with NaN as 1. Each term lies between 0 and `steps`."""
    t = np.where(np.isnan(values), 1.0, np.clip(values, 0.0, 1.0))
    return int(np.rint(t * steps).astype(np.int64).sum())


def wrong(margins: Vector, labels: Vector) -> npt.NDArray[np.bool_]:
    """Return True for each wrong prediction, (n,). margins : (n,), or (K·n,) with K classes, class after class."""
    if margins.size == labels.size:
        return np.asarray((margins > 0) != (labels > 0))
    with np.errstate(all="ignore"):
        return np.asarray(margins.reshape(-1, labels.size).argmax(axis=0) != labels)


def _deviances(loss: Loss, labels: Vector, means: Vector) -> Vector:
    """Return the deviance of each label, given its expected value, (n,); ValueError for a loss without deviances."""
    power = loss.power
    if power is None:
        raise ValueError(f"{loss.name} loss has no deviance")
    return unit_deviance(labels, means, power)


def errors_of(
    loss: Loss,
    margins: Vector,
    labels: Vector,
    cap: float,
    constant: float | None = None,
    deviance_cap: float | None = None,
    offsets: Vector | None = None,
) -> list[Vector]:
    """Return |e|/C and e²/C², (n,) each, unclamped, for the model's errors e = response − label; then for those of a constant.

    With a cap D on deviances d, also return d/D for each model, after the model's errors.

    cap : C. constant : prediction of the constant model; None leaves that model out. deviance_cap : D; None leaves deviances
        out. offsets : log(exposure) of each record, which multiplies the constant by the exposure; None without exposures.
    """
    found: list[Vector] = []
    with np.errstate(all="ignore"):
        exposures = np.ones(labels.size) if offsets is None else np.exp(offsets)
        constants = [] if constant is None else [constant * exposures]
        for mean in (loss.response(margins), *constants):
            t = abs(mean - labels) / cap
            found += [t, t * t]
            if deviance_cap is not None:
                found.append(_deviances(loss, labels, mean) / deviance_cap)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class CellsAndLoss(Statistic, ABC):
    """Counts of records per cell, and the sum of clamped losses, released together.

    A record is in one cell. Replacing the record lowers one cell by one and raises another, which moves the counts by at most
    √2. The record's loss, clamped to [0, cap] and divided by cap, moves the sum by at most 1. With weights a, b: Δ² = 2a² +
    b², attained when cell and loss both change. Counts and sum are released jointly, as one Gaussian vector.

    loss, cap : loss to sum, and the cap on a record's loss. steps : a, b in units of GRID.
    """

    loss: Loss
    cap: float
    steps: tuple[int, int]

    grid: ClassVar[float] = GRID

    @property
    def sensitivity(self) -> float:
        """Return Δ."""
        a, b = self.steps
        return root(2 * a * a + b * b)

    @abstractmethod
    def cells(self, margins: Vector, labels: Vector) -> Integers:
        """Return the number of records per cell."""

    def __call__(self, margins: Vector, labels: Vector) -> Integers:
        """Return (a·cells, b·Σ losses) in steps."""
        with np.errstate(all="ignore"):
            losses = self.loss.value(margins, labels) / self.cap
        a, b = self.steps
        return np.append(a * self.cells(margins, labels), steps_of(losses, b)).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes(CellsAndLoss):
    """Counts of the four cells (label, prediction) of two classes, and the sum of clamped losses.

    threshold : margin above which a record is predicted positive. The threshold is public or released, so no record affects it.
    """

    threshold: float = 0.0

    dimension: ClassVar[int] = CELLS + 1

    def cells(self, margins: Vector, labels: Vector) -> Integers:
        """Return the numbers of true negatives, false positives, false negatives and true positives."""
        return np.bincount(2 * (labels > 0) + (margins > self.threshold), minlength=CELLS)


class BinCounts(Statistic, ABC):
    """Base of counts of records in disjoint bins. A record is in at most one bin.

    Replacing a record lowers one count by one and raises another by one: Δ = √2.
    """

    __slots__ = ()
    grid: ClassVar[float] = GRID
    sensitivity: ClassVar[float] = math.nextafter(math.sqrt(2.0), math.inf)

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Return the number of bins."""

    @abstractmethod
    def bin_of(self, margins: Vector, labels: Vector, *kept: Vector) -> Integers:
        """Return the bin of each record that is counted."""

    def __call__(self, margins: Vector, labels: Vector, *kept: Vector) -> Integers:
        """Return the counts, (dimension,), in steps of GRID."""
        bins = self.bin_of(margins, labels, *kept)
        return np.bincount(bins, minlength=self.dimension).astype(np.int64) * round(1.0 / GRID)


@dataclass(frozen=True, slots=True, eq=False)
class Scores(BinCounts):
    """Histograms of the margins per class, the negative class first. Each histogram has one bin more than edges.

    A margin at an edge counts below the edge.

    edges : (m,) in ascending order, public.
    """

    edges: Vector

    sensitivity: ClassVar[float] = root(2 * round(1.0 / GRID) ** 2)

    @property
    def bins(self) -> int:
        """Return the number of bins per class."""
        return len(self.edges) + 1

    @property
    def dimension(self) -> int:
        """Return the number of bins of both classes."""
        return 2 * self.bins

    def bin_of(self, margins: Vector, labels: Vector, *kept: Vector) -> Integers:
        """Return the bin of each record."""
        return np.asarray(np.searchsorted(self.edges, margins, side="left") + self.bins * (labels > 0))


@dataclass(frozen=True, slots=True, eq=False)
class Residuals(Statistic):
    """Sums Σ |e|/C and Σ e²/C² of errors e = response − label, clamped to [−C, C], for the model and for a constant model.

    With t = |e|/C in [0, 1] a record contributes (a·t, b·t²). Replacing the record moves the sum by at most √(a² + b²),
    attained when the error changes from 0 to C. A constant prediction k with u = |k − label|/C adds (c·u, d·u²):
    Δ² = a² + b² + c² + d², attained when both errors change from 0 to C. The model and k are released values. All sums are
    released jointly, as one Gaussian vector.

    With a cap D on deviances, there is also a sum of d/D for each of the two models. The records' deviances d are clamped to
    [0, D], and NaN counts as D. Call these terms s for the model and q for the constant. For any margin and label, a record
    adds (e·s, f·q) with weights e, f and s, q in [0, 1], so Δ² grows by e² + f².

    cap : C. steps : weights in units of GRID: a, b; with a constant also c, d; with deviances a, b, e, c, d, f.
    constant : k; None leaves the constant model out. deviance_cap : D, for losses of counts and amounts; None leaves deviances
        out.
    exposure : largest exposure. The constant is then a rate, and a record's constant prediction is k times its exposure, which
        changes no bound above. 0 without exposures.
    """

    loss: Loss
    cap: float
    steps: tuple[int, ...]
    constant: float | None = None
    deviance_cap: float | None = None
    exposure: float = 0.0

    grid: ClassVar[float] = GRID

    def __post_init__(self) -> None:
        if self.deviance_cap is not None and self.loss.power is None:
            raise ValueError(f"{self.loss.name} loss has no deviance")
        if len(self.steps) != self.dimension:
            raise ValueError(f"errors have {self.dimension} weights, not {len(self.steps)}")

    @property
    def each(self) -> int:
        """Return the number of sums per model: 2, or 3 with deviances."""
        return 2 if self.deviance_cap is None else 3

    @property
    def dimension(self) -> int:
        """Return the number of sums of the model and of the constant, if there is one, together."""
        return self.each if self.constant is None else 2 * self.each

    @property
    def sensitivity(self) -> float:
        """Return Δ."""
        return root(sum(step * step for step in self.steps))

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the vectors that the statistic takes in addition to margins and labels."""
        return (HELD_OFFSETS,) if self.exposure else ()

    def __call__(self, margins: Vector, labels: Vector, offsets: Vector | None = None) -> Integers:
        """Return (Σ a·t, Σ b·t², Σ c·u, Σ d·u²) in GRID steps; with deviances (Σ a·t, Σ b·t², Σ e·s, Σ c·u, Σ d·u², Σ f·q)."""
        sums = errors_of(self.loss, margins, labels, self.cap, self.constant, self.deviance_cap, offsets)
        return np.array([steps_of(part, step) for part, step in zip(sums, self.steps, strict=True)], dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class ErrorSizes(Statistic):
    """Histograms of errors in bins that halve downwards from the cap, and the number of labels at each end of their bounds.

    The t, u and with deviances s, q of `Residuals` have a histogram each. Values are clamped to [0, 1], and NaN counts as 1. A
    record is in one bin of each histogram, and its label may lie at one end of the bounds. Replacing the record moves each of
    the k = 2 or 4 histograms by at most √2, and the two numbers by at most √2: Δ = √(2k + 2), attained when the record changes
    all its bins and its label moves from one end to the other. All counts are released jointly, as one Gaussian vector.

    errors : the errors to count, with their caps. low, high : declared bounds of the label.
    """

    errors: Residuals
    low: float
    high: float

    grid: ClassVar[float] = GRID
    bins: ClassVar[int] = 14

    @property
    def dimension(self) -> int:
        """Return the number of counts: those of all bins, and those of the two ends."""
        return self.bins * 2 * (self.errors.each - 1) + 2

    @property
    def sensitivity(self) -> float:
        """Return Δ."""
        return root((4 * (self.errors.each - 1) + 2) * round(1.0 / GRID) ** 2)

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the vectors that the statistic takes in addition to margins and labels."""
        return self.errors.needs

    def __call__(self, margins: Vector, labels: Vector, offsets: Vector | None = None) -> Integers:
        """Return the counts in steps of GRID, first the histograms in the order of `errors`, then the ends.

        Bin j of a histogram holds 2^−(j+1) < t ≤ 2^−j; the last bin holds all smaller ones.
        """
        own, counts = self.errors, []
        sums = errors_of(own.loss, margins, labels, own.cap, own.constant, own.deviance_cap, offsets)
        del sums[1 :: own.each]  # the squares
        for t in sums:
            inside = np.clip(np.nan_to_num(t, nan=1.0), 2.0**-self.bins, 1.0)
            bins = np.floor(-np.log2(inside)).astype(np.int64)
            counts.append(np.bincount(np.minimum(bins, self.bins - 1), minlength=self.bins))
        ends = (labels <= self.low).sum(), (labels >= self.high).sum()
        return np.concatenate([*counts, ends]).astype(np.int64) * round(1.0 / GRID)


@dataclass(frozen=True, slots=True, eq=False)
class Lost(Statistic):
    """Sum of t over the records, where t in [0, 1] is a record's loss or error. Replacing a record moves the sum by at most 1.

    measure : 'loss', t = loss/cap; 'accuracy', t = 1 for a wrong prediction; 'mae', t = |e|/cap and 'mse', t = (e/cap)² of the
        error e = response − label; 'deviance', t = deviance/cap. Every t is clamped to [0, 1], and NaN counts as 1. So Δ = 1.
    cap : cap on a loss, an error or a deviance. steps : weight in units of GRID.
    """

    loss: Loss
    cap: float
    measure: str
    steps: int

    grid: ClassVar[float] = GRID
    dimension: ClassVar[int] = 1

    @property
    def sensitivity(self) -> float:
        """Return Δ."""
        return root(self.steps * self.steps)

    @property
    def unit(self) -> float:
        """Return the measure's value if every record has t = 1."""
        return {"accuracy": 1.0, "mse": self.cap * self.cap}.get(self.measure, self.cap)

    def __call__(self, margins: Vector, labels: Vector) -> Integers:
        """Return Σ t, in steps of GRID."""
        with np.errstate(all="ignore"):
            if self.measure == "loss":
                t = self.loss.value(margins, labels) / self.cap
            elif self.measure == "accuracy":
                t = wrong(margins, labels).astype(np.float64)
            elif self.measure == "deviance":
                t = _deviances(self.loss, labels, self.loss.response(margins)) / self.cap
            else:
                t = errors_of(self.loss, margins, labels, self.cap)[self.measure == "mse"]
        return np.array([steps_of(t, self.steps)], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Positives(Statistic):
    """Number of positive labels. Replacing a record moves the number by at most 1."""

    labels_only: ClassVar[bool] = True
    grid: ClassVar[float] = GRID
    dimension: ClassVar[int] = 1
    sensitivity: ClassVar[float] = 1.0

    def __call__(self, margins: Vector, labels: Vector) -> Integers:
        """Return the count, in steps of GRID."""
        return np.array([int((labels > 0).sum()) * round(1.0 / GRID)], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class LabelMean(Statistic):
    """Sum of the labels, scaled to 0 at the low end of the declared range and to 1 at its high end.

    A record adds between 0 and 1, so replacing the record moves the sum by at most Δ = 1. NaN counts as 0.

    low, high : the declared range.
    """

    low: float
    high: float

    labels_only: ClassVar[bool] = True
    grid: ClassVar[float] = GRID
    dimension: ClassVar[int] = 1
    sensitivity: ClassVar[float] = 1.0

    def __call__(self, margins: Vector, labels: Vector) -> Integers:
        """Return the sum, (1,), in steps of GRID."""
        with np.errstate(all="ignore"):
            place = np.clip((labels - self.low) / (self.high - self.low), 0.0, 1.0)
        return np.array([np.rint(np.nan_to_num(place) / GRID).sum()]).astype(np.int64)

    def constant(self, released: Vector, n_records: int, noise: float) -> tuple[float, float, float]:
        """Return the labels' mean, a bound on its error, and 1; see `LabelRate.constant`."""
        width = self.high - self.low
        place = min(max(float(released[0]) / n_records, 0.0), 1.0)
        return self.low + place * width, noise / n_records * width, 1.0


@dataclass(frozen=True, slots=True)
class LabelRate(Statistic):
    """Sums Σ y·e^(1−p) and Σ e^(2−p) over labels y with exposures e. Their quotient is the rate of the best constant model.

    The deviance of y for the mean e·k is e^(2−p) times that of y/e for k, so this quotient minimises the sum of deviances.
    Each term is divided by its bound, high·l^(1−p) or h^(2−p), and clamped to [0, 1]; NaN counts as 1. Replacing a record
    moves each sum by at most 1: Δ = √2, which small l and a record with both terms near 0 attain.

    high : largest declared label. least, most : declared bounds l and h of the exposures. power : p, between 1 and 2.
    """

    high: float
    least: float
    most: float
    power: float

    needs: ClassVar[tuple[str, ...]] = (HELD_OFFSETS,)
    grid: ClassVar[float] = GRID
    dimension: ClassVar[int] = 2
    sensitivity: ClassVar[float] = math.nextafter(math.sqrt(2.0), math.inf)

    def __post_init__(self) -> None:
        if not (0.0 < self.least <= self.most < math.inf and self.high > 0.0 and 1.0 <= self.power <= 2.0):
            raise ValueError("exposures and labels have bounds above 0, and the power lies between 1 and 2")

    def __call__(self, margins: Vector, labels: Vector, offsets: Vector | None = None) -> Integers:
        """Return both sums in steps of GRID. offsets : log(exposure) of each record; None for exposures of 1."""
        offsets = np.zeros(labels.size) if offsets is None else offsets
        with np.errstate(all="ignore"):
            amounts = labels / self.high * np.exp((1.0 - self.power) * (offsets - math.log(self.least)))
            exposures = np.exp((2.0 - self.power) * (offsets - math.log(self.most)))
        steps = round(1.0 / GRID)
        return np.array([steps_of(amounts, steps), steps_of(exposures, steps)], dtype=np.int64)

    def constant(self, released: Vector, n_records: int, noise: float) -> tuple[float, float, float]:
        """Return the rate, a bound on its error, and a bound on the mean of e^(2−p).

        noise : bound on the noise of each sum. The error's bound holds wherever the two sums lie within theirs.
        """
        unit, most = self.high * self.least ** (1.0 - self.power), self.most ** (2.0 - self.power)
        least = (self.least / self.most) ** (2.0 - self.power)

        def rate(amounts: float, exposures: float) -> float:
            mean = min(max(amounts / n_records, 0.0), 1.0)
            return float(unit / most * mean / min(max(exposures / n_records, least), 1.0))

        amounts, exposures = map(float, released)
        k = rate(amounts, exposures)
        ends = rate(amounts - noise, exposures + noise), rate(amounts + noise, exposures - noise)
        return k, max(k - ends[0], ends[1] - k), min((exposures + noise) / n_records, 1.0) * most


@dataclass(frozen=True, slots=True)
class Losses(Statistic):
    """Sum of unclamped losses. One record can move it without limit, so no charge can cover it.

    weighed : True multiplies each training record's loss by the record's weight, as in the objective of training.
    """

    loss: Loss

    grid: ClassVar[float] = 1.0
    dimension: ClassVar[int] = 1
    sensitivity: ClassVar[float] = math.inf
    weighed: ClassVar[bool] = True

    def __call__(self, margins: Vector, labels: Vector, weights: Vector | None = None) -> Vector:
        """Return the sum of the losses."""
        return np.array([float(weighed(self.loss.value(margins, labels), weights).sum())])


def codes_of(groups: Vector, sizes: tuple[int, ...]) -> list[Integers]:
    """Return, for each column, the records' group codes (m,). groups : Σ stride·code over columns (vfl.queries.Groups).

    A value that no party can have sent gets the code `sizes[k]`, which belongs to no group.

    sizes : number of categories of each column.
    """
    found, rest = [], np.where(np.isfinite(groups), np.clip(groups, 0.0, 2.0**53), 2.0**53).astype(np.int64)
    for size in sizes:
        found.append(rest % (size + 1))
        rest = rest // (size + 1)
    return [np.where(rest == 0, codes, size) for codes, size in zip(found, sizes, strict=True)]


def strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the stride (place value) of each column's code in the sum that `codes_of` decodes."""
    return tuple(math.prod(size + 1 for size in sizes[:k]) for k in range(len(sizes)))


@dataclass(frozen=True, slots=True, eq=False)
class GroupCells(Statistic):
    """Counts of records in the cells (group, label, prediction, near) of one or more group columns.

    A record is predicted positive if xᵀw > t. A record is near if another model, at Euclidean distance at most d from the
    released one, could predict otherwise: |xᵀw − t| ≤ d‖x‖. Margin, label, group and norm of a replaced record may all
    change. All other records stay in their cells, because w, d and t are released values that no record affects. A record is
    in at most one cell per column. Replacing a record lowers one count by one and raises another in each of the K columns,
    which moves the counts by at most √2 per column: Δ = √(2K), attained when the record changes its cell in every column. All
    counts are released jointly, as one Gaussian vector.

    sizes : number of groups of each column. distance : d; None does not distinguish near from far, which leaves 4 cells per
        group instead of 8. threshold : t.
    """

    sizes: tuple[int, ...]
    distance: float | None
    threshold: float = 0.0

    grid: ClassVar[float] = GRID

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the vectors that the statistic takes in addition to margins and labels."""
        return (HELD_GROUPS,) if self.distance is None else (HELD_GROUPS, HELD_NORMS)

    @property
    def kinds(self) -> int:
        """Return the number of cells of one group."""
        return CELLS if self.distance is None else 2 * CELLS

    @property
    def dimension(self) -> int:
        """Return the number of cells over all groups of all columns."""
        return self.kinds * sum(self.sizes)

    @property
    def sensitivity(self) -> float:
        """Return Δ."""
        return root(2 * len(self.sizes) * round(1.0 / GRID) ** 2)

    def __call__(self, margins: Vector, labels: Vector, *kept: Vector) -> Integers:
        """Return the counts in steps of GRID, by column, group, label, prediction and, if d is given, near or far.

        kept : the groups as `codes_of` reads them, (m,); with d also ‖x‖², (m,).
        """
        cells = 2 * (labels > 0) + (margins > self.threshold)
        if self.distance is not None:
            cells = 2 * cells + is_near(margins - self.threshold, kept[1], self.distance)
        counts = []
        for codes, size in zip(codes_of(kept[0], self.sizes), self.sizes, strict=True):
            inside = codes < size
            counts.append(np.bincount(self.kinds * codes[inside] + cells[inside], minlength=self.kinds * size))
        return np.concatenate(counts).astype(np.int64) * round(1.0 / GRID)


def is_near(margins: Vector, squares: Vector, distance: float) -> npt.NDArray[np.bool_]:
    """Return |v| ≤ d‖x‖ (m,), widened by the rounding of both sides; True where either side is NaN.

    squares : ‖x‖² (m,).
    """
    with np.errstate(all="ignore"):
        return np.asarray(~(abs(margins) > distance * np.sqrt(np.maximum(squares, 0.0)) * (1.0 + 1e-9) + 1e-12))


@dataclass(frozen=True, slots=True, eq=False)
class GroupScores(BinCounts):
    """Histograms of the margins, one per half of the held-out records, group and label.

    A record's half follows from its position among the held-out records, which does not change when the record is replaced.

    size : number of groups. edges : (m,) increasing, public.
    """

    size: int
    edges: Vector

    sensitivity: ClassVar[float] = root(2 * round(1.0 / GRID) ** 2)
    needs: ClassVar[tuple[str, ...]] = (HELD_GROUPS, HELD_POSITIONS)

    @property
    def bins(self) -> int:
        """Return the number of bins of one histogram."""
        return len(self.edges) + 1

    @property
    def dimension(self) -> int:
        """Return the number of bins over both halves, all groups and both labels."""
        return 4 * self.size * self.bins

    def bin_of(self, margins: Vector, labels: Vector, *kept: Vector) -> Integers:
        """Return the bin of each record that is in a group, in the order (half, group, label, bin).

        kept : the groups as `codes_of` reads them, (m,), and the positions of the records, (m,).
        """
        (codes,) = codes_of(kept[0], (self.size,))
        inside, half = codes < self.size, kept[1].astype(np.int64) % 2
        bins = np.searchsorted(self.edges, margins, side="left")  # a margin at an edge is not above it
        cells = ((half * self.size + codes) * 2 + (labels > 0)) * self.bins + bins
        return np.asarray(cells[inside])


def on_simplex(noisy: Vector, total: float) -> Vector:
    """Return the nonnegative vector with sum `total` that is nearest to a noisy vector (s,).

    Counts are not negative, and their total is public. Under Gaussian noise the nearest such vector is the most likely one.
    """
    ordered = np.sort(noisy)[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, noisy.size + 1)
    kept = int(np.nonzero(ordered > excess)[0][-1])
    return np.asarray(np.maximum(noisy - excess[kept], 0.0))
