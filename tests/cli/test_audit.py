"""`vfl audit`: its output, its exit codes, and the data that it refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.auditing.test_defects import weaker_noise
from vfl.job import file as jobfile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said

JOB = """
format = 1
name = "credit"
intercept = false

[partition]
parties = { bank = ["income", "age"], telco = ["calls"] }
label = ["bank", "default"]

[bounds]
"*" = [-1, 1]

[privacy]
epsilon = 4.0
delta = 1e-5

[solver]
kind = "GD"
passes = 3
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "credit.toml").write_text(JOB)
    return "credit.toml"


def test_a_correct_job_passes(job: str, call: Callable[..., Said]) -> None:
    said = call("audit", job, "--records", "30", "--runs", "20", "--confidence", "0.9999")
    assert said.code == 0, said
    assert "30 simulated records: nothing is charged" in said.out
    assert "PASS" in said.out


def test_json_holds_the_findings(job: str, call: Callable[..., Said]) -> None:
    said = call("audit", job, "-n", "30", "--runs", "20", "--confidence", "0.9999", "--json")
    found = json.loads(said.out)
    assert found["passed"] is True
    assert found["n_records"] == 30
    assert 0.0 <= found["lower"] <= found["claim"] <= 4.0
    assert {check["name"] for check in found["attacks"][0]["checks"]} == {"charges", "shifts", "noise", "repeats"}


def test_a_job_that_breaks_its_claim_exits_with_1(
    job: str, call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    weaker_noise(monkeypatch)
    said = call("audit", job, "--records", "30", "--runs", "60")
    assert said.code == 1
    assert "FAIL" in said.out


def test_private_data_are_refused(job: str, call: Callable[..., Said]) -> None:
    said = call("audit", job, "--data", "bank=bank.csv")
    assert said.code == 2
    assert "it is --public-data PARTY=FILE" in " ".join(said.err.split())


def test_public_rows_stand_in_for_simulated_ones(job: str, call: Callable[..., Said], tmp_path: Path) -> None:
    draws = np.random.default_rng(0).uniform(-1, 1, (24, 3)).round(3).tolist()
    bank = [f"{income},{age},{i % 2}" for i, (income, age, _) in enumerate(draws)]
    (tmp_path / "bank.csv").write_text("\n".join(["income,age,default", *bank]) + "\n")
    (tmp_path / "telco.csv").write_text("\n".join(["calls", *(str(calls) for *_, calls in draws)]) + "\n")
    files = ("--public-data", "bank=bank.csv", "--public-data", "telco=telco.csv")
    said = call("audit", job, *files, "--runs", "20", "--confidence", "0.9999")
    assert said.code == 0, said
    assert "24 records declared public" in said.out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("--set=privacy.smoothness='data'", "NOT PRIVATE as a whole"),
        ("--confidence=2", "confidence must lie between 0.5 and 1"),
        ("--public-data=bank.csv", "--public-data takes PARTY=FILE"),
    ],
)
def test_what_cannot_be_audited_is_refused(job: str, call: Callable[..., Said], change: str, words: str) -> None:
    said = call("audit", job, change)
    assert said.code in (2, 4)
    assert words in said.err


def test_the_job_file_is_left_as_it_is(job: str, call: Callable[..., Said], tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    call("audit", job, "--records", "30", "--runs", "2")
    assert sorted(tmp_path.iterdir()) == before
    assert jobfile.read(tmp_path / job, ())[0].name == "credit"
