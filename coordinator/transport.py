"""Protocol between the coordinator and the parties, the same for every way in which messages travel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from vfl.messages import BookHeads, Greeting, Notice, Query, Records, Reply
    from vfl.privacy.events import ReleaseKey
    from vfl.types import Vector


class Transport(Protocol):
    """Transport of shares to parties and of replies back, in the order of the shares. It never repeats a query."""

    def greet(self) -> Mapping[str, Greeting]:
        """Return every party's greeting; PartyLost names a party that does not answer."""
        ...

    def hear(self, notices: Mapping[str, Notice]) -> Mapping[str, BookHeads]:
        """Send notices to the parties that keep a book of the run; return the heads of these books."""
        ...

    def labels(self, party: str) -> Vector:
        """Return y, (n,), from the label party."""
        ...

    def ask(self, shares: Mapping[str, Query], records: Records, key: ReleaseKey) -> Mapping[str, Reply]:
        """Send each share to its party, all at the same time, and wait for the replies."""
        ...

    def together(self, party: str) -> Collection[str]:
        """Return the parties that are lost with this one because they share its process, itself first."""
        ...

    def revive(self, party: str, seconds: float) -> Greeting:
        """Return the greeting of a lost party that has loaded its data anew; PartyLost if it is not back in time."""
        ...
