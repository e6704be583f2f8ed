"""Exports to SQL and ONNX agree with `predict` on odd cells, for every kind of column that has a formula."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import onnxruntime
import pandas as pd
import pytest

import vfl
from vfl.columns import Boolean, Categorical, Numeric
from vfl.errors import DataError, SpecificationError
from vfl.features import (
    FEATURES,
    Binned,
    Curve,
    Cyclic,
    DateParts,
    Hashed,
    Interaction,
    Log,
    Ordinal,
    Power,
    Scaled,
    Spline,
)

if TYPE_CHECKING:
    from vfl.launch.run.result import Result

N = 60
NUMBERS = (-math.inf, -1e308, -3.0, -1e-9, 0.0, 1.0, 1.5, 2.0, 2.5, 4.0, 5.0, 5.5, 1e12, math.inf, math.nan)
KINDS: dict[str, Any] = {
    "numeric": Numeric((-1.0, 5.0), missing="indicator"),
    "filled": Numeric((1.0, 5.0), fill=2.0, missing="indicator"),
    "boolean": Boolean(missing="indicator"),
    "boolean, filled": Boolean(fill=True),
    "categorical": Categorical(("it's", "b.*", "3"), unknown="zero", missing="indicator"),
    "categorical, filled": Categorical(("b.*", "it's"), unknown="zero", fill="it's"),
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
}
TEXTS = {
    "boolean": (True, False, None),
    "boolean, filled": (True, False, None),
    "categorical": ("it's", " b.*\t", "3", "bx", "other", None),
    "categorical, filled": ("it's", "b.*", "b", None),
    "codes": (3.0, 1.0, 2.5, 7.0, math.nan),
    "ordinal": ("low", " high ", None),
    "ordinal codes": (1.0, 2.0, 3.0, math.nan),
    "lenient ordinal": ("low", " high ", "middle", "", "NaN", None),
    "lenient ordinal, filled": ("low", " high ", "middle", "", "low ", None),
    "lenient ordinal, both": ("it's", " high ", "Low", "", " ", None),
    "lenient codes": (3.0, 1.0, 2.5, 2.0, -math.inf, math.nan),
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
    result = vfl.train(job, frame, at=vfl.InProcess(cores=1))
    result.w[:] = rng.normal(size=len(result.w))
    return result, frame


def in_sql(result: Result, frame: pd.DataFrame, party: str | None = None) -> pd.DataFrame:
    with duckdb.connect() as connection:
        connection.register("records", frame)
        return connection.execute(result.to_sql(party=party)).df()


def in_onnx(result: Result, frame: pd.DataFrame, party: str | None = None) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(result.to_onnx(party=party), providers=["CPUExecutionProvider"])
    given = {}
    for one in session.get_inputs():
        own = frame[one.name]
        if one.type == "tensor(string)":
            given[one.name] = np.array([["" if pd.isna(x) else str(x)] for x in own], dtype=object)
        else:
            given[one.name] = own.astype(float).to_numpy().reshape(-1, 1)
    names = [one.name for one in session.get_outputs()]
    return {name: own.ravel() for name, own in zip(names, session.run(names, given), strict=True)}


def agree(result: Result, frame: pd.DataFrame) -> None:
    margins = result.decision_function(frame)
    assert len(set(margins.round(6))) > 3
    sql, onnx = in_sql(result, frame), in_onnx(result, frame)
    for found in (sql["margin"].to_numpy(), onnx["margin"]):
        np.testing.assert_allclose(found, margins, rtol=1e-9, atol=1e-9)
    if result.job.classification:
        positive = result.predict_proba(frame)[:, 1]
        for found in (sql["probability"].to_numpy(), onnx["probability"]):
            np.testing.assert_allclose(found, positive, atol=1e-9)
        assert sql["prediction"].tolist() == result.predict(frame).tolist()
        assert onnx["positive"].tolist() == (margins > result.margin_threshold).tolist()
    parts = {party: result.part(party).margins(frame) for party in ("bank", "telco")}
    for party, own in parts.items():
        np.testing.assert_allclose(in_sql(result, frame, party)["margin_part"], own, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(in_onnx(result, frame, party)["margin_part"], own, rtol=1e-9, atol=1e-9)
    assert "other" not in result.to_sql(party="bank")
    assert list(sql.columns)[: len(frame.columns)] == list(frame.columns)


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_agrees_on_odd_cells(kind: str) -> None:
    agree(*trained({kind: KINDS[kind]}))


def test_products_and_other_losses_agree() -> None:
    kinds = {name: KINDS[name] for name in ("numeric", "binned", "categorical")}
    crossed = kinds | {"x": Interaction("binned", "categorical"), "z": Interaction("numeric", "binned")}
    result, frame = trained(kinds, "poisson")
    agree(result, frame)
    np.testing.assert_allclose(in_sql(result, frame)["prediction"], result.predict(frame), rtol=1e-9)
    partition = vfl.FeaturePartition({"bank": [*crossed], "telco": ["other"]}, ("telco", "y"))
    job = vfl.Job(partition=partition, columns=crossed, bounds={"other": (0, 9)}, privacy=None, scaling="none")
    other = vfl.train(job, trained(kinds)[1], at=vfl.InProcess(cores=1))
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
    result = vfl.train(job, frame, at=vfl.InProcess(cores=1))
    frame.loc[3, "a"] = cell
    with pytest.raises(DataError):
        result.predict(frame)
    sql, onnx = in_sql(result, frame), in_onnx(result, frame)
    for found in (sql["margin"].isna().to_numpy(), sql["prediction"].isna().to_numpy(), np.isnan(onnx["margin"])):
        assert found.tolist() == [k == 3 for k in range(20)]


def test_undeclared_cells_that_count_as_missing_agree_in_scikit_learn_or_are_refused() -> None:
    for kind, refused in ((KINDS["lenient ordinal, filled"], False), (KINDS["lenient ordinal, both"], True)):
        result, frame = trained({"lenient ordinal, filled": kind})
        if not refused:
            np.testing.assert_allclose(result.to_sklearn().decision_function(frame), result.decision_function(frame))
            continue
        with pytest.raises(SpecificationError, match="declare a fill"):
            result.to_sklearn()


def test_every_kind_is_checked_or_refused_with_a_remedy() -> None:
    for kind in (Hashed(8), DateParts(("month",))):
        frame = pd.DataFrame({"a": ["2020-01-01"] * 20, "other": np.linspace(0, 9, 20), "y": [0, 1] * 10})
        partition = vfl.FeaturePartition({"bank": ["a"], "telco": ["other"]}, ("telco", "y"))
        job = vfl.Job(partition=partition, columns={"a": kind}, bounds={"other": (0, 9)}, privacy=None)
        result = vfl.train(job, frame, at=vfl.InProcess(cores=1))
        for export in (result.to_sql, result.to_onnx):
            with pytest.raises(SpecificationError, match="scikit-learn"):
                export()
    tested = {type(kind) for kind in KINDS.values()} | {Hashed, DateParts, Interaction}
    assert {kind for kind in FEATURES if kind.kind != "grid_cell"} - tested <= {
        k for k in FEATURES if "Grid" in k.__name__
    }
