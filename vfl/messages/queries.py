"""Queries from the coordinator to the parties.

A query is public: it names blocks, clips, events and released coordinates, so it can be logged, hashed and replayed. The
per-record vectors that it uses (`Records`) are sent separately and are never part of the query. A query to several parties is
split into one query of the same type per party, called the party's share of the query.

| query | a party computes | released | to `Margins` only | charged as |
|---|---|---|---|---|
| Moments | Σ_i x_ij/(2B_j), Σ_i x_ij²/B_j² + noise | yes | | one Gaussian for all parties |
| Ranges | histograms over powers of two, or over the grids of curves, + noise | yes | | one Gaussian for all parties |
| Backward | Σ_i clip(r_i x_{i,S}) + noise | yes | | one Gaussian for all parties |
| Gram | products of columns, Σ_i t_i z_ij z_ik + noise | yes | | one Gaussian for all parties and queries |
| Columns | scale_j (x_ij − c_j) of some columns | | an n-vector per column | |
| Forward | X_k w_k, of the training or the held-out part | | n-vector | |
| Descend | per step: Backward, Δ = rule(w_S, u), X_S Δ | each u | Σ X_S Δ | one Gaussian per step |
| Select | its best noisy score | the winning coordinate only | | one bounded-range event |
| RecordNorms | Σ_j (scale_j (x_ij − c_j))², of the training or the held-out part | | n-vector | |
| Groups | codes of the categories of its group columns, of the held-out part | | n-vector | |
| Sample | nothing: the coordinator draws a secret batch | | n-vector | |
| Tally | nothing: `Margins` adds up a statistic of margin and label + noise | yes | | one Gaussian |

`Margins` is the coordinator's per-record state (coordinator.states).

Records may be divided into a training part and a held-out part. Forward, Tally and RecordNorms work on one of the two parts,
Groups on the held-out part, and all other queries on the training part (`Query.side`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vfl.errors import PrivacyError
from vfl.holdout import Side
from vfl.messages.passes import Piece
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
    from collections.abc import Callable, Iterable, Mapping

    from vfl.messages.passes import Fold, RecordCap
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
    draws a new sample, which is as secret as the old one. Releases from the old sample are not affected.

    rate : in (0, 1], a multiple of 2⁻⁶⁴.
    """

    rate: float

    def __post_init__(self) -> None:
        if not (0.0 < self.rate <= 1.0 and (self.rate * 2.0**64).is_integer()):
            raise PrivacyError(f"a sampling rate is in (0, 1] and a multiple of 2^-64, not {self.rate!r}")

    @property
    def target(self) -> str:
        """Return the name under which the coordinator's `Margins` keeps the sample."""
        return "batch"

    @property
    def draws(self) -> float:
        """Return the rate of the sample."""
        return self.rate

    def answer(
        self, counts: tuple[int, ...], noise: NoiseSource, key: ReleaseKey
    ) -> tuple[tuple[Vector, ...], Iterable[Vector]]:
        """Draw the sample from one keystream, shard by shard. The sample is equal for any number of shards."""
        if self.rate == 1.0:
            return (), map(np.ones, counts)
        stream, most = noise.stream(key), np.uint64(int(self.rate * 2.0**64))
        return (), ((stream.words(count) < most).astype(np.float64) for count in counts)


@dataclass(frozen=True, slots=True, eq=False)
class Tally(Joint, Unasked, Query):
    """Release a statistic of margins and labels over one part of the records. The coordinator's `Margins` computes it.

    event : event with at least the sensitivity of the statistic; otherwise PrivacyError. None for no noise.
    """

    statistic: Statistic
    event: Gaussian | None
    side: Side = Side.TRAINING

    def __post_init__(self) -> None:
        if self.event is not None and not self.event.sensitivity >= self.statistic.sensitivity:
            raise PrivacyError("the noise of a tally is too small for the sensitivity of its statistic")

    @property
    def tallied(self) -> Statistic:
        """Return the statistic."""
        return self.statistic

    def sizes(self) -> tuple[int, ...]:
        """Return the length of the single released vector."""
        return (self.statistic.dimension,)


@dataclass(frozen=True, slots=True, eq=False)
class Unnoised(Tally):
    """Tally without noise. It is allowed only if the job asks for it, and the job's certificate then says so."""


@dataclass(frozen=True, slots=True, eq=False)
class Reweigh(Unasked, Weighted):
    """Repeats the change that a `Backward` query made to the coordinator's per-record state. No party is asked."""

    fold: Fold | None = None

    @property
    def batch(self) -> Fold | None:
        """Return the batch of records, or None for all records."""
        return self.fold


@dataclass(frozen=True, slots=True, eq=False)
class Moments(Joint, Query):
    """Sums of first and second moments over the first `widths[party]` columns of each party, released under one event.

    Each share releases (2m,): Σ_i x_ij/(2B_j), then Σ_i x_ij²/B_j². Without `means`, or for a party in `uncentred`, a share
    releases only the second sum, (m,).

    reach : {party: (m,) bounds B_j ≥ |x_ij|}; None for the exact sums of x_ij and x_ij² without B (event must then be None).
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
        """Return True if the query also asks for the party's first moments."""
        return self.means and party not in self.uncentred

    def sizes(self) -> tuple[int, ...]:
        """Return the length of each party's released vector."""
        return tuple(width * (1 + self.asks_means(name)) for name, width in self.widths.items())


@dataclass(frozen=True, slots=True, eq=False)
class Ranges(Joint, Query):
    """Histograms of some columns of each addressed party, released under one event.

    Each share releases (m·cells,), the histograms of its m columns one after another. The cells are powers of two
    (vfl.privacy.magnitudes.histogram), or for curves a public grid between their bounds (vfl.features.curve.edges_of).

    columns : {party: positions of the columns}; with `of_curves`, positions among the curves without declared knots.
    cells : number of cells of one histogram.
    event : its sensitivity is that of all columns together.
    part : number of the party's noise stream.
    """

    columns: Mapping[str, tuple[int, ...]]
    cells: int
    event: Gaussian | None
    part: int = 0
    of_curves: bool = False

    def sizes(self) -> tuple[int, ...]:
        """Return the length of each party's released vector."""
        return tuple(len(indices) * self.cells for indices in self.columns.values())


@dataclass(frozen=True, slots=True, eq=False)
class Counts(Joint, Weighted):
    """Counts of records per coordinate, separately for records with r_i > 0 and with r_i < 0, released under one event.

    A record counts for a coordinate if its cell there exceeds ½. Each share releases (2s,): the counts of its s coordinates for
    r_i > 0, then those for r_i < 0. The party counts each record for the first `most` of these coordinates at most.

    Sensitivity under replace-one: Δ = √(2·Σ most), for any cells and any weights r. Proof: the party itself turns a record into
    a vector of zeros and at most m = `most` ones. Two such vectors a, b differ in at most 2m entries, each by 1, so
    ‖a − b‖² ≤ 2m. This is ‖a‖² + ‖b‖², without the term −2aᵀb ≤ 2‖a‖‖b‖ that vectors of either sign can have. Two records
    with m ones in different bins attain it. Several parties add up their squares.

    columns : {party: positions of the coordinates}. most : {party: m}, its number of columns with bins.
    event : its sensitivity is that of all counts together. part : number of the party's noise stream.
    """

    columns: Mapping[str, tuple[int, ...]]
    most: Mapping[str, int]
    event: Gaussian | None
    part: int = 0

    def sizes(self) -> tuple[int, ...]:
        """Return the length of each party's released vector."""
        return tuple(2 * len(positions) for positions in self.columns.values())


class Summed(NamedTuple):
    """The sum of one block, see `Term`."""

    block: Block
    centre: Vector
    scale: Vector
    clip: Clip
    event: Gaussian | PoissonSubsampledGaussian | None


@dataclass(frozen=True, slots=True, eq=False)
class Backward(Joint, Weighted):
    """Release of Σ_i clip(scale ∘ r_i x_{i,S}) over one block per party, under one event for all blocks.

    centres, scales : one (s,) vector per block, as in `Step`.
    clip : cap on each party's share of a record's contribution. If several parties are addressed, the weighting must bound a
        record's contribution to all of them, and `event` has the sensitivity of all sums together.
    capped : as in `Descend`; in a query with noise, it names the charge. The executor turns steps of a visit into `Backward`
        queries.
    fold : disjoint public batch of the query; `Margins` sets the weights of all other records to 0. Or the query's part of a
        larger release (`Gram`).
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
        if isinstance(self, Gram) is not isinstance(self.fold, Piece):
            raise PrivacyError("products of columns are pieces of one release, and no other sums are")
        if not len(self.blocks) == len(self.centres) == len(self.scales):
            raise PrivacyError("a query of sums needs one vector of centres and one of scales per block")
        if self.capped is not None:
            self.capped.require_charge(self.events(), later=False)

    @property
    def batch(self) -> Fold | None:
        """Return the query's batch of records, or its part of a larger release; None if it has neither."""
        return self.fold

    def terms(self) -> tuple[Summed, ...]:
        """Return the sum of each block."""
        parts = zip(self.blocks, self.centres, self.scales, strict=True)
        return tuple(Summed(*part, self.clip, self.event) for part in parts)

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


OFF_DIAGONAL = math.sqrt(2.0)
"""Factor of off-diagonal entries when a triangle of a symmetric matrix is released: its norm is the matrix's Frobenius norm."""
MOST_HELD_BYTES = 1 << 26
"""Largest size, in bytes, of the columns that the coordinator's `Margins` (coordinator.states) holds at once.

Parties with more columns send them in several messages."""


def held_at_once(n_records: int) -> int:
    """Return the largest number of columns that the coordinator's `Margins` (coordinator.states) holds at once."""
    return max(1, MOST_HELD_BYTES // (8 * max(n_records, 1)))


@dataclass(frozen=True, slots=True, eq=False)
class Gram(Backward):
    """Products of columns, Σ_i t_i z_ij z_ik with z_ij = scale_j (x_ij − c_j): one part of a release under one event.

    A party receives one vector: t, then t∘y for the label if the weighting is `of_label`, then t∘z_j for each column in
    `held`. The party releases the products of its own columns with the label and with these columns of another party. If
    `own`, it then releases the lower triangle of its own columns, column by column. Off-diagonal entries, and entries of the
    label, have a factor √2.

    held : columns of one party that the coordinator's `Margins` (coordinator.states) holds; None if it holds no columns.
    """

    fold: Piece = Piece(0, 1, ())  # noqa: RUF009 - frozen
    held: Block | None = None
    own: bool = True

    @property
    def of_label(self) -> bool:
        """Return True if the label is multiplied with all columns."""
        return bool(getattr(self.weighting, "of_label", False))

    @property
    def width(self) -> int:
        """Return the number of vectors with n entries that the weights consist of."""
        return 1 + self.of_label + (0 if self.held is None else self.held.size)

    def extent(self) -> tuple[object, ...]:
        """Return the number of the part, its columns and kind of clip."""
        number = self.fold.number, self.fold.of
        return number, self.part, self.blocks, self.held, self.own, type(self.clip), self.clip.dimension

    def factors(self) -> tuple[object, ...]:
        """Return clip, weights, centres and scales of a party's share."""
        weighting: Any = self.weighting
        common = (
            replace(weighting, of_label=False) if self.of_label else weighting
        )  # the first part alone has the label
        return self.clip, common, self.centres[0].tobytes(), self.scales[0].tobytes()

    def rows_for(self, party: str) -> list[int]:
        """Return the matrix rows that are released for all columns of a party, in order. The label has the last row, −1."""
        columns: Iterable[int] = ()
        if self.held is not None and self.held.party != party:
            columns = range(self.held.coordinates.start, self.held.coordinates.stop)
        return [*([-1] * self.of_label), *columns]

    def sizes(self) -> tuple[int, ...]:
        """Return the number of products released per block: with received vectors, and (if `own`) among the block's columns."""
        return tuple(
            block.size * len(self.rows_for(block.party)) + block.size * (block.size + 1) // 2 * self.own
            for block in self.blocks
        )

    def read(self, M: Vector) -> tuple[Vector, ...]:
        """Return the entries of a symmetric matrix M that this query would release, as one vector per block."""
        found = []
        for block in self.blocks:
            S, (upper, factors) = block.coordinates, _triangle(block.size if self.own else 0)
            cross = OFF_DIAGONAL * M[self.rows_for(block.party), S]
            found.append(np.concatenate([cross.ravel(), factors * M[S, S][upper]]))
        return tuple(found)

    def fill(self, M: Vector, released: tuple[Vector, ...]) -> None:
        """Write the released products into the symmetric matrix M, in place. This is the inverse of `read`."""
        for block, u in zip(self.blocks, released, strict=True):
            S, rows = block.coordinates, self.rows_for(block.party)
            count = len(rows) * block.size
            cross = u[:count].reshape(len(rows), block.size) / OFF_DIAGONAL
            M[rows, S], M[S, rows] = cross, cross.T
            upper, factors = _triangle(block.size if self.own else 0)
            for place in (upper, upper[::-1]):
                M[S, S][place] = u[count:] / factors


def _triangle(size: int) -> tuple[tuple[Any, Any], Vector]:
    """Return the indices of a matrix's upper triangle, row by row, and the factor of each entry in a release (1 or √2)."""
    first, second = np.triu_indices(size)
    return (first, second), np.where(first == second, 1.0, OFF_DIAGONAL)


@dataclass(frozen=True, slots=True, eq=False)
class Forward(Query):
    """X_k w_k of each addressed party. Nothing is released.

    shifts : {party: number to add for every record}, −c·w for columns centred at c; (K,) with K margins per record.
    side : the part of the records. Xw of held-out records is kept separately: only a `Tally` of the held-out part uses it.
    """

    coordinates: Mapping[str, tuple[Block, Vector]]
    into: str = "add"
    shifts: Mapping[str, Any] = field(default_factory=dict)
    side: Side = Side.TRAINING

    @property
    def target(self) -> str:
        """Return `into` for training records. Return a separate name for held-out records, whose Xw is kept separately."""
        return self.into if self.side is Side.TRAINING else HELD_OUT


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Release of one block, and the update that follows from the released vector.

    centre : (s,) public means that are subtracted from the columns, both in the gradient and in X_S Δ.
    scale : (s,) factors of r_i x_{i,S} before clipping; in the default geometry 1/√M_j.
    """

    block: Block
    centre: Vector
    scale: Vector
    clip: Clip
    rule: Rule
    event: Gaussian | None

    def moved(self, w: Vector, u: Vector, push: Vector | None = None) -> Vector:
        """Return Δ = rule(w_S + push_S, u) + push_S, (s,). Δ depends on released values only.

        With a proximal step, this is the heavy-ball method: w_S + Δ = prox(w_S + push_S − gain·u), for a gradient taken at w.

        w : (p_k,) the party's coordinates; a rule may also read other coordinates that it names. push : (p_k,) momentum; None
            without momentum.
        """
        near, own = getattr(self.rule, "near", ()), w[self.block.local]
        if push is not None:
            own = own + push[self.block.local]
        delta: Vector = self.rule(own, u, w[list(near)]) if near else self.rule(own, u)  # type: ignore[call-arg]
        return delta if push is None else delta + push[self.block.local]

    def shift(self, delta: Vector) -> Any:
        """Return −c·Δ, which centring adds to the margin of every record. With K margins per record, return (K,).

        delta : (s,) the block's update; with K margins (s·K,): K entries for the first column, then for the next column.
        """
        n_margins: int = getattr(self.rule, "classes", 1)
        if n_margins == 1:
            return -float(self.centre @ delta)
        return -(self.centre * delta).reshape(-1, n_margins).sum(axis=0)


@dataclass(frozen=True, slots=True, eq=False)
class Descend(Weighted):
    """Visits: each addressed party takes its steps in order. A step releases one block and updates its coordinates.

    start : {party: (p_k,) coordinates of w before the visit}.
    parts : {party: number of its first step}, the position of this step among the events.
    replayed : earlier releases of these steps, to repeat their updates without a new release.
    sweep : True if the party receives margins and labels and recomputes r after every step; else it receives r, and all steps
        of the query use the same r.
    capped : record cap of the pass to which the steps belong. The pass is charged once, for all of its steps. None to clip and
        charge every step separately.
    push : {party: (p_k,) momentum of its coordinates}, from earlier releases. A party that is left out has no momentum.
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
        """Return margins and labels for a sweep, else weights."""
        return Need.MARGINS if self.sweep else Need.WEIGHTS

    def shares(self) -> Mapping[str, Query]:
        """Return each party's visit. Its steps keep their positions among the events."""
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
        """Return the length of the released vector of each step."""
        return tuple(step.block.size for step in self.ordered())

    def replay(self, released: tuple[Vector, ...]) -> Query | None:
        """Return the visit with its releases filled in, so that nothing is released again."""
        return replace(self, replayed=released)

    @property
    def by_pass(self) -> bool:
        """Return True under a record cap with noise. A replayed visit counts, too, since its pass was charged."""
        return self.capped is not None and None not in self.events()

    def terms(self) -> tuple[Step, ...]:
        """Return the steps; () for a replayed visit, which releases nothing."""
        return () if self.replayed is not None else self.ordered()

    def first_part(self, party: str) -> int:
        """Return the position of the party's first step among the events."""
        return self.parts.get(party, 0)

    def expanded(self, ask: Callable[[Query], Mapping[str, Reply]], *, together: bool = False) -> tuple[Vector, ...]:
        """Return the same releases, under the same keys, from single queries: per step a sum, the update, and a `Forward`.

        together : True to ask for all sums at equal margins in one `Backward` query.
        """
        released: list[Vector] = []
        w = {party: start.copy() for party, start in self.start.items()}
        pending: list[Forward] = []
        own: dict[str, Any] = {"knots": self.knots, "subsample": self.subsample}
        ordered = self.ordered()
        at_once = max(1, len(ordered)) if together and not self.sweep else 1
        for part in range(0, len(ordered), at_once):
            steps = ordered[part : part + at_once]
            blocks, centres, scales = zip(*((step.block, step.centre, step.scale) for step in steps), strict=True)
            clip, event = steps[0].clip, steps[0].event  # equal under a record cap
            backward = Backward(self.weighting, blocks, centres, scales, clip, event, part, capped=self.capped, **own)
            released += backward.combine(ask(backward))
            for step, u in zip(steps, released[part:], strict=True):
                party = step.block.party
                delta = step.moved(w[party], u, self.push.get(party))
                w[party][step.block.local] += delta
                pending.append(Forward({party: (step.block, delta)}, shifts={party: step.shift(delta)}, **own))
            if self.sweep:
                ask(pending.pop())
        for forward in pending:
            ask(forward)
        return tuple(released)

    def ordered(self) -> tuple[Step, ...]:
        """Return the steps in the order of their releases."""
        return tuple(step for steps in self.steps.values() for step in steps)

    def events(self) -> tuple[Event | None, ...]:
        """Return one event per step. A replayed visit releases nothing."""
        return () if self.replayed is not None else tuple(step.event for step in self.ordered())


@dataclass(frozen=True, slots=True, eq=False)
class Select(Joint, Weighted):
    """The coordinate with the best noisy score over all addressed parties. Only this coordinate is released.

    This is an exponential mechanism of bounded range (vfl.privacy.selection). Each party answers with its best noisy score,
    and the executor takes the best of these. One event is charged for all parties.

    coordinates : {party: (block, coordinates of w in the block)}.
    centres, scales : {party: (s,)}, as in `Step`.
    clip : clip of one coordinate. Every coordinate of the sum is clipped separately.
    rules : {party: function from (w, u) to scores, with u in units of the cap}, all of equal sensitivity.
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
        """Return 1, the length of the released vector: one coordinate."""
        return (1,)

    def combine(self, replies: Mapping[str, Reply]) -> tuple[Vector, ...]:
        """Return the winning coordinate of w as a vector with one entry. All other replies are discarded."""
        best = max(reply.selected for reply in replies.values() if reply.selected is not None)
        return (np.array([float(best.coordinate)]),)


@dataclass(frozen=True, slots=True, eq=False)
class RecordNorms(Query):
    """Σ_j (scale_j (x_ij − c_j))² for each record i. Only `Margins` at the coordinator receives the sums, as 'norms'.

    rows : {party: (block, centres, scales)}.
    side : the part of the records. Norms of held-out records are kept separately: only a `Tally` of the held-out part uses
        them.
    """

    rows: Mapping[str, tuple[Block, Vector, Vector]]
    side: Side = Side.TRAINING

    @property
    def target(self) -> str:
        """Return the name under which `Margins` keeps the sum: 'norms' for training records, else HELD_NORMS."""
        return "norms" if self.side is Side.TRAINING else HELD_NORMS


@dataclass(frozen=True, slots=True, eq=False)
class Columns(Query):
    """Scaled and centred columns of one party, one after another. Only the coordinator's `Margins` receives them.

    rows : {party: (block, centres, scales)} with one party.
    """

    rows: Mapping[str, tuple[Block, Vector, Vector]]

    @property
    def target(self) -> str:
        """Return the name under which `Margins` keeps the columns until products with them are released."""
        return COLUMNS

    @property
    def width(self) -> int:
        """Return the number of columns."""
        return sum(block.size for block, _, _ in self.rows.values())


@dataclass(frozen=True, slots=True, eq=False)
class Groups(Query):
    """Codes of the held-out records' groups, for `Margins` only. Nothing is released, and no other party sees the codes.

    A party answers with Σ_k stride_k·code_k over its group columns k, (m,). Strides are 1, s₁, s₁s₂, … over all parties, where
    s_k is one more than the number of categories of column k. The sum of all answers then determines every code.

    columns : {party: ((column, stride), ...)}.
    """

    columns: Mapping[str, tuple[tuple[str, int], ...]]

    @property
    def side(self) -> Side:
        """Return the held-out part."""
        return Side.HELD_OUT

    @property
    def target(self) -> str:
        """Return the name under which `Margins` keeps the sum. Only a `Tally` of the held-out part uses it."""
        return HELD_GROUPS
