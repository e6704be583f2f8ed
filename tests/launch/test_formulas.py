"""Exports to SQL, ONNX and scikit-learn agree with `predict` on odd cells, for every kind of column that has a formula."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest

import vfl
from vfl.base.columns import Boolean, Categorical, Numeric
from vfl.base.features import (
    FEATURES,
    PARTS,
    Aggregate,
    Binned,
    Curve,
    Cyclic,
    DateParts,
    Hashed,
    Log,
    Ordinal,
    Pair,
    Power,
    Scaled,
    Spline,
)
from vfl.errors import DataError, SpecificationError

if TYPE_CHECKING:
    from vfl.launch.run.result import Result

N = 60
BLANKS = [chr(c) for c in range(0x3001) if chr(c).isspace()]
NUMBERS = (
    -math.inf,
    -1e308,
    1e300,
    -1e300,
    -3.0,
    -1e-9,
    0.0,
    1.0,
    1.5,
    2.0,
    2.5,
    4.0,
    5.0,
    5.5,
    1e12,
    math.inf,
    math.nan,
)
KINDS: dict[str, Any] = {
    "numeric": Numeric((-1.0, 5.0), missing="indicator"),
    "filled": Numeric((1.0, 5.0), fill=2.0, missing="indicator"),
    "boolean": Boolean(missing="indicator"),
    "boolean, filled": Boolean(fill=True),
    "categorical": Categorical(("it's", "b.*", "3"), unknown="zero", missing="indicator"),
    "categorical, filled": Categorical(("b.*", "it's"), unknown="zero", fill="it's"),
    "digits": Categorical(("01", "1", "10"), unknown="zero", missing="indicator"),
    "boolean text": Boolean(missing="indicator"),
    "large codes": Categorical((2**53, 1, -2, 2**40), unknown="zero", missing="indicator"),
    "codes as text": Categorical((1, -1, 2.5), unknown="zero", missing="indicator"),
    "codes": Categorical((3, 1, 2.5), unknown="zero", missing="indicator"),
    "binned": Binned((1.0, 2.0, 4.0), missing="indicator"),
    "binned, filled": Binned((1.0, 2.0, 4.0), fill=3.0),
    "spline": Spline((0.0, 1.0, 2.0, 5.0), missing="indicator"),
    "spline of degree 0": Spline((0.0, 1.0, 2.0, 5.0), degree=0, fill=1.5),
    "curve": Curve(knots=(1.0, 2.0), pieces=5, bounds=(-1.0, 5.0), missing="indicator"),
    "log": Log(offset=1.5, bounds=(-1.0, 5.0), missing="indicator"),
    "power": Power(2.0, bounds=(-3.0, 5.0), fill=-2.0, missing="indicator"),
    "root": Power(0.5, bounds=(0.0, 5.0), missing="indicator"),
    "scaled": Scaled(1.0, 0.7, missing="indicator"),
    "cyclic": Cyclic(24.0, start=1.0, missing="indicator"),
    "ordinal": Ordinal(("low", "high"), missing="indicator"),
    "ordinal codes": Ordinal((1, 2, 3), fill=2),
    "lenient ordinal": Ordinal(("low", "high"), unknown="missing", missing="indicator"),
    "lenient ordinal, filled": Ordinal(("low", "high"), unknown="missing", fill="high"),
    "lenient ordinal, both": Ordinal(("it's", "high"), unknown="missing", fill="high", missing="indicator"),
    "lenient codes": Ordinal((3, 1, 2.5), unknown="missing", missing="indicator"),
    "hashed": Hashed(5, missing="indicator"),
    "signed hash, filled": Hashed(4, signed=True, fill="low"),
    "dates": DateParts((*PARTS,), missing="indicator", bounds=("1969-02-10", "2100-12-31T12:30:00")),
    "dates, filled": DateParts(
        (*PARTS,), unknown="missing", fill="2024-02-29T23:59:59", bounds=("1600-01-01", "2400-12-31")
    ),
    "cyclic dates": DateParts((*PARTS,), unknown="missing", missing="indicator", cyclic=True),
}
DATES = (
    "\xa02020-02-29\u2003",
    "9999-12-31",
    "0001-01-01",
    *("2020-02-29", "1969-02-09T23:59:59", " 1999-12-31T23:59:59.999999-11:30 ", "2000-03-01 00:00", "1900-02-28T12"),
    *(
        "2100-02-28T23",
        "2026-12-31T23:59:59+05:30",
        "1970-01-01T00:00:00Z",
        "2099-01-01 10:20:30,5",
        None,
    ),
    *("1600-02-29", "2400-12-31", "2023-03-31", "2024-12-30 06:07:08.9Z"),
)
NO_DATES = (
    "\xa0",
    "２０２０-01-01",
    "2020-01-01\u200b",
    "2023-02-29",
    "2020-13-01",
    "soon",
    "2020-1-1",
    "2020-04-31T00:00",
    "",
    "2020-01-01 25:00",
)
TEXTS = {
    "boolean": (True, False, None),
    "boolean, filled": (True, False, None),
    "boolean text": ("true", " FALSE\xa0", "\u20031", "0", None),
    "categorical": ("it's", " b.*\t", "3", "bx", "other", None, *(f"{c}it's{c}3{c}" for c in BLANKS)),
    "categorical, filled": ("it's", "b.*", "b", None, *(f"{c}b.*{c}" for c in BLANKS), "b.*\u200b", "\xa0"),
    "digits": ("01", "1", "1.0", "001", " 10\u2028", "1e1", "+1", "-1", None),
    "codes": (3.0, 1.0, 2.5, 7.0, math.nan),
    "large codes": (2.0**53, 1.0, -2.0, 2.0**40, 1e300, math.nan),
    "codes as text": ("1", "01", " 1", "1.0", "1e0", "+1", "-1", "2.50", "7", None),
    "ordinal": ("low", " high ", "\u2028low\xa0", None),
    "ordinal codes": (1.0, 2.0, 3.0, math.nan),
    "lenient ordinal": ("low", " high ", "middle", "", "NaN", "\xa0high", "\u3000", None),
    "lenient ordinal, filled": ("low", " high ", "middle", "", "low ", None),
    "lenient ordinal, both": ("it's", " high ", "Low", "", " ", None),
    "lenient codes": (3.0, 1.0, 2.5, 2.0, -math.inf, math.nan),
    "hashed": ("a", "ä", "user-17", " a", "longer text of many bytes", "\U0001f600", None),
    "signed hash, filled": ("low", "high", "x" * 99, None, "b"),
    "dates": DATES,
    "dates, filled": DATES + NO_DATES,
    "cyclic dates": DATES + NO_DATES,
}


def trained(kinds: dict[str, Any], loss: str = "logistic", **given: Any) -> tuple[Result, pd.DataFrame]:
    """Return a model with random coefficients, and records of odd cells; `other` is a column of a second party."""
    rng = np.random.default_rng(5)
    columns = kinds | {"other": Numeric((0.0, 9.0))}
    cells = {name: [(TEXTS.get(name, NUMBERS))[k % len(TEXTS.get(name, NUMBERS))] for k in range(N)] for name in kinds}
    frame = pd.DataFrame(cells | {"other": rng.uniform(-1, 10, N), "y": rng.integers(0, 2, N) + (loss == "poisson")})
    partition = vfl.FeaturePartition({"bank": [*kinds], "telco": ["other"]}, ("telco", "y"))
    bounds = {} if loss == "logistic" else {"bounds": {"y": (0, 3)}}
    job = vfl.Job(
        partition=partition, columns=columns, loss=loss, privacy=None, solver=vfl.SkGD(passes=1), **bounds, **given
    )
    result = vfl.train(job, frame, at=vfl.InProcess(num_cpus=1))
    result.w[:] = rng.normal(size=len(result.w))
    return result, frame


def in_sql(result: Result, frame: pd.DataFrame, party: str | None = None) -> pd.DataFrame:
    with duckdb.connect() as connection:
        connection.register("records", frame)
        return connection.execute(result.to_sql(party=party)).df()


def in_onnx(result: Result, frame: pd.DataFrame, party: str | None = None) -> dict[str, np.ndarray]:
    exported = result.to_onnx(party=party)
    session = onnxruntime.InferenceSession(exported, providers=["CPUExecutionProvider"])
    documented = {one.name: one.doc_string for one in onnx.load_from_string(exported).graph.input}
    given = {}
    for one in session.get_inputs():
        own = frame[one.name]
        if "seconds since 1970" in documented[one.name]:
            given[one.name] = np.array([seconds(x) for x in own]).reshape(-1, 1)
        elif one.type == "tensor(string)":
            given[one.name] = np.array([["" if pd.isna(x) else str(x)] for x in own], dtype=object)
        else:
            read = {"true": 1.0, "false": 0.0}
            numbers = [read.get(str(x).strip().lower(), math.nan if pd.isna(x) else x) for x in own]
            given[one.name] = np.array([float(x) for x in numbers]).reshape(-1, 1)
    names = [one.name for one in session.get_outputs()]
    return {name: own.ravel() for name, own in zip(names, session.run(names, given), strict=True)}


def seconds(cell: object) -> float:
    """Return the seconds since 1970 of a date as it is written; NaN if it is none."""
    try:
        date = dt.datetime.fromisoformat(str(cell).strip()).replace(tzinfo=None, microsecond=0)
    except ValueError:
        return math.nan
    return (date - dt.datetime(1970, 1, 1)).total_seconds()  # noqa: DTZ001 - as written


def agree(result: Result, frame: pd.DataFrame) -> None:
    margins = result.decision_function(frame)
    assert len(set(margins.round(6))) > 3
    onnx = in_onnx(result, frame)
    plain = pickle.loads(pickle.dumps(result.to_sklearn()))  # noqa: S301 - our own bytes
    if result.job.classification:
        np.testing.assert_allclose(plain.decision_function(frame), margins, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(onnx["score"], margins, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(plain.predict(frame), result.predict(frame), rtol=1e-9, atol=1e-9)
    if any(isinstance(kind, Hashed) for kind in result.job.columns.values()):
        with pytest.raises(SpecificationError, match="ONNX or scikit-learn"):
            result.to_sql()
        return
    sql = in_sql(result, frame)
    np.testing.assert_allclose(sql["score"].to_numpy(), margins, rtol=1e-9, atol=1e-9)
    if result.job.classification:
        positive = result.predict_proba(frame)[:, 1]
        for found in (sql["probability"].to_numpy(), onnx["probability"]):
            np.testing.assert_allclose(found, positive, atol=1e-9)
        assert sql["prediction"].tolist() == result.predict(frame).tolist()
        assert onnx["positive"].tolist() == (margins > result.score_threshold).tolist()
    parts = {party: result.part(party).scores(frame) for party in ("bank", "telco")}
    for party, own in parts.items():
        np.testing.assert_allclose(result.to_sklearn(party=party).predict(frame), own, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(in_sql(result, frame, party)["score_part"], own, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(in_onnx(result, frame, party)["score_part"], own, rtol=1e-9, atol=1e-9)
    assert "other" not in result.to_sql(party="bank")
    assert list(sql.columns)[: len(frame.columns)] == list(frame.columns)


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_agrees_on_odd_cells(kind: str) -> None:
    agree(*trained({kind: KINDS[kind]}))


def test_products_and_other_losses_agree() -> None:
    names = ("numeric", "binned", "categorical", "curve", "log", "lenient codes", "codes", "cyclic", "boolean, filled")
    kinds = {name: KINDS[name] for name in names}
    crossed = kinds | {
        f"{a} by {b}": Pair(a, b, pieces=3)
        for a, b in (
            ("binned", "categorical"),
            ("numeric", "binned"),
            ("curve", "lenient codes"),
            ("log", "curve"),
            ("cyclic", "boolean, filled"),
            ("codes", "numeric"),
        )
    }
    result, frame = trained(kinds, "poisson")
    agree(result, frame)
    np.testing.assert_allclose(in_sql(result, frame)["prediction"], result.predict(frame), rtol=1e-9)
    partition = vfl.FeaturePartition({"bank": [*crossed], "telco": ["other"]}, ("telco", "y"))
    given: dict[str, Any] = {"bounds": {"other": (0, 9)}, "privacy": None, "scaling": "none"}
    job = vfl.Job(partition=partition, columns=crossed, solver=vfl.SkGD(passes=1), **given)
    other = vfl.train(job, trained(kinds)[1], at=vfl.InProcess(num_cpus=1))
    other.w[:] = np.random.default_rng(2).normal(size=len(other.w))
    agree(other, frame.assign(y=0))


@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        (Numeric((0.0, 1.0)), math.nan),
        (Categorical(("low", "high")), "middle"),
        (Categorical(("low", "high")), None),
        (Ordinal(("low", "high")), "middle"),
        (Ordinal(("low", "high"), unknown="missing"), "middle"),
        (Spline((0.0, 1.0)), math.nan),
    ],
)
def test_a_cell_that_predict_refuses_has_no_score(kind: Any, cell: Any) -> None:
    allowed = 0.5 if isinstance(cell, float) else "low"
    frame = pd.DataFrame({"a": [allowed] * 20, "other": np.linspace(0, 9, 20), "y": [0, 1] * 10})
    partition = vfl.FeaturePartition({"bank": ["a"], "telco": ["other"]}, ("telco", "y"))
    job = vfl.Job(partition=partition, columns={"a": kind}, bounds={"other": (0, 9)}, privacy=None)
    result = vfl.train(job, frame, at=vfl.InProcess(num_cpus=1))
    frame.loc[3, "a"] = cell
    with pytest.raises(DataError):
        result.predict(frame)
    for party in (None, "bank"):
        with pytest.raises(ValueError, match=r"'a' \(a missing cell, or"):
            result.to_sklearn(party=party).predict(frame)
    sql, onnx = in_sql(result, frame), in_onnx(result, frame)
    for found in (sql["score"].isna().to_numpy(), sql["prediction"].isna().to_numpy(), np.isnan(onnx["score"])):
        assert found.tolist() == [k == 3 for k in range(20)]


def test_every_kind_is_checked() -> None:
    tested = {type(kind) for kind in KINDS.values()} | {Pair}
    assert set(FEATURES) - {Aggregate} == tested - {Numeric, Boolean, Categorical}  # tests/parties/test_aggregates.py


def test_forms_of_dates_that_sql_cannot_read_have_no_score() -> None:
    result, frame = trained({"dates, filled": KINDS["dates, filled"]})
    frame.loc[:3, "dates, filled"] = ["20200131", "2020-W05-1", "2020-01-31x10:00", "2020031"]
    assert np.isfinite(result.decision_function(frame)[:3]).all()
    missing = in_sql(result, frame)["score"].isna()
    assert missing.tolist() == [True] * 3 + [False] * (N - 3)
