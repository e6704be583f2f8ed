"""Transport to parties whose rows are in shards. Shards send vectors to one another, never through the coordinator."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.cluster.ray_transport import RayTransport
from coordinator.cluster.seat import Seat
from coordinator.states.state import StateLost
from vfl.errors import PartyLost
from vfl.kinds import from_plain, to_plain
from vfl.messages import Descend, Forward, Need, Reply
from vfl.shards import Each
from vfl.shards.ray_transport import answer_of
from vfl.shards.serving import Caller, written

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.messages import Greeting, Query
    from vfl.privacy.events import ReleaseKey
    from vfl.shards.serving import Served


class ShardTransport(RayTransport):
    """Transport to the main actor of each party whose rows are in shards. It carries handles; shards exchange the vectors.

    Queries to main actors of this machine travel over lines (vfl.shards.serving).

    kind : type of the margins in sweeps, as for `Margins`.
    n_margins : margins per record. n_labels : vectors of labels that parties see in sweeps, 2 with weights.
    """

    kind: str = "float64"
    n_margins = 1
    n_labels = 1

    _margins: Served | None = None
    _callers: Mapping[str, Caller] = MappingProxyType({})

    def introduce(self, margins: Served) -> None:
        """Find the actors that share a machine, and inform them: the shards of parties and margins, and the main actors."""
        self._margins = margins
        probes = margins.ask("probe")
        margins.near = all(probe is not None and self._borrower.borrow(probe) is not None for probe in probes)
        own = self._lenders["margins"].lend(np.zeros(1))
        found = self._gather({name: actor.meet.remote(probes, own) for name, actor in self._actors.items()})
        near = [[name for name, (reads, _) in found.items() if reads[k]] for k in range(margins.size)]
        far = [[name for name, (reads, _) in found.items() if not reads[k]] for k in range(margins.size)]
        margins.ask("meet", Each(near), Each(far))
        self._callers = {
            name: Caller(self._actors[name], partial(self._answer_of, name), partial(self._late, name), self._timeout)
            for name, (_, here) in found.items()
            if here
            and not isinstance(self._actors[name], Seat)  # a line would keep the other parties of its process waiting
        }

    def revive(self, party: str, seconds: float) -> Greeting:
        """Wait until Ray has restarted the party's actors, and have them load their data again."""
        self._end_lines()
        greeting = super().revive(party, seconds)
        if self._margins is not None:
            with contextlib.suppress(StateLost):  # the next query raises it again
                self.introduce(self._margins)
        return greeting

    def ask(self, shares: Mapping[str, Query], records: Any, key: ReleaseKey) -> dict[str, Reply]:
        """Send each share to its party, all at the same time."""
        named, handles = to_plain(key), list(records)
        replies = {}
        for name, (plain, pieces, n_trained) in self._answers(
            {name: (to_plain(share), named, handles) for name, share in shares.items()}
        ).items():
            reply = from_plain(plain, Reply)
            vector: Any = None if pieces is None else Each(pieces)
            replies[name] = replace(reply, vector=vector)
            self.traffic.n_bytes += n_trained * self.moved(name, shares[name], answered=pieces is not None)
        self.traffic.wait(replies)
        return replies

    def moved(self, party: str, share: Query, *, answered: bool) -> int:
        """Return the bytes per record that the shards exchange for a share. Labels and limits count once per party."""
        swept = isinstance(share, Descend) and share.sweep
        margin = self.n_margins * (np.dtype(self.kind).itemsize if swept else 8)
        count = margin * (share.need is not Need.NOTHING)
        count += answered * (margin if isinstance(share, Descend | Forward) else 8)
        if share.need is Need.MARGINS:
            count += 8 * self.n_labels * self.traffic.first(party, "labels", 0.0)
            cap = share.capped if isinstance(share, Descend) else None
            count += 8 * (cap is not None and self.traffic.first(party, "limits", cap.cap))
        return count

    def _answers(self, asked: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        if not self._callers.keys() >= asked.keys():
            return self._gather({name: self._actors[name].answer_over.remote(*own) for name, own in asked.items()})
        for name, own in asked.items():
            self._callers[name].say(*written(("answer_over", own)))
        try:
            return {name: self._callers[name].hear() for name in asked}
        except Exception:
            self._end_lines()
            raise

    def _gather(self, refs: Mapping[str, Any]) -> dict[str, Any]:
        """Wait for answers of Ray calls, which an open line would keep waiting."""
        self._end_lines()
        return super()._gather(refs)

    def _end_lines(self) -> None:
        """End the lines to all parties. The next call of `introduce` opens new ones."""
        for caller in self._callers.values():
            caller.close()

    def _answer_of(self, party: str, ref: Any) -> Any:
        return answer_of(party, ref, self._timeout)

    def _late(self, party: str) -> PartyLost:
        return PartyLost(f"{party!r} did not answer within {self._timeout:g} s", party)
