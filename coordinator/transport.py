"""Transport of messages and vectors between the coordinator and participants, for training, alignment and prediction.

    posted = transport.post("bank", Multiply(...), {"points": handle}, steps=n)
    for party, done in transport.follow([posted]): ...           # or transport.collect([posted])

A subclass sends messages as function calls, to Ray actors, or over gRPC streams. Vectors are sent by reference. Only the
transport can resolve a reference, called a handle: an array, shared memory, a reference to an object store, or the future of an
answer. `Traffic` counts the bytes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from vfl.errors import FederationError, VersionMismatch
from vfl.network.messages import Done, Greeting, LedgerHeads, Load, SendLabels
from vfl.queries import Reply
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Mapping, Sequence

    from vfl.base.types import Vector
    from vfl.network.messages import Notice
    from vfl.privacy.events import ReleaseKey
    from vfl.queries import Query, Records
    from vfl.queries.protocol import Released

    Received = tuple[object, Mapping[str, Any]]
    """A reply, and {name: vector} of the vectors that come with it."""


M = TypeVar("M")

MOST_RECORDS = 1 << 31
"""Largest number of records that a party may report, and largest length of a vector of labels."""
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class PendingCall:
    """A message that was sent but is not answered yet.

    to : the receiver. answer : the pending answer, for which the transport waits. vectors : {name: reference} of vectors to
        pass on.
    """

    to: str
    answer: Any
    vectors: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A message to one participant.

    to : the receiver. message : message of a registered kind; for a query, the tuple (query, key of its release).
    vectors : {name: array, or reference to one}. due : {name: largest number of bytes} of the vectors that the answer brings.
    passed : True if these vectors are for other participants, and `PendingCall` has references to them; False if they come with
        the reply.
    steps : number of steps whose progress `follow` yields. seconds : limit for the answer, or for silence before it; None for
        the transport's limit.
    """

    to: str
    message: Any
    vectors: Mapping[str, Any]
    due: Mapping[str, int]
    passed: bool
    steps: int
    seconds: float | None


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
            shown = records.of(party)
            moved = (shown.weights, shown.margins, reply.vector)
            self.n_bytes += sum(vector.nbytes for vector in moved if vector is not None)
            for name, constant in (("labels", shown.labels), ("limits", shown.limits)):
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


class MessageTransport(ABC):
    """Transport of messages, with vectors by name. A participant answers messages in the order in which they were sent.

    Replies come in the order of the messages; no query is ever repeated. PartyLost names a participant that does not answer.

    parties : names of the parties, in the partition's order. traffic : counts of the run so far; None for new counts.
    load_seconds : time limit for a party to read its data; None for the transport's limit for an answer.
    """

    load_seconds: float | None = None

    def __init__(self, parties: Iterable[str], traffic: Traffic | None = None) -> None:
        self.parties = tuple(parties)
        self.traffic = Traffic() if traffic is None else traffic

    def post(
        self,
        to: str,
        message: object,
        vectors: Mapping[str, Any] = NOTHING,
        due: Mapping[str, int] = NOTHING,
        *,
        passed: bool = False,
        steps: int = 0,
        seconds: float | None = None,
    ) -> PendingCall:
        """Send a message and return at once. `collect` or `follow` waits for the answer. Arguments : the fields of `Call`."""
        return self._post(Call(to, message, vectors, due, passed, steps, seconds))

    @abstractmethod
    def _post(self, call: Call) -> PendingCall:
        """Send a message over this transport."""

    @abstractmethod
    def collect(self, posted: Sequence[PendingCall]) -> list[Received]:
        """Wait for all replies, or raise the first error in the order of the messages. PartyLost names the participant."""

    @abstractmethod
    def follow(self, posted: Sequence[PendingCall]) -> Generator[tuple[str, int], None, list[Received]]:
        """Yield the progress of streaming messages as (participant, finished steps); return what `collect` would return."""

    @abstractmethod
    def revive(self, party: str, seconds: float) -> Greeting:
        """Wait until a lost party has loaded its data again, and return its greeting. Raises PartyLost after `seconds`."""

    def together(self, party: str) -> tuple[str, ...]:
        """Return all parties in the process of `party`, which are lost together. `party` comes first."""
        return (party,)

    def newly_opened(self) -> Released:
        """Return products of columns revealed since the last call, for the log of a run on secret shares; () in other runs."""
        return ()

    def exchange_keys(self, *, salted: bool) -> None:
        """Exchange the parties' encryption keys; if salted, also a secret salt.

        Needed only if vectors pass through the coordinator.
        """
        del salted

    def check_sizes(self, sizes: Mapping[str, int]) -> None:
        """Raise FederationError if this process cannot hold sets of ids of these sizes. sizes : {party: number of its ids}."""
        del sizes

    def whole(self, vector: Any, party: str) -> Any:
        """Return a vector of an answer as one array. The parts that the party's shards hold are joined."""
        del party
        return vector

    def put(self, records: Any, parties: Collection[str]) -> dict[str, Any]:
        """Return references to a query's per-record vectors, which all of these parties can resolve."""
        del parties
        if isinstance(records, tuple):  # one entry per shard
            return {"records": records}
        named = (("weights", records.weights), ("margins", records.margins))
        constant = (("labels", records.labels), ("limits", records.limits))
        return {name: vector for name, vector in (*named, *constant) if vector is not None}

    def call(self, messages: Mapping[str, object], kind: type[M], seconds: float | None = None) -> dict[str, M]:
        """Send each participant its message, and return the replies. Raises FederationError for a reply of another kind."""
        posted = [self.post(name, message, seconds=seconds) for name, message in messages.items()]
        return {
            own.to: expected(reply, kind, own.to) for own, (reply, _) in zip(posted, self.collect(posted), strict=True)
        }

    def greet(self) -> dict[str, Greeting]:
        """Make all parties load their columns, unless they are loaded, and return their greetings."""
        return self.call(dict.fromkeys(self.parties, Load()), Greeting, self.load_seconds)

    def hear(self, notices: Mapping[str, Notice]) -> dict[str, LedgerHeads]:
        """Report phases of the run to these party ledgers. Return {party: last hashes of its log}."""
        return self.call(notices, LedgerHeads)

    def labels(self, party: str) -> Any:
        """Return y, (n,), followed by the other vectors of the job's targets.

        If rows are in shards, return one reference per shard.
        """
        ((reply, vectors),) = self.collect([self.post(party, SendLabels(), due={"labels": self._due_labels(party)})])
        expected(reply, Done, party)
        return given(vectors, "labels", party)

    def ask(self, shares: Mapping[str, Query], records: Any, key: ReleaseKey) -> dict[str, Reply]:
        """Send each party its part of a query, all at once. Return {party: reply}."""
        shown = {name: records if isinstance(records, tuple) else records.of(name) for name in shares}
        handles: dict[str, Any] = {}
        for seen in {id(seen): seen for seen in shown.values()}.values():  # a vector for several parties is put once
            receivers = [name for name, own in shown.items() if own is seen]
            handles |= dict.fromkeys(receivers, self.put(seen, receivers))
        posted = [
            self.post(name, (share, key), handles[name], self._due(name, share)) for name, share in shares.items()
        ]
        replies = {}
        for (name, share), (reply, vectors) in zip(shares.items(), self.collect(posted), strict=True):
            replies[name] = self._replied(name, share, answering(reply, share, name), vectors)
        self._count(shares, records, replies)
        return replies

    def _due(self, party: str, share: Query) -> Mapping[str, int]:
        """Return the size in bytes of the vector in the answer to a party's part of a query, if the transport must know it."""
        del party, share
        return NOTHING

    def _due_labels(self, party: str) -> int:
        """Return the size of the labels in bytes, if the transport must know it."""
        del party
        return 0

    def _replied(self, party: str, share: Query, reply: Reply, vectors: Mapping[str, Any]) -> Reply:
        del party, share
        vector = vectors.get("vector")
        return reply if vector is None else replace(reply, vector=vector)

    def _count(self, shares: Mapping[str, Query], records: Any, replies: Mapping[str, Reply]) -> None:
        del shares
        if isinstance(records, tuple):  # the shards exchange the vectors
            self.traffic.wait(replies)
        else:
            self.traffic.count(records, replies)


def require_version(party: str, version: str) -> None:
    """Raise VersionMismatch unless the party runs the same version of vfl as the coordinator."""
    if version != __version__:
        raise VersionMismatch(
            f"party {party!r} runs vfl {version}, the coordinator {__version__}: install one version everywhere"
        )


def expected(message: object, kind: type[M], party: str) -> M:
    """Return the message if it is of this kind; else raise FederationError."""
    if not isinstance(message, kind):
        raise FederationError(
            f"party {party!r} answered with a {type(message).__name__}, where a {kind.__name__} was expected"
        )
    return message


def answering(message: object, share: Query, party: str) -> Reply:
    """Return the reply to a party's part of a query. Raises FederationError for a message that does not answer the query."""
    reply = expected(message, Reply, party)
    share.check_reply(reply, party)
    if not 0.0 <= reply.seconds < math.inf:
        raise FederationError(f"party {party!r} reported an impossible time for its answer")
    return reply


def given(vectors: Mapping[str, Any], name: str, party: str, size: int | None = None) -> Any:
    """Return the named vector of an answer. size : required number of bytes; FederationError for another size or no vector."""
    if name not in vectors or (size is not None and vectors[name].nbytes != size):
        raise FederationError(f"party {party!r} sent {name} of an unexpected size")
    return vectors[name]
