"""The in-process engine: passes the messages of a run in their plain form. For debugging, estimators and tests."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from coordinator.alignment import align
from coordinator.charging.budget import Reserved
from coordinator.coordinator import Coordinator
from coordinator.states.shards import MarginShards, ShardMargins, whole
from parties.alignment.participant import Alignment
from parties.dealing import Dealing
from parties.loading import consented, load
from vfl.errors import FederationError, PartyLost
from vfl.job.site import InProcess
from vfl.kinds import from_plain, to_plain
from vfl.launch.engines.arrangement import Arrangement, cores_each
from vfl.messages import Query, Reply
from vfl.secure.roles import DEALER
from vfl.security.psi import new_salt
from vfl.shards import Each, Here

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from coordinator.charging.budget import Budget
    from coordinator.coordinator import Outcome
    from coordinator.rounds import Log, Lost, Made, Round
    from parties.alignment.index import Index
    from parties.party import Party
    from vfl.alignment import Aligned, Aligning, IdsGreeting, Indexed
    from vfl.job import Job
    from vfl.job.task import PartyTask
    from vfl.messages import BookHeads, Greeting, Notice, Records
    from vfl.planning import Plan
    from vfl.privacy.events import ReleaseKey
    from vfl.secure.legs import Leg, Parcel
    from vfl.security.psi import Points
    from vfl.types import Integers, Vector


ONE_PROCESS = (
    "trust='secure' in one process, which held the columns of all parties: a simulation that protects no participant from "
    "another"
)


class InProcessTransport:
    """Transport that calls the parties one after the other in this process."""

    def __init__(self, parties: Mapping[str, Party], dealer: Dealing | None = None) -> None:
        self._parties = parties
        self._dealer = dealer

    def greet(self) -> dict[str, Greeting]:
        """Return every party's greeting."""
        return {name: party.greet() for name, party in self._parties.items()}

    def hear(self, notices: Mapping[str, Notice]) -> dict[str, BookHeads]:
        """Deliver each notice to its party and return the heads of those parties' books."""
        return {name: self._parties[name].hear(notice) for name, notice in notices.items()}

    def labels(self, party: str) -> Vector:
        """Return y, (n,), or of each shard."""
        labels: Vector = self._parties[party].labels()
        return labels

    def ask(self, shares: Mapping[str, Query], records: Records, key: ReleaseKey) -> dict[str, Reply]:
        """Send each share to its party in plain form, one party after the other. A party rebuilds it from registered kinds."""
        replies = {}
        for name, share in shares.items():
            reply = self._parties[name].answer(from_plain(to_plain(share), Query), records, key)
            vector: Any = reply.vector
            if isinstance(vector, Each):  # pieces travel from shard to shard
                reply = replace(reply, vector=None)
            replies[name] = from_plain(to_plain(reply), Reply)
            if isinstance(vector, Each):
                pieces: Any = vector
                replies[name] = replace(replies[name], vector=pieces)
        return replies

    def together(self, party: str) -> tuple[str, ...]:
        """Return the party alone."""
        return (party,)

    def post(self, to: str, leg: Leg, parcels: Sequence[Parcel], count: int) -> tuple[object, list[Parcel]]:
        """Call a participant with a leg in plain form; return its reply and its parcels."""
        participant = self._dealer if to == DEALER else self._parties[to]
        if participant is None:
            raise FederationError("a run on shares has no dealer")
        reply, sent = participant.leg(from_plain(to_plain(leg), type(leg)), parcels)
        return from_plain(to_plain(reply), type(reply)), sent

    def collect(self, answers: Sequence[tuple[str, object]]) -> dict[str, object]:
        """Return the replies, which are in this process already."""
        return dict(answers)

    def revive(self, party: str, seconds: float) -> Greeting:
        """Raise PartyLost: parties share the coordinator's process, so nothing can restart one of them alone."""
        raise PartyLost(f"party {party!r} is lost, and the in-process engine cannot restart parties", party)


class InProcessAlignment:
    """Transport of an alignment between parties in this process, which multiply one after the other."""

    def __init__(self, parties: Mapping[str, Alignment]) -> None:
        self._parties = parties

    def greet(self) -> dict[str, IdsGreeting]:
        """Return every party's greeting, which describes its ids."""
        return {name: party.greet() for name, party in self._parties.items()}

    def begin(self, pending: str | None) -> None:
        """Start the alignment at all parties."""
        for party in self._parties.values():
            party.begin(pending)

    def multiply(
        self, step: Mapping[str, str], sets: Mapping[str, Points]
    ) -> Generator[tuple[str, int], None, dict[str, Points]]:
        """Let the parties multiply, one after the other; yield the progress of each."""
        for name, owner in step.items():
            for done in self._parties[name].multiply(owner, sets[owner] if owner != name else None):
                yield name, done
        return {owner: self._parties[name].take(owner) for name, owner in step.items()}

    def fetch(self, sets: Mapping[str, Points]) -> dict[str, Points]:
        """Return the sets, which are in this process already."""
        return dict(sets)

    def conclude(self, positions: Mapping[str, Integers]) -> dict[str, Indexed]:
        """Send every party its positions and return what it then says of its index."""
        return {name: self._parties[name].conclude(own) for name, own in positions.items()}


def run(
    job: Job,
    sources: Mapping[str, Any],
    budget: Budget,
    log: Log,
    *,
    place: InProcess | None = None,
    arrangement: Arrangement | None = None,
) -> Iterator[Aligning | Aligned | Plan | Reserved | Round | Lost | Made | Outcome]:
    """Load every party in this process, each under its owner's policy, then yield the plan, the rounds and the outcome.

    arrangement : policies, and the alignment, which is made first if the job asks for one.
    """
    place, arrangement = place or InProcess(), arrangement or Arrangement()
    there = {name: source for name, source in sources.items() if name not in log.left.values()}
    tasks = {name: job.for_party(name) for name in there}
    agreed = {name: consented(task, there[name], arrangement.policies.get(name)) for name, task in tasks.items()}
    threads, shards = cores_each(place.cores, 1), place.shards  # the parties compute one after the other
    indexes: Mapping[str, Index] = {}
    if job.id is not None:
        indexes = yield from _aligned(tasks, there, arrangement, threads)
    parties = {
        name: load(tasks[name], source, agreed[name], index=indexes.get(name), threads=threads, shards=shards)
        for name, source in there.items()
    }
    dealer = Dealing(job) if job.trust == "secure" else None
    flags = () if dealer is None else (ONE_PROCESS,)
    transport = InProcessTransport(parties) if dealer is None else InProcessTransport(parties, dealer)
    margins = whole if shards == 1 else partial(MarginShards, Here([ShardMargins() for _ in range(shards)]))
    for event in Coordinator(transport, margins=margins).stream(job, budget, log):
        yield replace(event, flags=flags) if flags and isinstance(event, Reserved) else event


def align_only(
    job: Job, sources: Mapping[str, Any], arrangement: Arrangement, *, place: InProcess
) -> Iterator[Aligning | Aligned]:
    """Yield the progress of an alignment, then its outcome. Every owner's policy is checked before its data are opened."""
    tasks = {name: job.for_party(name) for name in sources}
    for name, task in tasks.items():
        consented(task, sources[name], arrangement.policies.get(name))
    yield from _aligned(tasks, sources, arrangement, cores_each(place.cores, 1))


def _aligned(
    tasks: Mapping[str, PartyTask], sources: Mapping[str, Any], arrangement: Arrangement, cores: int
) -> Generator[Aligning | Aligned, None, dict[str, Index]]:
    alignments: dict[str, Alignment] = {}
    salt = new_salt()
    try:
        for name, source in sources.items():
            alignments[name] = Alignment(tasks[name], source, salt=salt, cores=cores, keeping=arrangement.keeping(name))
        yield (yield from align(InProcessAlignment(alignments), required=arrangement.required))
        return {name: alignment.settled() for name, alignment in alignments.items()}
    finally:
        for alignment in alignments.values():
            alignment.close()
