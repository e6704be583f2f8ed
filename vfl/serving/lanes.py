"""Batching: requests that arrive while a batch is answered form the next one; a request alone waits for nobody."""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

Q = TypeVar("Q")
A = TypeVar("A")
TEND_SECONDS = 0.5
"""Seconds between two calls of `Lane.tend`."""


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Q, A]):
    question: Q
    size: int
    until: float
    answer: Future[A] = field(default_factory=Future)


class Lane(ABC, Generic[Q, A]):
    """A thread that answers questions in batches, one batch at a time.

    most : largest total size of a batch.
    """

    def __init__(self, name: str, most: int) -> None:
        self._most = most
        self._questions: queue.SimpleQueue[_Waiting[Q, A] | None] = queue.SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @property
    def running(self) -> bool:
        """True once the lane was started."""
        return self._thread.ident is not None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Answer the questions that wait, then end the thread."""
        self._stopped = True
        self._questions.put(None)
        self._thread.join(seconds)

    def ask(self, question: Q, size: int, until: float) -> Future[A]:
        """Return the future answer. until : time (monotonic) from which on nobody waits, so that it is not asked any more."""
        waiting: _Waiting[Q, A] = _Waiting(question, size, until)
        self._questions.put(waiting)
        return waiting.answer

    @abstractmethod
    def answer(self, questions: Sequence[Q]) -> Sequence[A]:
        """Return an answer for each question."""

    def finish(self) -> None:
        """Complete the work for a batch after its answers were given, while further questions wait. Raises nothing."""

    def tend(self) -> None:
        """Do what is to be done about twice a second, in the lane's thread."""

    def _work(self) -> None:
        tended, carried = 0.0, None
        while True:
            if time.monotonic() - tended > TEND_SECONDS:
                self._safely(self.tend)
                tended = time.monotonic()
            batch, carried = self._next(carried)
            if batch is None:
                return
            due = [one for one in batch if one.until > time.monotonic() and one.answer.set_running_or_notify_cancel()]
            if not due:
                continue
            try:
                answers = self.answer([one.question for one in due])
                for one, answer in zip(due, answers, strict=True):
                    one.answer.set_result(answer)
            except BaseException as error:  # noqa: BLE001 - raised where the answer is awaited
                for one in due:
                    if not one.answer.done():
                        one.answer.set_exception(error)
            self.finish()

    def _next(self, carried: Any) -> tuple[list[_Waiting[Q, A]] | None, Any]:
        """Return the next batch, and a question that did not fit; None at the end."""
        try:
            first = carried or self._questions.get(timeout=TEND_SECONDS)
        except queue.Empty:
            return [], None
        if first is None:
            return None, None
        batch, size = [first], first.size
        while not self._questions.empty():
            following = self._questions.get()
            if following is None:
                self._questions.put(None)
                break
            if size + following.size > self._most:
                return batch, following
            batch.append(following)
            size += following.size
        return batch, None

    @staticmethod
    def _safely(work: Any) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001 - tried again
            return
