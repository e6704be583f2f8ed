"""Handling of SIGTERM like Ctrl-C: the command ends its processes, and a run prints how to continue."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Terminated(KeyboardInterrupt):
    """SIGTERM came. It ends a command as Ctrl-C does, with 130; it is the normal end of a service, which catches it."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM raise Terminated in the main thread; a second SIGTERM ends the process at once."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGTERM"):
        yield
        return

    def told(number: int, frame: object) -> None:
        del frame  # the signature of handlers
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    before = signal.signal(signal.SIGTERM, told)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
