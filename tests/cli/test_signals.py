"""Ctrl-C and SIGTERM end a command and all that it started in one line."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import vfl

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 120.0
"""Seconds after which a process counts as one that does not end."""
JOB = """format = 1
name = "big"
id = "id"
[partition]
label = ["bank", "y"]
[partition.parties]
bank = ["a"]
telco = ["b"]
[bounds]
"*" = [-1, 1]
[privacy]
epsilon = 1.0
[solver]
kind = "SkGD"
passes = 3000
[data]
bank = "bank.parquet"
telco = "telco.parquet"
"""
MARK = "VFL_TEST_MARK"
pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("signals")
    rng = np.random.default_rng(0)
    n = 3_000
    ids = [f"c{i}" for i in range(n)]
    a, b = rng.uniform(-1, 1, (2, n))
    y = (a > b).astype(int)
    pyarrow.parquet.write_table(pa.table({"id": ids, "a": a, "y": y}), folder / "bank.parquet")
    pyarrow.parquet.write_table(pa.table({"id": ids, "b": b}), folder / "telco.parquet")
    (folder / "job.toml").write_text(JOB, encoding="utf-8")
    return folder


def marked(mark: str) -> Iterator[int]:
    """Yield the processes that inherited this mark."""
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in environ.read_bytes():
                yield int(environ.parent.name)
        except OSError:
            continue


def ended(folder: Path, words: list[str], number: signal.Signals, after: str) -> tuple[int, str, float]:
    """Run a command, send the signal once its output holds a text; return exit code, last line and seconds to the last end.

    A command that prints fewer lines than `ROOM` waits in its next write until the signal has been sent, however slow this
    process is: its pipe is full.
    """
    mark = uuid.uuid4().hex
    environ = {**os.environ, MARK: mark, "PYTHONPATH": str(Path(vfl.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}
    reads, writes = os.pipe()
    filled = fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 1) - ROOM
    os.write(writes, b"\n" * filled)
    with (
        subprocess.Popen(
            [sys.executable, "-m", "vfl", *words],
            cwd=folder,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=writes,
            start_new_session=True,
        ) as process,
        os.fdopen(reads, encoding="utf-8") as stderr,
    ):
        os.close(writes)
        while waiting(reads) == filled and process.poll() is None:
            time.sleep(0.02)
        said = [] if after == FIRST else [next(line for line in stderr if line.startswith(after))]
        started = time.monotonic()
        process.send_signal(number)
        said += stderr.readlines()
        code = process.wait(LIMIT)
        while list(marked(mark)) and time.monotonic() - started < LIMIT:
            time.sleep(0.02)
        return code, said[-1], time.monotonic() - started


def waiting(descriptor: int) -> int:
    """Return the number of bytes in a pipe."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


ROOM = 120
"""Bytes of output for which the pipe has room: two or three lines."""
FIRST = ""
RUN = ["run", "job.toml", "--at", "inprocess"]
COMMANDS = {
    "run": (RUN, "round "),
    "align": (["align", "job.toml", "--at", "inprocess", "--again"], FIRST),
}


@pytest.mark.parametrize(("name", "number"), [("run", signal.SIGINT), ("align", signal.SIGTERM)])
def test_in_one_process(folder: Path, name: str, number: signal.Signals) -> None:
    words, after = COMMANDS[name]
    output = f"{name}-{number.name}"
    code, last, seconds = ended(folder, words + (["--output", output] if name == "run" else []), number, after)
    told = f"interrupted; the run keeps its releases; continue with: vfl resume {output}\n"
    assert (code, last) == (130, told if name == "run" else "interrupted\n")
    assert seconds < LIMIT


@pytest.mark.faults
def test_on_ray(folder: Path) -> None:
    """SIGTERM is the harder one: Ray aborts on it with a stack trace."""
    words = ["run", "job.toml", "--output", "on-ray"]
    code, last, seconds = ended(folder, words, signal.SIGTERM, "round ")
    assert (code, last) == (130, "interrupted; the run keeps its releases; continue with: vfl resume on-ray\n")
    assert seconds < LIMIT
