"""Counts of the bytes and seconds of exchanges between the coordinator and parties, for metrics and benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.messages import Records, Reply
    from vfl.types import Vector


class Traffic:
    """Bytes of per-record vectors between coordinator and parties, and seconds that the parties' answers took.

    Labels and limits are counted once per party and value, because parties keep them.

    inline : largest size in bytes of labels and limits that parties do not keep; these are sent and counted with every query.
    n_bytes : size of all vectors sent and received so far.
    party_seconds : time of the parties' answers so far. Only the slowest answer to each query counts.
    """

    def __init__(self, inline: int = 0) -> None:
        self._inline = inline
        self._kept: dict[tuple[str, str], Vector | float] = {}
        self.n_bytes = 0
        self.party_seconds = 0.0

    def count(self, records: Records, replies: Mapping[str, Reply]) -> None:
        """Count the vectors that a query sent to the replying parties, and the vectors of their replies."""
        for party, reply in replies.items():
            moved = (records.weights, records.margins, reply.vector)
            self.n_bytes += sum(vector.nbytes for vector in moved if vector is not None)
            for name, constant in (("labels", records.labels), ("limits", records.limits)):
                if constant is not None and (self.first(party, name, constant) or constant.nbytes <= self._inline):
                    self.n_bytes += constant.nbytes
        self.wait(replies)

    def wait(self, replies: Mapping[str, Reply]) -> None:
        """Count the time of the slowest reply."""
        self.party_seconds += max((reply.seconds for reply in replies.values()), default=0.0)

    def forget(self, party: str) -> None:
        """Drop the record of vectors that a restarted party held. Its labels and limits then count again."""
        for own in [own for own in self._kept if own[0] == party]:
            del self._kept[own]

    def first(self, party: str, name: str, constant: Vector | float) -> bool:
        """Return True unless the party already keeps this value. A float stands for the vector that is computed from it."""
        known = self._kept.get((party, name))
        self._kept[party, name] = constant
        return not (known is constant or (isinstance(constant, float) and known == constant))
