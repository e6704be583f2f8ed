"""The in-process transport: the same messages, passed as they are. For debugging, estimators and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.coordinator import Coordinator
from parties.loading import load

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from coordinator.budget import Budget, Reserved
    from coordinator.coordinator import Outcome
    from coordinator.rounds import Log, Made, Round
    from parties.party import Party
    from vfl.job import Job
    from vfl.messages import BookHeads, Greeting, Notice, Query, Records, Reply
    from vfl.planning import Plan
    from vfl.privacy.events import ReleaseKey
    from vfl.types import Vector


class InProcessTransport:
    """Calls the parties one after the other in this process."""

    def __init__(self, parties: Mapping[str, Party]) -> None:
        self._parties = parties

    def greet(self) -> dict[str, Greeting]:
        """Return every party's greeting."""
        return {name: party.greet() for name, party in self._parties.items()}

    def hear(self, notices: Mapping[str, Notice]) -> dict[str, BookHeads]:
        """Return the heads of the books of the parties that are told."""
        return {name: self._parties[name].hear(notice) for name, notice in notices.items()}

    def labels(self, party: str) -> Vector:
        """Return y, (n,)."""
        return self._parties[party].labels()

    def ask(self, shares: Mapping[str, Query], records: Records, key: ReleaseKey) -> dict[str, Reply]:
        """Put each share to its party in turn."""
        return {name: self._parties[name].answer(share, records, key) for name, share in shares.items()}


def run(
    job: Job, sources: Mapping[str, Any], budget: Budget, log: Log, *, policies: Mapping[str, str] | None = None
) -> Iterator[Plan | Reserved | Round | Made | Outcome]:
    """Load every party here, each under its owner's policy, then yield the plan, the rounds and the outcome."""
    parties = {name: load(job, name, source, (policies or {}).get(name)) for name, source in sources.items()}
    yield from Coordinator(InProcessTransport(parties)).stream(job, budget, log)
