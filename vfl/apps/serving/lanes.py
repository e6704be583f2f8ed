"""Batching: questions that arrive while a batch is answered form the next batch. A single question is answered at once."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

Q = TypeVar("Q")
A = TypeVar("A")


class Lane(ABC, Generic[Q, A]):
    """Questions to one party, answered in batches. One batch is answered at a time, in the thread of the running event loop.

    most : largest total size of a batch.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[tuple[Q, int, asyncio.Future[A]]] = deque()
        self._due = False
        self._working: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """True while a batch is answered, or `tend` runs."""
        return self._working is not None

    def ask(self, question: Q, size: int) -> asyncio.Future[A]:
        """Return a future with the answer. A question whose future is cancelled before the batch begins is dropped."""
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, size, answer))
        self._begin()
        return answer

    def tend_soon(self) -> None:
        """Call `tend` before the next batch."""
        self._due = True
        self._begin()

    @abstractmethod
    async def answer(self, questions: Sequence[Q]) -> Sequence[A]:
        """Return an answer for each question."""

    async def tend(self) -> None:
        """Do the lane's regular work; its errors are ignored, since it is repeated."""

    def _begin(self) -> None:
        if self._working is None:
            self._working = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._due or self._waiting:
                if self._due:
                    self._due = False
                    with contextlib.suppress(Exception):
                        await self.tend()
                elif batch := self._next():
                    await self._answered(batch)
        finally:
            self._working = None

    def _next(self) -> list[tuple[Q, asyncio.Future[A]]]:
        batch: list[tuple[Q, asyncio.Future[A]]] = []
        room = self._most
        while self._waiting and (not batch or self._waiting[0][1] <= room):
            question, size, answer = self._waiting.popleft()
            if not answer.done():
                batch.append((question, answer))
                room -= size
        return batch

    async def _answered(self, batch: list[tuple[Q, asyncio.Future[A]]]) -> None:
        try:
            answers = await self.answer([question for question, _ in batch])
            for (_, answer), given in zip(batch, answers, strict=True):
                if not answer.done():
                    answer.set_result(given)
        except BaseException as error:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
                    answer.exception()  # read the exception here, since asyncio warns if a refused request never reads it
            if not isinstance(error, Exception):
                raise
