"""Memory, bytes and time of each node of a run, predicted from public facts and the constants of a machine.

`vfl doctor --measure` measures the constants and stores them in `vfl/machine.json` under $XDG_STATE_HOME or ~/.local/state.
The constants describe hardware and software, not data.

A `Link` gives upper bounds. A run in which no message is lost waits for at most `rounds` answers one after another. At most
`n_bytes` pass the coordinator's link, both directions together. The time assumes that all bytes pass one after another. The
estimate also assumes that each direction begins every round with TCP's initial window (RFC 6928) and doubles the window per
round trip. Computing and loading are left out.
"""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from vfl.base.arguments import require_count
from vfl.base.documents import read_json
from vfl.base.writing import write_whole
from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Constants of a machine for predicting costs. The presets were measured on two cores of a server of 2024 with Ray 2.60.

    cores : number of cores. memory : bytes.
    update_seconds : time of one coordinate update per record, on one core.
    release_seconds : time to charge one release, draw the noise, and write the log.
    warmup_seconds : extra processor time of the first queries to a process, which load compiled kernels.
    copy_bytes_a_second : bytes per second of memory traffic, read and written, while two vectors are added.
    trip_seconds : time of a Ray round trip without vectors. vector_bytes_a_second : bytes of vectors per second in such a round
        trip, through memory that the processes of one machine share (vfl.network.shards.lending).
    link_trip_seconds, link_bytes_a_second : the same time and rate between nodes. One machine alone cannot measure them.
    organisation_trip_seconds, organisation_bytes_a_second : the same time and rate between organisations, over gRPC and TLS,
        measured as processor time of both ends on one machine. A slow network takes longer.
    call_seconds : processor time of both ends for a call to a shard on the same machine.
    worker_bytes : memory of a worker process that holds only a few records.
    worker_seconds : processor time of a worker process until it has loaded its records.
    start_seconds : time to start Ray.
    measured : version of vfl that measured the machine; "" for the presets.
    """

    cores: int = 2
    memory: float = 16e9
    update_seconds: float = 2e-9
    release_seconds: float = 0.15e-3
    warmup_seconds: float = 25e-3
    copy_bytes_a_second: float = 6e9
    trip_seconds: float = 0.8e-3
    vector_bytes_a_second: float = 4e9
    link_trip_seconds: float = 1.4e-3
    link_bytes_a_second: float = 0.62e9
    organisation_trip_seconds: float = 3e-3
    organisation_bytes_a_second: float = 0.2e9
    call_seconds: float = 0.3e-3
    worker_bytes: float = 0.2e9
    worker_seconds: float = 1.9
    start_seconds: float = 3.0
    measured: str = ""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "measured" and (type(value) not in (int, float) or not 0 < value < math.inf):
                raise SpecificationError(f"machine: {name} must be a positive number, not {value!r}")

    @classmethod
    def here(cls) -> Self:
        """Return the constants that were measured on this machine; else the presets, with this machine's cores and memory."""
        try:
            kept: Any = read_json(stored_at())
            return cls(**kept)
        except (OSError, ValueError, TypeError, SpecificationError):
            # The file is missing, damaged or of another version; `vfl doctor --measure` writes a new file.
            return cls(cores=os.cpu_count() or 1, memory=memory_here())

    def store(self) -> Path:
        """Store the constants for later plans on this machine, and return the path of the file."""
        path = stored_at()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(asdict(self), indent=1) + "\n")
        return path


def stored_at() -> Path:
    """Return the path of the file with this machine's constants."""
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    # The XDG base directory specification says to ignore a relative path.
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "vfl" / "machine.json"


def memory_here() -> float:
    """Return this machine's memory in bytes."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return Machine().memory


DOUBLE = 8
PARTY_VECTORS = 6
"""Number of n-vectors that a party holds besides columns: labels, limits and bounds of residuals, margins and a copy, X_S Δ."""
PREDICTOR_VECTORS = 6
"""Number of n-vectors that the coordinator holds: margins, labels, norms, limits, a reply, and the new margins."""
STORE_VECTORS = 4
"""Number of n-vectors in the object store of a machine: labels, limits, margins and a reply."""
FIRST_READING = 2.0
"""Time to compute a column's norms and bounds in its first step, in units of one coordinate update."""
USABLE = 0.8
"""Share of a machine's memory that a run may use. Ray kills processes beyond 0.95, and other programs need some memory."""
MESSAGE_WARMUP = 3.0
"""Time of the first messages to a process, which load the message classes, in units of `Machine.warmup_seconds`."""
MESSAGE_CALLS = 4
"""Number of calls to each shard per message, besides one call per step: begin, end, margins before and margins after."""
INPROCESS, RAY, CLUSTER, FEDERATION = "inprocess", "ray", "cluster", "federation"
TRANSPORTS = (INPROCESS, RAY, CLUSTER, FEDERATION)
APART = (CLUSTER, FEDERATION)
"""Transports in which every participant has a machine of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Public sizes of a run.

    n_records : n. widths : {party: number of its columns}.
    updates, releases : number of coordinate updates and of releases in the whole run.
    exchanges : number of messages that send one vector to a party and one back. With K margins per record, it counts K times.
    messages : number of messages whose answer the coordinator awaits.
    received, sent : bytes of the vectors that all parties together receive and send.
    itemsize : bytes per stored value. entry : bytes per margin in a message.
    """

    n_records: int
    widths: Mapping[str, int]
    updates: int
    releases: int
    exchanges: float
    messages: int
    received: int
    sent: int
    itemsize: int = DOUBLE
    entry: int = DOUBLE


@dataclass(frozen=True, slots=True)
class NodeCost:
    """Cost of one node, or of one process on a shared machine.

    memory, received, sent : bytes. seconds : computing time. count : number of such nodes.
    """

    name: str
    memory: float
    received: float
    sent: float
    seconds: float
    count: int = 1


@dataclass(frozen=True, slots=True)
class Cost:
    """Predicted cost of a run. On an idle machine with measured constants, each number is within a factor of 2 of the truth.

    nodes : costs of the machines of a cluster, or of the processes on one machine.
    parts : {activity, such as 'messages': seconds in all rounds}. start : seconds before the first round, without loading data.
    """

    transport: str
    nodes: tuple[NodeCost, ...]
    parts: Mapping[str, float]
    start: float

    @property
    def seconds(self) -> float:
        """Return the time of all rounds: the sum of the parts, since the parties of a pass compute one after another."""
        return sum(self.parts.values())

    @property
    def memory(self) -> float:
        """Return the bytes that the most loaded machine needs. On one machine, these are the bytes of all processes."""
        if self.transport in APART:
            return max(node.memory for node in self.nodes)
        return sum(node.count * node.memory for node in self.nodes)


def cost_of(
    sizes: Sizes,
    machine: Machine,
    transport: str = INPROCESS,
    *,
    shards: int = 1,
    threads: int = 1,
    processes: int | None = None,
) -> Cost:
    """Return the predicted cost of a run.

    The time of a run is the sum of
        warmup    processes · MESSAGE_WARMUP · warmup_seconds, once; in one process warmup_seconds
        first     FIRST_READING · columns · n/S · update_seconds / threads: norms and bounds, once
        kernels   updates · n/S · update_seconds / threads
        vectors   exchanges · 16 n/S bytes (8 with precision = "float32"): margins to the party, X_S Δ back
        margins   exchanges · 24 n/S bytes of memory traffic to add X_S Δ
        messages  messages · trip_seconds
        calls     (releases + MESSAGE_CALLS · messages) · S · call_seconds, or · trip_seconds between machines, with shards
        releases  releases · release_seconds
    On one machine the shards share the machine's threads. Then replace n/S by n, and divide the times of vectors and margins
    by the smaller of S and threads.

    transport : 'inprocess'; 'ray', all processes on this machine; 'cluster', a machine per party and shard; or 'federation', a
        machine per organisation, which exchange vectors over gRPC and TLS.
    shards : S, number of ranges into which the rows of every party and the margins are divided. On a cluster, each range has a
        machine of its own.
    threads : number of threads that compute at the same time, for one party or several.
    processes : number of processes that the parties share on one machine; None means one per party.
    """
    if transport not in TRANSPORTS:
        raise SpecificationError(f"transport must be one of {', '.join(TRANSPORTS)}, not {transport!r}")
    for name, value in (("shards", shards), ("threads", threads), ("processes", processes or 1)):
        require_count(name, value)
    if shards > 1 and transport not in (RAY, CLUSTER):
        raise SpecificationError("only Ray has shards: give transport='ray' or 'cluster'")
    n, parties = sizes.n_records / shards, len(sizes.widths)
    vector, moved, total = DOUBLE * n, sizes.entry * n, sum(sizes.widths.values())
    trip, rate = machine.trip_seconds, machine.vector_bytes_a_second
    if transport == CLUSTER:
        trip, rate = machine.link_trip_seconds, machine.link_bytes_a_second
    elif transport == FEDERATION:
        trip, rate = machine.organisation_trip_seconds, machine.organisation_bytes_a_second
    apart = transport != INPROCESS
    workers = processes or parties
    # On one machine, shards share the machine's threads.
    together = shards if transport == RAY else 1
    started = workers + 1 if together == 1 else (parties + 1) * (together + 1)
    each = together / min(together, threads)
    calls = sizes.releases + MESSAGE_CALLS * sizes.messages if shards > 1 else 0
    parts = {
        "warmup": (started * MESSAGE_WARMUP if apart else 1.0) * machine.warmup_seconds,
        "first": FIRST_READING * total * n * together * machine.update_seconds / threads,
        "kernels": sizes.updates * n * together * machine.update_seconds / threads,
        "vectors": sizes.exchanges * 2.0 * moved * each / rate if apart else 0.0,
        "margins": sizes.exchanges * 3.0 * vector * each / machine.copy_bytes_a_second,
        "messages": sizes.messages * trip if apart else 0.0,
        "calls": calls * (machine.link_trip_seconds if transport == CLUSTER else shards * machine.call_seconds),
        "releases": sizes.releases * machine.release_seconds,
    }
    if not apart:
        memory = machine.worker_bytes + n * total * sizes.itemsize + (PARTY_VECTORS + PREDICTOR_VECTORS) * vector
        return Cost(transport, (NodeCost("this process", memory, 0.0, 0.0, sum(parts.values())),), parts, 0.0)
    nodes = []
    received, sent = sizes.received / shards, sizes.sent / shards
    for party, width in sizes.widths.items():
        own = n * width * sizes.itemsize + PARTY_VECTORS * vector
        base = machine.worker_bytes * (1.0 if transport in APART or shards > 1 else workers / parties)
        store = STORE_VECTORS * vector if transport == CLUSTER else 0.0
        computing = sum(parts[name] for name in ("first", "kernels", "releases")) * width / max(total, 1)
        name = party if shards == 1 else f"{party}, each of {shards} shards"
        nodes.append(NodeCost(name, base + own + store, received / parties, sent / parties, computing, together))
    if together > 1:
        nodes.append(NodeCost("main actors", machine.worker_bytes, 0.0, 0.0, 0.0, parties + 1))
    kept = machine.worker_bytes + (PREDICTOR_VECTORS + (0 if transport == FEDERATION else STORE_VECTORS)) * vector
    named = "coordinator" if shards == 1 else f"coordinator, each of {shards} shards"
    nodes.append(NodeCost(named, kept, sent + vector, received, parts["margins"], together))
    alone = machine.start_seconds + machine.worker_seconds * math.ceil(started / machine.cores)
    start = alone if transport == RAY else machine.worker_seconds
    return Cost(transport, tuple(nodes), parts, start)


def advice(sizes: Sizes, machine: Machine) -> tuple[str, ...]:
    """Return sentences that recommend where to run the job, if the job needs more memory than `machine` has; else ()."""
    room = USABLE * machine.memory
    here = cost_of(sizes, machine).memory
    if here <= room:
        return ()
    said = f"the job needs {size(here)} in one process, this machine has {size(machine.memory)}"
    largest = cost_of(sizes, machine, CLUSTER).memory
    if largest <= room:
        count = len(sizes.widths) + 1
        remedy = (
            f"run it on a Ray cluster of {count} such machines, one per party and one for the coordinator (--at); the "
            f"largest needs {size(largest)}"
        )
        return said, remedy
    if sizes.itemsize > 4 and (halved := cost_of(replace(sizes, itemsize=4), machine, CLUSTER).memory) <= room:
        return said, f"""with precision = "float32" and a machine per party the largest needs {size(halved)}"""
    shards = math.ceil((largest - machine.worker_bytes) / max(room - machine.worker_bytes, 1.0))
    remedy = (
        f"the largest party alone needs {size(largest)}: give it a machine with that memory, or spread the rows of every "
        f"party over {shards} such machines, [ray] shards = {shards}"
    )
    return said, remedy


def table(cost: Cost) -> str:
    """Return the cost as text: one line per node, then the parts of the time."""
    width = max(len(node.name) for node in cost.nodes)
    lines = [f"{cost.transport}: {duration(cost.seconds)} of rounds, {duration(cost.start)} to start"]
    lines += [
        f"  {node.name:<{width}}  memory {size(node.memory):>8}  in {size(node.received):>8}  out {size(node.sent):>8}"
        for node in cost.nodes
    ]
    shares = (f"{name} {duration(spent)}" for name, spent in cost.parts.items() if spent)
    return "\n".join((*lines, f"  time: {', '.join(shares)}"))


def size(count: float) -> str:
    """Return a number of bytes as text, with its unit."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"


def duration(seconds: float) -> str:
    """Return a number of seconds as text, with its unit."""
    for unit, factor in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2.0 * factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds:.2g} s"


WINDOW = 14_600
"""Bytes of TCP's initial window: ten segments."""
HEAD = 4096
"""Upper bound on the bytes of a message and its answer, without vectors and without numbers per coordinate."""
PER_COORDINATE = 128
"""Upper bound on the bytes per coordinate in a message and its answer: block, centre, scale, step, cap, noisy sum."""
JOINING = 12
"""Number of messages in sequence besides the rounds: keys, greeting, loading, ledgers, labels, and the notices at the end."""
_UNITS = {"k": 1e3, "M": 1e6, "G": 1e9}


@dataclass(frozen=True, slots=True)
class Link:
    """Network connection of each participant to the coordinator.

    bits_a_second : rate in bits per second. trip_seconds : time of a round trip.
    """

    bits_a_second: float
    trip_seconds: float

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the link that a text such as '100Mbit/20ms' describes. Raises SpecificationError for any other text."""
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMG])bit(?:/s)?\s*/\s*(\d+(?:\.\d+)?)\s*ms\s*", text)
        if found is None or not float(found[1]):
            raise SpecificationError(
                f"link must be a rate and the time of a round trip, such as 100Mbit/20ms, not {text!r}"
            )
        return cls(float(found[1]) * _UNITS[found[2]], float(found[3]) / 1e3)

    def __str__(self) -> str:
        return f"{self.bits_a_second / 1e6:g} Mbit/s, {self.trip_seconds * 1e3:g} ms"


@dataclass(frozen=True, slots=True)
class Transfer:
    """Upper bounds on one stage of a run: the number of messages in sequence, and the bytes over the coordinator's link."""

    rounds: int
    n_bytes: int

    def seconds(self, link: Link) -> float:
        """Return an upper bound on the time of the stage's messages and bytes, on a link that loses no message."""
        pipe = link.bits_a_second * link.trip_seconds / 8.0
        # The time per round is a concave function of its bytes (a logarithm), so equal rounds take longest.
        doublings = math.log2(1.0 + min(self.n_bytes / self.rounds, pipe) / WINDOW)
        return self.rounds * link.trip_seconds * (1.0 + 2.0 * doublings) + 8.0 * self.n_bytes / link.bits_a_second
