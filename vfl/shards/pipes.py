"""Pair of pipes between two processes of one machine, for many small messages during one call between Ray actors.

A message costs some microseconds of processor time; a Ray call costs some milliseconds. The pipes have no name: only processes
of the same user, in the same namespace of processes, can open them. Each end notices if the other end is gone.

    pipes = Pipes()
    answer = actor.method.remote(pipes.address)      # in the other process: with answering(address) as pipes: ...
    pipes.first(ended)
    pipes.write(body)
    pipes.read()
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZE = struct.Struct("<Q")
WAIT_SECONDS = 0.1
"""Seconds between two checks by `first` that the other process still runs, until that process opens its end."""


class Ended(Exception):
    """The process at the other end of the pipes is gone, or takes too long."""


@dataclass(frozen=True, slots=True)
class Address:
    """Descriptors of the other process's end, to read and to write. process : process that holds them until they are opened."""

    process: int
    reads: int
    writes: int


class End:
    """One of the two ends of a pair of pipes."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes

    def write(self, body: bytes) -> None:
        """Send a message. Raises Ended if the other end is gone."""
        left = memoryview(SIZE.pack(len(body)) + body)
        try:
            while left:
                self._writeable()
                left = left[os.write(self._writes, left) :]
        except BrokenPipeError:
            raise Ended from None

    def _writeable(self) -> None:
        """Wait until the pipe has room for bytes. Raises Ended if that takes too long."""

    def read(self) -> bytes:
        """Wait for the next message. Raises Ended if no more messages will come."""
        (size,) = SIZE.unpack(self._exactly(SIZE.size))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = os.read(self._reads, size)
            if not part:
                raise Ended
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close this end. The other process notices this when it next sends or receives."""
        for descriptor in (self._reads, self._writes):
            if descriptor >= 0:
                os.close(descriptor)
        self._reads = self._writes = -1


class Pipes(End):
    """First end of a new pair of pipes. Another process opens the other end with `address`.

    seconds : time limit for one message. After it, Ended is raised.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        there_reads, here_writes = os.pipe()
        here_reads, there_writes = os.pipe()
        os.set_blocking(here_writes, False)
        super().__init__(here_reads, here_writes)
        self._there = End(there_reads, there_writes)
        self.address = Address(os.getpid(), there_reads, there_writes)

    def first(self, ended: Callable[[], bool]) -> bytes:
        """Return the first message. From then on, both ends notice if the other end is lost.

        ended : function that returns True if the other process will not send an answer any more.
        """
        until = time.monotonic() + self._seconds
        while not _ready(self._reads, WAIT_SECONDS):
            if time.monotonic() > until or (ended() and not _ready(self._reads, 0.0)):
                raise Ended
        self._there.close()
        return self.read()

    def read(self) -> bytes:
        """Wait for the next message. Raises Ended if no more messages will come, or if the message takes too long."""
        if not _ready(self._reads, self._seconds):
            raise Ended
        return super().read()

    def _writeable(self) -> None:
        if not _ready(self._writes, self._seconds, select.POLLOUT):
            raise Ended

    def close(self) -> None:
        """Close both ends."""
        self._there.close()
        super().close()


def _ready(descriptor: int, seconds: float, event: int = select.POLLIN) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, event)
    return bool(waiting.poll(1000.0 * seconds))


@contextlib.contextmanager
def answering(address: Address) -> Iterator[End]:
    """Open the other end of the pipes, and close it on exit. Raises OSError if this process cannot open it."""
    folder = f"/proc/{address.process}/fd"
    reads = os.open(f"{folder}/{address.reads}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        end = End(reads, os.open(f"{folder}/{address.writes}", os.O_WRONLY | os.O_CLOEXEC))
    except OSError:
        os.close(reads)
        raise
    try:
        yield end
    finally:
        end.close()
