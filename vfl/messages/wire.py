"""Per-record vectors that accompany a query, and replies to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vfl.privacy.selection import NoisyScore
    from vfl.types import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Per-record vectors that a query works on, (n,) each. Data: never logged, never kept by a party.

    They are float64; margins are float32 if the job has margins='float32'.

    weights : r, when the party may see residuals only.
    margins, labels : Xw and y, when it may see both. Where records have weights, labels are (2n,), y and then s.
    limits : C/‖z_i‖, the largest residual under a record cap; given together with margins and labels.
    """

    weights: Vector | None = None
    margins: Vector | None = None
    labels: Vector | None = None
    limits: Vector | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A constant vector of a run in a transport's store, fetched once by each party instead of once per query.

    reference : the store's reference to the vector. number : different for each stored vector.
    """

    reference: Any
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """Reply of a party.

    released : one vector per release; noised, so it may leave the federation.
    vector : (n,) for the coordinator's `Margins` only; of the type of the margins that the query was sent with.
    selected : the party's best coordinate in w with its noisy score, for the executor only. The executor discards all
        scores and losing coordinates.
    seconds : the party's computing time in seconds.
    """

    released: tuple[Vector, ...] = ()
    vector: Vector | None = None
    selected: NoisyScore | None = None
    seconds: float = 0.0
