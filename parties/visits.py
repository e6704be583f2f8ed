"""Visits to shards of a party on one machine: one call of each actor per visit, whose steps travel over lines."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from vfl.shards import Each, Remote, given
from vfl.shards.line import Ended, Line
from vfl.shards.ray_transport import answered

if TYPE_CHECKING:
    from collections.abc import Sequence


class Visited(Remote):
    """Group of a party's shards. While `near`, each visit is one call of each shard, and its steps are messages on a line."""

    near = False
    seconds = 3600.0
    """Limit for one step."""
    _lines: tuple[Line, ...] = ()
    _answers: tuple[Any, ...] = ()

    def start(self, method: str, *arguments: Any) -> Each:
        """Return references to the answers. An unfinished visit ends first, because its shards are waiting for a step."""
        self._end()
        return super().start(method, *arguments)

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all members; return the answers, or raise an exception that a member raised."""
        if method == "enter" and self.near:
            self._end()
            self._lines = tuple(Line(self.seconds) for _ in self.members)
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
            raise AssertionError("a shard ended its visit without an error") from None

    def _failed(self) -> None:
        """End the visit and raise the error of the shard that ended it."""
        answers, self._answers = self._answers, ()
        self._end()
        self.fetch(answers)

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
