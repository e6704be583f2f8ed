"""Transport to the parties of a federation; the same algorithm as on Ray and in process."""

from __future__ import annotations

import contextlib
import hashlib
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from coordinator.federation.link import SENTENCE
from coordinator.traffic import Traffic
from vfl.errors import FederationError, PartyLost, VflError
from vfl.holdout import Side
from vfl.messages import BookHeads, Descend, Forward, Greeting, Groups, RecordNorms, Reply, Select
from vfl.messages.joining import Done, Load, SendLabels
from vfl.secure.parcels import named_parcels, parcel_names
from vfl.secure.roles import DEALER
from vfl.secure.spares import SPARES
from vfl.security.sealing import sealed_size
from vfl.targets import Targets
from vfl.wire.frames import Constant, Limits, as_vector
from vfl.wire.values import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from coordinator.federation.gathering import Gathering
    from coordinator.federation.link import Answer, Link
    from vfl.messages import Notice, Query, Records
    from vfl.privacy.events import ReleaseKey
    from vfl.secure.legs import Leg
    from vfl.types import Vector

M = TypeVar("M")

MOST_RECORDS = 1 << 31
"""Records that a party may state; a vector of labels may be as long."""
PER_VALUE = 64
"""Bytes of an answer for each vector or number that it holds, beside the vectors' entries."""
MOST_TERMS, MOST_WORDS = 16, 1 << 26
"""Largest number of terms of the sigmoid, and of bytes of the words of an opening."""
OF_MARGINS, OF_RECORDS = (Forward, Descend), (RecordNorms, Groups)
WITH_VECTOR = OF_MARGINS + OF_RECORDS
"""Queries that are answered with a vector: those of margins hold one entry per margin of each record, the others (n,)."""


class FederationTransport:
    """Transport that asks all addressed parties at the same time; every wait has a limit.

    A party whose stream breaks while it is asked is lost, and so is the query. `revive` waits until the party has connected
    again.

    parts : returns the numbers of records to train on and held out, given their sum.
    offer : offers this run to a party that has connected again.
    n_margins : margins per record, K with multinomial loss. kind : their type in a sweep, as for `Margins`.
    targets : the vectors that the label's owner sends with the labels.
    dealer : of a run on shares: the one at the coordinator, or the name of the organisation that deals, which has a stream as
        the parties have. widest : largest number of columns of a party.
    timeout : seconds to wait for one answer. load_seconds : for a party to read its data.
    traffic : of the run so far.
    """

    def __init__(
        self,
        gathering: Gathering,
        parties: tuple[str, ...],
        *,
        offer: Callable[[Link], None],
        parts: Callable[[int], tuple[int, int]],
        timeout: float,
        load_seconds: float,
        n_margins: int = 1,
        kind: str = "float64",
        dealer: Any = None,
        widest: int = 0,
        targets: Targets | None = None,
    ) -> None:
        self._gathering, self._names, self._offer, self._parts = gathering, parties, offer, parts
        self._timeout, self._load_seconds, self._n_margins, self._kind = timeout, load_seconds, n_margins, kind
        self._dealer, self._widest = dealer, widest
        self._targets = targets or Targets()
        self._offered_to = {member: link.process for member, link in gathering.connected().items()}
        self._queues: dict[str, ThreadPoolExecutor] = {}
        self._n_records: dict[str, int] = {}
        self._constants: dict[str, tuple[Vector, Constant]] = {}
        self.traffic = Traffic()

    def greet(self) -> dict[str, Greeting]:
        """Have all parties read their columns, at the same time; return their greetings."""
        return together({name: self._calling(name, Load()) for name in self._names}, self._greeted)

    def hear(self, notices: Mapping[str, Notice]) -> dict[str, BookHeads]:
        """Send the notices; return the heads of the books of these parties."""
        calls = {name: self._calling(name, notice) for name, notice in notices.items()}
        return together(calls, lambda name, answer: expected(answer.wait(self._timeout)[0], BookHeads, name))

    def labels(self, party: str) -> Vector:
        """Return y, (n,), and after it log(exposure) where the job has exposures."""
        size = 8 * self._targets.count * self._n_records.get(party, MOST_RECORDS)
        answer = self._link(party).call(SendLabels(), limits=Limits(SENTENCE, {"labels": size}))
        message, vectors = answer.wait(self._timeout)
        expected(message, Done, party)
        labels: Vector = sized(vectors, "labels", size, party)
        if not np.isfinite(labels).all():
            raise FederationError(f"party {party!r} sent a label that is not a number")
        return labels

    def ask(self, shares: Mapping[str, Query], records: Records, key: ReleaseKey) -> dict[str, Reply]:
        """Send each share to its party, all at the same time; labels and limits travel once a run."""
        vectors: dict[str, Any] = {
            name: vector
            for name, vector in (("weights", records.weights), ("margins", records.margins))
            if vector is not None
        }
        for name, vector in (("labels", records.labels), ("limits", records.limits)):
            if vector is not None:
                vectors[name] = self._constant(name, vector)
        calls = {}
        for name, share in shares.items():
            sizes = share.sizes()
            body = SENTENCE + sum(8 * size + PER_VALUE for size in sizes)
            limits = Limits(body, {"vector": self._due(share, name)} if isinstance(share, WITH_VECTOR) else {})
            calls[name] = self._calling(name, share, key, vectors=vectors, limits=limits)
        replies = together(calls, lambda name, answer: self._reply(name, answer, shares[name]))
        self.traffic.count(records, replies)
        return replies

    def together(self, party: str) -> tuple[str, ...]:
        """Return the party alone, since each runs at its own organisation."""
        return (party,)

    def post(self, to: str, leg: Leg, parcels: Sequence[Any], count: int) -> tuple[Any, Sequence[Any]]:
        """Queue a leg and return at once. It is sent when its parcels are here and the participant has answered earlier legs.

        Parcels pass through the coordinator, sealed for their receiver.
        """
        if to not in self._queues:
            self._queues[to] = ThreadPoolExecutor(1, f"legs to {to}")
        answer = self._queues[to].submit(self._sent, to, leg, parcels, count)
        return answer, [(answer, place) for place in range(count)]

    def collect(self, answers: Sequence[tuple[str, Any]]) -> dict[str, object]:
        """Wait for replies in the order of their legs."""
        wait([answer for _, answer in answers])  # a participant answers one call at a time
        return {name: answer.result()[0] for name, answer in answers}

    def _sent(self, to: str, leg: Leg, parcels: Sequence[Any], count: int) -> tuple[object, list[Any]]:
        """Call a participant with a leg and its parcels; return its reply and the parcels that it sends."""
        given = [answer.result()[1][place] for answer, place in parcels]
        if to == DEALER and self._dealer is None:
            raise FederationError("a run on shares has no dealer here")
        if to == DEALER and not isinstance(self._dealer, str):
            reply, sent = self._dealer.leg(leg, given)
            self.traffic.n_bytes += sum(map(len, sent))
            return reply, sent
        names = parcel_names(count)
        limits = Limits(MOST_WORDS, dict.fromkeys(names, self._largest_parcel()))
        vectors = named_parcels(given)
        member = self._member(to)
        with _lost_as(to):
            reply, found = self._link(member).call(leg, vectors=vectors, limits=limits).wait(self._timeout)
        if set(found) != set(names):
            raise FederationError(f"{member!r} sent other parcels than its leg asks for")
        self.traffic.n_bytes += sum(found[name].nbytes for name in names)
        return reply, [found[name] for name in names]

    def _largest_parcel(self) -> int:
        return sealed_size(8 * (max(self._n_records.values()) + SPARES) * max(self._widest, 2 * MOST_TERMS))

    def _member(self, name: str) -> str:
        """Return the member of the federation that has this name in the run."""
        return self._dealer if name == DEALER and isinstance(self._dealer, str) else name

    def revive(self, party: str, seconds: float) -> Greeting:
        """Wait until the party is connected again, offer it the run, and have it load its data unless it still holds them.

        A dealer has no data to load.
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
                    return Greeting(link.version, 0) if member != party else self._greeted(party, link.call(Load()))
            except PartyLost:
                if time.monotonic() >= until:
                    raise

    def _link(self, party: str) -> Link:
        """Return the party's stream. Raises PartyLost for a new process of the party, which knows nothing of the run."""
        link = self._gathering.link(party, 0.0)
        if self._offered_to.setdefault(party, link.process) != link.process:
            raise PartyLost(f"{party!r} was lost: it was started again", party)
        return link

    def _calling(self, party: str, *messages: object, **options: Any) -> Callable[[], Answer]:
        return lambda: self._link(party).call(*messages, **options)

    def _greeted(self, party: str, answer: Answer) -> Greeting:
        greeting = expected(answer.wait(self._load_seconds)[0], Greeting, party)
        if not 0 <= greeting.n_records <= MOST_RECORDS:
            raise FederationError(f"party {party!r} reported an impossible number of records")
        self._n_records[party] = greeting.n_records
        return greeting

    def _reply(self, party: str, answer: Answer, share: Query) -> Reply:
        message, vectors = answer.wait(self._timeout)
        reply = expected(message, Reply, party)
        selects = isinstance(share, Select)
        lengths = tuple(len(vector) for vector in reply.released)
        if lengths != (() if selects else share.sizes()) or (reply.selected is not None) != selects:
            raise FederationError(f"party {party!r} sent releases of different lengths from those requested")
        if reply.selected is not None and not self._addressed(share, party, reply.selected.coordinate):
            raise FederationError(f"party {party!r} selected a coordinate that it was not asked about")
        if not isinstance(share, WITH_VECTOR):
            return reply
        vector = sized(vectors, "vector", self._due(share, party), party, self._kind_of(share))
        return Reply(reply.released, vector, reply.selected, reply.seconds)

    def _addressed(self, share: Query, party: str, coordinate: int) -> bool:
        block = share.coordinates[party][0].coordinates if isinstance(share, Select) else slice(0, 0)
        return bool(block.start <= coordinate < block.stop)

    def _due(self, share: Query, party: str) -> int:
        """Return the size of the vector that answers a share, in bytes."""
        n_trained, n_held = self._parts(self._n_records[party])
        per_record = self._n_margins if isinstance(share, OF_MARGINS) else 1
        entry = np.dtype(self._kind_of(share)).itemsize
        return entry * per_record * (n_held if share.side is Side.HELD_OUT else n_trained)

    def _kind_of(self, share: Query) -> str:
        """Return the type of the vector that answers a share."""
        return self._kind if isinstance(share, Descend) and share.sweep else "float64"

    def _constant(self, name: str, vector: Vector) -> Constant:
        known = self._constants.get(name)
        if known is None or known[0] is not vector:
            content: Any = np.ascontiguousarray(vector)
            digest = hashlib.sha256(content).digest()
            known = self._constants[name] = (vector, Constant(vector, digest))
        return known[1]


@contextlib.contextmanager
def _lost_as(name: str) -> Iterator[None]:
    """Raise a PartyLost of a member's stream under the name that the member has in the run."""
    try:
        yield
    except PartyLost as lost:
        if lost.party == name:
            raise
        raise PartyLost(str(lost), name) from None


def together(calls: Mapping[str, Callable[[], Answer]], result: Callable[[str, Answer], M]) -> dict[str, M]:
    """Make calls at the same time and return the result of every answer.

    All answers are awaited before the first error is raised: a party answers one call at a time.
    """
    answers: dict[str, Answer] = {}
    results: dict[str, M] = {}
    failed: list[VflError] = []
    for name, call in calls.items():
        try:
            answers[name] = call()
        except VflError as error:
            failed.append(error)
    for name, answer in answers.items():
        try:
            results[name] = result(name, answer)
        except VflError as error:
            failed.append(error)
    if failed:
        raise next((error for error in failed if not isinstance(error, PartyLost)), failed[0])
    return results


def expected(message: object, kind: type[M], party: str) -> M:
    """Return the message if it is of the expected kind. Raises FederationError."""
    if not isinstance(message, kind):
        raise FederationError(
            f"party {party!r} answered with a {type(message).__name__}, where a {kind.__name__} was expected"
        )
    return message


def sized(vectors: Mapping[str, Any], name: str, size: int, party: str, kind: str = "float64") -> Any:
    """Return a vector of exactly this many bytes. Raises FederationError."""
    if name not in vectors or vectors[name].nbytes != size:
        raise FederationError(f"party {party!r} sent {name} of an unexpected size")
    try:
        return as_vector(vectors[name], kind)
    except WireError as error:
        raise FederationError(f"party {party!r}: {error}") from None
