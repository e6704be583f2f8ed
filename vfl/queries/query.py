"""The query interface: what every query declares, and the five shapes of queries.

| shape | result | queries |
|---|---|---|
| `Sum` | exact sums over records, released with noise | Moments, Ranges, Counts, Backward, Gram, Tally |
| `PerRecord` | a number per record, for `LinearPredictors` alone, never released | Forward, RecordNorms, Columns, Groups |
| `Draw` | something that the coordinator draws or releases itself | Sample |
| a message | several steps at one party, each a release and an update | Descend |
| a selection | the best of noisy scores | Select |

A module defines one query: its fields, its exact statistic, its sensitivity with the proof, what an owner refuses, and the size
of its answer. Party, coordinator, party ledger, shards and codec handle shapes, and never ask which query it is.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from vfl.base.holdout import Side, part_of
from vfl.base.problem import Block
from vfl.errors import FederationError, PrivacyError
from vfl.privacy.events import Gaussian, PoissonSubsampledGaussian
from vfl.queries.parts import Need, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Self

    from vfl.base.types import Integers, Room, Vector
    from vfl.kernels.geometry import Geometry
    from vfl.privacy.events import BoundedRange, Event, ReleaseKey
    from vfl.privacy.geometry import Clip
    from vfl.privacy.noise import NoiseSource
    from vfl.privacy.selection import NoisyScore
    from vfl.queries.parts import Knots, Records, Scaled, Statistic, Sums, Term, Update, Weighting
    from vfl.queries.passes import Fold, RecordCap


class Asked(enum.Enum):
    """Runs in which parties answer a query. The default refuses."""

    NEVER = "never"
    TRUSTED = "not on secret shares"
    ALWAYS = "always, since the query concerns the columns of one owner alone"


class ReleaseTerms(NamedTuple):
    """Terms of one release: the value of one step of the sum, the event to draw noise for, and Δ of the party's sum alone."""

    grid: float
    event: Gaussian | PoissonSubsampledGaussian | None
    sensitivity: float


class Rows(Protocol):
    """Some rows of one party, as the exact statistic of a query reads them (parties.rows). Shapes are for n training records.

    columns : stored features of the training records: `n_records`, `column(j)` (n,), `block(start, stop)`. kernels : compiled
        passes over their blocks. threads : number of threads of the kernels, which changes no result.
    """

    party: str
    columns: Any
    kernels: Any
    threads: int

    def labels(self) -> Vector:
        """Return y, then exposures and weights, (n + kn,)."""
        ...

    def block(self, block: Block, side: Side = Side.TRAINING) -> Any:
        """Return the columns of a block, of the training or the held-out records."""
        ...

    def zeros(self, side: Side = Side.TRAINING) -> Vector:
        """Return margins of 0: one per record, or K per record with K classes."""
        ...

    def column(self, row: Scaled, j: int) -> Vector:
        """Return column j of a block, centred and scaled, (n,)."""
        ...

    def n_held_out(self) -> int:
        """Return m, the number of held-out records. Raises PrivacyError if there are none."""
        ...

    def codes(self, column: str) -> Integers:
        """Return the groups of the held-out records in a column that the job compares, (m,)."""
        ...

    def curves(self) -> Any:
        """Return the curves among the columns (vfl.base.features.curve)."""
        ...

    def within(self, fold: Fold | None, r: Vector) -> Vector:
        """Return r, set to 0 outside of a public batch of records. Disjoint batches then need no trust in the coordinator."""
        ...

    def bounds(self, cap: RecordCap, given: Vector | None, labels: Vector, loss: int) -> Vector:
        """Return the largest residuals under a record cap, at most C / (norm of the party's own columns)."""
        ...

    def geometry(self, centre: Vector, scale: Vector, clip: Clip) -> Geometry:
        """Return the geometry of a clipped sum, after checking that the sum over all records stays an exact integer."""
        ...

    def sum(self, block: Block, centre: Vector, scale: Vector, clip: Clip, r: Vector, cap: RecordCap | None) -> Sums:
        """Return Σ_i clip(scale ∘ r_i (x_{i,S} − c)), (s,). Under a record cap, |r_i| is bounded instead."""
        ...


class StepsInProgress(Protocol):
    """Steps in progress on some rows, one after another, each a sum and an update."""

    def step(self, number: int, delta: Vector, shift: Any) -> Sums:
        """Apply the update of the previous step to the margins, and return the sum of this step."""
        ...

    def leave(self, delta: Vector, shift: Any, room: Room) -> Vector:
        """Apply the update of the last step, and return the change of the margins. room : memory for the change."""
        ...


class AtParty(Protocol):
    """A party that answers a query (parties.party). The party adds up the sums of its rows, and adds all noise.

    units : number of equal steps into which the grid of the party's sums is divided (vfl.base.persons).
    """

    name: str
    units: int

    @property
    def n_trained(self) -> int:
        """Return the number of training records."""
        ...

    @property
    def n_records(self) -> int:
        """Return the number of all records."""
        ...

    def sums(self, query: Query, records: Any) -> list[Sums]:
        """Return the exact sum over all rows for each release of a query."""
        ...

    def vector(self, query: Query, records: Any, deltas: tuple[Vector, ...] = ()) -> Any:
        """Return the query's vector with an entry per record. Only the coordinator's `LinearPredictors` may receive it."""
        ...

    def release(self, sums: Sums, terms: ReleaseTerms, key: ReleaseKey) -> Vector:
        """Return sums with the noise of their event."""
        ...

    def best(self, scores: Vector, sensitivity: float, event: BoundedRange | None, key: ReleaseKey) -> NoisyScore:
        """Return the best of the noisy scores. No other score is sent."""
        ...

    def enter(self, query: Query, records: Any) -> Sums:
        """Begin the steps of a message on all rows, and return the sum of its first step."""
        ...

    def step(self, number: int, delta: Vector, shift: Any) -> Sums:
        """Apply the update of the previous step, and return the sum of the next one."""
        ...

    def leave(self, delta: Vector, shift: Any) -> Any:
        """End the steps, and return the change of the margins."""
        ...


class OnShares(Protocol):
    """The coordinator's side of training on secret shares (coordinator.secure). It opens sums that all hold together."""

    def sums(self, query: Any, key: ReleaseKey) -> Mapping[str, Reply]:
        """Return the sums of a gradient query, with noise."""
        ...

    def measures(self, query: Any, key: ReleaseKey) -> Mapping[str, Reply]:
        """Return a statistic of the held-out records, with noise, and the bound V of their linear predictors."""
        ...

    def products(self, query: Any, key: ReleaseKey) -> Mapping[str, Reply]:
        """Return one piece of the products of columns, with noise."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """Base of all queries. The schedule that yields a query receives `combine(replies)`, which contains released values only.

    knots : knots of curves that the run has found; None before. Each party uses them to compute its curves' coordinates
        before it answers. Every query carries them, so that a restarted party needs nothing but its data.
    subsample : number of the subsample whose records the query uses, and on which its events are charged (vfl.base.holdout).
        None in a run without subsamples.
    """

    knots: Knots | None = field(default=None, kw_only=True)
    subsample: int | None = field(default=None, kw_only=True)

    asked: ClassVar[Asked] = Asked.NEVER
    """The runs in which parties answer the query."""
    products: ClassVar[bool] = False
    """True if participants see columns before noise: the plan of the job must release products of columns."""
    of_model: ClassVar[bool] = False
    """True if the query on training records is sent to nobody in a run on secret shares, since it changes only the model."""
    charged_as: ClassVar[tuple[type[Event], ...]] = (Gaussian, PoissonSubsampledGaussian)
    """Kinds of event that describe the noise of the query's releases."""

    # Subject of the query, for the checks that come before every answer.

    def named(self) -> Iterator[tuple[str, Block]]:
        """Yield every block in the query's own fields, with the party that the query names for it."""
        for party, entry in self._entries():
            for part in entry:
                block = part if isinstance(part, Block) else getattr(part, "block", None)
                if block is not None:
                    yield party, block
        if not by_party(self):
            yield from ((term.block.party, term.block) for term in self.terms())

    def _entries(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Yield the tuples in the fields by party, with the party."""
        for name in by_party(self):
            entries = getattr(self, name) or {}
            yield from ((party, entry) for party, entry in entries.items() if isinstance(entry, tuple))

    def addresses(self, party: str, n_coordinates: int, n_columns: int) -> bool:
        """Return True if positions of columns that are in no block are columns of the party, of which it has this many.

        A field by party that is a tuple of whole numbers holds such positions, at least one.
        """
        return all(
            own and all(not isinstance(j, int | np.integer) or 0 <= j < n_columns for j in own)
            for _, own in self._entries()
        )

    def require_addressed(self, party: str, n_coordinates: int, n_columns: int) -> None:
        """Raise PrivacyError for a query that concerns another party, or columns that this party does not have.

        n_coordinates : of the party's part of the model, K per column with K classes. n_columns : of its stored columns.
        """
        given = [getattr(self, name).keys() for name in by_party(self) if getattr(self, name) is not None]
        of_cap = () if self.capped is None else ((name, row[0]) for name, row in self.capped.rows.items())
        if not (
            all(
                name == block.party == party and 0 <= block.start <= block.stop <= n_coordinates
                for name, block in (*of_cap, *self.named())
            )
            and (not given or (given[0] == {party} and all(names <= {party} for names in given)))
            and (self.capped is None or party in self.capped.rows)
            and self.addresses(party, n_coordinates, n_columns)
        ):
            raise PrivacyError(f"party {party!r} was asked about columns that are not its own")

    def asked_of_parties(self, *, on_shares: bool) -> bool:
        """Return True if a party answers the query. on_shares : True in a run on secret shares."""
        return self.asked is Asked.ALWAYS or (self.asked is Asked.TRUSTED and not on_shares)

    def on_shares(self, parties: Sequence[str], label: str) -> Mapping[str, Query]:
        """Return {party: its part} in a run on secret shares; {} for a query that only changes the public model.

        Raises PrivacyError for a query that needs margins.
        """
        if self.of_model and self.side is Side.TRAINING:
            return {}
        if self.asked is not Asked.ALWAYS:
            raise self._needs_margins()
        return self.shares()

    def _needs_margins(self) -> PrivacyError:
        return PrivacyError(f"under trust='secure' nobody sees linear predictors, so {type(self).__name__} is refused")

    def opened(self, at: OnShares, key: ReleaseKey) -> Mapping[str, Reply] | None:
        """Open the query's sums with noise in a run on secret shares; None for a query that single parties answer."""
        return None

    def required(self) -> float | None:
        """Return Δ of the joint release of a query under replace-one, from the query alone, after checks of its parts.

        inf means that nothing bounds the contribution of one record, None that the query has no sums, or checks them itself.
        """
        return None

    def check(self) -> None:
        """Raise PrivacyError if parts of the query are inconsistent, or if one of its events claims too small a sensitivity.

        The check trusts one claim of the sender: that the rows of a record cap are those of the query's blocks. Executor,
        parties and holders of shares check this claim. Executor and party call this method on every query, before anything is
        charged or computed on data. A party also computes Δ of its own share.
        """
        if self.capped is not None:
            self.capped.require_gaussian(self.events())
        for _, entry in self._entries():
            if entry and isinstance(entry[0], Block):
                entry[0].fits(*entry[1:])
            elif entry and isinstance(entry[0], int | np.integer) and len(set(entry)) < len(entry):
                raise PrivacyError(f"a query of {type(self).__name__} names a column twice")
        if not by_party(self):
            for term in self.terms():
                term.block.fits(term.centre, term.scale)
        events: list[Any] = [event for event in self.events() if event is not None]
        if not {type(event) for event in events} <= set(self.charged_as):
            raise PrivacyError(f"{type(self).__name__} came with the event of another mechanism")
        needed = self.required()
        if needed is not None:
            for event in events:
                cover(event.sensitivity, needed)

    def check_share(self, at: AtParty) -> None:
        """Raise PrivacyError if the party's own share needs more than `check` asks for."""

    # Vectors that the query uses, and releases.

    @property
    def fixes_knots(self) -> bool:
        """Return True if curves keep the query's knots for the rest of the run."""
        return True

    @property
    def need(self) -> Need:
        """Return which per-record vectors the addressed parties see."""
        return Need.NOTHING

    @property
    def side(self) -> Side:
        """Return the part of the records that the query uses, and on which its events are charged."""
        return Side.TRAINING

    @property
    def charged_on(self) -> str:
        """Return the name of the part of a public split that the query uses, for its events (vfl.privacy.events.OnPart)."""
        return self.side.value if self.subsample is None else part_of(self.subsample)

    @property
    def target(self) -> str:
        """Return the use of the sum of n-vectors in `LinearPredictors`: 'add' to Xw, 'reset' Xw, or a name to keep it by."""
        return "add"

    @property
    def batch(self) -> Fold | None:
        """Return the query's public batch of records, or its part (`Piece`) of a larger release; None if it has neither."""
        return None

    @property
    def capped(self) -> RecordCap | None:
        """Return the record cap under which the query's sums are released; None without one."""
        return None

    @property
    def by_pass(self) -> bool:
        """Return True if one charge pays for a whole pass of such queries with noise (`RecordCap`)."""
        return False

    def weighed_by(self) -> Weighting | None:
        """Return the function that computes the weights r_i of records; None for a query without weights."""
        return None

    @property
    def width(self) -> int:
        """Return the number of vectors with n entries in the weights of the query."""
        return 1

    def answer_width(self, n_outputs: int) -> int:
        """Return the number of entries per record in the vector of an answer; 0 for a query without one."""
        return 0

    @property
    def draws(self) -> float | None:
        """Return the rate of the secret sample that the query draws; None if it draws none."""
        return None

    @property
    def sampled(self) -> set[float]:
        """Return the rates of the secret samples on which the events rely; {} for none."""
        return {event.rate for event in self.events() if isinstance(event, PoissonSubsampledGaussian)}

    @property
    def tallied(self) -> Statistic | None:
        """Return the statistic of margins and labels that the query releases; None for any other query."""
        return None

    def piece(self) -> tuple[object, object] | None:
        """Return (all that the plan fixes, all that the parts share) of a party's part of a larger release; else None."""
        return None

    def terms(self) -> Sequence[Term]:
        """Return the sums of blocks that the query releases, in order; () for a query that releases none."""
        return ()

    def first_part(self, party: str) -> int:
        """Return the number of the party's first noise stream."""
        return getattr(self, "part", 0)

    def events(self) -> tuple[Event | None, ...]:
        """Return the events to charge for the releases, in the order of `part`. None stands for a release without noise."""
        return ()

    def sizes(self) -> tuple[int, ...]:
        """Return the length of each vector that `combine` returns."""
        return ()

    # How the query is sent, answered and repeated.

    def shares(self) -> Mapping[str, Query]:
        """Return {party: its share of the query}. If the query has a `part`, each share has a separate noise stream."""
        addressed: Mapping[str, Any] = getattr(self, by_party(self)[0])
        if not hasattr(self, "part"):
            if self.sizes():
                raise PrivacyError(f"{type(self).__name__} has no part, so its releases would have one noise stream")
            return {party: self.share(party) for party in addressed}
        return {party: self.share(party, part=number) for number, party in enumerate(addressed)}

    def share(self, party: str, **changes: Any) -> Self:
        """Return one party's share. Fields by party keep only this party's entry. changes : new values of other fields."""
        own: dict[str, Any] = {}
        for name in by_party(self):
            if name not in changes and (entries := getattr(self, name)) is not None:
                own[name] = {party: entries[party]} if party in entries else {}
        return replace(self, **own | changes)

    def exact(self, rows: Rows, records: Records) -> list[Sums]:
        """Return the exact sums over some rows, one per release. Only a party's `release` may receive them."""
        raise self._unanswered(rows.party)

    def vector(self, rows: Rows, records: Records, deltas: Sequence[Vector] = ()) -> Vector:
        """Return the per-record vector of the answer for some rows. Only `LinearPredictors` may receive it.

        deltas : Δ of each step of a message, once its releases are known.
        """
        raise self._unanswered(rows.party)

    def begin(self, rows: Rows, records: Records) -> StepsInProgress:
        """Return the state of a message's steps on some rows, before its first step."""
        raise self._unanswered(rows.party)

    def answer(self, at: AtParty, records: Any, key: ReleaseKey) -> Reply:
        """Return a party's reply, after all checks and charges. Each shape defines this method once."""
        raise self._unanswered(at.name)

    def _unanswered(self, party: str) -> PrivacyError:
        return PrivacyError(f"party {party!r} does not answer {type(self).__name__}")

    def drawn(
        self, counts: tuple[int, ...], noise: NoiseSource, key: ReleaseKey
    ) -> tuple[tuple[Vector, ...], Iterable[Vector]] | None:
        """Return the answer of the coordinator alone (`Draw`); None for a query that it cannot answer alone.

        The answer is the query's releases, and the per-record vector to keep under `target`, one array per shard (or none).
        counts : number of records of each shard, in order.
        """
        return None

    def check_reply(self, reply: Reply, party: str) -> None:
        """Raise FederationError for a party's reply that does not answer its share of this query."""
        if tuple(map(len, reply.released)) != self.sizes() or reply.selected is not None:
            raise FederationError(f"party {party!r} sent releases of different lengths from those requested")
        # A sum without noise can overflow on honest data, so only sums with noise must be finite.
        if None not in self.events() and not all(np.isfinite(vector).all() for vector in reply.released):
            raise FederationError(f"party {party!r} sent a release with noise that is not a finite number")

    def replay(self, released: tuple[Vector, ...]) -> Query | None:
        """Return a query that repeats this query's effect on the margins, given its releases; None if there is no effect.

        A query without releases is repeated unchanged.
        """
        return None if self.sizes() else self

    def updates(self) -> Iterable[Update]:
        """Yield the updates of the model that the query repeats on the margins, for a run that keeps only the public model."""
        return ()

    def expanded(self, ask: Callable[[Query], Mapping[str, Reply]], *, together: bool = False) -> tuple[Vector, ...]:
        """Return the released values, with every step of the query asked as a query of its own.

        together : True to ask all steps at equal margins as one query.
        """
        return self.combine(ask(self))

    def combine(self, replies: Mapping[str, Reply]) -> tuple[Vector, ...]:
        """Return the released values in the order of the shares."""
        return tuple(u for reply in replies.values() for u in reply.released)


def cover(claimed: float, needed: float) -> None:
    """Raise PrivacyError unless the claimed sensitivity is at least the needed one."""
    if needed == math.inf:
        raise PrivacyError(
            "only exact integer sums can be released under an event: clip them to a grid, and state their sensitivity"
        )
    if not claimed >= needed:
        raise PrivacyError(f"noise for a sensitivity of {claimed!r} does not cover sums of sensitivity {needed!r}")


def by_party(query: Query) -> tuple[str, ...]:
    """Return the names of a query's fields that map parties to entries. The first of these fields has all addressed parties."""
    return _by_party(type(query))  # type: ignore[arg-type]  # a class can be hashed


@cache
def _by_party(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if str(f.type).startswith("Mapping[str, "))


class Joint:
    """Mixin for queries whose results are released together, under one privacy event."""

    __slots__ = ()
    event: Any

    def events(self) -> tuple[Event | None, ...]:
        """Return the one event that covers all results of the query."""
        return (self.event,)


class NotSent:
    """Mixin of queries that are sent to no party."""

    __slots__ = ()

    def shares(self) -> Mapping[str, Query]:
        """Return {}, since no party is asked."""
        return {}


@dataclass(frozen=True, slots=True, eq=False)
class Sum(Joint, Query):
    """Shape: exact sums over records, to which a record contributes a bounded part, released with the noise of one event.

    Parties do not answer it on secret shares, unless the query sets `asked`.
    """

    asked: ClassVar[Asked] = Asked.TRUSTED

    def required(self) -> float:
        """Return Δ of the sums of all parties together; inf, so that no noise covers it, unless the query states it."""
        return math.inf

    @property
    def grid(self) -> float:
        """Return the value of one step of the exact sums."""
        return 1.0

    def answer(self, at: AtParty, records: Any, key: ReleaseKey) -> Reply:
        """Release the exact sums of the party's rows with noise, each from a noise stream of its own."""
        return Reply(released_by(self, [ReleaseTerms(self.grid, self.event, self.required())], at, records, key))


def released_by(
    query: Query, priced: Sequence[ReleaseTerms], at: AtParty, records: Any, key: ReleaseKey
) -> tuple[Vector, ...]:
    """Return the exact sums of a query at a party, with noise. The k-th release has the part `first_part` + k.

    Raises PrivacyError for more releases than events, since each event pays for one, and for sums that are not of the lengths
    that the query states (`sizes`).
    """
    if len(priced) != len(query.events()):
        raise query._unanswered(at.name)
    exact, first = at.sums(query, records), query.first_part(at.name)
    if [np.shape(sums) for sums in exact] != [(size,) for size in query.sizes()]:
        raise PrivacyError(f"party {at.name!r} computes other sums for {type(query).__name__} than the query announces")
    return tuple(
        at.release(sums, terms, replace(key, part=first + k))
        for k, (terms, sums) in enumerate(zip(priced, exact, strict=True))
    )


@dataclass(frozen=True, slots=True, eq=False)
class PerRecord(Query):
    """Shape: one or several numbers per record, which only `LinearPredictors` receives. Nothing is released."""

    asked: ClassVar[Asked] = Asked.TRUSTED

    def answer_width(self, n_outputs: int) -> int:
        """Return the number of entries per record in the answer."""
        return self.width

    def answer(self, at: AtParty, records: Any, key: ReleaseKey) -> Reply:
        """Return the vector of the party's rows."""
        return Reply(vector=at.vector(self, records))


@dataclass(frozen=True, slots=True, eq=False)
class Draw(NotSent, Query):
    """Shape: something that the coordinator draws or releases itself (`drawn`), without asking a party."""


@dataclass(frozen=True, slots=True, eq=False)
class Weighted(Query):
    """Base of queries that multiply each record's row by a weight r_i.

    weighting : function that computes r, in the coordinator's `LinearPredictors` or in a party that sees margins and labels.
    """

    weighting: Weighting

    @property
    def need(self) -> Need:
        """Return weights; a subclass may override this."""
        return Need.WEIGHTS

    def weighed_by(self) -> Weighting:
        """Return the function that computes the weights r_i of records."""
        return self.weighting
