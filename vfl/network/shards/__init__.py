"""Row shards: n records are cut into S consecutive ranges, and each range has one object.

A party releases sums of integers, so the sum over all shards is the same integer for every S. Per-record vectors are computed
row by row, so they are also equal to the bit for every S.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class Shard:
    """Range `number` of a cut: the records start to stop − 1 of n, in their common order."""

    number: int
    start: int
    stop: int
    n_records: int

    @property
    def size(self) -> int:
        """Return the number of records in the shard."""
        return self.stop - self.start


def cut(n_records: int, shards: int) -> tuple[Shard, ...]:
    """Cut n records into shards whose sizes differ by at most one. Every participant computes the same cut.

    Raises SpecificationError if there are more shards than records.
    """
    if shards > n_records:
        raise SpecificationError(f"{shards} shards need at least as many records: lower shards")
    ends = [n_records * k // shards for k in range(shards + 1)]
    return tuple(Shard(k, ends[k], ends[k + 1], n_records) for k in range(shards))


class Each(tuple[Any, ...]):
    """An argument of a call to all members of a group, with one value per member."""

    __slots__ = ()


class Group(ABC):
    """Objects of one class, one per shard, which are called at the same time. size : S, the number of members."""

    def __init__(self, members: Sequence[Any]) -> None:
        self.members = tuple(members)
        self.size = len(self.members)

    @abstractmethod
    def start(self, method: str, *arguments: Any) -> Each:
        """Call a method of all members. Return the answers, or references that `fetch` can read and later calls accept."""

    @abstractmethod
    def fetch(self, answers: Sequence[Any]) -> list[Any]:
        """Return the answers that `start` announced. Raises the exception of a member, if there was one."""

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all members, and return the answers. Raises the exception of a member, if there was one."""
        return self.fetch(self.start(method, *arguments))

    def begin(self, method: str, *arguments: Any) -> Callable[[], list[Any]]:
        """Call a method of all members. Return a function that waits for the answers, as `ask` does."""
        answers = self.start(method, *arguments)
        return lambda: self.fetch(answers)

    def vectors(self, method: str, *arguments: Any) -> Each:
        """Call a method of all members that returns a per-record vector, and wait until all vectors are made.

        Return the vectors, or references to them. Raises the exception of a member, if there was one.
        """
        return self.start(method, *arguments)


class LocalGroup(Group):
    """Group of objects in this process, called one after another."""

    def start(self, method: str, *arguments: Any) -> Each:
        """Call a method of all members, and return the answers."""
        return Each(getattr(member, method)(*given(arguments, k)) for k, member in enumerate(self.members))

    def fetch(self, answers: Sequence[Any]) -> list[Any]:
        """Return the answers, which are in this process already."""
        return list(answers)


def given(arguments: Sequence[Any], number: int) -> list[Any]:
    """Return the arguments for the call to one member. From an `Each`, take the member's own value."""
    return [argument[number] if isinstance(argument, Each) else argument for argument in arguments]
