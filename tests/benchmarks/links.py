"""Cost of a visit across organisations against a bare TLS stream that carries the same bytes, in one run.

    python -m tests.benchmarks.links [--runs N] [--records N ...]
    python -m tests.benchmarks.links --delay 20 --rate 1000 [--records N ...]
    python -m tests.benchmarks.links --memory

A visit sends margins, (n,) float64, to a party and gets an n-vector back; the party computes nothing. Labels have travelled
before. The bare stream is Python's `ssl` over TCP, TLS 1.3 with the same certificates, written and read as whole vectors. Both
parties are processes of their own, and the two take turns. The aim is a ratio of at most 1.3.

With --delay (milliseconds for a round trip) and --rate (megabits per second), both streams pass through a relay. `used` is then
the part of the rate that visits use: 16 n bytes / rate / (seconds of a visit − delay).

With --memory it prints by how many bytes the coordinator's process grows between visit 1,000 and visit 10,000.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import socket
import ssl
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from coordinator.federation.gathering import ConnectedMembers
from coordinator.federation.transport import FederationTransport
from parties.joined.serving import _Joining
from tests.benchmarks import relay as relaying
from tests.benchmarks.rounds import resident
from tests.coordinator.organisations import federation
from tests.ports import free_address
from vfl.base.problem import Block
from vfl.network.federation.file import identity_for, read_federation
from vfl.network.kinds import from_plain
from vfl.network.messages import Greeting, Load
from vfl.network.wire.frames import Limits, as_vector
from vfl.privacy.events import ReleaseKey
from vfl.queries import Forward, Query, Records, Reply
from vfl.version import __version__


class Echo:
    """A desk that sends margins back."""

    party = "bank"
    in_flight = ()
    limits = Limits(1 << 24, dict.fromkeys(("margins", "labels"), 1 << 30))

    def due(self, plain):
        return self.limits.vectors

    def __init__(self, n: int) -> None:
        self.n, self.held = n, {}

    def connected(self, process: bytes) -> None:
        self.held.clear()

    def answer(self, plain, vectors, progress):
        if type(plain[0]) is tuple:
            from_plain(plain[0], Query)
            from_plain(plain[1], ReleaseKey)
            return Reply(), {"vector": as_vector(vectors["margins"])}
        from_plain(plain, Load)
        return Greeting(__version__, self.n), {}


def party(folder: Path, n: int, stop) -> None:
    """Join as the party that echoes."""
    read = read_federation(folder / "credit.toml")
    own = identity_for(read, folder / "credit.toml", "bank")
    ended = threading.Event()
    threading.Thread(target=lambda: (stop.wait(), ended.set()), daemon=True).start()
    _Joining(read, own, Echo(n), lambda _: None, ended, 0.1).until_stopped()


def bare(folder: Path, address: str, n: int) -> None:
    """Echo vectors over a bare TLS stream."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version, context.check_hostname = ssl.TLSVersion.TLSv1_3, False
    context.load_verify_locations(folder / "hub.pem")
    context.load_cert_chain(folder / "bank.pem", folder / "bank.key")
    host, _, port = address.rpartition(":")
    with context.wrap_socket(connected(host, int(port))) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        vector = memoryview(np.empty(n)).cast("B")
        while received(stream, vector):
            stream.sendall(vector)


def connected(host: str, port: int) -> socket.socket:
    """Connect once somebody listens."""
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:
            time.sleep(0.05)


def received(stream: ssl.SSLSocket, vector: memoryview) -> bool:
    """Fill the vector; False at the end of the stream."""
    got = 0
    while got < len(vector):
        size = stream.recv_into(vector[got:])
        if not size:
            return False
        got += size
    return True


@contextlib.contextmanager
def link(path: relaying.Path | None):
    """Yield two addresses, to listen at and to connect to, with the emulated link between them; equal without one."""
    address = free_address()
    if path is None:
        yield address, address
        return
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Queue()
    worker = spawn.Process(target=relaying.relay, args=(path, int(address.rpartition(":")[2]), ready), daemon=True)
    worker.start()
    try:
        yield address, f"127.0.0.1:{ready.get(timeout=30)}"
    finally:
        worker.terminate()
        worker.join()


def measured(n: int, runs: int, path: relaying.Path | None = None) -> tuple[list[float], list[float]]:
    """Return the seconds of visits, and of bare round trips, taken in turn, over the emulated link if one is given."""
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as name,
        link(path) as (listen, hub),
        link(path) as (address, beyond),
        federation(Path(name), ("bank",), address=hub) as joined,
    ):
        folder, stop = Path(name), spawn.Event()
        workers = [
            spawn.Process(target=party, args=(folder, n, stop), daemon=True),
            spawn.Process(target=bare, args=(folder, beyond, n), daemon=True),
        ]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version, context.verify_mode = ssl.TLSVersion.TLSv1_3, ssl.CERT_REQUIRED
        context.load_cert_chain(folder / "hub.pem", folder / "hub.key")
        context.load_verify_locations(folder / "bank.pem")
        host, _, port = address.rpartition(":")
        with (
            socket.create_server((host, int(port))) as server,
            ConnectedMembers(joined.federation, joined.identities["hub"], listen=listen) as gathering,
        ):
            for worker in workers:
                worker.start()
            with context.wrap_socket(server.accept()[0], server_side=True) as stream:
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                gathering.wait(["bank"], 60.0)
                times = _turns(gathering, stream, n, runs)
        stop.set()
        for worker in workers:
            worker.join(10)
        return times


def _transport(gathering: ConnectedMembers) -> FederationTransport:
    return FederationTransport(
        gathering, ("bank",), offer=lambda _: None, parts=lambda n: (n, 0), timeout=60.0, load_seconds=60.0
    )


def _query() -> Forward:
    return Forward({"bank": (Block(0, "bank", 0, 4, 0), np.zeros(4))})


def _turns(gathering: ConnectedMembers, stream: ssl.SSLSocket, n: int, runs: int) -> tuple[list[float], list[float]]:
    transport, query = _transport(gathering), _query()
    transport.greet()
    rng = np.random.default_rng(0)
    margins, labels, back = rng.normal(size=n), rng.normal(size=n), np.empty(n)
    visits, trips = [], []
    for k in range(runs + 3):
        start = time.perf_counter()
        replies = transport.ask({"bank": query}, Records(margins=margins, labels=labels), ReleaseKey(k))
        visits.append(time.perf_counter() - start)
        start = time.perf_counter()
        stream.sendall(memoryview(margins).cast("B"))
        received(stream, memoryview(back).cast("B"))
        trips.append(time.perf_counter() - start)
        assert np.array_equal(replies["bank"].vector, back)
    return visits[3:], trips[3:]


def growth(visits: int = 10_000, n: int = 1_000) -> int:
    """Return by how many bytes this process grows after a tenth of so many visits."""
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as name,
        federation(Path(name), ("bank",)) as joined,
        ConnectedMembers(joined.federation, joined.identities["hub"]) as gathering,
    ):
        stop = spawn.Event()
        worker = spawn.Process(target=party, args=(Path(name), n, stop), daemon=True)
        worker.start()
        gathering.wait(["bank"], 60.0)
        transport, query, early = _transport(gathering), _query(), 0
        transport.greet()
        margins = np.zeros(n)
        for k in range(visits):
            transport.ask({"bank": query}, Records(margins=margins, labels=margins), ReleaseKey(k))
            if k == visits // 10:
                early = resident()
        grown = resident() - early
        stop.set()
        worker.join(10)
    return grown


def main() -> None:
    """Print one line of JSON per n."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--records", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--rate", type=float)
    given = parser.parse_args()
    delay = given.delay / 1e3
    path = relaying.Path(delay / 2, given.rate * 1e6 / 8) if given.rate else None
    if given.memory:
        print(json.dumps({"bytes_grown": growth()}))
        return
    for n in given.records:
        visits, trips = measured(n, given.runs, path)
        ratio = statistics.median(visits) / statistics.median(trips)
        print(
            json.dumps(
                {
                    "records": n,
                    "visit_ms": round(1e3 * statistics.median(visits), 3),
                    "bare_ms": round(1e3 * statistics.median(trips), 3),
                    "ratio": round(ratio, 3),
                    "best_visit_ms": round(1e3 * min(visits), 3),
                    "best_bare_ms": round(1e3 * min(trips), 3),
                    **(
                        {}
                        if path is None
                        else {"used": round(16 * n / path.rate / (statistics.median(visits) - delay), 3)}
                    ),
                }
            )
        )


if __name__ == "__main__":
    main()
