"""Notebook displays of objects: readable, well-formed and escaped."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pytest

import vfl
from vfl.launch.run.verification import verify_run

EVIL = "<script>alert(1)</script>"
SHOWN = (
    *("partition", "job", "plan", "result", "certificate", "findings", "report"),
    *("ledger", "balance"),
)


class Reader(HTMLParser):
    """Collects tags and text; reports tags that are not closed."""

    def __init__(self):
        super().__init__()
        self.tags, self.open, self.text = set(), [], []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(markup):
    reader = Reader()
    reader.feed(markup)
    reader.close()
    assert reader.open == []
    assert reader.tags <= {"div", "p", "strong", "table", "tr", "th", "td"}
    return reader.text


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Return {name: object} for all objects that a notebook may display, with names that try to inject HTML."""
    partition = vfl.FeaturePartition({"bank": [EVIL, "age"], "telco": ["calls&"]}, label=("bank", "de<fault"))
    job = vfl.Job(
        partition=partition,
        privacy=vfl.Privacy(epsilon=1.0, delta=1e-6),
        bounds={EVIL: (0, 1), "age": (0, 1), "calls&": (0, 1)},
        dataset=f"set {EVIL}",
        name=f"job {EVIL}",
        solver=vfl.SkGD(passes=2),
        evaluation=vfl.Evaluation(holdout=0.2),
    )
    rng = np.random.default_rng(0)
    data = {column: rng.random(50) for column in partition.features} | {"de<fault": rng.integers(0, 2, 50)}
    ledger = vfl.Ledger(tmp_path_factory.mktemp("ledger") / "book.db").open()
    ledger.set_cap(job.dataset, epsilon=3.0, delta=1e-6)
    result = vfl.train(job, pa.table(data), at="inprocess", ledger=ledger.path)
    return {
        "partition": partition,
        "job": job,
        "plan": vfl.plan(job, 50),
        "result": result,
        "certificate": result.certificate,
        "findings": result.findings["held out"],
        "report": verify_run(result.save(tmp_path_factory.mktemp("saved") / "run")),
        "ledger": ledger,
        "balance": ledger.show()[0],
    }


@pytest.mark.parametrize("name", SHOWN)
def test_markup_is_well_formed_and_escaped(shown, name):
    markup = shown[name]._repr_html_()
    assert "<script" not in markup
    assert "".join(read(markup)).strip()


@pytest.mark.parametrize("name", ["job", "partition", "result", "certificate", "balance"])
def test_names_are_shown_unchanged(shown, name):
    assert any(EVIL in text for text in read(shown[name]._repr_html_()))
    assert EVIL in repr(shown[name])


@pytest.mark.parametrize("name", [name for name in SHOWN if name != "ledger"])
def test_a_repr_describes_the_object_in_words(shown, name):
    said = repr(shown[name])
    assert not re.search(r"\b[A-Z]\w+\(\w+=", said), said
    assert len(said.splitlines()) < 40


def test_a_result_shows_its_guarantee_and_its_largest_coefficients(shown):
    result = shown["result"]
    assert str(result.certificate) in repr(result)
    lines = [line.split() for line in repr(result).splitlines() if line.startswith("  ")]
    assert lines[0][0] == "(intercept)"
    assert float(lines[0][1]) == pytest.approx(result.intercept_, rel=1e-5)
    by_name = dict(zip(result.feature_names, result.coef_, strict=True))
    assert {name: float(value) for name, value in lines[1:]} == pytest.approx(by_name, rel=1e-5)


def test_displaying_a_ledger_does_not_create_its_file(tmp_path):
    ledger = vfl.Ledger(tmp_path / "none.db").open()
    assert "not made yet" in ledger._repr_html_()
    assert list(tmp_path.iterdir()) == []


def test_a_job_shows_missing_declarations(shown):
    seeded = vfl.Privacy(epsilon=1.0, noise=vfl.SeededNoise(0))
    assert "NOT PRIVATE" in repr(dataclasses.replace(shown["job"], privacy=seeded))
    assert "not differentially private" in repr(dataclasses.replace(shown["job"], privacy=None))
