"""Comparison of identifiers: the rule that decides when records of two parties belong together.

- A column of identifiers is of one kind, `integer` or `text`, the same for all parties. The kind follows from the column's
  type unless the owner declares a kind.
- Text is put into Unicode normal form C (NFC), then surrounding white space is removed. Case, leading zeros and inner white
  space matter. NFKC would make "x²" and "x2" the same person. A missed match only loses a record; a false one joins two people.
- Integers are compared by value: 7 is 7 in a column of any width. Text declared as integer is read as decimal digits with
  an optional sign, so "007" is 7; integers declared as text become decimal digits.
- A missing, empty, repeated or unreadable identifier is an error at its owner. Two different cells with one normal form are,
too.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import math
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.base.persons import UNITS
from vfl.errors import DataError, SpecificationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from vfl.base.types import Integers

PIECE = 1 << 16
"""Number of identifiers that `in_order` reads at once."""
_DECIMAL = re.compile(r"[+-]?[0-9]{1,4000}", re.ASCII)
"""Pattern of a decimal number. Its 4,000 digits stay below Python's limit for converting text to integers."""


class IdKind(enum.StrEnum):
    """Kind of identifiers in a column. The kind is public, like a column's type."""

    INTEGER = "integer"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Id:
    """Column by which records are aligned, with the kind of its ids, and the rule for persons with several rows.

    column : one name for all parties, or {party: column}. kind : 'integer' or 'text'; None takes the type of the id columns.
    most_rows : largest number of rows of one id at the label party. 1 makes a repeated id an error at its owner. Otherwise the
        guarantee is for all rows of an id together (vfl.base.persons). Each of the k rows of an id weighs 1/k, so that the loss
        is a mean over ids of means over rows. At all other parties an id has one row.
    """

    column: str | Mapping[str, str]
    kind: str | None = None
    most_rows: int = 1

    def __post_init__(self) -> None:
        if self.kind not in (None, *(kinds := [kind.value for kind in IdKind])):
            raise SpecificationError(f"id: kind must be one of: {', '.join(kinds)}; not {self.kind!r}")
        if type(self.most_rows) is not int or not 1 <= self.most_rows <= UNITS:
            raise SpecificationError(f"id: most_rows must be a whole number from 1 to {UNITS}, not {self.most_rows!r}")

    def on(self, column: str | Mapping[str, str]) -> Id | str | Mapping[str, str]:
        """Return this id for other columns, in its shortest form: a bare column if nothing else is declared."""
        made = replace(self, column=column)
        return column if made == Id(column) else made


def normalised(
    pieces: Callable[[], Iterable[Any]], *, party: str, column: str | None = None, kind: IdKind | None = None
) -> tuple[Ids, IdKind]:
    """Return a column's identifiers in normal form (UTF-8 bytes, order unchanged) and the kind of the column.

    The result must not be sent to other participants.

    pieces : function that returns the column's chunks in order: lists, NumPy or Arrow arrays, columns of tables. The function
        is called again if an identifier occurs twice.
    party, column : owner and name of the column, for the messages.
    kind : declared kind, to which the identifiers are converted; None for the kind that follows from the column's type.

    Raises DataError if there are no identifiers or they have another type, if a cell is missing or empty, or if two identifiers
    are equal as written or in normal form.
    """
    place, found, first = _Place(party, column), Ids(), dict[IdKind, Any]()
    for piece in pieces():
        if cells := _cells(piece):
            own = _kind(cells, place)
            first.setdefault(own, cells[0])
            if len(first) > 1:
                _kind(list(first.values()), place)  # raises
            found.extend(_normal(cells, own, kind, place))
    if not first:
        _kind([], place)  # raises
    if repeated(found):
        raise repeats([cell for piece in pieces() for cell in _cells(piece)], party=party, column=column)
    return found, kind or next(iter(first))


def normal_forms(cells: list[Any], *, kind: IdKind | None = None) -> list[bytes]:
    """Return the identifiers of a request in normal form. Identifiers may repeat. kind : declared kind of the job.

    Raises DataError for types other than integers or text, and for an empty identifier.
    """
    place = _Place("of the request", None)
    return _normal(cells, _kind(cells, place), kind, place)


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


def _normal(cells: list[Any], found: IdKind, kind: IdKind | None, place: _Place) -> list[bytes]:
    kind = found if kind is None else IdKind(kind)
    if found is IdKind.INTEGER:
        texts = [str(int(cell)) for cell in cells]
    else:
        texts = [_canonical(cell) for cell in cells]
        if not all(texts):
            raise place.error("an id is empty", "drop or fill such rows in the source")
        if kind is IdKind.INTEGER:
            texts = _as_integers(texts, place)
    try:
        return [text.encode() for text in texts]
    except UnicodeEncodeError:
        raise place.error("an id is not valid Unicode", "read the source with its own text encoding") from None


def repeats(cells: list[Any], *, party: str, column: str | None) -> DataError:
    """Return the error for a column in which two cells are equal, as written or in normal form."""
    place = _Place(party, column)
    if len(set(cells)) < len(cells):
        return place.error("an id occurs more than once", "keep one row for each id")
    return place.error(
        "ids that differ as written are equal once they are normalised "
        "(Unicode NFC, white space around them removed, integers by value)",
        "merge such rows, or give them ids that differ in more than that",
    )


def check_one_kind(kinds: Iterable[IdKind], *, party: str, column: str | None) -> IdKind:
    """Return the common kind (integer or text) of all chunks of a column. Raises DataError if chunks have different kinds."""
    found = sorted(set(kinds))
    if len(found) > 1:
        raise _of_types("int and str", _Place(party, column))
    return found[0]


def check_kinds(kinds: Mapping[str, IdKind]) -> None:
    """Raise DataError unless the ids of all parties are of one kind. The error lists the parties of each kind.

    kinds : {party: kind}.
    """
    by_kind = {kind: [party for party, own in kinds.items() if own is kind] for kind in IdKind}
    if all(by_kind.values()):
        integer, text = (", ".join(map(repr, by_kind[kind])) for kind in (IdKind.INTEGER, IdKind.TEXT))
        raise DataError(
            f"ids are integers at {integer} and text at {text}, so they would not match. Read the id column as text at "
            "all parties, or declare its kind in the job: id=vfl.columns.Id(COLUMN, kind='integer') or 'text' "
            "(a CSV file holds text)"
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


def _canonical(text: str) -> str:
    # ASCII text is already in normal form, and most columns are ASCII.
    return (text if text.isascii() else unicodedata.normalize("NFC", text)).strip()


def _as_integers(texts: list[str], place: _Place) -> list[str]:
    if not all(map(_DECIMAL.fullmatch, texts)):
        raise place.error(
            "the job declares ids as integers, and one is not a decimal number", "declare kind='text' in vfl.columns.Id"
        )
    return [str(int(text)) for text in texts]
