"""Connect a party's process to the coordinator, answer the coordinator's calls, and reconnect, over many jobs.

The party opens no port. Between jobs, no coordinator listens at its address, and the party retries with growing pauses.
"""

from __future__ import annotations

import contextlib
import math
import queue
import random
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

from parties.joined.desk import DealerDesk, Desk
from vfl.errors import FederationError
from vfl.network.federation import events
from vfl.network.kinds import to_plain
from vfl.network.messages import Failure
from vfl.network.wire.federation_pb2 import FromParty, Hello, Progress, ToParty
from vfl.network.wire.frames import PROTOCOL, SLOWEST, IncomingCall, frames, parsed
from vfl.network.wire.streams import CONNECT_SECONDS, PartyStream, StreamBroken
from vfl.network.wire.values import WireError
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from vfl.network.federation.events import OnEvent
    from vfl.network.federation.file import Federation
    from vfl.network.federation.identity import Identity

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""First and longest pause between two attempts to connect, in seconds; each pause is up to twice the previous one."""
BUSY_SECONDS = 60.0
"""Seconds of further attempts while the coordinator counts another process of the party, perhaps a dead one, as connected."""
DRAIN_SECONDS = 10.0
STALL_SECONDS = 120.0
"""Seconds allowed for the rest of a call that has begun, in addition to the transfer time on the slowest allowed link."""
WATCH_SECONDS = 0.5


class NotAccepted(FederationError):
    """The coordinator does not accept this party, or does not have the pinned certificate. Later attempts would fail, too."""


def serve(
    identity: Identity,
    federation: Federation,
    sources: Mapping[str, Any],
    policy: str | Path | None,
    on_event: OnEvent = lambda _: None,
    stop: threading.Event | None = None,
    *,
    cores: int = 1,
    indexes: str | None = None,
    shards: int = 1,
    longest_pause: float = LONGEST_PAUSE,
) -> None:
    """Answer the coordinator's calls until `stop` is set, over any number of jobs and broken streams.

    sources : {the owner's name of the source: source}; '' is the name of the default source.
    policy : path of the owner's policy. A federation's dealer has neither sources nor a policy.
    on_event : called with each event (vfl.network.federation.events). cores : for alignment and training.
    indexes : folder for aligned rows; None for this user's default folder.
    shards : number of ranges of rows in which predictions read the columns, one after another.
    longest_pause : largest number of seconds between two attempts to connect.

    Returns once `stop` is set. Raises NotAccepted if the coordinator refuses the party for good, and SpecificationError if
    identity, policy and federation do not match.
    """
    federation.check_identity(identity)
    if identity.name not in federation.joining:
        raise FederationError(f"{identity.name!r} is the coordinator of the federation: only parties join")
    stop = stop or threading.Event()
    desk: Desk
    if identity.name in federation.parties:
        own: dict[str, Any] = {"cores": cores, "indexes": indexes, "shards": shards}
        desk = Desk(federation, identity, sources, policy, on_event=on_event, **own)
    else:
        desk = DealerDesk(federation, identity, on_event=on_event)
    joining = _Joining(federation, identity, desk, on_event, stop, longest_pause)
    try:
        joining.until_stopped()
    finally:
        desk.end("the party's process has ended")


class _Joining:
    """Repeated connections of one process to the coordinator."""

    def __init__(
        self,
        federation: Federation,
        identity: Identity,
        desk: Desk,
        on_event: OnEvent,
        stop: threading.Event,
        longest_pause: float,
    ) -> None:
        self._federation, self._identity, self._desk = federation, identity, desk
        self._on_event, self._stop, self._longest_pause = on_event, stop, longest_pause
        self._process = secrets.token_bytes(16)
        self._lock = threading.Lock()
        self._open: PartyStream | None = None
        self._connected = False
        self._told = False
        self._due = math.inf
        self._random = random.SystemRandom()

    def until_stopped(self) -> None:
        """Connect, answer calls until the stream breaks, and connect again, until `stop` is set."""
        threading.Thread(target=self._watch, daemon=True).start()
        pause, busy = FIRST_PAUSE, 0.0
        while not self._stop.is_set():
            self._connected = False
            try:
                self._session()
            except _Busy as refused:
                if busy >= BUSY_SECONDS:
                    raise NotAccepted(str(refused)) from None
                why, busy = str(refused), busy + pause
            except StreamBroken as broken:
                if broken.refused:
                    raise NotAccepted(str(broken)) from None
                why = str(broken)
            except WireError as error:
                why = f"the coordinator broke the protocol: {error}"
            if self._connected:
                pause, busy, self._told = FIRST_PAUSE, 0.0, False
            if self._stop.is_set():
                return
            if not self._told:
                self._told = True
                self._on_event(events.Disconnected(why=why, in_flight=self._desk.in_flight))
            self._stop.wait(pause * self._random.uniform(0.5, 1.0))  # so that parties do not all connect at once
            pause = min(2 * pause, self._longest_pause)

    def _session(self) -> None:
        """Open a stream, and answer calls until it breaks. Raises StreamBroken, WireError or _Busy."""
        outgoing: queue.SimpleQueue[Iterator[bytes] | None] = queue.SimpleQueue()
        dialled = PartyStream(self._federation, self._identity, _flattened(outgoing))
        with self._lock:
            self._open = dialled
        if self._stop.is_set():
            dialled.close()
        self._due = time.monotonic() + CONNECT_SECONDS
        try:
            hello = Hello(
                protocol=PROTOCOL,
                version=__version__,
                federation=self._federation.digest,
                name=self._identity.name,
                process=self._process,
            )
            outgoing.put(iter([FromParty(hello=hello).SerializeToString()]))
            incoming = dialled.frames()
            self._welcomed(parsed(ToParty, next(incoming))[0])
            self._due = math.inf
            self._answering(incoming, outgoing)
        finally:
            self._due = math.inf
            outgoing.put(None)
            with self._lock:
                self._open = None
            dialled.close()

    def _welcomed(self, frame: ToParty) -> None:
        if frame.WhichOneof("frame") == "refused":
            reason = "".join(c if c.isprintable() else " " for c in frame.refused.reason)[:1000]
            if frame.refused.busy:
                raise _Busy(f"the coordinator refuses {self._identity.name!r}: {reason}")
            raise StreamBroken(f"the coordinator refuses {self._identity.name!r}: {reason}", refused=True)
        if frame.WhichOneof("frame") != "welcome":
            raise WireError("no welcome came")
        self._desk.connected(frame.welcome.process)
        self._connected = True
        coordinator = self._federation.coordinator.name
        self._on_event(events.Connected(coordinator=coordinator, address=self._federation.address))

    def _answering(self, incoming: Iterator[bytes], outgoing: queue.SimpleQueue[Iterator[bytes] | None]) -> None:
        while True:
            frame, content = parsed(ToParty, next(incoming))
            call = frame.head.call
            try:
                coming = self._whole(frame, content, incoming)
                plain = coming.plain
            except WireError as error:
                failure = Failure("FederationError", f"party {self._desk.party!r} refuses a call: {error}")
                outgoing.put(frames(call, to_plain(failure)))
                outgoing.put(None)
                self._drain(incoming)
                raise

            def progress(done: int, call: int = call) -> None:
                outgoing.put(iter([FromParty(progress=Progress(call=call, done=done)).SerializeToString()]))

            message, vectors = self._desk.answer(plain, coming.vectors, progress)
            outgoing.put(frames(call, to_plain(message), vectors))

    def _whole(self, frame: ToParty, content: memoryview, incoming: Iterator[bytes]) -> IncomingCall:
        """Return the call whose first frame is `frame`, after all of its frames have arrived."""
        if frame.WhichOneof("frame") != "head":
            raise WireError("received an unexpected frame")
        coming = IncomingCall(frame.head, content, self._desk.limits, self._desk.held, self._desk.due)
        self._due = time.monotonic() + STALL_SECONDS + coming.size / SLOWEST
        while not coming.complete:
            following, content = parsed(ToParty, next(incoming))
            if following.WhichOneof("frame") != "piece" or following.piece.call != coming.call:
                raise WireError("received an unexpected frame")
            coming.feed(content)
        self._due = math.inf
        return coming

    def _drain(self, incoming: Iterator[bytes]) -> None:
        """Read on until the coordinator has read the refusal and closed the stream."""
        self._due = time.monotonic() + DRAIN_SECONDS
        with contextlib.suppress(StreamBroken):
            for _ in incoming:
                pass

    def _watch(self) -> None:
        """Close the stream when `stop` is set, or when an expected message is late."""
        while not self._stop.wait(WATCH_SECONDS):
            if time.monotonic() > self._due:
                self._close()
        self._close()

    def _close(self) -> None:
        with self._lock:
            if self._open is not None:
                self._open.close()


class _Busy(StreamBroken):
    """The coordinator refuses this process, since another process of the party is connected."""


def _flattened(outgoing: queue.SimpleQueue[Iterator[bytes] | None]) -> Iterator[bytes]:
    while (each := outgoing.get()) is not None:
        yield from each
