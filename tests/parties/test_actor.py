"""The actor around a party: constants of a run are fetched once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parties import actor
from tests.solvers.setting import job
from vfl.messages import Stored
from vfl.solvers import SkGD


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
    party = actor.PartyActor(job(SkGD()), "bank")
    first = party._constant("labels", Stored("ref", 1))
    assert party._constant("labels", Stored("ref", 1)) is first
    assert party._constant("limits", Stored("other", 2)) is not first
    assert party._constant("labels", Stored("ref", 1)) is first
    assert fetched == ["ref", "other"]


def test_a_new_constant_is_fetched(fetched: list[Any]) -> None:
    party = actor.PartyActor(job(SkGD()), "bank")
    first = party._constant("limits", Stored("ref", 1))
    assert party._constant("limits", Stored("ref", 2)) is not first
    assert fetched == ["ref", "ref"]


def test_vectors_in_the_call_are_taken_as_they_are(fetched: list[Any]) -> None:
    party, inline = actor.PartyActor(job(SkGD()), "bank"), np.ones(3)
    assert party._constant("labels", inline) is inline
    assert party._constant("labels", None) is None
    assert fetched == []
