"""Function `join`: take part in a federation as a party or as the dealer. Also checks of the members' links, without data."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parties.consent import Policy
from vfl.base.arguments import require_count
from vfl.base.csv import Csv
from vfl.errors import FederationError, SpecificationError
from vfl.job.file import ADDRESS
from vfl.launch.sites.open_site import cores_each
from vfl.network.federation.file import identity_for, read_federation

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping

    from coordinator.federation.gathering import Link
    from vfl.network.federation.events import Event
    from vfl.network.federation.file import Federation
    from vfl.network.federation.identity import Identity

UNNAMED = ""
"""Name of the default source."""
STOPPING_SECONDS = 3.0
"""Time limit for the party to end after a request to stop. No charge is lost: charges are on disk before noise is drawn."""


@dataclass(frozen=True, slots=True)
class JoinArguments:
    """Checked arguments of `vfl join`. A dealer has neither sources nor a policy."""

    federation: Federation
    identity: Identity
    sources: Mapping[str, Any]
    policy: Path | None
    cores: int
    index: str | None
    shards: int = 1


def prepare(
    federation: str | os.PathLike[str],
    name: str,
    data: Any = None,
    *,
    policy: str | os.PathLike[str] | None = None,
    identity: str | os.PathLike[str] | None = None,
    num_cpus: int | None = None,
    index: str | os.PathLike[str] | None = None,
    shards: int = 1,
) -> JoinArguments:
    """Check the arguments of `join` and return them. Opens no data and no connection. Raises SpecificationError."""
    require_count("shards", shards)
    if num_cpus is not None:
        require_count("num_cpus", num_cpus)
    read = read_federation(federation)
    if name == read.coordinator.name:
        raise SpecificationError(
            f"{name!r} is the coordinator of the federation {read.name!r}, which starts jobs: vfl run JOB --at "
            f"{federation}. The parties that join are {', '.join(read.parties)}"
        )
    found = identity_for(read, federation, name, identity)
    if read.dealer is not None and name == read.dealer.name:
        for option, given in (("data", data), ("a policy", policy), ("an index", index), ("shards", shards > 1)):
            if given:
                raise SpecificationError(
                    f"{name!r} is the dealer of the federation {read.name!r}, which opens no data and releases no sum of them: "
                    f"leave {option} out"
                )
        return JoinArguments(read, found, {}, None, cores_each(num_cpus, 1), None)
    if data is None or policy is None or (isinstance(data, dict) and not data):
        missing = "policy" if policy is None else "data"
        raise SpecificationError(f"party {name!r} joins with its data under its owner's policy: give --{missing} FILE")
    path = Path(policy).expanduser().absolute()
    Policy.read(path)
    folder = None if index is None else str(Path(index).expanduser().absolute())
    named = data if isinstance(data, dict) else {UNNAMED: data}
    for name in named:
        if not isinstance(name, str):
            raise SpecificationError(f"the name of a source must be a string, not {name!r}")
    sources = {name: _absolute(source) for name, source in named.items()}
    return JoinArguments(read, found, sources, path, cores_each(num_cpus, 1), folder, shards)


def _absolute(source: Any) -> Any:
    """Return a source with an absolute path. Tables, functions and addresses are returned unchanged."""
    if isinstance(source, Csv):
        return replace(source, path=_absolute(source.path))
    if isinstance(source, Path) or (isinstance(source, str) and ADDRESS not in source):
        return str(Path(source).expanduser().absolute())
    return source


def join(
    federation: str | os.PathLike[str],
    name: str,
    data: Any = None,
    *,
    policy: str | os.PathLike[str] | None = None,
    identity: str | os.PathLike[str] | None = None,
    num_cpus: int | None = None,
    index: str | os.PathLike[str] | None = None,
    shards: int = 1,
    watch: Callable[[Event], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Take part in a federation as the member `name`, for any number of jobs, until Ctrl-C or until `stop` is set.

    Training, alignment, prediction and evaluation all check the owner's policy before they open any data. The party connects
    to the coordinator and opens no port. The party reconnects whenever the connection breaks. The federation's dealer joins
    without data and without a policy.

    federation : path of the federation file. data : a source as for `vfl.train`, or {name: source}. The coordinator chooses a
        source by its name, never by path; '' is the default source.
    policy : path of the owner's policy file (parties.consent). Across organisations it must accept trust = ["trusted"].
    identity : path of the party's key or certificate; None takes NAME.key and NAME.pem beside the federation file.
    num_cpus : number of cores for alignment and training; None takes all cores.
    index : folder for the index (positions of aligned records); None takes this user's folder (parties.alignment.index).
    shards : number of row ranges that a prediction or an evaluation reads one after another. The process holds the columns of
        one range at a time. The scores are the same to the bit. Databases and installed sources cannot be read in ranges.
    watch : function that is called with every event (vfl.network.federation.events), from another thread.

    Returns after a stop. Raises SpecificationError before connecting; FederationError if the coordinator refuses for good.
    """
    joining = prepare(
        federation, name, data, policy=policy, identity=identity, num_cpus=num_cpus, index=index, shards=shards
    )
    run(joining, watch, stop or threading.Event())


def run(joining: JoinArguments, watch: Callable[[Event], None] | None, stop: threading.Event) -> None:
    """Serve until `stop` is set; Ctrl-C sets it.

    The connection has a thread of its own, so that signals are handled at once.
    """
    from parties.joined import serve  # imports gRPC

    failures: list[BaseException] = []

    def work() -> None:
        try:
            serve(
                joining.identity,
                joining.federation,
                joining.sources,
                joining.policy,
                watch or (lambda _: None),
                stop,
                cores=joining.cores,
                indexes=joining.index,
                shards=joining.shards,
            )
        except BaseException as error:  # noqa: BLE001  # raised again in the caller's thread
            failures.append(error)

    worker = threading.Thread(target=work, name=f"vfl join {joining.identity.name}", daemon=True)
    worker.start()
    try:
        while worker.is_alive() and not stop.is_set():
            worker.join(0.2)
    except KeyboardInterrupt:
        stop.set()
        worker.join(STOPPING_SECONDS)
        raise
    worker.join(STOPPING_SECONDS)
    if failures:
        raise failures[0]


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

    why : reason why the party is not connected; '' if it is connected. skew : the party's clock minus the coordinator's clock,
        in seconds, ± half a round trip.
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
    from coordinator.federation.gathering import ConnectedMembers  # imports gRPC

    read = read_federation(federation)
    own = identity_for(read, federation, read.coordinator.name, identity)
    until = time.monotonic() + seconds
    with ConnectedMembers(read, own) as gathering:
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
    from vfl.network.wire.streams import obstacle

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
    from vfl.network.messages import Ping
    from vfl.network.wire.frames import Limits

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
