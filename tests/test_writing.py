"""Files that are written whole: nobody else can read them, and no planted link is followed."""

from __future__ import annotations

import contextlib
import importlib
import os
import stat
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from vfl.base.writing import create_file, replace_file, write_whole
from vfl.errors import OutputError

if TYPE_CHECKING:
    from pathlib import Path


def test_planted_links_receive_nothing(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("own")
    for name in ("out.csv", "out.csv.part"):
        (tmp_path / name).symlink_to(victim)
    write_whole(tmp_path / "out.csv", "prediction")
    assert victim.read_text() == "own"
    assert not (tmp_path / "out.csv").is_symlink()
    assert (tmp_path / "out.csv").read_text() == "prediction"


def test_only_the_owner_can_read_them(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_whole(tmp_path / "a", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_a_failure_leaves_the_old_file_and_no_part(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", "old")

    def pieces() -> Any:
        yield b"new"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        replace_file(tmp_path / "a", pieces())
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"
    with pytest.raises(OutputError, match="cannot write"):
        write_whole(tmp_path / "none" / "a", "x")


def test_a_created_file_never_replaces_one_and_no_link_is_followed(tmp_path: Path) -> None:
    """Of several that create a key at once, the first wins; the others use its key."""
    assert create_file(tmp_path / "key", b"first")
    assert not create_file(tmp_path / "key", b"second")
    (tmp_path / "planted").symlink_to(tmp_path / "elsewhere")
    assert not create_file(tmp_path / "planted", b"secret")
    assert {path.name for path in tmp_path.iterdir()} == {"key", "planted"}
    assert (tmp_path / "key").read_bytes() == b"first"
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["timing.csv", "rounds.log", "model.json", "job.toml"])
def test_a_run_writes_through_no_link(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who may write to the folder plants a link while the run starts."""
    victim, folder = tmp_path / "victim", tmp_path / "run"
    victim.write_text("own")
    folder.mkdir()
    train = importlib.import_module("vfl.launch.train")
    real = train.fresh_folder

    def raced(path: Any) -> Path:
        made = real(path)
        (made / name).symlink_to(victim)
        return made

    monkeypatch.setattr(train, "fresh_folder", raced)
    job = vfl.Job(partition=vfl.FeaturePartition({"a": ["x"]}, label=("a", "y")), bounds={"x": (0, 1)}, privacy=None)
    rows = {"x": np.linspace(0, 1, 20), "y": np.arange(20) % 2}
    with contextlib.suppress(OutputError):
        vfl.train(job, rows, at="inprocess", output=folder)
    assert victim.read_text() == "own"


def test_files_of_a_run_are_its_owners(tmp_path: Path) -> None:
    job = vfl.Job(partition=vfl.FeaturePartition({"a": ["x"]}, label=("a", "y")), bounds={"x": (0, 1)}, privacy=None)
    rows = {"x": np.linspace(0, 1, 20), "y": np.arange(20) % 2}
    vfl.train(job, rows, at="inprocess", output=tmp_path / "run").save_parts(tmp_path / "parts")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 4
    assert [path.name for path in files if path.stat().st_mode & 0o077] == []
