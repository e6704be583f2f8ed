"""`vfl init`: a draft is refused until what it took from the data has been declared, and then trains."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

import vfl
from vfl.errors import DataError, PrivacyError, SpecificationError
from vfl.job import file as jobfile
from vfl.launch.draft import MANY, MARK, draft

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
    """Return a draft in which somebody has looked at every marked line and taken the comment sign away."""
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
    assert (job.id, job.id_kind, job.partition.label) == ("customer_id", "integer", ("bank", "default"))
    assert job.schema["calls and texts"].limits == (0.0, 79.0)
    assert vfl.train(job, dict(environment.data), engine="inprocess", cores=1).certificate.n_records == N


def test_what_a_draft_shows_of_the_data_is_in_comments(files: dict[str, Path]) -> None:
    kept = [line for line in draft(files).splitlines() if not line.startswith("#")]
    assert not any(word in line for line in kept for word in ("Bern", "Zürich", "79", "free text 1"))


def test_several_parties_with_one_name_of_a_column(files: dict[str, Path], tmp_path: Path) -> None:
    pd.read_parquet(files["bank"]).drop(columns="default").to_csv(tmp_path / "shop.csv", index=False)
    text = draft({**files, "shop": tmp_path / "shop.csv"})
    assert '# "income" is a column of several parties: rename it in all files but one' in text


CASES: dict[str, tuple[dict[str, Any], type[Exception] | None, str]] = {
    "label": ({"label": "telco.city"}, None, '# classes = ["Bern \\"old\\"", "Zürich"]  # negative, positive'),
    "label as a number": (
        {"label": "income"},
        None,
        "# for squared, huber or poisson loss, under [bounds]: income = [",
    ),
    "no label": ({"label": "incom"}, SpecificationError, "no file has a column 'incom' (did you mean 'income'?)"),
    "two labels": ({"label": "customer_id"}, SpecificationError, "several files have a column 'customer_id'"),
    "no id": ({"ids": "custom"}, DataError, "party 'bank': there is no id column 'custom'"),
}


@pytest.mark.parametrize("case", CASES)
def test_label_and_id(case: str, files: dict[str, Path]) -> None:
    given, kind, said = CASES[case]
    if kind is None:
        assert said in draft(files, **given)
        return
    with pytest.raises(kind, match=re.escape(said)):
        draft(files, **given)


def test_text_that_begins_with_numbers_is_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    cells = [*(str(k) for k in range(3)), "x", *(["7"] * MANY)]
    path.write_text("a,y\n" + "".join(f"{cell},{k % 2}\n" for k, cell in enumerate(cells)), encoding="utf-8")
    assert '# categories = ["0", "1", "2", "7", "x"]' in draft({"a": path})
    np.save(tmp_path / "a.npy", np.zeros((3, 2)))
    with pytest.raises(DataError):
        draft({"a": tmp_path / "a.npy"})
