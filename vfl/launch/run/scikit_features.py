"""scikit-learn transformers for the features of a job (vfl.features), for a Pipeline that needs no vfl.

They call only functions of NumPy, pandas, scikit-learn and the standard library, so the Pipeline can be unpickled anywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.columns import Boolean, Categorical
from vfl.errors import SpecificationError
from vfl.features import (
    PARTS,
    PERIODIC,
    Binned,
    Crossed,
    Curve,
    Cyclic,
    DateParts,
    Feature,
    Hashed,
    Ordinal,
    Spline,
    own_of,
)
from vfl.features.base import OfBounded
from vfl.launch.run.scikit_columns import cells_step, function_step, plain_steps, spellings

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGEST = float(np.finfo(np.float64).max)
_NUMBER_OF_DAY = {"weekday": "dt.day_of_week", "yearday": "dt.day_of_year"}


@dataclass(frozen=True, slots=True)
class Made:
    """Transformers of a feature. steps : steps of a ColumnTransformer. names : the coordinates that they make, in order."""

    steps: list[tuple[str, Any, Any]]
    names: list[str]


def _series_step(function: Any, **arguments: Any) -> Any:
    """Return a transformer of one column, without names for its output."""
    from sklearn.preprocessing import FunctionTransformer

    return FunctionTransformer(function, kw_args=arguments or None)


def feature_steps(column: str, declared: Feature, sources: Sequence[str], pd: Any) -> Made:
    """Return the transformers of a feature, with its missing indicator; SpecificationError if scikit-learn has none."""
    from sklearn.pipeline import make_pipeline

    frame = pd.DataFrame
    if isinstance(declared, Crossed):
        return Made([(column, _crossed(declared, sources, pd), list(sources))], list(declared.own(column)))
    source = sources[0]
    if getattr(declared, "unknown", "") == "missing" and declared.missing is not None:
        raise SpecificationError(
            f"column {column!r}: scikit-learn's indicator counts empty cells alone, and here undeclared ones too: declare a "
            "fill instead, or keep vfl's own model"
        )
    steps: list[tuple[str, Any, Any]]
    if isinstance(declared, Hashed):
        if declared.missing is not None and declared.fill is None:
            raise SpecificationError(
                f"column {column!r}: scikit-learn's FeatureHasher has no missing cells: declare a fill, or keep vfl's own model"
            )
        steps = [(column, _hashed(declared, pd), [source])]
    elif isinstance(declared, DateParts):
        steps = [
            (name, _part(declared, part, pd, function), source)
            for part in declared.parts
            for name, function in _turned(declared, f"{column}.{part}", part)
        ]
    elif isinstance(declared, Ordinal):
        steps = [(column, _ordinal(declared, pd), [source])]
    else:
        number = [function_step(frame.fillna, value=np.nan), function_step(frame.astype, dtype=float)]
        if declared.fill is not None:
            number.append(function_step(frame.fillna, value=declared.fill))
        steps = [(column, make_pipeline(*number, *_of_number(declared, pd)), [source])]
    names = list(declared.own(column))
    if declared.missing is not None:
        steps.append((f"{column}=(missing)", function_step(frame.isna), [source]))
        names.append(f"{column}=(missing)")
    return Made(steps, names)


def _of_number(declared: Feature, pd: Any) -> list[Any]:
    from sklearn.preprocessing import OneHotEncoder

    frame = pd.DataFrame
    if isinstance(declared, Binned):
        # A missing cell sorts after infinity and gets its own code, which the encoder ignores.
        codes = np.arange(len(declared.edges) + 1)
        return [
            function_step(frame.clip, lower=-LARGEST, upper=LARGEST),
            function_step(np.digitize, bins=np.array([*declared.edges, np.inf])),
            OneHotEncoder(categories=[codes], handle_unknown="ignore", sparse_output=False),
        ]
    if isinstance(declared, Spline):
        return _spline(declared, pd)
    if isinstance(declared, Curve):
        return _curve(declared, pd)
    if isinstance(declared, Cyclic):
        turned = [
            function_step(frame.replace, to_replace=[np.inf, -np.inf], value=declared.start),
            function_step(frame.sub, other=declared.start),
            function_step(frame.mul, other=2 * math.pi / declared.period),
        ]
        return [*turned, _circle(), function_step(np.nan_to_num, nan=0.0)]
    if not isinstance(declared, OfBounded):
        raise SpecificationError(
            f"scikit-learn has no transformer for columns of kind {declared.kind}: keep vfl's own model"
        )
    low, high = declared.bounds or (-np.inf, np.inf)
    steps = [function_step(frame.clip, lower=low, upper=high)]
    for name, *argument in declared.steps:
        of_frame = getattr(frame, {"power": "pow"}.get(name, name), None)
        steps.append(function_step(of_frame, other=argument[0]) if argument else function_step(getattr(np, name)))
    (ends,) = declared.ranges
    steps.append(function_step(frame.clip, lower=ends[0], upper=ends[1]))
    if declared.missing is not None:
        steps.append(function_step(frame.fillna, value=min(max(0.0, ends[0]), ends[1])))
    return steps


def _circle() -> Any:
    from sklearn.pipeline import FeatureUnion

    return FeatureUnion([("sin", function_step(np.sin)), ("cos", function_step(np.cos))])


def _spline(declared: Spline, pd: Any) -> list[Any]:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import SplineTransformer

    knots = np.array(declared.knots)[:, np.newaxis]
    basis = SplineTransformer(knots=knots, degree=declared.degree, extrapolation="constant")
    steps = [function_step(pd.DataFrame.clip, lower=declared.knots[0], upper=declared.knots[-1])]
    if declared.missing is None or declared.fill is not None:
        return [*steps, function_step(pd.DataFrame.to_numpy), basis]
    # Missing cells are set to the first knot; the product with a column that is 0 for them is then 0.
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import PolynomialFeatures

    fill = function_step(pd.DataFrame.fillna, value=declared.knots[0])
    filled = make_pipeline(*steps, fill, function_step(pd.DataFrame.to_numpy), basis)
    there = function_step(pd.DataFrame.notna)
    count = len(declared.ranges)
    both = ColumnTransformer([("basis", filled, [0]), ("there", there, [0])], sparse_threshold=0)
    products = PolynomialFeatures(degree=2, interaction_only=True, include_bias=False)
    order = _pairs(count + 1)
    kept = ColumnTransformer([("kept", "passthrough", [order[j, count] for j in range(count)])])
    return [both, function_step(np.asarray, dtype=float), products, kept]


def _curve(declared: Curve, pd: Any) -> list[Any]:
    """Return a linear spline at all knots, then each coordinate as a sum of its functions, which add up to 1."""
    low, high = declared.limits
    points = (low, *(declared.knots or ()), high)
    hats = Spline(points, degree=1, fill=declared.fill, missing=declared.missing)
    at_points = np.column_stack(list(declared.made(np.array(points))))
    where_missing = np.concatenate(list(declared.made(np.array([np.nan]))))
    return [
        *_spline(hats, pd),
        _series_step(np.dot, b=at_points - where_missing),
        _series_step(pd.DataFrame),
        _series_step(pd.DataFrame.add, other=list(where_missing)),
    ]


def _pairs(count: int) -> dict[tuple[int, int], int]:
    """Return the position of each product of two columns in the output of PolynomialFeatures."""
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    return {pair: count + k for k, pair in enumerate(pairs)}


def _ordinal(declared: Ordinal, pd: Any) -> Any:
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder

    numbers = all(isinstance(c, int | float) for c in declared.categories)
    if numbers and list(declared.categories) != sorted(declared.categories):
        raise SpecificationError(
            "scikit-learn's OrdinalEncoder wants numbers in ascending order: declare them as text, or keep vfl's model"
        )
    steps = cells_step(spellings(declared.categories), pd)
    if declared.fill is not None:
        steps.append(function_step(pd.DataFrame.fillna, value=declared.fill))
    refuse = declared.unknown == "refuse"
    gaps = [np.nan] if declared.missing is not None and declared.fill is None else []
    encoder = OrdinalEncoder(
        categories=[np.array([*declared.categories, *gaps], dtype=float if numbers else object)],
        handle_unknown="error" if refuse else "use_encoded_value",
        unknown_value=None if refuse else np.nan,
        encoded_missing_value=np.nan,
    )
    instead = max(float(declared.filled_cell()[0]), 0.0)  # of a missing cell, and of one that counts as missing
    imputer = SimpleImputer(strategy="constant", fill_value=instead, keep_empty_features=True)
    fills = declared.missing is not None or not (refuse or declared.fill is None)
    return make_pipeline(*steps, encoder, *([imputer] if fills else []))


def _hashed(declared: Hashed, pd: Any) -> Any:
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.pipeline import make_pipeline

    fill = [] if declared.fill is None else [function_step(pd.DataFrame.fillna, value=declared.fill)]
    return make_pipeline(
        *fill,
        function_step(pd.DataFrame.to_numpy),
        FeatureHasher(declared.buckets, input_type="string", alternate_sign=declared.signed),
    )


def _turned(declared: DateParts, name: str, part: str) -> list[tuple[str, Any]]:
    if declared.cyclic and part in PERIODIC:
        return [(f"{name}.sin", np.sin), (f"{name}.cos", np.cos)]
    return [(name, None)]


def _part(declared: DateParts, part: str, pd: Any, function: Any) -> Any:
    from sklearn.pipeline import make_pipeline

    first, last = (pd.Timestamp(text) for text in declared.bounds)
    series = pd.Series
    lenient = {"errors": "coerce", "format": "ISO8601"} if declared.unknown == "missing" else {}
    steps = [_series_step(pd.to_datetime, **lenient)]
    if declared.fill is not None:
        steps.append(_series_step(series.fillna, value=pd.Timestamp(declared.fill)))
    steps.append(_series_step(series.clip, lower=first, upper=last))
    if part == "days":
        steps += [_series_step(series.sub, other=first), _series_step(series.div, other=pd.Timedelta(days=1))]
    else:
        steps.append(_series_step(attrgetter(_NUMBER_OF_DAY.get(part, f"dt.{part}"))))
    steps += [_series_step(series.to_frame), _series_step(pd.DataFrame.astype, dtype=float)]
    if function is not None:
        low, high = PARTS[part]
        steps += [
            _series_step(pd.DataFrame.sub, other=low),
            _series_step(pd.DataFrame.mul, other=2 * math.pi / (high - low + 1)),
            _series_step(function),
        ]
    if declared.missing is not None:
        names = declared.own("")
        low, high = declared.ranges[names.index(f".{part}" + ("" if function is None else f".{function.__name__}"))]
        steps.append(_series_step(pd.DataFrame.fillna, value=min(max(0.0, low), high)))
    return make_pipeline(*steps)


def _crossed(declared: Crossed, sources: Sequence[str], pd: Any) -> Any:
    """Return the products of the coordinates of both sides."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures

    sides = []
    counts = []
    first = len(declared.a[2])
    for label, (name, side, _), own in zip(
        "ab", (declared.a, declared.b), (sources[:first], sources[first:]), strict=True
    ):
        steps = _side(name, side, own, pd)
        sides += [(f"{label}{k}", transformer, columns) for k, (_, transformer, columns) in enumerate(steps)]
        counts.append(len(own_of(side, name)))
    both = ColumnTransformer(sides, sparse_threshold=0)
    order = _pairs(sum(counts))
    kept = [order[i, counts[0] + j] for i in range(counts[0]) for j in range(counts[1])]
    products = PolynomialFeatures(degree=2, interaction_only=True, include_bias=False)
    chosen = ColumnTransformer([("kept", "passthrough", kept)])
    return make_pipeline(both, function_step(np.asarray, dtype=float), products, chosen)


def _side(name: str, side: Any, sources: Sequence[str], pd: Any) -> list[tuple[str, Any, Any]]:
    from sklearn.pipeline import make_pipeline

    if isinstance(side, Feature):
        made = feature_steps(name, side, sources, pd)
        return made.steps[: len(made.steps) - (side.missing is not None)]
    transformers, own = plain_steps(name, side, pd)
    if len(own) != len(own_of(side, name)) or own != list(own_of(side, name)):
        raise SpecificationError(
            f"column {name!r}: scikit-learn cannot multiply these categories in their declared order"
        )
    return [(name, make_pipeline(*transformers), list(sources))]


def example_of(declared: Any, sources: Sequence[str], pd: Any) -> dict[str, Any]:
    """Return {source: a cell that the declaration allows}."""
    if isinstance(declared, Crossed):
        (_, one, first), (_, other, _) = declared.a, declared.b
        return example_of(one, sources[: len(first)], pd) | example_of(other, sources[len(first) :], pd)
    (source,) = sources
    if isinstance(declared, Categorical | Ordinal):
        return {source: declared.categories[0]}
    if isinstance(declared, Hashed):
        return {source: ""}
    if isinstance(declared, DateParts):
        return {source: pd.Timestamp(declared.bounds[0])}
    return {source: False if isinstance(declared, Boolean) else 0.0}
