"""`vfl show RUN RUN`: the numbers are those of the runs, altered runs are named, and pages load nothing."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

import vfl
from tests.report.test_report import EVIL, Page, data, job, trained
from vfl.apps import cli
from vfl.apps.report.comparison import ComparedRun, as_text, compare, notes_of, write_comparison
from vfl.errors import OutputError, SpecificationError
from vfl.measures import Estimate, Findings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("compare")
    trained(folder / "one", job(evaluation=vfl.Evaluation(holdout=0.4)))
    trained(folder / "two", job(evaluation=vfl.Evaluation(holdout=0.4), privacy=vfl.Privacy(epsilon=8.0, delta=1e-6)))
    return folder / "one", folder / "two"


def invoke(*words: object, command: str = "show") -> tuple[int, str]:
    done = CliRunner().invoke(cli.vfl, [command, *map(str, words)])
    return done.exit_code, done.output


def test_values_are_those_of_the_runs(runs: tuple[Path, Path]) -> None:
    code, said = invoke(*runs, "--json")
    plain = json.loads(said)
    assert code == 0
    for run, found in zip(runs, plain, strict=True):
        certificate = json.loads((run / "certificate.json").read_text(encoding="utf-8"))
        findings = json.loads((run / "findings.json").read_text(encoding="utf-8"))["held out"]["measures"]
        assert (found["run"], found["certificate_holds"], found["private"]) == (run.name, True, True)
        assert (found["epsilon"], found["model"]) == (certificate["epsilon"], certificate["model_digest"])
        assert found["n_trained"] + found["n_held_out"] == certificate["n_records"]
        told = Findings.from_dict({"measures": findings, "n_records": 0, "note": ""}).named
        assert {name: e.get("value") for name, e in found["measures"].items()} == {
            name: None if e.too_noisy else e.value for name, e in told.items()
        }
    assert plain[0]["epsilon"] < plain[1]["epsilon"]


def test_the_table_and_the_page_hold_the_same_cells(runs: tuple[Path, Path], tmp_path: Path) -> None:
    assert invoke(*runs, "--output", tmp_path / "c.html", command="report") == (0, f"page: {tmp_path / 'c.html'}\n")
    assert invoke(*runs, command="report")[0] == 2
    _, said = invoke(*runs)
    page = Page(tmp_path / "c.html")
    assert page.loads_nothing()
    for run in compare(runs):
        for e in run.measures.values():
            assert f"{e.said} {e.spread}".strip() in said
            assert f"{e.said} {e.spread}".strip() in page.said


def test_differences_are_named_beyond_their_noise() -> None:
    def made(name: str, value: float) -> ComparedRun:
        return ComparedRun(name, True, {}, {"auc": Estimate(value, 0.03, 0.5)})

    (none,) = notes_of([made("a", 0.7), made("b", 0.71)])
    assert none.startswith("no measure differs")
    (said,) = notes_of([made("a", 0.7), made("b", 0.9)])
    assert said.startswith("auc: b differs from a by 0.2,")
    other = ComparedRun("b", True, {}, {"mae": Estimate(0.7, 0.03)})
    assert notes_of([made("a", 0.7), other]) == ["a shares no measure with another run, so none can be compared"]
    exact = [ComparedRun(name, True, {}, {"loss": Estimate(0.5, 0.0)}) for name in "ab"]
    assert "no measure differs" in notes_of(exact)[0]


def test_intervals_that_are_not_symmetric_are_compared_by_the_halves_that_face_each_other() -> None:
    def made(name: str, value: float, low: float, high: float) -> ComparedRun:
        return ComparedRun(name, True, {}, {"rmse": Estimate(value, (high - low) / 4, within=(low, high))})

    far = made("b", 2.9, 0.1, 3.4)  # a root at a mean that noise dominates
    assert "no measure differs" in notes_of([made("a", 0.3, 0.2, 0.4), far])[0]
    assert notes_of([made("a", 0.3, 0.2, 0.4), made("b", 2.9, 2.8, 9.0)])[0].startswith("rmse: b differs from a")


def test_digests_are_short_and_options_are_shown(runs: tuple[Path, Path], tmp_path: Path) -> None:
    trained(tmp_path / "three", job(evaluation=vfl.Evaluation(holdout=0.4), solver=vfl.SkGD(passes=3)))
    first, other = compare((runs[0], tmp_path / "three"))
    assert first.facts["solver_options"].startswith("passes = 6, ")
    assert other.facts["solver_options"] == "passes = 3"
    said = as_text((first, other))
    assert other.facts["model"] not in said
    assert f"{other.facts['model'][:16]}…" in said


def test_an_altered_run_is_named(runs: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(runs[0], tmp_path / "forged")
    model = json.loads((tmp_path / "forged" / "model.json").read_text(encoding="utf-8"))
    model["w"][0] += 1.0
    (tmp_path / "forged" / "model.json").write_text(json.dumps(model), encoding="utf-8")
    found = compare((runs[0], tmp_path / "forged"))
    assert [run.holds for run in found] == [True, False]
    assert "DOES NOT HOLD" in as_text(found)


def test_names_are_escaped(runs: tuple[Path, Path], tmp_path: Path) -> None:
    vfl.train(job(EVIL, name=EVIL[0]), data(EVIL), at="inprocess", output=tmp_path / "<b>run")
    page = Page(write_comparison(compare((runs[0], tmp_path / "<b>run")), tmp_path / "c.html"))
    assert page.tags["script"] == page.tags["b"] == 0


def test_refusals(runs: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(SpecificationError, match="needs two runs or more"):
        compare(runs[:1])
    with pytest.raises(OutputError, match="there is no folder"):
        compare((runs[0], tmp_path / "none"))
    with pytest.raises(SpecificationError, match=r"ends in \.html, not '\.csv'"):
        write_comparison(compare(runs), tmp_path / "c.csv")
