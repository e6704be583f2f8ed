"""Progress output of a run: on terminals of any width, in a pipe, in a log, and after its reader has gone."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from click.testing import CliRunner

import vfl
from coordinator.rounds import Round
from vfl.apps import cli
from vfl.apps.cli.administration.ledger import STOPPED_EARLY
from vfl.apps.cli.terminal.progress import LINES, Progress, Steps, is_live
from vfl.apps.cli.terminal.streams import outliving
from vfl.job import file as jobfile
from vfl.launch.run import checkpoint
from vfl.launch.run.checkpoint import charged_before
from vfl.launch.run.result import Result
from vfl.launch.train import resume
from vfl.planning import plan as make_plan

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
N = 60
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def job(**options: Any) -> vfl.Job:
    privacy = options.pop("privacy", vfl.Privacy(epsilon=1.0, delta=1e-6))
    return vfl.Job(
        partition=vfl.FeaturePartition({"bank": ["a", "b"], "telco": ["c"]}, label=("bank", "y")),
        bounds=dict.fromkeys("abc", (-1.0, 1.0)),
        privacy=privacy,
        solver=vfl.SkGD(passes=options.pop("passes", 30), clip="coordinate"),
        name="credit",
    )


def data() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {name: rng.uniform(-1, 1, N) for name in "abc"}
    return columns | {"y": (columns["a"] > 0).astype(int)}


def train(watch: Callable[[Any], None], **options: Any) -> vfl.Result:
    return vfl.train(job(**options), data(), at="inprocess", watch=watch)


class TestPiped:
    def test_one_line_per_tenth_of_the_rounds(self, capfd: pytest.CaptureFixture[str]) -> None:
        with Progress() as progress:
            train(progress)
        out, err = capfd.readouterr()
        rounds = [line for line in err.splitlines() if line.startswith("round ")]
        total = make_plan(job(), N).messages
        assert out == ""
        assert len(rounds) == LINES
        assert rounds[-1].startswith(f"round {total}/{total}  ε 1.000 of 1")
        assert re.fullmatch(r"round \d+/\d+  ε 0\.\d{3} of 1  \d+ s left", rounds[0])

    def test_no_control_characters_whatever_the_environment(
        self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in (("FORCE_COLOR", "1"), ("TTY_COMPATIBLE", "1"), ("TERM", "xterm-256color")):
            monkeypatch.setenv(name, value)
        with Progress() as progress:
            train(progress)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", capfd.readouterr().err)

    def test_the_plan_is_not_wrapped(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "40")
        with Progress() as progress:
            train(progress)
        assert capfd.readouterr().err.startswith(f"{make_plan(job(), N)}\n")

    def test_a_short_run_has_one_line_per_round(self, capfd: pytest.CaptureFixture[str]) -> None:
        with Progress() as progress:
            train(progress, passes=1)
        rounds = [line for line in capfd.readouterr().err.splitlines() if line.startswith("round ")]
        assert len(rounds) == make_plan(job(passes=1), N).messages

    def test_without_privacy(self, capfd: pytest.CaptureFixture[str]) -> None:
        with Progress() as progress:
            train(progress, privacy=None)
        assert "no privacy" in capfd.readouterr().err.splitlines()[-1]

    def test_quiet_prints_nothing(self, capfd: pytest.CaptureFixture[str]) -> None:
        with Progress(quiet=True) as progress:
            train(progress)
        assert capfd.readouterr() == ("", "")

    def test_an_interrupted_run_shows_how_far_it_got(self, capfd: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(KeyboardInterrupt), Progress() as progress:
            train(_cut_at(progress, 7))
        assert capfd.readouterr().err.splitlines()[-1].startswith("round 8/")

    def test_a_resumed_run_explains_missing_rounds(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        """Releases that were charged and lost are not made again, so the run has fewer rounds than planned without
        failing."""
        with pytest.raises(KeyboardInterrupt), Progress() as progress:
            vfl.train(job(), data(), at="inprocess", output=tmp_path / "run", watch=_cut_at(progress, 7))
        assert "finished" not in capfd.readouterr().err
        log = tmp_path / "run" / checkpoint.NAME
        log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))  # killed before it was logged
        with Progress(earlier=charged_before(tmp_path / "run", job())) as progress:
            resume(tmp_path / "run", data(), at="inprocess", watch=progress)
        last = capfd.readouterr().err.splitlines()[-1]
        total = make_plan(job(), N).messages
        assert re.fullmatch(
            rf"finished after \d+ of at most {total} rounds; releases that were charged and lost .*", last
        )
        shown = CliRunner().invoke(cli.vfl, ["ledger", "show", str(tmp_path / "run" / "ledger.db")]).output
        assert shown.count(STOPPED_EARLY) == 1


def _cut_at(progress: Progress, number: int) -> Callable[[Any], None]:
    def watch(event: Any) -> None:
        progress(event)
        if isinstance(event, Round) and event.number == number:
            raise KeyboardInterrupt

    return watch


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], str]:
    """Run something with standard error on a terminal of a given width, and return the bytes that the terminal
    received."""

    def on(columns: int, what: Callable[[], None]) -> str:
        main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        sent, before = b"", os.dup(2)
        os.dup2(side, 2)  # the width is read from the process's own standard error
        with os.fdopen(side, "w", encoding="utf-8") as stream:
            monkeypatch.setattr(sys, "stderr", stream)
            monkeypatch.setenv("TERM", "xterm")
            for name in ("CI", "COLUMNS", "LINES"):
                monkeypatch.delenv(name, raising=False)
            what()
            stream.flush()
            monkeypatch.undo()
            os.dup2(before, 2)
            os.close(before)
            os.set_blocking(main, False)
            while chunk := _read(main):
                sent += chunk
        os.close(main)
        return sent.decode()

    return on


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return b""


class TestTerminal:
    def test_only_the_drawn_line_moves_the_terminal(
        self, terminal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def run() -> None:
            monkeypatch.setattr(sys, "__stderr__", sys.stderr)
            with outliving():
                steps = Steps()
                steps.begin(3)
                steps.advance(1, lambda: "caption\x1b]0;x\x07")
                click.echo("line\x1b[2J\x9b1m", err=True)
                steps.end()

        sent = terminal(80, run)
        assert "\x1b[?25l" in sent
        assert "caption\\u001b]0;x\\u0007" in sent
        assert "line\\u001b[2J\\u009b1m" in sent

    @pytest.mark.parametrize("columns", [12, 24, 40, 80, 200])
    def test_the_line_never_wraps(self, terminal: Callable[..., str], columns: int) -> None:
        def run() -> None:
            assert is_live()
            with Progress() as progress:
                train(progress, passes=5)

        sent = terminal(columns, run)
        drawn = sent[sent.index("starting") if "starting" in sent else sent.rindex("compares)") :]
        lines = [CONTROL.sub("", line) for line in re.split(r"[\r\n]+", drawn)]
        assert max(map(len, lines)) <= columns
        if columns >= 40:
            total = make_plan(job(passes=5), N).messages
            assert f"round {total}/{total}  ε 1.000 of 1" in lines[-2]
        assert sent.endswith("\x1b[?25h")  # the cursor is shown again

    @pytest.mark.parametrize(("name", "value"), [("CI", "true"), ("TERM", "dumb")])
    def test_a_log_is_not_a_terminal(
        self, terminal: Callable[..., str], monkeypatch: pytest.MonkeyPatch, name: str, value: str
    ) -> None:
        def run() -> None:
            monkeypatch.setenv(name, value)
            with Progress() as progress:
                train(progress, passes=2)

        assert "\x1b" not in terminal(80, run)


class TestResumed:
    @pytest.mark.parametrize("noise", [None, vfl.SeededNoise(3)], ids=["real", "seeded"])
    def test_it_shows_the_epsilon_of_the_whole_run(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str], noise: Any
    ) -> None:
        from vfl.launch.run.checkpoint import charged_before
        from vfl.launch.train import resume

        spec = job(privacy=vfl.Privacy(epsilon=1.0, delta=1e-6, noise=noise))
        folder = tmp_path / "run"
        with pytest.raises(KeyboardInterrupt):
            vfl.train(spec, data(), at="inprocess", output=folder, watch=_cut_at(Progress(quiet=True), 30))
        earlier = charged_before(folder, jobfile.read(folder / jobfile.NAME)[0])
        capfd.readouterr()
        with Progress(earlier=earlier) as progress:
            result = resume(folder, data(), at="inprocess", watch=progress)
        rounds = [line for line in capfd.readouterr().err.splitlines() if line.startswith("round ")]
        shown = [float(re.search(r"ε (\S+) of", line)[1]) for line in rounds]  # type: ignore[index]
        assert shown[0] > 0.5
        assert shown == sorted(shown)
        counted = sum(earlier.values()) + sum(map(len, _made_since(folder, 31)))
        planned = sum(count for _, count in result.certificate.events)
        assert planned == counted
        assert shown[-1] <= 1.0
        assert noise is None or shown[-1] == 1.0


def _made_since(folder: Path, number: int) -> list[Any]:
    from vfl.launch.run import checkpoint

    return list(checkpoint.read(folder, jobfile.read(folder / jobfile.NAME)[0])[2].charged[number:])


class TestClosedPipe:
    """`vfl run JOB | head`: the reader ends, the run goes on."""

    def test_the_run_goes_on_and_leaves_its_model(self, tmp_path: Path) -> None:
        table = data()
        pacsv.write_csv(pa.table(table), tmp_path / "all.csv")
        jobfile.write(job(passes=5), tmp_path / "job.toml")
        with (tmp_path / "job.toml").open("a", encoding="utf-8") as file:
            file.write('\n[simulation]\ntable = "all.csv"\n')
        reader, writer = os.pipe()
        os.close(reader)
        code = "import sys; from vfl.apps.cli import main; sys.argv = ['vfl', *sys.argv[1:]]; main()"
        arguments = ("run", "job.toml", "--at", "inprocess", "--output", "out")
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=tmp_path,
            stdout=writer,
            stderr=writer,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            timeout=120,
        )
        os.close(writer)
        assert done.returncode == 0
        assert Result.load(tmp_path / "out").certificate.private

    def test_the_exit_code_still_states_the_cause(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        code = "import sys; from vfl.apps.cli import main; sys.argv = ['vfl', 'plan', 'none.toml']; main()"
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=writer, stderr=writer, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
        os.close(writer)
        assert done.returncode == 2

    def test_a_full_disk_is_not_mistaken_for_a_closed_pipe(self) -> None:
        if not Path("/dev/full").exists():
            pytest.skip("there is no /dev/full here")
        code = "import sys; from vfl.apps.cli import main; sys.argv = ['vfl', '--help']; main()"
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-c", code],
                stdout=full,
                stderr=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )
        assert done.returncode != 0
