"""Interface of the coordinator's state, which queries read and change. It is the same for every trust setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from vfl.errors import PartyLost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vfl.messages import Query, Reply, Tally
    from vfl.types import Integers, Vector


class StateLost(PartyLost):
    """A part of the state was lost with the process that held it. The state belongs to no party, so `party` is ''."""


class State(Protocol):
    """State of a run between queries: margins and labels (coordinator.states.margins), or only the public model."""

    counts: tuple[int, ...]
    """Number of training records per shard; (n,) for a single shard."""

    def state(self) -> Any:
        """Return the current state, for `restore`."""
        ...

    def restore(self, state: Any) -> None:
        """Undo all changes since `state` was taken."""
        ...

    def shares(self, query: Query) -> Mapping[str, Query]:
        """Return {party: its part of a query}; {} for a query that only changes this state."""
        return query.shares()

    def records(self, query: Query) -> Any:
        """Return the per-record vectors that the parties see for a query, or references to these vectors, per shard."""
        ...

    def take(self, query: Query, replies: Mapping[str, Reply]) -> None:
        """Change the state by a query and the replies to this query."""
        ...

    def absorb(self, target: str, vectors: Iterable[Vector]) -> None:
        """Keep the (n,) vector that the coordinator drew for a query. vectors : parts of this vector, one per shard."""
        ...

    def tally(self, query: Tally) -> Integers | Vector:
        """Return the sum of a statistic over the records. The sum has no noise; only `release` may receive it."""
        ...
