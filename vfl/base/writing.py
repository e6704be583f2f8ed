"""Writing of files: whole files at once, and the places where SQLite can keep its promises.

Detection of places where SQLite can lose or mix commits: network file systems, and second names.

SQLite needs file locks that all writers see. File systems on a network or in user space do not guarantee them, so a charge can
be lost after its release was made. The journal lies beside the file, under the file's name. After a crash, a process that
opens the file under another name does not see it.

Writing of files that only their owner can read: whole files, and whole lines at the end of a log.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOUNTINFO = Path("/proc/self/mountinfo")

NETWORK = frozenset(
    (
        "9p", "acfs", "afpfs", "afs", "beegfs", "ceph", "cifs", "coda", "fakeowner", "gfs",
        "gfs2", "glusterfs", "gpfs", "lustre", "mmfs", "ncp", "ncpfs", "nfs", "nfs4", "ocfs2",
        "orangefs", "panfs", "prl_fs", "pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs",
        "webdav",
    )
)  # fmt: skip
"""File systems to which several machines may write, including folders shared with the host of a virtual machine."""

LOCAL_FUSE = frozenset(
    [
        "fuse.bindfs",
        "fuse.encfs",
        "fuse.fuse-overlayfs",
        "fuse.gocryptfs",
        "fuse.mergerfs",
        "fuse.ntfs-3g",
        "fuse.securefs",
    ]
)
"""User-space file systems that are on local disks. All other user-space file systems count as network file systems."""


def network_file_system(path: Path) -> str | None:
    """Return type and mount point of the network file system that holds `path`; None if the file system is local.

    On Linux and macOS, the list of mounts is read. If the list cannot be read, the file system counts as a network file
    system of unknown type. On other operating systems, the result is None.

    path : file or folder, which need not exist yet.
    """
    if sys.platform.startswith("linux"):
        read = _linux_mounts
    elif sys.platform == "darwin":
        read = _macos_mounts
    else:
        return None
    try:
        mounts = read()
    except (OSError, subprocess.SubprocessError):
        return "unknown file system: the list of mounts cannot be read"
    found = _holding(path.resolve(), mounts)
    if found is None:
        return "unknown file system: it is in no list of mounts"
    mount_point, kind = found
    user_space = kind == "fuse" or kind.startswith(("fuse.", "macfuse", "osxfuse"))
    if kind in NETWORK or (user_space and kind not in LOCAL_FUSE):
        return f"{kind}, mounted at {mount_point}"
    return None


def second_name(path: Path) -> str:
    """Return the reason why a file may be open under another name at the same time, with the remedy; '' if it has one name.

    A file has a second name if it has hard links, or if it is a mount point itself, as in a container that mounts the file
    instead of its folder.
    """
    resolved = path.resolve()
    n_links = resolved.stat().st_nlink
    if n_links > 1:
        return f"it has {n_links} names (hard links); find them with find -samefile, and keep one"
    try:
        mounts = _linux_mounts() if sys.platform.startswith("linux") else []
    except OSError:
        return ""  # `network_file_system` reports an unreadable list of mounts
    if any(mount_point == str(resolved) for mount_point, _ in mounts):
        return "it is a mount point itself; mount its folder instead of the file"
    return ""


def _holding(path: Path, mounts: list[tuple[str, str]]) -> tuple[str, str] | None:
    """Return the mount that contains a resolved path: the deepest mount point; at that point, the newest mount."""
    inside = [mount for mount in mounts if path.is_relative_to(mount[0])]
    return max(reversed(inside), key=lambda mount: len(Path(mount[0]).parts), default=None)


def _linux_mounts() -> list[tuple[str, str]]:
    """Return pairs (mount point, type) in the order in which they were mounted; see proc_pid_mountinfo(5)."""
    mounts = []
    for line in MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if separator and len(fields) > 4:
            # Spaces, tabs, newlines and backslashes are written as octal escapes.
            mount_point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
            mounts.append((mount_point, after.split(" ")[0]))
    return mounts


def _macos_mounts() -> list[tuple[str, str]]:
    """Return pairs (mount point, type) from lines such as `//ann@server/share on /Volumes/share (smbfs, nodev)`."""
    said = subprocess.run(["/sbin/mount"], capture_output=True, text=True, check=True, timeout=10).stdout
    found = (re.fullmatch(r".+? on (/.*) \(([^,)]+)[^()]*\)", line) for line in said.splitlines())
    return [(match[1], match[2]) for match in found if match]


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

    A partial line at the end, which a killed process left, is cut off first: its writer never reported the line as written.
    Raises OSError, for a full disk as well. durable : as for `append`.
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
