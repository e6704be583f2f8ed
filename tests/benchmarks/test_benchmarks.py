"""The benchmark command: rows, continuation after an interruption, tables, pages and plots."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import vfl
from tests.benchmarks import command, peers, plots, problems, report
from tests.benchmarks.report import Book
from tests.benchmarks.results import Result, Settings, Task


def result(**given):
    return Result(**{"part": "scale", "case": "c", "arm": "a", "measure": "seconds", "values": (1.0, 3.0)} | given)


@pytest.mark.parametrize(
    ("given", "ahead", "said"),
    [
        ({"against": 4.0, "source": "paper"}, 2.0, "ahead 2.00 ×"),
        ({"against": 1.0, "note": "noise"}, 0.5, "**behind** 2.00 ×: noise"),
        ({"against": 1.0, "less": False}, 2.0, "ahead 2.00 ×"),
        ({"against": 1.0, "less": None}, None, ""),
        ({"against": 2.5, "source": "exact", "ours": False}, 1.25, "0.80 × exact"),
        ({"note": "alone"}, None, "alone"),
    ],
)
def test_a_verdict(given, ahead, said):
    found = result(**given)
    assert found.ahead == ahead
    assert report.verdict(found) == said
    assert said in report.line(found) + said * (found.against is None)


def test_a_result_needs_runs_and_a_known_tuning():
    with pytest.raises(ValueError, match="at least one run"):
        result(values=())
    with pytest.raises(ValueError, match="not a kind of tuning"):
        result(tuned="by hand")


def test_finished_tasks_survive_an_interruption(tmp_path):
    book, asked = Book(tmp_path, {"quick": True}), {"quick": True}
    kept = result(at={"n": 10}, settings={"clip": 0.5, "solver": object}, seeds=(1, 2), values=(1.0, math.inf))
    book.add("scale", "one", [kept], 0.1)
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"format": 1, "part": "scale", "task": "tw')
    again = Book(tmp_path, asked)
    assert again.holds("scale", "one")
    assert not again.holds("scale", "two")
    assert again.results[0].values == (1.0, math.inf)
    again.add("scale", "two", [result()], 0.1)
    assert len(Book(tmp_path, asked).results) == 2
    assert not Book(tmp_path, {"quick": False}).holds("scale", "one")


def planted(tasks, monkeypatch):
    monkeypatch.setattr(command, "tasks_of", lambda part, settings: iter(tasks))


def test_the_command_continues_after_failures_and_lists_omitted_tasks(tmp_path, monkeypatch, capsys):
    done = []

    def works():
        done.append(1)
        yield result(against=4.0)

    def fails():
        raise ZeroDivisionError("by zero")

    planted([Task("a", fails), Task("b", works), Task("c", absent="there are no data")], monkeypatch)
    order = ["scale", "--output", str(tmp_path)]
    assert command.main(order) == 1
    printed = capsys.readouterr().out
    assert "* scale, a: failed: ZeroDivisionError: by zero" in printed
    assert "* scale, c: there are no data" in printed
    assert "ahead 2.00 ×" in printed
    command.main(order)
    assert done == [1]
    written = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    (row,) = written["results"]
    assert row["mean"] == 2.0
    assert {"processor", "versions", "load", "commit"} <= set(row["machine"])
    assert (tmp_path / "results.md").read_text(encoding="utf-8").startswith("## scale")


def test_an_unknown_part_is_refused(capsys):
    with pytest.raises(SystemExit):
        command.main(["utilty"])
    assert "no part utilty" in capsys.readouterr().err


def test_a_page_keeps_sections_that_were_not_measured_again(tmp_path):
    page, book = tmp_path / "page.md", Book(tmp_path, {})
    marks = "<!-- results of {} -->\nold\n<!-- end -->\n"
    page.write_text("before\n" + marks.format("scale, width") + marks.format("speed") + "after\n", encoding="utf-8")
    book.add("scale", "t", [result(case="width"), result(case="length")], 0.0)
    for _ in range(2):
        report.fill(page, book)
        text = page.read_text(encoding="utf-8")
        assert "width | a" in text
        assert "length" not in text
        assert text.count("old") == 1
        assert text.startswith("before\n")
        assert text.endswith("after\n")


def test_a_page_shows_the_plots_beside_it(tmp_path):
    pytest.importorskip("matplotlib")
    page, book = tmp_path / "page.md", Book(tmp_path / "out", {})
    page.write_text("<!-- plots of scale, by-n -->\n<!-- end -->\n", encoding="utf-8")
    book.add("scale", "t", [result(at={"n": n}) for n in (1, 10, 100)], 0.0)
    report.fill(page, book)
    report.fill(page, book)
    assert page.read_text(encoding="utf-8").count("![scale c seconds by n](page/scale-c-seconds-by-n.png)") == 1
    assert (tmp_path / "page" / "scale-c-seconds-by-n.png").stat().st_size < 60_000


def test_a_sweep_varies_one_number(tmp_path):
    along = [result(at={"epsilon": e, "passes": 5}, values=(1 / e, 2 / e)) for e in (3.0, 0.1, 1.0)]
    found = plots.sweeps([*along, result(at={"kind": "x"}), result(case="other", at={"n": 3})])
    ((key, curves),) = found.items()
    assert key == ("scale", "c", "seconds", "epsilon")
    assert [r.at["epsilon"] for r in curves["a, passes 5"]] == [0.1, 1.0, 3.0]
    pytest.importorskip("matplotlib")
    (path,) = plots.draw(along, tmp_path)
    assert path.name == "scale-c-seconds-by-epsilon.png"
    assert path.stat().st_size > 2_000


def test_the_number_of_seeds_is_the_requested_one():
    assert Settings().seeds(4) == (1, 2, 3, 4)
    assert Settings(quick=True).seeds(4) == (1, 2, 3)
    assert Settings(quick=True, runs=1).seeds(4) == (1,)


PLACES = {
    "sweep": "squared, 2,000 × 8, SkGD by ε",
    "scale": "records",
    "privacy": "calibration",
    "partitions": "β",
    "peers": "squared, 3,000 × 8, ε=1",
}


@pytest.mark.parametrize(("part", "name"), PLACES.items())
def test_a_part_yields_valid_results(part, name, tmp_path):
    pytest.importorskip("mpmath")
    settings = Settings(quick=True, runs=1, scratch=tmp_path)
    tasks = {task.name: task for task in command.tasks_of(part, settings)}
    assert len(tasks) == len(list(command.tasks_of(part, settings))), "names of tasks are unique"
    found = list(tasks[name].run())
    assert {r.part for r in found} == {part}
    for r in found:
        assert all(map(math.isfinite, r.values))
        assert r.tuned or not r.seeds
        assert "commit" in r.machine
    if part == "privacy":
        ours = [r for r in found if r.arm == "vfl"]
        assert all(r.against <= r.figure < r.against * (1 + 1e-12) for r in ours)
        assert all(r.figure > 1.04 * r.against for r in found if r.arm != "vfl")


def test_missing_parts_are_listed(monkeypatch):
    monkeypatch.setattr(command, "PARTS", ("nothing",))
    (task,) = command.tasks_of("nothing", Settings())
    assert task.absent.endswith("tests.benchmarks.nothing")


def test_missing_peers_are_listed():
    absent = {task.name: task.absent for task in command.tasks_of("peers", Settings(quick=True)) if task.run is None}
    assert "--peers-env" in absent["diffprivlib"]


def test_problems_that_a_solver_refuses_are_listed(tmp_path):
    book = Book(tmp_path, {})
    settings = Settings(quick=True, runs=1, scratch=tmp_path)
    assert command.run(["sweep"], settings, book, ["logistic, 2,000 × 8, NoisyGram"]) == 0
    assert book.left_out["sweep", "logistic, 2,000 × 8, NoisyGram by ε"].startswith(
        "SpecificationError: NoisyGram needs"
    )


@pytest.mark.parametrize("path", sorted(Path(command.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_every_module_can_be_imported(path):
    if path.stem not in ("__init__", "__main__"):
        importlib.import_module(f"tests.benchmarks.{path.stem}")


@pytest.fixture(scope="module")
def mixed():
    """Categories and numbers; the label is the first party's, so that the intercept stands in the middle."""
    rng = np.random.default_rng(0)
    n = 400
    kind, x, z = rng.choice(["a", "b", "c"], n), rng.uniform(0, 2, n), rng.uniform(-1, 1, n)
    y = (x - 1 + (kind == "a") + 0.5 * rng.normal(size=n) > 0).astype(float)
    job = problems.private_job(
        {"p": ["kind"], "q": ["x", "z"]}, ("p", "y"), {"x": (0, 2), "z": (-1, 1)}, 1.0,
        columns={"kind": vfl.Categorical(("a", "b", "c"))},
    )  # fmt: skip
    return peers.Split.of(problems.Case("mixed", job, pa.table({"kind": kind, "x": x, "z": z, "y": y})))


def test_the_floor_is_the_minimum_wherever_the_intercept_stands(mixed):
    assert mixed.intercept == 3
    (floor,) = peers.floor("mixed", lambda: mixed)
    assert abs(floor.mean) < 1e-9
    assert floor.beside["accuracy"] > 0.6


def test_peers_get_the_same_objective_and_rows_within_their_bound(mixed):
    given, w = peers.Given(mixed), np.random.default_rng(1).normal(size=6)
    X, _ = mixed.case.scaled
    ours = given.back(w)
    np.testing.assert_allclose(X @ ours, given.columns @ w, atol=1e-12)
    features = np.delete(ours, mixed.intercept)
    assert given.strength * (w[:-1] @ w[:-1]) == pytest.approx(peers.PENALTY.strength * (features @ features))
    norms = np.linalg.norm(given.columns, axis=1)
    assert norms.max() <= given.norm == 2.0
