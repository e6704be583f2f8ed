"""Keys of records: composite keys, kinds, declared steps of normalisation, and parties that normalise differently."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import vfl
from tests.launch.test_alignment import Recording, frames, job, outcome_of, sides, train
from vfl.crypto.alignment import IdsGreeting
from vfl.crypto.identifiers import Id, Key, normal_forms, normalised
from vfl.errors import DataError, FederationError, SpecificationError
from vfl.job import file as jobfile

if TYPE_CHECKING:
    from pathlib import Path

UUIDS = [uuid.UUID(int=k) for k in (7, 8)]
BORN = [dt.date(1990, 5, 1), dt.date(2001, 12, 24)]


def forms(cells: Any, **declared: Any) -> list[bytes]:
    column = tuple("abc"[: declared.pop("parts", 1)])
    return list(normalised(lambda: [cells], party="bank", key=Id(column, **declared).key)[0])


@pytest.mark.parametrize(
    ("declared", "written"),
    [
        ({"normalise": ("casefold",)}, (["Müller", "STRASSE"], ["mu\u0308ller", "straße"])),
        ({"normalise": ("digits",)}, (["+41 79 123", "0041-7"], ["4179123", "00417"])),
        ({"normalise": ("spaces",)}, (["a b", "c\u00a0d"], ["ab", "cd "])),
        ({"normalise": ("spaces",)}, (["a \u0301", "b"], ["\u00e1", "b"])),
        ({"normalise": ("nfkc",)}, (["ﬁ", "２"], ["fi", "2"])),
        ({"normalise": ["nfkc", "casefold"]}, (["Ａ", "b"], ["a", "B"])),
        ({"kind": "date"}, (["1990-05-01", "20011224"], ["1990-05-01T00:00:00", " 2001-12-24"])),
        ({"kind": "date"}, (["1990-05-01", "2001-12-24"], BORN)),
        ({"kind": "date"}, (BORN, pd.Series(pd.to_datetime(BORN)))),
        ({"kind": "date"}, (BORN, pa.array(BORN, pa.date32()))),
        ({"kind": "date"}, (BORN, np.array(BORN, "datetime64[D]"))),
        ({}, (["1990-05-01", "2001-12-24"], BORN)),
        ({"kind": "uuid"}, (UUIDS, [str(UUIDS[0]).upper(), f"{{{UUIDS[1]}}}"])),
        ({"kind": "uuid"}, (UUIDS, [own.hex for own in UUIDS])),
        ({}, (UUIDS, [str(own) for own in UUIDS])),
    ],
)
def test_equal_keys_have_one_normal_form(declared: dict[str, Any], written: tuple[Any, Any]) -> None:
    first, second = (forms(cells, **declared) for cells in written)
    assert first == second
    assert len(set(first)) == 2


def test_components_cannot_run_together() -> None:
    cells = [("ab", "c"), ("a", "bc"), ("a\x00", "bc"), ("", "abc")]
    made = forms(cells[:3], parts=2)
    assert len(set(made)) == 3
    assert forms(pa.array([{"a": "ab", "b": "c"}]), parts=2) == made[:1]
    with pytest.raises(DataError, match="an id is empty"):
        forms(cells, parts=2)
    with pytest.raises(DataError, match="an id is missing"):
        forms([("a", None)], parts=2)
    for wrong in ([("a", "b", "c")], ["ab"], [("a",)]):
        with pytest.raises(DataError, match="another number of components"):
            forms(wrong, parts=2)
        with pytest.raises(DataError, match="another number of components"):
            normal_forms(list(wrong), key=Id(("a", "b")).key)


@pytest.mark.parametrize(
    ("cells", "declared", "message"),
    [
        (["--", "x"], {"normalise": ("digits",)}, "an id is empty after the steps of normalise"),
        (["A", "a"], {"normalise": ("casefold",)}, "differ as written are equal once they are normalised"),
        (["1990-13-01"], {"kind": "date"}, "one is not an ISO 8601 date"),
        (["1990-05-01T12:00:00"], {"kind": "date"}, "one is not an ISO 8601 date"),
        (["1.5.1990"], {"kind": "date"}, "one is not an ISO 8601 date"),
        ([7], {"kind": "date"}, "one is not an ISO 8601 date"),
        (["7"], {"kind": "uuid"}, "the job declares ids as UUIDs, and one is not one"),
        ([dt.date(2000, 1, 1), 3], {}, "ids are of type int and str"),
    ],
)
def test_bad_keys_are_errors_at_their_owner(cells: list[Any], declared: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        forms(cells, **declared)
    assert str(error.value).startswith("party 'bank', id column")
    assert not any(str(cell) in str(error.value).split(":", 1)[1] for cell in cells if len(str(cell)) > 3)


def test_equal_rules_are_written_alike() -> None:
    assert Id(["a", "b"], kind=("text", "text")).key == Id(("a", "b"), "text").key
    assert Id("a", normalise=("casefold", "strip", "nfkc")) == Id("a", normalise=["nfkc", "casefold"])
    assert Id(("a", "b"), ("text", "date"), normalise=("casefold",)).key == Key(("text", "date"), (("casefold",), ()))
    digests = {Id("a", **declared).key.digest for declared in ({}, {"kind": "text"}, {"normalise": ("casefold",)})} | {
        Id(("a", "b")).key.digest
    }
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("column", "declared", "message"),
    [
        ("a", {"kind": "number"}, "one of: integer, text, date, uuid"),
        (("a", "b"), {"kind": (None, "date")}, "one of: integer, text, date, uuid; not None"),
        ("a", {"normalise": ("lower",)}, "unknown step 'lower'"),
        ("a", {"normalise": "casefold"}, "a list of steps"),
        ("a", {"kind": "integer", "normalise": ("digits",)}, "steps of normalise are for text"),
        ("a", {"normalise": 3}, "a list of steps"),
        (("a", "b"), {"kind": ("text",)}, "kind has 1 entries, and the key has 2"),
        (("a", "b"), {"normalise": (("digits",),)}, "normalise has 1 entries"),
        (("a", "b"), {"kind": ("text", "date"), "normalise": ((), ("digits",))}, "a component is date"),
        ({"bank": ("a", "b"), "telco": "a"}, {}, "equally many columns"),
        ((), {}, "at least one"),
    ],
)
def test_rules_that_are_none(column: Any, declared: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecificationError, match=message):
        Id(column, **declared)


@pytest.mark.parametrize("named", [("name", "name"), ("name", 3), ["income", "born"], ("name", "default")])
def test_columns_of_a_composite_key_are_different_and_no_features(named: Any) -> None:
    with pytest.raises(SpecificationError, match=r"composite key|is also a feature or the label"):
        job(id=named)


def composite() -> dict[str, pd.DataFrame]:
    """Return the frames of `test_alignment` with names and birthdays for ids, which the parties write differently."""
    data = frames()
    for party, frame in data.items():
        number = frame.customer.str[1:].astype(int)
        born = pd.to_datetime("1980-01-01") + pd.to_timedelta(number // 2, unit="D")
        name = number.map(lambda k: f"Émile {k % 2}")
        frame["name"], frame["born"] = (name, born.dt.date) if party == "bank" else (name.str.upper(), born.astype(str))
    return data


def key(**more: Any) -> vfl.columns.Id:
    return vfl.columns.Id(
        {"bank": ("name", "born"), "telco": ("name", "born")}, ("text", "date"), normalise=("casefold",), **more
    )


def test_a_composite_key_joins_the_records_that_one_id_joins(tmp_path: Path) -> None:
    data = composite()
    assert len(joined := data["bank"].merge(data["telco"], on="customer")) > 50
    by_id = train(job(), data)
    found = train(job(id=key()), data)
    assert found.certificate.n_records == by_id.certificate.n_records == len(joined)
    exact = [train(job(id=own, privacy=None), data).coef_ for own in ("customer", key())]
    np.testing.assert_allclose(*exact, rtol=1e-6)
    paths = {party: str(tmp_path / f"{party}.csv") for party in data}
    for party, path in paths.items():
        data[party].to_csv(path, index=False)
    assert train(job(id=key()), paths, at=vfl.InProcess(shards=2)).certificate.n_records == len(joined)
    predicted = vfl.predict(by_id, data)
    told = vfl.predict(found, data)
    assert told.id_column == "name + born"
    assert {name for name, _ in told.ids or ()} == {"Émile 0", "Émile 1"}
    assert len(told) == len(predicted) == len(joined)


def test_a_composite_key_round_trips_through_a_job_file(tmp_path: Path) -> None:
    spec = job(id=key())
    jobfile.write(spec, tmp_path / "job.toml")
    again, _ = jobfile.read(tmp_path / "job.toml")
    assert again == spec
    assert again.id == vfl.columns.Id(("name", "born"), ("text", "date"), normalise=("casefold",))
    assert spec.digest != job(id=("name", "born")).digest
    assert job(id=["name", "born"]) == job(id=vfl.columns.Id(("name", "born")))
    assert "by name + born" in str(vfl.plan(spec, 1000))


def test_parties_that_normalise_differently_are_told_before_any_set_is_sent() -> None:
    """Party 'telco' lies about its rule, or was given another job."""

    def lie(said: Any) -> Any:
        return replace(said, rule=Id("x", "text").key.digest) if isinstance(said, IdsGreeting) else said

    transport = Recording(sides(frames()), lie)
    with pytest.raises(FederationError, match="'bank' and 'telco' would normalise ids by different rules"):
        outcome_of(transport)
    assert not transport.shown
