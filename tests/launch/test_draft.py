"""`vfl init`: a draft is refused until its values from the data have been declared, and then trains."""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

import vfl
from vfl.apps.drafting.draft import MANY, ColumnSummary, Question, draft, range_of
from vfl.errors import DataError, PrivacyError, SpecificationError
from vfl.job import file as jobfile
from vfl.job.drafted import MARK, left_in
from vfl.job.flags import flags_of

if TYPE_CHECKING:
    from pathlib import Path

N = 80


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    rng = np.random.default_rng(5)
    bank = pd.DataFrame(
        {
            "customer_id": np.arange(N),
            "income": rng.uniform(-1, 2e5, N),
            "note": [f"free text {k}" for k in range(N)],
            "member": rng.integers(0, 2, N).astype(bool),
            "default": rng.integers(0, 2, N),
        }
    )
    telco = pd.DataFrame(
        {
            "customer_id": np.arange(N),
            "calls and texts": [str(k) for k in range(N)],
            "city": rng.choice(['Bern "old"', "Zürich"], N).astype(object),
        }
    )
    telco.loc[3, "calls and texts"], telco.loc[4, "city"] = "", None
    bank.to_parquet(tmp_path / "bank.parquet")
    telco.to_csv(tmp_path / "telco.csv", index=False)
    return {"bank": tmp_path / "bank.parquet", "telco": tmp_path / "telco.csv"}


def declared(text: str) -> str:
    """Return a draft in which every marked line has been checked and its comment sign removed."""
    return re.sub(rf"^# (.*?)  # .*{re.escape(MARK)}$", r"\1", text, flags=re.MULTILINE)


def test_a_draft_is_refused_until_its_marks_are_resolved(files: dict[str, Path], tmp_path: Path) -> None:
    text = draft(files, folder=tmp_path)
    assert text.count(MARK) == 1 + 2 + 1 + 1 + 1  # header, bounds, fill, categories, indicator
    path = tmp_path / "job.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecificationError, match="column 'city': declare its categories"):
        jobfile.read(path)
    bounded = text.replace("# categories", "categories")
    path.write_text(bounded, encoding="utf-8")
    for change in ((), ("scaling=none",)):
        with pytest.raises(SpecificationError, match="no bounds for column 'income'") as refused:
            jobfile.read(path, change)
        assert isinstance(refused.value, PrivacyError) == bool(change)
    path.write_text(declared(text), encoding="utf-8")
    job, environment = jobfile.read(path)
    assert job.partition.columns("bank") == ("income", "member")
    assert job.schema["city"] == vfl.Categorical(('Bern "old"', "Zürich"), unknown="zero", missing="indicator")
    assert (set(job.ids.values()), job.id.kind, job.partition.label) == (
        {("customer_id",)},
        "integer",
        ("bank", "default"),
    )
    assert job.schema["calls and texts"].limits == (0.0, 79.0)
    assert vfl.train(job, dict(environment.data), at=vfl.InProcess(num_cpus=1)).certificate.n_records == N


def test_declarations_that_the_records_decided_are_flagged(files: dict[str, Path], tmp_path: Path) -> None:
    """One cell decides the kind of `x`: it is a number in one file, and a category in its neighbour."""
    kinds = []
    for cell in ("2", "two"):
        cells = ["1", cell, "3", "1"]
        (tmp_path / "d.csv").write_text("x,y\n" + "".join(f"{cell},{k % 2}\n" for k, cell in enumerate(cells)))
        (tmp_path / "job.toml").write_text(declared(draft({"a": tmp_path / "d.csv"}, folder=tmp_path)))
        job, environment = jobfile.read(tmp_path / "job.toml", ["privacy.epsilon=3"])
        kinds.append(type(job.schema["x"]))
        (flag,) = flags_of(job)
        assert re.search("NOT PRIVATE.*kinds of the columns, the loss and the formats", flag)
    assert kinds[0] != kinds[1]
    result = vfl.train(job, dict(environment.data), at=vfl.InProcess(num_cpus=1))
    assert result.certificate.flags == (flag,)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "the kinds of the columns, the loss and the formats of files"),
        ({"label": "telco.city"}, "the kinds of the columns, the loss and the formats of files"),
        ({"ask": lambda q: '["a", "b"]' if q.about == "classes" else None, "label": "telco.city"},
         "the kinds of the columns and the formats of files"),
        ({"ask": lambda q: '"the loss"' if q.about == "read" else None}, "the loss"),
        ({"ask": lambda q: '""' if q.about == "read" else None}, None),
    ],
)  # fmt: skip
def test_a_draft_lists_what_the_records_decided(
    files: dict[str, Path], given: dict[str, Any], said: str | None
) -> None:
    assert tomllib.loads(draft(files, **given))["privacy"].get("read_from_data") == said


def test_declared_formats_are_not_read_from_the_records(files: dict[str, Path]) -> None:
    text = draft({**files, "telco": vfl.Csv(str(files["telco"]))}, label="income", ids="customer_id")
    assert tomllib.loads(text)["privacy"]["read_from_data"] == "the kinds of the columns and the loss"


def test_missing_declarations_are_listed_until_they_are_made(files: dict[str, Path], tmp_path: Path) -> None:
    text = draft(files, folder=tmp_path, label="telco.city", ids="customer_id")
    left = {
        "": ["classes"],
        "[bounds]": ["income", "default", '"calls and texts"'],
        '[columns."calls and texts"]': ["fill"],
    }
    assert left_in(text) == left
    assert left_in(declared(text)) == {}
    assert left_in(text.replace("[bounds]\n", "[bounds]\nincome = [0, 1]\n"))["[bounds]"] == left["[bounds]"][1:]
    assert left_in(draft(files))["[columns.city]"] == ["categories", "missing"]
    assert left_in("[bounds") == {}


def test_curves_are_declared_for_numbers_that_get_bounds(files: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(declared(draft(files, folder=tmp_path, curves=True)), encoding="utf-8")
    spec, _ = jobfile.read(path)
    assert [spec.schema[c].kind for c in spec.bounds] == ["curve"] * 2


def test_values_from_the_data_are_comments(files: dict[str, Path]) -> None:
    kept = [line for line in draft(files, folder=files["bank"].parent).splitlines() if not line.startswith("#")]
    assert not any(word in line for line in kept for word in ("Bern", "Zürich", "79", "free text 1"))


def test_several_parties_with_the_same_column_name(files: dict[str, Path], tmp_path: Path) -> None:
    pd.read_parquet(files["bank"]).drop(columns=["default", "note"]).to_csv(tmp_path / "shop.csv", index=False)
    text = draft({**files, "shop": tmp_path / "shop.csv"}, folder=tmp_path)
    assert 'shop = ["income", "member"]' in text
    for line in (
        '# "bank.income" = [',
        '# "shop.income" = [',
        '[columns."bank.member"]\nkind = "boolean"',
        '# "calls and texts" =',
    ):
        assert line in text
    (tmp_path / "job.toml").write_text(declared(text), encoding="utf-8")
    job, environment = jobfile.read(tmp_path / "job.toml")
    assert job.partition.features[:2] == ("bank.income", "bank.member")
    assert vfl.train(job, dict(environment.data), at=vfl.InProcess(num_cpus=1)).certificate.n_records == N


CASES: dict[str, tuple[dict[str, Any], type[Exception] | None, str]] = {
    "label": ({"label": "telco.city"}, None, '# classes = ["Bern \\"old\\"", "Zürich"]  # negative, positive'),
    "label as a number": (
        {"label": "income"},
        None,
        'loss = "squared"',
    ),
    "no label": ({"label": "incom"}, SpecificationError, "no file has a column 'incom' (did you mean 'income'?)"),
    "two labels": ({"label": "customer_id"}, SpecificationError, "several files have a column 'customer_id'"),
    "no id": ({"ids": "custom"}, DataError, "party 'bank': there is no id column 'custom'"),
    "ids": ({"ids": ["bank.note", "telco.city"]}, None, 'id = { bank = "note", telco = "city" }'),
    "one id of two": ({"ids": ["bank.note"]}, SpecificationError, "give --id telco.COLUMN too"),
    "id of nobody": (
        {"ids": ["bnk.note", "telco.city"]},
        SpecificationError,
        "not 'bnk.note' (did you mean 'bank'?); the parties are bank, telco",
    ),
    "misspelt id": (
        {"ids": ["bank.note", "telco.cty"]},
        DataError,
        "party 'telco': there is no id column 'cty' (did you mean 'city'?)",
    ),
    "two ids": (
        {"ids": ["bank.note", "bank.member"]},
        SpecificationError,
        "--id names two columns of party 'bank'",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_label_and_id(case: str, files: dict[str, Path]) -> None:
    given, kind, said = CASES[case]
    if kind is None:
        assert said in draft(files, **given)
        return
    with pytest.raises(kind, match=re.escape(said)):
        draft(files, **given)


def test_a_possible_id_is_not_a_feature_and_is_marked(tmp_path: Path) -> None:
    path, other = tmp_path / "a.csv", tmp_path / "b.csv"
    path.write_text("msisdn,user_id,y\n" + "".join(f"t{k},{k},{k % 2}\n" for k in range(MANY + 1)), encoding="utf-8")
    other.write_text("x\n1\n2\n", encoding="utf-8")
    text = draft({"a": path, "b": other})
    assert '# where its names differ: id = { a = "...", b = "..." }' in text
    for column, seems in (("msisdn", "free text, or an id"), ("user_id", "named like an id")):
        dropped = f'[columns.{column}]\nkind = "dropped"  # {seems}. If records are known by it, write id = ... above,'
        assert f"{dropped}\n# or draft again with: --id a.{column}\n" in text
    assert "user_id = [" not in text


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.0, 6014.1800000000003, "[0, 6014.18]"),
        (18, 90, "[18, 90]"),
        (0.67663447227124451, 0.67663447227124451, "[0.676634, 0.676635]"),
        (-0.67663447227124451, float(np.float32(0.1)), "[-0.676635, 0.100001]"),
        (-123456.789012345, 9999999.9999999, "[-123457, 10000000]"),
        (1.23456789123e-7, 1e300, "[1.23456e-07, 1e+300]"),
        (-0.0, 2.0**60, "[0, 1.152921504606847e+18]"),
    ],
)
def test_ranges_are_short_and_hold_every_cell(low: float, high: float, said: str) -> None:
    shown = range_of(ColumnSummary("numeric", low, high))
    assert shown == said
    assert json.loads(shown)[0] <= low
    assert high <= json.loads(shown)[1]


def test_paths_are_relative_only_where_that_is_shorter(files: dict[str, Path], tmp_path: Path) -> None:
    near = tmp_path / "jobs"
    deep = tmp_path.joinpath(*"abcdefghijklmnopqrstuvwxyz0123456789")
    assert 'bank = "../bank.parquet"' in draft(files, folder=near)
    assert f'bank = "{tmp_path / "bank.parquet"}"' in draft(files, folder=deep)


def test_text_that_begins_with_numbers_is_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    cells = [*(str(k) for k in range(3)), "x", *(["7"] * MANY)]
    path.write_text("a,y\n" + "".join(f"{cell},{k % 2}\n" for k, cell in enumerate(cells)), encoding="utf-8")
    assert '# categories = ["0", "1", "2", "7", "x"]' in draft({"a": path})
    np.save(tmp_path / "a.npy", np.zeros((3, 2)))
    with pytest.raises(DataError):
        draft({"a": tmp_path / "a.npy"})


@pytest.mark.parametrize(
    ("bounds", "fill"), [(None, "0"), ("[-5, 30]", "0"), ("[18, 90]  # known", "54"), ("[1, 2]", "1.5")]
)
def test_a_fill_comes_from_public_bounds_and_not_from_records(
    files: dict[str, Path], bounds: str | None, fill: str
) -> None:
    seen: list[str] = []

    def ask(question: Question) -> str | None:
        if question.about == "fill":
            seen.append(question.shown)
        return bounds if question.about == "bounds" else None

    draft(files, ask=ask)
    assert seen == [fill]


def test_codes_and_marks_of_missing_cells_are_asked_about(tmp_path: Path) -> None:
    """Census columns: SEX and RAC1P are codes, and "N" stands for a missing cell among many numbers or few."""
    rows = [
        f"{1 + k % 2},{1 + k % 9},{'N' if k % 5 == 0 else k % 7},{'N' if k % 5 == 0 else k},{k % 2},{k}"
        for k in range(N)
    ]
    (tmp_path / "census.csv").write_text("\n".join(["SEX,RAC1P,JWTR,WKHP,y,AGEP", *rows]), encoding="utf-8")
    text = draft({"census": tmp_path / "census.csv"}, label="y")
    for column in ("SEX", "RAC1P"):
        assert f'# [columns.{column}] with kind = "categorical" and categories = [1, 2' in text
    assert "[columns.AGEP]" not in text
    assert text.count("--csv census.missing=N") == 2
    assert tomllib.loads(text)
    again = draft({"census": vfl.Csv(str(tmp_path / "census.csv"), missing=("", "N"))}, label="y")
    assert "missing=N" not in again
    assert "WKHP = " in again


def test_a_far_tail_is_named(tmp_path: Path) -> None:
    """Sorted numbers, whose first cells are small, have none."""
    rng = np.random.default_rng(4)
    table = {"sorted": np.arange(4000), "tail": rng.pareto(1.2, 4000), "log": rng.lognormal(9, 0.5, 4000)}
    pd.DataFrame({**table, "y": np.arange(4000) % 2}).to_csv(tmp_path / "a.csv", index=False)
    text = draft({"a": tmp_path / "a.csv"})
    assert text.count("has a far tail") == 1
    assert '# [columns.tail] with kind = "log"' in text


def test_ids_are_compared_as_the_draft_declares_them(tmp_path: Path) -> None:
    """A program has written the ids of one file as numbers, without their leading zeros."""
    for party, ids in (("a", [f"{k:05d}" for k in range(N)]), ("b", list(range(N)))):
        pd.DataFrame({"id": ids, f"x{party}": np.arange(N) % 7, "y": np.arange(N) % 2}).to_csv(
            tmp_path / f"{party}.csv", index=False
        )
    text = draft({party: tmp_path / f"{party}.csv" for party in "ab"}, label="a.y")
    assert 'kind = "integer"' in text
    assert "100% of a's are in b's" in text
    words = pd.read_csv(tmp_path / "a.csv", dtype=str).assign(id=[f"n{k}" for k in range(N)])
    words.to_csv(tmp_path / "a.csv", index=False)
    text = draft({party: tmp_path / f"{party}.csv" for party in "ab"}, label="a.y", ids="id")
    assert 'kind = "integer"' not in text
    assert "0% of a's are in b's" in text


@pytest.mark.parametrize(
    ("often", "loss"),
    [
        ([400, 300, 150, 60, 20, 5], "poisson"),
        ([82, 205, 257, 214, 133, 67, 28, 10, 3, 1], "poisson"),  # mean 2.5
        ([100] * 10, "multinomial"),  # digits
        ([60, 50, 4], "multinomial"),
    ],
)
def test_counts_are_told_from_classes_by_a_rare_largest_number(tmp_path: Path, often: list[int], loss: str) -> None:
    y = np.repeat(np.arange(len(often)), often)
    pd.DataFrame({"x": np.arange(len(y)), "y": y}).to_csv(tmp_path / "a.csv", index=False)
    text = draft({"a": tmp_path / "a.csv"})
    assert tomllib.loads(text)["loss"] == loss
    (tmp_path / "job.toml").write_text(declared(text), encoding="utf-8")
    job, _ = jobfile.read(tmp_path / "job.toml")
    assert (job.classes is None) == (loss == "poisson")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_column_without_any_value_is_dropped(tmp_path: Path, kind: str) -> None:
    table = pd.DataFrame({"x": np.arange(N), "e": np.full(N, np.nan), "y": np.arange(N) % 2})
    path = tmp_path / f"a.{kind}"
    table.to_csv(path, index=False) if kind == "csv" else table.to_parquet(path)
    text = draft({"a": path})
    assert '[columns.e]\nkind = "dropped"  # no cell holds a value' in text
    (tmp_path / "job.toml").write_text(declared(text), encoding="utf-8")
    assert jobfile.read(tmp_path / "job.toml")[0].partition.features == ("x",)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_texts_that_look_like_numbers_or_dates_are_not_dropped_silently(tmp_path: Path, kind: str) -> None:
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(N) * 9, unit="D")
    cells = {
        "amount": [f"${v:,.2f}" for v in np.arange(N) * 97.13 + 900],
        "share": [f"{k} %" for k in range(N)],
        "iso": days.strftime("%Y-%m-%d"),
        "day": days.strftime("%d.%m.%Y"),
        "word": [f"text {k}" for k in range(N)],
        "y": np.arange(N) % 2,
    }
    table = pd.DataFrame(cells)
    path = tmp_path / f"a.{kind}"
    table.to_csv(path, index=False) if kind == "csv" else table.to_parquet(path)
    text = draft({"a": path}, folder=tmp_path)
    dates = {"csv": "iso", "parquet": "day"}[kind]  # a text file declares one format, found in 'day'
    for column, looks in (("amount", "numbers"), ("share", "numbers"), (dates, "dates")):
        assert re.search(
            rf'\[columns.{column}\]\n# column "{column}" holds texts that look like {looks}: .*\nkind = "dropped"', text
        )
    assert "2026-01-31" in text
    assert "4530.66" in text
    assert '[columns.word]\nkind = "dropped"' in text
    (tmp_path / "job.toml").write_text(text, encoding="utf-8")
    job, environment = jobfile.read(tmp_path / "job.toml", ["privacy=none"])
    assert job.partition.features == ({"csv": "day", "parquet": "iso"}[kind],)
    assert vfl.train(job, dict(environment.data), at=vfl.InProcess(num_cpus=1)).certificate.n_records == N


def test_a_column_of_another_type_is_dropped_for_its_type(tmp_path: Path) -> None:
    pd.DataFrame({"x": [[1.0], [2.0]], "y": [0, 1]}).to_parquet(tmp_path / "a.parquet")
    assert '[columns.x]\nkind = "dropped"  # a constant, or of a type' in draft({"a": tmp_path / "a.parquet"})
