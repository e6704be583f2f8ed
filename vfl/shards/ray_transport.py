"""Answers of Ray actors. The loss of an actor is raised as PartyLost."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from vfl.errors import PartyLost, VflError


def answer_of(name: str, ref: Any, timeout: float) -> Any:
    """Wait for one answer of an actor. Raise its own errors unchanged, and PartyLost if the actor is lost."""
    try:
        return ray.get(ref, timeout=timeout)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, RayError):  # it could not fetch its arguments
            raise PartyLost(f"{name!r} was cut off: {_first_line(cause)}", name) from error
        raise (cause if isinstance(cause, VflError) else error) from None
    except GetTimeoutError:
        raise PartyLost(f"{name!r} did not answer within {timeout:g} s", name) from None
    except RayError as error:
        raise PartyLost(f"{name!r} died: {_first_line(error)}", name) from error


def _first_line(error: Exception) -> str:
    """Return the first line of the cause, without the tables of ids that Ray adds."""
    return next(iter(str(error).splitlines()), type(error).__name__)
