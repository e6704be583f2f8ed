"""Visits to shards of a party on one machine: one call of each actor per visit, whose steps travel over lines."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NoReturn

from vfl.errors import PartyLost
from vfl.shards import Each, Remote, given
from vfl.shards.line import Ended, Line
from vfl.shards.ray_transport import answered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Visited(Remote):
    """Group of a party's shards. While `near`, each visit is one call of each shard, and its steps are messages on a line.

    party : raised as lost if a shard ends a visit without an error, or needs more than `seconds` for a step. members, wait,
        encode : as for `Remote`.
    """

    def __init__(
        self,
        members: Sequence[Any],
        wait: Callable[[int, Any], Any],
        encode: Callable[[Any], Any] = lambda value: value,
        *,
        party: str,
        seconds: float,
    ) -> None:
        super().__init__(members, wait, encode, handles=True)
        self.near = False
        self._party, self._seconds = party, seconds
        self._lines: tuple[Line, ...] = ()
        self._answers: tuple[Any, ...] = ()

    def start(self, method: str, *arguments: Any) -> Each:
        """Return references to the answers. An unfinished visit ends first, because its shards are waiting for a step."""
        self._end()
        return super().start(method, *arguments)

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all members; return the answers, or raise an exception that a member raised."""
        if method == "enter" and self.near:
            self._end()
            self._lines = tuple(Line(self._seconds) for _ in self.members)
            addresses = Each(line.address for line in self._lines)
            self._answers = tuple(ask.remote(*own) for ask, own in self._calls("visit", (*arguments, addresses)))
            return self._heard([line.first for line in self._lines])
        if method == "step" and self._lines:
            return self._said(arguments)
        return super().ask(method, *arguments)

    def vectors(self, method: str, *arguments: Any) -> Each:
        """Return handles of the members' vectors."""
        if method == "leave" and self._lines:
            self._said((None, *arguments), heard=False)
            answers, self._answers = self._answers, ()
            self._end()
            return Each(self.fetch(answers))
        return super().vectors(method, *arguments)

    def _said(self, arguments: Sequence[Any], *, heard: bool = True) -> list[Any]:
        try:
            for k, line in enumerate(self._lines):
                line.send(given(arguments, k))
        except Ended:
            self._failed()
        return self._heard([lambda _, line=line: line.receive() for line in self._lines]) if heard else []

    def _heard(self, receive: Sequence[Any]) -> list[Any]:
        try:
            return [
                hear(lambda answer=answer: self._done(answer))
                for hear, answer in zip(receive, self._answers, strict=True)
            ]
        except Ended:
            self._failed()

    def _failed(self) -> NoReturn:
        """End the visit and raise the error of the shard that ended it, or PartyLost if there is none."""
        answers, self._answers = self._answers, ()
        self._end()
        self.fetch(answers)
        raise PartyLost(f"a shard of {self._party!r} did not answer within {self._seconds:g} s", self._party)

    def _end(self) -> None:
        """End the visit of all members, and wait until they can be called."""
        for line in self._lines:
            line.close()
        self._lines = ()
        answers, self._answers = self._answers, ()
        with contextlib.suppress(Exception):  # the next call to a lost member raises the loss
            self.fetch(answers)

    def _done(self, answer: Any) -> bool:
        return answered(answer)
