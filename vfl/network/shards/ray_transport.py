"""Answers of Ray actors, and vectors that actors exchange. If an actor is lost, PartyLost is raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from vfl.errors import PartyLost, VflError
from vfl.network.shards.lending import Borrower, Lent, StoredVector

if TYPE_CHECKING:
    from collections.abc import Callable

    from vfl.base.types import Room, Vector

INLINE_BYTES = 100_000
"""Largest size in bytes up to which sending a vector inline costs less than using the object store."""
FETCH_SECONDS = 600.0
"""Time limit, in seconds, for one vector to arrive from the object store."""


class NamedActor:
    """Base of actors whose name, of run and party, appears where Ray shows an actor: in its lists, logs and dashboard."""

    def __repr__(self) -> str:
        context = ray.get_runtime_context()
        name = context.get_actor_name() if context.get_actor_id() else None
        return name or object.__repr__(self)


class Reader:
    """Reads the vectors that other actors send to this process."""

    def __init__(self) -> None:
        self._borrower = Borrower()

    def reads(self, probe: Lent | None) -> bool:
        """Return True if this process can read shared memory of the actor that has sent the probe."""
        return probe is not None and self._borrower.borrow(probe) is not None

    def read(self, given: Vector | Lent | StoredVector | None) -> Vector | None:
        """Return a given vector; a shared or stored one is read-only. Return None if shared memory can no longer be read."""
        if isinstance(given, Lent):
            return self._borrower.borrow(given)
        if isinstance(given, StoredVector):
            stored: Vector = ray.get(given.reference, timeout=FETCH_SECONDS)
            return stored
        return given


def stored(vector: Vector) -> Vector | StoredVector:
    """Return a reference to the vector in the object store. A small vector is returned itself, to be sent inline."""
    return vector if vector.nbytes <= INLINE_BYTES else StoredVector(ray.put(vector), 0)


def sent(vector: Vector, lend: Callable[[Vector], Lent | None], *, near: bool) -> Vector | Lent | StoredVector:
    """Return a small vector itself; else return a reference to the vector in shared memory or in the object store.

    near : True if all readers are on this machine. Shared memory is then used if possible.
    """
    lent = lend(vector) if near and vector.nbytes > INLINE_BYTES else None
    return stored(vector) if lent is None else lent


def room_to_send(size: int, room: Room, *, near: bool) -> Vector | None:
    """Return shared memory in which to compute a vector of `size` entries, so that `sent` need not copy the vector.

    Return None if `sent` would not use shared memory.
    """
    return room(size) if near and 8 * size > INLINE_BYTES else None


def answer_of(name: str, ref: Any, timeout: float, actor: Any = None) -> Any:
    """Wait for one answer of an actor. Raises the actor's own errors unchanged, and PartyLost if the actor is lost.

    actor : handle of the actor, whose process is killed if the answer is late. Ray then restarts the actor as a dead one, and
        never repeats the call. Ray ends even a stopped process, after some seconds. None kills nothing.
    """
    try:
        return ray.get(ref, timeout=timeout)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, RayError):  # the actor could not fetch its arguments
            raise PartyLost(f"{name!r} was cut off: {_first_line(cause)}", name) from error
        raise (cause if isinstance(cause, VflError) else error) from None
    except GetTimeoutError:
        if actor is not None:
            ray.kill(actor, no_restart=False)
        raise PartyLost(f"{name!r} did not answer within {timeout:g} s", name) from None
    except RayError as error:
        raise PartyLost(f"{name!r} died: {_first_line(error)}", name) from error


def answered(ref: Any) -> bool:
    """Return True if the actor has answered, or will never answer."""
    return bool(ray.wait([ref], timeout=0)[0])


def name_of(value: Any) -> bytes | None:
    """Return the name of a reference to an object in the object store; None for any other value."""
    name: bytes | None = value.binary() if isinstance(value, ray.ObjectRef) else None
    return name


def _first_line(error: Exception) -> str:
    """Return the first line of the cause, without the tables of ids that Ray adds."""
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
