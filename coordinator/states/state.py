"""Interface of the coordinator's state, which queries read and change, for every trust setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from vfl.errors import PartyLost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vfl.messages import Query, Reply, Tally
    from vfl.types import Integers, Vector


class StateLost(PartyLost):
    """Part of the state was lost with the process that held it. It belongs to no party, so `party` is ''."""


class State(Protocol):
    """State of a run between its queries: margins and labels (coordinator.states.margins), or the public model alone."""

    counts: tuple[int, ...]
    """Number of training records per shard; (n,) for a single shard."""

    def state(self) -> Any:
        """Return the present state, for `restore`."""
        ...

    def restore(self, state: Any) -> None:
        """Undo all changes since `state` was taken."""
        ...

    def shares(self, query: Query) -> Mapping[str, Query]:
        """Return {party: its part of the query}; {} for a query that only changes this state."""
        return query.shares()

    def records(self, query: Query) -> Any:
        """Return the per-record vectors that the parties see for this query, or references to them per shard."""
        ...

    def take(self, query: Query, replies: Mapping[str, Reply]) -> None:
        """Apply a query and the replies to it to the state."""
        ...

    def absorb(self, target: str, vectors: Iterable[Vector]) -> None:
        """Take in the (n,) vector that the coordinator drew for a query. vectors : its pieces, one per shard."""
        ...

    def tally(self, query: Tally) -> Integers | Vector:
        """Return the sum of a statistic over this state. It has no noise: pass it only to `release`."""
        ...
