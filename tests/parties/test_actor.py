"""The actor around a party: constants of a run are fetched once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse

from parties import actor
from parties.alignment.reading import open_for
from parties.loading import SourceCheck
from parties.sources.opening import open_source
from parties.sources.ranges import content_of
from tests.coordinator.test_transports import job, table
from vfl.errors import DataError
from vfl.network.shards import cut
from vfl.network.shards.lending import StoredVector


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """References that were fetched."""
    seen: list[Any] = []

    def get(reference: Any, timeout: float) -> np.ndarray:
        seen.append(reference)
        return np.array([float(len(seen))])

    monkeypatch.setattr(actor.ray, "get", get)
    return seen


def test_a_constant_is_fetched_once_and_stays_the_same_array(fetched: list[Any]) -> None:
    """The bounds of residuals are kept for the arrays that they were computed from."""
    constants = actor.Constants()
    first = constants.of("labels", StoredVector("ref", 1))
    assert constants.of("labels", StoredVector("ref", 1)) is first
    assert constants.of("limits", StoredVector("other", 2)) is not first
    assert constants.of("labels", StoredVector("ref", 1)) is first
    assert fetched == ["ref", "other"]


def test_a_new_constant_is_fetched(fetched: list[Any]) -> None:
    constants = actor.Constants()
    first = constants.of("limits", StoredVector("ref", 1))
    assert constants.of("limits", StoredVector("ref", 2)) is not first
    assert fetched == ["ref", "ref"]


def test_vectors_in_the_call_are_taken_as_they_are(fetched: list[Any]) -> None:
    constants, inline = actor.Constants(), np.ones(3)
    assert constants.of("labels", inline) is inline
    assert constants.of("labels", None) is None
    assert fetched == []


@pytest.mark.parametrize(
    "source",
    ["duckdb:///data/bank.duckdb?table=customers", "warehouse://sales/customers"],
    ids=["database", "installed"],
)
def test_shards_read_no_source_whose_order_may_change(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record could be in two shards, each of which opens the source by itself, and add to one sum twice."""
    monkeypatch.setenv("VFL_SOURCES", source)
    party = actor.PartyActor(job(), "bank", shards=({}, {}))
    with pytest.raises(DataError, match=r"in another order to each shard .*shards at 1"):
        party.load(source)


def test_a_function_that_gives_a_shard_other_rows_is_refused() -> None:
    """Each process calls it by itself: a record that moved from one shard's range to the other's would be in both."""
    task = job().for_party("bank")
    columns = {name: table(30)[name] for name in task.columns}
    moved = {name: np.roll(cells, 1) for name, cells in columns.items()}

    def source() -> Any:
        return columns

    opened = open_for(task, source, ids=False)
    content = SourceCheck(source, opened).content_for(task, opened)
    shard = cut(30, 2)[1]
    assert actor.RowsActor(task, 1).load(source, shard, None, content)[0].n_trained == 15
    with pytest.raises(DataError, match=r"'bank'.*returned different rows"):
        actor.RowsActor(task, 1).load(lambda: moved, shard, None, content)
    assert SourceCheck(columns, opened).content_for(task, opened) == ""


def test_the_content_of_an_aligned_function_covers_its_ids() -> None:
    """Rows were chosen by their ids: with other ids in the same places, a shard would take other records."""
    task = replace(job(), id="customer").for_party("bank")
    columns = {name: table(30)[name] for name in task.columns} | {"customer": [f"c{i}" for i in range(30)]}
    other = columns | {"customer": [f"c{i}" for i in reversed(range(30))]}

    def content(cells: Any, *, ids: bool) -> str:
        opened = open_for(task, lambda: cells, ids=ids)
        return SourceCheck(lambda: cells, opened).content_for(task, opened, ids=ids)

    assert content(columns, ids=True) == content(dict(columns), ids=True) != content(other, ids=True)
    assert content(columns, ids=False) == content(other, ids=False)


def test_the_content_of_a_source_covers_the_names_of_categories() -> None:
    def digest(cells: list[str]) -> str:
        column = pa.chunked_array([pa.array(cells).dictionary_encode()])
        return content_of(open_source(pa.table({"a": column}), ["a"], party="bank"), ["a"])  # type: ignore[arg-type]

    assert digest(["x", "y"]) == digest(["x", "y"]) != digest(["y", "x"])


def test_the_content_of_a_sparse_matrix() -> None:
    def digest(row: int) -> str:
        matrix = scipy.sparse.csc_array(([1.0], ([row], [0])), shape=(5, 1))
        return content_of(open_source(matrix, ["a"], party="bank"), ["a"])

    assert digest(1) == digest(1) != digest(2)
