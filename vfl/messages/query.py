"""The query interface: blocks, weightings, rules, and the base classes of all queries."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from vfl.holdout import Side, part_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Self

    from vfl.messages.passes import Fold, RecordCap
    from vfl.messages.wire import Reply
    from vfl.privacy.events import Event, Gaussian, PoissonSubsampledGaussian, ReleaseKey
    from vfl.privacy.geometry import Clip
    from vfl.privacy.noise import NoiseSource
    from vfl.types import Integers, Kept, Vector

    Knots = Mapping[str, tuple[tuple[float, ...], ...]]
    """{party: released knots of each curve without declared knots, in the order of the party's columns}."""


HELD_OUT, HELD_NORMS, HELD_GROUPS = "held out", "held out: norms", "held out: groups"
HELD_OFFSETS = "held out: offsets"
"""Offsets log(exposure) of the held-out records."""
"""Names under which the coordinator's `Margins` (coordinator.states) keeps Xw, norms and groups of the held-out part. A
weighting cannot read these vectors."""
COLUMNS = "columns"
"""Name under which `Margins` keeps the columns of one party, one after another, until products with them are released."""
HELD_POSITIONS = "held out: positions"
"""Name under which `Margins` keeps the positions of its held-out records among all held-out records. Positions are public."""


@dataclass(frozen=True, slots=True)
class Block:
    """Columns start..stop − 1 of one party (a set S), in the canonical order of the party's layout.

    index : position of the block among all blocks.
    offset : position in w of the party's first coordinate.
    """

    index: int
    party: str
    start: int
    stop: int
    offset: int

    @property
    def size(self) -> int:
        """Return |S|, the number of columns."""
        return self.stop - self.start

    @property
    def local(self) -> slice:
        """Return the block as a slice of the party's coordinates."""
        return slice(self.start, self.stop)

    @property
    def coordinates(self) -> slice:
        """Return the block as a slice of w."""
        return slice(self.offset + self.start, self.offset + self.stop)


class Term(Protocol):
    """One sum over a block of columns that a query releases, Σ_i clip(scale ∘ r_i (x_{i,S} − centre)) + noise of the event."""

    @property
    def block(self) -> Block: ...  # noqa: D102 - the docstring of the class

    @property
    def centre(self) -> Vector: ...  # noqa: D102

    @property
    def scale(self) -> Vector: ...  # noqa: D102

    @property
    def clip(self) -> Clip: ...  # noqa: D102

    @property
    def event(self) -> Gaussian | PoissonSubsampledGaussian | None: ...  # noqa: D102


class Weighting(Protocol):
    """Elementwise function of a record's margin, label and state. The value r_i multiplies the record's row in a sum."""

    __slots__ = ()

    @property
    def kernel(self) -> str:
        """Return the name of a fused kernel that computes r from only margins and labels; '' if there is none."""
        return ""

    def __call__(self, margins: Vector, labels: Vector, kept: Kept) -> tuple[Vector, Kept]:
        """Return r, (n,), and the per-record state to replace, {name: (n,)}. No argument is changed.

        kept : {name: per-record state}. Only `Margins` sees this state. It is empty if a party evaluates the weighting.
        """
        ...


class Rule(Protocol):
    """Update of a block: Δ = rule(w_S, u), a deterministic function of released values that party and solver both evaluate.

    A rule with an attribute `classes` = K changes K margins per record. A rule without this attribute changes one.
    """

    def __call__(self, w: Vector, u: Vector) -> Vector:
        """Return Δ, (s,)."""
        ...


class ScoreRule(Protocol):
    """Scores of coordinates for a greedy selection. Each score has sensitivity `sensitivity` under replace-one.

    w, u : (s,) the party's coordinates, and its clipped sums, exact and without noise, in units of the cap.
    """

    @property
    def sensitivity(self) -> float:
        """Return the largest change of one score under replace-one."""
        ...

    def __call__(self, w: Vector, u: Vector) -> Vector:
        """Return one score per coordinate, (s,)."""
        ...

    def least(self, w: Vector, contribution: float, n_records: int) -> float:
        """Return the smallest valid sensitivity of the scores at w. A party refuses a rule that claims a smaller one.

        contribution : a, the largest amount that one record adds to a sum u_j, in the units of u_j. Replacing a record changes
            u_j by at most 2a.
        """
        ...


class Statistic(Protocol):
    """A sum, over records, of a vector that depends on margin and label. The sum is a multiple of a grid.

    A statistic of the held-out part may have an attribute `needs`, a tuple of names such as HELD_NORMS. The statistic is then
    also called with the vectors that `Margins` keeps under these names, in this order, after margins and labels. A statistic
    with the attribute `labels_only = True` ignores the margins, so that the label party can compute it without others.

    grid : value of one step of the sum. dimension : s. sensitivity : Δ of the sum under replace-one, in units of the sum, not
        in steps; inf for a statistic that may only be released without noise.
    """

    @property
    def grid(self) -> float:
        """Return the value of one step of the sum."""
        ...

    @property
    def dimension(self) -> int:
        """Return the length of the sum."""
        ...

    @property
    def sensitivity(self) -> float:
        """Return the largest change of the sum when one record is replaced."""
        ...

    def __call__(self, margins: Vector, labels: Vector) -> Integers | Vector:
        """Return the sum, (s,) int64; float64 if the sensitivity is infinite. It must be defined for every input, even NaN."""
        ...


class Need(enum.Enum):
    """Kinds of per-record vectors that parties see for a query."""

    NOTHING = "nothing"
    WEIGHTS = "weights"
    MARGINS = "margins and labels"


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """Base of all queries. The schedule that yields a query receives `combine(replies)`, which contains released values only.

    knots : knots of curves that the run has found; None before. Each party uses them to compute its curves' coordinates
        before it answers. Every query carries them, so that a restarted party needs nothing but its data.
    subsample : number of the subsample whose records the query uses, and on which its events are charged (vfl.holdout).
        None in a run without subsamples.
    """

    knots: Knots | None = field(default=None, kw_only=True)
    subsample: int | None = field(default=None, kw_only=True)

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
        """Return how `Margins` uses the sum of the replies' n-vectors: 'add' to Xw, 'reset' Xw, or a name to keep it under."""
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

    @property
    def width(self) -> int:
        """Return the number of vectors with n entries in the weights of the query, or in the answer to the query."""
        return 1

    def terms(self) -> Sequence[Term]:
        """Return the sums of blocks that the query releases, in order; () for a query that releases none."""
        return ()

    def first_part(self, party: str) -> int:
        """Return the number of the party's first noise stream."""
        return getattr(self, "part", 0)

    @property
    def draws(self) -> float | None:
        """Return the rate of the secret sample that the query draws; None if it draws none."""
        return None

    @property
    def tallied(self) -> Statistic | None:
        """Return the statistic of margins and labels that the query releases; None for any other query."""
        return None

    def answer(
        self, counts: tuple[int, ...], noise: NoiseSource, key: ReleaseKey
    ) -> tuple[tuple[Vector, ...], Iterable[Vector]] | None:
        """Return the answer of the coordinator alone (`Local`); None for a query that it cannot answer alone."""
        return None

    def extent(self) -> tuple[object, ...] | None:
        """Return all that the plan fixes of a party's part of a larger release (`Piece`); None for any other query."""
        return None

    def factors(self) -> tuple[object, ...]:
        """Return all that the parts of one release have in common beside the event."""
        return ()

    def shares(self) -> Mapping[str, Query]:
        """Return {party: its share of the query}. If the query has a `part`, each share has a separate noise stream."""
        addressed: Mapping[str, Any] = getattr(self, by_party(self)[0])
        if not hasattr(self, "part"):
            return {party: self.share(party) for party in addressed}
        return {party: self.share(party, part=number) for number, party in enumerate(addressed)}

    def share(self, party: str, **changes: Any) -> Self:
        """Return one party's share. Fields by party keep only this party's entry. changes : new values of other fields."""
        own: dict[str, Any] = {}
        for name in by_party(self):
            if name not in changes and (entries := getattr(self, name)) is not None:
                own[name] = {party: entries[party]} if party in entries else {}
        return replace(self, **own | changes)

    def events(self) -> tuple[Event | None, ...]:
        """Return the events to charge for the releases, in the order of `part`. None stands for a release without noise."""
        return ()

    def sizes(self) -> tuple[int, ...]:
        """Return the length of each vector that `combine` returns."""
        return ()

    def replay(self, released: tuple[Vector, ...]) -> Query | None:
        """Return a query that repeats this query's effect on the margins, given its releases; None if there is no effect.

        A query without releases is repeated unchanged.
        """
        return None if self.sizes() else self

    def expanded(self, ask: Callable[[Query], Mapping[str, Reply]], *, together: bool = False) -> tuple[Vector, ...]:
        """Return the released values, with every step of the query asked as a query of its own.

        together : True to ask all steps at equal margins as one query.
        """
        return self.combine(ask(self))

    def combine(self, replies: Mapping[str, Reply]) -> tuple[Vector, ...]:
        """Return the released values in the order of the shares."""
        return tuple(u for reply in replies.values() for u in reply.released)


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


class Unasked:
    """Mixin of queries that are sent to no party."""

    __slots__ = ()

    def shares(self) -> Mapping[str, Query]:
        """Return {}, since no party is asked."""
        return {}


@dataclass(frozen=True, slots=True, eq=False)
class Local(Unasked, Query):
    """Base of queries that the coordinator answers without asking a party."""

    def answer(
        self, counts: tuple[int, ...], noise: NoiseSource, key: ReleaseKey
    ) -> tuple[tuple[Vector, ...], Iterable[Vector]]:
        """Return the query's releases, and the per-record vector to keep under `target`, one array per shard (or none).

        counts : number of records of each shard, in order.
        """
        raise TypeError(f"{type(self).__name__} does not implement its answer")


@dataclass(frozen=True, slots=True, eq=False)
class Weighted(Query):
    """Base of queries that multiply each record's row by a weight r_i.

    weighting : function that computes r, in the coordinator's `Margins` or in a party that sees margins and labels.
    """

    weighting: Weighting

    @property
    def need(self) -> Need:
        """Return weights; a subclass may override this."""
        return Need.WEIGHTS
