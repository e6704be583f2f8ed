"""Model cards: they state what findings and certificate state, in both forms, and escape all names."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

import vfl
from tests.report.test_report import EVIL, Page, data, job, trained
from vfl.apps import cli
from vfl.apps.report import write_card, write_run
from vfl.errors import OutputError, SpecificationError
from vfl.measures.estimates import Findings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card") / "run"
    trained(folder, job(evaluation=vfl.Evaluation(holdout=0.4)))
    return folder


def test_a_card_states_measures_guarantee_and_digests(run: Path) -> None:
    path, report = write_card(run)
    said = path.read_text(encoding="utf-8")
    assert path == run / "card.md"
    assert report.ok
    certificate = json.loads((run / "certificate.json").read_text(encoding="utf-8"))
    findings = json.loads((run / "findings.json").read_text(encoding="utf-8"))["held out"]
    assert certificate["model_digest"] in said
    for name, estimate in Findings.from_dict(findings).named.items():
        low, high = estimate.interval
        assert f"| held out | {name} | {estimate.said} | \\[{low:.3g}, {high:.3g}\\] |" in said
    for sentence in report.guarantee:
        assert sentence.split("(")[0].strip() in said
    for heading in ("Model", "Intended use", "How good it is", "What is promised", "Data", "Limits", "Provenance"):
        assert f"## {heading}\n" in said
    assert "Held-out records are missing" in said


def test_the_page_has_the_same_text(run: Path, tmp_path: Path) -> None:
    page = Page(write_card(run, tmp_path / "card.html")[0])
    assert "To be completed by the owner" in page.said
    assert page.headings == [
        line[3:].strip()
        for line in write_card(run)[0].read_text(encoding="utf-8").splitlines()
        if line.startswith("## ")
    ]
    assert page.loads_nothing()


def test_names_are_escaped(tmp_path: Path) -> None:
    vfl.train(job(EVIL, name=EVIL[2]), data(EVIL), at="inprocess", output=tmp_path / "run")
    for ending in (".md", ".html"):
        text = write_card(tmp_path / "run", tmp_path / f"card{ending}")[0].read_text(encoding="utf-8")
        assert "<script>" not in text
        assert "<svg" not in text
        assert "<img" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_a_run_without_holdout_says_so(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    said = write_card(tmp_path / "run")[0].read_text(encoding="utf-8")
    assert "Nothing was measured" in said
    assert "is not known" in said


def test_refusals(run: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecificationError, match=r"\.md or \.html, not '\.pdf'"):
        write_card(run, tmp_path / "card.pdf")
    with pytest.raises(OutputError, match="there is no folder"):
        write_card(tmp_path / "none")
    done = CliRunner().invoke(cli.vfl, ["report", str(run), "--card", "--timing"])
    assert done.exit_code != 0


def test_a_forged_certificate_promises_nothing(run: Path, tmp_path: Path) -> None:
    forged = tmp_path / "forged"
    shutil.copytree(run, forged)
    model = json.loads((forged / "model.json").read_text(encoding="utf-8"))
    model["w"][0] += 1.0
    (forged / "model.json").write_text(json.dumps(model), encoding="utf-8")
    path, report = write_card(forged)
    assert not report.ok
    assert "the certificate does not hold" in path.read_text(encoding="utf-8")


def test_the_command_writes_it(run: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.vfl, ["report", str(run), "--card", "--output", str(tmp_path / "c.html")])
    assert (done.exit_code, done.output) == (0, f"card: {tmp_path / 'c.html'}\n")


def test_the_report_puts_measures_first_and_draws_curves(run: Path) -> None:
    said = write_run(run)[0].read_text(encoding="utf-8")
    headings = [part.split("</h2>")[0] for part in said.split("<h2>")[1:]]
    assert headings[0] == "Measures"
    assert {"Decisions", "Curves", "Curves of the columns"} <= set(headings)
    assert "held-out records are missing" in said
