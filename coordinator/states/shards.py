"""Margins in row shards.

Shard k of the margins exchanges vectors with shard k of each party. The coordinator passes references on and adds up the
exact sums of the shards. It holds no per-record vector.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.states.margins import Margins, Place
from coordinator.states.state import StateLost
from vfl.shards import Each, cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from coordinator.states.margins import State
    from vfl.holdout import Split
    from vfl.messages import Query, Records, Reply, Tally
    from vfl.shards import Group, Shard
    from vfl.targets import Targets
    from vfl.types import Integers, Vector


PAUSE_SECONDS = 0.2
"""Pause between two requests to a shard that is being restarted."""


class ShardMargins:
    """Margins of one shard. The shard itself keeps the state before a query, so the coordinator never holds it."""

    _loaded: Margins | None = None
    _before: State

    @property
    def _margins(self) -> Margins:
        if self._loaded is None:
            raise StateLost("a shard of the margins was restarted")
        return self._loaded

    def load(
        self,
        labels: Vector,
        split: Split | None,
        shard: Shard,
        place: Place,
        n_margins: int = 1,
        targets: Targets | None = None,
    ) -> None:
        """Take the labels of the shard's records, (n,), including held-out records. n_margins, targets : as for `Margins`."""
        held_out = None if split is None else split.held_out(shard.stop, shard.start)
        self._loaded = Margins(labels, held_out, place, n_margins, self._share, targets)

    def _share(self, name: str, vector: Vector) -> Vector:
        """Return the copy of a vector that is kept; see `Margins`."""
        del name
        return vector

    def records(self, query: Query) -> Records:
        """Return the per-record vectors that the parties see for this query."""
        return self._margins.records(query)

    def tally(self, query: Tally) -> Integers | Vector:
        """Return the sum of the query's statistic over these records, without noise."""
        return self._margins.tally(query)

    def keep(self, target: str, pieces: Sequence[Vector]) -> None:
        """Keep the vector that the coordinator drew for these records, if `pieces` holds one."""
        self._margins.absorb(target, pieces)

    def take(self, target: str, *vectors: Vector) -> None:
        """Take in the parties' vectors, in order; see `Margins.absorb`."""
        self._margins.absorb(target, vectors)

    def mark(self) -> None:
        """Keep the present state, for `undo`."""
        self._before = self._margins.state()

    def undo(self) -> None:
        """Undo all changes since `mark`."""
        self._margins.restore(self._before)


class MarginShards:
    """Margins of all records, kept in one `ShardMargins` per shard, with the methods of `Margins`."""

    def __init__(
        self,
        shards: Group,
        labels: Sequence[Any],
        split: Split | None,
        n_records: int,
        n_margins: int = 1,
        targets: Targets | None = None,
    ) -> None:
        self._shards = shards
        ranges = cut(n_records, shards.size)
        ends = [0, *(shard.stop for shard in ranges)]
        apart = [0] * len(ends) if split is None else split.counts(ends)
        trained = [end - out for end, out in zip(ends, apart, strict=True)]
        places = [Place(trained[k], trained[-1], apart[k]) for k in range(shards.size)]
        self.counts = tuple(trained[k + 1] - trained[k] for k in range(shards.size))
        self._given = split, Each(ranges), Each(places), n_margins, targets
        self._shards.ask("load", Each(labels), *self._given)

    def reload(self, labels: Callable[[], Any], seconds: float) -> None:
        """Load all shards as at the start of the run, once lost ones are restarted; StateLost if that takes longer.

        labels : asks the label party for them.
        """
        until = time.monotonic() + seconds
        while True:
            try:
                self._shards.ask("load", Each(labels()), *self._given)
            except StateLost:
                if time.monotonic() + PAUSE_SECONDS > until:
                    raise
                time.sleep(PAUSE_SECONDS)
            else:
                return

    @property
    def n_records(self) -> int:
        """Return n, the number of training records."""
        return sum(self.counts)

    def tally(self, query: Tally) -> Integers | Vector:
        """Return the sum of the query's statistic over its part of the records. It has no noise: pass it only to `release`."""
        total: Integers | Vector = functools.reduce(np.add, self._shards.ask("tally", query))
        return total

    def state(self) -> None:
        """Make each shard keep its state, for `restore`."""
        self._shards.start("mark")

    def restore(self, state: None) -> None:
        """Undo all changes since the last `state`."""
        self._shards.ask("undo")

    def records(self, query: Query) -> Each | Records:
        """Return, per shard, the per-record vectors that the parties see for this query, or references to them."""
        return self._shards.start("records", query)

    def shares(self, query: Query) -> Mapping[str, Query]:
        """Return each queried party's share of the query."""
        return query.shares()

    def take(self, query: Query, replies: Mapping[str, Reply]) -> None:
        """Make each shard add up its pieces of the replies' vectors, in the same order, and take in the sum."""
        vectors: list[Any] = [reply.vector for reply in replies.values() if reply.vector is not None]
        if vectors:
            self._shards.ask("take", query.target, *vectors)

    def absorb(self, target: str, vectors: Iterable[Vector]) -> None:
        """Keep a vector that the coordinator drew for all records. It is made piece by piece, one piece per shard."""
        for k, piece in enumerate(vectors):
            self._shards.ask("keep", target, Each([piece] if k == j else [] for j in range(self._shards.size)))


def whole(
    labels: Any, split: Split | None, n_records: int, n_margins: int = 1, targets: Targets | None = None
) -> Margins:
    """Return the margins of all records, in this process."""
    held_out = None if split is None else split.held_out(n_records)
    return Margins(labels, held_out, n_margins=n_margins, targets=targets)
