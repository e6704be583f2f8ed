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
from vfl import cli
from vfl.launch.run.wide_bounds import wide_bounds
from vfl.report import write_run

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
    return vfl.train(job_of(), table(), engine="inprocess")


def test_wide_bounds_are_named_and_rare_categories_are_not(result: vfl.Result) -> None:
    (said,) = wide_bounds(result)
    assert said.startswith("the bounds of 'income' are at least ")
    assert "vfl.private_bounds" in said


def test_fitting_bounds_and_noise_that_hides_the_spread_say_nothing() -> None:
    fitting = job_of(bounds=BOUNDS | {"income": (0.0, 10.0)})
    assert wide_bounds(vfl.train(fitting, table(), engine="inprocess")) == ()
    faint = job_of(privacy=vfl.Privacy(epsilon=0.01, noise=vfl.SeededNoise(0)))
    assert wide_bounds(vfl.train(faint, table(), engine="inprocess")) == ()


def test_runs_without_bought_moments_or_with_others_say_nothing(result: vfl.Result) -> None:
    assert wide_bounds(replace(result, moments=())) == ()
    assert wide_bounds(replace(result, moments=tuple(2.0 * u for u in result.moments))) == ()


def test_the_screen_and_the_report_say_it(result: vfl.Result, tmp_path: Path) -> None:
    page = write_run(result.save(tmp_path / "run"))[0].read_text(encoding="utf-8")
    assert "Wide bounds" in page
    assert "The bounds of 'income' are at least" in page.replace("&#x27;", "'").replace("&#39;", "'")
    table().to_csv(tmp_path / "table.csv", index=False)
    (tmp_path / "job.toml").write_text(job_of().to_toml() + '\n[simulation]\ntable = "table.csv"\n')
    arguments = [
        "run",
        str(tmp_path / "job.toml"),
        "--engine",
        "inprocess",
        "--json",
        "--output",
        str(tmp_path / "out"),
    ]
    done = CliRunner().invoke(cli.vfl, arguments)
    assert done.exit_code == 0, done.output
    (said,) = [w for w in json.loads(done.stdout)["warnings"] if "income" in w]
    assert "times as wide as the released spread" in said
