"""Ray actors that host the participants' services. vfl.launch starts them, and the coordinator's actor calls them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from parties.alignment.divided import IdRange
from parties.alignment.reading import open_for
from parties.loading import (
    ShardedSource,
    consented,
    digests_of,
    ids_of_shards,
    load,
    load_rows,
    over,
    require_content,
)
from parties.prediction import NewRows, PartGreeting, part_of, permitted
from parties.services.aligning import AlignmentService
from parties.services.predicting import PredictionService
from parties.services.training import TrainingService
from parties.sources.opening import require_rereadable
from vfl.crypto.alignment import IndexRules
from vfl.errors import FederationError, PartyLost
from vfl.network.kinds import from_plain, from_plain_call, to_plain
from vfl.network.messages import Load
from vfl.network.shards import Each, LocalGroup
from vfl.network.shards.lending import Borrower, Lender, Lent, StoredVector
from vfl.network.shards.ray_transport import (
    FETCH_SECONDS,
    INLINE_BYTES,
    NamedActor,
    Reader,
    answer_of,
    room_to_send,
    sent,
    stored,
)
from vfl.network.shards.serving import PipeActor, PipeGroup
from vfl.queries import Query, Records
from vfl.secure.roles import DEALER
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from parties.alignment.index import Index
    from parties.alignment.reading import ChosenRows
    from parties.party import Party
    from parties.prediction import ModelPart
    from parties.rows import PersonRows, RowFacts, Rows, SubsampledRows
    from parties.services.service import Service
    from vfl.base.types import Vector
    from vfl.job import Job
    from vfl.job.job import PartyTask
    from vfl.network.shards import Group, Shard
    from vfl.queries import Statistic
    from vfl.queries.kinds import Plain
    from vfl.queries.parts import Sums


SHARD_SECONDS = 3600.0
"""Time limit, in seconds, for one shard to load its rows or to compute one sum over them."""


@dataclass(frozen=True, slots=True)
class InMemory:
    """Reference to a source, a job or a task in the memory of the process that started the run or the actor.

    Ray forwards the reference without resolving it. A large argument of a constructor would be lost with the node of the
    actor, which Ray could not restart then; a reference lives as long as the process that holds it.
    """

    reference: Any


@dataclass(frozen=True, slots=True)
class InStore:
    """Function from a block's number to the block, for the blocks of a Ray dataset (parties.sources.blocks.Blocks)."""

    references: tuple[Any, ...]

    def __call__(self, number: int) -> Any:
        """Return the block from Ray's object store: an Arrow table in the memory of the store, or a pandas frame."""
        return ray.get(self.references[number], timeout=FETCH_SECONDS)


def _opened(source: Any) -> Any:
    while isinstance(source, InMemory | ray.ObjectRef):  # users may also pass a reference of their own
        source = ray.get(getattr(source, "reference", source), timeout=FETCH_SECONDS)
    return source


def handed_on(spec: Any) -> Any:
    """Return a job or task as an argument of a constructor: itself if it is small, else a reference (`InMemory`).

    Ray keeps large arguments in its store and warns of references in them, since it could not restart the actor without them.
    """
    return spec if len(ray.cloudpickle.dumps(spec)) <= INLINE_BYTES else InMemory(ray.put(spec))


class SharedActor(NamedActor):
    """Actor that hosts several parties of a simulation in one process. Each party is an ordinary `PartyActor`.

    This actor does not protect one party from another, so use it only for simulations by one owner. Results are bit-identical
    to those of separate processes. If the process is lost, all parties in it are lost.

    members : {party: arguments of its `PartyActor`}.
    """

    def __init__(self, members: Mapping[str, tuple[Any, ...]]) -> None:
        self._members = {name: PartyActor(*arguments) for name, arguments in members.items()}

    def call(self, party: str, method: str, *arguments: Any) -> Any:
        """Call a public method of one party, and return the result."""
        return self._public(party, method)(*arguments)

    def stream(self, party: str, method: str, *arguments: Any) -> Iterator[Any]:
        """Call a public generator method of one party, and yield its items."""
        yield from self._public(party, method)(*arguments)

    def _public(self, party: str, method: str) -> Any:
        if method.startswith("_"):
            raise FederationError(f"{method!r} is not a public method of a party")
        return getattr(self._members[party], method)


def _encoded(argument: Any) -> Any:
    return to_plain(argument) if isinstance(argument, Query) else argument


class IdsActor(NamedActor):
    """Base of actors that hold one shard of a party's rows. Before loading, they hold the ids of a range of the source's rows.

    task : task of the party, or a reference to it; it names the id column.
    """

    def __init__(self, task: PartyTask | InMemory) -> None:
        self._ids_task: PartyTask = _opened(task)
        self._ids: IdRange | None = None

    def read_ids(self, source: Any, shard: Shard, content: str) -> tuple[str, dict[int, str]]:
        """Read the ids of one range of the source's rows, and keep them until `load`.

        Return the kind of ids, and the digests of the blocks that were read (parties.loading.digests_of).

        content : as for parties.loading.require_content.
        """
        self._ids = None
        opened = open_for(self._ids_task, _opened(source), ids=True)
        require_content(self._ids_task, opened, content, ids=True)
        self._ids = IdRange(self._ids_task, opened, shard)
        return self._ids.kind, digests_of(opened)

    def of_ids(self, method: str, *arguments: Any) -> Any:
        """Call a method of the ids that this actor keeps (parties.alignment.divided.IdRange).

        Only the party's own actor may call.
        """
        if self._ids is None:
            raise PartyLost(f"a shard of party {self._ids_task.party!r} was restarted", self._ids_task.party)
        return getattr(self._ids, method)(*arguments)


class RowsActor(PipeActor, IdsActor):
    """Actor that holds one shard of a party's rows. Only the actor of the party starts and calls it.

    A restart by Ray leaves this actor without rows. The party's actor then makes it load the rows again.
    """

    def __init__(self, task: PartyTask | InMemory, threads: int) -> None:
        super().__init__(task)
        self._task, self._threads = self._ids_task, threads
        self._loaded: Rows | PersonRows | SubsampledRows | None = None
        self._digests: dict[int, str] = {}
        self._constants = Constants()
        self._reader, self._lender = Reader(), Lender()
        self._near = False

    def version(self) -> str:
        """Return the version of the code that runs here."""
        return __version__

    def load(
        self, source: Any, shard: Shard, chosen: ChosenRows | None, content: str
    ) -> tuple[RowFacts, dict[int, str]]:
        """Read the rows of the shard unless they are loaded. Errors in the data are raised here, in the data owner's process.

        Return facts of the rows, and the digests of the blocks that were read (parties.loading.digests_of).

        content : as for parties.loading.require_content.
        """
        self._ids = None
        if self._loaded is None:
            spec = _opened(source)
            opened = open_for(self._task, spec, ids=chosen is not None)
            require_content(self._task, opened, content, ids=chosen is not None)
            self._loaded = load_rows(self._task, spec, opened, shard, chosen, threads=self._threads)
            self._digests = digests_of(opened)
        return self._loaded.facts(), self._digests

    def meet(self, margins: Lent | None, party: Lent | None) -> tuple[bool, bool]:
        """Return two flags: True if this process can read the memory `margins`, and True if it can read the memory `party`.

        margins : memory of the process that holds the margins. party : memory of the party's main actor. If this process can
            read `margins`, it also sends its own vectors through shared memory.
        """
        self._near = self._reader.reads(margins)
        return self._near, self._reader.reads(party)

    def labels(self) -> Any:
        """Return y of this shard's records, or a reference to y. Only `LinearPredictors` may receive it."""
        return stored(self._rows.labels())

    def sums(self, query: Plain, records: Records) -> list[Sums]:
        """Return the exact sums for all releases of a query, over the rows of this shard."""
        given: Any = records.weights
        read = self._read(records)
        if isinstance(given, Lent) and read.weights is not None:
            # Copy the weights, so that no other process can change a weight between clipping and use.
            read = replace(read, weights=read.weights.copy())
        return self._rows.sums(from_plain(query, Query), read)

    def vector(self, query: Plain, records: Records, deltas: tuple[Vector, ...]) -> Any:
        """Return a per-record vector, or a reference to the vector. Only `LinearPredictors` may receive it."""
        return self._sent(self._rows.vector(from_plain(query, Query), self._read(records), deltas))

    def enter(self, query: Plain, records: Records) -> Sums:
        """Begin the steps of one query, and return the sum of the first step."""
        return self._rows.enter(from_plain(query, Query), self._read(records))

    def step(self, number: int, delta: Vector, shift: float) -> Sums:
        """Return the sum of the next step."""
        return self._rows.step(number, delta, shift)

    def leave(self, delta: Vector, shift: float) -> Any:
        """Return the steps' change of the margins, or a reference to it. Only `LinearPredictors` may receive it."""
        return self._sent(self._rows.leave(delta, shift, self._room))

    @property
    def _rows(self) -> Rows | PersonRows | SubsampledRows:
        if self._loaded is None:
            raise PartyLost(f"a shard of party {self._task.party!r} was restarted", self._task.party)
        return self._loaded

    def _room(self, size: int) -> Vector | None:
        return room_to_send(size, self._lender.room, near=self._near)

    def _sent(self, vector: Vector) -> Any:
        return sent(vector, self._lender.lend, near=self._near)

    def _read(self, records: Records) -> Records:
        """Replace references by their vectors. Margins and weights may be views of memory that the coordinator can change."""
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
    """Actor that holds one shard of a party's new records. Only the actor of the party starts and calls it."""

    def __init__(self, part: ModelPart, *, labelled: bool) -> None:
        super().__init__(part.job.for_party(part.party).features)
        self._rows = NewRows(part, labelled=labelled)

    def load(self, source: Any, shard: Shard, chosen: ChosenRows | None, content: str) -> tuple[int, dict[int, str]]:
        """Read the records, apply the part of the model; return their number, and digests as `RowsActor.load` does."""
        self._ids = None
        return self._rows.load(_opened(source), shard, chosen, content=content), self._rows.digests

    def scores(self) -> tuple[bool, Vector]:
        """Return the party's part of the margins; see `PipeGroup.vectors`."""
        return True, self._rows.scores()

    def total(self, *parts: Vector) -> tuple[bool, Vector]:
        """Return the margins; see `PipeGroup.vectors`."""
        return True, self._rows.total(*parts)

    def keep(self, *parts: Vector) -> int:
        """Keep the margins for `sum_of`, and return the number of records."""
        return self._rows.keep(*parts)

    def sum_of(self, statistic: Statistic) -> Any:
        """Return the exact sum of a statistic of the kept margins and the labels."""
        return self._rows.sum_of(statistic)


class Constants:
    """Cache of vectors that stay the same over many queries. A vector is fetched only if it is new.

    Without this cache, Ray would make a new array in each call, and each message would compute the bounds of residuals again.
    """

    def __init__(self) -> None:
        self._fetched: dict[str, tuple[int, Vector]] = {}

    def of(self, name: str, given: Vector | StoredVector | None) -> Vector | None:
        """Return `given` if it is a vector; else fetch the vector that it refers to, once. name : name of the vector."""
        if not isinstance(given, StoredVector):
            return given
        if name not in self._fetched or self._fetched[name][0] != given.number:
            self._fetched[name] = given.number, ray.get(given.reference, timeout=FETCH_SECONDS)
        return self._fetched[name][1]


class ServiceActor(NamedActor):
    """Actor around a service (parties.services). It fetches vectors by reference; messages are nested tuples, not objects.

    Ray never retries methods of this actor, since a retry would be a new release. name : name of the participant.
    """

    def __init__(self, name: str, service: Service | None = None) -> None:
        self._name, self._service = name, service
        self._constants = Constants()
        self._borrower, self._lender = Borrower(), Lender()

    def version(self) -> str:
        """Return the version of the vfl code in this process."""
        return __version__

    def call(self, plain: Plain, names: Sequence[str], sent: Sequence[str] | None, *vectors: Any) -> Any:
        """Return the reply to a message, with its vectors. Each vector is a separate argument, so that Ray resolves references.

        names : names of the vectors. sent : names of those reply vectors that other actors receive; each is returned as a
            separate object. None returns all vectors together. The reply uses shared memory if a vector of the call did.
        """
        reply, answers = self._own().answer(from_plain_call(plain), self._given_vectors(names, vectors))
        if sent is not None:
            return to_plain(reply), *(_stored_once(answers[name]) for name in sent)
        vector = answers.get("vector")
        if isinstance(vector, np.ndarray) and any(isinstance(given, Lent) for given in vectors):
            return to_plain(reply), {"vector": self._lender.lend(vector) or vector}
        return to_plain(reply), dict(answers)

    def stream(self, plain: Plain, names: Sequence[str], *vectors: Any) -> Iterator[Any]:
        """Answer a long message: yield counts of its progress, then the reply and its vectors."""
        reply, answers = yield from self._own().stream(from_plain_call(plain), self._given_vectors(names, vectors))
        yield to_plain(reply), dict(answers)

    def borrows(self, probe: Lent) -> bool:
        """Return True if this process can read memory that the coordinator lends."""
        return self._borrower.borrow(probe) is not None

    def _own(self) -> Service:
        if self._service is None:
            raise PartyLost(f"{self._name!r} was restarted and has not loaded its data again", self._name)
        return self._service

    def _given_vectors(self, names: Sequence[str], vectors: Sequence[Any]) -> dict[str, Any]:
        return {name: self._resolved(name, vector) for name, vector in zip(names, vectors, strict=True)}

    def _resolved(self, name: str, given: Any) -> Any:
        if not isinstance(given, Lent):
            return self._constants.of(name, given)
        view = self._borrower.borrow(given)
        if view is None:
            raise _cut_off(self._name)
        return view.copy()  # copied, so that no other process can change a record between clipping and use


def _stored_once(vector: Any) -> Any:
    """Return a vector as an array, which Ray copies into its store once; Ray copies bytes several times."""
    return np.frombuffer(vector, np.uint8) if isinstance(vector, bytes | bytearray) else vector


class PartyActor(PipeActor, ServiceActor):
    """Actor of one party, which loads its columns and answers queries.

    Ray never retries methods of this actor, since a retry would be a new release. After a restart by Ray, the actor has no
    columns. It then answers no query before `load` is called again.

    job : the job to train, or a reference to it; None for a party that only predicts.
    keeping : alignment files that the party keeps on disk.
    threads : number of threads of the party's kernels.
    shards : Ray's options for the actor of each shard of the rows; () keeps all rows in this actor.
    """

    def __init__(
        self,
        job: Job | InMemory | None,
        name: str,
        policy: str | None = None,
        keeping: IndexRules | None = None,
        threads: int = 1,
        shards: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._shards = shards
        self._started: list[Any] = []
        self._served: PipeGroup | None = None
        self._divided: ShardedSource | None = None
        self._given: Job | None = _opened(job)
        self._name, self._policy = name, policy
        self._keeping = keeping or IndexRules()
        self._threads = threads
        self._party: Party | None = None
        self._index: Index | None = None
        super().__init__(name)

    @property
    def _task(self) -> PartyTask:
        if self._given is None:
            raise FederationError(f"{self._name!r} takes part in a prediction only, but was asked to train")
        return self._given.for_party(self._name)

    def prepare(self, source: Any, salt: bytes = b"", cores: int = 1) -> None:
        """Take the party's source, once the owner has agreed to the job. salt, cores : for an alignment of records."""
        task = self._task
        spec = _opened(source)
        begins = bool(salt) and not self._keeping.resumed  # a restarted party receives no salt
        agreed = consented(task, spec, self._policy, begins=begins)
        if self._shards:
            require_rereadable(spec, party=self._name)
        read = (
            (lambda opened: ids_of_shards(task, aligning.source, opened, self._group(), source))
            if self._shards
            else None
        )
        parties = tuple(task.job.ids)
        aligning: AlignmentService = AlignmentService(
            task, spec, self._keeping, parties=parties, salt=salt, cores=cores, read=read
        )

        def loaded(settled: Callable[[], Index | None]) -> Party:
            if self._party is not None and not self._shards:
                return self._party
            if not self._shards:
                self._party = load(task, aligning.source, agreed, index=settled(), threads=self._threads)
                aligning.source = None  # free the source's memory, if the source is a table
                return self._party
            if self._divided is None:
                self._index = settled()
                self._divided = ShardedSource(task, aligning.source, self._index, len(self._shards), read)
            facts = self._divided.load(self._group(), source)
            if self._party is None:
                hashed = "" if self._index is None else self._index.common
                self._party = over(task, self._group(), facts, agreed, alignment=hashed)
            return self._party

        self._service = TrainingService(self._name, aligning, loaded)

    def prepare_prediction(
        self, part: ModelPart | str, name: str, source: Any, parties: list[str], measured: bool, salt: bytes, cores: int
    ) -> PartGreeting:
        """Take or read the party's part of a model, ask the owner for permission, and return a greeting about the new records.

        measured : True if the aggregating party also measures the model on its own labels.
        """
        own, spec = part_of(part, name), _opened(source)
        receiver = own.job.partition.receiver(parties)
        labelled = measured and receiver == name
        permission = permitted(own, spec, self._policy, receiver=receiver, labels=labelled)
        task = own.job.for_party(name).features
        rows: Group = LocalGroup([NewRows(own, labelled=labelled)])
        if self._shards:
            made = ray.remote(NewRowsActor)
            self._started = [made.options(**options).remote(own, labelled=labelled) for options in self._shards]
            rows = PipeGroup(self._started, self._of_shard, lost=self._late, seconds=SHARD_SECONDS)
        read = (lambda opened: ids_of_shards(task, spec, opened, rows, source)) if self._shards else None
        aligning = AlignmentService(task, spec, IndexRules(), parties=parties, salt=salt, cores=cores, read=read)
        self._service = PredictionService(
            own,
            spec,
            parties=parties,
            permission=permission,
            measured=measured,
            aligning=aligning,
            rows=rows,
            handed=source,
            read=read,
        )
        return PartGreeting(__version__, own.model, own.job, self._service.ids, own.threshold)

    def load(self, source: Any) -> None:
        """Read the party's columns, unless they are loaded. Errors in the data are raised here, in the data owner's process.

        If the job aligns records, the rows of the current alignment are loaded; after a restart, those of the index that the
        run kept.
        """
        if self._service is None:
            self.prepare(source)
        self._own().answer(Load(), {})

    def _group(self) -> PipeGroup:
        """Return the shards. Their actors start with the first call of this method."""
        if self._served is None:
            made, self._shared_task = ray.remote(RowsActor), handed_on(self._task)
            self._started = [
                made.options(**options).remote(self._shared_task, self._threads) for options in self._shards
            ]
            self._served = PipeGroup(
                self._started, self._of_shard, _encoded, lost=self._late, seconds=SHARD_SECONDS, handles=True
            )
        return self._served

    def meet(self, probes: list[Lent | None], coordinator: Lent | None) -> tuple[list[bool], bool]:
        """Return one flag per shard, and one flag for this actor. A flag is True if the actor can read some shared memory.

        For a shard, this is the shard's memory in `probes`. For this actor, it is the memory `coordinator`.

        probes : shared memory per shard, written by the process that holds the margins of this shard's records.
        coordinator : shared memory that the coordinator wrote.
        """
        assert self._served is not None  # noqa: S101 - set by `load`
        answers = self._served.ask("meet", Each(probes), self._lender.lend(np.zeros(1)))
        self._served.near = all(own for _, own in answers)
        return [near for near, _ in answers], coordinator is not None and self.borrows(coordinator)

    def _of_shard(self, number: int, ref: Any) -> Any:
        """Return the answer of one shard. If the shard is lost, raise PartyLost for the whole party."""
        try:
            return answer_of(self._name, ref, SHARD_SECONDS, self._started[number])
        except PartyLost as lost:
            raise PartyLost(f"shard {number} of {lost}", self._name) from lost

    def _late(self, number: int) -> PartyLost:
        return PartyLost(f"shard {number} of {self._name!r} did not answer within {SHARD_SECONDS:g} s", self._name)


class DealerActor(ServiceActor):
    """Dealer of a run on secret shares: an actor without columns."""

    def __init__(self, job: Job | InMemory) -> None:
        from parties.dealing import DealerService  # imported here, since a party does not need it

        # Ray copies each ciphertext into its store when the request returns the ciphertext.
        super().__init__(DEALER, DealerService(_opened(job), recycles=True))
