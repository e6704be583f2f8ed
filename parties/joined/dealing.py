"""The dealer of a federation: an organisation without data that deals in training on shares.

Guarantee. The dealer opens no source and has no policy to ask, since it releases nothing but its noise and uniform words. It
deals only for jobs that name a separate dealer, with keys that its own identity signs, and it accepts no other call. The
parties send it only their number of records.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from parties.dealing import Dealing
from parties.joined.desk import Desk, job_of, requested
from parties.joined.training import BODY_BYTES, PER_COORDINATE
from parties.joined.work import Work
from parties.session import Credentials
from vfl.errors import FederationError
from vfl.messages.joining import TRAIN
from vfl.planning import layout_of
from vfl.secure.legs import Begin, CheckRecords, DealProducts, DealSum, DealWaves, Meet
from vfl.secure.parcels import given_parcels, named_parcels, parcel_names
from vfl.secure.specification import SEPARATE
from vfl.security.sealing import sealed_size
from vfl.wire.frames import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from parties.joined.work import Sent
    from vfl.federation import events
    from vfl.federation.events import OnEvent
    from vfl.federation.file import Federation
    from vfl.federation.identity import Identity
    from vfl.job import Job
    from vfl.messages.joining import Offer
    from vfl.secure.legs import Leg


class DealerDesk(Desk):
    """Answers the calls of the coordinator to the federation's dealer."""

    def __init__(self, federation: Federation, identity: Identity, *, on_event: OnEvent) -> None:
        super().__init__(federation, identity, {}, None, on_event=on_event)

    def _prepare(self) -> None:
        """Do nothing: a dealer has no policy."""

    def _due(self, offer: Offer) -> bool:
        return offer.purpose == TRAIN

    def _read(self, offer: Offer) -> tuple[events.Requested, Callable[[], Work]]:
        job = job_of(offer, self.party)
        return requested(offer, job, ()), partial(self._dealing, offer, job)

    def _dealing(self, offer: Offer, job: Job) -> Work:
        if job.secure is None or job.secure.dealer != SEPARATE:
            raise FederationError(f"{self.party!r} deals only for jobs on shares that name a separate dealer")
        certificates = {name: member.certificate_pem for name, member in self._federation.parties.items()}
        own = Credentials((self._federation.digest, offer.run), self._identity.key_pem, certificates)
        return DealerWork(offer, job, Dealing(job, own))


class DealerWork(Work):
    """The dealer's work on one run. n_records is known from the first session on."""

    def __init__(self, offer: Offer, job: Job, dealing: Dealing) -> None:
        super().__init__(offer)
        self._dealing = dealing
        self._coordinates = sum(map(len, layout_of(job).columns.values()))
        self._counts = dict.fromkeys(parcel_names(len(job.partition.parties)), sealed_size(8))
        self._n_records: int | None = None
        self._sums = 0

    @property
    def limits(self) -> Limits:
        """Return the size limits of the next call: a gradient names the coordinates of all parties. A parcel is one word."""
        return Limits(BODY_BYTES + PER_COORDINATE * (self._coordinates + 1), self._counts)

    def takes(self, message: object) -> Iterable[str]:
        """Return the names of the parcels that a call takes: the parties' numbers of records."""
        return self._counts if isinstance(message, CheckRecords) else ()

    def other(self, message: object, vectors: Mapping[str, Any], progress: Callable[[int], None]) -> Sent:
        """Return the answer to a leg, and the parcels that the dealer sends."""
        if not isinstance(message, Meet | Begin | CheckRecords | DealWaves | DealSum | DealProducts):
            raise self.undue(message)
        leg: Leg = message
        reply, parcels = self._dealing.leg(leg, given_parcels(vectors))
        if isinstance(leg, Begin):
            self._n_records = leg.n_records
        elif isinstance(leg, DealSum):
            self._sums += len(leg.query.blocks)
        elif isinstance(leg, DealProducts):
            self._sums += 1
        return reply, named_parcels(parcels)

    def summary(self) -> dict[str, Any]:
        """Return facts for the dealer: seconds, records, and the number of sums to which it added noise."""
        return super().summary() | {"records": self._n_records, "releases": self._sums}
