"""Federation site: the coordinator runs in this process, and the parties connect to it from their own organisations.

This process knows no party's path or secret. Jobs, queries and releases are the same as at the other sites.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from parties.dealing import DealerService
from parties.session import Credentials
from vfl.crypto.alignment import Aligned
from vfl.errors import VflError
from vfl.launch.metrics import meters
from vfl.launch.sites.open_site import check_parties, dealer_of
from vfl.network.messages import ALIGN, EVALUATE, PREDICT, TRAIN, About, Done, Finish, Offer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from coordinator.charging.budget import Budget
    from coordinator.federation.gathering import ConnectedMembers, Link
    from coordinator.federation.transport import FederationTransport
    from coordinator.rounds import Log
    from vfl.crypto.alignment import AlignmentProgress
    from vfl.job import Job
    from vfl.launch.sites.open_site import Application, ApplyEvent, Arrangement, Organisations, RunEvent

LOAD_SECONDS = 3600.0
FINISH_SECONDS = 10.0


def run(
    job: Job, sources: Mapping[str, str], budget: Budget, log: Log, *, site: Organisations, arrangement: Arrangement
) -> Iterator[RunEvent]:
    """Wait for the parties, offer them the job, and let each load its source. Yield the plan, the rounds and the outcome.

    sources : {party: name that the owner gave its source}; '' is the party's default source.
    """
    from coordinator.coordinator import Coordinator, Outcome
    from coordinator.telemetry import Telemetry
    from coordinator.transport import expected

    dealer = dealer_of(job, site.federation)
    there = tuple(party for party in job.partition.parties if party not in log.left.values())
    members = there if dealer is None else (*there, dealer)
    offer = _offer_of(job, TRAIN, budget.run, there, sources, arrangement)
    dealing = None
    if job.dealer and dealer is None:  # the coordinator's own dealer signs with the coordinator's identity
        certificates = {name: member.certificate_pem for name, member in site.federation.parties.items()}
        credentials = Credentials((site.federation.digest, budget.run), site.identity.key_pem, certificates)
        dealing = DealerService(job, credentials)

    def parts(n_records: int) -> tuple[int, int]:
        division = job.subsamples(n_records)
        split = job.split if division is None else division[0]
        return (n_records, 0) if split is None else split.sizes(n_records)

    def accept(link: Link) -> None:
        """Offer the job again to a party that has reconnected."""
        expected(link.call(offer(link.party, True)).wait(site.faults.answer_timeout_s)[0], Done, link.party)

    options = {
        "offer": accept,
        "parts": lru_cache(parts),
        "load_seconds": LOAD_SECONDS,
        "dealer": dealing or dealer,
        "targets": job.targets,
    }
    with _working(site, there, members, **options) as (transport, complete):
        transport.call({member: offer(member, False) for member in members}, Done)
        if job.id is not None:
            yield from _aligned(job, transport, arrangement)
        telemetry = Telemetry(job.name, budget.run, meters(), transport.traffic)
        for event in Coordinator(transport, faults=site.faults).stream(job, budget, log):
            telemetry(event)
            if isinstance(event, Outcome):
                complete()
            yield event


def align_only(
    job: Job, sources: Mapping[str, str], arrangement: Arrangement, *, site: Organisations
) -> Iterator[AlignmentProgress | Aligned]:
    """Wait for the parties. Yield the progress of an alignment, then its outcome."""
    parties = tuple(job.partition.parties)
    offer = _offer_of(job, ALIGN, uuid.uuid4().hex, parties, sources, arrangement)
    with _working(site, parties) as (transport, complete):
        transport.call({party: offer(party, False) for party in parties}, Done)
        for event in _aligned(job, transport, arrangement):
            if isinstance(event, Aligned):
                complete()
            yield event


def apply(asked: Application, *, site: Organisations) -> Iterator[ApplyEvent]:
    """Have every party apply its part of a model to its own source (vfl.launch.sites.open_site.module_of)."""
    from coordinator.prediction import apply as applied
    from parties.alignment.reading import all_hold_ids

    parts, run, purpose = asked.parts, uuid.uuid4().hex, PREDICT if asked.w is None else EVALUATE
    first = next(iter(parts.values()))
    job, cut = first.job, asked.cut(first.threshold)
    with _working(site, tuple(parts)) as (transport, complete):
        offers = {
            party: Offer(purpose, run, part.to_json(), part.digest, tuple(parts), asked.given.get(party, ""))
            for party, part in parts.items()
        }
        about = transport.call(offers, About)
        ids = bool(job.ids) and all_hold_ids(job.ids, {name: said.ids for name, said in about.items()})
        found = yield from applied(transport, job, aligns=ids, ids=ids, threshold=cut, w=asked.w)
        complete()
        yield found


def _offer_of(
    job: Job, purpose: str, run: str, parties: tuple[str, ...], sources: Mapping[str, str], arrangement: Arrangement
) -> Callable[[str, bool], Offer]:
    """Return a function offer(party, again). `again` is True if the party may have started the run before."""
    text, resumed = json.dumps(job.to_dict(), ensure_ascii=False), arrangement.resumed
    kept = {"keeps": arrangement.run or "", "later": arrangement.later, "last": arrangement.last}
    first = Offer(purpose, run, text, job.digest, parties, resumed=resumed, again=arrangement.again, **kept)  # type: ignore[arg-type]
    return lambda party, again: replace(first, source=sources.get(party, ""), resumed=resumed or again)


@contextlib.contextmanager
def _working(
    site: Organisations, parties: tuple[str, ...], members: tuple[str, ...] = (), **options: Any
) -> Iterator[tuple[FederationTransport, Callable[[], None]]]:
    """Wait for the members; yield the transport to the parties, and the function that `offering` yields.

    members : members that take part; () for the parties alone. options : options of the transport.
    """
    from coordinator.federation.gathering import ConnectedMembers
    from coordinator.federation.transport import FederationTransport

    check_parties(parties, site.federation)
    with ConnectedMembers(site.federation, site.identity, listen=site.listen) as gathering:
        gathering.wait(members or parties, site.gather_seconds)
        with offering(gathering, members or parties) as complete:
            yield FederationTransport(gathering, parties, timeout=site.faults.answer_timeout_s, **options), complete


@contextlib.contextmanager
def offering(gathering: ConnectedMembers, parties: tuple[str, ...]) -> Iterator[Callable[[], None]]:
    """Yield a function that reports the end of the job to the parties.

    If the context ends and the function was not called, send the reason to the connected parties.
    """
    ended = False

    def end(why: str = "") -> None:
        nonlocal ended
        links = {} if ended else gathering.connected()
        ended = True
        for party, link in links.items():
            if party in parties:
                with contextlib.suppress(VflError):
                    link.call(Finish(why)).wait(FINISH_SECONDS)

    why = "the coordinator ended it"
    try:
        yield end
    except Exception as error:
        # Messages of other packages may quote values, and the parties' owners read and log this message.
        why = (str(error) if isinstance(error, VflError) else "") or type(error).__name__
        raise
    finally:
        end(why)


def _aligned(
    job: Job, transport: FederationTransport, arrangement: Arrangement
) -> Iterator[AlignmentProgress | Aligned]:
    from coordinator.alignment import align

    transport.exchange_keys(salted=True)
    base = job.base(transport.parties)
    yield (yield from align(transport, required=arrangement.required, base=base))
