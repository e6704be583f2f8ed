"""A joined party's work on one run: its ids aligned, its columns loaded, its share of every query answered."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.joined.addressed import check_addressed
from parties.joined.aligning import Aligning
from parties.joined.answered import Answered
from parties.joined.work import Work
from parties.loading import load
from vfl.errors import FederationError, PrivacyError
from vfl.messages import Descend, Need, Query, Records
from vfl.messages.joining import TRAIN, Done, Load, SendLabels
from vfl.planning import layout_of
from vfl.secure.legs import Contribute, ContributeProducts, Legs
from vfl.secure.parcels import given_parcels, named_parcels, parcel_names
from vfl.secure.spares import SPARES
from vfl.security.sealing import sealed_size
from vfl.wire.frames import Limits, as_vector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from parties.joined.aligning import PartySettings
    from parties.party import Party
    from vfl.job.task import PartyTask
    from vfl.messages import BookHeads, Notice, Reply
    from vfl.messages.joining import Offer
    from vfl.privacy.events import ReleaseKey

BODY_BYTES, PER_COORDINATE = 1 << 20, 1 << 12
"""Bytes of a call's body: at most the first, and the second for each coordinate of the party."""
MOST_PARCELS, MOST_TERMS = 16, 16
"""Largest number of sealed parcels in a leg, and of terms of the sigmoid."""
OF_MARGINS, OF_RECORDS = ("weights", "margins"), ("labels", "limits")
RECORDS = OF_MARGINS + OF_RECORDS
"""Names of the vectors of Records: multinomial loss has K margins, and K residuals, for each record."""
MOST_NOTICES = 1000
"""Notices of one offer, each of which the owner's book may record: two per start of a party and three per coordinator."""


class Training(Work):
    """Work on one run: an alignment alone, or a training."""

    def __init__(self, offer: Offer, task: PartyTask, source: Any, own: PartySettings) -> None:
        super().__init__(offer)
        self._task, self._source, self._own = task, source, own
        self._aligning = Aligning(offer, task, source, own)
        self._party: Party | None = None
        self._answered: Answered | None = None
        self._n_records = 0
        self._n_trained = 0
        self._releases = 0
        self._notices = 0

    @property
    def limits(self) -> Limits:
        """Return the size limits of the next call."""
        body = BODY_BYTES + PER_COORDINATE * (len(self._task.canonical) + 1)
        if self._party is not None and self._task.job.secure is not None:
            columns = max(len(names) for names in layout_of(self._task.job).columns.values()) + 1
            largest = sealed_size(8 * (self._n_trained + SPARES) * max(columns, 2 * MOST_TERMS))
            return Limits(body, dict.fromkeys(parcel_names(MOST_PARCELS), largest))
        if self._party is not None:
            return Limits(body, {name: np.dtype(self._kind(name)).itemsize * self._length(name) for name in RECORDS})
        return Limits(body, self._aligning.limits)

    def takes(self, message: object) -> Iterable[str]:
        """Return the names of the vectors that a call takes."""
        if self._party is None:
            return self._aligning.takes(message)
        if isinstance(message, Legs):
            return parcel_names(self._party.takes(message))
        return vectors_with(message) if isinstance(message, Query) else ()

    def hear(self, notice: Notice) -> BookHeads:
        """Pass a notice of this run to the owner's book."""
        if notice.run != self.offer.run:
            raise FederationError(
                f"party {self._task.party!r} was sent a notice of another run than the one it works on"
            )
        self._notices += 1
        if self._notices > MOST_NOTICES:
            raise FederationError(f"party {self._task.party!r} was sent more than {MOST_NOTICES} notices of one run")
        return self._loaded().hear(notice)

    def answer(self, query: Query, vectors: Mapping[str, Any], key: ReleaseKey) -> tuple[object, Mapping[str, Any]]:
        """Return the reply to a share of a query; a key is answered once, unless its noise repeats itself to the bit."""
        party = self._loaded()
        check_addressed(query, self._task.party, party.n_coordinates)
        records = Records(**{name: self._of_records(name, raw) for name, raw in vectors.items() if name in RECORDS})
        noised = sum(event is not None for event in query.events())
        if noised and self._answered is not None:
            part = query.parts.get(self._task.party, 0) if isinstance(query, Descend) else getattr(query, "part", 0)
            self._answered.take(key, part, len(query.events()))
        reply = party.answer(query, records, key)
        self._releases += noised
        return _parted(reply)

    def other(
        self, message: object, vectors: Mapping[str, Any], progress: Callable[[int], None]
    ) -> tuple[object, Mapping[str, Any]]:
        """Return the answer to another call of the run."""
        match message:
            case Load():
                return self._load(), {}
            case SendLabels():
                return Done(), {"labels": self._loaded().labels()}
        if isinstance(message, Legs):
            return self._leg(message, vectors)
        if self._party is not None:
            raise FederationError(f"party {self._task.party!r} has already loaded its columns and cannot align again")
        return self._aligning.answer(message, vectors, progress)

    def _leg(self, leg: Any, vectors: Mapping[str, Any]) -> tuple[object, Mapping[str, Any]]:
        """Answer a leg of a run on shares; a key is opened once."""
        party = self._loaded()
        if isinstance(leg, Contribute | ContributeProducts):
            if self._answered is not None:
                self._answered.take(leg.key, leg.query.part, len(leg.query.blocks))
            self._releases += 1
        reply, parcels = party.leg(leg, given_parcels(vectors))
        return reply, named_parcels(parcels)

    def summary(self) -> dict[str, Any]:
        """Return facts for the owner: seconds, releases, their ε, records, and the ε left in the book."""
        costs = None if self._party is None else self._party.costs()
        return super().summary() | {
            "releases": self._releases,
            "epsilon": None if costs is None else costs.epsilon,
            "records": self._n_records or None,
            "left": None if costs is None else costs.left,
        }

    def reserved(self) -> float | None:
        """Return ε that the owner's book has set aside; None without a book."""
        costs = None if self._party is None else self._party.costs()
        return None if costs is None else costs.reserved

    def close(self) -> None:
        """End processes and close files."""
        self._aligning.close()
        if self._answered is not None:
            self._answered.close()

    def _load(self) -> object:
        if self.offer.purpose != TRAIN:
            raise FederationError(f"party {self._task.party!r} was asked to load for {self.offer.purpose!r}")
        if self._party is None:
            index = self._aligning.settled()
            party = load(
                self._task,
                self._source,
                self._own.policy,
                index=index,
                threads=self._own.cores,
                own=self._own.credentials,
            )
            private = self._task.job.privacy is not None and self._task.job.noise_source().private
            if private:
                self._answered = Answered(
                    self._own.policy.book.with_suffix(".answered"), self._task.party, self.offer.run
                )
            self._n_records, self._n_trained, self._party = party.n_records, party.n_trained, party
        return self._party.greet()

    def _loaded(self) -> Party:
        if self._party is None:
            raise FederationError(f"party {self._task.party!r} was asked for an answer before it loaded its columns")
        return self._party

    def _length(self, name: str) -> int:
        """Return the length of a vector of Records: one per margin of each record, or one per record; weights follow labels."""
        job = self._task.job
        if name in OF_MARGINS:
            return self._n_trained * job.n_margins
        return self._n_trained * (1 + (name == "labels" and job.targets.weights))

    def _kind(self, name: str) -> str:
        return self._task.job.margins if name == "margins" else "float64"

    def _of_records(self, name: str, raw: Any) -> Any:
        vector = as_vector(raw, self._kind(name))
        if len(vector) != self._length(name):
            raise PrivacyError(
                f"party {self._task.party!r} was sent a vector whose length differs from its number of records"
            )
        return vector


def vectors_with(query: Query) -> tuple[str, ...]:
    """Return the names of the vectors of Records that go with a query."""
    if query.need is Need.MARGINS:
        return ("margins", *OF_RECORDS)
    return ("weights",) if query.need is Need.WEIGHTS else ()


def _parted(reply: Reply) -> tuple[object, Mapping[str, Any]]:
    """Return a reply without its n-vector, and the vector, which travels beside the body."""
    if reply.vector is None:
        return reply, {}
    return replace(reply, vector=None), {"vector": np.ascontiguousarray(reply.vector)}
