"""The dealer of a run on shares, as a participant without columns.

Guarantee. The dealer receives only public facts, and sends words that are uniform for their receiver. It adds its noise to
every opened sum. It derives roles, bits and caps from the job and n.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parties.session import Credentials, Session
from vfl.errors import FederationError, PartyLost, PrivacyError
from vfl.messages.joining import Done
from vfl.planning import plan as make_plan
from vfl.privacy.events import Gaussian
from vfl.privacy.geometry import Clip
from vfl.privacy.sensitivity import check
from vfl.secure.dealer import Dealer
from vfl.secure.gram import GramDealer
from vfl.secure.legs import Begin, DealProducts, DealSum, DealWaves, Meet, openings, owners_of
from vfl.secure.roles import DEALER
from vfl.secure.sharing import GramSharing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.job import Job
    from vfl.secure.legs import Leg
    from vfl.secure.sharing import Sharing


class Dealing:
    """Answers the legs to the dealer. job : the one that all participants have; it also names the source of the noise."""

    name = DEALER

    def __init__(self, job: Job, own: Credentials | None = None) -> None:
        self._job, self._own = job, own or Credentials()
        self._noise = job.noise_source()
        self._session: Session | None = None
        self._dealer: Dealer | None = None
        self._products: GramDealer | None = None
        self._sharing: tuple[int, Sharing | GramSharing] | None = None

    def leg(self, leg: Leg, parcels: Sequence[bytes]) -> tuple[object, list[bytes]]:
        """Return the reply to a leg, and the parcels for its receivers. The dealer itself receives no parcels."""
        if parcels:
            raise FederationError("the dealer was sent a parcel, and it takes none")
        if isinstance(leg, Meet):
            self._session, self._dealer, self._products = Session(DEALER, leg.session, self._own), None, None
            return self._session.key, []
        if self._session is None:
            raise PartyLost("the dealer was restarted and has no keys of the session", DEALER)
        if leg.session != self._session.session:
            raise FederationError("the dealer was sent a leg of another session than the last one")
        if isinstance(leg, Begin):
            sharing = self._of(leg.n_records)
            streams = self._session.begin(leg.keys, sharing.roles.parties, self._noise)
            if isinstance(sharing, GramSharing):
                self._products = GramDealer(sharing.roles, streams, self._noise, leg.n_records, sharing.widths)
            else:
                self._dealer = Dealer(sharing.roles, streams, self._noise, leg.n_records)
            return Done(), []
        if self._sharing is None:
            raise FederationError("the dealer was sent a leg before the keys of its session")
        sharing = self._sharing[1]
        if isinstance(sharing, GramSharing):
            return Done(), self._dealt(leg, self._session, sharing)
        if self._dealer is None:
            raise FederationError("the dealer was sent a leg before the keys of its session")
        match leg:
            case DealWaves():
                words = self._dealer.waves(leg.version)
                return Done(), [self._session.seal(sharing.roles.supplied, f"waves {leg.version.name}", words)]
            case DealSum():
                return Done(), self._sums(leg, self._dealer, self._session, sharing)
            case _:
                raise FederationError(f"the dealer does not answer {type(leg).__name__}")

    def _dealt(self, leg: Leg, session: Session, sharing: GramSharing) -> list[bytes]:
        """Return the dealer's part of the products, sealed for the later party of each pair."""
        if not isinstance(leg, DealProducts) or self._products is None:
            raise FederationError(f"the dealer does not answer {type(leg).__name__} here")
        parties, sealed = sharing.roles.parties, []
        for place, later in enumerate(parties[1:], start=1):
            words = [self._products.product(sharing.pair(first, later, leg.key)).ravel() for first in parties[:place]]
            sealed.append(session.seal(later, f"products {leg.key}", np.concatenate(words)))
        return sealed

    def _sums(self, leg: DealSum, dealer: Dealer, session: Session, sharing: Sharing) -> list[bytes]:
        query = leg.query
        if not isinstance(query.event, Gaussian) or type(query.clip) is not Clip:
            raise PrivacyError(
                "the dealer was asked to deal for a sum without noise, or under another clip than 'norm'"
            )
        check(query)
        sharing.require_planned(query.event)
        words: dict[str, list[np.ndarray]] = {owner: [] for owner in owners_of(query)}
        for opening in openings(query, leg.key, leg.setup, leg.version):
            deviations = sharing.deviations(opening.owner, query.clip.cap, query.event.sigma)
            words[opening.owner].append(dealer.sum(opening, deviations))
        return [session.seal(owner, f"sum {leg.key}", np.concatenate(own)) for owner, own in words.items()]

    def _of(self, n_records: int) -> Sharing | GramSharing:
        if self._sharing is None or self._sharing[0] != n_records:
            sharing = make_plan(self._job, n_records).sharing
            if sharing is None:
                raise PrivacyError("the dealer was given a job that shares nothing")
            self._sharing = n_records, sharing
        return self._sharing[1]
