"""The command line: its output, the files that it leaves, and its exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from sklearn.metrics import roc_auc_score

import vfl
from vfl import examples
from vfl.apps import cli
from vfl.errors import OutputError, PartyLost
from vfl.job import file as jobfile
from vfl.launch.run.result import Result
from vfl.planning import plan as make_plan
from vfl.privacy.ledger import SqliteLedger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said
    from vfl.job.site import Site

N = 80
JOB = """
format = 1
name = "credit"
classes = ["no", "yes"]
evaluation.holdout = 0.25

[partition]
parties = { bank = ["income", "age"], telco = ["calls"] }
label = ["bank", "default"]

[bounds]
income = [0, 100]
age = [18, 100]
calls = [0, 500]

[penalty]
kind = "l2"
strength = 1e-2

[privacy]
epsilon = 2.0
delta = 1e-5

[solver]
kind = "SkGD"
passes = 3

[simulation]
table = "all.csv"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a job file and its table, and run commands from it."""
    rng = np.random.default_rng(5)
    income, age, calls = rng.uniform(0, 100, N), rng.uniform(18, 100, N), rng.integers(0, 500, N)
    default = np.where(income - age + rng.normal(scale=9, size=N) > -20, "yes", "no")
    table = pa.table({"income": income, "age": age, "calls": calls, "default": default})
    pacsv.write_csv(table, tmp_path / "all.csv")
    pacsv.write_csv(table.select(["income", "age"]), tmp_path / "bank.csv")
    pacsv.write_csv(table.select(["calls"]), tmp_path / "telco.csv")
    (tmp_path / "job.toml").write_text(JOB, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(call: Callable[..., Said], *options: str) -> dict[str, Any]:
    said = call("run", "job.toml", "--at", "inprocess", "--json", *options)
    assert said.code == 0, said.err
    summary: dict[str, Any] = json.loads(said.out)
    return summary


class TestRun:
    def test_a_run_shows_its_privacy_and_leaves_a_model(self, folder: Path, call: Callable[..., Said]) -> None:
        said = call("run", "job.toml", "--at", "inprocess", "--output", "out")
        assert said.code == 0, said.err
        certificate = vfl.Certificate.load(folder / "out" / "certificate.json")
        assert certificate.private
        assert 1.99 < certificate.epsilon <= 2.0
        assert f"(ε = {certificate.epsilon:.4g}, δ = 1e-05)-differentially private for every record" in said.out
        assert f"held out: {Result.load(folder / 'out').findings['held out']}" in said.out
        assert "(with noise, charged" in said.out
        assert "model and certificate: out" in said.out
        assert "plan of job 'credit'" in said.err  # progress is written to standard error
        assert "ε 2.000 of 2" in said.err
        assert {"model.json", "certificate.json", "job.toml"} <= {path.name for path in (folder / "out").iterdir()}

    def test_the_first_command_ends_with_the_quality_of_its_model(
        self, folder: Path, call: Callable[..., Said]
    ) -> None:
        said = call("run", "adult", "--output", "out")
        assert said.code == 0, said.err
        result, table = Result.load(folder / "out"), examples.table("adult")
        assert roc_auc_score(table["over_50k"].to_numpy(), result.decision_function(table)) > 0.905
        measure = result.findings["held out"].measures["auc"]
        assert said.out.rstrip().splitlines()[-1].startswith(f"AUC {measure.value:.3f} {measure.spread} on ")

    def test_no_interval_of_the_last_line_leaves_the_range_of_its_measure(
        self, folder: Path, call: Callable[..., Said]
    ) -> None:
        """130 held-out records: the half-width of the interval exceeds the distance of the AUC from 1."""
        said = call("run", "breast_cancer", "--at", "inprocess", "--set", "privacy.epsilon=4", "--output", "out")
        assert said.code == 0, said.err
        ends = re.fullmatch(r"AUC .*\[(\S+), (\S+)\] on 1\d\d held-out .*", said.out.rstrip().splitlines()[-1])
        assert ends is not None
        assert 0.0 <= float(ends[1]) < float(ends[2]) <= 1.0

    def test_on_ray(self, folder: Path, call: Callable[..., Said], local_ray: Any) -> None:
        seeded = ("--set", "privacy.noise.seed=1", "--json")
        said = call("run", "job.toml", "--output", "ray", *seeded)
        assert said.code == 0, said.err
        here = trained(call, "--output", "here", *seeded[:2])
        there = json.loads(said.out)
        assert there["coef"] == here["coef"]
        assert there["intercept"] == here["intercept"]

    def test_json_is_the_only_output(self, folder: Path, call_apart: Callable[..., Said]) -> None:
        said = call_apart("run", "job.toml", "--at", "inprocess", "--json", "--output", "out")
        assert said.err == ""
        summary = json.loads(said.out)
        result = Result.load(folder / "out")
        assert said.out.count("\n") == 1
        assert summary["output"] == "out"
        assert summary["private"] is True
        assert summary["epsilon"] == result.certificate.epsilon
        assert summary["coef"] == dict(zip(["income", "age", "calls"], result.coef_.tolist(), strict=True))
        assert summary["intercept"] == result.intercept_
        found = summary["findings"]["held out"]
        assert found == json.loads(json.dumps(result.findings["held out"].shown()))
        assert found["n_records"] == int(result.job.split.held_out(N).sum())
        assert 0 <= result.findings["held out"].measures["accuracy"].value <= 1

    def test_the_hold_out_is_not_trained_on(self, folder: Path, call: Callable[..., Said]) -> None:
        """Training from Python on the other records alone gives the same model."""
        summary = trained(call, "--set", "privacy.noise.seed=1", "--output", "out")
        job, _ = jobfile.read("job.toml", ["privacy.noise.seed=1"])
        rest = pacsv.read_csv("all.csv").filter(~job.split.held_out(N))
        result = vfl.train(replace(job, evaluation=None), rest, at="inprocess")
        assert summary["coef"] == dict(zip(result.feature_names, result.coef_.tolist(), strict=True))

    def test_a_run_without_privacy_is_labelled_everywhere(self, folder: Path, call: Callable[..., Said]) -> None:
        said = call("run", "job.toml", "--at", "inprocess", "--set", "privacy=none", "--output", "out")
        assert "NOT PRIVATE: trained without noise" in said.out
        assert "NONE: the model is not" in said.err
        summary = trained(call, "--set", "privacy=none")
        assert summary["private"] is False
        assert summary["epsilon"] is None
        assert summary["flags"] == ["trained with privacy=None: the model is not differentially private"]
        assert "NOT PRIVATE" in str(Result.load(folder / "out").certificate)

    def test_seeded_noise_is_flagged(self, folder: Path, call: Callable[..., Said]) -> None:
        said = call("run", "job.toml", "--at", "inprocess", "--set", "privacy.noise.seed=1", "--output", "out")
        assert "NOT PRIVATE as run: seeded noise" in said.err
        assert "NOT PRIVATE (the accounting alone would give" in said.out
        assert vfl.Certificate.load(folder / "out" / "certificate.json").private is False

    def test_without_output_a_new_folder_is_named(self, folder: Path, call: Callable[..., Said]) -> None:
        summary = trained(call)
        assert summary["output"].startswith("runs/credit-2")
        assert (folder / summary["output"] / "model.json").exists()

    def test_a_non_empty_output_is_refused(self, folder: Path, call: Callable[..., Said]) -> None:
        (folder / "out").mkdir()
        (folder / "out" / "notes.txt").write_text("mine")
        said = call("run", "job.toml", "--at", "inprocess", "--output", "out")
        assert said.code == OutputError.exit_code == 6
        assert re.search("'out' is not empty: name a new one", said.err)
        assert [path.name for path in (folder / "out").iterdir()] == ["notes.txt"]

    def test_an_output_that_cannot_be_a_folder_is_refused(self, folder: Path, call: Callable[..., Said]) -> None:
        said = call("run", "job.toml", "--at", "inprocess", "--output", "all.csv")
        assert said.code == 6
        assert said.err.startswith("error: cannot write to 'all.csv'")

    def test_sources_of_each_party(self, folder: Path, call: Callable[..., Said]) -> None:
        """[data] instead of [simulation]: paths are relative to the job file, wherever the command runs."""
        text = JOB[: JOB.index("[simulation]")] + '[data]\nbank = "all.csv"\ntelco = "telco.csv"\n'
        (folder / "sub").mkdir()
        (folder / "job.toml").write_text(text, encoding="utf-8")
        os.chdir(folder / "sub")
        said = call("run", "../job.toml", "--at", "inprocess", "--json", "--output", "out")
        assert said.code == 0, said.err
        assert json.loads(said.out)["findings"]["held out"]["n_records"] > 0


class TestExitCodes:
    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (("run", "none.toml"), 2, "there is no job file 'none.toml'"),
            (("run", "breast_cancr"), 2, "no bundled example of that name (did you mean 'breast_cancer'?)"),
            (("run", "job.toml", "--set", "privacy.epsilon=0"), 2, "epsilon must be positive and finite, not 0"),
            (("run", "job.toml", "--set", "privacy"), 2, "--set takes key=value"),
            (("run", "job.toml", "--set", "simulation.table=none.csv"), 3, "file '"),
            (("run", "job.toml", "--set", 'classes=["a", "b"]'), 3, "not one of the two declared classes"),
            (("run", "job.toml", "--set", "dataset=credit"), 2, "names data set 'credit' but no ledger"),
            (("run", "job.toml", "--output", "all.csv"), 6, "cannot write to 'all.csv'"),
            (
                ("predict", "nowhere", "--data", "all.csv"),
                6,
                "there is no folder 'nowhere': name the one that a run left",
            ),
            (("resume", "nowhere"), 6, "there is no folder 'nowhere': name the one that a run left"),
            (("plan", "none.toml"), 2, "there is no job file 'none.toml'"),
        ],
    )
    def test_a_deliberate_error_is_one_line(
        self, folder: Path, call: Callable[..., Said], arguments: tuple[str, ...], code: int, said: str
    ) -> None:
        options = ("--at", "inprocess", "--json") if arguments[0] == "run" else ()
        answer = call(*arguments, *options)
        assert answer.code == code
        assert said in answer.err
        assert answer.err.startswith("error: ")
        assert answer.err.count("\n") == 1
        assert answer.out == ""

    @pytest.mark.parametrize(
        "arguments", [("fly",), ("run",), ("run", "job.toml", "--engine", "dask"), ("plan", "job.toml", "-n", "0")]
    )
    def test_a_wrong_call(self, folder: Path, call: Callable[..., Said], arguments: tuple[str, ...]) -> None:
        answer = call(*arguments)
        assert answer.code == 2
        assert "Usage: vfl" in answer.err

    def test_a_spent_budget(self, folder: Path, call: Callable[..., Said]) -> None:
        SqliteLedger(folder / "ledger.db").set_cap("credit-2026", epsilon=2.5, delta=1e-5)
        ledger = ("--set", "dataset=credit-2026", "--set", "ledger.path=ledger.db")
        trained(call, *ledger, "--output", "first")
        said = call("run", "job.toml", "--at", "inprocess", "--json", *ledger, "--output", "second")
        assert said.code == 4
        assert "credit-2026" in said.err
        assert not (folder / "second" / "model.json").exists()

    def test_the_ledger_of_an_example_starts_here(self, folder: Path, call: Callable[..., Said]) -> None:
        """The examples' own folder is that of the installed package."""
        SqliteLedger(folder / "ledger.db").set_cap("cancer", epsilon=0.1, delta=1e-5)
        said = call("run", "breast_cancer", "--set", "dataset=cancer", "--set", "ledger.path=ledger.db")
        assert (said.code, "raise the cap with: vfl ledger cap" in said.err) == (4, True)

    def test_a_lost_party(self, folder: Path, call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
        def lose(*args: Any, **options: Any) -> None:
            raise PartyLost("party 'telco' died")

        monkeypatch.setattr("vfl.launch.sites.inprocess.run", lose)
        said = call("run", "job.toml", "--at", "inprocess")
        told = "nothing was charged and no run is kept: once the party is back, run the job again"
        assert (said.code, said.err.splitlines()[-2:]) == (5, ["error: party 'telco' died", told])
        assert not list((folder / "runs").iterdir())

    def test_ctrl_c(self, folder: Path, call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(*args: Any, **options: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("vfl.launch.sites.inprocess.run", interrupt)
        told = "interrupted; the run keeps its releases; continue with: vfl resume out\n"
        for words in (("run", "job.toml", "--at", "inprocess", "--output", "out"), ("resume", "out")):
            said = call(*words)
            assert (said.code, said.err) == (130, told)
        monkeypatch.setattr("vfl.planning.plan", interrupt)
        said = call("plan", "job.toml")
        assert (said.code, said.err.split()) == (130, ["interrupted"])

    def test_a_run_on_ray_continues_at_another_address(
        self, folder: Path, call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A head that was restarted may have another address."""
        asked: list[str | None] = []

        def interrupt(*_: Any, site: Site, **__: Any) -> None:
            asked.append(getattr(site, "address", None))
            raise KeyboardInterrupt

        monkeypatch.setattr("vfl.launch.sites.ray.run", interrupt)
        monkeypatch.setattr("vfl.launch.sites.inprocess.run", interrupt)
        for words in (("run", "job.toml", "--at", "10.0.0.1:6379", "--output", "out"), ("resume", "out")):
            assert call(*words).code == 130
        assert call("resume", "out", "--at", "10.0.0.2:6379").code == 130
        assert asked == ["10.0.0.1:6379", "10.0.0.1:6379", "10.0.0.2:6379"]
        assert call("run", "job.toml", "--at", "inprocess", "--output", "here").code == 130
        refused = call("resume", "here", "--at", "10.0.0.2:6379")
        assert (refused.code, "began in one process" in refused.err) == (2, True)


class TestPlan:
    def test_output_agrees_with_python(self, folder: Path, call: Callable[..., Said]) -> None:
        said = call("plan", "job.toml", "-n", "30000")
        job, _ = jobfile.read("job.toml")
        assert (said.code, said.err) == (0, "")
        assert said.out.strip() == str(make_plan(job, 30_000))

    def test_explain_shows_formulas(self, folder: Path, call: Callable[..., Said]) -> None:
        said = call("plan", "job.toml", "-n", "30000", "--explain")
        assert said.out.startswith(make_plan(jobfile.read("job.toml")[0], 30_000).explain())
        assert "  minimise   F(w) = " in said.out
        assert f"  digest     {jobfile.read('job.toml')[0].digest}, by which owners approve the job\n" in said.out

    def test_json(self, folder: Path, call: Callable[..., Said]) -> None:
        plan = json.loads(call("plan", "job.toml", "-n", "500", "--json").out)
        planned = make_plan(jobfile.read("job.toml")[0], 500)
        assert plan["n_records"] + plan["held_out"] == 500
        assert plan["epsilon"] == planned.epsilon <= 2.0
        assert plan["delta"] == 1e-5
        assert plan["digest"] == planned.job.digest
        assert sum(release["count"] for release in plan["releases"]) == sum(count for _, count in planned.releases)
        assert {"type", "sensitivity", "sigma", "adjacency", "dimension", "count"} <= plan["releases"][0].keys()

    def test_records_of_the_simulated_table(self, folder: Path, call: Callable[..., Said]) -> None:
        plan = json.loads(call("plan", "job.toml", "--json").out)
        held_out = jobfile.read("job.toml")[0].split.held_out(N).sum()
        assert (plan["n_records"], plan["held_out"]) == (N - held_out, held_out)
        assert plan["asks"]["held out"].startswith(f"{held_out} records held out; noise of the accuracy ")

    def test_no_party_data_are_read(self, folder: Path, call: Callable[..., Said]) -> None:
        text = JOB[: JOB.index("[simulation]")] + '[data]\nbank = "none.csv"\ntelco = "none.csv"\n'
        (folder / "job.toml").write_text(text, encoding="utf-8")
        assert call("plan", "job.toml", "-n", "10").code == 0
        said = call("plan", "job.toml")
        assert said.code == 2
        assert "--records N" in said.err

    def test_a_weak_delta_is_warned_of(self, folder: Path, call: Callable[..., Said]) -> None:
        """Plan and run warn in words and in JSON, with the remedy."""
        loose = ("--set", "privacy.delta=0.02")
        said = call("plan", "job.toml", *loose)
        warning = (
            "δ = 0.02 is not below 1/n = 0.0125: so weak a guarantee lets one record, drawn at random, be published"
        )
        assert re.search(rf"warning +{re.escape(warning)};.*1/n² = 0\.000156", said.out)
        assert json.loads(call("plan", "job.toml", "--json", *loose).out)["warnings"][0].startswith(warning)
        assert trained(call, *loose, "--output", "loose")["warnings"][0].startswith(warning)
        ran = call("run", "job.toml", "--at", "inprocess", *loose)
        assert f"  warning    {warning}" in ran.err
        assert "warning" not in call("plan", "job.toml", "--set", "privacy.delta=0.0124").out
        assert trained(call, "--output", "usual")["warnings"] == []
        assert trained(call, "--set", "privacy=none", "--output", "none")["warnings"] == []

    def test_without_privacy(self, folder: Path, call: Callable[..., Said]) -> None:
        plan = json.loads(call("plan", "job.toml", "--json", "--set", "privacy=none").out)
        assert (plan["epsilon"], plan["delta"], plan["releases"]) == (None, None, [])

    def test_messages_are_not_counted_twice(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        planned, counted = make_plan(jobfile.read("job.toml")[0], N), []
        count = type(planned.solver).messages
        monkeypatch.setattr(
            type(planned.solver), "messages", lambda self, problem: counted.append(1) or count(self, problem)
        )
        assert "messages" in str(planned)
        assert planned.seconds > planned.messages * 1e-4 + sum(count for _, count in planned.releases) * 1e-4
        assert planned.n_bytes > 0
        assert len(counted) == 1


class TestEvaluate:
    def test_released_measures_are_printed_again(self, folder: Path, call: Callable[..., Said]) -> None:
        summary = trained(call, "--output", "out")
        assert json.loads(call("show", "out", "--json").out)["measures"] == summary["findings"]
        result = Result.load(folder / "out")
        said = call("show", "out").out
        assert f"held out: {result.findings['held out']}\n" in said
        assert all(name in said for name in result.original)
        whole = (folder / "out" / "findings.json").read_text(encoding="utf-8")
        value = str(json.loads(whole)["held out"]["measures"]["accuracy"]["value"])
        (folder / "out" / "findings.json").write_text(whole.replace(value, "0.99"), encoding="utf-8")
        said = call("show", "out")
        assert said.code == OutputError.exit_code
        assert "certificate does not hold: findings: " in said.err
        (folder / "out" / "findings.json").write_text("[]", encoding="utf-8")
        assert "findings.json' is damaged" in call("show", "out").err

    @pytest.mark.parametrize("data", [("all.csv",), ("bank=all.csv", "telco=telco.csv")], ids=["table", "parties"])
    def test_on_other_records_it_is_exact(self, folder: Path, call: Callable[..., Said], data: tuple[str, ...]) -> None:
        trained(call, "--output", "out")
        asked = ("evaluate", "out", "--json", *(part for source in data for part in ("--data", source)))
        found = json.loads(call(*asked).out)["data"]
        table = pacsv.read_csv("all.csv")
        right = Result.load(folder / "out").predict(table) == np.array(table["default"])
        assert found["measures"]["accuracy"]["value"] == pytest.approx(right.mean(), abs=1e-12)
        assert "exact" in found["note"]

    def test_a_run_that_measured_nothing(self, folder: Path, call: Callable[..., Said]) -> None:
        text = JOB.replace("evaluation.holdout = 0.25\n", "")
        (folder / "job.toml").write_text(text, encoding="utf-8")
        trained(call, "--output", "out")
        coefficients = json.loads(call("show", "out", "--json").out)["coefficients"]
        assert coefficients == pytest.approx(dict(Result.load(folder / "out").original))
        assert all(name in call("show", "out").out for name in coefficients)
        said = call("show", "out", "--test", "age = 0")
        assert said.code == 2
        assert "--set intervals=true" in said.err
        said = call("evaluate", "out")
        assert said.code == 2
        assert re.search("Missing option '--data'.*vfl show RUN", said.err)

    def test_diagnostics_are_flagged(self, folder: Path, call: Callable[..., Said]) -> None:
        said = call("run", "job.toml", "--at", "inprocess", "--set", "evaluation.diagnostics=true", "--output", "out")
        assert "NOT PRIVATE (the accounting alone would give" in said.out
        assert "diagnostics: loss" in said.out
        assert "(exact and uncharged: NOT PRIVATE)" in said.out
        assert re.search("flag +NOT PRIVATE.*the objective", said.err)


class TestPredict:
    @pytest.mark.parametrize("data", [("all.csv",), ("bank=bank.csv", "telco=telco.csv")], ids=["table", "parties"])
    def test_output_agrees_with_python(self, folder: Path, call: Callable[..., Said], data: tuple[str, ...]) -> None:
        trained(call, "--output", "out")
        said = call("predict", "out", *(word for source in data for word in ("--data", source)))
        assert (said.code, said.err) == (0, "")
        header, *lines = said.out.splitlines()
        result = Result.load(folder / "out")
        margins = result.decision_function("all.csv")
        assert header == "score,prediction,probability"
        assert np.array([float(line.split(",")[0]) for line in lines]).tobytes() == margins.tobytes()
        assert [line.split(",")[1] for line in lines] == result.predict("all.csv").tolist()
        assert [float(line.split(",")[2]) for line in lines] == result.predict_proba("all.csv")[:, 1].tolist()
        assert set(result.predict("all.csv")) <= {"no", "yes"}  # noise may leave only one of them

    def test_text_in_another_format(self, folder: Path, call: Callable[..., Said]) -> None:
        trained(call, "--output", "out")
        printed = call("predict", "out", "--data", "all.csv").out
        for name in ("bank", "telco"):
            text = (folder / f"{name}.csv").read_text(encoding="utf-8")
            (folder / f"{name}.txt").write_text(text.replace(",", ";").replace(".", ","), encoding="utf-16")
        data = ("--data", "bank=bank.txt", "--data", "telco=telco.txt", "--csv", "decimal=,", "--csv", "delimiter=;")
        both = (*data, "--csv", "bank.encoding=utf-16", "--csv", "telco.encoding=utf-16")
        assert call("predict", "out", *both).out == printed
        table = (folder / "all.csv").read_text(encoding="utf-8").replace(",", "\t").replace('"yes"', "?")
        (folder / "all.txt").write_text(table, encoding="utf-8")
        assert (
            call("predict", "out", "--data", "all.txt", "--csv", "delimiter=\\t", "--csv", "missing=?").out == printed
        )
        for wrong, said in (
            ("decimals=,", "(did you mean 'decimal'?); options are delimiter, missing,"),
            ("bnak.decimal=,", "(did you mean 'bank'?)"),
            ("decimal", "--csv takes [PARTY.]OPTION=VALUE, not 'decimal'"),
            ("delimiter=|", "--csv gives delimiter twice"),
            ("bank.decimal=x", "decimal of a CSV file is '.' or ',', not 'x'"),
        ):
            answer = call("predict", "out", *both, "--csv", wrong)
            assert answer.code == 2
            assert said in answer.err

    def test_a_model_that_its_certificate_does_not_cover_is_warned_of(
        self, folder: Path, call: Callable[..., Said]
    ) -> None:
        trained(call, "--output", "out")
        model = json.loads((folder / "out" / "model.json").read_text(encoding="utf-8"))
        model["w"][0] += 0.5
        (folder / "out" / "model.json").write_text(json.dumps(model), encoding="utf-8")
        said = call("predict", "out", "--data", "all.csv", "--json")
        assert said.code == 0
        assert said.err.startswith(
            "warning: do not rely on these predictions: the certificate of the model does not hold. "
        )
        assert len(json.loads(said.out)["predictions"]) == N
        said = call("evaluate", "out", "--data", "all.csv")
        assert said.err.startswith(
            "warning: do not rely on these measures: the certificate of the model does not hold. "
        )
        with pytest.warns(vfl.PrivacyWarning, match=r"does not hold\. model: "):
            vfl.predict(Result.load(folder / "out"), "all.csv")

    def test_output_goes_to_a_new_file_only(self, folder: Path, call: Callable[..., Said]) -> None:
        trained(call, "--output", "out")
        printed = call("predict", "out", "--data", "all.csv").out
        said = call("predict", "out", "--data", "all.csv", "--output", "predictions.csv")
        assert (said.code, said.out) == (0, "predictions of 80 records: predictions.csv\n")
        assert (folder / "predictions.csv").read_text(encoding="utf-8") == printed
        again = call("predict", "out", "--data", "telco=telco.csv", "--data", "bank=bank.csv", "--output", "all.csv")
        assert again.code == 6
        assert "'all.csv' exists: name a new one" in again.err

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (("all.csv", "bank.csv"), "once for each party as PARTY=FILE; the parties are bank, telco"),
            (
                ("bank=bank.csv", "all.csv"),
                "once for each party as PARTY=FILE; the parties are bank, telco",
            ),
            (
                ("bank=bank.csv", "telc=telco.csv"),
                "--data telc=telco.csv: there is no party 'telc' (did you mean 'telco'?); the parties are bank, telco",
            ),
            (("bank=a.csv", "bank=b.csv"), "--data names 'bank' twice"),
            (("bank=bank.csv",), "no data are given for party 'telco'"),
        ],
    )
    def test_unsuitable_sources_are_refused(
        self, folder: Path, call: Callable[..., Said], data: tuple[str, ...], said: str
    ) -> None:
        trained(call, "--output", "out")
        answer = call("predict", "out", *(word for source in data for word in ("--data", source)))
        assert answer.code == 2
        assert said in answer.err


class TestSaved:
    """A saved and loaded model gives the same answers to the bit."""

    @pytest.mark.parametrize("loss", ["logistic", "squared"])
    def test_a_saved_model_can_be_loaded(self, tmp_path: Path, loss: str) -> None:
        rng = np.random.default_rng(3)
        data = {c: rng.uniform(-1e-3, 1e7, 50) for c in "abc"} | {"kind": rng.choice(["x", "y"], 50)}
        data["t"] = (data["a"] > 5e6).astype(int) if loss == "logistic" else data["a"] / 3
        job = vfl.Job(
            partition=vfl.FeaturePartition({"one": ["a", "kind"], "two": ["b", "c"]}, label=("two", "t")),
            loss=loss,
            bounds=dict.fromkeys("abc", (0, 9e6)) | ({"t": (0, 3e6)} if loss == "squared" else {}),
            columns={"kind": vfl.Categorical(("x", "y"))},
            privacy=vfl.Privacy(epsilon=0.7),
            solver=vfl.SkGD(passes=4),
        )
        result = vfl.train(job, data, at="inprocess")
        again = Result.load(result.save(tmp_path / "out"))
        assert again.w.tobytes() == result.w.tobytes()
        assert again.coef_.tobytes() == result.coef_.tobytes()
        assert again.intercept_ == result.intercept_
        assert again.feature_names == result.feature_names == ("a", "kind=x", "kind=y", "b", "c")
        assert again.job == result.job
        assert again.certificate.signature is not None
        assert dataclasses.replace(again.certificate) == result.certificate  # the copy is unsigned
        assert again.decision_function(data).tobytes() == result.decision_function(data).tobytes()
        assert (again.predict(data) == result.predict(data)).all()

    def test_margins_are_those_of_the_model_in_original_units(self, folder: Path, call: Callable[..., Said]) -> None:
        trained(call, "--output", "out")
        result = Result.load(folder / "out")
        table = pacsv.read_csv("all.csv")
        X = np.column_stack([table[c] for c in result.feature_names])
        np.testing.assert_allclose(
            result.decision_function(table), X @ result.coef_ + result.intercept_, rtol=1e-9, atol=1e-9
        )

    def test_predictions_name_the_right_class(self, folder: Path, call: Callable[..., Said]) -> None:
        trained(call, "--set", "privacy=none", "--output", "out")
        right = Result.load(folder / "out").predict("all.csv") == pacsv.read_csv("all.csv")["default"].to_numpy()
        assert right.mean() > 0.85

    def test_a_folder_is_not_overwritten(self, folder: Path, call: Callable[..., Said]) -> None:
        trained(call, "--output", "out")
        result = Result.load(folder / "out")
        with pytest.raises(OutputError, match=r"not empty: name a new one"):
            result.save(folder / "out")

    @pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 2}', '{"format": 1}'])
    def test_a_damaged_model_is_refused(self, folder: Path, call: Callable[..., Said], damage: str) -> None:
        trained(call, "--output", "out")
        (folder / "out" / "model.json").write_text(damage)
        said = call("predict", "out", "--data", "all.csv")
        assert said.code == 6
        assert said.err.startswith("error: ")
        assert said.err.count("\n") == 1


class TestDoctor:
    def test_a_whole_installation_with_ray(self, call: Callable[..., Said], local_ray: Any) -> None:
        said = call("doctor", "--json")
        findings = {finding["check"]: finding for finding in json.loads(said.out)}
        assert said.code == 0, said.out
        assert all(finding["ok"] for finding in findings.values())
        assert {"version", "one place", "packages", "kernels", "noise", "ray"} <= findings.keys()
        assert vfl.__version__ in findings["version"]["finding"]

    def test_a_defect_is_named(self, call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
        from vfl.apps.cli.administration import doctor

        def broken() -> str:
            raise RuntimeError("a compiled kernel gives a wrong answer")

        monkeypatch.setattr(doctor, "CHECKS", (("machine", lambda: "2 cores"), ("kernels", broken)))
        said = call("doctor")
        assert said.code == 1
        assert "ok    machine    2 cores" in said.out
        assert re.search("FAIL +kernels +RuntimeError", said.out)

    def test_a_machine_is_measured_and_kept_for_plans(
        self, call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        from vfl.apps.cli.administration import doctor
        from vfl.launch import measuring
        from vfl.planning.cost import Machine

        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        monkeypatch.setattr(doctor, "CHECKS", ())
        plan = ("plan", "breast_cancer", "--explain")
        assert "vfl doctor --measure" in call(*plan).out
        monkeypatch.setattr(measuring, "measure", lambda: Machine(memory=1e5, trip_seconds=2.0, measured="1"))
        said = call("doctor", "--measure")
        assert said.code == 0
        assert f"2e+03 ms and 4 GB/s; kept in {tmp_path}" in said.out
        planned = call(*plan).out
        assert "run vfl doctor --measure" not in planned
        assert "inprocess: " in planned
        assert "memory     the job needs" in planned
        found = json.loads(call("plan", "breast_cancer", "--json").out)
        assert set(found["nodes"]) == {"inprocess", "ray", "cluster", "federation"}
        assert found["nodes"]["ray"]["parts"]["messages"] == 2.0 * found["messages"]
        assert found["placement"]

    def test_repeated_noise_is_detected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from vfl.apps.cli.administration import doctor
        from vfl.privacy import noise

        monkeypatch.setattr(noise, "CryptographicNoise", lambda: noise.SeededNoise(0))
        with pytest.raises(RuntimeError, match="do not train privately"):
            doctor._noise()


class TestHelp:
    CODE = "import sys; from vfl.apps.cli import main; sys.argv = ['vfl', *sys.argv[1:]]; main()"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", self.CODE, *arguments], capture_output=True, text=True, check=True)

    def test_it_names_every_command(self) -> None:
        said = self.run("--help").stdout
        assert "vfl run adult" in said
        for name, (_, what) in cli.COMMANDS.items():
            if group := next((names for names in cli.TOLD_TOGETHER if name in names), None):
                assert f"  {', '.join(group)} " in said
                continue
            assert f"  {name} " in said
            assert what.split(";")[0][:30] in said

    @pytest.mark.parametrize("command", cli.COMMANDS)
    def test_every_command_has_its_own_help(self, call: Callable[..., Said], command: str) -> None:
        said = call(command, "--help")
        assert said.code == 0
        assert said.out.startswith(f"Usage: vfl {command} ")

    def test_it_is_instant(self) -> None:
        """Measure processor time, since other tests run at the same time."""
        seconds = []
        for _ in range(4):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            self.run("--help")
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert min(seconds) < 0.3

    def test_it_imports_nothing_heavy(self) -> None:
        code = (
            "import sys\n"
            "from vfl.apps.cli import main\n"
            "sys.argv = ['vfl', '--help']\n"
            "try:\n    main()\nexcept SystemExit:\n    pass\n"
            "print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        heavy = {"numpy", "scipy", "numba", "ray", "pyarrow", "sklearn", "cryptography", "rich", "pandas"}
        assert heavy.isdisjoint(done.stderr.split())

    def test_version(self, call: Callable[..., Said]) -> None:
        assert call("--version").out == f"vfl, version {vfl.__version__}\n"
