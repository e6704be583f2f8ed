"""Hash chain of a ledger: the SHA-256 of an entry covers all fields of the entry and the hash of the entry before.

Nobody can change, move, insert or remove a past entry without changing the hash of the last entry, the head. A head that was
noted elsewhere also reveals that an older backup was restored.
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
    """Action that an entry records."""

    CAP = "cap"
    RESERVE = "reserve"
    RESUME = "resume"
    CHARGE = "charge"
    SETTLE = "settle"
    REFUND = "refund"
    NOTE = "note"


class Entry(NamedTuple):
    """Entry of a ledger. `body` is canonical JSON. In a charge, round, part and attempt identify the release."""

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
    """Position in a chain: number of the last entry, and the hash of that entry in hexadecimal."""

    seq: int
    hash: str


def genesis(identity: str) -> bytes:
    """Return the hash before the first entry. This hash depends on the ledger, so no entry fits into another ledger's chain."""
    return hashlib.sha256(f"vfl ledger {FORMAT} {identity}".encode()).digest()


_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def link(previous: bytes, entry: Entry) -> bytes:
    """Return the hash of an entry. Raises LedgerError for a field that is not a string, an integer or None."""
    try:
        return hashlib.sha256(previous + _json(entry).encode()).digest()
    except (TypeError, UnicodeError) as error:
        raise broken(entry.seq, "a field has a type that a ledger never contains") from error


def broken(seq: object, what: str) -> LedgerError:
    """Return the error for a ledger whose entries contradict each other."""
    return LedgerError(
        f"the ledger is damaged at entry {seq}: {what}; nothing can be charged to it: restore the newest copy whose "
        "chain head was noted elsewhere, and verify it with: vfl ledger verify"
    )
