"""An owner's log of the answers of a service. It contains digests of ids, never ids themselves."""

from __future__ import annotations

import datetime as dt
import hmac
import json
import os
import secrets
from typing import TYPE_CHECKING

from vfl.errors import ConsentRefused
from vfl.writing import create_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

DIGITS = 32
KEY_BYTES = 32


class AnswerLog:
    """Log with one JSON line per request that looked up records.

    A line contains the time, the caller, the purpose, the digest of the part of the model, digests of the ids, and `answered`,
    which is false if the look-up failed.

    A digest is the first DIGITS hexadecimal digits of HMAC-SHA256(key, id in normal form). The key is in a file next to the
    log, which only the owner can read. The key is stored nowhere else. Without the key, digests show which lines are about
    one record, and nothing about its id. A line is on disk before its answer is sent. All lines of a batch are written at once,
    so several processes may share the log.

    path : path of the log. The file may be renamed at any time; the next line then starts a new file.
    """

    def __init__(self, path: Path, party: str) -> None:
        self._path, self._party = path, party
        try:
            own = path.with_name(f"{path.name}.key")
            if not own.exists():
                create_file(own, secrets.token_bytes(KEY_BYTES))
            self._key = own.read_bytes()
        except OSError:
            raise self._unusable() from None
        if len(self._key) != KEY_BYTES:
            raise self._unusable()

    def write(self, requests: Iterable[tuple[str, str, str, Iterable[bytes], bool]]) -> None:
        """Append a line per request: caller, purpose, digest of the part, ids, True if answered. Raises ConsentRefused."""
        now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        lines = [
            json.dumps(
                {
                    "time": now,
                    "caller": caller,
                    "purpose": purpose,
                    "part": part,
                    "answered": answered,
                    "records": [hmac.digest(self._key, own, "sha256").hex()[:DIGITS] for own in ids],
                },
                ensure_ascii=False,
            )
            for caller, purpose, part, ids, answered in requests
        ]
        if not lines:
            return
        content = ("\n".join(lines) + "\n").encode()
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                if os.write(descriptor, content) != len(content):
                    raise OSError
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            raise self._unusable() from None

    def _unusable(self) -> ConsentRefused:
        return ConsentRefused(
            f"party {self._party!r} refuses to answer, since its log {self._path.name!r} cannot be written. Free disk space, "
            "or let the party's process write to the folder of the owner's policy file"
        )
