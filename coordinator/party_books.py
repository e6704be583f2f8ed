"""The coordinator's side of the parties' books: chain heads are noted across, so that restored backups are noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfl.errors import LedgerError
from vfl.messages import Notice, Phase

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from coordinator.transport import Transport
    from vfl.messages import BookHeads
    from vfl.privacy.ledger import Head, SqliteLedger


class PartyBooks:
    """Tells the parties that keep a book what becomes of the run; without such parties it does nothing.

    What is noticed: a book, or a ledger, that does not go through the head which the other noted last. What came after
    that head was noted is not covered.

    parties : those that keep a book.
    ledger : the run's ledger, None for a budget in memory: then there is no chain here, nor notes.
    account : the ledger's account that the run is charged to.
    """

    def __init__(
        self, transport: Transport, parties: Iterable[str], *, run: str, account: str, ledger: SqliteLedger | None
    ) -> None:
        self._transport = transport
        self._parties = tuple(parties)
        self._run = run
        self._account = account
        self._ledger = ledger
        self._closed: dict[str, Head] = {}

    def compare(self) -> None:
        """Raise LedgerError when a party's book, or this ledger, is older than what the other has noted of it.

        Before anything is written to either, so that the newer head is not forgotten.
        """
        ledger = self._ledger if self._ledger is not None and self._ledger.path.exists() else None
        noted = {party: ledger.noted(self._name(party)) if ledger else None for party in self._parties}
        for party, heads in self._told(Phase.COMPARE, noted).items():
            if heads.noted is None:
                continue
            if ledger is None:
                raise LedgerError(
                    f"the ledger of {self._account!r} is gone, and the book of party {party!r} has noted its head: restore "
                    "the newest copy"
                )
            try:
                ledger.require(heads.noted)
            except LedgerError as error:
                raise LedgerError(
                    f"the ledger is not the one that the book of party {party!r} knows for {self._account!r}: {error}"
                ) from error

    def open(self) -> None:
        """Have every book set the plan aside; raises ConsentRefused when one does not."""
        self._exchange(Phase.OPEN)

    def reopen(self, party: str) -> None:
        """Announce the run to the book of a party that was restarted; nothing if it keeps none."""
        if party in self._parties:
            again = PartyBooks(self._transport, [party], run=self._run, account=self._account, ledger=self._ledger)
            again.compare()
            again.open()

    def abandon(self) -> None:
        """Take the run back from every book in which nothing was released yet."""
        self._told(Phase.ABANDON)

    def close(self, without: Collection[str] = ()) -> dict[str, Head]:
        """Close the run in every book; returns where their chains stand then. Asked again, it goes on where it stopped.

        without : parties that were given up: what they set aside stays so in their books.
        """
        for party in self._parties:
            if party not in without and party not in self._closed:
                self._closed.update(self._exchange(Phase.CLOSE, [party]))
        return dict(self._closed)

    def _exchange(self, phase: Phase, parties: Collection[str] | None = None) -> dict[str, Head]:
        told = self._told(phase, parties=parties)
        heads = {party: heads.own for party, heads in told.items() if heads.own is not None}
        if self._ledger is not None:
            for party, head in heads.items():
                self._ledger.note(self._name(party), head)
        return heads

    def _told(
        self,
        phase: Phase,
        noted: Mapping[str, Head | None] | None = None,
        *,
        parties: Collection[str] | None = None,
    ) -> Mapping[str, BookHeads]:
        """Tell these parties, or all, and return their answers."""
        asked = self._parties if parties is None else parties
        if not asked:
            return {}
        own = self._ledger.head() if self._ledger is not None and phase in (Phase.OPEN, Phase.CLOSE) else None
        return self._transport.hear(
            {party: Notice(phase, self._run, self._account, own, noted[party] if noted else None) for party in asked}
        )

    def _name(self, party: str) -> str:
        # One party may keep a book for several of a ledger's data sets.
        return f"book of {party} for {self._account}"
