"""Greetings of the parties and notices to the parties' books."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vfl.privacy.ledger import Head


@dataclass(frozen=True, slots=True)
class Greeting:
    """Facts about a party, which the party sends before training.

    version : version of the vfl code at the party.
    n_records : number of the party's records. The privacy guarantee is among data sets with this number of records.
    keeps_book : True if the party's owner keeps a release log (a book), which the coordinator tells of the run's phases.
    alignment : hash of the records' ids in their order, equal for all parties; '' without an alignment.
    """

    version: str
    n_records: int
    keeps_book: bool = False
    alignment: str = ""


class Phase(enum.Enum):
    """Phase of a run that the coordinator reports to the parties' release logs (books)."""

    COMPARE = "before anything is reserved: is a book, or the ledger, older than what the other has noted"
    OPEN = "the ledger has set the plan aside"
    CLOSE = "the run has ended and its ledger is settled"
    ABANDON = "the run does not begin after all"


@dataclass(frozen=True, slots=True)
class Notice:
    """Report of a run's phase to a party that keeps a release log (book). The report is public.

    run : id of the run. account : name of the account in the coordinator's ledger.
    ledger : head (last hash) of the ledger's chain; None for a budget in memory.
    noted : last hash of the party's release log that the ledger recorded; None if it recorded none.
    """

    phase: Phase
    run: str
    account: str
    ledger: Head | None = None
    noted: Head | None = None


@dataclass(frozen=True, slots=True)
class BookHeads:
    """Answer of a party's release log (book): the last hashes, called heads, of two hash chains.

    own : last hash of the release log; None before the first run in the log.
    noted : last hash of the coordinator's ledger that the release log recorded; None if it recorded none.
    """

    own: Head | None
    noted: Head | None
