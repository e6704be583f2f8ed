"""Federation engine: the coordinator runs in this process, and the parties connect to it from their own organisations.

This process knows no party's path or secret. Jobs, queries and releases are the same as with the other engines.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from parties.dealing import Dealing
from parties.session import Credentials
from vfl.alignment import Aligned
from vfl.errors import VflError
from vfl.job.plain import encode
from vfl.launch.engines.place import check_parties, dealer_of
from vfl.launch.metrics import meters
from vfl.messages.joining import ALIGN, EVALUATE, PREDICT, TRAIN, About, Done, Finish, Offer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from coordinator.charging.budget import Budget
    from coordinator.federation.gathering import Gathering
    from coordinator.federation.link import Link
    from coordinator.federation.transport import FederationTransport
    from coordinator.rounds import Log
    from vfl.alignment import Aligning
    from vfl.job import Job
    from vfl.launch.engines.arrangement import Application, ApplyEvent, Arrangement, RunEvent
    from vfl.launch.engines.place import Organisations

LOAD_SECONDS = 3600.0
FINISH_SECONDS = 10.0


def run(
    job: Job, sources: Mapping[str, str], budget: Budget, log: Log, *, place: Organisations, arrangement: Arrangement
) -> Iterator[RunEvent]:
    """Wait for the parties, offer them the job, and let each load its source. Yield the plan, the rounds and the outcome.

    sources : {party: name that the owner gave its source}; '' is the party's default source.
    """
    from coordinator.coordinator import Coordinator, Outcome
    from coordinator.telemetry import Telemetry

    dealer = dealer_of(job, place.federation)
    there = tuple(party for party in job.partition.parties if party not in log.left.values())
    members = there if dealer is None else (*there, dealer)
    offer = _offer_of(job, TRAIN, budget.run, there, sources, arrangement)
    options = {
        "offer": lambda link: _accepted(link, offer, place.faults.answer_seconds),
        "parts": lru_cache(lambda n: _parts(job, n)),
        "load_seconds": LOAD_SECONDS,
        "dealer": dealer if job.secure is None or dealer is not None else _own_dealer(job, place, budget.run),
        "targets": job.targets,
    }
    with _working(place, there, members, **options) as (transport, complete):
        transport.call({member: offer(member, False) for member in members}, Done)
        if job.id is not None:
            yield from _aligned(transport, arrangement)
        telemetry = Telemetry(job.name, budget.run, meters(), transport.traffic)
        for event in Coordinator(transport, faults=place.faults).stream(job, budget, log):
            telemetry(event)
            if isinstance(event, Outcome):
                complete()
            yield event


def _own_dealer(job: Job, place: Organisations, run: str) -> Dealing:
    """Return the coordinator's own dealer, which signs with the coordinator's identity."""
    certificates = {name: member.certificate_pem for name, member in place.federation.parties.items()}
    return Dealing(job, Credentials((place.federation.digest, run), place.identity.key_pem, certificates))


def align_only(
    job: Job, sources: Mapping[str, str], arrangement: Arrangement, *, place: Organisations
) -> Iterator[Aligning | Aligned]:
    """Wait for the parties. Yield the progress of an alignment, then its outcome."""
    parties = tuple(job.partition.parties)
    offer = _offer_of(job, ALIGN, uuid.uuid4().hex, parties, sources, arrangement)
    with _working(place, parties) as (transport, complete):
        transport.call({party: offer(party, False) for party in parties}, Done)
        for event in _aligned(transport, arrangement):
            if isinstance(event, Aligned):
                complete()
            yield event


def apply(asked: Application, *, place: Organisations) -> Iterator[ApplyEvent]:
    """Let every party apply its part of a model to the party's own source, as vfl.launch.engines.dispatch.apply does."""
    from coordinator.prediction import apply as applied
    from parties.alignment.reading import all_hold_ids

    parts, run, purpose = asked.parts, uuid.uuid4().hex, PREDICT if asked.w is None else EVALUATE
    first = next(iter(parts.values()))
    job, cut = first.job, asked.cut(first.threshold)
    with _working(place, tuple(parts)) as (transport, complete):
        offers = {
            party: Offer(purpose, run, part.to_json(), part.digest, tuple(parts), asked.given.get(party, ""))
            for party, part in parts.items()
        }
        about = transport.call(offers, About)
        ids = bool(job.ids) and all_hold_ids(job.ids, {name: said.ids for name, said in about.items()})
        found = yield from applied(transport, job, aligns=ids, ids=ids, threshold=cut, w=asked.w)
        complete()
        yield found


def _parts(job: Job, n_records: int) -> tuple[int, int]:
    subsamples = job.subsamples(n_records)
    if subsamples is not None:
        return subsamples.size, n_records - subsamples.size
    return (n_records, 0) if job.split is None else job.split.sizes(n_records)


def _offer_of(
    job: Job,
    purpose: str,
    run: str,
    parties: tuple[str, ...],
    sources: Mapping[str, str],
    arrangement: Arrangement,
) -> Callable[[str, bool], Offer]:
    """Return a function offer(party, again). `again` is True if the party may have started the run before."""
    text, resumed = json.dumps(encode(job), ensure_ascii=False), arrangement.resumed
    kept = {"keeps": arrangement.run or "", "later": arrangement.later, "last": arrangement.last}
    first = Offer(purpose, run, text, job.digest, parties, resumed=resumed, again=arrangement.again, **kept)  # type: ignore[arg-type]
    return lambda party, again: replace(first, source=sources.get(party, ""), resumed=resumed or again)


def _accepted(link: Link, offer: Callable[[str, bool], Offer], seconds: float) -> None:
    """Offer the job again to a party that has reconnected."""
    from coordinator.transport import expected

    expected(link.call(offer(link.party, True)).wait(seconds)[0], Done, link.party)


@contextlib.contextmanager
def _working(
    place: Organisations, parties: tuple[str, ...], members: tuple[str, ...] = (), **options: Any
) -> Iterator[tuple[FederationTransport, Callable[[], None]]]:
    """Wait for the members of the federation. Yield the transport to the parties, and the function that `_offering` yields.

    members : members that take part; () for the parties alone. options : options of the transport.
    """
    from coordinator.federation.gathering import Gathering
    from coordinator.federation.transport import FederationTransport

    check_parties(parties, place.federation)
    with Gathering(place.federation, place.identity, listen=place.listen) as gathering:
        gathering.wait(members or parties, place.gather_seconds)
        with _offering(gathering, members or parties) as complete:
            yield FederationTransport(gathering, parties, timeout=place.faults.answer_seconds, **options), complete


@contextlib.contextmanager
def _offering(gathering: Gathering, parties: tuple[str, ...]) -> Iterator[Callable[[], None]]:
    """Yield a function that tells the parties that the job is finished.

    If the context ends and the function was not called, send the reason to the connected parties.
    """
    open_still = True

    def complete() -> None:
        nonlocal open_still
        open_still = False
        _finish(gathering, parties, "")

    why = "the coordinator ended it"
    try:
        yield complete
    except Exception as error:
        # Messages of other packages may quote values, and the parties' owners read and log this message.
        why = (str(error) if isinstance(error, VflError) else "") or type(error).__name__
        raise
    finally:
        if open_still:
            _finish(gathering, parties, why)


def _finish(gathering: Gathering, parties: tuple[str, ...], why: str) -> None:
    for party, link in gathering.connected().items():
        if party in parties:
            with contextlib.suppress(VflError):
                link.call(Finish(why)).wait(FINISH_SECONDS)


def _aligned(transport: FederationTransport, arrangement: Arrangement) -> Iterator[Aligning | Aligned]:
    from coordinator.alignment import align

    transport.exchange_keys(salted=True)
    yield (yield from align(transport, required=arrangement.required))
