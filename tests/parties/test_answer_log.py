"""Tests of the log of a service's answers."""

from __future__ import annotations

import json
import os
import resource
import signal
from typing import TYPE_CHECKING, Any

import pytest

from parties.services.serving import AnswerLog
from vfl.errors import ConsentRefused

if TYPE_CHECKING:
    from pathlib import Path


def test_a_line_is_on_disk_before_its_answer_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, synced = AnswerLog(tmp_path / "bank.answers", "bank"), []
    real = os.fsync

    def sync(descriptor: Any) -> None:
        real(descriptor)
        synced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", sync)
    log.write([("branch", "credit decision", "7be1", [b"one"], True)])
    assert synced == [(tmp_path / "bank.answers").stat().st_size]


def test_no_answer_leaves_if_its_line_is_not_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AnswerLog(tmp_path / "bank.answers", "bank")

    def full(descriptor: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConsentRefused, match="space"):
        log.write([("branch", "credit decision", "7be1", [b"one"], True)])


def test_a_short_write_on_a_full_disk_leaves_no_part_of_a_line(tmp_path: Path) -> None:
    log, path = AnswerLog(tmp_path / "bank.answers", "bank"), tmp_path / "bank.answers"
    line = ("branch", "credit decision", "7be1", [b"one"], True)
    log.write([line])
    before = path.read_bytes()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, len(before) + 50))
        with pytest.raises(ConsentRefused, match="space"):
            log.write([line])
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert path.read_bytes() == before
    log.write([line])
    assert len([json.loads(each) for each in path.read_text().splitlines()]) == 2


@pytest.mark.parametrize("length", [1, 200_000])
def test_a_partial_line_that_a_killed_process_left_is_cut_off(tmp_path: Path, length: int) -> None:
    log, path = AnswerLog(tmp_path / "bank.answers", "bank"), tmp_path / "bank.answers"
    for _ in range(2):
        with path.open("ab") as file:
            file.write(b"x" * length)
        log.write([("branch", "credit decision", "7be1", [b"one"], True)])
    assert [json.loads(each)["caller"] for each in path.read_text().splitlines()] == ["branch"] * 2
