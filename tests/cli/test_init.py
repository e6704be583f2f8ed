"""`vfl init` asks at a terminal, and leaves comments elsewhere."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import vfl
from vfl.apps.cli.training import init
from vfl.errors import BudgetExceeded, LedgerError
from vfl.job import file as jobfile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{k};{k / 10:g};{'ja' if k % 3 else 'nein'}\n" for k in range(40))
    (tmp_path / "bank.csv").write_text(f"nr;age;released\n{rows}".replace(".", ","), encoding="utf-8")
    return tmp_path


def test_elsewhere_nothing_is_asked(folder: Path, call: Callable[..., Said]) -> None:
    said = call("init", "bank.csv", "--output", "job.toml")
    assert said.code == 0
    assert "NO LABEL was found" in said.out.splitlines()[0]
    assert re.search("data.bank.*semicolons.*decimal commas", said.out)
    assert "3 declarations are left" in said.out
    printed = call("init", "bank.csv", "--label", "released", "--csv", "decimal=.", "--csv", "delimiter=;").out
    assert "[data.bank]\n" in printed
    assert 'decimal = ","' not in printed


def test_texts_that_look_like_numbers_are_said(folder: Path, call: Callable[..., Said]) -> None:
    rows = "".join(f'"${k},530.66",{k % 2}\n' for k in range(1, 80))
    (folder / "sales.csv").write_text(f"amount,y\n{rows}", encoding="utf-8")
    said = call("init", "sales.csv", "--output", "sales.toml").out
    assert (
        'sales.toml: column "amount" holds texts that look like numbers: if they are amounts, write them as plain numbers'
        in said
    )


def answered(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    rest = list(answers)
    monkeypatch.setattr(init, "at_terminal", lambda: True)
    monkeypatch.setattr("click.prompt", lambda *_, **__: rest.pop(0))
    return rest


def test_answers_complete_the_job(folder: Path, call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    rest = answered(
        monkeypatch, "bank.released", "nein, ja", "y", "0", "100 0", "zero 9", "[0, 100]", "some", "y", "-1", "2"
    )
    said = call("init", "bank.csv", "--output", "job.toml")
    assert rest == []
    assert "job.toml: the label is bank.released\n" in said.out
    assert said.out.endswith("job.toml: nothing is left open\nnext: vfl plan job.toml --records N\n")
    assert "age: the records hold [0, 3.9], NOT PRIVATE" in said.err
    assert said.err.count("cannot be read") == 5
    assert re.search("kinds of the columns.*NOT PRIVATE", said.err)
    job, _ = jobfile.read(folder / "job.toml")
    assert job.privacy.read_from_data is None
    assert (job.classes, job.privacy.epsilon) == (("nein", "ja"), 2.0)
    assert dict(job.bounds) == {"nr": [0, 39], "age": [0, 100]}


def test_enter_leaves_a_declaration_open(
    folder: Path, call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answered(monkeypatch, "", "", "", "", "", "") == [""] * 6
    said = call("init", "bank.csv", "--output", "job.toml")
    assert re.search("kinds of the columns and the formats.*certificates", said.out)
    assert "NO LABEL was found" in said.out
    assert "3 declarations are left to you" in said.out


def test_several_classes_can_be_answered(
    folder: Path, call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(f"{k / 40};{'abcd'[k % 4]}\n" for k in range(40))
    (folder / "grades.csv").write_text(f"x;grade\n{rows}", encoding="utf-8")
    answered(monkeypatch, "d", "a, b, c, d", "0 1", "y", "")
    said = call("init", "grades.csv", "--label", "grade", "--output", "job.toml")
    assert "'d' cannot be read: expected two classes" in said.err
    assert 'loss = "multinomial"' in said.out
    job, _ = jobfile.read(folder / "job.toml")
    assert (job.loss, job.classes) == ("multinomial", ("a", "b", "c", "d"))


def test_yes_asks_nothing(folder: Path, call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch)
    assert "3 declarations are left to you" in call("init", "bank.csv", "--yes", "--output", "job.toml").out


def test_at_a_real_terminal(folder: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "vfl", "init", "bank.csv", "--label", "released", "--output", "job.toml"]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.write(ours, b"y\ny\n18 100\ny\n\n")
        out = process.communicate(timeout=120)[0].decode()
    os.close(theirs)
    os.close(ours)
    assert "nothing is left open" in out
    assert jobfile.read(folder / "job.toml")[0].bounds["age"] == [18, 100]


@pytest.fixture
def two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(4)
    income, calls, age = rng.lognormal(10, 0.4, 4000), rng.poisson(30, 4000), rng.integers(18, 90, 4000)
    bank = "".join(f"{k},{income[k]:.2f},{'' if k % 9 == 0 else age[k]},{k % 2}\n" for k in range(4000))
    telco = "".join(f"{k},{calls[k]}\n" for k in range(4000))
    (tmp_path / "bank.csv").write_text(f"customer_id,income,age,target\n{bank}", encoding="utf-8")
    (tmp_path / "telco.csv").write_text(f"customer_id,calls\n{telco}", encoding="utf-8")
    return tmp_path


def test_bounds_are_released_charged_and_written(two_files: Path, call: Callable[..., Said]) -> None:
    call("ledger", "cap", "budget.db", "customers", "--epsilon", "3", "--delta", "1e-5")
    terms = ("--private-bounds", "1", "--ledger", "budget.db", "--dataset", "customers")
    said = call("init", "bank.csv", "telco.csv", *terms, "--output", "job.toml")
    assert said.code == 0, said.err
    assert "bounds of 3 columns released for ε = " in said.out
    assert "'customers' of 'budget.db'" in said.out
    text = (two_files / "job.toml").read_text(encoding="utf-8")
    plain = tomllib.loads(text)
    assert plain["dataset"] == "customers"
    assert set(plain["bounds"]) == {"income", "age", "calls"}
    low, high = plain["bounds"]["income"]
    assert low <= 12_000
    assert 32_768 <= high <= 131_072
    assert text.count("# released by vfl init --private-bounds") == 3
    assert "[0.0, 64.0]" in text or "[0.0, 128.0]" in text
    (balance,) = vfl.Ledger(two_files / "budget.db").open().show()
    assert 0.3 < balance.spent <= 1.0
    assert len(balance.runs) == 2


def test_a_release_without_a_ledger_says_so_and_half_a_ledger_is_refused(
    two_files: Path, call: Callable[..., Said]
) -> None:
    calls = pa.table({"calls": pa.array([*range(1, 2000), None], pa.int32()), "customer_id": range(2000)})
    pq.write_table(calls, two_files / "telco.parquet")
    said = call("init", "telco.parquet", "--private-bounds", "2", "--output", "own.toml")
    assert tomllib.loads((two_files / "own.toml").read_text(encoding="utf-8"))["bounds"]["calls"][1] == 2048
    assert "NO LEDGER counts it" in said.out
    assert "was read from the records" in said.out
    assert "give both --ledger and --dataset" in call("init", "telco.csv", "--private-bounds", "2", "--ledger", "b").err
    assert "give --private-bounds EPSILON" in call("init", "telco.csv", "--ledger", "b", "--dataset", "c").err


def test_nothing_is_written_where_the_budget_does_not_cover_the_bounds(
    two_files: Path, call: Callable[..., Said]
) -> None:
    call("ledger", "cap", "budget.db", "customers", "--epsilon", "0.1", "--delta", "1e-5")
    terms = ("--private-bounds", "1", "--ledger", "budget.db", "--dataset", "customers")
    said = call("init", "bank.csv", "telco.csv", *terms, "--output", "job.toml")
    assert said.code == BudgetExceeded.exit_code
    assert not (two_files / "job.toml").exists()


def test_a_missing_ledger_is_said_before_a_file_is_read(two_files: Path, call: Callable[..., Said]) -> None:
    (two_files / "bank.csv").write_bytes(b"\xff\xfe\x00")
    said = call("init", "bank.csv", "--private-bounds", "1", "--ledger", "none.db", "--dataset", "customers")
    assert said.code == LedgerError.exit_code
    assert "its data owner creates one with" in said.err


def test_a_release_states_what_was_asked_and_no_raw_warning(
    two_files: Path, call: Callable[..., Said], recwarn: pytest.WarningsRecorder
) -> None:
    said = call("init", "bank.csv", "telco.csv", "--private-bounds", "2", "--output", "job.toml")
    assert re.search("3 columns released for ε = 2 at δ = 6.25e-08, NO LEDGER", said.out)
    assert [str(each.message) for each in recwarn] == []


def test_the_draft_names_the_ledger_that_was_charged(two_files: Path, call: Callable[..., Said]) -> None:
    call("ledger", "cap", "budget.db", "customers", "--epsilon", "3", "--delta", "1e-5")
    terms = ("--private-bounds", "1", "--ledger", "budget.db", "--dataset", "customers")
    assert call("init", "bank.csv", "telco.csv", *terms, "--output", "job.toml").code == 0
    text = (two_files / "job.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["ledger"] == {"path": "budget.db"}
    assert "# evaluation.holdout = 0.2" in text
