"""Writing of files atomically, readable by their owner alone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterable


def write_whole(path: Path, content: str | bytes | bytearray) -> None:
    """Write a file as `replace_file` does. Raises OutputError, which names the file."""
    try:
        replace_file(path, [content.encode() if isinstance(content, str) else content])
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror}") from error


def replace_file(path: Path, pieces: Iterable[bytes | bytearray]) -> None:
    """Write a file atomically and durably, with mode 0600: it is complete or absent.

    The pieces go to a new file in the same folder, created exclusively under an unpredictable name, which then replaces `path`.
    No symbolic link in the folder is followed; a link at `path` is replaced. Raises OSError.
    """
    descriptor, part = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".part", dir=path.parent)
    try:
        # Unbuffered, so that no copy of a secret stays in memory.
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    left = left[file.write(left) :]
            os.fsync(file.fileno())
        Path(part).replace(path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def owners_file(path: str, flags: int) -> int:
    """Open a file for writing in steps, as `opener` of open(): with mode 0600, following no symbolic link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
