"""Transports over the parties' Ray actors, for the queries of a run and for the sets of an alignment."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from coordinator.cluster.seat import together
from coordinator.traffic import Traffic
from vfl.errors import PartyLost
from vfl.kinds import from_plain, to_plain
from vfl.messages import BookHeads, Greeting, Reply, Stored
from vfl.secure.roles import DEALER
from vfl.shards.lending import Borrower, Lender
from vfl.shards.ray_transport import INLINE_BYTES, answer_of

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from vfl.alignment import IdsGreeting, Indexed
    from vfl.messages import Notice, Query, Records
    from vfl.privacy.events import ReleaseKey
    from vfl.secure.legs import Leg
    from vfl.security.psi import Points
    from vfl.shards.lending import Lent
    from vfl.types import Integers, Vector

PAUSE_SECONDS = 0.2
"""Pause between two requests to an actor that Ray is restarting."""


class Constants:
    """Vectors that most queries share. Each is stored once; queries carry a reference to it."""

    def __init__(self) -> None:
        self._stored: dict[str, tuple[Vector, Stored]] = {}
        # Readers keep what they fetched by its number, and must not take it for a vector of a restarted process.
        self._n_stored = secrets.randbits(62)

    def of(self, name: str, vector: Vector | None) -> Vector | Stored | None:
        """Return the form in which the vector is sent: a reference, or the vector itself if it is small."""
        if vector is None or vector.nbytes <= INLINE_BYTES:
            return vector
        known = self._stored.get(name)
        if known is None or known[0] is not vector:
            self._n_stored += 1
            known = self._stored[name] = (vector, Stored(ray.put(vector), self._n_stored))
        return known[1]

    def shared(self, name: str, vector: Vector) -> Vector:
        """Return the vector as the object store holds it, read-only, so that this process needs no copy of its own."""
        stored = self.of(name, vector)
        if not isinstance(stored, Stored):
            return vector
        view: Vector = ray.get(stored.reference)
        self._stored[name] = (view, stored)
        return view


class RayTransport:
    """Transport that asks all addressed actors at the same time; every wait has a limit.

    actors : {party: handle}.
    timeout : seconds to wait for one answer.
    sources : {party: the source that it loads again after a restart}.
    dealer : handle of the dealer of a run on shares.
    traffic : of the run so far.
    """

    def __init__(
        self,
        actors: Mapping[str, Any],
        timeout: float,
        sources: Mapping[str, Any] | None = None,
        *,
        dealer: Any = None,
    ) -> None:
        self._actors = actors
        self._dealer = dealer
        self._timeout = timeout
        self._sources = sources or {}
        self._constants = Constants()
        self._lenders = {"weights": Lender(), "margins": Lender()}
        self._borrower = Borrower()
        self._near: frozenset[str] | None = None
        self.traffic = Traffic(inline=INLINE_BYTES)

    def greet(self) -> dict[str, Greeting]:
        """Return every party's greeting."""
        told = self._gather({name: actor.greet.remote() for name, actor in self._actors.items()})
        return {name: from_plain(plain, Greeting) for name, plain in told.items()}

    def hear(self, notices: Mapping[str, Notice]) -> dict[str, BookHeads]:
        """Send the notices; return the heads of the books of these parties."""
        told = self._gather(
            {name: self._actors[name].hear.remote(to_plain(notice)) for name, notice in notices.items()}
        )
        return {name: from_plain(plain, BookHeads) for name, plain in told.items()}

    def labels(self, party: str) -> Vector:
        """Return y, (n,)."""
        labels: Vector = self._gather({party: self._actors[party].labels.remote()})[party]
        return labels

    def ask(self, shares: Mapping[str, Query], records: Records, key: ReleaseKey) -> dict[str, Reply]:
        """Send each share to its party, all at the same time; store n-vectors for several parties once.

        Parties of this machine read large vectors in memory that this process lends, and lend theirs.
        """
        shared = len(shares) > 1
        near = self._reached(shares, records)
        weights, margins = (
            self._lent(name, vector) if near else self._argument(vector, shared)
            for name, vector in (("weights", records.weights), ("margins", records.margins))
        )
        labels, limits = self._constants.of("labels", records.labels), self._constants.of("limits", records.limits)
        named = to_plain(key)
        refs = {
            name: self._actors[name].answer.remote(to_plain(share), named, weights, margins, labels, limits, near)
            for name, share in shares.items()
        }
        replies = {}
        for name, (plain, lent) in self._gather(refs).items():
            reply = from_plain(plain, Reply)
            replies[name] = reply if lent is None else replace(reply, vector=self._borrowed(name, shares[name], lent))
        self.traffic.count(records, replies)
        return replies

    def together(self, party: str) -> tuple[str, ...]:
        """Return the parties that run in the party's process; this party is the first of them."""
        return together(self._actors, party)

    def post(self, to: str, leg: Leg, parcels: Sequence[Any], count: int) -> tuple[Any, Sequence[Any]]:
        """Send a leg and return at once. Parcels are references, so actors send them directly to each other."""
        actor = self._dealer if to == DEALER else self._actors[to]
        refs = actor.leg.options(num_returns=1 + count).remote(to_plain(leg), *parcels)
        return (refs[0], refs[1:]) if count else (refs, ())

    def collect(self, answers: Sequence[tuple[str, Any]]) -> dict[str, object]:
        """Wait for replies in the order of their legs, so that PartyLost names the first participant that was lost."""
        told = {}
        for name, ref in answers:
            told[name] = answer_of(name, ref, self._timeout)
        return {name: from_plain(plain, object) for name, plain in told.items()}

    def revive(self, party: str, seconds: float) -> Greeting:
        """Wait until Ray has restarted the party's actor, and have it load its data again."""
        until = time.monotonic() + seconds
        self._near = None  # it may be back on another machine
        self.traffic.forget(party)
        while True:
            left = max(until - time.monotonic(), 0.1)
            try:
                if party == DEALER:  # it has no data to load
                    return Greeting(answer_of(party, self._dealer.version.remote(), left), 0)
                answer_of(party, self._actors[party].load.remote(self._sources[party]), left)
                greeting = from_plain(answer_of(party, self._actors[party].greet.remote(), left), Greeting)
            except PartyLost:
                if time.monotonic() + PAUSE_SECONDS > until:
                    raise
                time.sleep(PAUSE_SECONDS)
            else:
                return greeting

    def _reached(self, shares: Mapping[str, Query], records: Records) -> bool:
        """Return True if all addressed parties can read memory of this process, and vectors are large.

        The parties are asked once; each tries to read a vector.
        """
        sizes = [vector.nbytes for vector in (records.weights, records.margins) if vector is not None]
        if max(sizes, default=0) <= INLINE_BYTES:
            return False
        if self._near is None:
            probe = self._lenders["margins"].lend(np.zeros(1))
            asked = {} if probe is None else {q: actor.borrows.remote(probe) for q, actor in self._actors.items()}
            self._near = frozenset(party for party, reads in self._gather(asked).items() if reads)
        return self._near.issuperset(shares)

    def _lent(self, name: str, vector: Vector | None) -> Any:
        """Return where the vector is lent, or the vector if memory is short."""
        return None if vector is None else self._lenders[name].lend(vector) or vector

    def _borrowed(self, party: str, share: Query, lent: Lent) -> Vector:
        """Return a party's vector. Margins add a view up at once; a vector that they keep is copied."""
        view = self._borrower.borrow(lent)
        if view is None:
            raise PartyLost(f"{party!r} was cut off: the memory that it lent cannot be read", party)
        return view if share.target == "add" else view.copy()

    def _argument(self, vector: Vector | None, shared: bool) -> Any:
        return ray.put(vector) if shared and vector is not None and vector.nbytes > INLINE_BYTES else vector

    def _gather(self, refs: Mapping[str, Any]) -> dict[str, Any]:
        return {name: answer_of(name, ref, self._timeout) for name, ref in refs.items()}


class RayAlignment:
    """Transport of an alignment between the parties' actors.

    Sets travel from party to party through the object store. Only the sets that the coordinator compares reach it.
    """

    def __init__(self, actors: Mapping[str, Any], timeout: float) -> None:
        self._actors, self._timeout = actors, timeout

    def greet(self) -> dict[str, IdsGreeting]:
        """Return every party's greeting about its ids."""
        return self._gather({name: actor.greet_ids.remote() for name, actor in self._actors.items()})

    def begin(self, pending: str | None) -> None:
        """Have all parties begin."""
        self._gather({name: actor.begin.remote(pending) for name, actor in self._actors.items()})

    def multiply(
        self, step: Mapping[str, str], sets: Mapping[str, Any]
    ) -> Generator[tuple[str, int], None, dict[str, Any]]:
        """Have all parties multiply at the same time; the sets returned are references."""
        streams = {
            self._actors[party]
            .multiply.options(num_returns="streaming")
            .remote(owner, sets[owner] if owner != party else None): party
            for party, owner in step.items()
        }
        while streams:
            ready, _ = ray.wait(list(streams), num_returns=1, timeout=self._timeout)
            if not ready:
                silent = ", ".join(repr(party) for party in streams.values())
                raise PartyLost(f"{silent} did not answer within {self._timeout:g} s")
            try:
                ref = next(ready[0])
            except StopIteration:
                del streams[ready[0]]
                continue
            yield streams[ready[0]], answer_of(streams[ready[0]], ref, self._timeout)
        return {owner: self._actors[party].take.remote(owner) for party, owner in step.items()}

    def fetch(self, sets: Mapping[str, Any]) -> dict[str, Points]:
        """Return the points of the sets."""
        return self._gather(sets)

    def conclude(self, positions: Mapping[str, Integers]) -> dict[str, Indexed]:
        """Tell every party the positions of its common records."""
        return self._gather({name: self._actors[name].conclude.remote(own) for name, own in positions.items()})

    def _gather(self, refs: Mapping[str, Any]) -> dict[str, Any]:
        return {name: answer_of(name, ref, self._timeout) for name, ref in refs.items()}
