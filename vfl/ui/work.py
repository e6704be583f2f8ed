"""Work on items that others wrote: one thread per item at a time, and nobody waits for it longer than a limit."""

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
"""Items that are worked on at the same time."""

log = logging.getLogger(__name__)


class Task(threading.Thread):
    """Work on one item. `outcome` is set at the end, or `error`."""

    def __init__(self, work: Callable[[], Any], ended: Callable[[], None]) -> None:
        super().__init__(daemon=True)  # the process may end before its work
        self._work, self._ended = work, ended
        self.outcome: Any = None
        self.error: Exception | None = None
        self.over = threading.Event()
        self.begun = time.monotonic()

    def run(self) -> None:
        """Do the work."""
        try:
            self.outcome = self._work()
        except Exception as error:  # noqa: BLE001 - files that others wrote hold anything; `Work.done` tells the errors apart
            self.error = error
        self._ended()
        self.over.set()


class Work:
    """Work in progress, by key. A request for work in progress waits for it, instead of beginning it again."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, Task] = {}
        self._lock = threading.Lock()

    def done(self, key: Hashable, seconds: float, work: Callable[[], T]) -> T:
        """Return work(), or raise its error: of vfl, of the system, or Expected.

        Raises OutputError for every other error, after `seconds` from the beginning of the work, and while MOST others work.
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
    """Base of the errors with which work answers."""
