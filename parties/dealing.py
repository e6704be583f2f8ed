"""Dealer of a run on secret shares: a participant without columns that sends random integers and adds noise.

Guarantee. The dealer receives only public facts. The integers modulo 2^64 that the dealer sends are uniform for their receiver.
The dealer adds noise to every opened sum. Roles, bits and caps follow from the job and n. The dealer sends nothing until every
party has stated n, because noise for a larger n would be too small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parties.services.service import Service
from parties.session import RECORDS, Credentials, Session
from vfl.crypto.encryption import PIECE, encrypted_size
from vfl.errors import FederationError, PartyLost, PrivacyError
from vfl.network.messages import Done
from vfl.planning import plan as make_plan
from vfl.privacy.events import Gaussian
from vfl.privacy.geometry import Clip
from vfl.secure import requests
from vfl.secure.gram import GramDealer
from vfl.secure.member import Dealer
from vfl.secure.moments import MomentDealer
from vfl.secure.roles import DEALER
from vfl.secure.sharing import Sharing
from vfl.secure.sigmoid import PLACES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from parties.services.service import Sent
    from vfl.job import Job
    from vfl.secure.measures import Measuring
    from vfl.secure.requests import Ciphertext, Request, Version
    from vfl.secure.sharing import GramSharing


class DealerService(Service):
    """Service that answers the requests to the dealer.

    job : the job of all participants; it also specifies the source of the noise.
    recycles : True if the caller copies ciphertexts before the next request. The largest one then reuses a buffer: allocating
        the buffer takes longer than drawing the random integers.
    """

    name = DEALER

    def __init__(self, job: Job, own: Credentials | None = None, *, recycles: bool = False) -> None:
        self._job, self._own = job, own or Credentials()
        self._noise = job.noise_source()
        self._session: Session | None = None
        self._dealer: Dealer | None = None
        self._products: GramDealer | None = None
        self._sharing: Sharing | GramSharing | None = None
        self._n_records, self._checked = 0, False
        self._recycles, self._sent = recycles, bytearray()

    def answer(self, message: object, vectors: Mapping[str, Any]) -> Sent:
        """Return the reply to a request, and the ciphertexts that the dealer sends."""
        if not isinstance(message, requests.TO_DEALER):
            raise self.undue(message)
        reply, ciphertexts = self.request(message, requests.given_ciphertexts(vectors))
        return reply, requests.named_ciphertexts(ciphertexts)

    def request(self, request: Request, ciphertexts: Sequence[Ciphertext]) -> tuple[object, list[Ciphertext]]:
        """Return the reply to a request, and the encrypted messages for its receivers.

        ciphertexts : encrypted numbers of records, one per party.
        """
        if ciphertexts and not isinstance(request, requests.CheckRecords):
            raise FederationError("the dealer received an encrypted message, but it accepts only numbers of records")
        if isinstance(request, requests.Meet):
            self._session = Session(DEALER, request.session, self._own)
            self._sharing, self._dealer, self._products = None, None, None
            self._checked = False
            return self._session.key, []
        if self._session is None:
            raise PartyLost("the dealer was restarted and has no keys of the session", DEALER)
        if request.session != self._session.session:
            raise FederationError("the dealer received a message of a session that has ended")
        if isinstance(request, requests.Begin):
            sharing, n = self._planned(request.n_records)
            streams = self._session.begin(request.keys, sharing.roles.parties, self._noise)
            self._n_records = request.n_records
            self._sharing = sharing  # a second Begin of the session, perhaps with another n, was refused above
            if request.held_out:
                self._dealer = MomentDealer(sharing.roles, streams, self._noise, self._measuring(sharing).n_records)
                return Done(), []
            if (of := sharing.products) is not None:
                self._products = GramDealer(of.roles, streams, self._noise, n, of.widths)
            if isinstance(sharing, Sharing):
                self._dealer = Dealer(sharing.roles, streams, self._noise, n)
            return Done(), []
        if self._sharing is None:
            raise FederationError("the dealer received a message before the session's keys: start the run again")
        sharing = self._sharing
        if isinstance(request, requests.CheckRecords):
            self._check_records(self._session, sharing.roles.parties, ciphertexts)
            return Done(), []
        if not self._checked:
            raise FederationError("the dealer was asked to deal before the parties have stated their number of records")
        if isinstance(request, requests.DealProducts) and sharing.products is not None:
            return Done(), self._dealt(request, self._session, sharing.products)
        if self._dealer is None or not isinstance(sharing, Sharing):
            raise FederationError(f"the dealer does not answer {type(request).__name__} here")
        match request:
            case requests.DealTerms():
                return Done(), [self._fourier_terms(request.version, self._dealer, self._session, sharing)]
            case requests.DealSum() if not isinstance(self._dealer, MomentDealer):
                return Done(), self._sums(request, self._dealer, self._session, sharing)
            case requests.ContributeMoments() if isinstance(self._dealer, MomentDealer):
                self._require_place(request.version, sharing)
                elements = self._dealer.noise(request, self._measuring(sharing))
                return Done(), [self._session.encrypt(sharing.roles.label, f"noise {request.name}", elements)]
            case _:
                raise FederationError(f"the dealer does not answer {type(request).__name__}")

    def _check_records(self, session: Session, parties: Sequence[str], ciphertexts: Sequence[Ciphertext]) -> None:
        """Raise PrivacyError unless every party states that it has n records, as in this session."""
        if len(ciphertexts) != len(parties):
            raise FederationError("the dealer did not receive the number of records of every party")
        for party, ciphertext in zip(parties, ciphertexts, strict=True):
            (count,) = session.open(party, RECORDS, ciphertext, np.uint64, 1)
            if count != self._n_records:
                raise PrivacyError(
                    f"the dealer was asked to deal for {self._n_records} records, and party {party!r} states {count}"
                )
        self._checked = True

    def _fourier_terms(self, version: Version, dealer: Dealer, session: Session, sharing: Sharing) -> bytearray:
        """Return the encrypted shares of the Fourier terms for one version of the model.

        The shares are drawn and encrypted some rows at a time.
        """
        self._require_place(version, sharing)
        record = 16 * version.terms
        size = record * dealer.n_rows
        out = self._sent if len(self._sent) == encrypted_size(size) else bytearray(encrypted_size(size))
        if self._recycles:
            self._sent = out
        parts = dealer.fourier_terms(version, PIECE // record)
        return session.encrypt_parts(sharing.roles.supplied, f"Fourier terms {version.name}", parts, size, out)

    def _require_place(self, version: Version, sharing: Sharing) -> None:
        """Raise PrivacyError for a version of another kind of session, or with a series that the job does not use."""
        places = PLACES if version.held_out else sharing.places
        if version.held_out != isinstance(self._dealer, MomentDealer) or version.place not in places:
            raise PrivacyError("the dealer was asked to use a series for the sigmoid that its job does not use")

    def _measuring(self, sharing: Sharing | GramSharing) -> Measuring:
        if not isinstance(sharing, Sharing) or sharing.measuring is None:
            raise PrivacyError("the dealer was asked to measure held-out records, which its job does not plan")
        return sharing.measuring

    def _dealt(self, request: requests.DealProducts, session: Session, sharing: GramSharing) -> list[Ciphertext]:
        """Return the dealer's part of each product of two parties, encrypted for the party that is later in `Roles.parties`."""
        if self._products is None:
            raise FederationError("the dealer received a message before the session's keys: start the run again")
        parties = sharing.roles.parties
        encrypted: list[Ciphertext] = []
        for place, later in enumerate(parties[1:], start=1):
            elements = [
                self._products.product(sharing.pair(first, later, request.key)).ravel() for first in parties[:place]
            ]
            encrypted.append(session.encrypt(later, f"products {request.key}", np.concatenate(elements)))
        return encrypted

    def _sums(self, request: requests.DealSum, dealer: Dealer, session: Session, sharing: Sharing) -> list[Ciphertext]:
        query = request.query
        if not isinstance(query.event, Gaussian) or type(query.clip) is not Clip:
            raise PrivacyError(
                "the dealer was asked to contribute to a sum without noise, or under a clip different from 'norm'"
            )
        query.check()
        sharing.require_planned(query.event)
        elements: dict[str, list[np.ndarray]] = {owner: [] for owner in requests.owners_of(query)}
        if not elements.keys() <= set(sharing.roles.parties):
            raise PrivacyError("the dealer was asked to contribute to a sum of a party that its job does not have")
        for opening in requests.openings(query, request.key, request.setup, request.version):
            deviations = sharing.deviations(opening.owner, query.clip.cap, query.event.sigma)
            elements[opening.owner].append(dealer.sum(opening, deviations))
        return [session.encrypt(owner, f"sum {request.key}", np.concatenate(own)) for owner, own in elements.items()]

    def _planned(self, n_records: int) -> tuple[Sharing | GramSharing, int]:
        """Return the public facts of the run, and the number of training records."""
        plan = make_plan(self._job, n_records)
        if plan.sharing is None:
            raise PrivacyError("the dealer received a job that does not train on shares")
        return plan.sharing, plan.problem.n_records
