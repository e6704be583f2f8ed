"""A party as a Ray actor: a few lines around `Party`. Started by vfl.launch, driven by the coordinator's actor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parties.loading import load
from vfl.messages import Records

if TYPE_CHECKING:
    from vfl.job import Job
    from vfl.messages import BookHeads, Greeting, Notice, Query, Reply
    from vfl.privacy.events import ReleaseKey
    from vfl.types import Vector


class PartyActor:
    """Loads its party's columns where it runs, then answers. Its methods are never retried: a retry is a new release."""

    def load(self, job: Job, name: str, source: Any, policy: str | None = None) -> None:
        """Read the party's columns; what is wrong with them is raised here, before the federation starts."""
        self._party = load(job, name, source, policy)

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
