"""Port of the coordinator. The port limits connections that have not opened a stream, and forwards bytes between them and gRPC.

Guarantee. At most `Gate.most` connections wait at a time, at most PER_ADDRESS from one address, each for WAIT_SECONDS. If a new
connection exceeds a limit, a waiting one is closed: first one that has sent nothing, then the oldest. Connections without a
key can therefore neither use up the file descriptors of the process nor keep parties from connecting. A connection with a
stream that gRPC has accepted is never closed for a new one.

gRPC can accept connections itself. At its limit (grpc.max_allowed_incoming_connections), however, it refuses the newest one,
so idle connections would lock the parties out. Therefore gRPC listens on a Unix socket in a folder of this user. This port
opens a connection to it once a client has sent its first bytes. TLS connects party and gRPC: the gate sees only encrypted
bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import resource
import shutil
import socket
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

MOST_WAITING, PER_ADDRESS = 64, 16
WAIT_SECONDS = 20.0
"""Seconds within which a connection must open a stream, counted from its start or from the end of its last stream."""
RESERVE = 512
"""Number of file descriptors reserved for the rest of the process. A connection takes three."""
DESCRIPTORS = 4096
"""Number of file descriptors that the process requests from the system."""
LONGEST_FOLDER = 60
"""Longest path, in bytes, of the folder for temporary files. The address of a Unix socket has at most 107 bytes."""
TAKEN = (errno.EADDRINUSE, errno.EACCES)
CHUNK = 1 << 18
CLOSING_SECONDS, DRAIN_SECONDS = 5.0, 1.0


@dataclass(eq=False)
class _Connection:
    """A client. streams : number of accepted streams. since : start of its waiting time. spoke : True if it has sent bytes."""

    address: str
    client: socket.socket
    name: str
    streams: int = 0
    since: float = field(default_factory=time.monotonic)
    spoke: bool = False
    task: asyncio.Task[None] | None = None


class Gate:
    """TCP port that forwards to `inner`, the address of a Unix socket for gRPC.

    address : HOST:PORT to bind, on all addresses of the host; an empty host stands for all interfaces. port : the bound port.

    Raises OSError if the address cannot be bound.
    """

    def __init__(self, address: str) -> None:
        raise_descriptors()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = MOST_WAITING if soft < 0 else max(8, min(MOST_WAITING, (soft - RESERVE) // 3))
        self._sockets = _listening(address)
        self.port: int = self._sockets[0].getsockname()[1]
        short = len(tempfile.gettempdir()) <= LONGEST_FOLDER
        self._folder = Path(tempfile.mkdtemp(prefix="vfl-", dir=None if short else "/tmp"))  # noqa: S108 - fresh, mode 0700
        self.inner = f"unix:{self._folder}/grpc"
        self._lock = threading.Lock()
        self._connections: dict[str, _Connection] = {}
        self._accepted = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="vfl-gate", daemon=True)

    def open(self) -> None:
        """Start to accept connections. gRPC must already listen at `inner`."""
        self._thread.start()

    def close(self) -> None:
        """Close the port and all connections."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop)
            self._thread.join()
        self._loop.close()
        for each in self._sockets:
            each.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def hold(self, peer: str) -> None:
        """Record that gRPC has accepted a stream. peer : name that gRPC gives to the connection."""
        self._count(peer, 1)

    def release(self, peer: str) -> None:
        """Record the end of a stream that was recorded by `hold`."""
        self._count(peer, -1)

    def _count(self, peer: str, change: int) -> None:
        with self._lock:
            found = self._connections.get(peer.rpartition("/")[2])
            if found is not None:
                found.streams += change
                found.since = time.monotonic()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        tasks = [self._loop.create_task(self._accept(each)) for each in self._sockets]
        tasks.append(self._loop.create_task(self._expire()))
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(self._loop), return_exceptions=True))

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                client, where = await self._loop.sock_accept(listening)
            except OSError:  # the client has gone, or no descriptor is left
                self._shut(self._waiting()[:1])
                await asyncio.sleep(0.05)
                continue
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._accepted += 1
            made = _Connection(_network(where[0]), client, str(self._accepted))
            self._make_room(made.address)
            with self._lock:
                self._connections[made.name] = made
            made.task = self._loop.create_task(self._forward(made))
            made.task.add_done_callback(partial(self._ended, made))

    def _waiting(self) -> list[_Connection]:
        """Return connections without a stream, in the order in which they would be closed for new connections."""
        with self._lock:
            found = [each for each in self._connections.values() if not each.streams]
        return sorted(found, key=lambda each: (each.spoke, each.since))

    def _make_room(self, address: str) -> None:
        waiting = self._waiting()
        counts = Counter(each.address for each in waiting)
        if counts[address] >= PER_ADDRESS:
            fullest = address
        elif len(waiting) >= self.most:
            fullest = max(counts, key=lambda each: counts[each])
        else:
            return
        self._shut([each for each in waiting if each.address == fullest][:1])

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(min(WAIT_SECONDS / 4, 1.0))
            until = time.monotonic() - WAIT_SECONDS
            self._shut([each for each in self._waiting() if each.since < until])

    def _shut(self, connections: list[_Connection]) -> None:
        for each in connections:
            with self._lock:
                self._connections.pop(each.name, None)
            if each.task is not None:
                each.task.cancel()

    async def _forward(self, made: _Connection) -> None:
        """Forward bytes between a client and gRPC until one of them closes the connection."""
        path = self._folder / made.name
        with contextlib.ExitStack() as stack:
            client = made.client
            stack.enter_context(contextlib.suppress(OSError))
            first = await self._loop.sock_recv(client, CHUNK)
            if not first:
                return
            made.spoke = True
            inner = stack.enter_context(socket.socket(socket.AF_UNIX))
            inner.setblocking(False)
            inner.bind(str(path))  # gRPC names the connection by this path
            stack.callback(path.unlink, missing_ok=True)
            await self._loop.sock_connect(inner, self.inner.removeprefix("unix:"))
            await self._loop.sock_sendall(inner, first)
            ways = [self._loop.create_task(self._pump(*way)) for way in ((client, inner), (inner, client))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait(ways, timeout=CLOSING_SECONDS)  # let bytes in transit arrive
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)  # wait until both release the sockets

    async def _pump(self, source: socket.socket, target: socket.socket) -> None:
        """Forward bytes until the source closes. While the target keeps up, one message takes one pass of the event loop."""
        buffer = memoryview(bytearray(CHUNK))

        def forward(stopped: asyncio.Future[memoryview]) -> None:
            """Forward once. To stop, set `stopped` to the bytes for which the target has no room; at the end, to no bytes."""
            size = sent = 0
            try:
                size = source.recv_into(buffer)
                sent = target.send(buffer[:size])
            except BlockingIOError:
                if not size:
                    return
            except OSError:
                size = sent
            if (sent < size or not size) and not stopped.done():
                stopped.set_result(buffer[sent:size])

        with contextlib.suppress(OSError):
            while True:
                stopped: asyncio.Future[memoryview] = self._loop.create_future()
                self._loop.add_reader(source, forward, stopped)
                try:
                    left = await stopped
                finally:
                    self._loop.remove_reader(source)
                if not left:
                    break
                await self._loop.sock_sendall(target, left)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _ended(self, made: _Connection, _: asyncio.Task[None]) -> None:
        made.client.close()  # closed here, since a task that is cancelled before it runs closes nothing
        with self._lock:
            self._connections.pop(made.name, None)

    async def _end(self) -> None:
        """Wait for the last bytes from gRPC, which has closed its side, and then stop."""
        with self._lock:
            tasks = [each.task for each in self._connections.values() if each.spoke and each.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=DRAIN_SECONDS)
        self._loop.stop()


def raise_descriptors() -> None:
    """Raise the soft limit of file descriptors to DESCRIPTORS, or as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _listening(address: str) -> list[socket.socket]:
    """Return a socket for each of the host's addresses on this machine.

    Raises OSError if there is none, or if one is in use.
    """
    host, _, given = address.rpartition(":")
    host, port = host.strip("[]"), int(given)
    if host in ("", "::"):
        try:
            return [_nonblocking(socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True))]
        except (OSError, ValueError) as error:  # ValueError: no sockets for both versions of IP
            if getattr(error, "errno", None) in TAKEN:
                raise
        return [_nonblocking(socket.create_server(("", port)))]
    found: list[socket.socket] = []
    missing = OSError(errno.EADDRNOTAVAIL, "no such address")
    for family, *_, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
        bound = found[0].getsockname()[1] if found else port
        try:
            found.append(_nonblocking(socket.create_server((where[0], bound), family=family)))
        except OSError as error:
            if error.errno in TAKEN:
                for each in found:
                    each.close()
                raise
            missing = error
    if not found:
        raise missing
    return found


def _nonblocking(listening: socket.socket) -> socket.socket:
    listening.setblocking(False)
    return listening


def _network(host: str) -> str:
    """Return a key of the address for counting connections: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
