"""Calls over pipes: the same answers as Ray calls; errors, losses and new references close the pipes and are not lost."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from vfl.errors import PartyLost, PrivacyError
from vfl.network.shards import Each, serving
from vfl.network.shards.serving import KNOWN, PipeActor, PipeGroup

if TYPE_CHECKING:
    from collections.abc import Iterator


class Reference:
    """Reference to an object in a store. Only Ray calls carry it."""

    def __init__(self, name: bytes) -> None:
        self.name = name

    def __reduce__(self) -> Any:
        raise AssertionError("a reference was pickled")


class Member(PipeActor):
    """Actor that stands for a number. It fails when it is asked for a number that it was told; its calls are counted."""

    def __init__(self, number: int) -> None:
        self.number, self.fails, self.calls = number, -1, 0
        self.waits: Event | None = None

    def add(self, own: int, other: Any) -> Any:
        """Return a sum, or fail."""
        if self.waits is not None:
            self.waits.wait()
        if own == self.fails:
            raise PrivacyError(f"member {self.number} fails")
        return own + other + self.number

    def same(self, value: Any) -> Any:
        """Return the value."""
        return value

    def function(self) -> Any:
        """Return an object that pickle cannot send."""
        return lambda: self.number


class Method:
    """Method of an actor that answers one call at a time."""

    def __init__(self, member: Member, name: str, pool: ThreadPoolExecutor) -> None:
        self._member, self._name, self._pool = member, name, pool

    def remote(self, *arguments: Any) -> Future[Any]:
        """Call it."""
        self._member.calls += 1
        return self._pool.submit(getattr(self._member, self._name), *arguments)


class Handle:
    """Handle of an actor."""

    def __init__(self, member: Member, pool: ThreadPoolExecutor) -> None:
        self.member, self._pool = member, pool

    def __getattr__(self, name: str) -> Method:
        return Method(self.member, name, self._pool)


def lost(number: int) -> PartyLost:
    return PartyLost(f"member {number} was late", "bank")


@pytest.fixture(autouse=True)
def _references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "name_of", lambda value: value.name if isinstance(value, Reference) else None)


@pytest.fixture
def pools() -> Iterator[list[ThreadPoolExecutor]]:
    made = [ThreadPoolExecutor(1) for _ in range(3)]
    yield made
    for pool in made:
        pool.shutdown()


def served(pools: list[ThreadPoolExecutor], seconds: float = 120.0, wait: Any = None) -> Any:
    handles = [Handle(Member(k), pool) for k, pool in enumerate(pools)]
    wait = wait or (lambda _, answer: answer.result(120.0))
    return PipeGroup(handles, wait, lost=lost, seconds=seconds, handles=True, ended=lambda answer: answer.done())


@pytest.fixture
def group(pools: list[ThreadPoolExecutor]) -> Iterator[Any]:
    made = served(pools)
    yield made
    made.start("same", 0)  # ends the lines


def calls(group: Any) -> list[int]:
    """Return the number of Ray calls that each member has had so far."""
    return [handle.member.calls for handle in group.members]


def test_many_calls_take_one_ray_call_and_their_answers_are_the_same(group: Any) -> None:
    apart = [group.ask("add", 100, Each([10, 20, 30])), list(group.vectors("same", "vector"))]
    assert apart == [[110, 121, 132], ["vector"] * 3]
    assert calls(group) == [2, 2, 2]
    group.near = True
    for _ in range(3):
        assert [group.ask("add", 100, Each([10, 20, 30])), list(group.vectors("same", "vector"))] == apart
    assert calls(group) == [3, 3, 3]


def test_a_ray_call_in_between_is_answered_and_the_next_call_opens_new_pipes(group: Any) -> None:
    group.near = True
    group.ask("add", 1, 1)
    assert group.fetch(group.start("add", 1, 1)) == group.ask("add", 1, 1) == [2, 3, 4]
    assert calls(group) == [3, 3, 3]


def test_a_call_that_began_is_heard_before_the_next_one_and_its_error_is_not_lost(group: Any) -> None:
    group.near = True
    begun = group.begin("add", 1, Each([1, 2, 3]))
    assert group.ask("add", 10, 10) == [20, 21, 22]
    assert begun() == begun() == [2, 4, 6]
    group.members[1].member.fails = 7
    begun = group.begin("add", 7, 0)
    assert group.fetch(group.start("add", 1, 1)) == [2, 3, 4]
    for _ in range(2):
        with pytest.raises(PrivacyError, match="member 1 fails"):
            begun()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_error_of_one_member_is_raised_and_the_others_are_free(group: Any, number: int) -> None:
    group.near = True
    group.members[number].member.fails = 7
    with pytest.raises(PrivacyError, match=f"member {number} fails"):
        group.ask("add", 7, 0)
    assert not group.near
    assert group.ask("add", 5, 0) == [5, 6, 7]
    group.near = True
    assert group.ask("add", 5, 0) == [5, 6, 7]


def test_a_member_that_is_late_counts_as_lost(pools: list[ThreadPoolExecutor]) -> None:
    go_on = Event()

    def wait(number: int, answer: Any) -> Any:
        go_on.set()
        return answer.result(120.0)

    group = served(pools, 3.0, wait)
    group.near = True
    group.ask("add", 0, 0)
    group.members[2].member.waits = go_on
    with pytest.raises(PartyLost, match="member 2 was late"):
        group.ask("add", 0, 0)
    assert group.ask("add", 1, 2) == [3, 4, 5]


def test_a_reference_is_carried_by_ray_once_and_by_name_afterwards(group: Any) -> None:
    """Both ends keep the last few references, so that they free the objects of earlier ones."""
    group.near = True
    references = [Reference(bytes([k])) for k in range(KNOWN + 1)]
    for _ in range(3):
        assert group.ask("same", ["labels", references[0]]) == [["labels", references[0]]] * 3
    assert calls(group) == [1, 1, 1]
    for reference in references:
        assert group.ask("same", reference) == [reference] * 3
    assert calls(group) == [1 + KNOWN] * 3
    assert group.ask("same", references[0]) == [references[0]] * 3
    assert calls(group) == [2 + KNOWN] * 3


def test_an_answer_with_a_new_reference_ends_the_line_and_is_returned(group: Any) -> None:
    group.near = True
    reference = Reference(b"own")
    for handle in group.members:
        handle.member.function = lambda: {"labels": reference}
    for _ in range(3):
        assert [set(answer) for answer in group.ask("function")] == [{"labels"}] * 3
    assert calls(group) == [2, 2, 2]


def test_what_pickle_cannot_send_takes_ray(group: Any) -> None:
    group.near = True
    assert [function() for function in group.ask("function")] == [0, 1, 2]
    assert [function() for function in group.ask("same", lambda: 5)] == [5, 5, 5]
    assert group.ask("add", 1, 1) == [2, 3, 4]
