"""Scorecard of a logistic model of categories. A record's score is the sum of the points of the record's categories."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vfl.base.arguments import require, require_whole
from vfl.base.columns import Boolean, Categorical, Numeric, canonical_category, indicators
from vfl.base.features import Binned, Crossed, Curve, Side, own_of
from vfl.base.losses import loss_of
from vfl.errors import SpecificationError
from vfl.launch.run.effects import coordinates_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.base.types import Vector
    from vfl.launch.run.model import Model

MISSING = "(missing)"
OTHER = "(other)"


@dataclass(frozen=True, slots=True)
class Points:
    """Points of the records whose `column` lies in `category`. party : owner of the column.

    weight, value : weight of evidence of the category, and information value of the column (`woe`). None if they were not
        released, or if noise dominates them.
    """

    party: str
    column: str
    category: str
    points: float
    weight: float | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Scorecard:
    """Points of all categories, and of curves at their knots ('at 30'). Between two knots the points are linear.

    A product of two columns (pair) has points for each combination of points of its columns ('at 30, female'). A record's
    score is the sum of its points, one value per column and pair.

    score = base + points_to_double/ln 2·(log-odds − ln odds), with the log-odds of the class that scores high.
    """

    rows: tuple[Points, ...]
    base: float
    odds: float
    points_to_double: float

    def to_csv(self) -> str:
        """Return the rows as the text of a CSV file."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        released = any(row.value is not None for row in self.rows)
        writer.writerow(["party", "column", "category", "points", *(["woe", "information value"] if released else [])])
        for row in self.rows:
            numbers = (row.points, *((row.weight, row.value) if released else ()))
            writer.writerow([row.party, row.column, row.category, *("" if x is None else x for x in numbers)])
        return text.getvalue()


def scorecard_of(
    result: Model,
    *,
    points_to_double: float,
    base: float,
    odds: float,
    positive_is_high: bool,
    digits: int | None,
    woe: WeightOfEvidence | None = None,
) -> Scorecard:
    """Return the scorecard; arguments as for `Result.scorecard`."""
    job = result.job
    if not loss_of(job.loss).log_odds:
        raise SpecificationError(
            f"a scorecard needs log-odds, which {loss_of(job.loss).name} loss does not estimate: train with loss='logistic'"
        )
    for name, value in (("points_to_double", points_to_double), ("odds", odds)):
        if not (math.isfinite(value) and value > 0):
            raise SpecificationError(f"scorecard: {name} is a positive number, not {value!r}")
    require("woe", woe, "what vfl.releases.woe returned, or None", fits=woe is None or hasattr(woe, "columns"))
    if digits is not None:
        require_whole("digits", digits)
    factor = points_to_double / math.log(2.0)
    sign = 1.0 if positive_is_high else -1.0
    coefficient = dict(zip(result.feature_names, map(float, result.coef_), strict=True))
    columns = job.partition.features
    share = (base + factor * (sign * result.intercept_ - math.log(odds))) / len(columns)
    rows = []
    for column in columns:
        for category, effect in _effects(result, column, coefficient).items():
            points = share + sign * factor * effect
            shown = points if digits is None else round(points, digits)
            rows.append(Points(job.partition.owner(column), column, category, shown, *_released(woe, column, category)))
    return Scorecard(tuple(rows), base, odds, points_to_double)


def _released(woe: WeightOfEvidence | None, column: str, category: str) -> tuple[float | None, float | None]:
    """Return the weight of evidence of a category, and the information value of its column; None for unknown values."""
    found = None if woe is None else woe.columns.get(column)
    if found is None:
        return None, None
    return next((one.weight for one in found.bins if one.name == category), None), found.value


def _effects(result: Model, column: str, coefficient: dict[str, float]) -> dict[str, float]:
    declared = result.applied.schema[column]
    if isinstance(declared, Crossed):
        return _of_pair(declared, column, coefficient)
    missing = [coefficient[name] for name in indicators(column, declared.missing)]
    if isinstance(declared, Boolean):
        effects = {"false": 0.0, "true": coefficient[column]}
    elif isinstance(declared, Categorical | Binned):
        effects = {name.removeprefix(f"{column}="): coefficient[name] for name in own_of(declared, column)}
        if isinstance(declared, Categorical) and declared.unknown == "zero":
            effects[OTHER] = 0.0
    elif isinstance(declared, Curve):
        return _of_curve(declared, column, coefficient, missing)
    else:
        raise SpecificationError(
            f"a scorecard has points per category, and column {column!r} is of kind {declared.kind}: declare vfl.Curve() "
            "for it, or vfl.columns.Binned(edges) with edges that are known or released by vfl.releases.private_quantiles"
        )
    if missing:
        filled = 0.0 if declared.fill is None else _of_fill(declared, column, declared.fill, coefficient)
        effects[MISSING] = missing[0] + filled
    return effects


def _of_curve(declared: Curve, column: str, coefficient: dict[str, float], missing: list[float]) -> dict[str, float]:
    """Return {'at POINT': part of the score there} for the ends and knots of a curve, between which the curve is linear."""
    points = declared.points
    empty = math.nan if declared.fill is None else float(declared.fill)
    made = np.column_stack(list(declared.made(np.array([*points, empty]))))
    *effects, of_missing = made @ [coefficient[name] for name in own_of(declared, column)]
    found = {f"at {point:.6g}": float(effect) for point, effect in zip(points, effects, strict=True)}
    return found if not missing else found | {MISSING: missing[0] + float(of_missing)}


def _of_pair(pair: Crossed, column: str, coefficient: dict[str, float]) -> dict[str, float]:
    """Return {'ONE, OTHER': part of the score} for the points of both columns; the product is linear between points."""
    w = np.array([coefficient[name] for name in pair.own(column)])
    (one, left), (other, right) = map(_of_side, pair.sides)
    effects = np.einsum("mi,kj,ij->mk", left, right, w.reshape(left.shape[1], right.shape[1]))
    found = {f"{x}, {y}": float(effects[i, j]) for i, x in enumerate(one) for j, y in enumerate(other)}
    gaps = any(side.declared.missing is not None and side.declared.fill is None for side in pair.sides)
    return found if not gaps else found | {MISSING: 0.0}


def _of_side(side: Side) -> tuple[list[str], Vector]:
    """Return the named points of one of two multiplied columns, and the column's coordinates at these points, (m, k)."""
    declared = side.declared
    if isinstance(declared, Numeric | Curve):
        points = np.array(declared.points if isinstance(declared, Curve) else declared.limits)
        return [f"at {point:.6g}" for point in points], coordinates_at(declared, points) - side.middles
    if isinstance(declared, Boolean):
        return ["false", "true"], coordinates_at(declared, ("false", "true"))
    if isinstance(declared, Categorical | Binned):
        names = tuple(name.removeprefix(f"{side.name}=") for name in own_of(declared, side.name))
        return list(names), coordinates_at(declared, names)
    raise SpecificationError(
        f"a scorecard has no points for products with column {side.column!r} of kind {declared.kind}: declare vfl.Curve, "
        "vfl.columns.Binned or vfl.Categorical for it"
    )


def _of_fill(
    declared: Boolean | Categorical | Binned, column: str, fill: object, coefficient: dict[str, float]
) -> float:
    """Return the effect of the category with which a missing cell is filled."""
    if isinstance(declared, Boolean):
        return coefficient[column] if fill else 0.0
    names = own_of(declared, column)
    if isinstance(declared, Categorical):
        return coefficient[names[declared.texts.index(canonical_category(fill))]]
    below = sum(float(fill) >= edge for edge in declared.edges)  # type: ignore[arg-type]
    return coefficient[names[below]]


@dataclass(frozen=True, slots=True)
class Bin:
    """Bin of a column: a category, an interval, or the missing cells.

    positives, negatives : noisy numbers of records. weight : ln((share of all positives in the bin) / (share of all negatives
        in the bin)). A count that noise hides is replaced by the count expected without information, but by no more than the
        smallest visible count, which moves the weight towards 0. error : standard error of the weight, from noise and sampling.
        Weight and error are None if noise hides both counts.
    """

    name: str
    positives: float
    negatives: float
    weight: float | None
    error: float | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Bins of one column, and the column's information value Σ (share of positives − share of negatives)·weight.

    value : information value over the bins with a weight. error : standard error of the value, from noise and sampling, to
        first order. floor : mean value for a column without information, from noise and sampling alone. limit : value that at
        most one of 1,000 such columns exceeds.
    """

    party: str
    bins: tuple[Bin, ...]
    value: float
    error: float
    floor: float
    limit: float

    @property
    def too_noisy(self) -> bool:
        """True if noise and sampling alone may explain the information value."""
        return self.value <= self.limit

    def __str__(self) -> str:
        value = "too noisy to tell" if self.too_noisy else f"{self.value:.3g}, standard error {self.error:.2g}"
        return f"information value {value} (floor {self.floor:.2g})"


@dataclass(frozen=True, slots=True)
class WeightOfEvidence:
    """Weights of evidence that `woe` found. The weights are released and therefore public.

    columns : {column: Evidence of the column}. noise : largest standard deviation of the noise of a count.
    epsilon, delta : cost of this release alone. scope : data that the guarantee is for.
    """

    columns: Mapping[str, Evidence]
    noise: float
    epsilon: float
    delta: float
    scope: str

    def __str__(self) -> str:
        return "\n".join(f"{column}: {evidence}" for column, evidence in self.columns.items())
