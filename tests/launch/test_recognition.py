"""`vfl init` recognises the format of text files, says so, and drafts a job that reads them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

import vfl
from vfl.apps.drafting.draft import Question, draft
from vfl.apps.drafting.recognition import recognise
from vfl.base.csv import MISSING
from vfl.errors import SpecificationError
from vfl.job import file as jobfile
from vfl.job.drafted import MARK

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = "a,b,c\n1,2.5,x\n2,-3,y\n"
FILES: dict[str, tuple[bytes, dict[str, object], tuple[str, ...]]] = {
    "plain": (PLAIN.encode(), {}, ()),
    "with a byte order mark": (PLAIN.encode("utf-8-sig"), {}, ()),
    "quoted": (b'"a","b"\n"1","x,y"\n', {}, ()),
    "semicolons": (
        b"a;b\n1,5;x\n2;y\n",
        {"delimiter": ";", "decimal": ","},
        ("fields separated by semicolons", "looks like numbers with decimal commas"),
    ),
    "digit groups": (
        b"a;b\n1.234.567,5;1\n2,75;2\n",
        {"delimiter": ";", "decimal": ",", "thousands": "."},
        (
            "fields separated by semicolons",
            "looks like numbers with decimal commas",
            "digits in groups of three, separated by .",
        ),
    ),
    "Swiss": (
        b"a,b\n1'234.50,1\n7,2\n",
        {"thousands": "'"},
        ("digits in groups of three, separated by '",),
    ),
    "French": (
        "a;b\n1\u202f234,5;é\n7;è\n".encode(),
        {"delimiter": ";", "decimal": ",", "thousands": "\u202f"},
        (
            "fields separated by semicolons",
            "looks like numbers with decimal commas",
            "digits in groups of three, separated by narrow no-break spaces",
        ),
    ),
    "commas that may be either": (
        b'a,b\n"1,234",1\n"2,500",2\n',
        {"thousands": ","},
        ("digits in groups of three, separated by ,", "check: 1,234 may be a thousand or a fraction"),
    ),
    "Windows": ("a|b\n1|caf\u00e9 \u20ac\n2|b\n".encode("cp1252"), {"delimiter": "|", "encoding": "cp1252"},
                ("fields separated by bars", "text in cp1252")),
    "UTF-16": (PLAIN.encode("utf-16"), {"encoding": "utf-16"}, ("text in utf-16",)),
    "single quotes": (b"'a','b'\n'1','x,y'\n'2','z'\n", {"quote": "'"}, ("fields quoted by '",)),
    "question marks": (
        b"a,b\n1,?\n?,x\n2,y\n3,?\n",
        {"missing": [*MISSING, "?"]},
        ("? taken for missing cells",),
    ),
    "dates": (
        b"a,b\n31.01.2026,1\n01.12.2025,2\n",
        {"dates": "%d.%m.%Y"},
        ("looks like dates as %d.%m.%Y",),
    ),
    "dates that may be either": (
        b"a,b\n01/02/2026,1\n03/04/2026,2\n",
        {"dates": "%d/%m/%Y"},
        ("looks like dates as %d/%m/%Y, check: day and month may be exchanged",),
    ),
    "ISO dates": (b"a,b\n2026-01-31,1\n2025-12-01,2\n", {}, ()),
    "tabulators": (b"a\tb\n1\tx\n", {"delimiter": "\t"}, ("fields separated by tabulators",)),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_a_format_is_recognised(case: str, tmp_path: Path) -> None:
    content, options, said = FILES[case]
    path = tmp_path / "d.csv"
    path.write_bytes(content)
    found = recognise(path)
    assert (found.source if isinstance(found.source, str) else found.source.path) == str(path)
    assert ({} if isinstance(found.source, str) else found.source.options()) == options
    assert found.said == said


def test_other_sources_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"a;b\n1;2\n")
    declared = vfl.Csv(str(tmp_path / "d.csv"), delimiter="|")
    for source in (str(tmp_path / "a.parquet"), str(tmp_path / "none.csv"), "duckdb://a?table=t", declared):
        assert recognise(source).source == source
    (tmp_path / "d.data").write_bytes(b"a;b\n1;2\n")
    assert recognise(tmp_path / "d.data").source == vfl.Csv(str(tmp_path / "d.data"), delimiter=";")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Two files of one country's habits, with ids of different names, in part shared, and a label of three classes."""
    rng = np.random.default_rng(0)
    n = 90
    bank = pd.DataFrame(
        {
            "Kunde": [f"K{k:03}" for k in range(n)],
            "Einkommen": rng.uniform(0, 9e4, n).round(2),
            "Kinder": rng.integers(0, 4, n).astype(object),
            "Stufe": rng.choice(["gut", "mittel", "schlecht"], n),
        }
    )
    bank.loc[5, "Kinder"] = "k.A."
    telco = pd.DataFrame({"Nummer": [f"K{k:03}" for k in rng.permutation(n)[:60]], "Anrufe": rng.uniform(0, 9, 60)})
    bank.to_csv(tmp_path / "bank.csv", sep=";", decimal=",", index=False, encoding="cp1252")
    telco.to_csv(tmp_path / "telco.csv", sep=";", decimal=",", index=False)
    return {"bank": tmp_path / "bank.csv", "telco": tmp_path / "telco.csv"}


def test_a_draft_states_what_was_recognised(files: dict[str, Path], tmp_path: Path) -> None:
    text = draft(files, label="Stufe", folder=tmp_path)
    assert re.search(
        r'\[data.bank\]  # .*k\.A\. taken for missing.*\npath = "bank.csv"\ndelimiter = ";"\nmissing = \[', text
    )
    assert 'decimal = ","\n\n[data.telco]  # ' in text
    assert re.search('id = { bank = "Kunde", telco = "Nummer" }  # .*check it; 67%', text)
    assert 'loss = "logistic" and classes = [["gut", "mittel"], "schlecht"]\n' in text
    assert 'loss = "multinomial"' in text
    assert f'# classes = ["gut", "mittel", "schlecht"]  # {MARK}' in text
    assert "# Einkommen = [" in text
    assert "# Kinder = [0, 3]" in text


def test_answers_make_declarations(files: dict[str, Path], tmp_path: Path) -> None:
    answers = {"bounds": "[0, 1e5]", "fill": "1", "classes": '[["gut", "mittel"], "schlecht"]', "epsilon": "4.0"}
    answers["read"] = '""'
    asked: list[Question] = []

    def ask(question: Question) -> str | None:
        asked.append(question)
        return "bank.Stufe" if question.about == "label" else answers[question.about]

    text = draft(files, folder=tmp_path, ask=ask)
    assert [(question.about, question.column) for question in asked] == [
        ("label", "label"),
        ("classes", "Stufe"),
        ("bounds", "Einkommen"),
        ("bounds", "Kinder"),
        ("bounds", "Anrufe"),
        ("fill", "Kinder"),
        ("read", ""),
        ("epsilon", "epsilon"),
    ]
    assert text.count(MARK) == 1
    (tmp_path / "job.toml").write_text(text, encoding="utf-8")
    job, environment = jobfile.read(tmp_path / "job.toml")
    assert (job.classes, job.schema["Kinder"].fill) == ((("gut", "mittel"), "schlecht"), 1.0)
    assert environment.data["telco"] == vfl.Csv(str(files["telco"]), delimiter=";", decimal=",")
    result = vfl.train(job, dict(environment.data), at=vfl.InProcess(num_cpus=1))
    assert result.certificate.n_records == 60
    assert result.certificate.flags == ()


def test_weights_and_exposures_are_declared_and_no_features(tmp_path: Path) -> None:
    rows = "".join(f"{k / 40},{k % 13},{1 + k % 2},{0.5 + k % 2}\n" for k in range(40))
    (tmp_path / "d.csv").write_text(f"x,claims,policies,years\n{rows}", encoding="utf-8")
    given: dict[str, Any] = {"label": "claims", "folder": tmp_path}
    plain = draft({"a": tmp_path / "d.csv"}, **given)
    assert '# weight = "..."' in plain
    assert '# exposure = "..."' in plain
    text = draft({"a": tmp_path / "d.csv"}, **given, weight="policies", exposure="a.years")
    for line in ("claims = [0, 12]", "policies = [1, 2]", "years = [0.5, 1.5]"):
        assert f"# {line}  # {MARK}" in text
    (tmp_path / "job.toml").write_text(re.sub(r"(?m)^# (\w+ = \[)", r"\1", text), encoding="utf-8")
    job, environment = jobfile.read(tmp_path / "job.toml")
    assert job.partition.features == ("x",)
    assert (job.partition.weight, job.partition.exposure) == ("policies", "years")
    assert vfl.train(job, dict(environment.data), at=vfl.InProcess(num_cpus=1)).coef_.shape == (1,)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"weight": "y"}, "--weight takes a numeric column of 'a' with no other role, not 'y'"),
        ({"weight": "x", "exposure": "x"}, "--exposure takes a numeric column of 'a' with no other role, not 'x'"),
        ({"exposure": "xx"}, "--exposure: 'a', which owns the label, has no column 'xx' (did you mean 'x'?)"),
    ],
)
def test_other_weights_are_refused(given: dict[str, str], said: str, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("x,y\n1,0\n2,1\n")
    with pytest.raises(SpecificationError, match=re.escape(said)):
        draft({"a": tmp_path / "d.csv"}, **given)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (
            ["a", "", "b"],
            "# the label is missing for some records: leave these records out of the file, or training",
        ),
        (["1", "2", "3"], f"# classes = [1, 2, 3]  # {MARK}"),
        ([str(k) for k in range(40)], f"# y = [0, 39]  # {MARK}"),
        ([str(k) for k in range(40)], 'loss = "poisson"'),
        ([str(k - 0.5) for k in range(40)], 'loss = "squared"'),
        ([f"t{k}" for k in range(60)], '# the label "y" has more than 50 different texts: they are not classes'),
    ],
)
def test_labels_of_other_kinds(cells: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("x,y\n" + "".join(f"{k},{cell}\n" for k, cell in enumerate(cells)))
    assert said in draft({"a": tmp_path / "d.csv"})


def test_dates_are_drafted_as_parts(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("a,b,c,y\n31.01.2026,x,,0\n01.12.2025,y,2,1\n")
    pd.DataFrame({"a": pd.to_datetime(["2026-01-31", "2025-12-01"]), "y": [0, 1]}).to_parquet(tmp_path / "d.parquet")
    (tmp_path / "iso.csv").write_text("a,y\n2026-01-31 10:00,0\n2025-12-01,1\n")
    for name in ("d.csv", "d.parquet", "iso.csv"):
        text = draft({"bank": tmp_path / name}, folder=tmp_path)
        assert '[columns.a]\nkind = "date"\nparts = ["year", "month"]' in text
        (tmp_path / "job.toml").write_text(
            text.replace("# c = [2, 2]", "c = [0, 2]").replace("# fill = 0", "fill = 0").replace("# cat", "cat")
        )
        job, environment = jobfile.read(tmp_path / "job.toml", ["privacy=none"])
        assert job.schema["a"] == vfl.columns.DateParts(("year", "month"))
        assert vfl.train(job, dict(environment.data), at=vfl.InProcess(num_cpus=1)).certificate.n_records == 2


def test_empty_texts_and_missing_labels_are_said(tmp_path: Path) -> None:
    pd.DataFrame({"x": [1, 2, 3], "z": ["a", "", "b"]}).to_parquet(tmp_path / "d.parquet")
    text = draft({"a": tmp_path / "d.parquet"})
    assert 'label = ["a", ""]  # ' in text
    text = draft({"a": tmp_path / "d.parquet"}, label="z")
    assert "# the label is empty text" in text
    assert '# classes = ["a", "b"]' in text


def test_ids_that_do_not_match_are_said(files: dict[str, Path], tmp_path: Path) -> None:
    text = draft(files, label="Stufe", ids=["bank.Kunde", "telco.Anrufe"])
    assert "CHECK: a file has the same id" in text
    telco = pd.read_csv(files["telco"], sep=";", decimal=",")
    telco.assign(Nummer=[f"X{k}" for k in range(len(telco))]).to_csv(tmp_path / "other.csv", index=False)
    text = draft(
        {"bank": files["bank"], "telco": tmp_path / "other.csv"}, label="Stufe", ids=["bank.Kunde", "telco.Nummer"]
    )
    assert "0% of bank's" in text
    assert '# where its names differ: id = { bank = "...", telco = "..." }' in draft(
        {"bank": files["bank"], "telco": tmp_path / "other.csv"}, label="Stufe"
    )
