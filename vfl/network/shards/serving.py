"""Calls of Ray actors over local pipes, between processes of one machine.

The pipes have no name: only processes of one user, in one namespace of processes, can open them, and each of these could call
the other by Ray, too. Each end notices when the other is gone. A Ray call costs some milliseconds of processor time on both
sides, a message some microseconds. With pipes, one Ray call (`serve`) stays open and all others use the pipes.
Errors, losses and new references to the object store still travel by Ray, so callers handle them as for any Ray call:

    serve(pipes):                                   # a Ray call of the member
        repeat: method, arguments = pipes.read(); pipes.write(method(*arguments))
        on an error, or an answer with a new reference: close the pipes, and raise or return it as the answer of the Ray call
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
import select
import struct
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from vfl.network.shards import Each, Group, given
from vfl.network.shards.ray_transport import answered, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from vfl.errors import PartyLost

    References = dict[bytes, Any]
    """{name: reference to an object in the object store}. Messages contain the names."""


KNOWN = 4
"""Largest number of references that both ends remember: labels and limits, and the labels and limits before them."""
UNFIT = (pickle.PicklingError, AttributeError, TypeError)
"""Errors that pickle raises for objects that Ray can send, such as functions without a name."""


SIZE = struct.Struct("<Q")
WAIT_SECONDS = 0.1
"""Seconds between two checks by `first` that the other process still runs, until that process opens its end."""


class PipeClosed(Exception):
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
            raise PipeClosed from None

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
                raise PipeClosed
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
                raise PipeClosed
        self._there.close()
        return self.read()

    def read(self) -> bytes:
        """Wait for the next message. Raises Ended if no more messages will come, or if the message takes too long."""
        if not _ready(self._reads, self._seconds):
            raise PipeClosed
        return super().read()

    def _writeable(self) -> None:
        if not _ready(self._writes, self._seconds, select.POLLOUT):
            raise PipeClosed

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


@dataclass(frozen=True, slots=True)
class CarriedReferences:
    """Answer that contains references which the caller does not know yet. Ray returns this answer, which closes the pipes."""

    answer: Any


class _Outgoing(pickle.Pickler):
    """Pickler that writes references by name and collects them."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.references: References = {}

    def persistent_id(self, value: Any) -> bytes | None:
        """Return the name of a reference; None for any other object, which is then pickled as usual."""
        name = name_of(value)
        if name is not None:
            self.references[name] = value
        return name


class _Incoming(pickle.Unpickler):
    """Unpickler that finds references by their names."""

    def __init__(self, body: bytes, known: References) -> None:
        super().__init__(io.BytesIO(body))
        self._known = known

    def persistent_load(self, name: bytes) -> Any:
        """Return the reference of this name."""
        return self._known[name]


def written(message: Any) -> tuple[bytes, References]:
    """Return the message as bytes, and {name: reference} for all references in the message."""
    file = io.BytesIO()
    pickler = _Outgoing(file)
    pickler.dump(message)
    return file.getvalue(), pickler.references


class PipeActor:
    """Base of actors that accept calls over pipes."""

    def serve(self, address: Address, references: Sequence[Any] = ()) -> CarriedReferences | None:
        """Answer calls that arrive on the pipes, until the caller closes the pipes. Raises the first error of a call.

        references : references that both ends know. The first answer with an unknown reference is returned, which closes the
            pipes.
        """
        known = {name: reference for reference in references if (name := name_of(reference)) is not None}
        with contextlib.suppress(PipeClosed), answering(address) as pipes:
            pipes.write(b"")
            while True:
                method, arguments = _Incoming(pipes.read(), known).load()
                answer = getattr(self, method)(*arguments)
                try:
                    body, used = written(answer)
                except UNFIT:
                    return CarriedReferences(answer)
                if not known.keys() >= used.keys():
                    return CarriedReferences(answer)
                pipes.write(body)
                del arguments, answer, body  # these may be large, and the next call may come much later
        return None


class Caller:
    """Caller of one member over pipes. The pipes are opened for the first call, and again after an error.

    member : actor. wait : function that waits for the answer of a Ray call and raises the call's errors. lost : function that
        returns the error for a member that exceeds `seconds`. ended : function that returns True if a Ray call has an answer.
    """

    def __init__(
        self,
        member: Any,
        wait: Callable[[Any], Any],
        lost: Callable[[], PartyLost],
        seconds: float,
        ended: Callable[[Any], bool] = answered,
    ) -> None:
        self._member, self._wait, self._lost, self._seconds, self._ended = member, wait, lost, seconds, ended
        self._pipes: Pipes | None = None
        self._serving: Any = None
        self._known: References = {}

    def say(self, body: bytes, references: Mapping[bytes, Any]) -> None:
        """Send a call, (method, arguments) as converted by `written`. If sending fails, `hear` raises the error."""
        if self._pipes is None or not self._known.keys() >= references.keys():
            self._open(references)
        if self._pipes is not None:
            with contextlib.suppress(PipeClosed):
                self._pipes.write(body)

    def hear(self) -> Any:
        """Return the answer to the last call, or raise the error of this call."""
        if self._pipes is not None:
            with contextlib.suppress(PipeClosed):
                return _Incoming(self._pipes.read(), self._known).load()
        self.close()
        carried = self._wait(self._serving)
        if carried is None:
            raise self._lost()
        self._learn(written_references(carried.answer))
        return carried.answer

    def close(self) -> None:
        """Close the pipes. Ray calls to the member then wait only for the end of the current call."""
        if self._pipes is not None:
            self._pipes.close()
        self._pipes = None

    def _open(self, references: Mapping[bytes, Any]) -> None:
        self.close()
        self._learn(references)
        pipes = Pipes(self._seconds)
        self._serving = self._member.serve.remote(pipes.address, list(self._known.values()))
        try:
            pipes.first(lambda: self._ended(self._serving))
        except PipeClosed:
            pipes.close()
        else:
            self._pipes = pipes

    def _learn(self, references: Mapping[bytes, Any]) -> None:
        others = {name: reference for name, reference in self._known.items() if name not in references}
        self._known = dict([*others.items(), *references.items()][-max(KNOWN, len(references)) :])


def written_references(answer: Any) -> References:
    """Return {name: reference} for the references in an answer; {} if the answer cannot be pickled."""
    try:
        return written(answer)[1]
    except UNFIT:
        return {}


class PipeGroup(Group):
    """Group of Ray actors. While `near` is True, calls use pipes; `near` means that all actors run on this machine.

    An error of a call sets `near` to False, since a lost member may restart on another machine. This process passes vectors to
    other actors by reference and never reads them.

    wait : function from (a member's number, a reference) to the answer. encode : function from an argument to its plain form.
    lost : returns the error for a member that does not answer within `seconds`. ended : as for `Caller`.
    handles : True if members return small handles of their vectors instead of the vectors.
    """

    def __init__(
        self,
        members: Sequence[Any],
        wait: Callable[[int, Any], Any],
        encode: Callable[[Any], Any] = lambda value: value,
        *,
        lost: Callable[[int], PartyLost],
        seconds: float,
        handles: bool = False,
        ended: Callable[[Any], bool] = answered,
    ) -> None:
        super().__init__(members)
        self._wait, self._encode, self._handles = wait, encode, handles
        self.near = False
        self._begun: Callable[[], tuple[list[Any], Exception | None]] | None = None
        self._callers = [
            Caller(member, partial(wait, k), partial(lost, k), seconds, ended) for k, member in enumerate(self.members)
        ]

    def start(self, method: str, *arguments: Any) -> Each:
        """Call a method of all members, and return references to the answers."""
        self._finish()
        for caller in self._callers:
            caller.close()
        return Each(ask.remote(*own) for ask, own in self._calls(method, arguments))

    def fetch(self, answers: Sequence[Any]) -> list[Any]:
        """Wait for all answers, even after an error. Then return them, or raise the first error."""
        return _result(_gathered(partial(self._wait, k, answer) for k, answer in enumerate(answers)))

    def vectors(self, method: str, *arguments: Any) -> Each:
        """Return the members' vectors by reference: Ray references, or the members' own (`handles`).

        A member returns `done` before each vector, so that this call notices if the member is lost.
        """
        if self._handles:
            return Each(self.ask(method, *arguments))
        pairs = [ask.options(num_returns=2).remote(*own) for ask, own in self._calls(method, arguments)]
        self.fetch([done for done, _ in pairs])
        return Each(vector for _, vector in pairs)

    def _plain(self, arguments: Sequence[Any]) -> list[Any]:
        return [argument if isinstance(argument, Each) else self._encode(argument) for argument in arguments]

    def _calls(self, method: str, arguments: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
        plain = self._plain(arguments)
        return [(getattr(member, method), given(plain, k)) for k, member in enumerate(self.members)]

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all members. Return the answers, or raise the first error after all members have answered."""
        return self.begin(method, *arguments)()

    def begin(self, method: str, *arguments: Any) -> Callable[[], list[Any]]:
        """Call a method of all members. Return a function that waits for the answers, as `ask` does."""
        if not self.near:
            return super().begin(method, *arguments)
        plain = self._plain(arguments)
        try:
            calls = [written((method, given(plain, k))) for k in range(self.size)]
        except UNFIT:
            return super().begin(method, *arguments)
        self._finish()
        for caller, call in zip(self._callers, calls, strict=True):
            caller.say(*call)
        self._begun = functools.cache(self._heard)
        return lambda begun=self._begun: _result(begun())  # type: ignore[misc]

    def _finish(self) -> None:
        """Read the answers to the last call, since the pipes carry only one call at a time."""
        if self._begun is not None:
            self._begun()
        self._begun = None

    def _heard(self) -> tuple[list[Any], Exception | None]:
        heard = _gathered(caller.hear for caller in self._callers)
        self.near, self._begun = self.near and heard[1] is None, None
        return heard


def _gathered(waits: Iterable[Callable[[], Any]]) -> tuple[list[Any], Exception | None]:
    """Return the answers of all members and the first error, if any, once no member is at work any more."""
    found: list[Any] = []
    failed: Exception | None = None
    for wait in waits:
        try:
            found.append(wait())
        except Exception as error:  # noqa: BLE001 - raised later
            failed = failed or error
    return found, failed


def _result(heard: tuple[list[Any], Exception | None]) -> list[Any]:
    found, failed = heard
    if failed is not None:
        raise failed
    return found
