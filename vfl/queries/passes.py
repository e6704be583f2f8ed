"""Passes that one charge pays for: over disjoint batches of records, or under a record cap over disjoint blocks of columns."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.errors import PrivacyError
from vfl.privacy.events import Gaussian

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vfl.base.types import Integers, Vector
    from vfl.privacy.events import Event, PoissonSubsampledGaussian, ReleaseKey
    from vfl.privacy.geometry import Clip
    from vfl.queries.parts import Scaled

    Noise = Gaussian | PoissonSubsampledGaussian | None


@dataclass(frozen=True, slots=True)
class Fold:
    """One of `of` disjoint public batches that together contain every record once. A pass makes one release per batch.

    A record takes part in only one release of a pass. The pass therefore costs as much as one release (parallel composition:
    given the earlier releases, the release of every other batch is the same function of the other records). The whole pass is
    charged with batch 0.

    number : 0 … of − 1, in the order of the releases. seed : public seed that identifies the pass.
    """

    number: int
    of: int
    seed: tuple[int, ...]

    divides: ClassVar[bool] = True
    """True if the batches divide the records."""

    def __post_init__(self) -> None:
        if min(self.seed, default=0) < 0:
            raise PrivacyError("the seed of a pass is a sequence of whole numbers of at least 0")
        if not 0 <= self.number < self.of:
            raise PrivacyError(
                f"a pass has the batches 0 to {self.of - 1}, and batch {self.number} would hold records a second time"
            )

    def members(self, n_records: int) -> Vector:
        """Return (n,) with 1 for each record of this batch and 0 for all other records."""
        members = np.zeros(n_records)
        members[_order(self.seed, n_records)[self.number :: self.of]] = 1.0
        return members


@lru_cache(maxsize=1)
def _order(seed: tuple[int, ...], n_records: int) -> Integers:
    """Return the order of the records in a pass, (n,). All batches of a pass are cut from this order."""
    order: Integers = np.random.default_rng(seed).permutation(n_records)
    order.flags.writeable = False
    return order


@dataclass(frozen=True, slots=True)
class Piece(Fold):
    """One of `of` parts of a single release from all records. The release is charged as a whole, with part 0.

    All parts are fixed before the first one is released, and their noise is independent. Releasing the parts one after another
    is therefore the same as releasing them at once. The event has the sensitivity of all parts together.
    """

    divides: ClassVar[bool] = False

    def members(self, n_records: int) -> Vector:
        """Return (n,) ones, since every part uses every record."""
        return np.ones(n_records)


def counted(columns: Iterable[int]) -> tuple[list[int], int]:
    """Return the different columns that a query releases, and the largest number of releases that one of them is part of."""
    times = Counter(columns)
    return list(times), max(times.values(), default=0)


@dataclass(frozen=True, slots=True)
class Paid:
    """The single charge of a pass. The charge covers all releases of the pass.

    key : key of the charge in the coordinator's ledger, and in the party ledger of every participating party.
    event : the charged event.
    """

    key: ReleaseKey
    event: Gaussian


@dataclass(frozen=True, slots=True, eq=False)
class RecordCap:
    """Cap C on a record's total contribution: |ρ_i|·‖z_i‖ ≤ C for its residual ρ_i and its scaled row z_i over all columns.

    Guarantee. All releases under one charge of a Gaussian event are together μ-GDP under replace-one, with μ = Δ/σ of that
    event. The conditions: one query alone releases a coordinate under the charge, at most m times, and no release of the query
    has √m times a larger Δ/σ (docs/mathematics.md has the proof). A pass over disjoint blocks therefore costs as much as
    releasing all coordinates at once, and m passes with √m times the noise cost the same.

    cap : C.
    rows : {party: (block of all its columns, their centres, their scales)}, from which the party's part of z_i follows.
    prices : ((event, count), ...), events of successive charges; the last event applies to all later charges. Δ/σ never falls
        from one event to the next.
    paid : the charge that covers this query; the executor sets it. A query with noise has `prices` before it is charged, and
        `paid` afterwards. Messages to parties contain no prices.
    """

    cap: float
    rows: Mapping[str, Scaled]
    prices: tuple[tuple[Gaussian, int], ...] = ()
    paid: Paid | None = None

    def __post_init__(self) -> None:
        if not self.cap > 0:
            raise PrivacyError(f"a record cap must be positive, not {self.cap!r}")

    def require_charge(self, events: Iterable[Event | None], *, later: bool) -> None:
        """Raise PrivacyError for a query with noise that was not charged.

        later : True if a charge at `prices` will follow.
        """
        carried = {event is not None for event in events}
        if len(carried) > 1:
            raise PrivacyError("a query of a pass carries noise in all of its releases, or in none")
        if True in carried and self.paid is None and not (later and self.prices):
            raise PrivacyError("a block of a pass would be released with noise but was not charged")

    def require_gaussian(self, events: Iterable[Event | None]) -> None:
        """Raise PrivacyError unless all releases under the cap, and the charge that pays for them, are Gaussian."""
        paid = () if self.paid is None else (self.paid.event,)
        if any(event is not None and type(event) is not Gaussian for event in (*events, *paid)):
            raise PrivacyError("releases under a record cap, and the charge that pays for them, must be Gaussian")

    def price(self, number: int) -> Gaussian:
        """Return the event of charge `number`, counted from 0."""
        if not self.prices:
            raise PrivacyError("a pass must be charged, and its query names no event")
        for event, count in self.prices:
            number -= count
            if number < 0:
                return event
        return self.prices[-1][0]

    def of(self, party: str) -> RecordCap:
        """Return the cap with the rows of this party only, as the party's share of a query carries it."""
        return replace(self, rows={party: self.rows[party]})

    def require_covered(self, releases: Iterable[tuple[Clip, Noise]], times: int = 1) -> None:
        """Raise PrivacyError unless the charge `paid` covers these releases: one cap, one grid, and enough noise in each.

        times : m, the largest number of these releases that one coordinate is part of. m·(Δ/σ)² must not exceed that of the
            charge.
        """
        known: set[tuple[Clip, Noise]] = set()
        for clip, event in releases:
            if (clip, event) in known:
                continue
            known.add((clip, event))
            if self.paid is None or event is None:
                raise PrivacyError("a block of a pass would be released without having been charged")
            if clip.cap != self.cap or clip.dimension < sum(block.size for block, _, _ in self.rows.values()):
                raise PrivacyError("a block of a pass has a cap or grid different from that of its pass")
            if not event.sensitivity >= clip.sensitivity:
                raise PrivacyError(
                    "a block of a pass claims a smaller sensitivity than all of its coordinates have together"
                )
            whole = self.paid.event
            if (event != whole or times > 1) and (
                times * (Fraction(event.sensitivity) * Fraction(whole.sigma)) ** 2
                > (Fraction(whole.sensitivity) * Fraction(event.sigma)) ** 2
            ):
                raise PrivacyError("a block of a pass would carry less noise than was charged")
