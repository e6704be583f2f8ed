"""A party as a Ray actor: a few lines around `Party`. Started by vfl.launch, driven by the coordinator's actor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from parties.alignment.divided import IdRange
from parties.alignment.participant import Alignment
from parties.alignment.reading import open_with_ids
from parties.loading import (
    Divided,
    consented,
    digests_of,
    ids_of_shards,
    load,
    load_rows,
    open_for,
    over,
    require_content,
)
from parties.prediction import NewRows, Prediction
from parties.sources.opening import require_rereadable
from vfl.alignment import Keeping
from vfl.errors import FederationError, PartyLost
from vfl.kinds import from_plain, to_plain
from vfl.messages import Descend, Notice, Query, Records, Stored
from vfl.privacy.events import ReleaseKey
from vfl.shards import Each, Here, Remote
from vfl.shards.lending import Borrower, Lender, Lent
from vfl.shards.ray_transport import FETCH_SECONDS, Reader, answer_of, room_to_send, sent, stored
from vfl.shards.serving import Served, Serving
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from parties.alignment.divided import Hashes
    from parties.alignment.index import Index
    from parties.alignment.reading import Chosen, ReadIds
    from parties.consent import Policy
    from parties.party import Party
    from parties.prediction import ModelPart, PartGreeting
    from parties.rows import RowFacts, Rows, Sums
    from vfl.alignment import IdsGreeting, Indexed
    from vfl.job import Job
    from vfl.job.task import PartyTask
    from vfl.messages.kinds import Plain
    from vfl.secure.legs import Parcel
    from vfl.security.psi import Points
    from vfl.shards import Shard
    from vfl.types import Integers, Vector


SHARD_SECONDS = 3600.0
"""Limit for one shard to load its rows, or to compute one sum over them."""


@dataclass(frozen=True, slots=True)
class InMemory:
    """Reference to a source in the memory of the process that started the run; Ray passes it on unresolved."""

    reference: Any


@dataclass(frozen=True, slots=True)
class InStore:
    """Fetch a block of a Ray dataset from Ray's object store, given its number (parties.sources.blocks.Blocks)."""

    references: tuple[Any, ...]

    def __call__(self, number: int) -> Any:
        """Return the block: an Arrow table, whose memory is the store's, or a pandas frame."""
        return ray.get(self.references[number], timeout=FETCH_SECONDS)


def _opened(source: Any) -> Any:
    return ray.get(source.reference, timeout=FETCH_SECONDS) if isinstance(source, InMemory) else source


class Shared:
    """Actor that hosts several parties of a simulation in one process. Each party is an ordinary `PartyActor`.

    It protects no party from another, so it is only for simulations by one owner. Results are bit-identical to those of
    separate processes. If the process is lost, all of its parties are lost.

    members : {party: arguments of its `PartyActor`}.
    """

    def __init__(self, members: Mapping[str, tuple[Any, ...]]) -> None:
        self._members = {name: PartyActor(*arguments) for name, arguments in members.items()}

    def call(self, party: str, method: str, *arguments: Any) -> Any:
        """Call a public method of one party."""
        return self._public(party, method)(*arguments)

    def stream(self, party: str, method: str, *arguments: Any) -> Iterator[Any]:
        """Yield from a generator of one party."""
        yield from self._public(party, method)(*arguments)

    def _public(self, party: str, method: str) -> Any:
        if method.startswith("_"):
            raise FederationError(f"{method!r} is no question to a party")
        return getattr(self._members[party], method)


def _encoded(argument: Any) -> Any:
    return to_plain(argument) if isinstance(argument, Query) else argument


class IdsActor:
    """Base of actors that hold one shard of a party's rows, and before that the ids of one range of its source's rows.

    task : names the id column.
    """

    def __init__(self, task: PartyTask) -> None:
        self._ids_task = task
        self._ids: IdRange | None = None
        self._id_digests: dict[int, str] = {}

    def read_ids(self, source: Any, shard: Shard, content: str) -> str:
        """Read the ids of one range of the source's rows, keep them until `load`, and return their kind.

        content : as for parties.loading.require_content.
        """
        self._ids = None
        opened = open_with_ids(self._ids_task, _opened(source))
        require_content(self._ids_task, opened, content, ids=True)
        self._ids = IdRange(self._ids_task, opened, shard)
        self._id_digests = digests_of(opened)
        return self._ids.kind.value

    def id_at(self, rows: Integers) -> tuple[bytes, Integers]:
        """Return ids of the range, as IdRange.at (parties.alignment.divided). For the party's own actor only."""
        return self._own_ids.at(rows)

    def id_hashes(self, part: int, parts: int) -> Hashes:
        """Return hashes of ids of the range, as IdRange.hashes. For the party's own actor only."""
        return self._own_ids.hashes(part, parts)

    def id_rows_of(self, hashes: Hashes) -> Integers:
        """Return the rows of the range whose ids have these hashes, as IdRange.rows_of. For the party's own actor only."""
        return self._own_ids.rows_of(hashes)

    @property
    def _own_ids(self) -> IdRange:
        if self._ids is None:
            raise PartyLost(f"a shard of party {self._ids_task.party!r} was restarted", self._ids_task.party)
        return self._ids

    def id_digests(self) -> dict[int, str]:
        """Return {block: digest} of the blocks whose ids were read; see parties.loading.digests_of."""
        return self._id_digests


class RowsActor(Serving, IdsActor):
    """Actor that holds one shard of a party's rows. Only the party's actor starts it and calls it.

    After Ray restarts this actor, it has no rows; the party's actor then makes it load them again.
    """

    def __init__(self, task: PartyTask, threads: int) -> None:
        super().__init__(task)
        self._task, self._threads = task, threads
        self._loaded: Rows | None = None
        self._digests: dict[int, str] = {}
        self._constants = Constants()
        self._reader, self._lender = Reader(), Lender()
        self._near = False

    def version(self) -> str:
        """Return the version of the code that runs here."""
        return __version__

    def load(self, source: Any, shard: Shard, chosen: Chosen | None, content: str) -> RowFacts:
        """Read the rows of the shard unless they are loaded. Errors in the data are raised here, at the owner of the data.

        content : as for parties.loading.require_content.
        """
        self._ids = None
        if self._loaded is None:
            spec = _opened(source)
            opened = open_for(self._task, spec, ids=chosen is not None)
            require_content(self._task, opened, content, ids=chosen is not None)
            self._loaded = load_rows(self._task, spec, opened, shard, chosen, threads=self._threads)
            self._digests = digests_of(opened)
        return self._loaded.facts()

    def digests(self) -> dict[int, str]:
        """Return {block: digest} of the blocks that were read; see parties.loading.digests_of."""
        return self._digests

    def meet(self, margins: Lent | None, party: Lent | None) -> tuple[bool, bool]:
        """Return (margins, party), each True if this process can read that memory. party : memory of the party's main actor.

        If it can read the memory of the margins, it lends its own vectors, too.
        """
        self._near = self._reader.reads(margins)
        return self._near, self._reader.reads(party)

    def labels(self) -> Any:
        """Return y of these records, or its handle. Pass it only to margins."""
        return stored(self._rows.labels())

    def sums(self, query: Plain, records: Records) -> list[Sums]:
        """Return the exact sums for the releases of a query."""
        given: Any = records.weights
        read = self._read(records)
        if isinstance(given, Lent) and read.weights is not None:
            # In a copy, nobody can change a weight between two readings of it, so its clip holds.
            read = replace(read, weights=read.weights.copy())
        return self._rows.sums(from_plain(query, Query), read)

    def vector(self, query: Plain, records: Records, deltas: tuple[Vector, ...]) -> Any:
        """Return a per-record vector, or its handle. Pass it only to margins."""
        return self._sent(self._rows.vector(from_plain(query, Query), self._read(records), deltas))

    def enter(self, query: Plain, records: Records) -> Sums:
        """Begin a visit and return the sum of its first step."""
        asked = from_plain(query, Query)
        assert isinstance(asked, Descend)  # noqa: S101 - the party's actor enters no other
        return self._rows.enter(asked, self._read(records))

    def step(self, number: int, delta: Vector, shift: float) -> Sums:
        """Return the sum of the next step."""
        return self._rows.step(number, delta, shift)

    def leave(self, delta: Vector, shift: float) -> Any:
        """Return the visit's change of the margins, or its handle. Pass it only to margins."""
        return self._sent(self._rows.leave(delta, shift, self._room))

    @property
    def _rows(self) -> Rows:
        if self._loaded is None:
            raise PartyLost(f"a shard of party {self._task.party!r} was restarted", self._task.party)
        return self._loaded

    def _room(self, size: int) -> Vector | None:
        return room_to_send(size, self._lender.room, near=self._near)

    def _sent(self, vector: Vector) -> Any:
        """Return the vector in a form that margins can read."""
        return sent(vector, self._lender.lend, near=self._near)

    def _read(self, records: Records) -> Records:
        """Return the vectors of handles. Margins and weights may be views of memory that the coordinator can change."""
        return Records(
            self._view(records.weights),
            self._view(records.margins),
            self._constants.of("labels", records.labels),
            self._constants.of("limits", records.limits),
        )

    def _view(self, given: Any) -> Vector | None:
        view = self._reader.read(given)
        if view is None and given is not None:
            raise _cut_off(self._task.party)
        return view


def _cut_off(party: str) -> PartyLost:
    return PartyLost(f"{party!r} was cut off: the memory that the coordinator lent cannot be read", party)


class NewRowsActor(IdsActor):
    """Actor that holds one shard of a party's new records. Only the party's actor starts it and calls it."""

    def __init__(self, part: ModelPart, *, labelled: bool) -> None:
        super().__init__(part.job.for_party(part.party).features)
        self._rows = NewRows(part, labelled=labelled)

    def load(self, source: Any, shard: Shard, chosen: Chosen | None, content: str) -> int:
        """Read the records, apply the part, and return their number; arguments as for `RowsActor.load`."""
        self._ids = None
        return self._rows.load(_opened(source), shard, chosen, content=content)

    def digests(self) -> dict[int, str]:
        """Return {block: digest} of the blocks that were read; see parties.loading.digests_of."""
        return self._rows.digests

    def margins(self) -> tuple[bool, Vector]:
        """Return the party's part of the margins; see `Remote.vectors`."""
        return True, self._rows.margins()

    def total(self, *parts: Vector) -> tuple[bool, Vector]:
        """Return the margins; see `Remote.vectors`."""
        return True, self._rows.total(*parts)

    def keep(self, *parts: Vector) -> int:
        """Keep the margins, for `sum_of`; return their number."""
        return self._rows.keep(*parts)

    def sum_of(self, measure: Plain) -> Any:
        """Return the exact sum of a statistic of margins and labels."""
        return self._rows.sum_of(measure)


class Constants:
    """Vectors that stay the same over many queries. A vector is fetched only when it is new.

    Otherwise Ray would make a new array in each call, and the bounds of residuals would be computed again in each visit.
    """

    def __init__(self) -> None:
        self._fetched: dict[str, tuple[int, Vector]] = {}

    def of(self, name: str, given: Vector | Stored | None) -> Vector | None:
        """Return a given vector unchanged, or fetch a stored one."""
        if not isinstance(given, Stored):
            return given
        if name not in self._fetched or self._fetched[name][0] != given.number:
            self._fetched[name] = given.number, ray.get(given.reference, timeout=FETCH_SECONDS)
        return self._fetched[name][1]


class PartyActor(Serving):
    """Actor that loads its party's columns and answers queries. Ray never retries its methods: a retry is a new release.

    After a restart by Ray the actor has no columns, and answers no query before `load` is called again.

    job : to train; None for one that only predicts. keeping : what it leaves on its disk of an alignment. threads : that
    its kernels may take.
    shards : Ray's options for each shard of its rows; () keeps all rows in this actor.
    """

    _prediction: Prediction
    _agreed_source: Any

    def __init__(
        self,
        job: Job | None,
        name: str,
        policy: str | None = None,
        keeping: Keeping | None = None,
        threads: int = 1,
        shards: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._shards = shards
        self._started: list[Any] = []
        self._served: Served | None = None
        self._divided: tuple[Policy | None, Index | None, Divided] | None = None
        self._given, self._name, self._policy = job, name, policy
        self._keeping = keeping or Keeping()
        self._threads = threads
        self._alignment: Alignment | None = None
        self._loaded: Party | None = None
        self._constants = Constants()
        self._borrower, self._lender = Borrower(), Lender()

    @property
    def _task(self) -> PartyTask:
        if self._given is None:
            raise FederationError(f"{self._name!r} takes part in a prediction only, but was asked to train")
        return self._given.for_party(self._name)

    @property
    def _party(self) -> Party:
        if self._loaded is None:
            raise PartyLost(f"{self._name!r} was restarted and has not loaded its data again", self._name)
        return self._loaded

    def version(self) -> str:
        """Return the version of the code that runs here."""
        return __version__

    def prepare(self, source: Any, salt: bytes, cores: int) -> None:
        """Read the party's ids for an alignment, once its owner has agreed to the job."""
        task = self._task
        spec = _opened(source)
        consented(task, spec, self._policy)
        self._require_divisible(spec)
        self._alignment = Alignment(
            task, spec, salt=salt, cores=cores, keeping=self._keeping, read=self._reads_ids(task, spec, source)
        )

    def _reads_ids(self, task: PartyTask, spec: Any, source: Any) -> ReadIds | None:
        """Return a function that makes the shards read the ids; None without shards. spec : the source, opened here."""
        return (lambda opened: ids_of_shards(task, spec, opened, self._group(), source)) if self._shards else None

    def _reads_new_ids(self) -> ReadIds | None:
        """Return a function that makes the shards of the new records read their ids; None without shards."""
        if not self._shards:
            return None
        task, source = self._prediction.part.job.for_party(self._name).features, self._new_records
        return lambda opened: ids_of_shards(task, _opened(source), opened, self._new_group(), source)

    def _new_group(self) -> Remote:
        """Return the shards of the new records; their actors start with the first call."""
        if not self._started:
            made, own = ray.remote(NewRowsActor), {"labelled": self._prediction.labelled}
            self._started = [made.options(**options).remote(self._prediction.part, **own) for options in self._shards]
        return Remote(self._started, self._of_shard)

    def load(self, source: Any) -> None:
        """Read the party's columns, unless they are loaded. Errors in the data are raised here, at their owner.

        A job that aligns records loads the aligned rows: those of the current alignment, or after a restart those of the
        index that the run kept.
        """
        task = self._task
        if self._loaded is None and self._divided is None:
            spec = _opened(source)
            agreed, index = consented(task, spec, self._policy), None
            self._require_divisible(spec)
            self._agreed_source = source  # the owner agrees to this source, so a lost shard reads no other
            if task.id is not None:
                index = self._index(task, spec, source)
            if not self._shards:
                self._loaded = load(task, spec, agreed, index=index, threads=self._threads)
                return
            read = self._reads_ids(task, spec, source)
            self._divided = agreed, index, Divided(task, spec, index, len(self._shards), read)
        if self._shards:
            self._load_shards(self._agreed_source)

    def _require_divisible(self, spec: Any) -> None:
        """Check that shards, if there are any, can read the source."""
        if self._shards:
            require_rereadable(spec, party=self._name)

    def _load_shards(self, source: Any) -> None:
        """Make the shards without rows load them."""
        assert self._divided is not None  # noqa: S101 - set by `load`
        task, (agreed, index, divided), group = self._task, self._divided, self._group()
        facts = divided.load(group, source)
        if self._loaded is None:
            self._loaded = over(task, group, facts, agreed, alignment="" if index is None else index.hash)

    def _group(self) -> Served:
        """Return the shards; their actors start with the first call."""
        if self._served is None:
            made = ray.remote(RowsActor)
            self._started = [made.options(**options).remote(self._task, self._threads) for options in self._shards]
            self._served = Served(
                self._started, self._of_shard, _encoded, lost=self._late, seconds=SHARD_SECONDS, handles=True
            )
        return self._served

    def meet(self, probes: list[Lent | None], coordinator: Lent | None) -> tuple[list[bool], bool]:
        """Return, per shard, True if it can read memory of its shard of the margins, and True if this actor can read the other.

        probes : memory of the margins, by shard. coordinator : memory of the coordinator.
        """
        assert self._served is not None  # noqa: S101 - set by `load`
        answers = self._served.ask("meet", Each(probes), self._lender.lend(np.zeros(1)))
        self._served.near = all(own for _, own in answers)
        return [near for near, _ in answers], coordinator is not None and self.borrows(coordinator)

    def _of_shard(self, number: int, ref: Any) -> Any:
        """Return the answer of one shard. Loss of the shard counts as loss of the party."""
        try:
            return answer_of(self._name, ref, SHARD_SECONDS)
        except PartyLost as lost:
            raise PartyLost(f"shard {number} of {lost}", self._name) from lost

    def _late(self, number: int) -> PartyLost:
        return PartyLost(f"shard {number} of {self._name!r} did not answer within {SHARD_SECONDS:g} s", self._name)

    def _index(self, task: PartyTask, spec: Any, source: Any) -> Index:
        if self._alignment is None and self._keeping.run is None:
            raise FederationError(
                f"party {self._name!r} was restarted, and a run without an output folder keeps no aligned rows: name one"
            )
        kept = replace(self._keeping, resumed=True)
        alignment = self._alignment or Alignment(
            task, spec, salt=b"", cores=1, keeping=kept, read=self._reads_ids(task, spec, source)
        )
        self._alignment = None
        return alignment.settled()

    def prepare_prediction(
        self, part: ModelPart | str, name: str, source: Any, parties: list[str], measured: bool
    ) -> PartGreeting:
        """Take or read the party's part of a model, ask its owner, and return the greeting about its new records.

        measured : as for `Prediction`.
        """
        self._new_records = source  # the owner agrees to this source, so `margins` reads no other
        self._prediction = Prediction(
            part, name, _opened(source), parties=parties, policy=self._policy, measured=measured
        )
        return self._prediction.greet()

    def prepare_ids(self, salt: bytes, cores: int, keeping: Keeping) -> None:
        """Read the ids of the new records for their alignment."""
        self._alignment = self._prediction.alignment(salt, cores, keeping, self._reads_new_ids())

    def margins(self) -> Vector | list[Any]:
        """Return the party's part of the margins, (n,) or (n, K), or references to its pieces by shard."""
        prediction, source = self._prediction, self._new_records
        if self._alignment is not None:
            prediction.align(self._alignment.settled())
        if self._shards:
            prediction.load(self._new_group(), source, self._reads_new_ids())
        else:
            prediction.load(Here([NewRows(prediction.part, labelled=prediction.labelled)]), _opened(source))
        return self._sent(prediction.margins())

    def receive(self, *parts: Vector | list[Any]) -> tuple[list[Any] | None, Vector | list[Any]]:
        """Add up every party's part of the margins, in the partition's order.

        Return the ids and the margins of the records, in the order of this party's rows. Without ids, return None and the
        margins as `margins` does: shards then pass them on, and this actor holds none.
        """
        total = self._prediction.total([self._pieces(part) for part in parts])
        return self._prediction.named(total) if self._prediction.greet().ids else (None, self._sent(total))

    def keep(self, *parts: Vector | list[Any]) -> int:
        """Add up every party's part of the margins, for `sum_of`; return the number of records."""
        return self._prediction.keep([self._pieces(part) for part in parts])

    def sum_of(self, measure: Plain) -> Integers | Vector:
        """Return the exact sum of a statistic of margins and labels of the new records."""
        return self._prediction.sum_of(measure)

    def _sent(self, pieces: Each) -> Vector | list[Any]:
        vector: Vector = pieces[0]
        return list(pieces) if self._shards else vector

    def _pieces(self, part: Vector | list[Any]) -> Each:
        return Each(part if self._shards else (part,))

    def greet_ids(self) -> IdsGreeting:
        """Return the party's greeting of the alignment: facts about its ids."""
        return self._aligning().greet()

    def begin(self, pending: str | None) -> None:
        """Begin an alignment, or continue the pending one."""
        self._aligning().begin(pending)

    def multiply(self, owner: str, points: Points | None) -> Iterator[int]:
        """Blind a set of points; stream the number done so far."""
        yield from self._aligning().multiply(owner, points)

    def take(self, owner: str) -> Points:
        """Return the set that was blinded."""
        return self._aligning().take(owner)

    def conclude(self, positions: Integers) -> Indexed:
        """Take the outcome of the alignment."""
        return self._aligning().conclude(positions)

    def greet(self) -> Plain:
        """Return the party's greeting."""
        return to_plain(self._party.greet())

    def hear(self, notice: Plain) -> Plain:
        """Return the heads of the owner's book."""
        return to_plain(self._party.hear(from_plain(notice, Notice)))

    def labels(self) -> Vector:
        """Return y, (n,), or y of each shard, as handles of large vectors."""
        labels: Vector = self._party.labels()
        return labels

    def answer(
        self,
        query: Plain,
        key: Plain,
        weights: Vector | Lent | None,
        margins: Vector | Lent | None,
        labels: Vector | Stored | None,
        limits: Vector | Stored | None,
        near: bool = False,
    ) -> tuple[Plain, Lent | None]:
        """Return the reply to a share; the n-vectors are arguments of their own, so that Ray passes them by reference.

        near : the coordinator is on this machine. Then a vector of the reply is lent, and the second value says where.
        """
        records = Records(
            self._read(weights),
            self._read(margins),
            self._constants.of("labels", labels),
            self._constants.of("limits", limits),
        )
        reply = self._party.answer(from_plain(query, Query), records, from_plain(key, ReleaseKey))
        lent = self._lender.lend(reply.vector) if near and reply.vector is not None else None
        return to_plain(reply if lent is None else replace(reply, vector=None)), lent

    def borrows(self, probe: Lent) -> bool:
        """Return True if this process can read memory that the coordinator lends."""
        return self._borrower.borrow(probe) is not None

    def _read(self, given: Vector | Lent | None) -> Vector | None:
        if not isinstance(given, Lent):
            return given
        view = self._borrower.borrow(given)
        if view is None:
            raise _cut_off(self._name)
        return view.copy()  # nobody can change a record between two readings of it, so its clip holds

    def answer_over(self, query: Plain, key: Plain, records: list[Any]) -> tuple[Plain, list[Any] | None, int]:
        """Return the reply to a share and, by shard, handles of its vector; also the number of trained records.

        records : handles of the vectors of each shard, passed on unread.
        """
        party = self._party
        reply = party.answer(from_plain(query, Query), Each(records), from_plain(key, ReleaseKey))
        pieces = None if reply.vector is None else list(reply.vector)
        return to_plain(replace(reply, vector=None)), pieces, party.n_trained

    def leg(self, leg: Plain, *parcels: Parcel) -> Any:
        """Return the reply to a leg of a run on shares, and its parcels as separate objects."""
        return answered(*self._party.leg(leg_of(leg), parcels))

    def _aligning(self) -> Alignment:
        if self._alignment is None:
            raise FederationError("a party was asked to align before it received the job")
        return self._alignment


def leg_of(plain: Plain) -> Any:
    """Return a leg of a run on shares."""
    return from_plain(plain, object)


def answered(reply: object, parcels: Sequence[Parcel]) -> Any:
    """Return the results of a call that has 1 + len(parcels) of them. Ray copies an array once, and bytes several times."""
    if not parcels:
        return to_plain(reply)
    return (to_plain(reply), *(np.frombuffer(parcel, dtype=np.uint8) for parcel in parcels))
