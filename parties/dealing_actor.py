"""The dealer of a run on shares as a Ray actor. A module of its own, so that parties need not import the dealer's code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parties.actor import ServiceActor
from parties.dealing import Dealing
from vfl.secure.roles import DEALER

if TYPE_CHECKING:
    from vfl.job import Job


class DealerActor(ServiceActor):
    """Dealer of a run on shares: an actor without columns."""

    def __init__(self, job: Job) -> None:
        super().__init__(
            DEALER, Dealing(job, recycles=True)
        )  # Ray copies each parcel into its store when the request returns the parcel
