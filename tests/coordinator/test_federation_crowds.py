"""Connections and streams in large numbers, which take neither the coordinator's descriptors nor a party's place."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.coordinator.organisations import Joined, federation
from tests.coordinator.test_federation_abuse import open_to, raw
from vfl.network.wire.gate import PER_ADDRESS, Gate
from vfl.network.wire.streams import PartyStream, StreamBroken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LISTENING = """
import resource, sys
from coordinator.federation.gathering import ConnectedMembers
from vfl.network.federation.file import read_federation
from vfl.network.federation.identity import load_identity
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 160))
with ConnectedMembers(read_federation(sys.argv[1]), load_identity(sys.argv[2])) as gathering:
    print(gathering.port, flush=True)
    for line in sys.stdin:
        with open(sys.argv[1]):
            print(*sorted(gathering.connected()), resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
"""
"""A coordinator with few descriptors that opens a file for every line."""


@pytest.fixture
def joined(tmp_path) -> Iterator[Joined]:
    with federation(tmp_path) as joined:
        yield joined


def idle(stack: contextlib.ExitStack, port: int, source: str = "127.0.0.1", said: bytes = b"") -> socket.socket:
    made = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5, source_address=(source, 0)))
    with contextlib.suppress(OSError):
        made.sendall(said)
    return made


@contextlib.contextmanager
def admitted(joined: Joined, who: str) -> Iterator[None]:
    """Connect as a party does, which tries again after a broken stream."""
    for attempt in range(5):
        with raw(joined, who) as made:
            late = threading.Timer(10.0, made.dialled.close)
            late.start()
            try:
                assert made.next().WhichOneof("frame") == "welcome"
            except StreamBroken:
                time.sleep(0.2 * 2**attempt)
                continue
            finally:
                late.cancel()
            yield
            return
    raise AssertionError


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_idle_connections_without_a_key_take_neither_descriptors_nor_places(joined) -> None:
    """The first four bytes of a TLS handshake, after which nothing comes, need no key either."""
    command = [sys.executable, "-c", LISTENING, str(joined.file), str(joined.folder / "hub.key")]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hub,
        contextlib.ExitStack() as stack,
    ):
        assert hub.stdin is not None
        assert hub.stdout is not None
        port = int(hub.stdout.readline())
        with contextlib.suppress(OSError):
            for k in range(200):
                idle(stack, port, said=b"\x16\x03\x01\x02"[: 4 * (k % 2)])
        for who in ("bank", "telco"):
            with admitted(joined, who):
                hub.stdin.write("\n")
                hub.stdin.flush()
                assert hub.stdout.readline().split() == [who, "160"]
        stack.close()
        hub.communicate("")


def until(said: Callable[[], bool]) -> None:
    """Wait for an event, however slow the machine is, and see that it lasts."""
    end = time.monotonic() + 60.0
    while not said():
        assert time.monotonic() < end
        time.sleep(0.02)
    time.sleep(0.2)
    assert said()


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A server that keeps every connection."""
    with socket.socket(socket.AF_UNIX) as server:
        yield server


@pytest.fixture
def gate(server: socket.socket) -> Iterator[Gate]:
    made = Gate("127.0.0.1:0")
    server.bind(made.inner.removeprefix("unix:"))
    server.listen(200)
    made.open()
    yield made
    made.close()


def test_an_address_pushes_out_its_own_connections_alone(gate) -> None:
    with contextlib.ExitStack() as stack:
        others = [idle(stack, gate.port, "127.0.0.2", b"x") for _ in range(2)]
        crowd = [idle(stack, gate.port, said=b"x") for _ in range(PER_ADDRESS + 20)]
        until(lambda: sum(map(is_open, crowd)) == PER_ADDRESS)
        assert all(map(is_open, others))


def test_many_addresses_push_out_those_of_the_fullest(gate) -> None:
    with contextlib.ExitStack() as stack:
        alone = idle(stack, gate.port, "127.0.1.1", b"x")
        crowd = [idle(stack, gate.port, f"127.0.0.{2 + k % 20}", b"x") for k in range(20 * 8)]
        until(lambda: sum(map(is_open, crowd)) == gate.most - 1)
        assert is_open(alone)


def test_a_connection_with_a_stream_stays_and_one_without_ends(gate, server, monkeypatch) -> None:
    monkeypatch.setattr("vfl.network.wire.gate.WAIT_SECONDS", 1.0)
    with contextlib.ExitStack() as stack:
        held = idle(stack, gate.port, said=b"x")
        stack.enter_context(server.accept()[0])  # the gate has forwarded it
        gate.hold("unix:/folder/1")
        other = idle(stack, gate.port, said=b"x")
        for _ in range(PER_ADDRESS + 5):
            idle(stack, gate.port, said=b"x")
        until(lambda: not is_open(other))
        assert is_open(held)
        gate.release("unix:/folder/1")
        until(lambda: not is_open(held))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::]", ""])
def test_a_second_listener_is_refused(host: str) -> None:
    gate = Gate(f"{host}:0")
    try:
        with pytest.raises(OSError, match="in use"):
            Gate(f"{host}:{gate.port}")
    finally:
        gate.close()


def test_the_soft_limit_of_descriptors_is_raised(monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 100_000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: seen.append(limits))
    Gate("127.0.0.1:0").close()
    assert seen == [(4096, 100_000)]


def test_one_members_key_does_not_lock_out_the_others(joined) -> None:
    """Silent streams: the handshake is done, and no greeting comes."""
    silent: list[PartyStream] = []
    calm = threading.Event()
    try:
        with open_to(joined) as gathering:
            silent += [
                PartyStream(joined.federation, joined.identities["bank"], iter(calm.wait, True)) for _ in range(24)
            ]
            with admitted(joined, "telco"):
                assert sorted(gathering.connected()) == ["telco"]
                with ThreadPoolExecutor(len(silent)) as pool:
                    reasons = [*pool.map(_reason, silent)]
            assert any("under the certificate of 'bank'" in reason for reason in reasons)
            calm.set()
            with admitted(joined, "bank"):
                assert sorted(gathering.connected()) == ["bank"]
    finally:
        calm.set()
        for each in silent:
            each.close()


def _reason(dialled: PartyStream) -> str:
    """Return why a stream has ended; '' if it has not."""
    late = threading.Timer(1.0, dialled.close)
    late.start()
    try:
        next(dialled.frames())
    except StreamBroken as broken:
        return "" if str(broken) == "the stream was ended" else str(broken)
    finally:
        late.cancel()
    raise AssertionError
