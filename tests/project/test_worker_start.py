"""Modules that a start must not import: a worker process of Ray, of which each pays for them, and the first example.

The code runs in a fresh interpreter, because this one has imported nearly everything.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]
NEITHER = (
    "pandas",
    "grpc",
    "sklearn",
    "matplotlib",
    "vfl.planning.certificate",
    "vfl.launch",
    "vfl.apps.report",
    "cryptography.x509",
    "scipy.special",
)
"""Modules that neither a party nor the coordinator needs."""
PARTY = (
    *NEITHER,
    "vfl.planning",
    "parties.dealing",
    "parties.session",
    "vfl.secure.member",
    "vfl.kernels.ring",
    "coordinator",
)
COORDINATOR = (*NEITHER, "numba", "pyarrow", "parties", "vfl.kernels.compile", "coordinator.secure")

LOADING = """
import sys
import parties.actor
from parties.loading import load
from vfl.job import Job
job, *_ = Job.from_toml(sys.argv[1])
load(job.for_party("bank"), sys.argv[2])
"""
JOB = """
format = 1
name = "start"
[partition]
label = ["bank", "y"]
[partition.parties]
bank = ["age", "debt"]
[bounds]
age = [0, 100]
debt = [0, 10]
[columns.debt]
fill = 0
[privacy]
epsilon = 1.0
delta = 1e-9
"""


def _imported(code: str, *arguments: str) -> set[str]:
    """Run code in a fresh interpreter; return the names of the modules that it imported, and of their packages."""
    report = "\nimport sys; print('\\n' + ' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code + report, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_a_party_imports_and_loads_without_heavy_modules(tmp_path: Path) -> None:
    """The numbers have missing cells and the label is text, so that every conversion of Arrow's cells is used."""
    (tmp_path / "job.toml").write_text(JOB, encoding="utf-8")
    table = pa.table({"age": [30, 40, 50], "debt": [1.0, None, 2.0], "y": ["1", "0", "1"]})
    pq.write_table(table, tmp_path / "bank.parquet")
    imported = _imported(LOADING, str(tmp_path / "job.toml"), str(tmp_path / "bank.parquet"))
    assert "vfl.kernels.dense" in imported
    assert imported.isdisjoint(PARTY)


def test_the_coordinator_imports_no_heavy_modules() -> None:
    """Kernels belong to the parties; only a run on shares opens sums with them at the coordinator."""
    imported = _imported("import coordinator.cluster.actor")
    assert "coordinator.executor" in imported
    assert imported.isdisjoint(COORDINATOR)


def test_the_first_example_imports_no_heavy_modules() -> None:
    """The first command of the README reads adult; scikit-learn and pandas would take half of the time to its plan."""
    imported = _imported("from vfl import examples; examples.table('adult')")
    assert "pyarrow.parquet" in imported
    assert imported.isdisjoint({"sklearn", "pandas"})


def test_plans_are_made_without_kernels() -> None:
    """Only a process that holds columns needs kernels; the driver of a run on Ray and `vfl verify` start like `vfl plan`."""
    imported = _imported("from vfl.apps.cli import vfl; vfl(['plan', 'adult'], standalone_mode=False)")
    assert "vfl.planning" in imported
    assert "vfl.launch.run.result" in imported
    assert imported.isdisjoint({"sklearn", "pandas", "numba", "ray"})
