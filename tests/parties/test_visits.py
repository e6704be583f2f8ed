"""Visits over lines: the same answers as calls of each step, and an error or a loss of a shard ends the visit of all."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from parties.actor import RowsActor
from parties.visits import Visited
from vfl.errors import PartyLost, PrivacyError
from vfl.shards import Each

if TYPE_CHECKING:
    from collections.abc import Iterator


class Shard(RowsActor):
    """Shard whose rows are one number. It fails at a step; the calls that it answers are counted."""

    def __init__(self, number: int) -> None:
        self.number, self.fails, self.calls = number, -1, 0
        self.waits: Event | None = None

    def enter(self, query: Any, records: Any) -> Any:
        """Return a sum."""
        return query + records + self.number

    def step(self, number: int, delta: Any, shift: Any) -> Any:
        """Return the sum of a step, or fail."""
        if self.waits is not None:
            self.waits.wait()
        if number == self.fails:
            raise PrivacyError(f"shard {self.number} fails")
        return 100 * number + delta + shift + self.number

    def leave(self, delta: Any, shift: Any) -> Any:
        """Return the vector."""
        return ["vector", delta, shift, self.number]


class Method:
    """Method of an actor that answers one call at a time."""

    def __init__(self, shard: Shard, name: str, pool: ThreadPoolExecutor) -> None:
        self._shard, self._name, self._pool = shard, name, pool

    def remote(self, *arguments: Any) -> Future[Any]:
        """Call it."""
        self._shard.calls += 1
        return self._pool.submit(getattr(self._shard, self._name), *arguments)


class Handle:
    """Handle of an actor."""

    def __init__(self, shard: Shard, pool: ThreadPoolExecutor) -> None:
        self.shard, self._pool = shard, pool

    def __getattr__(self, name: str) -> Method:
        return Method(self.shard, name, self._pool)


class Threads(Visited):
    """The group over threads."""

    def _done(self, answer: Any) -> bool:
        return bool(answer.done())


@pytest.fixture
def group() -> Iterator[Any]:
    pools = [ThreadPoolExecutor(1) for _ in range(3)]
    handles = [Handle(Shard(k), pool) for k, pool in enumerate(pools)]
    made = Threads(handles, lambda _, answer: answer.result(120.0), party="bank", seconds=120.0)
    yield made
    made.ask("meet", None, None)  # ends a visit that is under way
    for pool in pools:
        pool.shutdown()


def visited(group: Any) -> list[Any]:
    """Return the answers of a visit of two steps."""
    records = Each([10, 20, 30])
    return [group.ask("enter", 1000, records), group.ask("step", 1, 7, 0.5), list(group.vectors("leave", 8, 0.25))]


@pytest.fixture(autouse=True)
def meets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shard, "meet", lambda self, margins, party: (True, True))


def test_a_visit_is_one_call_and_its_answers_are_those_of_single_calls(group: Any) -> None:
    apart = visited(group)
    assert {handle.shard.calls for handle in group.members} == {3}
    group.near = True
    assert visited(group) == apart
    assert visited(group) == apart
    assert {handle.shard.calls for handle in group.members} == {5}
    assert apart == [[1010, 1021, 1032], [107.5, 108.5, 109.5], [["vector", 8, 0.25, k] for k in range(3)]]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_error_of_one_shard_is_raised_and_the_others_are_free(group: Any, number: int) -> None:
    group.near = True
    group.ask("enter", 0, 0)
    group.members[number].shard.fails = 1
    with pytest.raises(PrivacyError, match=f"shard {number} fails"):
        group.ask("step", 1, 0, 0.0)
    assert group.ask("enter", 5, 0) == [5, 6, 7]


def test_a_shard_that_is_late_counts_as_a_loss_of_its_party() -> None:
    go_on = Event()

    def wait(number: int, answer: Any) -> Any:
        go_on.set()
        return answer.result(120.0)

    pools = [ThreadPoolExecutor(1) for _ in range(3)]
    handles = [Handle(Shard(k), pool) for k, pool in enumerate(pools)]
    group = Threads(handles, wait, party="bank", seconds=3.0)
    group.near = True
    handles[2].shard.waits = go_on
    group.ask("enter", 0, 0)
    with pytest.raises(PartyLost, match="a shard of 'bank' did not answer within 3 s"):
        group.ask("step", 1, 0, 0.0)
    assert group.ask("leave", 1, 2) == [["vector", 1, 2, k] for k in range(3)]
    for pool in pools:
        pool.shutdown()


def test_a_visit_that_is_not_left_ends_with_the_next_call(group: Any) -> None:
    """A release that its party refuses leaves the shards waiting for a step."""
    group.near = True
    group.ask("enter", 0, 0)
    group.ask("step", 1, 0, 0.0)
    assert group.ask("leave", 1, 2) == [["vector", 1, 2, k] for k in range(3)]
    group.ask("enter", 0, 0)
    group.members[0].shard.fails = 5
    assert group.ask("enter", 1, 0) == [1, 2, 3]
    assert next(iter(group.vectors("leave", 3, 4))) == ["vector", 3, 4, 0]
