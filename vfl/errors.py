"""Tree of exceptions. A message names cause and remedy, and never contains a cell, an id or a count taken from data.

VflError
├── SpecificationError: PartitionError, PrivacyError, JobFileError
├── DataError
├── BudgetError: BudgetExceeded, ConsentRefused, LedgerError
├── FederationError: PartyLost, PlacementError, VersionMismatch
└── OutputError
"""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class VflError(Exception):
    """Base class of all errors that vfl raises on purpose. The command line exits with `exit_code`."""

    exit_code = 1


class SpecificationError(VflError, ValueError):
    """A job, an option or another argument is wrong. Raised before any data are read."""

    exit_code = 2


class PartitionError(SpecificationError):
    """Columns, parties and blocks do not fit together."""


class PrivacyError(SpecificationError):
    """The requested guarantee cannot be given."""


class JobFileError(SpecificationError):
    """The job file cannot be read as a job."""


class DataError(VflError, ValueError):
    """A party's own data do not fit the job. Raised at the owner, before any release."""

    exit_code = 3


class BudgetError(VflError):
    """The ledger, or an owner, refuses a run or a release, or the ledger is unusable."""

    exit_code = 4


class BudgetExceeded(BudgetError):
    """A release would exceed the remaining budget; nothing was released."""


class ConsentRefused(BudgetError):
    """The owner of a party has not agreed: the owner's policy, or the party's own ledger, refuses the job or a release."""


class LedgerError(BudgetError):
    """The ledger is damaged, missing, not writable or of another version. The exit code is that of OutputError."""

    exit_code = 6


class FederationError(VflError):
    """Communication between the participants failed."""

    exit_code = 5


class PartyLost(FederationError):
    """A party died or did not answer in time. `party` is the party's name."""

    def __init__(self, message: str = "", party: str = "") -> None:
        super().__init__(message)
        self.party = party


class PlacementError(FederationError):
    """The cluster lacks resources that the job asks for."""


class VersionMismatch(FederationError):
    """Participants run different versions of the code."""


class OutputError(VflError):
    """A folder or file cannot be written or read."""

    exit_code = 6


WITHOUT_PRIVACY = 'train without privacy (privacy=None, or privacy = "none" in a job file)'
"""Remedy in messages about a guarantee that cannot be given."""


def entry(option: str, column: str, value: str = "(low, high)", plain: str = "[LOW, HIGH]") -> str:
    """Return the declaration of a column as Python and as a job file would spell it; `plain` is the value in a job file."""
    key = column if re.fullmatch(r"[A-Za-z0-9_-]+", column) else json.dumps(column, ensure_ascii=False)
    return f"{option}={{{column!r}: {value}}}, or {key} = {plain} under [{option}] of a job file"


def no_bounds(column: str, *others: str) -> str:
    """Return a clause that columns have no bounds, with the declaration of the first and the names of up to ten others."""
    also = f", nor for {', '.join(map(repr, others[:10]))}" + ", …" * bool(others[10:]) if others else ""
    return f"no bounds for column {column!r}{also}: declare {entry('bounds', column)}, or vfl.Categorical for text"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a clause ' (did you mean …?)' with the nearest known names; '' if no known name is near."""
    known, plain = list(known), unicodedata.normalize("NFC", name)
    if any(unicodedata.normalize("NFC", other) == plain for other in known):
        return " (there is one in another normal form of Unicode, which looks the same: write both in form NFC)"
    close = [other for other in known if other.casefold() == name.casefold()]
    close = close or difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(repr(c) for c in close)}?)" if close else ""
