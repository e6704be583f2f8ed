"""Events of a party that has joined a federation, for its owner's screen and log.

They state requests, decisions and costs. They never hold data, ids, residuals or scores.

Order: (Connected (Requested (Refused | Allowed Released* Ended))* Disconnected)*. A request that is in flight when the
connection breaks continues after the next Connected, or is reported by Ended.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PURPOSES = ("train", "align", "predict", "evaluate", "serve", "check")
"""Purposes of requests to a party. `check` measures the connection for `vfl federation check` and touches no data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The stream to the coordinator is open, and the coordinator's key is the pinned one."""

    coordinator: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnected:
    """The stream is closed, or could not be opened; the party tries again. Emitted once per outage, not per attempt.

    why : a sentence. in_flight : runs that were not finished.
    """

    why: str
    in_flight: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """The coordinator sent a request, which the owner's policy has not judged yet.

    purpose : one of PURPOSES. run : id of the run. job, digest : name and digest of the job, or digest of the model's part.
    columns : the requested columns. epsilon, delta : the job's budget; None without privacy, or if no release carries noise.
    source : name that the owner gave the source; '' for the source without a name.
    threats : the threat model of trust='secure' in words.
    """

    purpose: str
    run: str
    job: str
    digest: str
    columns: tuple[str, ...] = ()
    trust: str = ""
    epsilon: float | None = None
    delta: float | None = None
    source: str = ""
    threats: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """The owner's policy allows the request. policy : False if the party was started without a policy."""

    run: str
    policy: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A request is refused: by the owner's policy, by the owner's book of budgets, or as malformed.

    why : the sentence sent back to the coordinator.
    """

    run: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Cost of a run so far; at most one per second.

    releases : number of sums to which this party added noise; a pass over disjoint blocks has several sums and one charge.
    epsilon : ε of the releases at the job's δ; None without privacy. reserved : ε that the owner's book reserved for the run;
    None without a book.
    """

    run: str
    releases: int
    epsilon: float | None = None
    reserved: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A request is done.

    why : '' if it was completed, else a sentence. releases, epsilon : as in Released. records : number of records used; None
    if unknown. left : ε left in the owner's book; None without a book.
    """

    run: str
    why: str = ""
    seconds: float = 0.0
    releases: int = 0
    epsilon: float | None = None
    records: int | None = None
    left: float | None = None


Event = Connected | Disconnected | Requested | Allowed | Refused | Released | Ended

if TYPE_CHECKING:
    OnEvent = Callable[[Event], None]


def plain_of(event: Event) -> dict[str, Any]:
    """Return an event as plain values, with its kind under 'event'."""
    return {"event": type(event).__name__.lower(), **dataclasses.asdict(event)}
