"""Worker processes that a local Ray starts ahead of a run: they import modules and hold nothing of an earlier run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNSET = ("PYTHONPATH", "VFL_ONE_RUN")  # a command that ran in this process has set the second

JOBS = """
import os, sys, time
import numpy as np
import pyarrow as pa
import vfl
from vfl.launch.sites.connection import connected, import_ray

ray, facts = import_ray(), {"runs": [], "idle": []}
import psutil  # of Ray

def facts_here():
    import parties.actor

    seen, parties.actor.seen = getattr(parties.actor, "seen", None), True
    process = psutil.Process()
    return {"pid": process.pid, "started": process.create_time(), "seen": seen, "code": parties.actor.__file__}

def part(names, seed, file):
    def read():
        import json
        with open(file, "a") as log:
            log.write(json.dumps(facts_here()) + "\\n")
        rng = np.random.default_rng(seed)
        return pa.table({name: rng.integers(0, 2, 400) for name in names})
    return read

class Idle:
    def __init__(self):
        self.imported = "parties.actor" in sys.modules and "coordinator.cluster.actor" in sys.modules

    def facts(self):
        return self.imported, psutil.Process().create_time()

def run(number):
    held = {"bank": ["a"], "telco": ["b"]}
    job = vfl.Job(
        partition=vfl.FeaturePartition(held, label=("telco", "y")),
        bounds={"a": (0, 1), "b": (0, 1)},
        privacy=vfl.Privacy(epsilon=1.0, delta=1e-6),
        solver=vfl.SkGD(passes=2),
    )
    file = f"{number}.jsonl"
    sources = {"bank": part(["a"], number, file), "telco": part(["b", "y"], number, file)}
    begun, ended = time.time(), []
    vfl.train(job, sources, at=vfl.Ray(), watch=lambda event: ended.append(time.time()))
    with open(file) as log:
        facts["runs"].append({"begun": begun, "ended": ended[-1], "parties": [json.loads(line) for line in log]})

def filled(number, since=0.0):
    # Wait for so many idle processes that began after `since`, a second ago or more: they register after they take this name.
    for _ in range(600):
        idle = [child for child in psutil.Process().children(recursive=True) if is_idle(child, since)]
        if len(idle) >= number:
            return
        time.sleep(0.1)

def is_idle(process, since):
    try:
        return process.cmdline()[:1] == ["ray::IDLE"] and since < process.create_time() < time.time() - 1.0
    except psutil.Error:
        return False

import json
with connected(3, None):
    filled(3)
    begun = time.time()
    actors = [ray.remote(Idle).options(num_cpus=0).remote() for _ in range(3)]
    facts["idle"] = [(imported, started < begun) for imported, started in ray.get([a.facts.remote() for a in actors])]
    for actor in actors:
        ray.kill(actor)
run(0)
filled(3, facts["runs"][0]["ended"] - 0.1)
run(1)
facts["children"] = [child.pid for child in psutil.Process().children(recursive=True)]
print(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Facts of two runs with other data in one process, whose packages only the folder of its script names."""
    folder = tmp_path_factory.mktemp("checkout")
    for package in ("vfl", "coordinator", "parties"):
        shutil.copytree(ROOT / package, folder / package)
    (folder / "jobs.py").write_text(JOBS, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name not in UNSET}
    done = subprocess.run(
        [sys.executable, "jobs.py"], capture_output=True, text=True, cwd=folder, env=environment, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return {"folder": str(folder), **json.loads(done.stdout.splitlines()[-1])}


def test_a_run_starts_in_waiting_processes_that_began_after_the_run_before(facts: dict[str, Any]) -> None:
    first, second = facts["runs"]
    assert all(first["ended"] - 0.1 < party["started"] for party in second["parties"])
    assert any(party["started"] < second["begun"] - 0.9 for party in second["parties"])  # it has waited for longer


def test_nothing_of_a_run_is_in_the_processes_of_the_next(facts: dict[str, Any]) -> None:
    parties = [party for run in facts["runs"] for party in run["parties"]]
    assert len(parties) == len({party["pid"] for party in parties}) == 4
    assert not any(party["seen"] for party in parties)


def test_waiting_processes_have_imported_the_modules_of_actors(facts: dict[str, Any]) -> None:
    assert facts["idle"] == [[True, True]] * 3


def test_workers_import_the_packages_of_the_process_that_starts_ray(facts: dict[str, Any]) -> None:
    assert {str(Path(party["code"]).parents[1]) for run in facts["runs"] for party in run["parties"]} == {
        facts["folder"]
    }


def test_no_process_outlives_the_one_that_started_ray(facts: dict[str, Any]) -> None:
    until = time.monotonic() + 30
    while left := [pid for pid in facts["children"] if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < until, left
        time.sleep(0.1)
