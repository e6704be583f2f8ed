"""Events of a party that has joined a federation, for the owner's screen and log.

Events state requests, decisions and costs. Events never contain data, ids, residuals or scores.

Order: (Connected (Requested (Refused | Allowed (Released | Warned)* Ended))* Disconnected)*. A request in progress when the
connection breaks continues after the next Connected, or is reported by Ended.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PURPOSES = ("train", "align", "predict", "evaluate", "serve", "check")
"""Purposes of requests to a party. `check` measures the connection for `vfl federation check` and reads no data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The stream to the coordinator is open, and the coordinator has the pinned key."""

    coordinator: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnected:
    """The stream was closed, or could not be opened. The party tries again. Emitted once per outage, not per attempt.

    why : the reason, a sentence. in_flight : ids of runs that were not finished.
    """

    why: str
    in_flight: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """The coordinator has sent a request. The owner's policy has not judged it yet.

    purpose : one of PURPOSES. run : id of the run. job : name of the job. digest : digest of the job, or of the part of a
        model.
    columns : the requested columns. epsilon, delta : the job's budget; None without privacy, or if no release has noise.
    source : name that the owner gave the source; '' for the source without a name.
    threats : the threat model of trust='secure', in words; '' for other jobs. flags : flags of the job's certificate.
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
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """The owner's policy allows the request. policy : False if the party was started without a policy."""

    run: str
    policy: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A request was refused: by the owner's policy, by the party ledger, or because it was malformed.

    why : the sentence that the coordinator receives.
    """

    run: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Cost of a run so far. Emitted at most once per second.

    releases : number of sums to which this party added noise. A pass over disjoint blocks has several sums and one charge.
    epsilon : ε of the releases at the job's δ; None without privacy. reserved : ε that the party ledger has reserved for the
        run; None without a party ledger.
    """

    run: str
    releases: int
    epsilon: float | None = None
    reserved: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """The data of a service cannot be used in full, or can be used again.

    why : a sentence that names file, column and record, for the owner alone. stale : True if the data cannot be read, so that
    records read earlier, if any, are scored.
    """

    run: str
    why: str
    stale: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A request has ended.

    why : '' if it was completed, else the reason, a sentence. releases, epsilon : as in `Released`. records : number of used
        records; None if unknown. left : ε left in the party ledger; None without a party ledger.
    """

    run: str
    why: str = ""
    seconds: float = 0.0
    releases: int = 0
    epsilon: float | None = None
    records: int | None = None
    left: float | None = None


Event = Connected | Disconnected | Requested | Allowed | Refused | Released | Warned | Ended

if TYPE_CHECKING:
    OnEvent = Callable[[Event], None]


def plain_of(event: Event) -> dict[str, Any]:
    """Return an event as a dictionary of plain values. Its entry 'event' is the kind of the event."""
    return {"event": type(event).__name__.lower(), **dataclasses.asdict(event)}
