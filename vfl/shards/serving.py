"""Calls of Ray actors over local pipes (vfl.shards.pipes), for processes of one machine.

Only processes of one user can open the pipes, and each of them could call the other by Ray, too. A Ray call costs some
milliseconds of processor time on both sides. With pipes, one Ray call (`serve`) stays open and all others use the pipes.
Errors, losses and new references to the object store still travel by Ray, so callers handle them as for any Ray call:

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
    """{name: reference to an object in the object store}, which messages carry as names."""

KNOWN = 4
"""Largest number of references that both ends remember: to labels and limits, and to the previous labels and limits."""
UNFIT = (pickle.PicklingError, AttributeError, TypeError)
"""Errors of pickle for objects that Ray can send, such as functions without a name."""


@dataclass(frozen=True, slots=True)
class Carried:
    """Answer with references that the caller does not know yet; it closes the pipes."""

    answer: Any


class _Outgoing(pickle.Pickler):
    """Pickler that writes references by name, and collects these references."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.references: References = {}

    def persistent_id(self, value: Any) -> bytes | None:
        """Return the name of a reference; None for other objects."""
        name = name_of(value)
        if name is not None:
            self.references[name] = value
        return name


class _Incoming(pickle.Unpickler):
    """Unpickler that looks up references by name."""

    def __init__(self, body: bytes, known: References) -> None:
        super().__init__(io.BytesIO(body))
        self._known = known

    def persistent_load(self, name: bytes) -> Any:
        """Return the reference."""
        return self._known[name]


def written(message: Any) -> tuple[bytes, References]:
    """Return the message in bytes, and the references that it contains."""
    file = io.BytesIO()
    pickler = _Outgoing(file)
    pickler.dump(message)
    return file.getvalue(), pickler.references


class Serving:
    """Base of actors that accept calls over pipes."""

    def serve(self, address: Address, references: Sequence[Any] = ()) -> Carried | None:
        """Answer the calls that arrive on the pipes until the caller closes the pipes; raise the first error of a call.

        references : known references. The first answer with an unknown reference closes the pipes and is returned.
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
                del arguments, answer, body  # they may be large, and the next call may come much later
        return None


class Caller:
    """Caller of one member over pipes, which are opened for the first call and again after an error.

    member : actor. wait : function that waits for the answer of a Ray call, and raises its errors. lost : function that returns
        the error for a member that exceeds `seconds`. ended : function that returns True if a Ray call has an answer.
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
        """Send a call, (method, arguments) converted by `written`. `hear` raises the error if sending failed."""
        if self._pipes is None or not self._known.keys() >= references.keys():
            self._open(references)
        if self._pipes is not None:
            with contextlib.suppress(Ended):
                self._pipes.write(body)

    def hear(self) -> Any:
        """Return the answer of the last call, or raise its error."""
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
        """Close the pipes. Ray calls of the member then wait only for the current call."""
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
    """Return the references in an answer; {} if they cannot be named."""
    try:
        return written(answer)[1]
    except UNFIT:
        return {}


class Served(Remote):
    """Group of Ray actors. Calls use pipes while `near` is True, which means that all actors run on this machine.

    An error of a call sets `near` to False, since a lost member may restart on another machine.

    lost : returns the error for a member that does not answer within `seconds`. ended : as for `Caller`. members, wait, encode,
        handles : as for `Remote`.
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
        """Return references to the answers."""
        self._finish()
        for caller in self._callers:
            caller.close()
        return super().start(method, *arguments)

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all members; return the answers, or raise the first error once all members have answered."""
        return self.begin(method, *arguments)()

    def begin(self, method: str, *arguments: Any) -> Callable[[], list[Any]]:
        """Call a method of all members; return a function that waits for the answers, as `ask` does."""
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
        """Read the answers to the last call: the pipes carry one call at a time."""
        if self._begun is not None:
            self._begun()
        self._begun = None

    def _heard(self) -> tuple[list[Any], Exception | None]:
        """Return the answers of all members and the first error, if any."""
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
