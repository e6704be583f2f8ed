"""Threads that read files which other users may have written. Each item is read by one thread; requests wait a limited time."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

from vfl.errors import OutputError, VflError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")
MOST = 16
"""Largest number of items that may be read at the same time."""

log = logging.getLogger(__name__)


class Work:
    """Readings in progress, by key. A second request for the same key waits for the first request's reading."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, tuple[Future[Any], float]] = {}  # {key: (outcome, time of the start)}
        self._lock = threading.Lock()

    def done(self, key: Hashable, seconds: float, work: Callable[[], T]) -> T:
        """Return work(), or raise the error of work() if that is a VflError, an OSError or Expected.

        Raises OutputError for any other error, after `seconds`, and while MOST other readings are in progress.
        """
        with self._lock:
            if key not in self._tasks:
                if len(self._tasks) >= MOST:
                    raise OutputError("too many other items are being read; try again")
                self._tasks[key] = Future(), time.monotonic()
                # The process may end before this thread does.
                threading.Thread(target=self._run, args=(key, self._tasks[key][0], work), daemon=True).start()
            task, begun = self._tasks[key]
        if not wait([task], max(0.0, begun + seconds - time.monotonic())).done:
            raise OutputError("reading it takes too long; try again")
        error = task.exception()
        if error is None:
            outcome: T = task.result()
            return outcome
        if isinstance(error, (VflError, OSError, Expected)):
            raise error
        log.debug("an item cannot be shown", exc_info=error)
        raise OutputError(f"it is damaged ({type(error).__name__})") from error

    def _run(self, key: Hashable, task: Future[Any], work: Callable[[], Any]) -> None:
        try:
            outcome, error = work(), None
        except Exception as raised:  # noqa: BLE001 - damaged files may raise any error; `done` tells them apart
            outcome, error = None, raised
        with self._lock:
            del self._tasks[key]
        if error is None:
            task.set_result(outcome)
        else:
            task.set_exception(error)


class Expected(Exception):
    """Base class of errors that `Work.done` passes on unchanged."""
