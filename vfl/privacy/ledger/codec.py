"""Entries of a ledger: privacy events as JSON, and the hash chain of all entries.

Doubles of events are written in hexadecimal (`float.hex`) and read back bit for bit. A value that cannot be written or read
exactly raises an error.

The SHA-256 of an entry covers all fields of the entry and the hash of the entry before. Nobody can change, move, insert or
remove a past entry without changing the hash of the last entry, the head. A head that was noted elsewhere also reveals that an
older backup was restored.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from vfl.base.documents import parse_json
from vfl.base.types import Adjacency
from vfl.errors import LedgerError, PrivacyError, VflError
from vfl.privacy.events import BoundedRange, Event, Gaussian, Laplace, OnPart, PoissonSubsampledGaussian, Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FORMAT = 1


class Kind(enum.StrEnum):
    """Action that an entry of the ledger records."""

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

    def __post_init__(self) -> None:
        if not (0 <= self.seq < 1 << 63 and len(self.hash) <= 64 and set(self.hash) <= set("0123456789abcdef")):
            raise LedgerError("the position in a ledger's chain is not a number with a hash")


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
        f"the ledger is damaged at entry {seq}: {what}. Nothing can be charged to it; restore the newest copy whose "
        "chain head was noted elsewhere, and verify it with: vfl ledger verify"
    )


# The names are part of the ledger's format. Add a name for a new event; never change a name.
_NAMES: Mapping[type[Event], str] = {
    Gaussian: "gaussian",
    BoundedRange: "bounded-range",
    Laplace: "laplace",
    PoissonSubsampledGaussian: "poisson-subsampled-gaussian",
    OnPart: "on-part",
    Selection: "selection",
}
_TYPES: Mapping[str, type[Any]] = {name: kind for kind, name in _NAMES.items()}


def canonical(value: object) -> str:
    """Return the canonical JSON of a value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


@lru_cache(maxsize=8192)
def encode(event: Event) -> str:
    """Return the event as canonical JSON. Raises PrivacyError for a type of event without a name."""
    return canonical(as_json(event))


def as_json(event: Event) -> dict[str, Any]:
    """Return the event as a dictionary that JSON can represent."""
    name = _NAMES.get(type(event))
    if name is None:
        raise PrivacyError(
            f"the ledger has no name for an event of type {type(event).__name__}: add one to vfl.privacy.ledger.codec"
        )
    plain: dict[str, Any] = {"type": name}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        plain[field.name] = _WRITE[str(field.type)](value)
    return plain


@lru_cache(maxsize=8192)
def decode(text: str) -> Event:
    """Return the event from text that `encode` wrote. Raises LedgerError for any other text."""
    try:
        return from_json(parse_json(text))
    except ValueError as error:
        raise LedgerError(f"an event of the ledger cannot be read: {error}") from error


def from_json(plain: Any) -> Event:
    """Return the event from a value that `as_json` returned. Raises LedgerError for any other value."""
    if not isinstance(plain, dict):
        raise LedgerError("an event of the ledger cannot be read: it is not a JSON object")
    kind = _TYPES.get(str(plain.get("type")))
    if kind is None:
        raise LedgerError(
            f"the ledger holds an event of unknown type {plain.get('type')!r}, whose cost this vfl cannot compute: "
            "use the version of vfl that wrote it"
        )
    fields = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    if set(plain) != {*fields, "type"}:
        raise LedgerError(
            f"an event of type {plain['type']!r} in the ledger lacks fields, or has fields that this vfl does not know"
        )
    try:
        event: Event = kind(**{name: _READ[annotation](plain[name]) for name, annotation in fields.items()})
    except (TypeError, ValueError, OverflowError, VflError) as error:
        raise LedgerError(f"an event of the ledger cannot be read: {error}") from error
    return event


def _write_float(value: float) -> str:
    if float(value) != value:
        raise PrivacyError(f"{value!r} is not a double, so the ledger could not restore it exactly")
    return float(value).hex()


def _exactly(kind: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"{value!r} is not of type {kind.__name__}")
        return value

    return read


_WRITE: Mapping[str, Callable[[Any], Any]] = {
    "float": _write_float,
    "int": int,
    "str": str,
    "Adjacency": str,
    "Event": as_json,
}
_READ: Mapping[str, Callable[[Any], Any]] = {
    "float": float.fromhex,
    "int": _exactly(int),
    "str": _exactly(str),
    "Adjacency": Adjacency,
    "Event": from_json,
}
