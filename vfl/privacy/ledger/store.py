"""Protocol of the storage for a ledger's entries. `SqliteStore` implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from vfl.privacy.ledger.chain import Entry


class Rows(Protocol):
    """Entries of a ledger, as seen within one transaction."""

    identity: str

    def since(self, seq: int) -> Iterator[tuple[Entry, bytes]]:
        """Yield the stored entries from number `seq` on, in order, each with its hash."""
        ...

    def append(self, rows: Sequence[tuple[Entry, bytes]]) -> None:
        """Add entries at the end."""
        ...


class Store(Protocol):
    """Append-only storage that survives power loss. Every failure to read or write raises LedgerError."""

    def create(self) -> None:
        """Create an empty ledger unless one exists."""
        ...

    def reading(self) -> AbstractContextManager[Rows]:
        """Return a consistent view."""
        ...

    def writing(self) -> AbstractContextManager[Rows]:
        """Return exclusive access. On exit, all appended entries are durable, or it raises and none was appended."""
        ...

    def forget(self) -> None:
        """Drop connections inherited from a parent process, without closing them."""
        ...
