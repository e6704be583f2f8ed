"""One stream per member of a federation: one call at a time, then its answer. Refused peers receive the reason."""

from __future__ import annotations

import json
import logging
import queue
import secrets
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self, TypeVar

from vfl import errors
from vfl.errors import FederationError, PartyLost, PrivacyError, VflError
from vfl.network.kinds import from_plain, to_plain
from vfl.network.messages import Failure
from vfl.network.wire.federation_pb2 import FromParty, Refused, ToParty, Welcome
from vfl.network.wire.frames import PROTOCOL, SLOWEST, Constant, IncomingCall, Limits, frames, parsed
from vfl.network.wire.streams import Listener
from vfl.network.wire.values import WireError
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from vfl.network.federation.file import Federation
    from vfl.network.federation.identity import Identity
    from vfl.network.wire.federation_pb2 import Hello
    from vfl.network.wire.streams import Peer


HELLO_SECONDS = 10.0

log = logging.getLogger("vfl.federation")
ENDED = "the coordinator has ended"
"""Reason that parties receive when the coordinator closes their streams, after a run or an error."""


M = TypeVar("M")

SENTENCE = 1 << 16
"""Bytes that the body of an answer may always have: enough for an error message."""


STEP_SECONDS = 1e-3
"""Additional seconds per step of a call that reports progress: 40 times the time to blind one id on one core."""


class Answer(Future[IncomingCall]):
    """Awaited answer to a call. `Link` sets the result once the answer is complete, or the error if no answer will come.

    sent : total size in bytes of the vectors in the call. progress, steps : as for `Link.call`.
    """

    def __init__(
        self,
        link: Link,
        call: int,
        limits: Limits,
        sent: int = 0,
        progress: Callable[[int], None] | None = None,
        steps: int = 0,
    ) -> None:
        super().__init__()
        self._link, self.call, self.limits = link, call, limits
        self._progress, self._steps, self._done = progress, steps, 0
        self._bytes = sent
        self._began = self._touched = time.monotonic()

    def began(self, incoming: IncomingCall) -> None:
        """Record the head, that is, the first frame of the answer."""
        self._bytes += incoming.size
        if self._progress is not None:
            self._touched = time.monotonic()

    def progressed(self, done: int) -> None:
        """Record a progress report. A higher count restarts the time limit. Raises WireError for an unexpected report."""
        if self._progress is None or done > self._steps:
            raise WireError("received a report of progress that is not due")
        if done > self._done:
            self._done, self._touched = done, time.monotonic()
            self._progress(done)

    def then(self, call: Callable[[], None]) -> None:
        """Call a function once the answer has arrived: now, or later in the receiving thread. The function must not block."""
        self.add_done_callback(lambda _: call())

    def until(self, seconds: float) -> float:
        """Return the monotonic time after which the party counts as lost. Arguments : as for `wait`."""
        seconds += self._bytes / SLOWEST
        return min(self._touched + seconds, self._began + seconds + self._steps * STEP_SECONDS)

    def wait(self, seconds: float) -> tuple[Any, dict[str, Any]]:
        """Return the message of the answer, and its vectors as bytes.

        seconds : limit for the answer, in addition to the time for transferring call and answer at the rate SLOWEST. A progress
            report restarts the limit. All restarts together add at most STEP_SECONDS per step.

        Raises the party's error, or PartyLost. At the limit, the party's stream is closed, and the answer is lost.
        """
        name = self._link.party
        while True:
            try:
                incoming = self.result(max(self.until(seconds) - time.monotonic(), 0.0))
                break
            except TimeoutError:
                if time.monotonic() >= self.until(seconds):
                    self._link.end(f"it did not answer within {seconds:g} s")
                    self._link.cancel()
                    raise PartyLost(f"{name!r} did not answer within {seconds:g} s", name) from None
        try:
            message = from_plain(incoming.plain, object)
        except (PrivacyError, WireError) as error:
            self._link.end("its answer was not a message of this protocol")
            raise FederationError(f"party {name!r} sent an answer that is refused: {error}") from None
        if isinstance(message, Failure):
            raise error_of(message, name)
        return message, incoming.vectors


class Link:
    """The stream of one party.

    process : id of the party's process, 16 random bytes. version : version of the vfl code at the party.
    cancel : function that ends the stream at once, even if the party has stopped reading.
    """

    def __init__(self, party: str, process: bytes, version: str, cancel: Callable[[], object] = lambda: None) -> None:
        self.party, self.process, self.version, self.cancel = party, process, version, cancel
        self._out: queue.SimpleQueue[Iterator[bytes] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._calls = 0
        self._waiting: Answer | None = None
        self._incoming: IncomingCall | None = None
        self._held: dict[str, Any] = {}
        self.ended = ""

    def call(
        self,
        *messages: object,
        vectors: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        progress: Callable[[int], None] | None = None,
        steps: int = 0,
    ) -> Answer:
        """Send a call, and return at once an `Answer` to wait for. Raises PartyLost if the stream has ended.

        messages : the call; for a query, the query and the key of its release. vectors : bytes-like objects; a `Constant` is
            sent once.
        limits : limits on the size of the answer. progress : function called with the number of finished steps, at most
            `steps`; None to refuse progress reports.
        """
        limits = limits or Limits(SENTENCE)
        with self._lock:
            if self.ended:
                raise PartyLost(f"{self.party!r} was lost: {self.ended}", self.party)
            if self._waiting is not None:
                raise FederationError(f"party {self.party!r} is still working on the last call")
            plain = to_plain(messages[0]) if len(messages) == 1 else tuple(map(to_plain, messages))
            sent = self._sent(vectors or {})
            # First build the frames: if the message cannot be sent, this raises before any state changes.
            following = frames(self._calls + 1, plain, sent)
            self._calls += 1
            self._held |= {name: given.digest for name, given in sent.items() if isinstance(given, Constant)}
            size = sum(memoryview(given).nbytes for given in sent.values() if not isinstance(given, Constant))
            size += sum(
                given.vector.nbytes for given in sent.values() if isinstance(given, Constant) and not given.held
            )
            answer = self._waiting = Answer(self, self._calls, limits, size, progress, steps)
            self._out.put(following)
        return answer

    def _sent(self, vectors: Mapping[str, Any]) -> dict[str, Any]:
        """Replace constants that the party already has by digests of these constants."""
        sent = dict(vectors)
        for name, given in vectors.items():
            if isinstance(given, Constant):
                sent[name] = Constant(given.vector, given.digest, held=self._held.get(name) == given.digest)
        return sent

    def outgoing(self) -> Iterator[bytes]:
        """Yield frames until the stream ends."""
        while (next_frames := self._out.get()) is not None:
            yield from next_frames

    def receive(self, data: bytes) -> None:
        """Process a frame. Raises WireError for an unexpected frame; the caller must then end the stream."""
        frame, content = parsed(FromParty, data)
        kind = frame.WhichOneof("frame")
        with self._lock:
            answer = self._waiting
            if answer is None:
                raise WireError("received a frame that no call asked for")
            if kind == "progress" and frame.progress.call == answer.call and self._incoming is None:
                answer.progressed(frame.progress.done)
                return
            if kind == "head" and frame.head.call == answer.call and self._incoming is None:
                self._incoming = IncomingCall(frame.head, content, answer.limits, {})
                answer.began(self._incoming)
            elif kind == "piece" and self._incoming is not None and frame.piece.call == answer.call:
                self._incoming.feed(content)
            else:
                raise WireError("received an unexpected frame")
            if self._incoming.complete:
                answer.set_result(self._incoming)
                self._waiting = self._incoming = None

    def end(self, why: str) -> None:
        """End the stream. A call that waits for its answer is lost."""
        with self._lock:
            if self.ended:
                return
            self.ended = why
            waiting, self._waiting, self._incoming = self._waiting, None, None
        if waiting is not None:
            waiting.set_exception(PartyLost(f"{self.party!r} was lost: {why}", self.party))
        self._out.put(None)


def error_of(failure: Failure, party: str) -> VflError:
    """Return the error that a party's failure names, as a class in vfl.errors; FederationError for an unknown name."""
    kind = getattr(errors, failure.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, VflError)):
        kind = FederationError
    reason = "".join(c if c.isprintable() else " " for c in failure.reason)[:4000]
    if kind is PartyLost:
        return PartyLost(reason, party)
    error: VflError = kind(reason)
    return error


class ConnectedMembers:
    """Connected members of a federation, with one stream each: the parties, and the dealer in training on secret shares.

    If a party connects again from the same process, the new stream replaces the old one. A second process of the party is
    refused while the first process is connected.

    listen : address to bind (vfl.network.wire.streams.Listener).
    """

    def __init__(self, federation: Federation, identity: Identity, *, listen: str | None = None) -> None:
        self._federation, self.parties = federation, tuple(federation.parties)
        self._process = secrets.token_bytes(16)
        self._links: dict[str, Link] = {}
        self._changed = threading.Condition()
        self._listener = Listener(federation, identity, self._session, listen=listen)
        self.port = self._listener.port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all streams and close the port."""
        with self._changed:
            links = list(self._links.values())
        for link in links:
            link.end(ENDED)
        self._listener.close()

    def link(self, party: str, seconds: float) -> Link:
        """Wait for the party's stream, and return it. Raises PartyLost after `seconds`."""
        until = time.monotonic() + seconds
        with self._changed:
            while (link := self._links.get(party)) is None or link.ended:
                left = until - time.monotonic()
                if left <= 0.0 or not self._changed.wait(left):
                    raise PartyLost(
                        f"{party!r} did not connect within {seconds:g} s: its owner has to run vfl join", party
                    )
            return link

    def connected(self) -> dict[str, Link]:
        """Return {party: stream} for all open streams."""
        with self._changed:
            return {party: link for party, link in self._links.items() if not link.ended}

    def wait(self, parties: Collection[str], seconds: float) -> dict[str, Link]:
        """Return the streams of these parties once all are connected. Else raises PartyLost, which names a missing party."""
        until = time.monotonic() + seconds
        return {party: self.link(party, max(until - time.monotonic(), 0.0)) for party in parties}

    def _session(
        self, frames: Iterator[bytes], peer: Peer, at_end: Callable[[Callable[[], None]], Any]
    ) -> Iterator[bytes]:
        hello = _first(frames, at_end)
        why, busy, link = self._reason(hello, peer), False, None
        if hello is not None and not why:
            link = Link(hello.name, hello.process, hello.version, peer.cancel)
            if busy := not self._admitted(link):
                why = f"another process of {hello.name!r} is connected: a party joins from one process"
        if link is None or busy:
            log.warning(json.dumps({"event": "refused", "peer": peer.fingerprint, "why": why}))
            yield ToParty(refused=Refused(reason=why, busy=busy)).SerializeToString()
            return
        log.info(json.dumps({"event": "connected", "party": link.party}))
        at_end(lambda: self._gone(link, "the connection broke"))
        reading = threading.Thread(target=self._read, args=(link, frames), daemon=True)
        reading.start()
        try:
            yield ToParty(
                welcome=Welcome(
                    protocol=PROTOCOL,
                    version=__version__,
                    federation=self._federation.digest,
                    name=self._federation.coordinator.name,
                    process=self._process,
                )
            ).SerializeToString()
            yield from link.outgoing()
        finally:
            self._gone(link, "the connection broke")

    def _read(self, link: Link, frames: Iterator[bytes]) -> None:
        try:
            for data in frames:
                link.receive(data)
        except WireError as error:
            log.warning(json.dumps({"event": "refused", "party": link.party, "why": str(error)}))
            self._gone(link, f"it broke the protocol: {error}")
        self._gone(link, "the connection broke")

    def _admitted(self, link: Link) -> bool:
        """Return False if another process of the party is connected. An older stream of the same process is ended."""
        with self._changed:
            older = self._links.get(link.party)
            if older is not None and older.process != link.process and not older.ended:
                return False
            self._links[link.party] = link
            self._changed.notify_all()
        if older is not None:
            older.end("it connected again")
        return True

    def _gone(self, link: Link, why: str) -> None:
        link.end(why)
        with self._changed:
            if self._links.get(link.party) is link:
                del self._links[link.party]
                self._changed.notify_all()
                log.info(json.dumps({"event": "disconnected", "party": link.party, "why": link.ended}))

    def _reason(self, hello: Hello | None, peer: Peer) -> str:
        """Return the reason for refusing a peer; '' if the peer is accepted."""
        if hello is None:
            return f"no greeting came within {HELLO_SECONDS:g} s"
        member = self._federation.joining.get(hello.name)
        if member is None:
            return f"{hello.name!r} is not a party of the federation {self._federation.name!r}"
        if not peer.is_member(member):
            if peer.version != "TLSv1.3":
                return f"TLS 1.3 is needed, not {peer.version}"
            return (
                f"{hello.name!r} is expected with the certificate {member.fingerprint}, and {peer.fingerprint} came: use the "
                "identity whose certificate is in the federation file"
            )
        if hello.federation != self._federation.digest:
            return (
                f"the federation files differ: this one has the digest {self._federation.digest}, that of {hello.name!r} "
                f"{hello.federation:.64}; exchange the file again"
            )
        if hello.protocol != PROTOCOL or hello.version != __version__:
            return f"{hello.name!r} runs vfl {hello.version:.32}, the coordinator {__version__}: install one version everywhere"
        if len(hello.process) != 16:
            return "the greeting does not name its process"
        return ""


def _first(frames: Iterator[bytes], at_end: Callable[[Callable[[], None]], Any]) -> Hello | None:
    """Return the first frame if it arrives in time and is a Hello; else None."""
    found: list[Hello] = []
    there = threading.Event()
    at_end(there.set)

    def read() -> None:
        try:
            frame, _ = parsed(FromParty, next(frames, b""))
            if frame.WhichOneof("frame") == "hello":
                found.append(frame.hello)
        except WireError:
            pass
        there.set()

    threading.Thread(target=read, daemon=True).start()
    there.wait(HELLO_SECONDS)
    return found[0] if found else None
