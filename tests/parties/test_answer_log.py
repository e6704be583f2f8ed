"""Tests of the log of a service's answers."""

from __future__ import annotations

import os
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
