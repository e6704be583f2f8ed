"""A party as a Ray actor: a few lines around `Party`. Started by vfl.launch, driven by the coordinator's actor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parties.alignment import Alignment
from parties.loading import consented, load
from parties.prediction import Prediction
from vfl.errors import FederationError
from vfl.messages import Records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parties.consent import Policy
    from parties.prediction import ModelPart, PartGreeting
    from vfl.alignment import IdsGreeting, Indexed, Keeping
    from vfl.job import Job
    from vfl.messages import BookHeads, Greeting, Notice, Query, Reply
    from vfl.privacy.events import ReleaseKey
    from vfl.security.psi import Points
    from vfl.types import Integers, Vector


class PartyActor:
    """Loads its party's columns where it runs, then answers. Its methods are never retried: a retry is a new release."""

    _alignment: Alignment | None = None
    _prediction: Prediction

    def prepare(
        self, job: Job, name: str, source: Any, policy: str | None, salt: bytes, cores: int, keeping: Keeping
    ) -> None:
        """Read the party's ids for an alignment, once its owner has agreed to the job."""
        agreed = consented(job, name, policy)
        self._told: tuple[Job, str, Any, Policy | None] = (job, name, source, agreed)
        self._alignment = Alignment(job, name, source, salt=salt, cores=cores, keeping=keeping)

    def load(self, job: Job, name: str, source: Any, policy: str | None = None) -> None:
        """Read the party's columns; what is wrong with them is raised here, before the federation starts."""
        self._party = load(job, name, source, policy)

    def load_aligned(self) -> None:
        """Read the columns of the records that were aligned, from the source that `prepare` was told of."""
        index = self._aligning().settled()
        self._alignment = None
        self._party = load(*self._told, index=index)

    def prepare_prediction(self, part: ModelPart | str, name: str, source: Any) -> PartGreeting:
        """Take the party's part of a model, or read it here, and look at its new records; returns what is said of them."""
        self._prediction = Prediction(part, name, source)
        return self._prediction.greet()

    def prepare_ids(self, salt: bytes, cores: int, keeping: Keeping) -> None:
        """Read the ids of the new records for their alignment."""
        self._alignment = self._prediction.alignment(salt, cores, keeping)

    def margins(self) -> Vector:
        """Return the party's part of the margins, (n,)."""
        if self._alignment is not None:
            self._prediction.align(self._alignment.settled())
        return self._prediction.margins()

    def receive(self, *parts: Vector) -> tuple[list[Any] | None, Vector]:
        """Add up every party's part of the margins, in the partition's order; returns ids and margins of the records."""
        return self._prediction.receive(parts)

    def greet_ids(self) -> IdsGreeting:
        """Return what the party says of its ids."""
        return self._aligning().greet()

    def begin(self, pending: str | None) -> None:
        """Begin an alignment, or go on with one."""
        self._aligning().begin(pending)

    def multiply(self, owner: str, points: Points | None) -> Iterator[int]:
        """Blind a set; a stream of how many points are done."""
        yield from self._aligning().multiply(owner, points)

    def take(self, owner: str) -> Points:
        """Return the set that was blinded."""
        return self._aligning().take(owner)

    def conclude(self, positions: Integers) -> Indexed:
        """Take the outcome of the alignment."""
        return self._aligning().conclude(positions)

    def greet(self) -> Greeting:
        """Return the party's greeting."""
        return self._party.greet()

    def hear(self, notice: Notice) -> BookHeads:
        """Return the heads of the owner's book."""
        return self._party.hear(notice)

    def labels(self) -> Vector:
        """Return y, (n,)."""
        return self._party.labels()

    def answer(
        self, query: Query, key: ReleaseKey, weights: Vector | None, margins: Vector | None, labels: Vector | None
    ) -> Reply:
        """Return the reply to a share; the n-vectors are arguments of their own, so that Ray passes them by reference."""
        return self._party.answer(query, Records(weights, margins, labels), key)

    def _aligning(self) -> Alignment:
        if self._alignment is None:
            raise FederationError("a party was asked to align before it was told of the job")
        return self._alignment
