"""Comparison of identifiers: the rule that decides when records of two parties belong together.

- A column of identifiers is of one kind, `integer` or `text`, the same for all parties. The kind follows from the column's
  type unless the owner declares a kind.
- Text is put into Unicode normal form C (NFC), then surrounding white space is removed. Case, leading zeros and inner white
  space matter. NFKC would make "x²" and "x2" the same person. A missed match only loses a record; a false one joins two people.
- Integers are compared by value: 7 is 7 in a column of any width. Text declared as integer is read as decimal digits with
  an optional sign, so "007" is 7; integers declared as text become decimal digits.
- Text declared as date is read as an ISO 8601 date, and text declared as uuid in any usual form of a UUID. Cells of the types
  date, time stamp and UUID are read as such text.
- A job may declare further steps for text (`STEPS`), which every party applies in the order of `STEPS`.
- The components of a composite key are compared one by one. In the key, the length of each component comes before its text,
  so that ("ab", "c") and ("a", "bc") differ.
- A missing, empty, repeated or unreadable identifier is an error at its owner. Two different cells with one normal form are,
too.

Whoever holds a list of names and birthdays can guess keys that are made of them, as can whoever holds a list of all customer
numbers. The intersection tells each party which of its own keys are common, whether or not the keys are of real people.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import json
import math
import re
import unicodedata
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.base.persons import UNITS
from vfl.errors import DataError, FederationError, SpecificationError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from vfl.base.types import Integers

PIECE = 1 << 16
"""Number of identifiers that `in_order` reads at once."""
_DECIMAL = re.compile(r"[+-]?[0-9]{1,4000}", re.ASCII)
"""Pattern of a decimal number. Its 4,000 digits stay below Python's limit for converting text to integers."""


JOINS = ("inner", "left")


class IdKind(enum.StrEnum):
    """Kind of identifiers in a column. The kind is public, like a column's type."""

    INTEGER = "integer"
    TEXT = "text"
    DATE = "date"
    UUID = "uuid"


STEPS = ("nfkc", "casefold", "digits", "spaces")
"""Steps that a job may declare for text, in their order: Unicode normal form KC, case folding (followed by NFC), removal of
everything but the digits 0 to 9, and removal of all white space."""
_SURROUNDING = "strip"
"""Step that is always taken: white space around text is removed."""


@dataclass(frozen=True, slots=True)
class Key:
    """Public rule by which keys are compared, equal for all parties.

    kinds : declared kind of each component; None takes the type of the component's column. steps : steps for each component.
    """

    kinds: tuple[str | None, ...] = (None,)
    steps: tuple[tuple[str, ...], ...] = ((),)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the rule. Parties compare digests before any set of keys is sent."""
        return hashlib.sha256(json.dumps(["vfl key", 1, self.kinds, self.steps]).encode()).hexdigest()


def columns_of(columns: Any) -> tuple[Any, ...]:
    """Return the columns of a key: a list of several columns as it is, else the one column."""
    return tuple(columns) if isinstance(columns, tuple | list) else (columns,)


def key_name(columns: Sequence[str]) -> str:
    """Return the name of a key in messages and tables: its columns' names."""
    return " + ".join(columns)


@dataclass(frozen=True, slots=True)
class Id:
    """Column by which records are aligned, with the kind of its ids, and the rule for persons with several rows.

    column : one name for all parties, or {party: column}. Several names, ("name", "born"), make a composite key.
    kind : 'integer', 'text', 'date' (ISO 8601) or 'uuid'; None takes the type of the id columns. A composite key may have one
        kind for each component, ("text", "date").
    normalise : steps for text before ids are compared, from `STEPS`: ("casefold", "digits"). A composite key may have such a
        tuple for each component. White space around text is always removed.
    most_rows : largest number of rows of one id at the label party. 1 makes a repeated id an error at its owner. Otherwise the
        guarantee is for all rows of an id together (vfl.base.persons). Each of the k rows of an id weighs 1/k, so that the loss
        is a mean over ids of means over rows. At all other parties an id has one row.
    join : 'inner' takes the ids that all parties have; 'left' takes all ids of the label party. The cells of a party that lacks
        an id are then missing.
    """

    column: str | Sequence[str] | Mapping[str, str | Sequence[str]]
    kind: str | Sequence[str] | None = None
    normalise: Sequence[str] | Sequence[Sequence[str]] = field(default=(), kw_only=True)
    most_rows: int = 1
    join: str = "inner"

    def __post_init__(self) -> None:
        parts = self.size
        kinds = (self.kind,) * parts if isinstance(self.kind, str | None) else tuple(self.kind)
        listed = self.normalise
        if isinstance(listed, str) or not isinstance(listed, Sequence):
            raise SpecificationError(f"id: normalise is a list of steps, not {listed!r}")
        together = all(isinstance(step, str) for step in listed)
        steps = (tuple(listed),) * parts if together else tuple(tuple(own) for own in listed)
        for name, values in (("kind", kinds), ("normalise", steps)):
            if len(values) != parts:
                raise SpecificationError(
                    f"id: {name} has {len(values)} entries, and the key has {parts}: give one for each"
                )
        known = [kind.value for kind in IdKind]
        for kind in kinds:
            if kind not in known and (kind is not None or self.kind is not None):
                raise SpecificationError(f"id: kind must be one of: {', '.join(known)}; not {kind!r}")
        for step in itertools.chain.from_iterable(steps):
            if step not in (*STEPS, _SURROUNDING):
                close = nearest(str(step), STEPS)
                raise SpecificationError(f"id: unknown step {step!r}{close}; steps of normalise: {', '.join(STEPS)}")
        for kind, own in zip(kinds, steps, strict=True):
            if kind not in (None, IdKind.TEXT) and own and (not together or len(set(kinds)) == 1):
                raise SpecificationError(f"id: steps of normalise are for text, and a component is {kind}")
        steps = tuple(
            tuple(step for step in STEPS if step in own) if kind in (None, IdKind.TEXT) else ()
            for kind, own in zip(kinds, steps, strict=True)
        )
        object.__setattr__(self, "kind", kinds if len(set(kinds)) > 1 else kinds[0])
        object.__setattr__(self, "normalise", steps if len(set(steps)) > 1 else steps[0])
        if type(self.most_rows) is not int or not 1 <= self.most_rows <= UNITS:
            raise SpecificationError(f"id: most_rows must be a whole number from 1 to {UNITS}, not {self.most_rows!r}")
        if self.join not in JOINS:
            raise SpecificationError(f"id: join must be one of: {', '.join(JOINS)}; not {self.join!r}")

    @property
    def size(self) -> int:
        """Return the number of components of the key. Raises SpecificationError if it differs between parties."""
        named = self.column.values() if isinstance(self.column, Mapping) else [self.column]
        sizes = {len(columns_of(own)) for own in named} or {1}
        if len(sizes) > 1 or 0 in sizes:
            raise SpecificationError("id: the keys of the parties need equally many columns, at least one")
        return sizes.pop()

    @property
    def key(self) -> Key:
        """Return the rule by which the ids are compared."""
        kinds: Any = (self.kind,) * self.size if isinstance(self.kind, str | None) else self.kind
        steps: Any = self.normalise
        return Key(kinds, steps if steps and not isinstance(steps[0], str) else (steps,) * self.size)

    def on(self, column: Any) -> Id | str | Mapping[str, str]:
        """Return this id for other columns, in its shortest form: a bare column if nothing else is declared."""
        made = replace(self, column=column)
        return column if made == Id(column) else made


def normalised(
    pieces: Callable[[], Iterable[Any]],
    *,
    party: str,
    column: str | None = None,
    key: Key = Key(),
    repeating: bool = False,
) -> tuple[Ids, str]:
    """Return a column's identifiers in normal form (UTF-8 bytes, order unchanged) and the kind of the column.

    The result must not be sent to other participants.

    pieces : function that returns the column's chunks in order: lists, NumPy or Arrow arrays, columns of tables. The function
        is called again if an identifier occurs twice. Each cell of a composite key holds its components (`parts_of`).
    party, column : owner and name of the column, for the messages.
    key : declared rule, by which the identifiers are converted. repeating : True if identifiers may occur several times.

    Raises DataError if there are no identifiers or they have another type, if a cell is missing or empty, or if two identifiers
    are equal as written or in normal form.
    """
    place, found, first = _Place(party, column), Ids(), dict[tuple[IdKind, ...], Any]()
    for piece in pieces():
        if cells := _cells(piece):
            own = _kinds(cells, key, place)
            first.setdefault(own, cells[0])
            if len(first) > 1:
                _kinds(list(first.values()), key, place)  # raises
            found.extend(_normal(cells, own, key, place))
    if not first:
        _kind([], place)  # raises
    if not repeating and repeated(found):
        raise repeats([cell for piece in pieces() for cell in _cells(piece)], party=party, column=column)
    return found, ", ".join(declared or own for declared, own in zip(key.kinds, next(iter(first)), strict=True))


def normal_forms(cells: list[Any], *, key: Key) -> list[bytes]:
    """Return the identifiers of a request in normal form. Identifiers may repeat. key : declared rule of the job.

    Raises DataError for types other than integers or text, for an empty identifier, and for another number of components.
    """
    place = _Place("of the request", None)
    return _normal(cells, _kinds(cells, key, place), key, place)


def parts_of(cells: Iterable[Any], key: Key, place: _Place) -> list[list[Any]]:
    """Return the components of keys, one list for each.

    cells : keys. A composite key is a mapping (in Arrow a struct), a tuple or a list.
    """
    if len(key.kinds) == 1:
        return [as_text(cells)]
    rows = [list(cell.values()) if isinstance(cell, Mapping) else cell for cell in cells]
    if not all(isinstance(row, tuple | list) and len(row) == len(key.kinds) for row in rows):
        raise place.error("a key has another number of components than the job declares", "give one for each column")
    return [as_text(own) for own in zip(*rows, strict=True)]


def as_text(cells: Iterable[Any]) -> list[Any]:
    """Return cells in which dates, time stamps and UUIDs are text. The text of a time stamp at midnight is that of its date."""
    listed = list(cells)
    if not any(issubclass(own, date | np.datetime64 | uuid.UUID) for own in set(map(type, listed))):
        return listed
    return list(map(_text_of, listed))


def _text_of(cell: Any) -> Any:
    if isinstance(cell, np.datetime64):
        cell = cell.astype("datetime64[us]").item()
    if isinstance(cell, datetime):
        return (cell.date() if cell.timetz() == time() else cell).isoformat()
    return str(cell) if isinstance(cell, date | uuid.UUID) else cell


class IdentifierSequence(Sequence[bytes], ABC):
    """Sequence of normalised identifiers that can be read by row numbers."""

    @abstractmethod
    def at(self, rows: Integers) -> list[bytes]:
        """Return the identifiers of these rows, in the order of `rows`."""

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return self.at(np.arange(*at.indices(len(self))))
        return self.at(np.array([range(len(self))[at]]))[0]


class RemoteIdentifiers(IdentifierSequence):
    """Sequence of normalised identifiers that is read in chunks from other processes of the owner."""

    @abstractmethod
    def repeated_rows(self) -> Integers:
        """Return the rows whose identifier occurs more than once, in ascending order."""


def in_order(ids: Sequence[bytes], rows: Integers) -> Iterator[bytes]:
    """Yield the identifiers of these rows, in the order of `rows`."""
    for start in range(0, len(rows), PIECE):
        piece = rows[start : start + PIECE]
        yield from ids.at(piece) if isinstance(ids, IdentifierSequence) else (ids[row] for row in piece)


def digest_of(ids: Iterable[bytes], start: bytes = b"") -> bytes:
    """Return the SHA-256 of `start` and the identifiers, each preceded by its length in 8 bytes. Keep the hash in the party."""
    digest, remaining = hashlib.sha256(start), iter(ids)
    while piece := list(itertools.islice(remaining, PIECE)):
        digest.update(b"".join([len(identifier).to_bytes(8, "big") + identifier for identifier in piece]))
    return digest.digest()


def repeated(ids: Sequence[bytes]) -> bool:
    """Return True if an identifier occurs twice. Needs 16 bytes of memory per identifier in this process."""
    if isinstance(ids, RemoteIdentifiers):
        return len(ids.repeated_rows()) > 0
    hashes = np.fromiter(map(hash, ids), np.int64, len(ids))
    ordered = np.sort(hashes)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return False
    suspects = [ids[int(row)] for row in np.flatnonzero(np.isin(hashes, twice))]
    return len(set(suspects)) < len(suspects)


def joined(ids: Sequence[bytes]) -> tuple[bytes, Integers]:
    """Return the identifiers concatenated into one byte string, and the end position of each identifier in this string."""
    return b"".join(ids), np.cumsum([len(own) for own in ids], dtype=np.int64)


def cut(text: bytes, ends: Integers) -> list[bytes]:
    """Return the list of identifiers from which `joined` made this text and these ends."""
    return [text[start:stop] for start, stop in itertools.pairwise([0, *ends.tolist()])]


class Ids(IdentifierSequence):
    """Normalised identifiers, stored with 4 bytes of overhead each. Never send ids to other participants."""

    def __init__(self) -> None:
        self._pieces: list[tuple[bytes, np.ndarray]] = []
        self._starts = [0]

    def extend(self, ids: Sequence[bytes]) -> None:
        """Append identifiers."""
        if ids:
            ends = np.cumsum([0, *map(len, ids)])
            self._pieces.append((b"".join(ids), ends.astype(np.uint32 if ends[-1] < 2**32 else np.int64)))
            self._starts.append(self._starts[-1] + len(ids))

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[bytes]:
        for text, ends in self._pieces:
            for start, stop in itertools.pairwise(ends.tolist()):
                yield text[start:stop]

    def at(self, rows: Integers) -> list[bytes]:
        """Return the identifiers of these rows, in the order of `rows`."""
        holder = np.searchsorted(self._starts, rows, side="right") - 1
        found = [b""] * len(rows)
        for k in np.unique(holder).tolist():
            (text, ends), places = self._pieces[k], np.flatnonzero(holder == k)
            own = rows[places] - self._starts[k]
            for place, start, stop in zip(places.tolist(), ends[own].tolist(), ends[own + 1].tolist(), strict=True):
                found[place] = text[start:stop]
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def _normal(cells: list[Any], found: tuple[IdKind, ...], key: Key, place: _Place) -> list[bytes]:
    parts = [
        _component(own, kind, IdKind(declared or kind), steps, place)
        for own, kind, declared, steps in zip(parts_of(cells, key, place), found, key.kinds, key.steps, strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    return [b"".join(len(own).to_bytes(4, "big") + own for own in row) for row in zip(*parts, strict=True)]


def _component(cells: list[Any], found: IdKind, kind: IdKind, steps: tuple[str, ...], place: _Place) -> list[bytes]:
    """Return the normal forms of one component. found : type of the cells. kind : kind by which they are compared."""
    if found is IdKind.INTEGER and kind in (IdKind.INTEGER, IdKind.TEXT):
        texts = [str(int(cell)) for cell in cells]
    else:
        texts = [_canonical(str(cell), steps) for cell in cells]
        if not all(texts):
            after = " after the steps of normalise" if steps else ""
            raise place.error(f"an id is empty{after}", "drop or fill such rows in the source")
        if kind is not IdKind.TEXT:
            texts = _as(kind, texts, place)
    try:
        return [text.encode() for text in texts]
    except UnicodeEncodeError:
        raise place.error("an id is not valid Unicode", "read the source with its own text encoding") from None


def repeats(cells: list[Any], *, party: str, column: str | None) -> DataError:
    """Return the error for a column in which two cells are equal, as written or in normal form."""
    place = _Place(party, column)
    if len(set(map(repr, cells))) < len(cells):
        return place.error(
            "an id occurs more than once",
            "keep one row for each id, or declare aggregates of its rows (vfl.columns.Aggregate); the label party may have "
            "several rows per id: most_rows in vfl.columns.Id",
        )
    return place.error(
        "ids that differ as written are equal once they are normalised "
        "(Unicode NFC, white space around them removed, integers by value, declared steps)",
        "merge such rows, or give them ids that differ in more than that",
    )


def check_one_kind(kinds: Iterable[str], *, party: str, column: str | None) -> str:
    """Return the common kind of all chunks of a column. Raises DataError if chunks have different kinds."""
    found = sorted(set(kinds))
    if len(found) > 1:
        raise _of_types("int and str", _Place(party, column))
    return found[0]


def check_kinds(kinds: Mapping[str, str]) -> None:
    """Raise DataError unless the ids of all parties are of one kind. The error lists the parties of each kind.

    kinds : {party: kind, as `normalised` returns it}.
    """
    if len(set(kinds.values())) > 1:
        said = " and ".join(
            f"{kind} at {', '.join(repr(party) for party, own in kinds.items() if own == kind)}"
            for kind in sorted(set(kinds.values()))
        )
        raise DataError(
            f"ids are {said}, so they would not match. Read the id column as text at "
            "all parties, or declare its kind in the job: id=vfl.columns.Id(COLUMN, kind='integer') or 'text' "
            "(a CSV file holds text)"
        )


def check_rules(digests: Mapping[str, str]) -> None:
    """Raise FederationError unless all parties normalise ids by one rule. digests : {party: digest of its rule (`Key`)}."""
    (first, digest), *others = digests.items()
    for party, other in others:
        if other != digest:
            raise FederationError(
                f"parties {first!r} and {party!r} would normalise ids by different rules, so ids would not match: give both "
                "the same job, with one `normalise` and one `kind` of its id"
            )


def alignment_hash(ids: Iterable[bytes], salt: bytes) -> str:
    """Return a hash of the aligned records' ids in their order, 64 hexadecimal digits. Aligned parties have equal hashes.

    Anybody who knows the salt can test a guess of the whole ordered list against the hash. The order of a private intersection
    is random: 35 or more records have over 2¹²⁸ orders, so knowing the ids is not enough. With fewer records, or an order that
    can be guessed, show the hash to parties only.

    ids : (n,) normalised, in the common order. Read them again from the source to detect a changed file.
    salt : salt of the job.
    """
    return digest_of(ids, b"vfl alignment hash, version 1" + len(salt).to_bytes(8, "big") + salt).hex()


@dataclass(frozen=True, slots=True)
class _Place:
    """Party and column that an error message names. Messages contain neither ids nor counts."""

    party: str
    column: str | None

    def error(self, cause: str, remedy: str) -> DataError:
        named = "" if self.column is None else f" {self.column!r}"
        return DataError(f"party {self.party!r}, id column{named}: {cause}; {remedy}")


def _cells(ids: Any) -> list[Any]:
    """Return the cells of any kind of column as Python objects."""
    for method in ("to_pylist", "tolist", "to_list"):
        if hasattr(ids, method):
            return list(getattr(ids, method)())
    return list(ids)


def _kind(cells: list[Any], place: _Place) -> IdKind:
    types = set(map(type, cells))
    if not types:
        raise place.error("there are no ids", "check that the source has rows")
    if type(None) in types or (float in types and any(isinstance(cell, float) and math.isnan(cell) for cell in cells)):
        raise place.error("an id is missing", "drop or fill such rows in the source")
    # bool is a subclass of int, but never an identifier.
    if bool not in types and all(issubclass(t, int | np.integer) for t in types):
        return IdKind.INTEGER
    if all(issubclass(t, str) for t in types):
        return IdKind.TEXT
    names = " and ".join(sorted(t.__name__ for t in types))
    raise _of_types(names, place)


def _of_types(names: str, place: _Place) -> DataError:
    return place.error(f"ids are of type {names}", "read the id column as integers, or as text")


def _kinds(cells: list[Any], key: Key, place: _Place) -> tuple[IdKind, ...]:
    return tuple(_kind(own, place) for own in parts_of(cells, key, place))


def _canonical(text: str, steps: tuple[str, ...]) -> str:
    # ASCII text is already in normal form, and most columns are ASCII.
    if not text.isascii():
        text = unicodedata.normalize("NFKC" if "nfkc" in steps else "NFC", text)
    if "casefold" in steps:
        text = text.lower() if text.isascii() else unicodedata.normalize("NFC", text.casefold())
    if "digits" in steps:
        text = "".join(re.findall("[0-9]", text))
    if "spaces" in steps:
        text = unicodedata.normalize("NFC", "".join(text.split()))
    return text.strip()


def _as(kind: IdKind, texts: list[str], place: _Place) -> list[str]:
    """Return the canonical text of integers, dates or UUIDs. Raises DataError for text that is none."""
    try:
        return [_READ[kind](text) for text in texts]
    except ValueError:
        pass
    said, one = _SAID[kind]
    raise place.error(f"the job declares ids as {said}, and one is not {one}", "declare kind='text' in vfl.columns.Id")


def _integer(text: str) -> str:
    if not _DECIMAL.fullmatch(text):
        raise ValueError
    return str(int(text))


def _date(text: str) -> str:
    moment = datetime.fromisoformat(text)
    if moment.timetz() != time():
        raise ValueError
    return date(moment.year, moment.month, moment.day).isoformat()


_READ: Mapping[IdKind, Callable[[str], str]] = {
    IdKind.INTEGER: _integer,
    IdKind.DATE: _date,
    IdKind.UUID: lambda text: str(uuid.UUID(text)),
}
_SAID = {
    IdKind.INTEGER: ("integers", "a decimal number"),
    IdKind.DATE: ("dates", "an ISO 8601 date, 2026-11-28"),
    IdKind.UUID: ("UUIDs", "one"),
}
