"""Features made at their owner: no cell leaves the declared range, and all equal scikit-learn's transformers."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import pickle
import tomllib
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction import FeatureHasher
from sklearn.preprocessing import FunctionTransformer, KBinsDiscretizer, OrdinalEncoder, SplineTransformer
from sklearn.utils import murmurhash3_32

import vfl
from parties.loading import load_features
from vfl.base.columns import UNBOUNDED
from vfl.base.features import murmur
from vfl.base.schema import Scaling, Schema
from vfl.errors import DataError, SpecificationError
from vfl.job import file as jobfile

if TYPE_CHECKING:
    from pathlib import Path

RNG = np.random.default_rng(3)
N = 60
NUMBERS = np.array([*RNG.uniform(-2, 12, N - 6), 0.0, 10.0, 3.0, 5.0, 1e300, -1e300])
WORDS = RNG.choice(["low", "middle", "high"], N).tolist()
MANY = [f"user-{k}-ä" for k in RNG.integers(0, 40, N)]
DATES = [dt.datetime(2019, 1, 1) + dt.timedelta(hours=int(h)) for h in RNG.integers(0, 24 * 900, N)]  # noqa: DTZ001
LABELS = (RNG.random(N) < 0.5).astype(int)

OF_NUMBERS: dict[str, Any] = {
    "binned": vfl.columns.Binned((3, 5.5, 9), of="x"),
    "spline": vfl.columns.Spline((0, 3, 5, 10), of="x"),
    "linear spline": vfl.columns.Spline((0, 1, 10), degree=1, of="x"),
    "steps": vfl.columns.Spline((0, 1, 10), degree=0, of="x"),
    "line with bends": vfl.Curve(knots=(1, 4), bounds=(0, 10), of="x"),
    "fewer bends": vfl.Curve(4, knots=(1, 4), bounds=(0, 10), of="x"),
    "log": vfl.columns.Log(offset=1, bounds=(0, 10), of="x"),
    "square": vfl.columns.Power(2, bounds=(-2, 10), of="x"),
    "cube": vfl.columns.Power(3.0, bounds=(-2, 10), of="x"),
    "root": vfl.columns.Power(0.5, bounds=(0, 10), of="x"),
    "inverse": vfl.columns.Power(-1, bounds=(1, 10), of="x"),
    "scaled": vfl.columns.Scaled(4, 2, of="x"),
    "scaled by bounds": vfl.columns.Scaled(4, 2, bounds=(0, 10), of="x"),
    "cyclic": vfl.columns.Cyclic(7, start=1, of="x"),
}
OTHERS: dict[str, Any] = {
    "ordinal": vfl.columns.Ordinal(("low", "middle", "high"), of="level"),
    "hashed": vfl.columns.Hashed(8, of="user"),
    "signed": vfl.columns.Hashed(8, signed=True, of="user"),
    "dates": vfl.columns.DateParts(
        ("year", "month", "day", "weekday", "hour", "days"), bounds=("2019-01-01", "2021-06-30"), of="when"
    ),
    "cyclic dates": vfl.columns.DateParts(("month", "weekday", "yearday", "quarter", "minute"), cyclic=True, of="when"),
}
ALL = OF_NUMBERS | OTHERS
TABLE = {"x": NUMBERS, "level": WORDS, "user": MANY, "when": DATES, "y": LABELS}


def job(declared: dict[str, Any], **options: Any) -> vfl.Job:
    partition = vfl.FeaturePartition({"bank": tuple(declared)}, label=("bank", "y"))
    return vfl.Job(partition=partition, privacy=None, columns=declared, **{"scaling": "none", "name": "made"} | options)


def made(declared: Any, table: Any = TABLE, **options: Any) -> np.ndarray:
    """Return (n, k), as the party stores it."""
    stored = load_features(job({"f": declared}, **options).for_party("bank"), table)
    return np.column_stack([stored.column(j) for j in range(stored.n_coordinates)])


def clamped(low: float, high: float) -> np.ndarray:
    return np.clip(NUMBERS, low, high)[:, np.newaxis]


def function(transform: Any, values: np.ndarray, **arguments: Any) -> np.ndarray:
    return FunctionTransformer(transform, kw_args=arguments or None).fit_transform(values)


def spline(knots: list[float], degree: int) -> np.ndarray:
    at = np.array(knots, dtype=float)[:, np.newaxis]
    transformer = SplineTransformer(knots=at, degree=degree, extrapolation="constant").fit(at)
    return transformer.transform(clamped(knots[0], knots[-1]))


def bins(edges: list[float]) -> np.ndarray:
    transformer = KBinsDiscretizer(len(edges) - 1, encode="onehot-dense", strategy="uniform", subsample=None)
    transformer.fit(np.linspace(edges[0], edges[-1], 50)[:, np.newaxis])
    transformer.bin_edges_[0] = np.array(edges)
    return transformer.transform(NUMBERS[:, np.newaxis])


def expected(case: str) -> np.ndarray:
    series = pd.Series(DATES)
    hasher = {"n_features": 8, "input_type": "string"}
    return {
        "binned": lambda: bins([-100, 3, 5.5, 9, 100]),
        "spline": lambda: spline([0, 3, 5, 10], 3),
        "linear spline": lambda: spline([0, 1, 10], 1),
        "steps": lambda: spline([0, 1, 10], 0),
        "line with bends": lambda: np.hstack([clamped(0, 10), spline([0, 1, 4, 10], 1)[:, 1:-1]]),
        "fewer bends": lambda: np.hstack(
            [clamped(0, 10), spline([0, 1, 4, 10], 1)[:, 1:-1], np.zeros((len(NUMBERS), 1))]
        ),
        "log": lambda: function(np.log1p, clamped(0, 10)),
        "square": lambda: function(np.square, clamped(-2, 10)),
        "cube": lambda: clamped(-2, 10) ** 3,
        "root": lambda: function(np.sqrt, clamped(0, 10)),
        "inverse": lambda: function(np.reciprocal, clamped(1, 10)),
        "scaled": lambda: (clamped(-2, 10) - 4) / 2,
        "scaled by bounds": lambda: (clamped(0, 10) - 4) / 2,
        "cyclic": lambda: np.column_stack([f((NUMBERS - 1) * (2 * np.pi / 7)) for f in (np.sin, np.cos)]),
        "ordinal": lambda: OrdinalEncoder(categories=[["low", "middle", "high"]]).fit_transform(
            np.array(WORDS)[:, None]
        ),
        "hashed": lambda: FeatureHasher(alternate_sign=False, **hasher).transform([[m] for m in MANY]).toarray(),
        "signed": lambda: FeatureHasher(alternate_sign=True, **hasher).transform([[m] for m in MANY]).toarray(),
        "dates": lambda: np.column_stack(
            [
                *(series.dt.year, series.dt.month, series.dt.day, series.dt.day_of_week, series.dt.hour),
                (series - pd.Timestamp("2019-01-01")) / pd.Timedelta(days=1),
            ]
        ),
        "cyclic dates": lambda: np.column_stack(
            [
                f((part - first) * (2 * np.pi / period))
                for part, first, period in (
                    (series.dt.month, 1, 12),
                    (series.dt.day_of_week, 0, 7),
                    (series.dt.day_of_year, 1, 366),
                    (series.dt.quarter, 1, 4),
                    (series.dt.minute, 0, 60),
                )
                for f in (np.sin, np.cos)
            ]
        ),
    }[case]()


@pytest.mark.parametrize("case", ALL)
def test_features_are_those_of_scikit_learn(case: str) -> None:
    np.testing.assert_allclose(made(ALL[case]), expected(case), rtol=0, atol=1e-9)
    assert len(ALL[case].features("f")) == expected(case).shape[1]


def test_pairs_are_products_of_distances_from_the_middle_and_indicators() -> None:
    numbers = {
        "x": vfl.Numeric(bounds=(0, 10)),
        "level": vfl.Categorical(("low", "middle", "high")),
        "half": vfl.columns.Scaled(5, 5, of="x"),
        "bent": vfl.Curve(knots=(2, 4, 8), of="x", bounds=(0, 10)),
    }
    levels, x = np.array(WORDS)[:, None] == ["low", "middle", "high"], clamped(0, 10)
    hat = np.interp(x, [0, 4, 10], [0, 1, 0])  # two pieces keep the knot in the middle
    for a, b, product in (
        ("x", "half", (x - 5) * np.clip((np.array(TABLE["x"])[:, None] - 5) / 5, -3, 3)),
        ("x", "g", (x - 5) * bins([-100, 3, 5.5, 9, 100])),
        ("level", "x", levels * (x - 5)),
        ("bent", "level", np.hstack([(x - 5) * levels, hat * levels])),
    ):
        sides = numbers | {"g": ALL["binned"]}
        declared = {"f": vfl.columns.Pair(a, b), a: sides[a], b: sides[b]}
        partition = vfl.FeaturePartition({"bank": ("f",)}, label=("bank", "y"))
        spec = vfl.Job(partition=partition, privacy=None, columns=declared, scaling="none")
        stored = load_features(spec.for_party("bank"), TABLE)
        found = np.column_stack([stored.column(j) for j in range(stored.n_coordinates)])
        np.testing.assert_allclose(found, product, rtol=0, atol=1e-9)
        assert spec.wanted("bank") == tuple(dict.fromkeys([*("level" if s == "level" else "x" for s in (a, b)), "y"]))


NUMERIC_CELLS = st.floats() | st.sampled_from([0.0, -0.0, 5e-324, 1e308, -1e308, math.inf, -math.inf, math.nan])


@settings(max_examples=150, deadline=None)
@given(cells=st.lists(NUMERIC_CELLS, min_size=1, max_size=8), case=st.sampled_from(list(OF_NUMBERS)))
def test_no_number_leaves_the_range(cells: list[float], case: str) -> None:
    declared = OF_NUMBERS[case]
    values = np.array(cells)
    vectors = list(declared.made(values.copy()))
    assert len(vectors) == len(declared.ranges) == len(declared.own("f"))
    for vector, (low, high) in zip(vectors, declared.ranges, strict=True):
        assert np.isfinite([low, high]).all()
        assert ((low <= vector) & (vector <= high)).all()
    # One cell decides about its own record alone.
    alone = [np.concatenate([list(declared.made(np.array([cell])))[j] for cell in cells]) for j in range(len(vectors))]
    assert all(a.tobytes() == v.tobytes() for a, v in zip(alone, vectors, strict=True))


@settings(max_examples=60, deadline=None)
@given(
    cells=st.lists(st.integers(-(2**40), 2**40) | st.none(), min_size=1, max_size=6),
    case=st.sampled_from(["dates", "cyclic dates"]),
)
def test_no_date_leaves_the_range(cells: list[int | None], case: str) -> None:
    declared = OTHERS[case]
    values = np.array([np.datetime64("NaT") if c is None else np.datetime64(c, "s") for c in cells], dtype="M8[s]")
    for vector, (low, high) in zip(declared.made(values), declared.ranges, strict=True):
        assert ((low <= vector) & (vector <= high)).all()


@settings(max_examples=80, deadline=None)
@given(
    ends=st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)).map(sorted),
    exponent=st.sampled_from([-3, -2, -1, -0.5, 0.5, 1, 2, 3, 4, 1.7]),
    cells=st.lists(NUMERIC_CELLS, min_size=1, max_size=6),
)
def test_no_power_or_product_leaves_its_range(ends: list[float], exponent: float, cells: list[float]) -> None:
    try:
        power = vfl.columns.Power(exponent, bounds=tuple(ends))
    except SpecificationError:
        return
    ((low, high),) = power.ranges
    (vector,) = power.made(np.array(cells))
    assert ((low <= vector) & (vector <= high)).all()
    inside = np.linspace(*ends, 50)
    exact = inside**exponent
    assert (exact >= low - 1e-9 * abs(low)).all()
    assert (exact <= high + 1e-9 * abs(high)).all()
    if max(abs(low), abs(high)) > 1e150:
        return
    named = {"p": power, "q": power, "f": vfl.columns.Pair("p", "q")}
    crossed = Schema(named).placed(dict.fromkeys(named, "a"), {})["f"]
    ((low, high),) = crossed.ranges
    (product,) = crossed.product([vector], [vector])
    assert ((low <= product) & (product <= high)).all()


@pytest.mark.parametrize("case", OF_NUMBERS)
def test_scaling_takes_the_range(case: str) -> None:
    """With bounds scaling every stored value is within [−1, 1], the reach on which sensitivities rest."""
    declared = ALL[case]
    scaling = Scaling.of(Schema({"f": declared}), ["f"], scaling="bounds", intercept=True)
    assert (scaling.reach == 1.0).all()
    assert (scaling.width > 0).all()
    stored = made(declared, scaling="bounds")
    assert (np.abs(stored) <= 1.0).all()
    np.testing.assert_allclose(stored * scaling.width + scaling.shift, made(declared), atol=1e-9)


@given(st.binary(max_size=40))
def test_the_hash_is_that_of_scikit_learn(data: bytes) -> None:
    assert murmur(data) == murmurhash3_32(data, seed=0, positive=False)


GAPS = {
    "x": np.where(np.arange(N) % 7 == 0, np.nan, NUMBERS),
    "level": [None if k % 7 == 0 else w for k, w in enumerate(WORDS)],
    "user": [None if k % 7 == 0 else w for k, w in enumerate(MANY)],
    "when": [None if k % 7 == 0 else d for k, d in enumerate(DATES)],
    "y": LABELS,
}
FILLS = {"level": "middle", "user": "nobody", "when": "2020-02-29"}


def filled(declared: Any, **changes: Any) -> Any:
    return dataclasses.replace(declared, **changes)


@pytest.mark.parametrize("case", ALL)
def test_missing_cells(case: str) -> None:
    declared = ALL[case]
    gap = np.arange(N) % 7 == 0
    with pytest.raises(DataError, match=f"column '{declared.of}' has missing values"):
        made(declared, GAPS)
    indicated = filled(declared, missing="indicator")
    stored = made(indicated, GAPS)
    assert (stored[:, -1] == gap).all()
    nearest = [min(max(0.0, low), high) for low, high in declared.ranges]
    assert (stored[gap][:, :-1] == nearest).all()
    assert (stored[~gap][:, :-1] == made(declared)[~gap]).all()
    fill = FILLS.get(declared.of, 4.0)
    table = {name: [fill if k % 7 == 0 else v for k, v in enumerate(column)] for name, column in TABLE.items()}
    if declared.of == "when":
        table["when"] = [dt.datetime(2020, 2, 29) if k % 7 == 0 else v for k, v in enumerate(DATES)]  # noqa: DTZ001
    assert (made(filled(declared, fill=fill), GAPS) == made(declared, table)).all()


WHOLE: dict[str, Any] = {
    "group": vfl.columns.Binned((3, 9), of="x", missing="indicator"),
    "curve": vfl.columns.Spline((0, 4, 10), of="x", missing="indicator"),
    "plain_curve": vfl.columns.Spline((0, 4, 10), degree=2, of="x", fill=3),
    "log": vfl.columns.Log(1, bounds=(0, 10), of="x", missing="indicator"),
    "root": vfl.columns.Power(0.5, bounds=(1, 10), of="x", missing="indicator"),
    "far": vfl.columns.Scaled(4, 2, of="x", fill=5),
    "turn": vfl.columns.Cyclic(7, of="x", missing="indicator"),
    "level": vfl.columns.Ordinal(("low", "middle", "high"), missing="indicator"),
    "who": vfl.columns.Hashed(4, of="user", fill="nobody"),
    "when": vfl.columns.DateParts(("year", "month", "days"), bounds=("2019-01-01", "2021-06-30"), missing="indicator"),
    "round": vfl.columns.DateParts(("weekday",), cyclic=True, of="when", fill="2020-02-29"),
    "both": vfl.columns.Pair("far", "level2"),
    "pair": vfl.columns.Pair("group2", "z"),
}
BASES = {
    "level2": vfl.Categorical(("high", "low", "middle")),
    "group2": vfl.columns.Binned((3, 9), of="x", fill=1),
    "z": vfl.Numeric(bounds=(-1, 1)),
}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        GAPS | {"z": rng.normal(size=N), "level2": rng.choice(["low", "middle", "high"], N), "b": rng.normal(size=N)}
    )


def whole_job(**options: Any) -> vfl.Job:
    partition = vfl.FeaturePartition({"bank": tuple(WHOLE), "telco": ("b",)}, label=("telco", "y"))
    return vfl.Job(
        partition=partition,
        columns=WHOLE | BASES,
        bounds={"b": (-2, 2)},
        penalty=vfl.L2(0.01),
        **{"privacy": None, "solver": vfl.SkGD(passes=4)} | options,
    )


@pytest.fixture(scope="module")
def result(frame: pd.DataFrame) -> vfl.Result:
    return vfl.train(whole_job(), frame, at=vfl.InProcess(num_cpus=1))


def test_a_model_is_saved_split_and_converted(result: vfl.Result, frame: pd.DataFrame, tmp_path: Path) -> None:
    margins = result.decision_function(frame)
    again = vfl.Result.load(result.save(tmp_path / "run"))
    assert (again.decision_function(frame) == margins).all()
    assert list(again.document()["coef"])[:4] == [
        "group=(-inf, 3)",
        "group=[3, 9)",
        "group=[9, inf)",
        "group=(missing)",
    ]
    parts = result.save_parts(tmp_path / "parts")
    sources = {"bank": frame.drop(columns=["y", "b"]), "telco": frame[["b"]]}
    assert (vfl.predict(parts, sources, at="inprocess").scores == margins).all()
    pipeline = pickle.loads(pickle.dumps(result.to_sklearn()))  # noqa: S301
    np.testing.assert_allclose(pipeline.decision_function(frame), margins, rtol=0, atol=1e-9)


def test_a_job_file_holds_features(tmp_path: Path) -> None:
    spec = whole_job()
    spec_again = jobfile.decode(tomllib.loads(spec.to_toml()))
    assert spec_again == spec
    assert spec_again.schema["pair"].own("pair") == spec.schema["pair"].own("pair")
    assert spec.wanted("bank") == ("x", "level", "user", "when", "level2", "z")
    other = job({"f": vfl.columns.Binned((3, 8), of="x")})
    assert other.digest != job({"f": vfl.columns.Binned((3, 9), of="x")}).digest
    assert other.digest == job({"f": vfl.columns.Binned([3.0, 8.0], of="x")}).digest


def test_a_private_run_charges_nothing_more(frame: pd.DataFrame) -> None:
    """A feature within [−1, 1] costs what a number within these bounds does."""
    privacy = vfl.Privacy(epsilon=1.0, delta=1e-6)
    one = vfl.FeaturePartition({"bank": ("f",), "telco": ("b",)}, label=("telco", "y"))
    options = {"partition": one, "privacy": privacy, "penalty": vfl.L2(0.1)}
    plain = vfl.Job(bounds={"f": (0, 10), "b": (-2, 2)}, **options)
    made_of = vfl.Job(columns={"f": vfl.columns.Log(1, of="x")}, bounds={"f": (0, 10), "b": (-2, 2)}, **options)
    plans = [vfl.plan(spec, 1000) for spec in (plain, made_of)]
    assert plans[0].releases == plans[1].releases
    result = vfl.train(made_of, frame.fillna({"x": 1}), at=vfl.InProcess(num_cpus=1))
    assert result.certificate.private


def test_bounds_of_a_job_reach_features() -> None:
    spec = job(
        {"f": vfl.columns.Log(of="x"), "g": vfl.columns.Scaled(0, 1, of="x"), "h": vfl.columns.Power(2, of="x")},
        bounds={"f": (1, 5), "*": (2, 3)},
    )
    assert spec.schema["f"].limits == (0.0, math.log(5))
    assert spec.schema["g"].limits == (-3.0, 3.0)
    assert spec.schema["h"].limits == (4.0, 9.0)
    assert Schema({"f": vfl.columns.Log()})["f"].limits == UNBOUNDED


MISTAKES: dict[str, tuple[Any, str]] = {
    "edges": (lambda: vfl.columns.Binned((3, 3)), "edges"),
    "no edges": (lambda: vfl.columns.Binned(()), "edges"),
    "knots": (lambda: vfl.columns.Spline((1,)), "knots"),
    "infinite knots": (lambda: vfl.columns.Spline((1, math.inf)), "knots"),
    "degree": (lambda: vfl.columns.Spline((0, 1), degree=9), "degree"),
    "knots outside": (lambda: job({"f": vfl.Curve(knots=(3, 12), of="x")}, bounds={"f": (0, 10)}), "inside the bounds"),
    "a knot at an end": (lambda: vfl.Curve(knots=(0, 3), bounds=(0, 10)), "inside the bounds"),
    "more knots than pieces": (lambda: vfl.Curve(2, knots=(1, 3)), "raise pieces"),
    "pieces": (lambda: vfl.Curve(33), "pieces are"),
    "a curve without bounds": (lambda: job({"f": vfl.Curve(of="x")}), "no bounds for column 'f', of kind curve"),
    "log of 0": (lambda: vfl.columns.Log(bounds=(0, 1)), "log needs bounds above 0, not"),
    "power 0": (lambda: vfl.columns.Power(0), "exponent 0 makes a constant"),
    "root of less than 0": (lambda: vfl.columns.Power(0.5, bounds=(-1, 1)), "exponent 0.5 needs bounds"),
    "inverse of 0": (lambda: vfl.columns.Power(-1, bounds=(-1, 1)), "exponent -1 needs bounds"),
    "overflow": (lambda: vfl.columns.Power(9, bounds=(0, 1e300)), "no finite range"),
    "spread": (lambda: vfl.columns.Scaled(0, 0), "spread and reach"),
    "period": (lambda: vfl.columns.Cyclic(-1), "period"),
    "buckets": (lambda: vfl.columns.Hashed(1), "buckets"),
    "signed": (lambda: vfl.columns.Hashed(4, signed=1), "signed"),
    "one category": (lambda: vfl.columns.Ordinal(("a",)), "categories"),
    "unknown": (lambda: vfl.columns.Ordinal(("a", "b"), unknown="zero"), "'refuse' or 'missing'"),
    "part": (lambda: vfl.columns.DateParts(("yaer",)), "(did you mean 'year'?)"),
    "dates": (
        lambda: vfl.columns.DateParts(("day",), bounds=("2020-01-01", "soon")),
        "'2026-01-31'",
    ),
    "one year": (lambda: vfl.columns.DateParts(("year",), bounds=("2020-01-01", "2020-05-01")), "'year' out"),
    "of": (lambda: vfl.columns.Binned((1,), of=""), "of is"),
    "fill": (lambda: vfl.columns.Log(bounds=(1, 2), fill=5), "fill 5"),
    "missing": (lambda: vfl.columns.Binned((1,), missing="yes"), "missing is 'indicator'"),
    "no bounds": (
        lambda: job({"f": vfl.columns.Log(of="x")}),
        "'f', of kind log: declare",
    ),
    "no side": (lambda: job({"f": vfl.columns.Pair("x", "f2")}), "no column 'x'"),
    "a side without bounds": (
        lambda: job({"f": vfl.columns.Pair("x", "z"), "x": vfl.Numeric(), "z": vfl.Boolean()}),
        "no bounds for column 'x'",
    ),
    "too many products": (
        lambda: job(
            {"f": vfl.columns.Pair("g", "h"), "g": vfl.columns.Hashed(65_536), "h": vfl.columns.Hashed(65_536)}
        ),
        "4,294,967,296 coordinates",
    ),
    "one column twice": (lambda: vfl.columns.Pair("x", "x"), "two different columns"),
    "a pair of a pair": (
        lambda: job({"f": vfl.columns.Pair("f", "g"), "g": vfl.columns.Binned((1,))}),
        "'f' is a pair itself",
    ),
    "pieces of a pair": (lambda: vfl.columns.Pair("x", "z", pieces=0), "pieces are a whole number from 1 to 32"),
    "a shape": (
        lambda: job(
            {
                "f": vfl.columns.Pair("x", "g"),
                "g": vfl.columns.Binned((1,)),
                "x": vfl.Curve(shape="increasing", bounds=(0, 1)),
            }
        ),
        "has the shape 'increasing'",
    ),
    "two forms": (
        lambda: job({"f": vfl.columns.Binned((1,), of="x"), "x": vfl.Categorical(("a", "b"))}),
        "column 'x' of party 'bank'",
    ),
    "the label": (lambda: job({"f": vfl.columns.Binned((1,), of="y")}), "the label 'y'"),
    "no categories": (
        lambda: Schema.from_dict({"f": {"kind": "ordinal"}}),
        "'f': declare its categories",
    ),
    "no edges in a file": (
        lambda: Schema.from_dict({"f": {"kind": "binned"}}),
        "column 'f': edges is missing",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_refused(case: str) -> None:
    """Each error names the option or the column, in one line."""
    make, named = MISTAKES[case]
    with pytest.raises(SpecificationError) as caught:
        make()
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_run_finds_no_knots_of_a_column_that_it_does_not_train_on() -> None:
    partition = vfl.FeaturePartition({"bank": ("f",)}, label=("bank", "y"))
    columns = {"f": vfl.columns.Pair("x", "z"), "x": vfl.Curve(bounds=(0, 1)), "z": vfl.Boolean()}
    with pytest.raises(SpecificationError, match="put 'x' into the partition"):
        vfl.Job(partition=partition, privacy=None, columns=columns)


def test_a_pair_is_listed_beside_its_columns() -> None:
    partition = vfl.FeaturePartition({"bank": ("x", "z")}, label=("bank", "y"))
    with pytest.raises(SpecificationError, match="list it beside its two columns"):
        vfl.Job(partition=partition, privacy=None, bounds={"*": (0, 1)}, columns={"f": vfl.columns.Pair("x", "z")})
    for dropped, said in (("z", "a dropped column makes no pair"), ("f", None)):
        columns = {"f": vfl.columns.Pair("x", "z"), "x": vfl.Boolean(), "z": vfl.Boolean()} | {dropped: vfl.Dropped()}
        whole = vfl.FeaturePartition({"bank": ("x", "z", "f")}, label=("bank", "y"))
        if said is None:
            assert "f" not in vfl.Job(partition=whole, privacy=None, columns=columns).partition.features
            continue
        with pytest.raises(SpecificationError, match=said):
            vfl.Job(partition=whole, privacy=None, columns=columns)


def test_a_pair_stays_within_a_party() -> None:
    partition = vfl.FeaturePartition({"bank": ("f",), "telco": ("b",)}, label=("bank", "y"))
    with pytest.raises(SpecificationError, match="'bank' names column 'b' of party 'telco'"):
        vfl.Job(
            partition=partition,
            privacy=None,
            bounds={"b": (0, 1), "x": (0, 1)},
            columns={"f": vfl.columns.Pair("x", "b")},
        )


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["2020-01-01", "SECRET"], "holds text that is not a date"),
        ([1.0, 2.0], "holds values of type double, not dates"),
    ],
)
def test_cells_that_are_no_dates(cells: list[Any], said: str) -> None:
    with pytest.raises(DataError) as caught:
        made(vfl.columns.DateParts(("day",), of="d"), pa.table({"d": cells}))
    assert said in str(caught.value)
    assert "SECRET" not in str(caught.value)


UNREADABLE = ["2020-02-30", "", "SECRET", "2020-13-01"]
KINDS_OF_CELLS: dict[str, Any] = {
    "text": lambda path, cells: pa.table({"d": cells}),
    "dictionary": lambda path, cells: pa.table({"d": pa.array(cells).dictionary_encode()}),
    "objects": lambda path, cells: {"d": np.array([dt.date(2019, 1, 31), *cells[1:-1], 5.5], dtype=object)},
    "surrogates": lambda path, cells: {"d": np.array([*cells[:-1], "\ud800"], dtype=object)},
    "csv": lambda path, cells: _text_file(path, cells, "%Y-%m-%d"),
    "iso csv": lambda path, cells: _text_file(path, cells, None),
}


def _text_file(path: Path, cells: list[str], form: str | None) -> vfl.Csv:
    file = path / "d.csv"
    file.write_text("d,k\n" + "".join(f'"{cell}",1\n' for cell in cells))
    return vfl.Csv(str(file), dates=form)


@pytest.mark.parametrize("source", KINDS_OF_CELLS)
@pytest.mark.parametrize("instead", [{"fill": "2020-05-15"}, {"missing": "indicator"}])
def test_an_unreadable_date_is_missing_if_the_job_declares_it(
    tmp_path: Path, source: str, instead: dict[str, str]
) -> None:
    """One such cell does not end the load, and changes no other record."""
    data = KINDS_OF_CELLS[source](tmp_path, ["2019-01-31", *UNREADABLE, "2019-02-28", "?"])
    found = made(vfl.columns.DateParts(("day",), of="d", unknown="missing", **instead), data)
    expected = [[31.0], *[[15.0]] * 4, [28.0], [15.0]]
    if "missing" in instead:
        expected = [[31.0, 0.0], *[[1.0, 1.0]] * 4, [28.0, 0.0], [1.0, 1.0]]
    assert found.tolist() == expected
    with pytest.raises(DataError, match="not a date") as caught:
        made(vfl.columns.DateParts(("day",), of="d", **instead), data)
    assert "SECRET" not in str(caught.value)
    with pytest.raises(SpecificationError, match="'refuse' or 'missing'"):
        vfl.columns.DateParts(("day",), unknown="zero")


DAYS = [31.0, 1.0, 15.0]
TEXTS = ["2026-01-31", "2025-12-01T23:59:59.9", "1969-07-15 12:00"]
MOMENTS = [dt.datetime.fromisoformat(text) for text in TEXTS]
SOURCES: dict[str, Any] = {
    "text": pa.table({"d": TEXTS}),
    "dictionary": pa.table({"d": pa.array(TEXTS).dictionary_encode()}),
    "objects": {"d": np.array([MOMENTS[0].date(), MOMENTS[1], "1969-07-15"], dtype=object)},
    "timestamps": pa.table({"d": pa.array(MOMENTS, pa.timestamp("us"))}),
    "in a zone": pa.table({"d": pa.array([m.replace(tzinfo=dt.timezone(dt.timedelta(hours=9))) for m in MOMENTS],
                                         pa.timestamp("ns", "Asia/Tokyo"))}),
    "days": pa.table({"d": pa.array([m.date() for m in MOMENTS], pa.date32())}),
    "pandas": pd.DataFrame({"d": pd.to_datetime(pd.Series(TEXTS), format="ISO8601")}),
    "numpy": {"d": np.array(TEXTS, dtype="M8[ms]")},
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
def test_dates_of_any_source(source: str) -> None:
    assert made(vfl.columns.DateParts(("day",), of="d"), SOURCES[source]).ravel().tolist() == DAYS


def test_dates_of_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("d;k\n31.01.2026;1\n 01.12.2025 ;2\n15.07.1969;3\n")
    spec = vfl.Csv(str(path), delimiter=";", dates="%d.%m.%Y")
    assert made(vfl.columns.DateParts(("day",), of="d"), spec).ravel().tolist() == DAYS
    with pytest.raises(DataError, match="not a date: clean the cells"):
        made(vfl.columns.DateParts(("day",), of="d"), vfl.Csv(str(path), delimiter=";"))
    path.write_text("d\n2026-01-31\n2025-12-01\n1969-07-15\n")
    assert made(vfl.columns.DateParts(("day",), of="d"), str(path)).ravel().tolist() == DAYS
