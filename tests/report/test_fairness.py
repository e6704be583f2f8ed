"""Section of the report on fairness: a chart of gaps, with bands where there is a bound, and all numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

import vfl
from tests.evaluation.test_fairness import N, job, table
from vfl.apps import cli
from vfl.apps.report import charts, write_run
from vfl.job import file as jobfile
from vfl.launch.run.result import Result

if TYPE_CHECKING:
    from pathlib import Path


def page_of(spec: vfl.Job, folder: Path) -> str:
    vfl.train(spec, table(), at="inprocess", output=folder, watch=lambda event: None)
    path, report = write_run(folder)
    assert report.ok
    return path.read_text()


@pytest.mark.parametrize("solver", [vfl.SkGD(passes=4), vfl.solvers.OutputPerturbation()])
def test_a_run_with_a_bound_draws_bands(solver: vfl.SkGD | vfl.solvers.OutputPerturbation, tmp_path: Path) -> None:
    """A sealed run's page reads findings.json, another one's the log; both show the same numbers."""
    page = page_of(job(seed=None, solver=solver, epsilon=8.0), tmp_path / "run")
    found = Result.load(tmp_path / "run").findings
    assert page.count("<h2>Fairness</h2>") == 1
    for name, estimate in found["fairness"].measures.items():
        assert name in page
        assert f"{estimate.value:+.3f}".replace("-", "−") in page
    assert "gap of the model without noise" in page
    d = found["distance"].measures["distance"].value
    assert f"at most {d:.3g} from" in page
    measures = page.split("<h2>Measures</h2>")[1].split("</section>")[0]
    assert "sex=f" not in measures
    assert "accuracy" in measures


def test_a_run_without_a_bound_says_why(tmp_path: Path) -> None:
    page = page_of(job(seed=None, intercept=True), tmp_path / "run")
    assert "gap of the model without noise" not in page
    assert "the intercept is not penalised" in page


def test_thresholds_are_listed(tmp_path: Path) -> None:
    fairness = vfl.Fairness(group="sex", bound=False, threshold_per_group=True)
    page = page_of(
        job(seed=None, evaluation=vfl.Evaluation(fairness=fairness), intercept=True, epsilon=8.0), tmp_path / "run"
    )
    assert "threshold on the score" in page
    assert "opportunity of sex=f" in page


def test_a_run_without_fairness_has_no_section(tmp_path: Path) -> None:
    partition = job().partition.without_groups()
    assert "<h2>Fairness</h2>" not in page_of(
        job(seed=None, evaluation=vfl.Evaluation(holdout=0.3), partition=partition, columns={}), tmp_path / "run"
    )


def test_the_chart_is_drawn_in_scale() -> None:
    rows = [
        charts.Row("<b>", -0.1, "−0.100", (-0.15, -0.05), (-0.3, 0.2)),
        charts.Row("m", 0.1, "+0.100", (0.08, 0.12), None, 1),
    ]
    for width in (charts.WIDE, charts.NARROW):
        drawn = ET.fromstring(str(charts.rows(width, rows, "gap")))  # noqa: S314 - our own text
        (band,) = drawn.iter("rect")
        first, second = drawn.iter("circle")
        left, wide = float(band.attrib["x"]), float(band.attrib["width"])
        assert (float(first.attrib["cx"]) - left) / wide == pytest.approx(0.4, abs=1e-3)
        assert (float(second.attrib["cx"]) - left) / wide == pytest.approx(0.8, abs=1e-3)
        assert "<b>" not in str(charts.rows(width, rows, "gap"))


def test_the_commands_say_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """plan, run, evaluate and verify, from a job file with a table [evaluation.fairness] and [partition.groups]."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    spec = job(seed=None, solver=vfl.solvers.OutputPerturbation())
    data = table()
    for party in spec.partition.parties:
        columns = spec.partition.wanted(party)
        lines = [",".join(columns), *(",".join(str(data[c][i]) for c in columns) for i in range(N))]
        (tmp_path / f"{party}.csv").write_text("\n".join(lines) + "\n")
    jobfile.write(spec, tmp_path / "job.toml")
    text = (tmp_path / "job.toml").read_text()
    assert '[evaluation.fairness]\ngroup = "sex"' in text
    assert "[partition.groups]" in text
    files = "".join(f'{party} = "{party}.csv"\n' for party in spec.partition.parties)
    (tmp_path / "job.toml").write_text(f"{text}\n[data]\n{files}")
    run = CliRunner().invoke

    def said(*arguments: str) -> str:
        done = run(cli.vfl, list(arguments))
        assert done.exit_code == 0, done.output
        return done.output

    assert "fairness: by sex (2 groups)" in said("plan", "job.toml", "-n", str(N))
    assert "\n  opportunity of sex=f " in said("run", "job.toml", "--at", "inprocess", "--output", "out")
    assert "without noise: between" in said("show", "out")
    assert "ok    findings" in said("verify", "out")
    refused = run(cli.vfl, ["plan", "job.toml", "-n", str(N), "--set", "evaluation.fairness.threshold_per_group=true"])
    assert "set bound to false" in str(refused.exception)
