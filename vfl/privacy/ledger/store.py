"""Where a ledger's entries are kept. SQLite is the store built; another needs these few calls only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from vfl.privacy.ledger.chain import Entry


class Rows(Protocol):
    """The entries, inside one transaction."""

    identity: str

    def since(self, seq: int) -> Iterator[tuple[Entry, bytes]]:
        """Yield the entries numbered `seq` and above with their hashes, as stored, in order."""
        ...

    def append(self, rows: Sequence[tuple[Entry, bytes]]) -> None:
        """Add entries at the end."""
        ...


class Store(Protocol):
    """Append-only entries that survive power loss. Every failure to read or write raises LedgerError."""

    def create(self) -> None:
        """Make an empty ledger unless there is one."""
        ...

    def reading(self) -> AbstractContextManager[Rows]:
        """Return a consistent view."""
        ...

    def writing(self) -> AbstractContextManager[Rows]:
        """Return exclusive access: leaving it makes what was appended durable, or raises and nothing was appended."""
        ...

    def forget(self) -> None:
        """Let go of connections inherited over a fork, without closing them."""
        ...
