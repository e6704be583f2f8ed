"""Stream of one party at the coordinator. It carries one call at a time, then the answer to this call."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from vfl import errors
from vfl.errors import FederationError, PartyLost, PrivacyError, VflError
from vfl.kinds import from_plain, to_plain
from vfl.messages.joining import Failure
from vfl.wire.federation_pb2 import FromParty
from vfl.wire.frames import SLOWEST, Constant, Incoming, Limits, frames, parsed
from vfl.wire.values import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

M = TypeVar("M")

SENTENCE = 1 << 16
"""Bytes that the body of an answer may always have: enough for an error message."""


STEP_SECONDS = 1e-3
"""Additional seconds per step of a call that reports progress: 40 times the time to blind one id on one core."""


class Answer:
    """Answer to a call, which may not have arrived yet.

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
        self._link, self.call, self.limits = link, call, limits
        self._progress, self._steps, self._done = progress, steps, 0
        self._there = threading.Event()
        self._then: Callable[[], None] | None = None
        self._error: VflError | None = None
        self._incoming: Incoming | None = None
        self._bytes = sent
        self._began = self._touched = time.monotonic()

    def began(self, incoming: Incoming) -> None:
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
        self._then = call
        if self._there.is_set():
            call()

    def until(self, seconds: float) -> float:
        """Return the monotonic time after which the party counts as lost. Arguments : as for `wait`."""
        seconds += self._bytes / SLOWEST
        return min(self._touched + seconds, self._began + seconds + self._steps * STEP_SECONDS)

    def arrived(self, incoming: Incoming) -> None:
        """Record the complete answer."""
        self._incoming = incoming
        self._set()

    def fail(self, error: VflError) -> None:
        """Record that no answer will arrive."""
        self._error = self._error or error
        self._set()

    def _set(self) -> None:
        self._there.set()
        if self._then is not None:
            self._then()

    def wait(self, seconds: float) -> tuple[Any, dict[str, Any]]:
        """Return the message of the answer, and its vectors as bytes.

        seconds : limit for the answer, in addition to the time for transferring call and answer at the rate SLOWEST. A progress
            report restarts the limit. All restarts together add at most STEP_SECONDS per step.

        Raises the party's error, or PartyLost. At the limit, the party's stream is closed, and the answer is lost.
        """
        name = self._link.party
        while not self._there.wait(max(self.until(seconds) - time.monotonic(), 0.0)):
            if time.monotonic() >= self.until(seconds):
                self._link.end(f"it did not answer within {seconds:g} s")
                self._link.cancel()
                raise PartyLost(f"{name!r} did not answer within {seconds:g} s", name)
        if self._error is not None or self._incoming is None:
            raise self._error or PartyLost(f"{name!r} is lost", name)
        try:
            message = from_plain(self._incoming.plain, object)
        except (PrivacyError, WireError) as error:
            self._link.end("its answer was not a message of this protocol")
            raise FederationError(f"party {name!r} sent an answer that is refused: {error}") from None
        if isinstance(message, Failure):
            raise error_of(message, name)
        return message, self._incoming.vectors


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
        self._incoming: Incoming | None = None
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
            self._calls += 1
            sent = self._sent(vectors or {})
            size = sum(memoryview(given).nbytes for given in sent.values() if not isinstance(given, Constant))
            size += sum(
                given.vector.nbytes for given in sent.values() if isinstance(given, Constant) and not given.held
            )
            answer = self._waiting = Answer(self, self._calls, limits, size, progress, steps)
            plain = to_plain(messages[0]) if len(messages) == 1 else tuple(map(to_plain, messages))
            self._out.put(frames(answer.call, plain, sent))
        return answer

    def _sent(self, vectors: Mapping[str, Any]) -> dict[str, Any]:
        """Replace constants that the party already has by digests of these constants."""
        sent = dict(vectors)
        for name, given in vectors.items():
            if isinstance(given, Constant):
                sent[name] = Constant(given.vector, given.digest, held=self._held.get(name) == given.digest)
                self._held[name] = given.digest
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
                self._incoming = Incoming(frame.head, content, answer.limits, {})
                answer.began(self._incoming)
            elif kind == "piece" and self._incoming is not None and frame.piece.call == answer.call:
                self._incoming.feed(content)
            else:
                raise WireError("received an unexpected frame")
            if self._incoming.complete:
                answer.arrived(self._incoming)
                self._waiting = self._incoming = None

    def end(self, why: str) -> None:
        """End the stream. A call that waits for its answer is lost."""
        with self._lock:
            if self.ended:
                return
            self.ended = why
            waiting, self._waiting, self._incoming = self._waiting, None, None
        if waiting is not None:
            waiting.fail(PartyLost(f"{self.party!r} was lost: {why}", self.party))
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
