"""Queries from the coordinator to the parties.

A query is public: it names blocks, clips, events and released coordinates, so it can be logged, hashed and replayed. The
per-record vectors that it uses (`Records`) travel separately and are never part of it. A query addressed to several parties
is split into one share per party; a share is a query of the same type.

| query | a party computes | released | to `Margins` only | charged as |
|---|---|---|---|---|
| Moments | Σ_i x_ij/(2B_j), Σ_i x_ij²/B_j² + noise | yes | | one joint Gaussian |
| Ranges | histograms over powers of two, or over the grids of curves, + noise | yes | | one joint Gaussian |
| Backward | Σ_i clip(r_i x_{i,S}) + noise | yes | | one joint Gaussian |
| Gram | products of columns, Σ_i t_i z_ij z_ik + noise | yes | | one joint Gaussian for all pieces |
| Columns | scale_j (x_ij − c_j) of some columns | | an n-vector per column | |
| Forward | X_k w_k, of the training or the held-out part | | n-vector | |
| Descend | per step: Backward, Δ = rule(w_S, u), X_S Δ | each u | Σ X_S Δ | one Gaussian per step |
| Select | its best noisy score | the winning coordinate only | | one bounded-range event |
| RecordNorms | Σ_j (scale_j (x_ij − c_j))², of the training or the held-out part | | n-vector | |
| Groups | codes of the categories of its group columns, of the held-out part | | n-vector | |
| Sample | nothing: the coordinator draws a secret batch | | n-vector | |
| Tally | nothing: `Margins` adds up a statistic of margin and label + noise | yes | | one joint Gaussian |

`Margins` is the coordinator's per-record state (coordinator.states).

Forward, Tally and RecordNorms work on one of the two parts, Groups on the held-out part, all others on the training part
alone (`Query.side`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.errors import PrivacyError
from vfl.holdout import Side
from vfl.messages.query import (
    COLUMNS,
    HELD_GROUPS,
    HELD_NORMS,
    HELD_OUT,
    Block,
    Joint,
    Local,
    Need,
    Query,
    Unasked,
    Weighted,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vfl.messages.batches import Fold
    from vfl.messages.passes import RecordCap
    from vfl.messages.query import Rule, ScoreRule, Statistic
    from vfl.messages.wire import Reply
    from vfl.privacy.events import BoundedRange, Event, Gaussian, PoissonSubsampledGaussian, ReleaseKey
    from vfl.privacy.geometry import Clip
    from vfl.privacy.noise import NoiseSource
    from vfl.types import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Sample(Local):
    """A secret Poisson sample. The coordinator's `Margins` keeps the sample as 'batch', (n,) of 0 and 1. Nothing is released.

    Every record is drawn independently with probability exactly `rate`: its 64-bit word is compared with rate·2⁶⁴. A replay
    draws a new sample, which is equally secret; releases from the old sample are not affected.

    rate : in (0, 1], a multiple of 2⁻⁶⁴.
    """

    rate: float

    def __post_init__(self) -> None:
        if not (0.0 < self.rate <= 1.0 and (self.rate * 2.0**64).is_integer()):
            raise PrivacyError(f"a sampling rate is in (0, 1] and a multiple of 2^-64, not {self.rate!r}")

    @property
    def target(self) -> str:
        """Name under which the coordinator's `Margins` keeps the sample."""
        return "batch"

    def answer(
        self, counts: tuple[int, ...], noise: NoiseSource, key: ReleaseKey
    ) -> tuple[tuple[Vector, ...], Iterable[Vector]]:
        """Draw the sample from one keystream, shard by shard: it is the same for any number of shards."""
        if self.rate == 1.0:
            return (), map(np.ones, counts)
        stream, most = noise.stream(key), np.uint64(int(self.rate * 2.0**64))
        return (), ((stream.words(count) < most).astype(np.float64) for count in counts)


@dataclass(frozen=True, slots=True, eq=False)
class Tally(Joint, Unasked, Query):
    """Ask the margins actor for one joint release: a statistic of margins and labels over one part of the records.

    event : must have at least the sensitivity of the statistic; otherwise PrivacyError.
    """

    statistic: Statistic
    event: Gaussian | None
    side: Side = Side.TRAINING

    def __post_init__(self) -> None:
        if self.event is not None and not self.event.sensitivity >= self.statistic.sensitivity:
            raise PrivacyError("the noise of a tally is made for a smaller sensitivity than its statistic has")

    def sizes(self) -> tuple[int, ...]:
        """One vector."""
        return (self.statistic.dimension,)


@dataclass(frozen=True, slots=True, eq=False)
class Unnoised(Tally):
    """Tally without noise, allowed only in a job that asks for it; the job's certificate says so."""


@dataclass(frozen=True, slots=True, eq=False)
class Reweigh(Unasked, Weighted):
    """Repeats the change that a Backward made to the coordinator's per-record state. No party is asked."""

    fold: Fold | None = None

    @property
    def batch(self) -> Fold | None:
        """The fold, if any."""
        return self.fold


@dataclass(frozen=True, slots=True, eq=False)
class Moments(Joint, Query):
    """Sums of first and second moments over the first `widths[party]` columns of each addressed party, one joint release.

    Each share releases (2m,): Σ_i x_ij/(2B_j), then Σ_i x_ij²/B_j². Without `means`, or for a party in `uncentred`, it
    releases (m,): the second sum alone.

    reach : {party: (m,) B_j ≥ |x_ij|}; None asks for exact sums of x_ij and x_ij² as they are (event must be None).
    event : its sensitivity is `moments_sensitivity` of all columns together.
    part : number of the party's noise stream.
    """

    widths: Mapping[str, int]
    reach: Mapping[str, Vector] | None
    means: bool
    event: Gaussian | None
    part: int = 0
    uncentred: frozenset[str] = frozenset()

    def asks_means(self, party: str) -> bool:
        """Return True if a party's first moments are requested too."""
        return self.means and party not in self.uncentred

    def sizes(self) -> tuple[int, ...]:
        """Return the length of the vector of each party."""
        return tuple(width * (1 + self.asks_means(name)) for name, width in self.widths.items())


@dataclass(frozen=True, slots=True, eq=False)
class Ranges(Joint, Query):
    """Histograms of some columns of each addressed party, one joint release.

    Each share releases (m·cells,), the histograms of its columns one after the other: over powers of two
    (vfl.privacy.magnitudes.histogram), or for curves over a public grid between their bounds (vfl.features.grid.edges_of).

    columns : {party: positions of the columns}; positions among its curves without declared knots if `of_curves`.
    cells : number of cells of one histogram.
    event : its sensitivity holds for all columns together.
    part : number of the party's noise stream.
    """

    columns: Mapping[str, tuple[int, ...]]
    cells: int
    event: Gaussian | None
    part: int = 0
    of_curves: bool = False

    def sizes(self) -> tuple[int, ...]:
        """Return the length of the vector of each party."""
        return tuple(len(indices) * self.cells for indices in self.columns.values())


@dataclass(frozen=True, slots=True, eq=False)
class Backward(Joint, Weighted):
    """Σ_i clip(scale ∘ r_i x_{i,S}) over one block per party, one joint release.

    centres, scales : one (s,) vector per block, as in `Step`.
    clip : cap on each party's share of the contribution. When several parties are addressed, the weighting has to
        bound the joint contribution, and `event` carries the joint sensitivity.
    capped : as in `Descend`; in a query with noise, it names the charge. The executor turns the steps of a visit into Backward
        queries.
    fold : disjoint public batch of the query, outside which margins set all weights to 0; or the query's piece of a larger
        release (`Gram`).
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
        if self.capped is not None:
            self.capped.require_charge(self.events(), later=False)

    @property
    def batch(self) -> Fold | None:
        """The fold, if any."""
        return self.fold

    def sizes(self) -> tuple[int, ...]:
        """One vector per block."""
        return tuple(block.size for block in self.blocks)

    def shares(self) -> Mapping[str, Query]:
        """Return one share for each block's owner, with a noise stream of its own."""
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
        """Return the query that repeats the change that this query made to the coordinator's per-record state."""
        return Reweigh(self.weighting, self.fold, knots=self.knots, subsample=self.subsample)


OFF_DIAGONAL = math.sqrt(2.0)
"""Factor of a released triangle's off-diagonal entries. The triangle's Euclidean norm is then the matrix's Frobenius norm."""
MOST_HELD_BYTES = 1 << 26
"""Largest size, in bytes, of the columns that the coordinator's `Margins` (coordinator.states) holds at once.

Wider parties send their columns in several messages."""


def held_at_once(n_records: int) -> int:
    """Return the largest number of columns that the coordinator's `Margins` (coordinator.states) holds at once."""
    return max(1, MOST_HELD_BYTES // (8 * max(n_records, 1)))


@dataclass(frozen=True, slots=True, eq=False)
class Gram(Backward):
    """Products of columns Σ_i t_i z_ij z_ik, z_ij = scale_j (x_ij − c_j): a piece of one joint release.

    A party receives one vector with t, then t∘y for the label if the weighting is `of_label`, then t∘z_j for each column in
    `held`. It releases the products of the label and of the columns of another party with its own columns, and then, if
    `own`, the lower triangle of its own columns, column by column. Off-diagonal entries, and those of the label, count √2.

    held : the columns of one party that the coordinator's `Margins` (coordinator.states) holds; None if it holds no columns.
    """

    held: Block | None = None
    own: bool = True

    @property
    def of_label(self) -> bool:
        """True if the label is multiplied with all columns."""
        return bool(getattr(self.weighting, "of_label", False))

    @property
    def width(self) -> int:
        """Number of vectors of n entries in the weights."""
        return 1 + self.of_label + (0 if self.held is None else self.held.size)

    def rows_for(self, party: str) -> list[int]:
        """Return the matrix rows that are released at all of a party's columns, in order; the label has the last row."""
        columns: Iterable[int] = ()
        if self.held is not None and self.held.party != party:
            columns = range(self.held.coordinates.start, self.held.coordinates.stop)
        return [*([-1] * self.of_label), *columns]

    def sizes(self) -> tuple[int, ...]:
        """One vector per block: the products of its columns with the received vectors, then its own triangle."""
        return tuple(
            block.size * len(self.rows_for(block.party)) + block.size * (block.size + 1) // 2 * self.own
            for block in self.blocks
        )

    def read(self, M: Vector) -> tuple[Vector, ...]:
        """Return the entries of a symmetric matrix M that the query would release, a vector per block."""
        found = []
        for block in self.blocks:
            S, (upper, factors) = block.coordinates, _triangle(block.size if self.own else 0)
            cross = OFF_DIAGONAL * M[self.rows_for(block.party), S]
            found.append(np.concatenate([cross.ravel(), factors * M[S, S][upper]]))
        return tuple(found)

    def fill(self, M: Vector, released: tuple[Vector, ...]) -> None:
        """Write the released products into the symmetric matrix M, in place: the inverse of `read`."""
        for block, u in zip(self.blocks, released, strict=True):
            S, rows = block.coordinates, self.rows_for(block.party)
            count = len(rows) * block.size
            cross = u[:count].reshape(len(rows), block.size) / OFF_DIAGONAL
            M[rows, S], M[S, rows] = cross, cross.T
            upper, factors = _triangle(block.size if self.own else 0)
            for place in (upper, upper[::-1]):
                M[S, S][place] = u[count:] / factors


def _triangle(size: int) -> tuple[tuple[Any, Any], Vector]:
    """Return the indices of an upper triangle, row by row, and the factor of each entry."""
    first, second = np.triu_indices(size)
    return (first, second), np.where(first == second, 1.0, OFF_DIAGONAL)


@dataclass(frozen=True, slots=True, eq=False)
class Forward(Query):
    """X_k w_k of each addressed party; nothing is released.

    shifts : {party: number added to every record}, −c·w for columns centred at c; (K,) with K margins per record.
    side : the part of the records. Xw of held-out records is kept apart: only a Tally of that part sees it.
    """

    coordinates: Mapping[str, tuple[Block, Vector]]
    into: str = "add"
    shifts: Mapping[str, Any] = field(default_factory=dict)
    side: Side = Side.TRAINING

    @property
    def target(self) -> str:
        """`into` for training records; a separate name for held-out records, whose Xw is kept apart."""
        return self.into if self.side is Side.TRAINING else HELD_OUT


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One block release and the update that follows from it.

    centre : (s,) public means subtracted from the columns, both in the gradient and in X_S Δ.
    scale : (s,) factors of r_i x_{i,S} before clipping, 1/√M_j in the default geometry.
    """

    block: Block
    centre: Vector
    scale: Vector
    clip: Clip
    rule: Rule
    event: Gaussian | None

    def moved(self, w: Vector, u: Vector, push: Vector | None = None) -> Vector:
        """Return Δ = rule(w_S + push_S, u) + push_S, (s,). A function of released values.

        With a proximal step this is the heavy-ball method: w_S + Δ = prox(w_S + push_S − gain·u), at a gradient taken at w.

        w : (p_k,) the party's coordinates, of which a rule may read those that it names. push : (p_k,) momentum term; None
            without momentum.
        """
        near, own = getattr(self.rule, "near", ()), w[self.block.local]
        if push is not None:
            own = own + push[self.block.local]
        delta: Vector = self.rule(own, u, w[list(near)]) if near else self.rule(own, u)  # type: ignore[call-arg]
        return delta if push is None else delta + push[self.block.local]

    def shift(self, delta: Vector) -> Any:
        """Return −c·Δ, which centring adds to the margins of every record; with K margins per record (K,), one for each.

        delta : (s,) the block's update; with K margins (s·K,), the classes of the first column, then those of the next.
        """
        n_margins: int = getattr(self.rule, "classes", 1)
        if n_margins == 1:
            return -float(self.centre @ delta)
        return -(self.centre * delta).reshape(-1, n_margins).sum(axis=0)


@dataclass(frozen=True, slots=True, eq=False)
class Descend(Weighted):
    """Visits: each addressed party walks through its steps in order.

    start : {party: (p_k,) its coordinates of w before the visit}.
    parts : {party: number of its first step}, the step's place among the events.
    replayed : the earlier releases of these steps, to repeat their updates without another release.
    sweep : the party gets margins and labels and recomputes r after every step; otherwise it gets r, and all steps of
        the query are computed from the same r.
    capped : the record cap of the pass that the steps belong to, whose one charge pays for them; None caps and charges
        every step separately.
    push : {party: (p_k,) momentum of its coordinates}, from earlier releases. A party that is left out has none.
    """

    steps: Mapping[str, tuple[Step, ...]]
    start: Mapping[str, Vector]
    sweep: bool = True
    parts: Mapping[str, int] = field(default_factory=dict)
    replayed: tuple[Vector, ...] | None = None
    capped: RecordCap | None = None
    push: Mapping[str, Vector] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.capped is not None:
            self.capped.require_charge(self.events(), later=True)

    @property
    def need(self) -> Need:
        """Margins and labels for a sweep, else weights."""
        return Need.MARGINS if self.sweep else Need.WEIGHTS

    def shares(self) -> Mapping[str, Query]:
        """Return each party's visit; its steps keep their place among the events."""
        shares: dict[str, Query] = {}
        part = 0
        for name, steps in self.steps.items():
            last = part + len(steps)
            shares[name] = self.share(
                name,
                parts={name: part},
                replayed=self.replayed and self.replayed[part:last],
                capped=self.capped and self.capped.of(name),
            )
            part = last
        return shares

    def sizes(self) -> tuple[int, ...]:
        """One vector per step."""
        return tuple(step.block.size for step in self.ordered())

    def replay(self, released: tuple[Vector, ...]) -> Query | None:
        """Return the visit with its releases filled in, so that it releases nothing again."""
        return replace(self, replayed=released)

    def ordered(self) -> tuple[Step, ...]:
        """Return the steps in the order of their releases."""
        return tuple(step for steps in self.steps.values() for step in steps)

    def events(self) -> tuple[Event | None, ...]:
        """Return one event per step. A replayed visit releases nothing."""
        return () if self.replayed is not None else tuple(step.event for step in self.ordered())


@dataclass(frozen=True, slots=True, eq=False)
class Select(Joint, Weighted):
    """The coordinate with the best noisy score over all addressed parties; only that coordinate is released.

    An exponential mechanism of bounded range (vfl.privacy.selection): each party answers the best of its noisy scores, the
    executor takes the best of these. One event is charged for all parties.

    coordinates : {party: (block, its coordinates of w)}.
    centres, scales : {party: (s,)}, as in `Step`.
    clip : clip of one coordinate; every coordinate of the sum is clipped separately.
    rules : {party: function from (w, u) to scores, u in units of the cap}, all with the same sensitivity.
    part : number of the party's noise stream.
    """

    coordinates: Mapping[str, tuple[Block, Vector]]
    centres: Mapping[str, Vector]
    scales: Mapping[str, Vector]
    clip: Clip
    rules: Mapping[str, ScoreRule]
    event: BoundedRange | None
    part: int = 0

    def sizes(self) -> tuple[int, ...]:
        """One released coordinate."""
        return (1,)

    def combine(self, replies: Mapping[str, Reply]) -> tuple[Vector, ...]:
        """Return the winning coordinate of w as a vector of one entry; discard all other replies."""
        best = max(reply.selected for reply in replies.values() if reply.selected is not None)
        return (np.array([float(best.coordinate)]),)


@dataclass(frozen=True, slots=True, eq=False)
class RecordNorms(Query):
    """Σ_j (scale_j (x_ij − c_j))² per record, for the coordinator's `Margins` only, which keeps the sum as 'norms'.

    rows : {party: (block, centres, scales)}.
    side : the part of the records. Norms of held-out records are kept apart: only a Tally of that part sees them.
    """

    rows: Mapping[str, tuple[Block, Vector, Vector]]
    side: Side = Side.TRAINING

    @property
    def target(self) -> str:
        """Name under which `Margins` keeps the sum: 'norms' for training records, and HELD_NORMS for held-out records."""
        return "norms" if self.side is Side.TRAINING else HELD_NORMS


@dataclass(frozen=True, slots=True, eq=False)
class Columns(Query):
    """Scaled and centred columns of one party, one after another, for the coordinator's `Margins` only.

    rows : {party: (block, centres, scales)}, of one party.
    """

    rows: Mapping[str, tuple[Block, Vector, Vector]]

    @property
    def target(self) -> str:
        """Name under which `Margins` keeps the columns until products with them are released."""
        return COLUMNS

    @property
    def width(self) -> int:
        """Number of columns."""
        return sum(block.size for block, _, _ in self.rows.values())


@dataclass(frozen=True, slots=True, eq=False)
class Groups(Query):
    """Codes of the held-out records' groups, for `Margins` only; nothing is released, and no other party sees the codes.

    A party answers (m,) Σ_k stride_k·code_k over its group columns. With strides 1, s₁, s₁s₂, … over all parties, where s_k
    is one more than the number of categories of column k, the sum of all answers determines every code.

    columns : {party: ((column, stride), ...)}.
    """

    columns: Mapping[str, tuple[tuple[str, int], ...]]

    @property
    def side(self) -> Side:
        """The held-out part."""
        return Side.HELD_OUT

    @property
    def target(self) -> str:
        """Name under which `Margins` keeps the sum, for a Tally of the held-out part alone."""
        return HELD_GROUPS
