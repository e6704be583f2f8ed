"""`vfl init` asks at a terminal, and leaves comments elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from vfl.cli import init
from vfl.job import file as jobfile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{k};{k / 10:g};{'ja' if k % 3 else 'nein'}\n" for k in range(40))
    (tmp_path / "bank.csv").write_text(f"nr;age;bought\n{rows}".replace(".", ","), encoding="utf-8")
    return tmp_path


def test_elsewhere_nothing_is_asked(folder: Path, call: Callable[..., Said]) -> None:
    said = call("init", "bank.csv", "--output", "job.toml")
    assert said.code == 0
    assert said.out.splitlines()[0] == "job.toml: NO LABEL was found: name it in the file, or with --label"
    assert "job.toml: [data.bank]: fields separated by semicolons; looks like numbers with decimal commas" in said.out
    assert "job.toml: 3 declarations are left to you" in said.out
    printed = call("init", "bank.csv", "--label", "bought", "--csv", "decimal=.", "--csv", "delimiter=;").out
    assert "[data.bank]\n" in printed
    assert 'decimal = ","' not in printed


def answered(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    rest = list(answers)
    monkeypatch.setattr(init, "_at_terminal", lambda: True)
    monkeypatch.setattr("click.prompt", lambda *_, **__: rest.pop(0))
    return rest


def test_answers_complete_the_job(folder: Path, call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    rest = answered(monkeypatch, "bank.bought", "nein, ja", "y", "0", "100 0", "zero 9", "[0, 100]", "-1", "2")
    said = call("init", "bank.csv", "--output", "job.toml")
    assert rest == []
    assert "job.toml: the label is bank.bought\n" in said.out
    assert said.out.endswith("job.toml: nothing is left open\nnext: vfl plan job.toml --records N\n")
    assert (
        "age: the records hold [0, 3.9], NOT PRIVATE unless publicly known. y: it is public; Enter: leave it open"
        in said.err
    )
    assert said.err.count("cannot be read") == 4
    job, _ = jobfile.read(folder / "job.toml")
    assert (job.classes, job.privacy.epsilon) == (("nein", "ja"), 2.0)
    assert dict(job.bounds) == {"nr": [0, 39], "age": [0, 100]}


def test_enter_leaves_a_declaration_open(
    folder: Path, call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answered(monkeypatch, "", "", "", "", "") == [""] * 5
    said = call("init", "bank.csv", "--output", "job.toml")
    assert "NO LABEL was found" in said.out
    assert "3 declarations are left to you" in said.out


def test_yes_asks_nothing(folder: Path, call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch)
    assert "3 declarations are left to you" in call("init", "bank.csv", "--yes", "--output", "job.toml").out


def test_at_a_real_terminal(folder: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "vfl", "init", "bank.csv", "--label", "bought", "--output", "job.toml"]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.write(ours, b"y\ny\n18 100\n\n")
        out = process.communicate(timeout=120)[0].decode()
    os.close(theirs)
    os.close(ours)
    assert "job.toml: nothing is left open" in out
    assert jobfile.read(folder / "job.toml")[0].bounds["age"] == [18, 100]
