"""The actor around a party: constants of a run are fetched once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parties import actor
from tests.coordinator.test_transports import job
from vfl.errors import DataError
from vfl.messages import Stored


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
    first = constants.of("labels", Stored("ref", 1))
    assert constants.of("labels", Stored("ref", 1)) is first
    assert constants.of("limits", Stored("other", 2)) is not first
    assert constants.of("labels", Stored("ref", 1)) is first
    assert fetched == ["ref", "other"]


def test_a_new_constant_is_fetched(fetched: list[Any]) -> None:
    constants = actor.Constants()
    first = constants.of("limits", Stored("ref", 1))
    assert constants.of("limits", Stored("ref", 2)) is not first
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
def test_shards_read_no_source_whose_order_may_change(source: str) -> None:
    """A record could be in two shards, each of which opens the source by itself, and add to one sum twice."""
    party = actor.PartyActor(job(), "bank", shards=({}, {}))
    with pytest.raises(DataError, match=r"may give its rows in another order to each shard .* or leave shards at 1"):
        party.load(source)
    assert party._source is None
