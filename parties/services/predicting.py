"""A party's part of a prediction or an evaluation: its part of a model, applied to its new records."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.alignment.reading import holds_ids, raw_ids
from parties.loading import ShardedSource, divided
from parties.prediction import task_of
from parties.services.service import Service
from vfl.base.persons import UNITS
from vfl.errors import DataError, FederationError
from vfl.network.messages import (
    AddUp,
    Applied,
    Apply,
    Done,
    Measure,
    Multiply,
    ReadIds,
    SendLinearPredictors,
    TakeLinearPredictors,
)
from vfl.network.shards import Each, LocalGroup

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from parties.alignment.index import Index
    from parties.alignment.reading import ChosenRows
    from parties.alignment.reading import ReadIds as Reader
    from parties.prediction import ModelPart, Permission
    from parties.services.aligning import AlignmentService
    from parties.services.service import Sent
    from vfl.network.shards import Group


class PredictionService(Service):
    """Applies one party's part of a model to its new records, with or without alignment to the other parties' records.

    Guarantee. Records are counted under the owner's permission before a margin is sent; aligned records are counted
    even before a cell is read. Parts of margins go to one party only, which adds them up. The coordinator receives the sums in
    a prediction, or exact sums of a statistic in an evaluation.

    part : part of the model. source : source in this process. parties : all participating parties, in the partition's order.
    permission : permission that the owner gave. measured : True if the aggregating party measures the model on its own labels.
    rows : one object per shard with the methods of parties.prediction.NewRows. handed : the source, as these objects open it.
    read : as for parties.loading.Divided. joined : rows to read, in order, if this process has joined all parties' rows by ids.

    Raises FederationError if a party with columns in the model is missing: a sum of fewer parts reveals more about each part.
    """

    def __init__(
        self,
        part: ModelPart,
        source: Any,
        *,
        parties: Sequence[str],
        permission: Permission,
        measured: bool,
        aligning: AlignmentService,
        rows: Group,
        handed: Any = None,
        read: Reader | None = None,
        joined: ChosenRows | None = None,
    ) -> None:
        self.part, self._source, self.aligning, self._permission = part, source, aligning, permission
        partition = part.job.partition
        for party in partition.parties:
            if partition.columns(party) and party not in parties:
                raise FederationError(f"party {party!r} has columns in the model, and takes no part in the prediction")
        self._parties = tuple(party for party in partition.parties if party in parties)
        self._receiver = partition.receiver(self._parties)
        self._receives, self._measured = part.party == self._receiver, measured
        self._rows, self._handed, self._read = rows, handed, read
        self._aligned = self._kept = False
        self._index: Index | ChosenRows | None = joined
        self._counts: list[int] = []
        self._parts: dict[str, Each] = {}

    @property
    def n_records(self) -> int | None:
        """Return the number of records to predict; None before the records are read."""
        return sum(self._counts) if self._counts else None

    @functools.cached_property
    def ids(self) -> bool:
        """Return True if the new records have ids."""
        task = self.part.job.for_party(self.part.party).features
        return bool(self.part.job.ids) and holds_ids(task, self._source)

    def answer(self, message: object, vectors: Mapping[str, Any]) -> Sent:
        """Return the answer to a message of the prediction, or of an alignment before it."""
        match message:
            case Apply():
                n_records, index = self._apply(), self._index
                if self._measured or index is None or index.person is None:
                    return Applied(n_records), {}
                return Applied(n_records, len(index.rows)), {}
            case SendLinearPredictors() if message.to == self._receiver and not self._receives:
                return Done(), {"margins": self._whole(self._own())}
            case TakeLinearPredictors() if self.awaits(message.sender):
                self._take(message.sender, vectors)
                return Done(), {}
            case AddUp() if self._receives and not self._measured:
                return Done(), self._added()
            case Measure() if self._receives and self._measured:
                return Done(), {"sum": self._sum(message)}
        self._require_before(message)
        self._aligned = self._aligned or isinstance(message, ReadIds)
        return self.aligning.answer(message, vectors)

    def stream(self, message: object, vectors: Mapping[str, Any]) -> Generator[int, None, Sent]:
        """Answer a long message of the alignment: yield the progress, then return what `answer` would return."""
        if not isinstance(message, Multiply):
            return self.answer(message, vectors)
        self._require_before(message)
        return (yield from self.aligning.stream(message, vectors))

    def close(self) -> None:
        """End the processes of an alignment."""
        self.aligning.close()

    def awaits(self, sender: str) -> bool:
        """Return True if this party adds up margins and has not yet received those of `sender`."""
        return self._receives and sender != self.part.party and sender in self._parties and sender not in self._parts

    def _require_before(self, message: object) -> None:
        """Raise FederationError for a message that does not belong to the alignment, or comes after it."""
        if self._counts or isinstance(message, Apply | SendLinearPredictors | TakeLinearPredictors | AddUp | Measure):
            raise self.undue(message)

    def _apply(self) -> int:
        """Make each shard read its records and apply the part of the model. Return the number of records."""
        if self._counts:
            return sum(self._counts)
        labelled = self._measured and self._receives
        task = task_of(self.part, labelled=labelled)
        if not task.columns and not labelled:
            raise DataError(f"party {self.part.party!r} has no column in the model")
        index = self._index = self.aligning.concluded() if self._aligned else self._index
        if index is not None:  # other parties chose these records, so even an error about a cell reveals a record
            self._permission.count(len(index.rows))
        if isinstance(self._rows, LocalGroup):
            opened, unchanged, ranges = divided(task, self._source, index, self._rows.size)
            # Each object reads its range of rows and applies the part to it before the next object reads.
            counts = [new.load(self._source, *own, opened) for new, own in zip(self._rows.members, ranges, strict=True)]
            if self._rows.size > 1:
                unchanged.require()
        else:
            counts = ShardedSource(task, self._source, index, self._rows.size, self._read).load(
                self._rows, self._handed
            )
        if index is None:
            self._permission.count(sum(counts))
        self._counts = counts
        return sum(counts)

    def _own(self) -> Each:
        if not self._counts:
            raise FederationError(f"party {self.part.party!r} was asked for linear predictors before it computed them")
        return self._rows.vectors("scores")

    def _take(self, sender: str, vectors: Mapping[str, Any]) -> None:
        if "margins" not in vectors or not self._counts:
            raise FederationError(f"party {self.part.party!r} was sent unexpected linear predictors")
        given = vectors["margins"]
        if isinstance(given, list):  # one reference per shard
            self._parts[sender] = Each(given)
            return
        shape = self.part.job.shape_of_margins(sum(self._counts))
        if given.nbytes != 8 * math.prod(shape):
            raise DataError(f"party {sender!r} holds a different number of records from the other parties")
        whole = np.frombuffer(given, "<f8").reshape(shape)
        self._parts[sender] = Each(np.split(whole, np.cumsum(self._counts)[:-1]))

    def _whole(self, pieces: Each) -> Any:
        """Return a vector of all records; with shards in other processes, references to the shards' parts of the vector."""
        if isinstance(self._rows, LocalGroup):
            return np.ascontiguousarray(pieces[0] if len(pieces) == 1 else np.concatenate(pieces))
        return list(pieces)

    def _ordered(self) -> list[Each]:
        """Return the parts of all parties with columns. The partition's order of parties fixes how sums are rounded."""
        wanted = [party for party in self._parties if self.part.job.partition.columns(party)]
        if any(party not in self._parts for party in wanted if party != self.part.party):
            raise FederationError(f"party {self.part.party!r} was asked to add linear predictors that it was not sent")
        return [self._own() if party == self.part.party else self._parts[party] for party in wanted]

    def _added(self) -> dict[str, Any]:
        """Return margins and ids of the records, in the order of this party's rows. Without ids, return only margins."""
        total = self._rows.vectors("total", *self._ordered())
        if not self.ids:
            return {"margins": self._whole(total)}
        whole = np.concatenate(self._rows.fetch(total))
        ids = raw_ids(self.part.job.for_party(self.part.party).features, self._source)
        if self._index is not None:
            rows = self._index.rows
            order = np.argsort(rows, kind="stable")
            whole, ids = whole[order], [ids[row] for row in rows[order]]
        return {"margins": np.ascontiguousarray(whole), "ids": ids}

    def _sum(self, message: Measure) -> Any:
        if not self._counts:
            raise FederationError(f"party {self.part.party!r} was asked to measure before it read its labels")
        if not self._kept:
            self._rows.fetch(self._rows.start("keep", *self._ordered()))
            self._kept = True
        found = functools.reduce(np.add, self._rows.fetch(self._rows.start("sum_of", message.statistic)))
        repeats = self._index is not None and self._index.person is not None
        return np.ascontiguousarray(found * (message.statistic.grid / (UNITS if repeats else 1)), np.float64)
