"""Handling of SIGTERM like Ctrl-C: the command ends its processes, and a run prints how it can be continued."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM. A command then ends as after Ctrl-C, with exit code 130. A service catches it and ends normally."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM raise Terminated in the main thread. A second SIGTERM ends the process at once."""
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
