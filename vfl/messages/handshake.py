"""Messages around a run: greetings of the parties, and notices to the parties' books."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vfl.privacy.ledger import Head


@dataclass(frozen=True, slots=True)
class Greeting:
    """A party's facts about itself, sent before training.

    version : version of the code that it runs.
    n_records : number of its records; the guarantee is conditional on it.
    keeps_book : True if its owner keeps a release log, which needs notices of the run.
    alignment : hash of its records' ids in their order, the same for all parties; '' without an alignment.
    """

    version: str
    n_records: int
    keeps_book: bool = False
    alignment: str = ""


class Phase(enum.Enum):
    """Reason of a notice to the parties' books."""

    COMPARE = "before anything is reserved: is a book, or the ledger, older than what the other has noted"
    OPEN = "the ledger has set the plan aside"
    CLOSE = "the run has ended and its ledger is settled"
    ABANDON = "the run does not begin after all"


@dataclass(frozen=True, slots=True)
class Notice:
    """Notice of the coordinator to a party that keeps a book. Public.

    run : id of the run. account : name of the account in the coordinator's ledger.
    ledger : head of the ledger's chain; None for a budget in memory.
    noted : head of the party's chain that the ledger recorded last.
    """

    phase: Phase
    run: str
    account: str
    ledger: Head | None = None
    noted: Head | None = None


@dataclass(frozen=True, slots=True)
class BookHeads:
    """Answer of a party's book.

    own : head of its chain; None before its first run.
    noted : head of the ledger's chain that this book recorded last.
    """

    own: Head | None
    noted: Head | None
