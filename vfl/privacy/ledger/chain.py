"""The hash chain: each entry's SHA-256 covers its every field and the hash before it.

So no past entry can be changed, moved, inserted or left out without changing the head, and whoever noted an earlier
head also notices a restored backup.
"""

from __future__ import annotations

import enum
import hashlib
import json
from dataclasses import dataclass
from typing import NamedTuple

from vfl.errors import LedgerError

FORMAT = 1


class Kind(enum.StrEnum):
    """What an entry records."""

    CAP = "cap"
    RESERVE = "reserve"
    RESUME = "resume"
    CHARGE = "charge"
    SETTLE = "settle"
    REFUND = "refund"
    NOTE = "note"


class Entry(NamedTuple):
    """One line of the book. `body` is canonical JSON; round, part and attempt name the release of a charge."""

    seq: int
    recorded: str
    dataset: str
    kind: str
    run: str
    round: int | None
    part: int | None
    attempt: int | None
    body: str


@dataclass(frozen=True, slots=True)
class Head:
    """Where a chain stood: the number of its last entry and that entry's hash, in hexadecimal."""

    seq: int
    hash: str


def genesis(identity: str) -> bytes:
    """Return the hash before the first entry; it differs between ledgers, so no entry fits into another one."""
    return hashlib.sha256(f"vfl ledger {FORMAT} {identity}".encode()).digest()


_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def link(previous: bytes, entry: Entry) -> bytes:
    """Return the entry's hash; a field that is not text, whole number or empty raises LedgerError."""
    try:
        return hashlib.sha256(previous + _json(entry).encode()).digest()
    except (TypeError, UnicodeError) as error:
        raise broken(entry.seq, "a field has a type that the ledger never writes") from error


def broken(seq: object, what: str) -> LedgerError:
    """Return the error for a ledger whose entries do not fit together."""
    return LedgerError(
        f"the ledger is damaged at entry {seq}: {what}; nothing can be charged to it: restore the newest copy whose "
        "chain head was noted elsewhere, and verify it with: vfl ledger verify"
    )
