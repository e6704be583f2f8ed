"""Files that others wrote: each command ends with one sentence, sends nothing to the terminal, and stays in its folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from vfl.apps.cli.terminal.streams import shown
from vfl.apps.cli.training.run import unused
from vfl.errors import SpecificationError
from vfl.job import file as jobfile
from vfl.network.federation.file import read_federation
from vfl.network.federation.identity import read_public

if TYPE_CHECKING:
    from collections.abc import Callable

HOSTILE = {
    "deep": "[" * 10**5,
    "digits": "9" * 5000,
    "large": '{"w": [1' + "0" * 400 + "]}",
    "null": "null",
    "nothing": "",
    "infinite": '{"format": 1, "n_records": 1e999, "w": [1e999], "coordinates": [[]], "held out": {"measures": {}, '
    '"n_records": 1e999, "note": ""}}',
}
FILES = ("model.json", "certificate.json", "findings.json", "job.toml", "rounds.log")


def job(name: str = "small", **options: Any) -> vfl.Job:
    return vfl.Job(
        name=name,
        partition=vfl.FeaturePartition({"bank": ["a", "b"], "telco": ["c"]}, label=("bank", "y")),
        bounds={"*": (-1.0, 1.0)},
        privacy=vfl.Privacy(epsilon=2.0, delta=1e-6),
        solver=vfl.SkGD(passes=2),
        evaluation=vfl.Evaluation(holdout=0.3),
        **options,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(7)
    table: dict[str, Any] = {name: rng.uniform(-1, 1, 200) for name in "abc"}
    folder: Path = tmp_path_factory.mktemp("whole") / "run"
    vfl.train(job(), table | {"y": (table["a"] > 0).astype(int)}, at="inprocess", output=folder)
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", [*HOSTILE, "fifo", "link"])
def test_a_hostile_file_of_a_run_is_refused(name: str, kind: str, run: Path, tmp_path: Path, call: Any) -> None:
    path = run / name
    if kind in ("fifo", "link"):
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere") if kind == "link" else os.mkfifo(path)
    elif name == "rounds.log":
        from vfl.launch.run.checkpoint import chained

        path.write_text(f"{chained('', HOSTILE[kind])} {HOSTILE[kind]}\n", encoding="utf-8")
    else:
        path.write_text(HOSTILE[kind], encoding="utf-8")
    said = call("verify", str(run))
    assert said.code not in (0, 130)
    for words in (("report", str(run)), ("show", str(run), str(run))):
        call(*words)


@pytest.mark.parametrize("kind", [*HOSTILE, "fifo"])
def test_a_hostile_job_or_certificate_is_refused(kind: str, tmp_path: Path, call: Any) -> None:
    for name, words in (("x.toml", ("plan",)), ("x.json", ("verify",))):
        path = tmp_path / name
        os.mkfifo(path) if kind == "fifo" else path.write_text(
            f"x = {HOSTILE[kind]}" if words == ("plan",) else HOSTILE[kind]
        )
        said = call(*words, str(path))
        assert (said.code, "Traceback" in said.err) in ((2, False), (6, False))


def test_a_pipe_in_the_place_of_a_key_or_a_certificate_is_refused(run: Path, tmp_path: Path, call: Any) -> None:
    os.mkfifo(tmp_path / "pipe.pem")
    assert call("verify", str(run), "--signer", str(tmp_path / "pipe.pem")).code == 2
    for read in (read_public, read_federation):
        with pytest.raises(SpecificationError, match="regular file"):
            read(tmp_path / "pipe.pem")


def _edited(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    plain = json.loads(path.read_text(encoding="utf-8"))
    edit(plain)
    path.write_text(json.dumps(plain, indent=2, ensure_ascii=False), encoding="utf-8")


@pytest.mark.parametrize("log", [True, False])
def test_altered_moments_do_not_verify(run: Path, call: Any, *, log: bool) -> None:
    if not log:
        (run / "rounds.log").unlink()
    assert call("verify", str(run)).code == 0
    _edited(run / "model.json", lambda plain: plain["moments"][0].__setitem__(0, 99.0))
    said = call("verify", str(run))
    assert said.code == 6
    assert "FAIL  moments" in said.out


def test_a_model_with_a_key_twice_does_not_verify(run: Path, call: Any) -> None:
    path = run / "model.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"w":', '"w": [9.0],\n  "w":', 1), encoding="utf-8")
    said = call("verify", str(run))
    assert said.code == 6
    assert "twice" in said.err


END = "=== the end of a command ===\n"
EACH = f"""
import json, sys
from vfl.apps import cli
for words in json.loads(sys.argv[1]):
    sys.argv = ["vfl", *words]
    try:
        cli.main()
    except SystemExit:
        pass
    for stream in (sys.stdout, sys.stderr):
        print({END.rstrip()!r}, file=stream, flush=True)
"""
ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202e\x9b1m"


def test_nothing_that_a_terminal_obeys_is_printed(run: Path, tmp_path: Path) -> None:
    _edited(run / "findings.json", lambda plain: plain["held out"].__setitem__("note", ESCAPE))
    _edited(
        run / "findings.json", lambda plain: plain["held out"]["measures"].__setitem__(ESCAPE, {"value": 1, "error": 1})
    )
    (tmp_path / "bad.toml").write_text(f"x = 1\ny = {ESCAPE}\n", encoding="utf-8")
    other = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b[2J"))
    other.mkdir()
    commands = (
        ["show", run, run],
        ["show", run, run, "--json"],
        ["plan", tmp_path / "bad.toml"],
        ["verify", other],
    )
    done = subprocess.run(  # one process, whose standard streams are its own, for all
        [sys.executable, "-c", EACH, json.dumps([[*map(os.fspath, words)] for words in commands])],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(Path(vfl.__file__).parents[1])},
    )
    assert "Traceback" not in done.stderr.decode()
    said = [stream.decode().split(END) for stream in (done.stdout, done.stderr)]
    for words, out, err in zip(commands, *(parts[:-1] for parts in said), strict=True):
        assert out + err
        assert out + err == shown(out + err)
        if "--json" in words:
            assert ESCAPE in json.loads(out)[0]["measures"]


def test_shown_spells_control_characters_as_json_does() -> None:
    assert shown("a\tb\r\nü – ε 日本\n") == "a\tb\r\nü – ε 日本\n"
    assert json.loads(f'"{shown("x" + ESCAPE)}"') == "x" + ESCAPE
    assert shown("\udcff\r\u2029") == "\\udcff\\u000d\\u2029"


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "..", "a/b", "\x1b[2J", "é" * 300, "\0", "."])
def test_the_folder_of_a_run_is_in_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = [unused(name), unused(name)]
    assert len(set(made)) == 2
    for folder in made:
        assert folder.is_dir()
        assert folder.resolve().parent == tmp_path / "runs"


def test_a_job_file_may_be_a_link(tmp_path: Path) -> None:
    jobfile.write(job(), tmp_path / "job.toml")
    (tmp_path / "link.toml").symlink_to("job.toml")
    assert jobfile.read(tmp_path / "link.toml")[0] == job()
