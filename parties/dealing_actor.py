"""The dealer of a run on shares as a Ray actor. Apart from `parties.actor`, so that parties need not import it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parties.actor import answered, leg_of
from parties.dealing import Dealing
from vfl.version import __version__

if TYPE_CHECKING:
    from vfl.job import Job
    from vfl.messages.kinds import Plain
    from vfl.secure.legs import Parcel


class DealerActor:
    """Dealer of a run on shares: an actor without columns."""

    def __init__(self, job: Job) -> None:
        self._dealing = Dealing(job, recycles=True)  # Ray copies a parcel into its store as the leg returns it

    def version(self) -> str:
        """Return the version of the code that runs here."""
        return __version__

    def leg(self, leg: Plain, *parcels: Parcel) -> Any:
        """Return the reply to a leg, and its parcels as separate objects."""
        return answered(*self._dealing.leg(leg_of(leg), parcels))
