"""Linear predictors in row shards.

Shard k of the linear predictors exchanges vectors with shard k of each party. The coordinator forwards references, and adds
up exact sums over the shards. The coordinator holds no per-record vector.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coordinator.states.linear_predictors import LinearPredictors, Place, StateLost
from vfl.errors import PartyLost
from vfl.network.shards import Each, cut
from vfl.network.shards.lending import no_room
from vfl.queries import Need, Records

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from coordinator.states.linear_predictors import Saved
    from vfl.base.holdout import Split, Subsample
    from vfl.base.problem import Targets
    from vfl.base.types import Integers, Vector
    from vfl.network.shards import Group, Shard
    from vfl.queries import Query, Reply, Tally


PAUSE_SECONDS = 0.2
"""Seconds between two requests to a shard that is being restarted."""


class ShardLinearPredictors:
    """Linear predictors of one shard. The shard itself keeps the state from before a query; the coordinator never holds it.

    Methods that change the state have an argument `mark`. If it is True, they first save the current state for `undo`.
    """

    _loaded: LinearPredictors | None = None
    _before: Saved | None = None

    @property
    def _predictors(self) -> LinearPredictors:
        if self._loaded is None:
            raise StateLost("a shard of the margins was restarted")
        return self._loaded

    def load(
        self,
        labels: Vector,
        split: Split | Subsample | None,
        shard: Shard,
        place: Place,
        targets: Targets | None = None,
    ) -> None:
        """Load labels of the shard's records, (n,), including held-out records. Other arguments : as for `LinearPredictors`."""
        held_out = None if split is None else split.held_out(shard.stop, shard.start)
        self._before = None
        self._loaded = LinearPredictors(self._read(labels), held_out, place, targets, self._share, self._room)

    def _share(self, name: str, vector: Vector) -> Vector:
        """Return the copy of a vector to keep; see `LinearPredictors`."""
        del name
        return vector

    def _room(self, size: int) -> Vector | None:
        """Return memory for the next margins; see `LinearPredictors`."""
        return no_room(size)

    def _read(self, vector: Any, party: str = "", *, kept: bool = True) -> Vector:
        """Return a vector that a party sent. If the vector is lost, PartyLost names the party.

        kept : False if the vector is added up at once, so that no copy is needed.
        """
        del party, kept
        given: Vector = vector
        return given

    def _sent(self, records: Records, parties: Collection[str]) -> Records:
        """Return the vectors in the form in which these parties receive them. parties : () if any party may receive them."""
        del parties
        return records

    def records(self, query: Query, mark: bool) -> Records:
        """Return the per-record vectors that the parties see for a query, or references to these vectors."""
        if mark:
            self._mark()
        return self._sent(self._predictors.records(query), tuple(query.shares()))

    def tally(self, query: Tally) -> Integers | Vector:
        """Return the sum of the query's statistic over these records, without noise."""
        return self._predictors.tally(query)

    def keep(self, target: str, mark: bool, pieces: Sequence[Vector]) -> None:
        """Keep the vector that the coordinator drew for this shard's records, if `pieces` contains one."""
        if mark:
            self._mark()
        self._predictors.absorb(target, pieces)

    def take(
        self, target: str, mark: bool, cap: float | Literal[False] | None, parties: Sequence[str], *vectors: Any
    ) -> Records | None:
        """Apply the parties' vectors, in order, to the margins; see `LinearPredictors.absorb`.

        cap : for a query of several steps, its record cap, or None; the records for the next query are then returned.
            False for any other query; None is then returned.
        """
        if mark:
            self._mark()
        kept = target != "add"
        pairs = zip(vectors, parties, strict=True)
        self._predictors.absorb(target, (self._read(vector, party, kept=kept) for vector, party in pairs))
        return None if cap is False else self._sent(self._predictors.for_steps(cap), ())

    def _mark(self) -> None:
        self._before = self._predictors.state()

    def undo(self) -> None:
        """Undo all changes since the last mark."""
        predictors = self._predictors
        assert self._before is not None  # noqa: S101 - a shard that is loaded has been marked before a change
        predictors.restore(self._before)


class LinearPredictorShards:
    """Linear predictors of all records, kept in one `ShardLinearPredictors` per shard, with the methods of `LinearPredictors`.

    loaded : function that is called when all shards have loaded, also after one of them was restarted.
    """

    units = 1

    def __init__(
        self,
        shards: Group,
        labels: Sequence[Any],
        split: Split | Subsample | None,
        n_records: int,
        targets: Targets | None = None,
        loaded: Callable[[], None] = lambda: None,
    ) -> None:
        self._shards, self._loaded = shards, loaded
        self._ranges, self._targets = cut(n_records, shards.size), targets
        self.turn(labels, split)

    def turn(self, labels: Sequence[Any], split: Split | Subsample | None) -> None:
        """Start a split: load its training part, whose size may differ from shard to shard, with margins at w = 0."""
        ends = [0, *(shard.stop for shard in self._ranges)]
        apart = [0] * len(ends) if split is None else split.counts(ends)
        trained = [end - out for end, out in zip(ends, apart, strict=True)]
        places = [Place(trained[k], trained[-1], apart[k]) for k in range(self._shards.size)]
        self.counts = tuple(trained[k + 1] - trained[k] for k in range(self._shards.size))
        self._given = split, Each(self._ranges), Each(places), self._targets
        self._marked = True
        self._cap: float | Literal[False] | None = False
        self._ahead: Each | None = None
        self._taking: tuple[Callable[[], list[Any]], float | Literal[False] | None] | None = None
        self._load(labels)

    def reload(self, labels: Callable[[], Any], seconds: float) -> None:
        """Wait for lost shards, then load all shards as at the start of the run. Raises StateLost after `seconds`.

        labels : function that requests the labels from the label party.
        """
        until = time.monotonic() + seconds
        while True:
            try:
                self._load(labels())
            except StateLost:
                if time.monotonic() + PAUSE_SECONDS > until:
                    raise
                time.sleep(PAUSE_SECONDS)
            else:
                return

    def _load(self, labels: Sequence[Any]) -> None:
        self._taking = self._ahead = None
        self._shards.ask("load", Each(labels), *self._given)
        self._loaded()

    def shares(self, query: Query) -> Mapping[str, Query]:
        """Return {party: its part of the query}; {} for a query that only changes this state."""
        return query.shares()

    def tally(self, query: Tally) -> Integers | Vector:
        """Return the sum of the query's statistic over the query's records.

        The sum has no noise; only `release` may receive it.
        """
        self._settle()
        total: Integers | Vector = functools.reduce(np.add, self._shards.ask("tally", query))
        return total

    def state(self) -> None:
        """Make each shard save its state for `restore`. This request is sent with the next call that changes the state."""
        self._marked = False

    def restore(self, state: None) -> None:
        """Undo all changes since the last call of `state`."""
        self._settle()
        self._ahead = None
        if self._marked:
            self._shards.ask("undo")

    def records(self, query: Query) -> Each:
        """Return, per shard, the per-record vectors that the parties see for this query, or references to these vectors.

        If messages carry several steps, the answers to `take` hold the vectors for the next query. This saves a call.
        """
        self._settle()  # once parties are asked again, they may overwrite vectors that they have sent
        if query.need is Need.NOTHING:
            return Each([Records()] * self._shards.size)
        cap = _cap_of(query)
        if self._ahead is None or cap is False or cap != self._cap:
            answers = Each(self._shards.ask("records", query, self._mark()))
            self._cap, self._ahead = cap, None if cap is False else answers
            return answers
        return self._ahead

    def _mark(self) -> bool:
        """Return True for the first call since `state`."""
        first, self._marked = not self._marked, True
        return first

    def take(self, query: Query, replies: Mapping[str, Reply]) -> None:
        """Make each shard add up its parts of the replies' vectors, in equal order, and apply the sum.

        This call does not wait for the shards. The shards work while the coordinator records this query and charges the next
        query. The next call waits, and raises StateLost if a shard has failed.
        """
        self._settle()
        vectors: dict[str, Any] = {q: reply.vector for q, reply in replies.items() if reply.vector is not None}
        if vectors:
            # Only margins change. Labels and limits stay.
            cap = self._cap if query.target in ("add", "reset") and _cap_of(query) is not False else False
            self._ahead = None
            begun = self._shards.begin("take", query.target, self._mark(), cap, tuple(vectors), *vectors.values())
            self._taking = begun, cap

    def _settle(self) -> None:
        """Wait until all shards have applied the last vectors. Raises StateLost if a shard has failed: shards then disagree."""
        if self._taking is None:
            return
        (answers_of, cap), self._taking = self._taking, None
        try:
            answers = answers_of()
        except StateLost:
            raise
        except PartyLost as lost:
            raise StateLost(f"the linear predictors could not be updated: {lost}") from lost
        self._ahead = None if cap is False or None in answers else Each(answers)

    def absorb(self, target: str, vectors: Iterable[Vector]) -> None:
        """Keep a vector that the coordinator drew for all records. vectors : parts of this vector, one per shard."""
        self._settle()
        self._ahead = None
        for k, piece in enumerate(vectors):
            own = Each([piece] if k == j else [] for j in range(self._shards.size))
            self._shards.ask("keep", target, self._mark(), own)


def _cap_of(query: Query) -> float | Literal[False] | None:
    """Return the record cap of a query of several steps, None for such a query without a cap, and False for any other query."""
    if query.need is not Need.MARGINS:
        return False
    return None if query.capped is None else query.capped.cap


def whole(
    labels: Any, split: Split | Subsample | None, n_records: int, targets: Targets | None = None
) -> LinearPredictors:
    """Return margins of all records, held in this process."""
    held_out = None if split is None else split.held_out(n_records)
    return LinearPredictors(labels, held_out, targets=targets, n_records=n_records)
