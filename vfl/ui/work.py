"""Threads that read files from other users: one per item at a time, with a limit on the waiting time."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from vfl.errors import OutputError, VflError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")
MOST = 16
"""Largest number of items that are read at the same time."""

log = logging.getLogger(__name__)


class Task(threading.Thread):
    """Job in progress on one item. It sets `outcome` or `error` at the end."""

    def __init__(self, work: Callable[[], Any], ended: Callable[[], None]) -> None:
        super().__init__(daemon=True)  # the process may end before this thread does
        self._work, self._ended = work, ended
        self.outcome: Any = None
        self.error: Exception | None = None
        self.over = threading.Event()
        self.begun = time.monotonic()

    def run(self) -> None:
        """Call the function and keep its result or error."""
        try:
            self.outcome = self._work()
        except Exception as error:  # noqa: BLE001 - damaged files may raise any error; `Work.done` tells them apart
            self.error = error
        self._ended()
        self.over.set()


class Work:
    """Jobs in progress, by key. A second request for the same key waits for the job that is in progress."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, Task] = {}
        self._lock = threading.Lock()

    def done(self, key: Hashable, seconds: float, work: Callable[[], T]) -> T:
        """Return work(), or raise its error if that is a VflError, an OSError or Expected.

        Raises OutputError for every other error, if the job has taken longer than `seconds`, and while MOST others are running.
        """
        with self._lock:
            task = self._tasks.get(key)
            if task is None:
                if len(self._tasks) >= MOST:
                    raise OutputError("too many other items are being read; try again")
                task = self._tasks[key] = Task(work, lambda: self._end(key))
                task.start()
        if not task.over.wait(max(0.0, task.begun + seconds - time.monotonic())):
            raise OutputError("reading it takes too long; try again")
        if task.error is None:
            outcome: T = task.outcome
            return outcome
        if isinstance(task.error, (VflError, OSError, Expected)):
            raise task.error
        log.debug("an item cannot be shown", exc_info=task.error)
        raise OutputError(f"it is damaged ({type(task.error).__name__})") from task.error

    def _end(self, key: Hashable) -> None:
        with self._lock:
            del self._tasks[key]


class Expected(Exception):
    """Base of errors that `Work.done` passes on unchanged."""
