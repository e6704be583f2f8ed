"""Curves of a model: `Result.curves`, and their place in report, card and comparison."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import vfl
from vfl.errors import SpecificationError
from vfl.report import comparison
from vfl.report.card import write_card
from vfl.report.run import write_run

COLUMNS = {
    "age": vfl.Curve(knots=(30, 50), missing="indicator"),
    "city": vfl.Categorical(("Bern", "Basel", "Chur")),
    "income": vfl.Numeric((0, 10)),
    "member": vfl.Boolean(),
}


def frame(n=3000):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": rng.uniform(20, 80, n),
            "city": rng.choice(["Bern", "Basel", "Chur"], n),
            "income": rng.uniform(0, 10, n),
            "member": rng.integers(0, 2, n).astype(bool),
        }
    )
    margin = abs(table["age"] - 50) / 5 + 2.0 * (table["city"] == "Chur") - 3
    table["y"] = (rng.random(n) < 1 / (1 + np.exp(-margin))).astype(int)
    return table


def job(epsilon=4.0, **changes):
    privacy = None if epsilon is None else vfl.Privacy(epsilon=epsilon, noise=vfl.SeededNoise(1))
    return vfl.Job(
        partition=vfl.FeaturePartition({"bank": ["age", "city"], "telco": ["income", "member"]}, label=("bank", "y")),
        columns=COLUMNS,
        bounds={"age": (20, 80)},
        loss="logistic",
        penalty=vfl.L2(1e-3),
        privacy=privacy,
        **changes,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folders = [tmp_path_factory.mktemp("run") / name for name in ("one", "two")]
    for seed, folder in enumerate(folders):
        vfl.train(job(solver=vfl.SkGD(seed=seed)), frame(), at="inprocess", output=folder)
    return folders


def test_differences_along_a_curve_are_differences_of_predictions(runs):
    result = vfl.Result.load(runs[0])
    record = frame(1)
    for column, one, other in (
        ("age", 24.5, 71.0),
        ("income", 0.0, 10.0),
        ("city", "Bern", "Chur"),
        ("member", "false", "true"),
    ):
        effect = result.curves()[column]
        if effect.numeric:
            moved = np.interp([one, other], effect.x, effect.value)
        else:
            moved = [effect.value[effect.x.index(x)] for x in (one, other)]
        margins = [
            float(result.decision_function(record.assign(**{column: {"false": False, "true": True}.get(x, x)}))[0])
            for x in (one, other)
        ]
        assert moved[1] - moved[0] == pytest.approx(margins[1] - margins[0], abs=0.02 if column == "age" else 1e-9)


def test_curves_are_sorted_and_find_the_strong_columns(runs):
    found = vfl.Result.load(runs[0]).curves()
    assert {effect.column for effect in tuple(found)[:2]} == {"age", "city"}
    assert [effect.size for effect in found] == sorted((effect.size for effect in found), reverse=True)
    with pytest.raises(SpecificationError, match="did you mean 'age'"):
        found["agee"]


def test_the_band_is_that_of_the_noise(runs):
    """The standard deviation of a model's curves over seeds of the noise is near half of the band."""
    ends = []
    for seed in range(12):
        noisy = replace(job(), privacy=vfl.Privacy(epsilon=4.0, noise=vfl.SeededNoise(100 + seed)))
        ends.append(vfl.train(noisy, frame(), at="inprocess").curves()["income"].value[-1])
    band = vfl.Result.load(runs[0]).curves(runs[0])["income"].band[-1]
    assert 0.3 < band / (2 * np.std(ends)) < 3
    assert vfl.Result.load(runs[0]).curves()["income"].band is None


def test_a_run_without_privacy_has_no_band(tmp_path):
    result = vfl.train(job(epsilon=None), frame(), at="inprocess", output=tmp_path / "run")
    assert all(effect.band is None for effect in result.curves(tmp_path / "run"))


def test_frame_and_plot(runs):
    found = vfl.Result.load(runs[0]).curves(runs[0])
    table = found.frame()
    assert list(table.columns) == ["column", "party", "x", "value", "band"]
    assert list(table[table["column"] == "city"]["x"]) == ["Bern", "Basel", "Chur"]
    assert table["band"].notna().all()
    pytest.importorskip("matplotlib")
    drawn = {axes.get_title() for axes in found.plot().axes}
    assert {"age (bank)", "income (telco)"} <= drawn


def test_report_card_and_comparison_draw_every_column(runs, tmp_path):
    page = write_run(runs[0], tmp_path / "run.html")[0].read_text()
    card = write_card(runs[0], tmp_path / "card.md")[0].read_text()
    both = comparison.write_comparison(comparison.compare(runs), tmp_path / "both.html").read_text()
    for column in COLUMNS:
        assert f"<h3>{column} (" in page
        assert f"<h3>{column} (" in both
        assert f"| {column} | " in card
    assert 'class="noise"' in page
    assert "Basel two" in both


@pytest.mark.parametrize(
    "curve",
    [
        vfl.Curve(knots=(30, 50)),
        vfl.Curve(),
        vfl.Curve(shape="increasing", pieces=3),
        vfl.Curve(missing="indicator"),
        vfl.Curve(fill=40.0, missing="indicator", knots=(35,)),
        vfl.Curve(fill=40.0),
    ],
)
def test_exports_and_scorecards_of_curves_predict_the_same(curve):
    own = {"age": curve, "city": COLUMNS["city"], "member": COLUMNS["member"]}
    one = replace(
        job(),
        columns=own,
        partition=vfl.FeaturePartition({"bank": ["age", "city"], "telco": ["member"]}, label=("bank", "y")),
    )
    table = frame()
    if curve.fill is not None or curve.missing is not None:
        table.loc[::7, "age"] = np.nan
    result, new = vfl.train(one, table, at="inprocess"), table.head(300).copy()
    new.loc[1, "age"], new.loc[2, "age"] = -1e6, 1e6  # outside the bounds: the ends of the curve
    margins = result.decision_function(new)
    assert result.to_sklearn().decision_function(new) == pytest.approx(margins, rel=1e-12, abs=1e-12)

    card = result.scorecard(points_to_double=np.log(2), base=0.0, odds=1.0, positive_is_high=True)
    points = {(row.column, row.category): row.points for row in card.rows}
    at = {float(c.removeprefix("at ")): p for (column, c), p in points.items() if column == "age" and c != "(missing)"}
    for k in range(0, 300, 7):
        cell = new["age"].iloc[k]
        if np.isnan(cell) and curve.missing is None:
            cell = curve.fill
        age = points["age", "(missing)"] if np.isnan(cell) else np.interp(cell, list(at), list(at.values()))
        score = age + points["city", new["city"].iloc[k]] + points["member", str(new["member"].iloc[k]).lower()]
        assert score == pytest.approx(margins[k], abs=1e-4)
