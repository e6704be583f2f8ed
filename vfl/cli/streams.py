"""Standard output and error that outlive their reader: `vfl run JOB | head` must not stop a run that costs budget."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

RAY_SAYS_NOTHING = {"RAY_DEDUP_LOGS": "1", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
"""Environment for Ray, which otherwise tells of processes that died on the driver's standard output, among lines of JSON.

Whatever `log_to_driver` says. A run tells itself what became of a party."""


class Unread(io.FileIO):
    """A file descriptor whose reader may go away: what is written after that is dropped quietly."""

    def write(self, data: Any) -> int:
        """Write, or pretend to."""
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


@contextlib.contextmanager
def outliving() -> Iterator[None]:
    """Let the process's own standard streams outlive whoever reads them; streams that were put in their place stay."""
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
        for stream in filter(None, (sys.stdout, sys.stderr)):  # a process may have been started without
            stream.flush()
        sys.stdout, sys.stderr = before
