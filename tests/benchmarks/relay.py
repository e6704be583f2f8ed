"""A TCP relay with a delay and a rate in each direction, for machines whose kernel cannot emulate a link.

It passes bytes on unread, so TLS stays end to end. A chunk leaves the relay when the link has had time to send all bytes before
it and itself, plus the delay. The relay itself acknowledges TCP segments; flow control of HTTP/2 sees the whole delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

CHUNK = 1 << 16
BUFFERED = 1 << 26


@dataclass(frozen=True, slots=True)
class Path:
    """A link. delay : seconds each way. rate : bytes per second each way."""

    delay: float
    rate: float


async def _pass_on(path: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def send() -> None:
        while True:
            at, chunk = await due.get()
            if (ahead := at - time.perf_counter()) > 0:
                await asyncio.sleep(ahead)
            if not chunk:
                return writer.close()
            writer.write(chunk)
            await writer.drain()

    sending = asyncio.create_task(send())
    free = 0.0
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(CHUNK):
            free = max(free, time.perf_counter()) + len(chunk) / path.rate
            due.put_nowait((free + path.delay, chunk))
    due.put_nowait((0.0, b""))
    with contextlib.suppress(ConnectionError):
        await sending


async def _relay(path: Path, target: int, ready: Queue[int]) -> None:
    async def session(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(200):
            with contextlib.suppress(ConnectionRefusedError):
                beyond = await asyncio.open_connection("127.0.0.1", target, limit=BUFFERED)
                break
            await asyncio.sleep(0.05)
        else:
            return writer.close()
        await asyncio.gather(_pass_on(path, reader, beyond[1]), _pass_on(path, beyond[0], writer))
        return None

    server = await asyncio.start_server(session, "127.0.0.1", 0, limit=BUFFERED)
    ready.put(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def relay(path: Path, target: int, ready: Queue[int]) -> None:
    """Relay connections to port `target` of this machine until the process is ended; `ready` gets the relay's own port."""
    asyncio.run(_relay(path, target, ready))
