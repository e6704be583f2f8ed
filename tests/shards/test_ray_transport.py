"""Form in which an actor sends a vector: inline, lent, or in the object store."""

from __future__ import annotations

import numpy as np
import pytest

from vfl.network.shards import ray_transport
from vfl.network.shards.lending import Lender, Lent, StoredVector, no_room
from vfl.network.shards.ray_transport import INLINE_BYTES, room_to_send, sent

SMALL, LARGE = INLINE_BYTES // 8, INLINE_BYTES // 8 + 1


@pytest.fixture(autouse=True)
def _no_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_transport.ray, "put", lambda vector: ("reference", len(vector)))


@pytest.mark.parametrize(
    ("size", "near", "form"),
    [(SMALL, True, np.ndarray), (SMALL, False, np.ndarray), (LARGE, True, Lent), (LARGE, False, StoredVector)],
)
def test_only_large_vectors_to_this_machine_are_lent(size: int, near: bool, form: type) -> None:
    lender = Lender()
    assert type(sent(np.ones(size), lender.lend, near=near)) is form
    assert (room_to_send(size, Lender().room, near=near) is not None) == (form is Lent)


def test_without_shared_memory_a_large_vector_is_stored() -> None:
    assert isinstance(sent(np.ones(LARGE), lambda _: None, near=True), StoredVector)
    assert room_to_send(LARGE, no_room, near=True) is None


def test_a_vector_computed_in_the_room_is_lent_without_a_copy() -> None:
    lender = Lender()
    room = room_to_send(LARGE, lender.room, near=True)
    assert room is not None
    room[:] = 2.0
    lent = sent(room, lender.lend, near=True)
    assert isinstance(lent, Lent)
    assert lender.holds(room)
    assert lent.length == LARGE
