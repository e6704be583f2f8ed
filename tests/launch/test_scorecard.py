"""Scorecards: the points of a record add up to its score, which is its margin on another scale."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

import vfl
from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said

N = 120
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": np.where(np.arange(N) % 9 == 0, np.nan, RNG.uniform(18, 90, N)),
        "income": np.where(np.arange(N) % 7 == 0, np.nan, RNG.uniform(0, 100, N)),
        "tariff": RNG.choice(["S", "M", "XL"], N),
        "member": RNG.choice([True, False], N),
        "y": RNG.integers(0, 2, N),
    }
)
COLUMNS = {
    "age": vfl.columns.Binned((30, 60), missing="indicator"),
    "income": vfl.columns.Binned((50,), fill=70, missing="indicator"),
    "tariff": vfl.Categorical(("S", "M"), unknown="zero"),
    "member": vfl.Boolean(),
}


def train(**options: Any) -> vfl.Result:
    partition = vfl.FeaturePartition({"bank": ("age", "income"), "telco": ("tariff", "member")}, label=("telco", "y"))
    given = {"partition": partition, "columns": COLUMNS, "privacy": None, "solver": vfl.SkGD(passes=20)}
    return vfl.train(vfl.Job(**given | options), FRAME, at=vfl.InProcess(num_cpus=1))


@pytest.fixture(scope="module")
def result() -> vfl.Result:
    return train()


def category(column: str, cell: Any) -> str:
    if column == "tariff":
        return cell if cell in ("S", "M") else "(other)"
    if column == "member":
        return "true" if cell else "false"
    if math.isnan(cell):
        return "(missing)"
    if column == "income":
        return "[50, inf)" if cell >= 50 else "(-inf, 50)"
    return "(-inf, 30)" if cell < 30 else "[30, 60)" if cell < 60 else "[60, inf)"


@pytest.mark.parametrize("high", [False, True])
def test_points_add_up_to_the_margin(result: vfl.Result, high: bool) -> None:
    card = result.scorecard(points_to_double=20, base=600, odds=50, positive_is_high=high)
    points = {(row.column, row.category): row.points for row in card.rows}
    assert {row.column: row.party for row in card.rows} == dict.fromkeys(["age", "income"], "bank") | dict.fromkeys(
        ["tariff", "member"], "telco"
    )
    scores = np.array([sum(points[c, category(c, record[c])] for c in COLUMNS) for _, record in FRAME.iterrows()])
    log_odds = (1 if high else -1) * result.decision_function(FRAME)
    np.testing.assert_allclose(scores, 600 + 20 / math.log(2) * (log_odds - math.log(50)), atol=1e-9)


def test_points_are_written(result: vfl.Result, tmp_path: Path, call: Callable[..., Said]) -> None:
    result.save(tmp_path / "run")
    said = call("export", str(tmp_path / "run"), "--form", "scorecard", "--output", str(tmp_path / "points.csv"))
    assert said.code == 0
    written = pd.read_csv(tmp_path / "points.csv")
    assert list(written.columns) == ["party", "column", "category", "points"]
    assert len(written) == len(result.scorecard().rows) == 12
    assert call("export", str(tmp_path / "run"), "--form", "card", "--output", "x").code == 2


def test_other_models_have_no_points(result: vfl.Result) -> None:
    with pytest.raises(SpecificationError, match="smoothed_hinge"):
        train(loss="smoothed_hinge").scorecard()
    with pytest.raises(SpecificationError, match="'age' is of kind numeric"):
        train(columns=COLUMNS | {"age": vfl.Numeric(bounds=(18, 90), fill=40)}).scorecard()
    with pytest.raises(SpecificationError, match="odds is a positive number, not 0"):
        result.scorecard(odds=0)
    with pytest.raises(SpecificationError, match=r"woe must be .*not 5"):
        result.scorecard(woe=5)  # type: ignore[arg-type]
    with pytest.raises(SpecificationError, match=r"digits must be.*'a'"):
        result.scorecard(digits="a")  # type: ignore[arg-type]
