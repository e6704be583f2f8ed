"""The utility benchmark runs, says how each figure came about, and its problems are those of the papers."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.benchmarks import problems, utility
from tests.benchmarks.oracle import search
from tests.benchmarks.results import Settings


def test_the_quick_row(tmp_path):
    (task,) = utility.tasks(Settings(quick=True))
    tuned, untuned = task.run()
    (row,) = [utility.QUICK]
    assert not set(tuned.seeds) & set(row.search_seeds)
    assert tuned.seeds == untuned.seeds == (1, 2, 3)
    assert (tuned.tuned, untuned.tuned) == ("oracle grid", "default")
    assert tuned.settings["passes"] == 10
    assert not untuned.settings
    for result in (tuned, untuned):
        assert 0 < result.mean < result.beside["start"] / 100
        assert result.spread > 0


def test_rows_that_need_absent_data_are_named():
    absent = {task.name: task.absent for task in utility.tasks(Settings()) if task.run is None}
    assert "--data" in absent["Electricity raw, private M"]
    assert "dorothea" in absent
    assert "Sparse LASSO, ε=10" not in absent


def test_what_an_oracle_found_is_looked_up_and_what_it_finds_anew_is_recorded(tmp_path, monkeypatch):
    row, case = replace(utility.QUICK, name="kept"), utility.QUICK.build(None)
    monkeypatch.setattr(utility, "RECORD", tmp_path / "oracle.json")
    monkeypatch.setattr(utility, "search", lambda *given: ({"clip": 2.0, "step_size": 0.5}, 7))
    found = utility.tuned(row, case, anew=False)
    monkeypatch.setattr(utility, "search", None)
    assert utility.tuned(row, case, anew=False) == found == {"clip": 2.0, "step_size": 0.5}
    assert json.loads((tmp_path / "oracle.json").read_text(encoding="utf-8"))["kept"]["tried"] == 7


def test_recorded_settings_are_of_rows_and_on_their_grids():
    record = json.loads(utility.RECORD.read_text(encoding="utf-8"))
    rows = {row.name: row for row in utility.ROWS}
    assert set(record) == set(rows)
    for name, found in record.items():
        assert set(found["options"]) == set(rows[name].grids)
        assert all(value in rows[name].grids[option] for option, value in found["options"].items())


def test_the_sparse_problem_is_pinned():
    (row,) = [row for row in utility.ROWS if row.name == "Square, L1"]
    case = row.build(None)
    assert case.start / case.best - 1.0 == pytest.approx(0.7551, abs=5e-5)
    w = case.minimum[1]
    assert case.support_score(w) == 1.0
    assert case.support_score(np.zeros_like(w)) == 0.0


def test_an_error_is_of_the_objective_itself():
    case = problems.synthetic("case", 1.0, loss="squared", n=200, p=3)
    assert case.error_of(np.zeros(4)) == pytest.approx(case.start / case.best - 1.0)
    assert case.error_of(np.full(4, np.nan)) == np.inf


@pytest.mark.parametrize("start", [{"a": 1, "b": 8}, {"a": 5, "b": 1}])
def test_the_search_finds_the_least_mean(start):
    """A bowl with its least value at (4, 2); seeds shift it by nothing on average."""

    def errors(seeds, a, b):
        return [(a - 4) ** 2 + (np.log2(b) - 1) ** 2 + 1 + seed for seed in seeds]

    found, tried = search(errors, {"a": (1, 2, 3, 4, 5), "b": (1, 2, 4, 8)}, [start], seeds=(-1, 1))
    assert found == {"a": 4, "b": 2}
    assert tried < 20
