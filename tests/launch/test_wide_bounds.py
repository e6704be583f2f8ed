"""Sentences about bounds that are far wider than the released spread of their column."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import vfl
from vfl.apps import cli
from vfl.apps.report import write_run
from vfl.launch.run.wide_bounds import wide_bounds

if TYPE_CHECKING:
    from pathlib import Path

N = 4000
PARTITION = vfl.FeaturePartition({"bank": ["income", "age"], "telco": ["town"]}, label=("telco", "y"))
BOUNDS = {"income": (0.0, 1e4), "age": (20.0, 60.0)}
TOWNS = ("a", "b", "c")


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    town = rng.choice(TOWNS, N, p=[0.996, 0.002, 0.002])  # rare categories have a small spread by nature
    X = {"income": 5.0 + rng.normal(size=N), "age": rng.uniform(20, 60, N), "town": town}
    return pd.DataFrame(X).assign(y=(rng.random(N) < 0.5).astype(int))


def job_of(**changes: Any) -> vfl.Job:
    privacy = vfl.Privacy(epsilon=50.0, noise=vfl.SeededNoise(0))
    options: dict[str, Any] = {"partition": PARTITION, "privacy": privacy, "bounds": BOUNDS}
    options |= {"columns": {"town": vfl.Categorical(TOWNS)}, "solver": vfl.SkGD(passes=3)}
    return vfl.Job(**{**options, **changes})


@pytest.fixture(scope="module")
def result() -> vfl.Result:
    return vfl.train(job_of(), table(), at="inprocess")


def test_wide_bounds_are_named_and_rare_categories_are_not(result: vfl.Result) -> None:
    (said,) = wide_bounds(result)
    assert said.startswith("the bounds of 'income' are at least ")
    assert "vfl.releases.private_bounds" in said


def test_fitting_bounds_and_noise_that_hides_the_spread_say_nothing() -> None:
    fitting = job_of(bounds=BOUNDS | {"income": (0.0, 10.0)})
    assert wide_bounds(vfl.train(fitting, table(), at="inprocess")) == ()
    faint = job_of(privacy=vfl.Privacy(epsilon=0.01, noise=vfl.SeededNoise(0)))
    assert wide_bounds(vfl.train(faint, table(), at="inprocess")) == ()


@pytest.mark.parametrize(("bounds", "side"), [((100.0, 200.0), "below"), ((-9.0, 1.0), "above")])
def test_bounds_beside_the_values_are_named(bounds: tuple[float, float], side: str) -> None:
    """Months from 1 to 12 under bounds [100, 200] are all clamped to 100."""
    months = table().assign(income=np.random.default_rng(1).integers(1, 13, N).astype(float))
    job = job_of(bounds=BOUNDS | {"income": bounds}, privacy=vfl.Privacy(epsilon=4.0, noise=vfl.SeededNoise(0)))
    (said,) = (each for each in wide_bounds(vfl.train(job, months, at="inprocess")) if "'income'" in each)
    assert f"or {side} it, where they are clamped" in said


def test_runs_without_released_moments_or_with_others_say_nothing(result: vfl.Result) -> None:
    assert wide_bounds(replace(result, moments=())) == ()
    assert wide_bounds(replace(result, moments=tuple(2.0 * u for u in result.moments))) == ()


# The label.


def label_job(half: float, **changes: Any) -> vfl.Job:
    partition = vfl.FeaturePartition({"bank": ["u"], "telco": ["v"]}, label=("telco", "y"))
    privacy = vfl.Privacy(epsilon=5.0, noise=vfl.SeededNoise(0))
    bounds = {"u": (-1.0, 1.0), "v": (-1.0, 1.0), "y": (-half, half)}
    options: dict[str, Any] = {"partition": partition, "loss": "squared", "privacy": privacy, "bounds": bounds}
    return vfl.Job(**{"solver": vfl.SkGD(passes=3), **options, **changes})


def numbers(rare: float = 0.0) -> pd.DataFrame:
    """Return labels of deviation 1 about, within ±4, of which a share lies far out, at 100."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame({name: rng.uniform(-1, 1, 2 * N) for name in "uv"})
    y = np.clip(table["u"] + rng.normal(0.0, 0.8, 2 * N), -4.0, 4.0)
    return table.assign(y=np.where(rng.random(2 * N) < rare, 100.0, y))


@pytest.fixture(scope="module")
def far() -> vfl.Result:
    return vfl.train(label_job(100.0), numbers(), at="inprocess")


def test_wide_bounds_of_the_label_are_named_with_the_range_of_most_labels(far: vfl.Result, tmp_path: Path) -> None:
    (said,) = wide_bounds(far)
    assert said.startswith("the bounds [-100, 100] of the label 'y' are ")
    assert "95% of the labels" in said
    assert far.labels is not None
    assert wide_bounds(vfl.Result.load(far.save(tmp_path / "run"))) == (said,)


@pytest.mark.parametrize("half", [4.0, 16.0])
def test_bounds_that_fit_the_labels_say_nothing(half: float) -> None:
    for solver in (vfl.SkGD(passes=3), vfl.solvers.GD(passes=3)):
        job = label_job(half, solver=solver, evaluation=vfl.Evaluation(holdout=0.3))
        assert wide_bounds(vfl.train(job, numbers(), at="inprocess")) == ()


def test_rare_labels_far_out_keep_the_bounds(far: vfl.Result) -> None:
    assert wide_bounds(vfl.train(label_job(100.0), numbers(rare=0.1), at="inprocess")) == ()


def test_errors_on_a_hold_out_show_wide_bounds_of_the_label() -> None:
    job = label_job(
        400.0, solver=vfl.solvers.GD(passes=1, step_size=1e-9, label_share=0.5), evaluation=vfl.Evaluation(holdout=0.5)
    )
    privacy = vfl.Privacy(epsilon=20.0, noise=vfl.SeededNoise(0))
    found = vfl.train(replace(job, privacy=privacy), numbers(), at="inprocess")
    (said,) = wide_bounds(found)
    assert "times as wide as the distances" in said
    assert wide_bounds(replace(found, findings={})) == ()
    given = replace(found, job=replace(found.job, evaluation=vfl.Evaluation(error_cap=3.0)))
    assert wide_bounds(given) == ()  # the cap of a job tells nothing of its labels


def test_bounds_that_many_labels_reach_are_named() -> None:
    def said(half: float) -> tuple[str, ...]:
        privacy = vfl.Privacy(epsilon=20.0, noise=vfl.SeededNoise(0))
        return wide_bounds(
            vfl.train(
                replace(label_job(half, evaluation=vfl.Evaluation(holdout=0.5)), privacy=privacy),
                numbers(),
                at="inprocess",
            )
        )

    (found,) = said(1.0)  # the labels have deviation 1
    assert "lie at an end of their bounds" in found
    assert not any("lie at an end of their bounds" in one for one in said(4.0))


def test_the_screen_and_the_report_say_it(result: vfl.Result, tmp_path: Path) -> None:
    page = write_run(result.save(tmp_path / "run"))[0].read_text(encoding="utf-8")
    assert "Wide bounds" in page
    assert "The bounds of 'income' are at least" in page.replace("&#x27;", "'").replace("&#39;", "'")
    table().to_csv(tmp_path / "table.csv", index=False)
    (tmp_path / "job.toml").write_text(job_of().to_toml() + '\n[simulation]\ntable = "table.csv"\n')
    arguments = [
        "run",
        str(tmp_path / "job.toml"),
        "--at",
        "inprocess",
        "--json",
        "--output",
        str(tmp_path / "out"),
    ]
    done = CliRunner().invoke(cli.vfl, arguments)
    assert done.exit_code == 0, done.output
    (said,) = [w for w in json.loads(done.stdout)["warnings"] if "income" in w]
    assert "as the released spread" in said
