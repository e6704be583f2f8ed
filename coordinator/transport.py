"""Protocol between the coordinator and the parties, the same for every way in which messages travel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from vfl.messages import BookHeads, Greeting, Notice, Query, Records, Reply
    from vfl.privacy.events import ReleaseKey
    from vfl.secure.legs import Leg
    from vfl.solvers.protocol import Released
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


@runtime_checkable
class Legs(Transport, Protocol):
    """Transport that also carries the legs of a run on shares."""

    def post(self, to: str, leg: Leg, parcels: Sequence[Any], count: int) -> tuple[Any, Sequence[Any]]:
        """Send a leg of a run on shares with its parcels; return handles of the reply and of the `count` parcels it sends.

        Legs of one participant are answered in the order in which they were sent. Only parcels that it sent are handed to
        the next participant, so that a transport may pass references.
        """
        ...

    def collect(self, answers: Sequence[tuple[str, Any]]) -> dict[str, object]:
        """Wait for replies in their order; return the last one of each participant. PartyLost names the first that is lost."""
        ...


@runtime_checkable
class Opening(Transport, Protocol):
    """Transport that opens sums of shares, and keeps opened products until they are logged."""

    def newly_opened(self) -> Released:
        """Return products that were opened since the last call: row j of the symmetric matrix from its diagonal on.

        The release of the first piece has paid for all of them. Whoever keeps them can go on with the pass in another process.
        """
        ...
