"""Transport to the parties' Ray actors, and handles of parties that share one worker process of a simulation."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from coordinator.transport import Call, MessageTransport, PendingCall, Traffic
from vfl.errors import PartyLost
from vfl.network.kinds import from_plain, to_plain_call
from vfl.network.messages import Greeting, Load
from vfl.network.shards.lending import Borrower, Lender, Lent, StoredVector
from vfl.network.shards.ray_transport import INLINE_BYTES, answer_of
from vfl.queries import RowRecords
from vfl.secure.roles import DEALER

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping, Sequence

    from vfl.base.types import Vector
    from vfl.queries import Query, Records, Reply


PAUSE_SECONDS = 0.2
"""Seconds between two requests to an actor that Ray is restarting."""


@dataclass(frozen=True, slots=True)
class _Method:
    """One method of one party, called in the party's shared process."""

    process: Any
    party: str
    name: str
    chosen: Any = None

    def remote(self, *arguments: Any) -> Any:
        """Call the method, and return Ray's reference or generator."""
        return (self.chosen or self.process.call).remote(self.party, self.name, *arguments)

    def options(self, **options: Any) -> _Method:
        """Return the method with Ray's options. Only a generator method streams its results."""
        method = self.process.stream if options.get("num_returns") == "streaming" else self.process.call
        return replace(self, chosen=method.options(**options))


@dataclass(frozen=True, slots=True)
class Seat:
    """Handle of one party in a process that several parties share (`parties.actor.Shared`).

    number : number of the process. Parties with the same number are lost together.
    """

    process: Any = field(repr=False)
    number: int
    party: str

    def __getattr__(self, name: str) -> _Method:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Method(self.process, self.party, name)


def process_of(actor: Any) -> Any:
    """Return the handle of the process in which a party runs: its own actor, or an actor shared with other parties."""
    return actor.process if isinstance(actor, Seat) else actor


def together(actors: Mapping[str, Any], party: str) -> tuple[str, ...]:
    """Return the parties that are lost together with `party`, which comes first."""
    own = actors[party]
    if not isinstance(own, Seat):
        return (party,)
    others = (name for name, actor in actors.items() if isinstance(actor, Seat) and actor.number == own.number)
    return (party, *(name for name in others if name != party))


class Constants:
    """Vectors that most queries share. Each vector is stored once, and queries carry a reference to it."""

    def __init__(self) -> None:
        self._stored: dict[str, tuple[Vector, StoredVector]] = {}
        # Readers cache vectors by number. The random start keeps a restarted process from reusing numbers.
        self._n_stored = secrets.randbits(62)

    def of(self, name: str, vector: Vector | None) -> Vector | StoredVector | None:
        """Return a reference to the stored vector; return a small vector itself."""
        if vector is None or vector.nbytes <= INLINE_BYTES:
            return vector
        known = self._stored.get(name)
        if known is None or known[0] is not vector:
            self._n_stored += 1
            known = self._stored[name] = (vector, StoredVector(ray.put(vector), self._n_stored))
        return known[1]

    def shared(self, name: str, vector: Vector) -> Vector:
        """Store a vector. Return a read-only view of it in the object store, so that this process can drop its own copy."""
        stored = self.of(name, vector)
        if not isinstance(stored, StoredVector):
            return vector
        view: Vector = ray.get(stored.reference)
        self._stored[name] = (view, stored)
        return view


class RayTransport(MessageTransport):
    """Transport that calls all actors at once. Every wait has a time limit.

    Vectors are passed by Ray reference. Actors send vectors directly to one another, and a large vector for several parties is
    stored once.

    actors : {party: handle}.
    timeout : seconds to wait for one answer.
    sources : {party: source to load after a restart}.
    dealer : handle of the dealer's actor, for training on secret shares.
    """

    def __init__(
        self,
        actors: Mapping[str, Any],
        timeout: float,
        sources: Mapping[str, Any] | None = None,
        *,
        dealer: Any = None,
    ) -> None:
        super().__init__(actors, Traffic(inline=INLINE_BYTES))
        self._actors = actors
        self._dealer = dealer
        self._timeout = timeout
        self._sources = sources or {}
        self._constants = Constants()
        self._lenders = {"weights": Lender(), "weights of rows": Lender(), "margins": Lender()}
        self._borrower = Borrower()
        self._near: frozenset[str] | None = None

    def _post(self, call: Call) -> PendingCall:
        """Call the participant's actor. Ray keeps the calls to one actor in order."""
        to, actor = call.to, self._dealer if call.to == DEALER else self._actors[call.to]
        limits = call.seconds or self._timeout, process_of(actor)
        plain, names, vectors = to_plain_call(call.message), tuple(call.vectors), call.vectors.values()
        if call.steps:
            made = actor.stream.options(num_returns="streaming").remote(plain, names, *vectors)
            return PendingCall(to, (made, *limits))
        if not call.passed or not call.due:
            return PendingCall(to, (actor.call.remote(plain, names, None, *vectors), *limits))
        sent = tuple(call.due)
        ref, *refs = actor.call.options(num_returns=1 + len(sent)).remote(plain, names, sent, *vectors)
        return PendingCall(to, (ref, *limits), dict(zip(sent, refs, strict=True)))

    def collect(self, posted: Sequence[PendingCall]) -> list[Any]:
        """Wait for replies in the order of the messages, so that PartyLost names the first participant that was lost."""
        return [received(answer_of(own.to, *own.answer)) for own in posted]

    def follow(self, posted: Sequence[PendingCall]) -> Generator[tuple[str, int], None, list[Any]]:
        """Yield the progress counts of streaming calls, and return all answers."""
        streams, answers = {own.answer[0]: own for own in posted}, {}
        while streams:
            limit = max(own.answer[1] for own in streams.values())
            ready, _ = ray.wait(list(streams), num_returns=1, timeout=limit)
            if not ready:
                silent = ", ".join(repr(own.to) for own in streams.values())
                raise PartyLost(f"{silent} did not answer within {limit:g} s", next(iter(streams.values())).to)
            own = streams[ready[0]]
            try:
                said = answer_of(own.to, next(ready[0]), limit)
            except StopIteration:
                del streams[ready[0]]
                continue
            if isinstance(said, int):
                yield own.to, said
            else:
                answers[ready[0]] = received(said)
        return [answers[own.answer[0]] for own in posted]

    def whole(self, vector: Any, party: str) -> Any:
        """Return a vector of an answer as one array. Its parts are fetched from the object store."""
        if not isinstance(vector, list):
            return vector
        return np.concatenate([answer_of(party, ref, self._timeout) for ref in vector])

    def put(self, records: Any, parties: Collection[str]) -> dict[str, Any]:
        """Return references to a query's vectors. Labels and limits are stored once for all queries.

        A large vector for several parties is stored once per query. Parties on this machine receive it in shared memory.
        """
        handles = super().put(records, parties)
        near = self._reached(parties, records)
        by_row = " of rows" * isinstance(records, RowRecords)  # one query sends these beside folded vectors
        for name in ("weights", "margins"):
            if name in handles:
                handles[name] = self._handle(name + by_row, handles[name], near=near, shared=len(parties) > 1)
        for name in ("labels", "limits"):
            if name in handles:
                handles[name] = self._constants.of(name, handles[name])
        return handles

    def together(self, party: str) -> tuple[str, ...]:
        """Return the parties that run in the same process as `party`, which comes first."""
        return together(self._actors, party)

    def revive(self, party: str, seconds: float) -> Greeting:
        """Wait until Ray has restarted the party's actor, make it load its data again, and return its greeting."""
        until = time.monotonic() + seconds
        self._near = None  # the restarted party may run on another machine
        self.traffic.forget(party)
        while True:
            left = max(until - time.monotonic(), 0.1)
            try:
                if party == DEALER:  # the dealer has no data to load
                    return Greeting(answer_of(party, self._dealer.version.remote(), left), 0)
                answer_of(party, self._actors[party].load.remote(self._sources[party]), left)
                return self.call({party: Load()}, Greeting, left)[party]
            except PartyLost:
                if time.monotonic() + PAUSE_SECONDS > until:
                    raise
                time.sleep(PAUSE_SECONDS)

    def _reached(self, parties: Collection[str], records: Records) -> bool:
        """Return True if the vectors are large and all of these parties can read memory of this process.

        To find out, each party is asked once to read a small vector.
        """
        sizes = [vector.nbytes for vector in (records.weights, records.margins) if vector is not None]
        if max(sizes, default=0) <= INLINE_BYTES:
            return False
        if self._near is None:
            probe = self._lenders["margins"].lend(np.zeros(1))
            asked = {} if probe is None else {q: actor.borrows.remote(probe) for q, actor in self._actors.items()}
            self._near = frozenset(party for party, reads in self._gather(asked).items() if reads)
        return self._near.issuperset(parties)

    def _handle(self, name: str, vector: Vector, *, near: bool, shared: bool) -> Any:
        """Return a reference to the vector, in shared memory or in the object store. A small vector is returned itself."""
        if near:
            return self._lenders[name].lend(vector) or vector
        return ray.put(vector) if shared and vector.nbytes > INLINE_BYTES else vector

    def _replied(self, party: str, share: Query, reply: Reply, vectors: Mapping[str, Any]) -> Reply:
        """Return the reply with its vector.

        The vector is a view of shared memory if it is added up at once, and a copy if kept.
        """
        lent = vectors.get("vector")
        if not isinstance(lent, Lent):
            return super()._replied(party, share, reply, vectors)
        view = self._borrower.borrow(lent)
        if view is None:
            raise PartyLost(f"{party!r} was cut off: the memory that it lent cannot be read", party)
        return replace(reply, vector=view if share.target == "add" else view.copy())

    def _gather(self, refs: Mapping[str, Any]) -> dict[str, Any]:
        return {name: answer_of(name, ref, self._timeout, process_of(self._actors[name])) for name, ref in refs.items()}


def received(answer: Any) -> tuple[object, Mapping[str, Any]]:
    """Split an actor's answer into (reply, vectors)."""
    plain, vectors = answer if type(answer[1]) is dict else (answer, {})
    return from_plain(plain, object), vectors
