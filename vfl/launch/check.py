"""Checks of a federation's connections: version, clock, round trip and throughput of each member. The checks touch no data."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vfl.errors import FederationError
from vfl.federation.file import identity_for, read_federation

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from coordinator.federation.link import Link

PINGS = 5
"""Number of round trips to measure. The fastest one counts, since slower ones include other delays."""
PAYLOAD = 8 << 20
"""Size in bytes of the answer by which throughput is measured. The answer takes half a second at 128 Mb/s."""
SKEW_SECONDS = 60.0
"""Clock difference above which the user is warned, since dates in certificates and ledgers would be wrong."""
ANSWER_SECONDS = 60.0
PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReport:
    """Report on one party's connection, measured by the coordinator.

    why : reason why the party is not connected; '' if it is connected. skew : the party's clock minus the coordinator's
    clock, in seconds, ± half a round trip.
    round_trip : seconds. throughput : bytes per second from the party to the coordinator.
    """

    party: str
    why: str = ""
    version: str = ""
    skew: float = 0.0
    round_trip: float = 0.0
    throughput: float = 0.0


def check_links(
    federation: str | os.PathLike[str], *, identity: str | os.PathLike[str] | None = None, seconds: float = 30.0
) -> Iterator[LinkReport]:
    """Listen as the coordinator. Yield a report on each party, in order, once the party connects or `seconds` have passed."""
    from coordinator.federation.gathering import Gathering  # imports gRPC

    read = read_federation(federation)
    own = identity_for(read, federation, read.coordinator.name, identity)
    until = time.monotonic() + seconds
    with Gathering(read, own) as gathering:
        for party in read.joining:
            try:
                yield _report(party, gathering.link(party, max(until - time.monotonic(), 0.0)))
            except FederationError:
                yield LinkReport(party=party, why="it did not connect: it runs vfl join")


def check_coordinator(
    federation: str | os.PathLike[str],
    name: str,
    *,
    identity: str | os.PathLike[str] | None = None,
    seconds: float = 30.0,
) -> float:
    """Return the seconds until party `name` and the coordinator accepted each other's key.

    Raises FederationError if the coordinator does not answer in time, or shows a key that is not the pinned one.
    """
    from vfl.wire.streams import obstacle

    read = read_federation(federation)
    own = identity_for(read, federation, name, identity)
    until = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        found = obstacle(read, own)
        if found is None:
            return time.monotonic() - began
        if found.refused or time.monotonic() >= until:
            raise found
        time.sleep(min(PAUSE_SECONDS, max(until - time.monotonic(), 0.0)))


def _report(party: str, link: Link) -> LinkReport:
    from vfl.messages.joining import Ping
    from vfl.wire.frames import Limits

    try:
        trips, skews = [], []
        for _ in range(PINGS):
            began, clock = time.monotonic(), time.time()
            pong, _ = link.call(Ping(clock)).wait(ANSWER_SECONDS)
            trips.append(time.monotonic() - began)
            skews.append(pong.seconds - clock - trips[-1] / 2)
        began = time.monotonic()
        link.call(Ping(time.time(), PAYLOAD), limits=Limits(1 << 16, {"payload": PAYLOAD})).wait(ANSWER_SECONDS)
        taken = time.monotonic() - began - min(trips)
    except FederationError as error:
        return LinkReport(party=party, why=str(error), version=link.version)
    best = trips.index(min(trips))
    return LinkReport(
        party=party,
        version=pong.version,
        skew=skews[best],
        round_trip=trips[best],
        throughput=PAYLOAD / max(taken, 1e-6),
    )
