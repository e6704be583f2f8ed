"""Protocol between the coordinator and the parties, the same for every way in which messages travel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.messages import BookHeads, Greeting, Notice, Query, Records, Reply
    from vfl.privacy.events import ReleaseKey
    from vfl.types import Vector


class Transport(Protocol):
    """Carries shares to parties and replies back; answers are in the order of the shares. Never repeats a question."""

    def greet(self) -> Mapping[str, Greeting]:
        """Return every party's greeting; PartyLost names the one that does not answer."""
        ...

    def hear(self, notices: Mapping[str, Notice]) -> Mapping[str, BookHeads]:
        """Tell parties that keep a book of the run; returns the heads of these books."""
        ...

    def labels(self, party: str) -> Vector:
        """Return y, (n,), from the label party."""
        ...

    def ask(self, shares: Mapping[str, Query], records: Records, key: ReleaseKey) -> Mapping[str, Reply]:
        """Put each share to its party, all at the same time, and wait for the replies."""
        ...

    def revive(self, party: str, seconds: float) -> Greeting:
        """Return the greeting of a lost party that is back, its data loaded anew; PartyLost when it is not in time."""
        ...
