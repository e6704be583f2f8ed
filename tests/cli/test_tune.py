"""`vfl tune`, `vfl plan --candidates` and `vfl resume` of a tune."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import vfl
from tests.tuning.setting import job, table
from vfl.apps.cli import vfl as command_line
from vfl.errors import BudgetExceeded, JobFileError, SpecificationError
from vfl.job import file as jobfile

CANDIDATES = "candidates = [{}, {penalty.strength = 0.05}, {solver.passes = 2}]\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in a folder with a job, its table and candidates."""
    import pyarrow as pa

    monkeypatch.chdir(tmp_path)
    jobfile.write(job(), tmp_path / "small.toml")
    with (tmp_path / "small.toml").open("a", encoding="utf-8") as file:
        file.write('\n[simulation]\ntable = "small.parquet"\n')
    pq.write_table(pa.Table.from_pandas(table()), tmp_path / "small.parquet")
    (tmp_path / "tune.toml").write_text(CANDIDATES, encoding="utf-8")
    return tmp_path


def ran(*words):
    result = CliRunner().invoke(command_line, words, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.output


def test_plan_states_the_price_and_a_forecast(here):
    said = ran("plan", "small.toml", "--candidates", "tune.toml")
    assert "tune of job 'small': 3 candidates, n = 400" in said
    assert "each is considered with probability 4/5" in said
    assert "counts the tuning run as a run" in said
    assert "counts all trials by composition" in said
    assert "2 of 3     penalty.strength = 0.05" in said
    assert "forecast" in said
    plain = json.loads(ran("plan", "small.toml", "--candidates", "tune.toml", "--json"))
    assert plain["epsilon"] <= 1.0
    assert 1.0 < plain["noise_factor"] < 3**0.5
    assert plain["ledger_epsilon"] > 1.0
    assert [candidate["change"] for candidate in plain["candidates"]] == [
        "the job as it is",
        "penalty.strength = 0.05",
        "solver.passes = 2",
    ]
    few = json.loads(ran("plan", "small.toml", "--candidates", "tune.toml", "--json", "--records", "100"))
    assert not few["default_probably_wins"]
    assert few["forecast"].startswith("open: ")
    many = json.loads(ran("plan", "small.toml", "--candidates", "tune.toml", "--json", "--records", "100000"))
    assert many["default_probably_wins"]


def test_tune_writes_a_run_that_the_other_commands_read(here):
    said = ran("tune", "small.toml", "--candidates", "tune.toml", "--at", "inprocess", "--output", "run")
    for number in (1, 2, 3):
        assert f"candidate {number} of 3: " in said
    assert "was chosen" in said
    (score,) = [line.split(",")[0] for line in said.splitlines() if line.startswith("score: ")]
    assert said.count(score.removeprefix("score: ")) == 1
    assert "are withheld" in said
    assert "choice     candidate" in ran("verify", "run")
    assert "was chosen" in ran("resume", "run")
    assert "report.html" in ran("report", "run")
    ran("predict", "run", "--data", "small.parquet", "--output", "predictions.csv")


def test_the_outcome_as_json(here):
    said = ran("tune", "small.toml", "--candidates", "tune.toml", "--at", "inprocess", "--output", "run", "--json")
    plain = json.loads(said)
    assert plain["choice"]["of"] == 3
    assert plain["choice"]["candidate"] in (1, 2, 3)
    assert plain["epsilon"] <= 1.0
    assert set(plain["findings"]) == {"score"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("candidates = [{}]", "at least two candidates"),
        ("score = 'loss'", "needs candidates"),
        ("candidates = 3", "needs candidates"),
        (CANDIDATES + "privacy = {}", "unknown key 'privacy'"),
        ("score = 3\n" + CANDIDATES, "score must be text"),
        ("score = 'mae'\n" + CANDIDATES, "does not fit logistic loss"),
        ("inclusion = 0\n" + CANDIDATES, "inclusion is a whole number"),
        ("candidates = [{}, {evaluation.holdout = 0.5}]", "candidate 2 differs from the first in evaluation"),
        ("candidates = [{}, {penalty.strengt = 0.5}]", "candidate 2: unknown key 'strengt'"),
        ("candidates = [", "is not valid TOML"),
    ],
)
def test_bad_candidates_are_refused_in_a_sentence(here, text, said):
    (here / "tune.toml").write_text(text, encoding="utf-8")
    for command in (("plan",), ("tune", "--at", "inprocess", "--output", "run")):
        with pytest.raises(SpecificationError, match=said) as caught:
            ran(command[0], "small.toml", "--candidates", "tune.toml", *command[1:])
        assert caught.value.exit_code == 2
    assert not (here / "run" / "model.json").exists()


def test_a_missing_file_of_candidates_is_named(here):
    with pytest.raises(JobFileError, match=r"'none.toml'"):
        ran("tune", "small.toml", "--candidates", "none.toml")


def test_the_cap_of_a_data_set_stops_a_tune_with_exit_code_4(here):
    ran("ledger", "cap", "budget.db", "small", "--epsilon", "1.1", "--delta", "1e-6")
    words = ("tune", "small.toml", "--candidates", "tune.toml", "--at", "inprocess", "--output", "run")
    with pytest.raises(BudgetExceeded) as caught:
        ran(*words, "--set", "dataset=small", "--set", "ledger.path=budget.db")
    assert caught.value.exit_code == 4
    assert vfl.Ledger(here / "budget.db").open().show()[0].spent == 0.0


def test_a_tune_that_was_cut_off_is_resumed_by_the_same_command_as_a_run(here, monkeypatch):
    from vfl.errors import OutputError

    def full(*_):
        raise OutputError("the disk is full")

    monkeypatch.setattr(vfl.Result, "document", full)  # of the winner, when it is stored
    with pytest.raises(OutputError):
        ran("tune", "small.toml", "--candidates", "tune.toml", "--at", "inprocess", "--output", "run")
    monkeypatch.undo()
    monkeypatch.chdir(here)
    said = ran("resume", "run")
    assert "was chosen" in said
    assert "messages" not in said  # all trials were finished
