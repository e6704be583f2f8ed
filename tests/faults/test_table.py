"""Rows of the fault table (tests.faults.table), each in its own process; the ordinary suite runs the quick ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest

from tests.faults.hosts import ROOT
from tests.faults.table import FAULTS, Row, memory

QUICK = [fault.name for fault in FAULTS if fault.quick]
KINDS = list(dict.fromkeys(fault.kind for fault in FAULTS))


def rows(only: str) -> list[Row]:
    """Cause the faults whose names begin with this prefix. A row that breaks a promise ends the process."""
    command = [sys.executable, "-m", "tests.faults.table", "--json", "--only", only]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    return [Row(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith('{"kind"')]


def test_names_are_unique() -> None:
    assert set(Counter(fault.name for fault in FAULTS).values()) == {1}


@pytest.mark.faults
@pytest.mark.parametrize("name", QUICK)
def test_quick_rows(name: str) -> None:
    if name.startswith("memory") and memory()[1] < 8 << 30:
        pytest.skip("8 GB of free memory are needed to eat some of it")
    (row,) = rows(name)
    assert row.outcome == "finished"
    assert row.lost >= 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_all_rows_of_a_kind(kind: str) -> None:
    """Every error also says how to continue the run."""
    found = rows(f"{kind}, ")
    assert len(found) == sum(fault.name.startswith(f"{kind}, ") for fault in FAULTS)
    for row in found:
        row.check()
        if row.outcome.startswith("ended") and row.told:
            assert "vfl resume" in row.told, row
        if "gone for good" in kind or "for good" in row.kind:
            assert row.outcome != "finished"
