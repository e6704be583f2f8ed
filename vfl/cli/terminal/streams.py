"""Standard streams that survive a closed pipe, so that `vfl run JOB | head` does not stop a run that spends budget."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

RAY_SAYS_NOTHING = {"RAY_DEDUP_LOGS": "1", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
"""Environment that keeps Ray from reporting dead processes on standard output, among lines of JSON.

Ray does so despite `log_to_driver=False`. A run reports lost parties itself."""


class Unread(io.FileIO):
    """File descriptor that drops output once its reader has gone."""

    def write(self, data: Any) -> int:
        """Write; report success if the reader has gone."""
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


@contextlib.contextmanager
def outliving() -> Iterator[None]:
    """Let the process's own standard streams survive closed pipes; leave streams that replace them as they are."""
    before = sys.stdout, sys.stderr
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            stream.flush()
            raw = io.BufferedWriter(Unread(stream.fileno(), "wb", closefd=False))
            lines = stream.line_buffering
            setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=lines))
    try:
        yield
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):  # a process may be started without them
            stream.flush()
        sys.stdout, sys.stderr = before
