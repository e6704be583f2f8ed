"""The dealer of a federation: an organisation without data that sends random integers for training on secret shares.

Guarantee. The dealer opens no source and has no policy to ask, since it sends only noise and uniform random integers. It deals
only for jobs that name a separate dealer, under keys that its own identity signs. It accepts no other call. The parties send
it nothing but their numbers of records.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from parties.dealing import Dealing
from parties.joined.desk import Desk, job_of, requested
from parties.joined.work import DealerWork
from parties.session import Credentials
from vfl.errors import FederationError
from vfl.messages.joining import TRAIN
from vfl.secure.specification import SEPARATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from vfl.federation import events
    from vfl.federation.events import OnEvent
    from vfl.federation.file import Federation
    from vfl.federation.identity import Identity
    from vfl.job import Job
    from vfl.messages.joining import Offer


class DealerDesk(Desk):
    """Answers the calls of the coordinator to the federation's dealer."""

    def __init__(self, federation: Federation, identity: Identity, *, on_event: OnEvent) -> None:
        super().__init__(federation, identity, {}, None, on_event=on_event)

    def _prepare(self) -> None:
        """Do nothing, since a dealer has no policy."""

    def _due(self, offer: Offer) -> bool:
        return offer.purpose == TRAIN

    def _read(self, offer: Offer) -> tuple[events.Requested, Callable[[], DealerWork]]:
        job = job_of(offer, self.party)
        return requested(offer, job, ()), partial(self._dealing, offer, job)

    def _dealing(self, offer: Offer, job: Job) -> DealerWork:
        if job.secure is None or job.secure.dealer != SEPARATE:
            raise FederationError(f"{self.party!r} deals only for jobs on shares that name a separate dealer")
        certificates = {name: member.certificate_pem for name, member in self._federation.parties.items()}
        own = Credentials((self._federation.digest, offer.run), self._identity.key_pem, certificates)
        return DealerWork(offer, job, Dealing(job, own))
