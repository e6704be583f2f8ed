"""Transport to parties whose rows are in shards. Shards send vectors to one another, never through the coordinator."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coordinator.cluster.ray_transport import RayTransport
from coordinator.states.state import StateLost
from vfl.kinds import from_plain, to_plain
from vfl.messages import Need, Reply
from vfl.shards import Each

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.messages import Greeting, Query
    from vfl.privacy.events import ReleaseKey
    from vfl.shards import Group


class ShardTransport(RayTransport):
    """Transport to the main actor of each party whose rows are in shards. It carries handles; shards exchange the vectors."""

    _margins: Group | None = None

    def introduce(self, margins: Group) -> None:
        """Find the shards of parties that share a machine with their shard of the margins, and inform both sides."""
        self._margins = margins
        probes = margins.ask("probe")
        reads = self._gather({name: actor.meet.remote(probes) for name, actor in self._actors.items()})
        near = [[name for name, own in reads.items() if own[k]] for k in range(margins.size)]
        far = [[name for name, own in reads.items() if not own[k]] for k in range(margins.size)]
        margins.ask("meet", Each(near), Each(far))

    def revive(self, party: str, seconds: float) -> Greeting:
        """Wait until Ray has restarted the party's actors, and have them load their data again."""
        greeting = super().revive(party, seconds)
        if self._margins is not None:
            with contextlib.suppress(StateLost):  # the next query raises it again
                self.introduce(self._margins)
        return greeting

    def ask(self, shares: Mapping[str, Query], records: Any, key: ReleaseKey) -> dict[str, Reply]:
        """Send each share to its party, all at the same time."""
        named = to_plain(key)
        refs = {
            name: self._actors[name].answer_over.remote(to_plain(share), named, list(records))
            for name, share in shares.items()
        }
        replies = {}
        for name, (plain, pieces, n_trained) in self._gather(refs).items():
            reply = from_plain(plain, Reply)
            vector: Any = None if pieces is None else Each(pieces)
            replies[name] = replace(reply, vector=vector)
            self.traffic.n_bytes += 8 * n_trained * ((shares[name].need is not Need.NOTHING) + (pieces is not None))
        self.traffic.wait(replies)
        return replies
