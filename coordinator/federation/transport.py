"""Transport to the parties of a federation. The algorithm is the same as on Ray and in one process."""

from __future__ import annotations

import contextlib
import hashlib
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.federation.gathering import SENTENCE
from coordinator.transport import MOST_RECORDS, NOTHING, Call, MessageTransport, PendingCall, given
from vfl.base.holdout import Side
from vfl.base.problem import Targets
from vfl.crypto.encryption import EncryptionKey, encrypted_size
from vfl.crypto.psi import SIZE
from vfl.errors import FederationError, PartyLost
from vfl.network.messages import Done, Encrypted, Greeting, Introduce, Introduced, Load, MakeSalt, TakeSalt
from vfl.network.wire.frames import Constant, Limits, as_vector
from vfl.network.wire.values import WireError
from vfl.planning.cost import memory_here
from vfl.queries import Need, Reply
from vfl.secure.requests import Request
from vfl.secure.roles import DEALER

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence

    from coordinator.federation.gathering import ConnectedMembers, Link
    from vfl.base.types import Vector
    from vfl.queries import Query

PER_VALUE = 64
"""Overhead in bytes per vector or number in an answer, in addition to the entries of vectors."""
MOST_WORDS = 1 << 26
"""Largest size in bytes of one party's shares of the sums that a run on secret shares reveals (vfl.secure)."""
CONSTANTS = ("labels", "limits")
COPIES = 2
"""Number of copies of a party's set of ids that the coordinator holds: one as received, one for the comparison."""


class FederationTransport(MessageTransport):
    """Transport that asks all parties at once. Every wait has a time limit.

    If a party's stream breaks during a query, the party and the query are lost. `revive` waits until the party connects again.

    parts : function from the number of records to the pair (number of training records, number of held-out records).
    offer : function that offers this run to a party that has connected again.
    targets : says which vectors the label party sends with the labels, and the form of the margins.
    dealer : dealer for training on secret shares: an object in this process, or the name of an organisation with a stream here.
    timeout : seconds to wait for one answer. load_seconds : seconds for a party to read its data.
    """

    def __init__(
        self,
        gathering: ConnectedMembers,
        parties: tuple[str, ...],
        *,
        timeout: float,
        load_seconds: float | None = None,
        offer: Callable[[Link], None] = lambda _: None,
        parts: Callable[[int], tuple[int, int]] = lambda n: (n, 0),
        dealer: Any = None,
        targets: Targets | None = None,
    ) -> None:
        super().__init__(parties)
        self._gathering, self._offer, self._parts = gathering, offer, parts
        self._timeout, self.load_seconds = timeout, load_seconds
        self._dealer = dealer
        self._targets = targets or Targets()
        self._offered_to = {member: link.process for member, link in gathering.connected().items()}
        self._queues: dict[str, ThreadPoolExecutor] = {}
        self._n_records: dict[str, int] = {}
        self._constants: dict[str, tuple[Vector, Constant]] = {}

    def _post(self, call: Call) -> PendingCall:
        """Queue a message, to be sent once its vectors have arrived and the participant has answered all earlier messages.

        Vectors for other participants pass through this process, encrypted for their receivers.
        """
        to, done = call.to, list[int]()
        if to not in self._queues:
            self._queues[to] = ThreadPoolExecutor(1, f"messages to {to}")
        answer = self._queues[to].submit(self._sent, call, done.append)
        passed = {name: _Awaited(answer, name) for name in call.due} if call.passed else NOTHING
        return PendingCall(to, (answer, done), passed)

    def collect(self, posted: Sequence[PendingCall]) -> list[Any]:
        """Wait for all replies, and return them, or raise the first error in the order of the messages.

        If the messages have different receivers, any other error is raised in preference to PartyLost. The caller may repeat
        the messages after a loss, but not after another error.
        """
        wait([own.answer[0] for own in posted])
        failed = [error for own in posted if (error := own.answer[0].exception()) is not None]
        if failed and len({own.to for own in posted}) == len(posted):
            raise next((error for error in failed if not isinstance(error, PartyLost)), failed[0])
        return [own.answer[0].result() for own in posted]

    def follow(self, posted: Sequence[PendingCall]) -> Generator[tuple[str, int], None, list[Any]]:
        """Yield the progress that participants report, and return all answers."""
        left: set[Future[Any]] = {own.answer[0] for own in posted}
        while left:
            _, left = wait(left, timeout=0.1)
            for own in posted:
                _, done = own.answer
                if done:
                    yield own.to, done[-1]
                    done.clear()
        return self.collect(posted)

    def exchange_keys(self, *, salted: bool) -> None:
        """Exchange the parties' encryption keys. If salted, also pass on the salt that the first party chooses and encrypts."""
        keys = self.call(dict.fromkeys(self.parties, Introduce()), EncryptionKey)
        self.call(dict.fromkeys(self.parties, Introduced(keys)), Done)
        if not salted:
            return
        maker, *others = self.parties
        encrypted = self.call({maker: MakeSalt()}, Encrypted)[maker]
        if encrypted.texts.keys() != set(others):
            raise FederationError(f"party {maker!r} did not encrypt the salt for all parties")
        self.call({name: TakeSalt(maker, encrypted.texts[name]) for name in others}, Done)

    def check_sizes(self, sizes: Mapping[str, int]) -> None:
        """Raise FederationError if this machine cannot hold sets of ids of these sizes. Call this before a set is sent."""
        needed, here = COPIES * SIZE * sum(sizes.values()), memory_here()
        if needed > here:
            raise FederationError(
                f"the coordinator has {here / 1e9:.3g} GB of memory, and the sets of ids that the parties announce take "
                f"{needed / 1e9:.3g} GB: align on a larger machine"
            )

    def put(self, records: Any, parties: Collection[str]) -> dict[str, Any]:
        """Return references to a query's vectors. Labels and limits are sent once per run."""
        handles = super().put(records, parties)
        return handles | {name: self._constant(name, handles[name]) for name in CONSTANTS if name in handles}

    def greet(self) -> dict[str, Greeting]:
        """Make all parties read their columns, at the same time, and return their greetings."""
        return self._noted(super().greet())

    def labels(self, party: str) -> Vector:
        """Return y, (n,), followed by the other vectors of the job's targets, such as log(exposure)."""
        labels: Vector = sized({"labels": super().labels(party)}, "labels", self._due_labels(party), party)
        if not np.isfinite(labels).all():
            raise FederationError(f"party {party!r} sent a label that is not a number")
        return labels

    def revive(self, party: str, seconds: float) -> Greeting:
        """Wait until the participant is connected again, offer it the run, and make it load its data if needed.

        The dealer has no data to load.
        """
        until = time.monotonic() + seconds
        member = self._member(party)
        self.traffic.forget(party)
        while True:
            try:
                with _lost_as(party):
                    link = self._gathering.link(member, max(until - time.monotonic(), 0.0))
                    self._offer(link)
                    self._offered_to[member] = link.process
                    if member != party:
                        return Greeting(link.version, 0)
                    return self._noted(self.call({party: Load()}, Greeting, self.load_seconds))[party]
            except PartyLost:
                if time.monotonic() >= until:
                    raise

    def _sent(self, call: Call, progress: Callable[[int], None]) -> tuple[object, Mapping[str, Any]]:
        """Wait for the call's vectors, then call the participant. Return its reply, and the vectors of the reply."""
        to, message = call.to, call.message
        given = {name: own.get() if isinstance(own, _Awaited) else own for name, own in call.vectors.items()}
        due = {name: encrypted_size(size) if call.passed else size for name, size in call.due.items()}
        request = isinstance(message, Request)
        if to == DEALER and self._dealer is None:
            raise FederationError("a run on shares has no dealer here")
        if to == DEALER and not isinstance(self._dealer, str):
            reply, found = self._dealer.answer(message, given)
        else:
            member, limits = self._member(to), Limits(_body_of(message), due)
            messages = message if isinstance(message, tuple) else (message,)
            with _lost_as(to):
                link, reports = self._link(member), progress if call.steps else None
                answer = link.call(*messages, vectors=given, limits=limits, progress=reports, steps=call.steps)
                reply, found = answer.wait(call.seconds or self._timeout)
            if request and set(found) != set(due):
                raise FederationError(f"the answer of {member!r} contains ciphertexts different from those requested")
        if request:
            self.traffic.n_bytes += sum(map(len, found.values()))
        return reply, found

    def _member(self, name: str) -> str:
        """Return the member of the federation that plays this role in the run."""
        return self._dealer if name == DEALER and isinstance(self._dealer, str) else name

    def _link(self, party: str) -> Link:
        """Return the party's stream. Raises PartyLost if the party has a new process, which knows nothing of the run."""
        link = self._gathering.link(party, 0.0)
        if self._offered_to.setdefault(party, link.process) != link.process:
            raise PartyLost(f"{party!r} was lost: it was started again", party)
        return link

    def _noted(self, greetings: dict[str, Greeting]) -> dict[str, Greeting]:
        """Record the parties' numbers of records, which determine the sizes of answers."""
        for party, greeting in greetings.items():
            if not 0 <= greeting.n_records <= MOST_RECORDS:
                raise FederationError(f"party {party!r} reported an impossible number of records")
            self._n_records[party] = greeting.n_records
        return greetings

    def _replied(self, party: str, share: Query, reply: Reply, vectors: Mapping[str, Any]) -> Reply:
        """Return the reply with its vector. Raises FederationError if the vector does not have the requested length."""
        if not share.answer_width(self._targets.n_outputs):
            return reply
        vector = sized(vectors, "vector", self._due(party, share)["vector"], party, self._kind_of(share))
        return replace(reply, vector=vector)

    def _due_labels(self, party: str) -> int:
        return 8 * int(self._targets.count) * self._n_records.get(party, MOST_RECORDS) * self._targets.rows_at(party)

    def _due(self, party: str, share: Query) -> Mapping[str, int]:
        per_record = share.answer_width(self._targets.n_outputs)
        if not per_record:
            return NOTHING
        n_trained, n_held = self._parts(self._n_records[party])
        entry = np.dtype(self._kind_of(share)).itemsize * self._targets.rows_at(party)
        return {"vector": entry * per_record * (n_held if share.side is Side.HELD_OUT else n_trained)}

    def _kind_of(self, share: Query) -> str:
        return self._targets.kind if share.need is Need.MARGINS else "float64"

    def _constant(self, name: str, vector: Vector) -> Constant:
        known = self._constants.get(name)
        if known is None or known[0] is not vector:
            content: Any = np.ascontiguousarray(vector)
            digest = hashlib.sha256(content).digest()
            known = self._constants[name] = (vector, Constant(vector, digest))
        return known[1]


@contextlib.contextmanager
def _lost_as(name: str) -> Iterator[None]:
    """In a PartyLost, replace the name of the federation's member by the name of its role in the run."""
    try:
        yield
    except PartyLost as lost:
        if lost.party == name:
            raise
        raise PartyLost(str(lost), name) from None


@dataclass(frozen=True, slots=True)
class _Awaited:
    """Vector of an answer that has not arrived yet."""

    answer: Future[Any]
    name: str

    def get(self) -> Any:
        vectors = self.answer.result()[1]
        if self.name not in vectors:
            raise FederationError(f"an answer came without its {self.name}")
        return vectors[self.name]


def _body_of(message: Any) -> int:
    """Return the largest allowed size of an answer's body, in bytes."""
    if isinstance(message, tuple):
        query: Query = message[0]
        return SENTENCE + sum(8 * size + PER_VALUE for size in query.sizes())
    return MOST_WORDS if isinstance(message, Request) else SENTENCE


def sized(vectors: Mapping[str, Any], name: str, size: int, party: str, kind: str = "float64") -> Any:
    """Return the named vector, which must have exactly `size` bytes; else raise FederationError."""
    try:
        return as_vector(given(vectors, name, party, size), kind)
    except WireError as error:
        raise FederationError(f"party {party!r}: {error}") from None
