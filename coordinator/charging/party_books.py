"""The coordinator's side of the parties' release logs (books). Ledger and log note each other's last hash: old copies show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfl.errors import LedgerError
from vfl.network.messages import Notice, Phase

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from coordinator.secure import Transport
    from vfl.network.messages import BookHeads
    from vfl.privacy.ledger import Head, SqliteLedger


class PartyBooks:
    """Reports start and end of a run to the parties that keep a release log (book), and compares books and ledger.

    Book and ledger note each other's last hash (head). A file that lacks the head noted in the other file is an old copy, which
    is detected. It is not detected that entries after the noted head are missing.

    parties : names of the parties that keep a book.
    ledger : the run's ledger; None for a budget in memory, which has no chain and no notes.
    account : the ledger account to which the run is charged.
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
        """Raise LedgerError if a party's release log (book) or the ledger lacks the last hash that the other file noted.

        Call this before any write to a book or to the ledger, since a write would overwrite the noted head.
        """
        ledger = self._ledger if self._ledger is not None and self._ledger.path.exists() else None
        noted = {party: ledger.noted(self._name(party)) if ledger else None for party in self._parties}
        for party, heads in self._told(Phase.COMPARE, noted).items():
            if heads.noted is None:
                continue
            if ledger is None:
                raise LedgerError(
                    f"the ledger of {self._account!r} is missing, and the book of party {party!r} has a record of it: restore "
                    "the newest copy"
                )
            try:
                ledger.require(heads.noted)
            except LedgerError as error:
                raise LedgerError(
                    f"the ledger is not the one that the book of party {party!r} knows for {self._account!r}: {error}"
                ) from error

    def open(self) -> None:
        """Make every party's release log (book) reserve the plan. Raises ConsentRefused if a log refuses the plan."""
        self._exchange(Phase.OPEN)

    def reopen(self, party: str) -> None:
        """Announce the run again to the release log (book) of a restarted party, if this party keeps one."""
        if party in self._parties:
            again = PartyBooks(self._transport, [party], run=self._run, account=self._account, ledger=self._ledger)
            again.compare()
            again.open()

    def abandon(self) -> None:
        """Withdraw the run from every release log (book) that has no release of the run yet."""
        self._told(Phase.ABANDON)

    def close(self, without: Collection[str] = ()) -> dict[str, Head]:
        """Close the run in every release log (book). Return {party: last hash of its log}. A repeated call skips closed logs.

        without : parties that were given up. Their books keep the reservation.
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
        asked = self._parties if parties is None else parties
        if not asked:
            return {}
        own = self._ledger.head() if self._ledger is not None and phase in (Phase.OPEN, Phase.CLOSE) else None
        return self._transport.hear(
            {party: Notice(phase, self._run, self._account, own, noted[party] if noted else None) for party in asked}
        )

    def _name(self, party: str) -> str:
        # One party may keep a book for several data sets of a ledger.
        return f"book of {party} for {self._account}"
