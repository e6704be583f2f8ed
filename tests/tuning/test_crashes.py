"""A tuning run that is killed with SIGKILL at every step of its order, and continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import vfl
from tests.tuning.setting import table
from vfl.apps.tuning.run import resume
from vfl.launch.run.verification import verify_run

ROOT = Path(__file__).resolve().parents[2]

TUNES = """
import json, os, signal, sys
from tests.tuning.setting import CANDIDATES, job, table
from coordinator.executor import Executor
from vfl.apps.tuning import run, sealed

def tune(folder=None):
    run.tune(job(), CANDIDATES, table(), at="inprocess", output=folder, watch=lambda event: None)

def killed_tune(folder, step, when, times):
    owner, name = {
        "reserve": (run.TuningBudget, "reserve"), "charge": (run.TuningBudget, "charge"), "query": (Executor, "__call__"),
        "keep": (run.TrialOutcomes, "keep"), "settle": (run.TuningBudget, "settle"), "draw": (run, "chosen"),
        "stage": (run, "write_whole"), "unpack": (run, "_unpack"), "write": (run, "write_whole"),
        "remove": (run.TrialOutcomes, "remove"),
    }[step]
    real, count = getattr(owner, name), 0

    def killed(*args, **options):
        nonlocal count
        count += 1
        if when == "before" and count == times:
            os.kill(os.getpid(), signal.SIGKILL)
        value = real(*args, **options)
        if when == "after" and count == times:
            os.kill(os.getpid(), signal.SIGKILL)
        return value

    setattr(owner, name, killed)
    tune(folder)

tune()  # loads every module once
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        killed_tune(*json.loads(line))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""A process that forks a tune for each line [folder, step, when, times], and answers with its exit status."""

STEPS = [
    ("reserve", "before", 1),
    ("reserve", "after", 1),
    ("charge", "before", 1),
    ("charge", "after", 1),
    ("query", "before", 1),
    ("query", "after", 4),
    ("query", "before", 15),
    ("keep", "before", 1),
    ("keep", "after", 2),
    ("keep", "after", 3),
    ("settle", "before", 1),
    ("settle", "after", 1),
    ("draw", "after", 1),
    ("stage", "after", 2),
    ("unpack", "before", 1),
    (
        "write",
        "after",
        3,
    ),  # the first file of the winner; before it come the state of the tuning run and the staged winner
    ("write", "before", 6),
    ("unpack", "after", 1),
    ("remove", "after", 1),
]
RELEASED = ("unpack", "write", "remove")
"""Steps after the rename that releases the winner."""


def entries(folder: Path, kind: str) -> list[object]:
    if not (folder / "ledger.db").exists():
        return []
    found = json.loads(vfl.Ledger(folder / "ledger.db").open().export())["entries"]
    return [entry for entry in found if entry["kind"] == kind]


OFTEN = STEPS[3:5] + STEPS[8:9] + STEPS[12:13] + STEPS[14:16]
"""Steps of the default run of the tests."""


@pytest.fixture(scope="module")
def tunes():
    started = subprocess.Popen(
        [sys.executable, "-c", TUNES], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with started:
        yield started
        started.stdin.close()


@pytest.mark.parametrize(
    ("step", "when", "times"),
    [
        pytest.param(*step, id="-".join(map(str, step)), marks=[] if step in OFTEN else pytest.mark.slow)
        for step in STEPS
    ],
)
def test_a_killed_tune_is_charged_once_and_released_once(step, when, times, tunes, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    tunes.stdin.write(json.dumps([str(folder), step, when, times]) + "\n")
    tunes.stdin.flush()
    assert int(tunes.stdout.readline()) == -signal.SIGKILL
    begun = (step, when) not in {("reserve", "before"), ("reserve", "after"), ("charge", "before")}
    assert len(entries(folder, "charge")) == (2 if begun else 0)
    winner = (folder / "winner.json").read_text() if (folder / "winner.json").exists() else None
    assert (winner is not None or (folder / "model.json").exists()) == (step in RELEASED)
    if step in RELEASED:  # nothing is drawn again

        def drawn(*_):
            raise AssertionError("drawn twice")

        monkeypatch.setattr("vfl.apps.tuning.run.chosen", drawn)
    found = resume(folder, table(), at="inprocess", watch=lambda event: None)
    assert len(entries(folder, "charge")) == 2
    assert len(entries(folder, "reserve")) == 1
    assert len(entries(folder, "settle")) == 1
    if winner is not None:
        assert json.loads(winner)["model.json"] == (folder / "model.json").read_text()
        assert "moments" not in json.loads((folder / "model.json").read_text())  # they are withheld with the trial
    left = {path.name for path in folder.iterdir()}
    assert not left & {"sealed", "winner.json"}
    assert found.certificate.epsilon <= 1.0
    report = verify_run(folder)
    assert report.ok, report
