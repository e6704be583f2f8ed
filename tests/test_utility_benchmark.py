"""The utility benchmark runs, says how each figure came about, and its problems are those of the papers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.benchmarks import problems, utility
from tests.benchmarks.oracle import search


def test_the_quick_row(tmp_path, capsys):
    utility.main(
        ["--quick", "--seeds", "3", "--json", str(tmp_path / "rows.json"), "--markdown", str(tmp_path / "table.md")]
    )
    printed = capsys.readouterr().out
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == printed
    written = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    (row,) = written["rows"]
    assert row["tried"] > 10
    assert not set(row["seeds"]) & set(row["search_seeds"])
    assert {"machine", "processors", "versions", "tuned", "untuned"} <= set(written)
    for kind in ("tuned", "untuned"):
        assert 0 < row[kind]["mean"] < row["start"] / 100
        assert row[kind]["deviation"] > 0


def test_rows_that_need_absent_data_are_named(capsys):
    utility.main(["--rows", "Electricity raw"])
    assert (
        "Left out, their data are not at hand: Electricity raw, Electricity raw, private M." in capsys.readouterr().out
    )


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
