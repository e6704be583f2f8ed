"""Query `Backward`: sums of records' gradients over blocks of columns; and `Reweigh`, which repeats its effect."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from vfl.errors import PrivacyError
from vfl.queries.passes import Piece
from vfl.queries.query import NotSent, Sum, Weighted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.base.problem import Block
    from vfl.base.types import Vector
    from vfl.privacy.events import Gaussian, PoissonSubsampledGaussian, ReleaseKey
    from vfl.privacy.geometry import Clip
    from vfl.queries.parts import Records, Reply, Sums
    from vfl.queries.passes import Fold, RecordCap
    from vfl.queries.query import OnShares, Query, Rows


class BlockSum(NamedTuple):
    """The sum of one block, see `Term`."""

    block: Block
    centre: Vector
    scale: Vector
    clip: Clip
    event: Gaussian | PoissonSubsampledGaussian | None


@dataclass(frozen=True, slots=True, eq=False)
class Backward(Sum, Weighted):
    """Release of Σ_i clip(scale ∘ r_i x_{i,S}) over one block per party, under one event for all blocks.

    centres, scales : one (s,) vector per block, as in `Step`.
    clip : cap on each party's share of a record's contribution. If several parties are addressed, the weighting must bound a
        record's contribution to all of them, and `event` has the sensitivity of all sums together.
    capped : as in `Descend`; in a query with noise, it names the charge. The executor turns steps of a message into `Backward`
        queries.
    fold : disjoint public batch of the query; `LinearPredictors` sets the weights of all other records to 0. Or the query's
        part of a larger release (`Gram`).
    """

    blocks: tuple[Block, ...]
    centres: tuple[Vector, ...]
    scales: tuple[Vector, ...]
    clip: Clip
    event: Gaussian | PoissonSubsampledGaussian | None
    part: int = 0
    fold: Fold | None = None
    capped: RecordCap | None = None

    def __post_init__(self) -> None:
        if self.products is not isinstance(self.fold, Piece):
            raise PrivacyError("products of columns are pieces of one release, and no other sums are")
        if not len(self.blocks) == len(self.centres) == len(self.scales):
            raise PrivacyError("a query of sums needs one vector of centres and one of scales per block")
        if self.capped is not None:
            self.capped.require_charge(self.events(), later=False)

    @property
    def batch(self) -> Fold | None:
        """Return the query's batch of records, or its part of a larger release; None if it has neither."""
        return self.fold

    def terms(self) -> tuple[BlockSum, ...]:
        """Return the sum of each block."""
        parts = zip(self.blocks, self.centres, self.scales, strict=True)
        return tuple(BlockSum(*part, self.clip, self.event) for part in parts)

    def sizes(self) -> tuple[int, ...]:
        """Return the length of the released vector of each block."""
        return tuple(block.size for block in self.blocks)

    def shares(self) -> Mapping[str, Query]:
        """Return one share per block, for the block's owner, with a separate noise stream."""
        return {
            block.party: replace(
                self,
                blocks=(block,),
                centres=(centre,),
                scales=(scale,),
                part=part,
                capped=self.capped and self.capped.of(block.party),
            )
            for part, (block, centre, scale) in enumerate(
                zip(self.blocks, self.centres, self.scales, strict=True), self.part
            )
        }

    def replay(self, released: tuple[Vector, ...]) -> Query | None:
        """Return the query that repeats the change which this query made to the coordinator's per-record state."""
        return Reweigh(self.weighting, self.fold, knots=self.knots, subsample=self.subsample)

    def on_shares(self, parties: Sequence[str], label: str) -> Mapping[str, Query]:
        """Return the whole query for every party: all of them open its sums together, with noise."""
        return dict.fromkeys(parties, self)

    def opened(self, at: OnShares, key: ReleaseKey) -> Mapping[str, Reply]:
        """Open the sums of all blocks."""
        return at.sums(self, key)

    def addresses(self, party: str, n_coordinates: int, n_columns: int) -> bool:
        """Return True for one block, since the share of a party has one."""
        return len(self.blocks) == 1

    @property
    def grid(self) -> float:
        """Return the grid of the clip."""
        return self.clip.unit

    def required(self) -> float:
        """Return Δ of the sums of all blocks together.

        A cap of the weights, or a record cap, bounds a record over all parties. Otherwise each party clips only its own share.
        """
        Δ = self.clip.sensitivity_of(self, sum(block.size for block in self.blocks))
        caps = (getattr(bound, "cap", math.inf) for bound in (self.weighting, self.capped))
        parties = 1 if min(caps) <= self.clip.cap else len({block.party for block in self.blocks})
        return Δ if parties == 1 else Δ * math.nextafter(math.sqrt(parties), math.inf)

    def exact(self, rows: Rows, records: Records) -> list[Sums]:
        """Return the sum of the party's block."""
        r = rows.within(self.batch, records.given("weights"))
        return [rows.sum(t.block, t.centre, t.scale, t.clip, r, self.capped) for t in self.terms()]


@dataclass(frozen=True, slots=True, eq=False)
class Reweigh(NotSent, Weighted):
    """Repeats the change that a `Backward` query made to the coordinator's per-record state. No party is asked."""

    fold: Fold | None = None

    @property
    def batch(self) -> Fold | None:
        """Return the batch of records, or None for all records."""
        return self.fold

    of_model: ClassVar[bool] = True  # on secret shares, no per-record state is kept
