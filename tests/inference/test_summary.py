"""The statistician's surface: estimable rows, hypotheses, tables, and intervals of means, on a given covariance."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy.stats import chi2, norm

import vfl
from vfl.apps import cli
from vfl.apps.report import write_card, write_run
from vfl.base.losses import LOSSES, Huber
from vfl.errors import OutputError, SpecificationError
from vfl.measures import Inference

if TYPE_CHECKING:
    from pathlib import Path

N = 300
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": RNG.uniform(18, 90, N),
        "age2": RNG.uniform(0, 1, N),
        "region=x": RNG.uniform(-3, 1, N),
        "region": RNG.choice(["n", "s", "w"], N),
        "bins": RNG.uniform(0, 10, N),
        "y": RNG.integers(0, 2, N),
    }
)
COLUMNS = {"region": vfl.Categorical(("n", "s", "w")), "bins": vfl.columns.Binned((5,))}
BOUNDS = {"age": (18, 90), "age2": (0, 1), "region=x": (-3, 1)}


def trained(**options: Any) -> vfl.Result:
    """Return a result with a made-up covariance, half of it noise of privacy."""
    given: dict[str, Any] = {
        "partition": vfl.FeaturePartition(
            {"bank": ("age", "age2"), "telco": ("region=x", "region", "bins")}, label=("telco", "y")
        ),
        "columns": COLUMNS,
        "bounds": BOUNDS,
        "privacy": None,
        "solver": vfl.SkGD(passes=5),
    }
    result = vfl.train(vfl.Job(**given | options), FRAME, at=vfl.InProcess(num_cpus=1))
    names, values = zip(*result.original.items(), strict=True)
    root = np.random.default_rng(1).normal(size=(len(names), 2 * len(names))) / 10
    V = root @ root.T
    inference = Inference(names, np.array(values), V, V / 2, notes=("a note",))
    return result.with_inference(inference)


@pytest.fixture(scope="module")
def result() -> vfl.Result:
    return trained()


def weights(result: vfl.Result, **terms: float) -> Any:
    return np.array([terms.get(name, 0.0) for name in result.inference.names])


def test_rows_are_what_the_records_determine(result: vfl.Result) -> None:
    assert [row.name for row in result.summary().rows] == [
        "(intercept) + region=n + bins=(-inf, 5)",
        "age",
        "age2",
        "region=x",
        "region=s - region=n",
        "region=w - region=n",
        "bins=[5, inf) - bins=(-inf, 5)",
    ]


def test_a_row_is_estimate_error_z_p_and_interval(result: vfl.Result) -> None:
    row = next(row for row in result.summary(level=0.9).rows if row.name == "region=s - region=n")
    found, r = result.inference, weights(result, **{"region=s": 1.0, "region=n": -1.0})
    b, se = r @ found.estimates, np.sqrt(r @ found.covariance @ r)
    assert row.coefficient == pytest.approx(b)
    assert row.standard_error == pytest.approx(se)
    assert row.z == pytest.approx(b / se)
    assert row.p_value == pytest.approx(2 * norm.sf(abs(b / se)))
    assert (row.low, row.high) == pytest.approx(norm.interval(0.9, b, se))
    assert row.privacy == pytest.approx(0.5)


def test_covariance_and_intervals_follow_the_rows(result: vfl.Result) -> None:
    summary = result.summary()
    assert list(result.confint()) == [row.name for row in summary.rows]
    assert np.sqrt(np.diag(result.cov_params())) == pytest.approx([row.standard_error for row in summary.rows])


@pytest.mark.parametrize(
    ("columns", "intercept"), [({"missing": "indicator"}, True), ({"unknown": "zero"}, True), ({}, False)]
)
def test_a_full_set_needs_no_contrast_where_its_levels_are_determined(columns: dict[str, Any], intercept: bool) -> None:
    declared = vfl.Categorical(("n", "s", "w"), **columns)
    partition = vfl.FeaturePartition({"bank": ("age", "region")}, label=("bank", "y"))
    result = trained(partition=partition, columns={"region": declared}, bounds={"age": (18, 90)}, intercept=intercept)
    names = [row.name for row in result.summary().rows]
    if columns.get("missing"):  # a missing cell is one more level
        assert "region=(missing) - region=n" in names
    else:
        assert "region=n" in names


@pytest.mark.parametrize(
    ("hypothesis", "terms"),
    [
        ("age = 0", [({"age": 1}, 0)]),
        ("age = 0.02", [({"age": 1}, 0.02)]),
        ("2*age - 1e-1 * age2 = region=x + 1.5", [({"age": 2, "age2": -0.1, "region=x": -1}, 1.5)]),
        ("age = 0, age2 = 0", [({"age": 1}, 0), ({"age2": 1}, 0)]),
        ("age=age2=0", [({"age": 1, "age2": -1}, 0), ({"age2": 1}, 0)]),
        ("region=s = region=n", [({"region=s": 1, "region=n": -1}, 0)]),
        ("bins=[5, inf) - bins=(-inf, 5) = 0", [({"bins=[5, inf)": 1, "bins=(-inf, 5)": -1}, 0)]),
        ({"age": 1, "age2": -3}, [({"age": 1, "age2": -3}, 0)]),
        (["age = 0", {"age2": 1}], [({"age": 1}, 0), ({"age2": 1}, 0)]),
    ],
)
def test_hypotheses_are_read(result: vfl.Result, hypothesis: Any, terms: Any) -> None:
    R = np.array([weights(result, **own) for own, _ in terms])
    away = R @ result.inference.estimates - [value for _, value in terms]
    statistic = away @ np.linalg.inv(R @ result.inference.covariance @ R.T) @ away
    found = result.test(hypothesis)
    assert found.df == len(terms)
    assert found.statistic == pytest.approx(statistic)
    assert found.p_value == pytest.approx(chi2.sf(statistic, len(terms)))


def test_every_row_of_the_summary_can_be_tested(result: vfl.Result) -> None:
    for row in result.summary().rows:
        assert result.test(f"{row.name} = 0").p_value == pytest.approx(row.p_value)


@pytest.mark.parametrize(
    ("hypothesis", "said"),
    [
        ("region=n = 0", "region=s = region=n"),
        ("(intercept) = 0", "difference"),
        ("Age = 0", "did you mean 'age'"),
        ("ages = 0", "did you mean 'age'"),
        ("age", "'=' is missing"),
        ("age = 0, age = 1", "repeat or contradict"),
        ("age = age", "cancels"),
        ("age = 0 0", "sign"),
        ("", "missing"),
        ({"nobody": 1}, "no coefficient 'nobody'"),
        ({"age": float("nan")}, "finite"),
        ([], "hypothesis is text"),
        (7, "hypothesis is text"),
    ],
)
def test_hypotheses_without_an_answer_are_refused(result: vfl.Result, hypothesis: Any, said: str) -> None:
    with pytest.raises(SpecificationError, match=said.replace("(", r"\(")):
        result.test(hypothesis)


@pytest.mark.parametrize("level", [0, 1, 95, float("nan"), "high"])
def test_levels_out_of_range_are_refused(result: vfl.Result, level: Any) -> None:
    with pytest.raises(SpecificationError, match="level"):
        result.confint(level)


def test_intervals_of_the_mean_are_those_of_the_margin(result: vfl.Result) -> None:
    new = FRAME.head(20)
    found, by_name = result.inference, {"(intercept)": np.ones(len(new))}
    by_name |= {c: new[c].to_numpy() for c in BOUNDS}
    by_name |= {f"region={c}": (new["region"] == c).to_numpy(float) for c in "nsw"}
    by_name |= {
        "bins=(-inf, 5)": (new["bins"] < 5).to_numpy(float),
        "bins=[5, inf)": (new["bins"] >= 5).to_numpy(float),
    }
    X = np.column_stack([by_name[name] for name in found.names])
    margins, errors = X @ found.estimates, np.sqrt(np.einsum("ij,jk,ik->i", X, found.covariance, X))
    for k, side in enumerate((-1, 1)):
        ends = 1 / (1 + np.exp(-(margins + side * norm.ppf(0.95) * errors)))
        assert result.mean_confint(new, level=0.9)[:, k] == pytest.approx(ends, abs=1e-9)


def test_the_table_shows_all_rows_and_what_is_assumed(result: vfl.Result) -> None:
    summary = result.summary()
    said = str(summary)
    assert all(row.name in said for row in summary.rows)
    assert "a note" in said
    assert "0.025" in said
    frame = summary.to_frame()
    assert frame.loc["age", "standard_error"] == pytest.approx(summary.rows[1].standard_error)
    assert "age2" in summary._repr_html_()


def test_odd_names_neither_break_the_table_nor_stay_untested(result: vfl.Result) -> None:
    names = ("a\x1b[31m", "3", " x = 0 ", "(intercept)")
    odd = Inference(names, np.arange(4.0), np.eye(4), np.zeros((4, 4)))
    partition = vfl.FeaturePartition({"bank": names[:3]}, label=("bank", "y"))
    frame = pd.DataFrame(dict.fromkeys(names[:3], FRAME["age2"]) | {"y": FRAME["y"]})
    trained = vfl.train(vfl.Job(partition=partition, privacy=None, scaling="none"), frame)
    result = dataclasses.replace(trained, inference=odd)
    assert "\x1b" not in str(result.summary())
    assert result.test({"3": 1}).statistic == pytest.approx(1.0)
    assert result.test("(intercept) = 3").statistic == pytest.approx(0.0)


def test_a_run_without_errors_names_the_option(result: vfl.Result) -> None:
    without = dataclasses.replace(result, inference=None)
    for call in (without.summary, without.confint, without.cov_params, lambda: without.test("age = 0")):
        with pytest.raises(SpecificationError, match="intervals=True"):
            call()


def test_the_command_shows_and_tests(result: vfl.Result, tmp_path: Path) -> None:
    run, call = result.save(tmp_path / "run"), CliRunner()
    shown = call.invoke(cli.vfl, ["show", str(run), "--test", "age = 0"])
    assert str(result.summary()) in shown.output
    assert str(result.test("age = 0")) in shown.output
    told = json.loads(call.invoke(cli.vfl, ["show", str(run), "--level", "0.9", "--test", "age = 0", "--json"]).output)
    assert told["rows"][1]["high"] == pytest.approx(result.confint(0.9)["age"][1])
    assert told["tests"][0]["df"] == 1


def test_report_and_card_draw_every_interval(result: vfl.Result, tmp_path: Path) -> None:
    run = result.save(tmp_path / "run")
    page = write_run(run, tmp_path / "page.html")[0].read_text(encoding="utf-8")
    card = write_card(run, tmp_path / "card.md")[0].read_text(encoding="utf-8")
    drawn = page.split("</svg>")
    for row in result.summary().rows:
        assert f"{row.standard_error:.3g}" in page
        if not row.name.startswith("("):
            assert f"{row.standard_error:.3g}" in card
            if "region=" in row.name and " - " in row.name:  # a difference of levels is drawn as the table shows it
                assert any(f"{row.name}: {row.coefficient:.3g}".replace(": -", ": −") in part for part in drawn)
            assert any(f"{row.name}: " in part for part in drawn)
    assert "noise in the coefficient's last update" not in page


@pytest.mark.filterwarnings("ignore::vfl.PrivacyWarning")
def test_importance_covers_the_error_of_coefficients() -> None:
    """Without a spread's noise the ends are |w| ± z·se times the spread, z of level 0.975; levels have no error."""
    job = vfl.Job(
        partition=vfl.FeaturePartition({"bank": ("age", "region")}, label=("bank", "y")),
        columns={"region": COLUMNS["region"]},
        bounds={"age": BOUNDS["age"]},
        privacy=vfl.Privacy(epsilon=1e5, delta=1e-6, noise=vfl.SeededNoise(1)),
        solver=vfl.SkGD(passes=2),
    )
    plain = vfl.train(job, FRAME, at=vfl.InProcess(num_cpus=1))
    names, values = zip(*plain.original.items(), strict=True)
    error = abs(values[0])
    V = error**2 * np.eye(len(names))
    with_errors = dataclasses.replace(plain, inference=Inference(names, np.array(values), V, V / 2))
    before, after = ({one.feature: one for one in result.importance()} for result in (plain, with_errors))
    assert after["age"].high == pytest.approx(before["age"].value * (1 + norm.ppf(0.9875)), rel=1e-2)
    assert after["age"].low == 0.0
    assert after["region=n"] == before["region=n"]


def test_estimators_summarise_their_fit(result: vfl.Result) -> None:
    fitted = vfl.sklearn.VerticalLogisticRegression(epsilon=None, classes=(0, 1)).fit(
        FRAME[["age2"]].to_numpy(), FRAME["y"]
    )
    with pytest.raises(SpecificationError, match="intervals=True"):
        fitted.summary()
    fitted.result_ = result
    assert fitted.confint(0.9) == result.confint(0.9)
    assert str(fitted.summary()) == str(result.summary())


def classical(X: Any, y: Any, loss: str, weights: Any = 1.0) -> tuple[Any, Any]:
    """Return coefficients and their sandwich covariance, by Newton's method, in closed form."""
    θ = np.zeros(X.shape[1])
    for _ in range(50):
        v = X @ θ
        mean = {"logistic": 1 / (1 + np.exp(-v)), "poisson": np.exp(v), "squared": v}[loss]
        h = weights * {"logistic": mean * (1 - mean), "poisson": mean, "squared": np.ones_like(v)}[loss]
        H = (X * h[:, None]).T @ X
        θ += np.linalg.solve(H, X.T @ (weights * (y - mean)))
    J = (X * (weights * (y - mean))[:, None] ** 2).T @ X
    return θ, np.linalg.inv(H) @ J @ np.linalg.inv(H)


@pytest.mark.parametrize("loss", ["squared", "logistic", "poisson"])
def test_without_privacy_errors_are_the_classical_ones(loss: str) -> None:
    """Equal to HC0, which statsmodels computes with cov_type="HC0"; one-hot levels as its treatment coding."""
    rng = np.random.default_rng(3)
    y = {"squared": rng.normal(size=N), "logistic": FRAME["y"], "poisson": rng.poisson(2, N)}[loss]
    frame = FRAME.assign(y=y)
    job = vfl.Job(
        partition=vfl.FeaturePartition({"bank": ("age", "age2"), "telco": ("region",)}, label=("telco", "y")),
        columns={"region": COLUMNS["region"]},
        bounds={"age": (18, 90), "age2": (0, 1)}
        | ({} if loss == "logistic" else {"y": (-10, 30) if loss == "squared" else (0, 30)}),
        privacy=None,
        loss=loss,
        solver=vfl.SkGD(details=vfl.solvers.Details(tol=1e-13), passes=3000),
    )
    result = vfl.train(job, frame, at=vfl.InProcess(num_cpus=1)).infer(frame)
    dummies = [(frame["region"] == level).to_numpy(float) for level in "sw"]
    X = np.column_stack([np.ones(N), frame["age"], frame["age2"], *dummies])
    θ, V = classical(X, frame["y"].to_numpy(float), loss)
    assert [row.coefficient for row in result.summary().rows] == pytest.approx(θ, rel=1e-6, abs=1e-8)
    assert result.cov_params() == pytest.approx(V, rel=1e-6, abs=1e-6 * np.abs(V).min())
    assert {row.privacy for row in result.summary().rows} == {0.0}


def test_weights_count_in_classical_errors() -> None:
    weights = np.random.default_rng(4).uniform(0.5, 2, N)
    fitted = vfl.sklearn.VerticalLogisticRegression(
        epsilon=None, classes=(0, 1), intervals=True, C=np.inf, tol=1e-12, max_iter=3000
    ).fit(FRAME[["age2"]], FRAME["y"], sample_weight=weights)
    _, V = classical(np.column_stack([np.ones(N), FRAME["age2"]]), FRAME["y"].to_numpy(), "logistic", weights)
    assert [row.standard_error for row in fitted.summary().rows] == pytest.approx(np.sqrt(np.diag(V)), rel=1e-6)


def test_errors_follow_from_the_facts_of_a_loss_and_not_from_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Named(Huber):
        __slots__ = ()
        name = "named"

    monkeypatch.setitem(LOSSES, "named", Named)
    frame = FRAME.assign(y=np.random.default_rng(5).normal(size=N))
    fits = [
        vfl.train(
            vfl.Job(
                partition=vfl.FeaturePartition({"bank": ("age2",), "telco": ()}, label=("telco", "y")),
                bounds={"age2": (0, 1), "y": (-5, 5)},
                privacy=None,
                loss=loss,
            ),
            frame,
            at=vfl.InProcess(num_cpus=1),
        ).infer(frame)
        for loss in ("huber", "named")
    ]
    errors = [[row.standard_error for row in fit.summary().rows] for fit in fits]
    assert errors[0] == errors[1]


@pytest.mark.parametrize(
    "options",
    [
        {"privacy": vfl.Privacy(epsilon=1.0)},
        {"penalty": vfl.L1(0.1)},
        {"penalty": vfl.L2(0.1)},
        {"loss": "smoothed_hinge"},
        {"evaluation": vfl.Evaluation(holdout=0.2)},
    ],
)
def test_exact_errors_are_refused_where_they_would_leak_or_mislead(options: dict[str, Any]) -> None:
    with pytest.raises(SpecificationError, match="infer cannot"):
        trained(**options).infer(FRAME)


def test_altered_errors_are_found(result: vfl.Result, tmp_path: Path) -> None:
    run = result.save(tmp_path / "run")
    model = json.loads((run / "model.json").read_text(encoding="utf-8"))
    model["inference"]["covariance"][1][1] *= 0.25
    (run / "model.json").write_text(json.dumps(model), encoding="utf-8")
    assert "model" in vfl.Result.load(run).altered()
    shown = CliRunner().invoke(cli.vfl, ["show", str(run)])
    assert isinstance(shown.exception, OutputError)


def test_a_saved_result_has_the_same_summary(result: vfl.Result, tmp_path: Path) -> None:
    assert str(vfl.Result.load(result.save(tmp_path / "run")).summary()) == str(result.summary())


def test_a_table_states_covariance_condition_and_convergence() -> None:
    """The condition number is that of determined directions, on columns of unit length; a levels' null direction is none."""
    rng = np.random.default_rng(4)
    near, n = rng.uniform(-1, 1, 20_000), 20_000
    frame = pd.DataFrame({"a": near, "b": np.clip(near + 0.1 * rng.normal(size=n), -1, 1), "c": rng.uniform(-1, 1, n)})
    frame["ward"], frame["y"] = rng.choice(["n", "s"], n), (rng.random(n) < 0.5).astype(int)
    found = []
    for names in (("b", "ward"), ("a", "b", "ward")):
        job = vfl.Job(
            partition=vfl.FeaturePartition({"p": ("c",), "q": names}, label=("q", "y")),
            bounds={"*": (-1, 1)},
            columns={"ward": vfl.Categorical(("n", "s"))},
            privacy=vfl.Privacy(epsilon=8.0, delta=1e-6, noise=vfl.SeededNoise(2)),
            intervals=True,
        )
        result = vfl.train(job, frame, at=vfl.InProcess(num_cpus=1))
        facts = result.summary().facts
        assert "HC0" in facts["covariance"]
        found.append(float(facts["condition"].removeprefix("at least ").split(",")[0]))
        left = float(facts["converged"].split("at most ")[1].split("%")[0])
        assert left < 1.0 if len(names) == 2 else left > 0.5
    assert found[0] < 3.0
    exact = np.linalg.cond(np.corrcoef(frame[["a", "b", "c"]].to_numpy().T))
    assert 0.5 * exact < found[1] < 1.5 * exact


def test_a_table_names_columns_whose_coefficient_the_cap_may_move() -> None:
    """A count of mostly 0, bounded by its largest value; neither normal columns nor rare 0/1 numbers and levels are named."""
    rng, n = np.random.default_rng(6), 20_000
    count = np.where(rng.random(n) < 0.8, 0.0, np.minimum(np.ceil(rng.lognormal(0.8, 0.9, n)), 275.0))
    frame = pd.DataFrame({"x": np.clip(rng.normal(size=n), -4, 4), "count": count, "flag": rng.random(n) < 0.03})
    frame["ward"] = rng.choice(["n", "s", "t"], n, p=[0.5, 0.48, 0.02])
    frame["y"] = rng.random(n) < 1.0 / (1.0 + np.exp(2.0 - 0.5 * np.log1p(count)))
    for epsilon in (1.0, 8.0):
        job = vfl.Job(
            partition=vfl.FeaturePartition({"p": ("x", "flag"), "q": ("count", "ward")}, label=("q", "y")),
            bounds={"x": (-4, 4), "count": (0, 275), "flag": (0, 1)},
            columns={"ward": vfl.Categorical(("n", "s", "t"))},
            intervals=True,
            privacy=vfl.Privacy(epsilon=epsilon, noise=vfl.SeededNoise(2)),
        )
        notes = vfl.train(job, frame.astype({"flag": int, "y": int}), at=vfl.InProcess(num_cpus=1)).summary().notes
        (found,) = (note for note in notes if "effect is not linear" in note)
        assert "of count," in found


def test_a_table_names_the_kind_of_weights_and_where_labels_are_clamped() -> None:
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"a": rng.uniform(-1, 1, 500), "s": rng.uniform(1, 3, 500)})
    frame["y"] = frame["a"] + rng.normal(size=500)
    partition = vfl.FeaturePartition({"p": ("a",)}, label=("p", "y"), weight="s")
    bounds = {"a": (-1, 1), "y": (-2, 2), "s": (0, 3)}
    result = vfl.train(vfl.Job(partition=partition, bounds=bounds, loss="squared", privacy=None), frame)
    summary = result.infer(frame).summary()
    assert "sampling" in summary.facts["weights"]
    assert summary.facts["covariance"] == "HC0"
    assert any("[-2, 2]" in note for note in summary.notes)
