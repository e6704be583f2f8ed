"""Writing of files that only their owner can read: whole files, and whole lines at the end of a log."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from typing import TYPE_CHECKING

from vfl.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

PIECE = 1 << 16


def write_whole(path: Path, content: str | bytes | bytearray) -> None:
    """Write a file as `replace_file` does. OutputError names the file."""
    try:
        replace_file(path, [content.encode() if isinstance(content, str) else content])
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror}") from error


def replace_file(path: Path, pieces: Iterable[bytes | bytearray]) -> None:
    """Write a file atomically and durably, with mode 0600. The file is then complete or absent.

    The pieces go to a new file in the same folder, created exclusively under an unpredictable name. The new file then
    replaces `path`. No symbolic link in the folder is followed; a link at `path` is replaced. Raises OSError.
    """
    with _written(path, pieces, 0o600) as part:
        part.replace(path)


def create_file(path: Path, content: bytes, mode: int = 0o600) -> bool:
    """Write a new file as `replace_file` does. If `path` exists, change nothing and return False.

    If several processes try at once, one process succeeds. Raises OSError.
    """
    with _written(path, [content], mode) as part:
        try:
            os.link(part, path)  # unlike a rename, it never replaces a file
        except FileExistsError:
            return False
    return True


@contextlib.contextmanager
def _written(path: Path, pieces: Iterable[bytes | bytearray], mode: int) -> Iterator[Path]:
    """Write a new file beside `path` under an unpredictable name; on leaving, remove a file that is left under that name."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        # Unbuffered, so that no copy of a secret stays in memory.
        with os.fdopen(descriptor, "wb", 0) as file:
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    left = left[file.write(left) :]
            os.fsync(descriptor)
        yield part
    finally:
        part.unlink(missing_ok=True)


def append_lines(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Append lines to a log: all of them, or none. The log may be shared by several processes.

    A partial line at the end, which a killed process left, is cut off first. Nothing depends on it, since its writer did not
    return. Raises OSError, for a full disk as well. durable : as for `append`.
    """
    descriptor = owners_file(os.fspath(path), os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, _end_of_lines(descriptor))
        append(descriptor, content, durable=durable)
    finally:
        os.close(descriptor)


def append(descriptor: int, content: bytes, *, durable: bool = False) -> None:
    """Append all of the content, or restore the length of the file and raise OSError, as on a full disk.

    No other process may append meanwhile. durable : if True, the content is on disk when the call returns.
    """
    size = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        if durable:
            os.fsync(descriptor)
    except BaseException:
        os.ftruncate(descriptor, size)
        os.lseek(descriptor, size, os.SEEK_SET)
        raise


def _end_of_lines(descriptor: int) -> int:
    """Return the position after the last newline of a file."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(end - PIECE, 0)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def owners_file(path: str, flags: int) -> int:
    """Open a file for writing in steps, with mode 0600 and without following a symbolic link. Use as `opener` of open()."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
