"""State that queries read and change at the coordinator, the same for every trust setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vfl.messages import Query, Reply, Tally
    from vfl.types import Integers, Vector


class State(Protocol):
    """State of a run between its queries: margins and labels (coordinator.margins), or the public model alone."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the number of records that are trained on, of each shard: (n,) where there is one."""
        ...

    def state(self) -> Any:
        """Return the present state, for `restore`."""
        ...

    def restore(self, state: Any) -> None:
        """Undo all changes since `state` was taken."""
        ...

    def shares(self, query: Query) -> Mapping[str, Query]:
        """Return the share of each party that the query is put to; {} for one that changes this state alone."""
        ...

    def records(self, query: Query) -> Any:
        """Return the per-record vectors that the parties see for this query; of each shard, or references to them."""
        ...

    def take(self, query: Query, replies: Mapping[str, Reply]) -> None:
        """Change the state as the query and its replies say."""
        ...

    def absorb(self, target: str, vectors: Iterable[Vector]) -> None:
        """Take the n-vector that a query drew at the coordinator, in one piece for each shard."""
        ...

    def tally(self, query: Tally) -> Integers | Vector:
        """Return the sum of a statistic over this state, without noise: for `release` only."""
        ...
