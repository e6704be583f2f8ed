"""Standard streams of the command line.

The streams survive a closed pipe, so that `vfl run JOB | head` does not stop a run that spends budget. The streams escape
control characters as JSON does, since commands print names and texts from files that others wrote.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

RAY_SAYS_NOTHING = {"RAY_DEDUP_LOGS": "1", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
"""Environment variables that keep Ray from printing reports of dead processes to standard output, which may hold JSON.

Ray prints these reports despite `log_to_driver=False`. A run itself reports lost parties.
"""


class Unread(io.FileIO):
    """Raw file that discards what is written after the reader has gone."""

    def write(self, data: Any) -> int:
        """Write data. Report success even if the reader has gone."""
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


CONTROL = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)"
)
"""Characters that control a terminal or the direction of text, except tabs and line ends; also bytes that are not UTF-8."""


def shown(text: str) -> str:
    """Return text with its control characters escaped as in JSON, so that JSON stays valid."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class Shown(io.TextIOWrapper):
    """Text stream that escapes control characters. `write_control` writes text of this program without escaping."""

    def write(self, text: str, /) -> int:
        """Write text with its control characters escaped by `shown`."""
        super().write(shown(text))
        return len(text)

    def write_control(self, text: str) -> int:
        """Write text unchanged."""
        return super().write(text)


_DRAWN = re.compile(r"(\x1b\[[\d;?]*[A-Za-z]|\r)")
"""Control sequences that move or colour a drawn line."""


class _Drawing:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if isinstance(self._stream, Shown):
            # `split` returns the control codes that matched at odd positions. They pass unescaped.
            parts = (part if k % 2 else shown(part) for k, part in enumerate(_DRAWN.split(text)))
            self._stream.write_control("".join(parts))
        else:
            self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def drawing() -> Any:
    """Return standard error for Rich, whose own control sequences are not escaped. The caller escapes captions by `shown`."""
    return _Drawing(sys.stderr)


@contextlib.contextmanager
def outliving() -> Iterator[None]:
    """Make the process's standard streams survive closed pipes and escape control characters.

    If a standard stream was replaced by another stream, the other stream is left unchanged.
    """
    before = sys.stdout, sys.stderr
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            stream.flush()
            raw = io.BufferedWriter(Unread(stream.fileno(), "wb", closefd=False))
            lines = stream.line_buffering
            setattr(sys, name, Shown(raw, stream.encoding, stream.errors, line_buffering=lines))
    try:
        yield
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):  # a process may be started without them
            stream.flush()
        sys.stdout, sys.stderr = before
