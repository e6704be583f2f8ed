"""Saved state of an alignment: its salt and secret, on the party's disk, so that an interrupted alignment can continue."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from vfl.errors import OutputError
from vfl.security.identifiers import digest_of
from vfl.security.psi import SIZE, Blinder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from io import BufferedRandom
    from pathlib import Path

SUFFIX = ".pending"


class Pending:
    """State of one alignment on disk. If an alignment of the same ids was interrupted, `salt` is its salt, else None.

    Only one process at a time keeps state. If another process aligns the same ids on this machine, this process keeps no state
    and has no salt.

    folder : the party's folder. If it is missing, it is created, accessible only to its owner.
    name : name of the alignment, equal for the same ids and participants.
    """

    def __init__(self, folder: Path, name: str, party: str, ids: Sequence[bytes]) -> None:
        self._folder, self._party = folder, party
        self._path = folder / (name + SUFFIX)
        self._fingerprint = digest_of(ids)
        self._file: BufferedRandom | None = None
        self._left: bytes | None = None
        self.salt: bytes | None = None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                return
            self._file = file
            content = file.read()
        except OSError as error:
            raise OutputError(
                f"party {party!r} cannot write the state of its alignment to its folder: {error.strerror}; name a folder that "
                "it alone can write (the environment's [alignment.index], or $VFL_INDEX)"
            ) from None
        if len(content) == SIZE + len(self._fingerprint):
            self._left = content[:SIZE]
            self.salt = self._left if content[SIZE:] == self._fingerprint else None

    def begin(self, salt: bytes) -> Path | None:
        """Record the start or continuation of an alignment, and return the folder for its state.

        State of any other is discarded.
        """
        if self._file is None:
            return None
        if self._left not in (None, salt):
            Blinder(self._party, self._left or b"", folder=self._folder).discard()
        self._file.seek(0)
        self._file.write(salt + self._fingerprint)
        self._file.truncate()
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._folder

    def end(self) -> None:
        """Remove the file, after the alignment has concluded."""
        if self._file is not None:
            self._file.truncate(0)
            self.release()

    def release(self) -> None:
        """Release the lock, so that other processes can continue an alignment that has begun."""
        if self._file is None:
            return
        if not os.fstat(self._file.fileno()).st_size:
            self._path.unlink(missing_ok=True)
        self._file.close()
        self._file = None
