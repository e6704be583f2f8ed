"""The coordinator as a Ray actor, and its metrics in Ray."""

from __future__ import annotations

import logging
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from coordinator.alignment import align
from coordinator.cluster.ray_transport import Constants, RayTransport
from coordinator.cluster.shard_transport import ShardTransport
from coordinator.coordinator import Coordinator
from coordinator.prediction import apply
from coordinator.rounds import ReleasesComplete
from coordinator.states.linear_predictors import StateLost
from coordinator.states.shards import LinearPredictorShards, ShardLinearPredictors, whole
from coordinator.telemetry import COUNTERS, GAUGES, Telemetry, log
from vfl.errors import PartyLost
from vfl.network.shards.lending import Lender, Lenders, Lent
from vfl.network.shards.ray_transport import NamedActor, Reader, answer_of, room_to_send, sent
from vfl.network.shards.serving import PipeActor, PipeGroup
from vfl.queries import Records
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from coordinator.charging.budget import Budget
    from coordinator.coordinator import Event
    from coordinator.prediction import PredictionOutcome
    from coordinator.rounds import Log
    from vfl.base.holdout import Split, Subsample
    from vfl.base.problem import Targets
    from vfl.base.types import Vector
    from vfl.crypto.alignment import Aligned, AlignmentProgress
    from vfl.job import Job
    from vfl.job.site import Faults
    from vfl.measures import Findings


class RayMeters:
    """Metrics of a run, as Ray metrics. Ray's nodes offer them to Prometheus.

    Ray sends tags in ASCII alone, so other characters of a name are escaped.
    """

    def __init__(self, job: str, run: str) -> None:
        from ray.util.metrics import Counter, Gauge

        tags = {tag: name.encode("ascii", "backslashreplace").decode() for tag, name in (("job", job), ("run", run))}
        self._meters = {
            name: kind(name, description=text, tag_keys=tuple(tags))
            for kind, named in ((Counter, COUNTERS), (Gauge, GAUGES))
            for name, text in named.items()
        }
        for meter in self._meters.values():
            meter.set_default_tags(tags)

    def add(self, name: str, amount: float) -> None:
        """Add to a counter."""
        if amount > 0:
            self._meters[name].inc(amount)

    def set(self, name: str, value: float) -> None:
        """Set a gauge."""
        self._meters[name].set(value)


class LinearPredictorsActor(NamedActor, PipeActor, ShardLinearPredictors):
    """Actor that holds one shard of the margins Xw.

    The actor shares memory with parties whose shard is on the same machine. The actor puts vectors for other parties into the
    object store. Labels and limits of residuals are stored once, for all parties and messages. Margins are computed directly in
    shared memory.
    """

    def __init__(self) -> None:
        self._constants = Constants()
        self._lenders, self._weights = Lenders(), Lender()
        self._reader = Reader()
        self._near: frozenset[str] = frozenset()
        self._far: frozenset[str] = frozenset()

    def probe(self) -> Lent | None:
        """Return a small vector in shared memory. Only processes on this machine can read it."""
        return self._weights.lend(np.zeros(1))

    def meet(self, near: Sequence[str], far: Sequence[str]) -> None:
        """Store the names of the parties that could read the probe (near), and of all other parties (far)."""
        self._near, self._far = frozenset(near), frozenset(far)

    def _share(self, name: str, vector: Vector) -> Vector:
        return self._constants.shared(name, vector)

    def _room(self, size: int) -> Vector | None:
        return room_to_send(size, partial(self._lenders.room, used=self._used()), near=bool(self._near))

    def _used(self) -> Iterator[Vector]:
        yield from self._predictors.vectors()
        if self._before is not None:
            yield self._before[0]
            yield from self._before[1].values()
            yield from self._before[2].values()

    def _read(self, vector: Any, party: str = "", *, kept: bool = True) -> Vector:
        found = self._reader.read(vector)
        if found is None:
            raise PartyLost(f"{party!r} was cut off: the memory that it lent cannot be read", party)
        return found.copy() if kept and isinstance(vector, Lent) else found

    def _sent(self, records: Records, parties: Collection[str]) -> Records:
        """Return the records, with large vectors replaced by references that all of these parties can resolve."""
        near = self._near.issuperset(parties) if parties else not self._far
        margins, weights = records.margins, records.weights
        handles: dict[str, Any] = {
            "weights": weights if weights is None else sent(weights, self._weights.lend, near=near),
            "margins": margins if margins is None else sent(margins, self._lend_linear_predictors, near=near),
            "labels": self._constants.of("labels", records.labels),
            "limits": self._constants.of("limits", records.limits),
        }
        return Records(**handles)

    def _lend_linear_predictors(self, margins: Vector) -> Lent | None:
        return self._lenders.lend(margins, self._used())


class CoordinatorActor(NamedActor):
    """Actor that runs a job over the parties' actors.

    The actor waits for the driver twice: before the first release, so that the driver can refuse the plan, and before the
    budget is settled, so that the driver has written its log completely.

    faults : policy on lost parties. job, run : tags of metrics and log lines. dealer : actor of the dealer in training on
        shares.
    shards : Ray's options for the actor of each shard of the margins; () keeps the margins in this actor.
    """

    def __init__(
        self,
        actors: Mapping[str, Any],
        sources: Mapping[str, Any],
        faults: Faults,
        job: str,
        run: str,
        dealer: Any = None,
        shards: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        made = ShardTransport if shards else RayTransport
        transport = made(actors, faults.answer_timeout_s, sources, dealer=dealer)
        self._actors, self._transport = actors, transport
        self._shards, self._answer_seconds = shards, faults.answer_timeout_s
        self._coordinator = Coordinator(transport, faults=faults, margins=self._margins if shards else whole)
        self._telemetry = Telemetry(job, run, RayMeters(job, run), transport.traffic)
        log.setLevel(logging.INFO)
        log.addHandler(logging.StreamHandler())

    def version(self) -> str:
        """Return the version of the vfl code in this process."""
        return __version__

    def align(self, *, required: bool, base: str | None) -> Iterator[AlignmentProgress | Aligned]:
        """Align the parties' records by their ids. Yield progress, then the outcome."""
        yield (yield from align(self._transport, required=required, base=base))

    def apply(self, job: Job, **asked: Any) -> Iterator[AlignmentProgress | Aligned | PredictionOutcome | Findings]:
        """Make the parties apply their parts of a model. Yield the alignment, then the predictions or the model's measures.

        asked : keyword arguments of coordinator.prediction.apply.
        """
        yield (yield from apply(self._transport, job, **asked))

    def begin(self, job: Job, budget: Budget, log: Log) -> tuple[Event, ...]:
        """Reserve the plan. Return two events: the plan and the reservation."""
        self._events = self._noted(self._coordinator.stream(job, budget, log))
        return tuple(islice(self._events, 2))

    def rounds(self) -> Iterator[Event]:
        """Make the planned releases, and yield the event of each round."""
        for event in self._events:
            if isinstance(event, ReleasesComplete):
                return
            yield event

    def finish(self) -> Event:
        """Settle the budget, and return the outcome."""
        return next(self._events)

    def _margins(
        self, labels: Sequence[Any], split: Split | Subsample | None, n_records: int, targets: Targets
    ) -> LinearPredictorShards:
        """Start one actor per shard of the margins, and return the margins. These actors end when this actor ends."""
        started = [ray.remote(LinearPredictorsActor).options(**options).remote() for options in self._shards]
        group = PipeGroup(started, partial(self._of_margins, started), lost=self._late, seconds=self._answer_seconds)
        assert isinstance(self._transport, ShardTransport)  # noqa: S101 - made with the shards
        self._transport.targets = targets
        self._transport.n_trained = n_records if split is None else split.sizes(n_records)[0]
        meet = partial(self._transport.introduce, group)
        return LinearPredictorShards(group, labels, split, n_records, targets, loaded=meet)

    def _of_margins(self, started: Sequence[Any], number: int, ref: Any) -> Any:
        try:
            return answer_of("the margins", ref, self._answer_seconds, started[number])
        except PartyLost as lost:
            if lost.party in self._actors:
                raise
            raise StateLost(f"shard {number} of the margins was lost; continue with: vfl resume ({lost})") from lost

    def _late(self, number: int) -> StateLost:
        return StateLost(f"shard {number} of the margins did not answer within {self._answer_seconds:g} s")

    def _noted(self, events: Iterator[Event]) -> Iterator[Event]:
        for event in events:
            self._telemetry(event)
            yield event
