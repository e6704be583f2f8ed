"""Transport to parties whose rows are in shards. The shards exchange vectors directly, never through the coordinator."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.cluster.ray_transport import RayTransport, Seat, received
from coordinator.states.linear_predictors import StateLost
from coordinator.transport import Call, PendingCall
from vfl.base.problem import Targets
from vfl.errors import PartyLost
from vfl.network.kinds import to_plain_call
from vfl.network.shards import Each
from vfl.network.shards.ray_transport import answer_of
from vfl.network.shards.serving import Caller, written
from vfl.queries import Need

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from vfl.network.messages import Greeting
    from vfl.network.shards.serving import PipeGroup
    from vfl.queries import Query, Reply


class ShardTransport(RayTransport):
    """Transport to the main actor of each party with row shards. It forwards references; the shards exchange vectors.

    Queries to main actors on this machine use local pipes (vfl.network.shards.serving).

    targets : form of the margins, as for `LinearPredictors`. n_trained : number of training records.
    """

    targets = Targets()
    n_trained = 0

    _margins: PipeGroup | None = None
    _callers: Mapping[str, Caller] = MappingProxyType({})
    _piped = False

    def introduce(self, margins: PipeGroup) -> None:
        """Find out which shards and main actors share a machine, and tell each actor the result."""
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
            and not isinstance(self._actors[name], Seat)  # an open pipe would block the other parties of its process
        }

    def revive(self, party: str, seconds: float) -> Greeting:
        """Wait until Ray has restarted the party's actors, make them load their data again, and return the party's greeting."""
        self._close_pipes()
        greeting = super().revive(party, seconds)
        if self._margins is not None:
            with contextlib.suppress(StateLost):  # the next query raises StateLost again
                self.introduce(self._margins)
        return greeting

    def put(self, records: Any, parties: Collection[str]) -> dict[str, Any]:
        """Return references to the vectors of each shard."""
        self._piped = self._callers.keys() >= set(parties)
        return {"records": list(records)}

    def _post(self, call: Call) -> PendingCall:
        """Call the party's main actor.

        A query uses pipes if all addressed parties have one, since open pipes block Ray calls.
        """
        if not (self._piped and "records" in call.vectors):
            self._close_pipes()
            return super()._post(call)
        caller, vectors = self._callers[call.to], call.vectors
        caller.say(*written(("call", (to_plain_call(call.message), tuple(vectors), None, *vectors.values()))))
        return PendingCall(call.to, caller)

    def collect(self, posted: Sequence[PendingCall]) -> list[Any]:
        """Wait for the answers, from pipes or from Ray."""
        if not any(isinstance(own.answer, Caller) for own in posted):
            return super().collect(posted)
        try:
            return [received(own.answer.hear()) for own in posted]
        except Exception:
            self._close_pipes()
            raise

    def _replied(self, party: str, share: Query, reply: Reply, vectors: Mapping[str, Any]) -> Reply:
        handles: Any = Each(vectors["vector"]) if "vector" in vectors else None
        return replace(reply, vector=handles)

    def _count(self, shares: Mapping[str, Query], records: Any, replies: Mapping[str, Reply]) -> None:
        for name, reply in replies.items():
            self.traffic.n_bytes += self.n_trained * self.moved(name, shares[name], answered=reply.vector is not None)
        self.traffic.wait(replies)

    def moved(self, party: str, share: Query, *, answered: bool) -> int:
        """Return the bytes per record that shards exchange for a party's part of a query.

        Labels and limits are counted once.
        """
        n_outputs, kind = self.targets.n_outputs, self.targets.kind if share.need is Need.MARGINS else "float64"
        entry = np.dtype(kind).itemsize
        count = entry * n_outputs * share.width * (share.need is not Need.NOTHING)
        count += answered * entry * share.answer_width(n_outputs)
        if share.need is Need.MARGINS:
            count += 8 * (1 + self.targets.weights) * self.traffic.first(party, "labels", 0.0)
            cap = share.capped
            count += 8 * (cap is not None and self.traffic.first(party, "limits", cap.cap))
        return count

    def _gather(self, refs: Mapping[str, Any]) -> dict[str, Any]:
        """Wait for answers of Ray calls. The pipes are closed first, since they would block these calls."""
        self._close_pipes()
        return super()._gather(refs)

    def _close_pipes(self) -> None:
        """Close the pipes to all parties. The next call of `introduce` opens new pipes."""
        for caller in self._callers.values():
            caller.close()

    def _answer_of(self, party: str, ref: Any) -> Any:
        return answer_of(party, ref, self._timeout, self._actors[party])

    def _late(self, party: str) -> PartyLost:
        return PartyLost(f"{party!r} did not answer within {self._timeout:g} s", party)
