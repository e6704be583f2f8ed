"""Per-record vectors that accompany a query, and replies to a query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vfl.privacy.selection import NoisyScore
    from vfl.types import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Per-record vectors that a query uses, (n,) each. They are data: never logged, and never kept by a party.

    The vectors are float64, except that margins are float32 if the job has margins='float32'.

    weights : r, if the party may see only residuals.
    margins, labels : Xw and y, if the party may see both. If records have weights s, labels are (2n,): y, then s.
    limits : C/‖z_i‖, the largest residual under a record cap; given only together with margins and labels.
    """

    weights: Vector | None = None
    margins: Vector | None = None
    labels: Vector | None = None
    limits: Vector | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A constant vector of a run in a transport's store. Each party fetches it once, instead of once per query.

    reference : reference to the vector in the store. number : a number that differs between stored vectors.
    """

    reference: Any
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """Reply of a party.

    released : one vector per release, with noise, so the vectors may be published.
    vector : (n,), for the coordinator's `Margins` only, in the floating-point type of the margins that came with the query.
    selected : the party's best coordinate in w with its noisy score, for the executor only. The executor discards all
        scores and all losing coordinates.
    seconds : time that the party took for computing, in seconds.
    """

    released: tuple[Vector, ...] = ()
    vector: Vector | None = None
    selected: NoisyScore | None = None
    seconds: float = 0.0
