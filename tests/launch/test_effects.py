"""Curves of a model: `Result.curves`, and their place in report, card and comparison."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import vfl
from vfl.apps.report import comparison
from vfl.apps.report.card import write_card
from vfl.apps.report.run import write_run
from vfl.errors import SpecificationError
from vfl.launch.run.effects import DOT_NOTE, GAP_NOTE

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


def test_bands_hold_the_mean_curve_of_many_runs(runs, tmp_path):
    """Over seeds of the noise, bands hold the mean of the other runs' curves at most points, and are not far too wide."""
    columns = ("age", "income", "city")
    values, bands = ({column: [] for column in columns} for _ in range(2))
    for seed in range(12):
        noisy = replace(job(), privacy=vfl.Privacy(epsilon=1.0, noise=vfl.SeededNoise(100 + seed)))
        found = vfl.train(noisy, frame(), at="inprocess", output=tmp_path / str(seed)).curves(tmp_path / str(seed))
        for column in columns:
            values[column].append(found[column].value)
            bands[column].append(found[column].band)
    for column in columns:
        value, band = np.array(values[column]), np.array(bands[column])
        others = (value.sum(axis=0) - value) / (len(value) - 1)
        assert (abs(value - others) <= band).mean() > 0.7
        assert band.mean() < 4 * 2 * value.std(axis=0, ddof=1).mean()
    assert vfl.Result.load(runs[0]).curves()["income"].band is None


def test_a_run_without_privacy_has_no_band(tmp_path):
    result = vfl.train(job(epsilon=None), frame(), at="inprocess", output=tmp_path / "run")
    assert all(effect.band is None for effect in result.curves(tmp_path / "run"))


def test_frame_and_plot(runs):
    found = vfl.Result.load(runs[0]).curves(runs[0])
    table = found.frame()
    assert list(table.columns) == ["column", "party", "x", "y", "value", "band", "seen"]
    assert table["seen"].all()
    assert list(table[table["column"] == "city"]["x"]) == ["Bern", "Basel", "Chur"]
    assert table["band"].notna().all()
    pytest.importorskip("matplotlib")
    drawn = {axes.get_title() for axes in found.plot().axes}
    assert {"age (bank)", "income (telco)"} <= drawn


def test_a_stretch_without_records_is_dashed_and_has_no_band(tmp_path):
    """Ages lie from 20 to 80, with bounds 0 to 200 and a gap from 40 to 60."""
    table = frame()
    table["age"] = np.where(table["age"] < 50, table["age"].clip(upper=40), table["age"].clip(lower=60))
    curved = replace(job(), columns=COLUMNS | {"age": vfl.Curve(missing="indicator")}, bounds={"age": (0, 200)})
    result = vfl.train(curved, table, at="inprocess", output=tmp_path / "run")
    found = result.curves(tmp_path / "run")
    age = found["age"]
    empty = (age.x < 18) | ((age.x > 42) & (age.x < 58)) | (age.x > 82)
    held = ((age.x > 22) & (age.x < 39)) | ((age.x > 62) & (age.x < 79))
    assert not age.seen[empty].any()
    assert age.seen[held].all()
    assert (np.isnan(age.band) == ~age.seen).all()
    assert len(age.gaps) == 3
    assert found["income"].seen.all()
    assert f"age (bank): {age.value[age.seen].min():.3g} to" in repr(found)
    table = found.frame().query("column == 'age'")
    assert (table["band"].isna() == ~table["seen"]).all()
    page = write_run(tmp_path / "run", tmp_path / "run.html")[0].read_text()
    drawn = page[page.index("<h3>age (") :]
    drawn = drawn[: drawn.index("</svg>")]
    assert drawn.count('class="dashed"') == 1 + len(age.gaps)  # with the line at 0
    assert GAP_NOTE in page
    assert "± nan" not in write_card(tmp_path / "run", tmp_path / "card.md")[0].read_text()
    pytest.importorskip("matplotlib")
    lines = next(axes for axes in found.plot().axes if "age" in axes.get_title()).lines
    assert [line.get_linestyle() for line in lines].count("--") == len(age.gaps)


def test_an_end_before_a_bend_too_close_to_draw_is_a_dot(tmp_path):
    """The piece from 20 to 20.01 holds no record but those at 20. A line would draw it as a vertical stroke."""
    columns = COLUMNS | {"age": vfl.Curve(knots=(20.01, 50))}
    result = vfl.train(replace(job(), columns=columns), frame(), at="inprocess", output=tmp_path / "run")
    age, income = (result.curves(tmp_path / "run")[column] for column in ("age", "income"))
    assert [list(age.x[part][[0, -1]]) for part in age.strokes] == [[20, 20], [20.01, 80]]
    assert age.dotted
    assert len(income.strokes) == 1
    assert not income.dotted
    page = write_run(tmp_path / "run", tmp_path / "run.html")[0].read_text()
    drawn = page[page.index("<h3>age (") :]
    drawn = drawn[: drawn.index("</svg>")]
    assert drawn.count("<circle") == 1
    assert DOT_NOTE in page


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


PAIRED = {
    "age": vfl.Curve(missing="indicator"),
    "income": vfl.Curve(pieces=5),
    "city": vfl.Categorical(("Bern", "Basel", "Chur"), unknown="zero", missing="indicator"),
    "member": vfl.Boolean(),
    "both": vfl.columns.Pair("age", "income"),
    "by_city": vfl.columns.Pair("city", "age", pieces=3),
    "by_member": vfl.columns.Pair("member", "city"),
}


def paired(n=3000):
    """Return records whose label depends on age by income, with odd cells."""
    table = frame(n)
    joint = 3.0 * ((table["age"] > 50) == (table["income"] > 5)) - 1.5
    table["y"] = (np.random.default_rng(2).random(n) < 1 / (1 + np.exp(-joint))).astype(int)
    table.loc[::11, "age"], table.loc[3::13, "age"], table.loc[5::17, "income"] = np.nan, 1e6, -np.inf
    table.loc[2::19, "city"], table.loc[4::23, "city"] = None, "Genf"
    return table


@pytest.fixture(scope="module", params=[8.0, None], ids=["private", "exact"])
def with_pairs(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs") / "run"
    one = replace(
        job(request.param),
        columns=PAIRED,
        bounds={"age": (20, 80), "income": (0, 10)},
        partition=vfl.FeaturePartition({"bank": [*PAIRED]}, label=("bank", "y")),
    )
    return vfl.train(one, paired(), at="inprocess", output=folder), folder


def test_curves_and_pairs_add_up_to_the_margin(with_pairs):
    """Each part is centred, and what a pair says about one column alone is in the curve of this column."""
    result, folder = with_pairs
    found = result.curves(folder)
    assert {pair.column for pair in found.pairs} == {"both", "by_city", "by_member"}
    table = paired(200).dropna().query("city != 'Genf'").head(40)
    nodes = {column: found["both"].x if column == "age" else found["both"].y for column in ("age", "income")}
    for column, points in nodes.items():  # pairs are evaluated at few points
        table[column] = np.random.default_rng(1).choice([p for p in points if p in found[column].x], len(table))

    def at(points, cell):
        name = {True: "true", False: "false"}.get(cell, cell)
        return points.index(name) if isinstance(points, tuple) else int(np.flatnonzero(points == cell)[0])

    parts = np.zeros(len(table))
    for k, (_, record) in enumerate(table.iterrows()):
        parts[k] += sum(own.value[at(own.x, record[own.column])] for own in found)
        for pair in found.pairs:
            ends = [(pair.a, pair.x), (pair.b, pair.y)]
            inside = [
                np.interp(record[c], p, np.arange(len(p))) if not isinstance(p, tuple) else at(p, record[c])
                for c, p in ends
            ]
            low = [min(int(i), len(p) - 2) for i, (_, p) in zip(inside, ends, strict=True)]
            u, v = (i - j for i, j in zip(inside, low, strict=True))
            square = pair.value[low[0] : low[0] + 2, low[1] : low[1] + 2]
            parts[k] += np.array([1 - u, u]) @ square @ np.array([1 - v, v])
    margins = result.decision_function(table)
    assert np.ptp(margins - parts) < 1e-9
    both = found["both"]
    assert np.ptp(both.value) > 2.0
    assert abs(both.value.mean(axis=0)).max() < 0.15 * np.ptp(both.value)
    assert (both.band is not None) == (result.job.privacy is not None)
    rows = found.frame()
    assert len(rows[rows["column"] == "both"]) == both.value.size
    pytest.importorskip("matplotlib")
    assert {"both (bank)", "by_city (bank)"} <= {axes.get_title() for axes in found.plot().axes}


def test_pairs_are_drawn_in_report_and_card(with_pairs, tmp_path):
    _, folder = with_pairs
    page = write_run(folder, tmp_path / "run.html")[0].read_text()
    assert "<h3>by_city (bank)" in page
    assert "on top of their curves" in page
    card = write_card(folder, tmp_path / "card.md")[0].read_text()
    assert "| both | bank | " in card


def test_exports_and_scorecards_of_pairs_predict_the_same(with_pairs):
    result, _ = with_pairs
    new = paired(400)
    margins = result.decision_function(new)
    np.testing.assert_allclose(result.to_sklearn().decision_function(new), margins, rtol=1e-12, atol=1e-12)
    card = result.scorecard(points_to_double=np.log(2), base=0.0, odds=1.0, positive_is_high=True)
    of = {column: {row.category: row.points for row in card.rows if row.column == column} for column in PAIRED}
    age, income = ({float(c[3:]): p for c, p in of[c].items() if c.startswith("at ")} for c in ("age", "income"))
    whole = new.dropna().query("city != 'Genf'").head(30)
    for k, record in zip(whole.index, whole.to_dict("records"), strict=True):
        member, a, b = str(record["member"]).lower(), np.clip(record["age"], 20, 80), np.clip(record["income"], 0, 10)
        score = np.interp(a, [*age], [*age.values()]) + np.interp(b, [*income], [*income.values()])
        score += of["city"][record["city"]] + of["member"][member] + of["by_member"][f"{member}, {record['city']}"]
        own = {c.split("at ")[1]: p for c, p in of["by_city"].items() if c.startswith(record["city"])}
        score += np.interp(a, [*map(float, own)], [*own.values()])
        ends = [
            sorted({float(c.replace("at ", "").split(", ")[j]) for c in of["both"] if c != "(missing)"}) for j in (0, 1)
        ]
        inside = [np.interp(b, ends[1], [of["both"][f"at {x:.6g}, at {y:.6g}"] for y in ends[1]]) for x in ends[0]]
        score += np.interp(a, ends[0], inside)
        assert score == pytest.approx(margins[k], abs=1e-3)
