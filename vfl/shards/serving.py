"""Calls of Ray actors over local pipes (vfl.shards.pipes), between processes of one machine.

Only processes of one user can open the pipes, and these processes could also call each other by Ray. A Ray call costs some
milliseconds of processor time on both sides. With pipes, a single Ray call (`serve`) stays open, and all further calls use the
pipes. Errors, losses and new references to the object store are still sent by Ray, so callers treat them as for any Ray call:

    serve(pipes):                                   # a Ray call of the member
        repeat: method, arguments = pipes.read(); pipes.write(method(*arguments))
        on an error, or an answer with a new reference: close the pipes, and raise or return it as the answer of the Ray call
"""

from __future__ import annotations

import contextlib
import functools
import io
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vfl.shards import Remote, given
from vfl.shards.pipes import Ended, Pipes, answering
from vfl.shards.ray_transport import answered, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vfl.errors import PartyLost
    from vfl.shards import Each
    from vfl.shards.pipes import Address

    References = dict[bytes, Any]
    """{name: reference to an object in the object store}. Messages contain the names."""

KNOWN = 4
"""Largest number of references that both ends remember: labels and limits, and the labels and limits before them."""
UNFIT = (pickle.PicklingError, AttributeError, TypeError)
"""Errors that pickle raises for objects that Ray can send, such as functions without a name."""


@dataclass(frozen=True, slots=True)
class Carried:
    """Answer that contains references which the caller does not know yet. It is returned by Ray and closes the pipes."""

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


class Serving:
    """Base of actors that accept calls over pipes."""

    def serve(self, address: Address, references: Sequence[Any] = ()) -> Carried | None:
        """Answer calls that arrive on the pipes, until the caller closes the pipes. Raises the first error of a call.

        references : references that both ends know. The first answer with an unknown reference is returned, which closes the
            pipes.
        """
        known = {name: reference for reference in references if (name := name_of(reference)) is not None}
        with contextlib.suppress(Ended), answering(address) as pipes:
            pipes.write(b"")
            while True:
                method, arguments = _Incoming(pipes.read(), known).load()
                answer = getattr(self, method)(*arguments)
                try:
                    body, used = written(answer)
                except UNFIT:
                    return Carried(answer)
                if not known.keys() >= used.keys():
                    return Carried(answer)
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
            with contextlib.suppress(Ended):
                self._pipes.write(body)

    def hear(self) -> Any:
        """Return the answer to the last call, or raise the error of this call."""
        if self._pipes is not None:
            with contextlib.suppress(Ended):
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
        except Ended:
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


class Served(Remote):
    """Group of Ray actors. While `near` is True, calls use pipes; `near` means that all actors run on this machine.

    An error of a call sets `near` to False, since a lost member may restart on another machine.

    lost : function that returns the error for a member that does not answer within `seconds`. ended : as for `Caller`. members,
        wait, encode, handles : as for `Remote`.
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
        super().__init__(members, wait, encode, handles=handles)
        self.near = False
        self._begun: Callable[[], tuple[list[Any], Exception | None]] | None = None
        self._callers = [
            Caller(member, lambda ref, k=k: wait(k, ref), lambda k=k: lost(k), seconds, ended)  # type: ignore[misc]
            for k, member in enumerate(self.members)
        ]

    def start(self, method: str, *arguments: Any) -> Each:
        """Call a method of all members by Ray, and return references to the answers."""
        self._finish()
        for caller in self._callers:
            caller.close()
        return super().start(method, *arguments)

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
        """Return the answers of all members, and the first error, or None without an error."""
        found: list[Any] = []
        failed: Exception | None = None
        for caller in self._callers:
            try:
                found.append(caller.hear())
            except Exception as error:  # noqa: BLE001 - raised later, once no member is at work any more
                failed = failed or error
        if failed is not None:
            self.near = False
        self._begun = None
        return found, failed


def _result(heard: tuple[list[Any], Exception | None]) -> list[Any]:
    found, failed = heard
    if failed is not None:
        raise failed
    return found
