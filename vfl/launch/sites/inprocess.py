"""Site in this process, for debugging, estimators and tests. Messages and their arrays are passed as they are."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from coordinator.alignment import align
from coordinator.charging.budget import Reserved
from coordinator.coordinator import Coordinator
from coordinator.states.shards import LinearPredictorShards, ShardLinearPredictors, whole
from coordinator.transport import Call, MessageTransport, PendingCall
from parties.alignment.reading import joined_rows
from parties.dealing import DealerService
from parties.loading import consented, load
from parties.prediction import NewRows, PartGreeting, agreed, all_permitted, part_of
from parties.services.aligning import AlignmentService
from parties.services.predicting import PredictionService
from parties.services.service import Service
from parties.services.training import PartyService
from vfl.crypto.alignment import Aligned, IndexRules
from vfl.crypto.psi import new_salt
from vfl.errors import FederationError, PartyLost
from vfl.launch.sites.open_site import Arrangement, cores_each
from vfl.network.shards import LocalGroup
from vfl.secure.roles import DEALER
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from coordinator.charging.budget import Budget
    from coordinator.rounds import Log
    from parties.alignment.index import Index
    from parties.party import Party
    from vfl.crypto.alignment import AlignmentProgress
    from vfl.job import Job
    from vfl.job.job import PartyTask
    from vfl.job.site import InProcess
    from vfl.launch.sites.open_site import Application, ApplyEvent, RunEvent
    from vfl.network.messages import Greeting


ONE_PROCESS = (
    "trust='secure' in one process, which held the columns of all parties: a simulation that protects no participant from "
    "another"
)


class InProcessTransport(MessageTransport):
    """Transport that calls participants one after the other in this process. Errors keep their tracebacks.

    parties : {party: a loaded party, or a service (parties.services)}. dealer : dealer of the masks of a run on shares.
    """

    def __init__(self, parties: Mapping[str, Party | Service], dealer: DealerService | None = None) -> None:
        super().__init__(parties)
        self._parties = parties
        self._dealer = dealer

    def _post(self, call: Call) -> PendingCall:
        """Call a participant. Coordinator and participant share the arrays of messages, and neither writes to them."""
        service = self._service(call.to)
        if call.steps:
            return PendingCall(call.to, service.stream(call.message, call.vectors))
        answer, sent = service.answer(call.message, call.vectors)
        return PendingCall(call.to, (answer, {}), sent) if call.passed else PendingCall(call.to, (answer, sent))

    def collect(self, posted: Sequence[PendingCall]) -> list[Any]:
        """Return the replies, which are already in this process."""
        return [own.answer for own in posted]

    def follow(self, posted: Sequence[PendingCall]) -> Generator[tuple[str, int], None, list[Any]]:
        """Let the participants work one after the other; yield the progress of each participant."""
        answers = []
        for own in posted:
            while True:
                try:
                    yield own.to, next(own.answer)
                except StopIteration as end:
                    answers.append(end.value)
                    break
        return answers

    def revive(self, party: str, seconds: float) -> Greeting:
        """Raise PartyLost: parties share the coordinator's process, so no party can be restarted alone."""
        raise PartyLost(f"party {party!r} is lost, and this process cannot restart parties", party)

    def _service(self, to: str) -> Service:
        participant = self._dealer if to == DEALER else self._parties[to]
        if participant is None:
            raise FederationError("a run on shares has no dealer")
        return participant if isinstance(participant, Service) else PartyService(participant)


def run(
    job: Job, sources: Mapping[str, Any], budget: Budget, log: Log, *, site: InProcess, arrangement: Arrangement
) -> Iterator[RunEvent]:
    """Load every party in this process, under its owner's policy. Then yield the plan, the rounds and the outcome."""
    there = {name: source for name, source in sources.items() if name not in log.left.values()}
    tasks = {name: job.for_party(name) for name in there}
    begins = not (budget.resumed or budget.sealed)  # the caller checks all trials of a sealed run together
    agreed = {
        name: consented(task, there[name], arrangement.policies.get(name), begins=begins)
        for name, task in tasks.items()
    }
    threads, shards = cores_each(site.num_cpus, 1), site.shards  # the parties compute one after the other
    indexes: Mapping[str, Index] = {}
    if job.id is not None:
        indexes = yield from _aligned(tasks, there, arrangement, threads)
    parties = {
        name: load(tasks[name], source, agreed[name], index=indexes.get(name), threads=threads, shards=shards)
        for name, source in there.items()
    }
    # The dealer may reuse its memory, since it deals again only after the words that it dealt have been read.
    dealer = DealerService(job, recycles=True) if job.dealer else None
    flags = () if job.secure is None else (ONE_PROCESS,)
    transport = InProcessTransport(parties) if dealer is None else InProcessTransport(parties, dealer)
    group = LocalGroup([ShardLinearPredictors() for _ in range(shards)])
    margins = whole if shards == 1 else partial(LinearPredictorShards, group)
    for event in Coordinator(transport, margins=margins).stream(job, budget, log):
        yield replace(event, flags=flags) if flags and isinstance(event, Reserved) else event


def align_only(
    job: Job, sources: Mapping[str, Any], arrangement: Arrangement, *, site: InProcess
) -> Iterator[AlignmentProgress | Aligned]:
    """Yield the progress of an alignment, then its outcome. An owner's policy is checked before the owner's data are opened."""
    tasks = {name: job.for_party(name) for name in sources}
    for name, task in tasks.items():
        consented(task, sources[name], arrangement.policies.get(name), begins=True)
    yield from _aligned(tasks, sources, arrangement, cores_each(site.num_cpus, 1))


def _aligned(
    tasks: Mapping[str, PartyTask], sources: Mapping[str, Any], arrangement: Arrangement, cores: int
) -> Generator[AlignmentProgress | Aligned, None, dict[str, Index]]:
    salt, parties = new_salt(), tuple(sources)
    alignments = {
        name: AlignmentService(tasks[name], source, arrangement.keeping(name), parties=parties, salt=salt, cores=cores)
        for name, source in sources.items()
    }
    try:
        base = next(iter(tasks.values())).job.base(parties)
        yield (yield from align(InProcessTransport(alignments), required=arrangement.required, base=base))
        return {name: alignment.concluded() for name, alignment in alignments.items()}
    finally:
        for alignment in alignments.values():
            alignment.close()


def apply(asked: Application, *, site: InProcess) -> Iterator[ApplyEvent]:
    """Apply a model in this process (vfl.launch.sites.open_site.module_of).

    If the sources have ids, this process joins the sources in the clear. The first event states their numbers of rows.
    """
    from coordinator.prediction import apply as applied

    read = {party: part_of(part, party) for party, part in asked.parts.items()}
    greetings = {
        p: PartGreeting(__version__, part.model, part.job, ids=False, threshold=part.threshold)
        for p, part in read.items()
    }
    agreement = agreed(greetings)
    job = agreement.job
    parties = tuple(party for party in job.partition.parties if party in read)
    first = job.partition.receiver(parties)
    measured = asked.w is not None
    permissions = all_permitted(read, asked.given, asked.policies, receiver=first, measured=measured)
    opened = {party: source for party, source in asked.opened().items() if party in read}
    rows, joined = joined_rows(job, opened, first=first, common=True)
    services = {
        party: PredictionService(
            read[party],
            opened[party],
            parties=parties,
            permission=permissions[party],
            measured=measured,
            aligning=AlignmentService(job.for_party(party).features, opened[party], IndexRules(), parties=parties),
            rows=LocalGroup([NewRows(read[party], labelled=measured and party == first) for _ in range(site.shards)]),
            joined=rows.get(party),
        )
        for party in parties
    }
    if joined is not None:
        yield joined
    transport, cut = InProcessTransport(services), asked.cut(agreement.threshold)
    yield (yield from applied(transport, job, aligns=False, ids=bool(rows), threshold=cut, w=asked.w))
