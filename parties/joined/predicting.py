"""A joined party's work on a prediction or an evaluation: its part of a model, applied to its new records."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.alignment.reading import holds_ids, raw_ids
from parties.joined.aligning import Aligning
from parties.joined.work import BODY_BYTES, Work
from parties.loading import load_labels
from parties.permission import permitted
from parties.prediction import added, receiver_of
from vfl.errors import DataError, FederationError
from vfl.messages.joining import (
    EVALUATE,
    About,
    AddUp,
    Applied,
    Apply,
    Done,
    Measure,
    ReadIds,
    SendMargins,
    TakeMargins,
)
from vfl.security.sealing import sealed_size
from vfl.wire.frames import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from parties.joined.aligning import PartySettings
    from parties.joined.work import Sent
    from parties.prediction import ModelPart
    from vfl.messages.joining import Offer
    from vfl.types import Vector

LABEL = "margins"


class Predicting(Work):
    """Applies one party's part of a model. Parts travel sealed to the party that adds up; the coordinator gets the sums.

    policy : path of the owner's policy, which is asked here, before the source is opened. Raises ConsentRefused.
    """

    def __init__(
        self, offer: Offer, part: ModelPart, source: Any, own: PartySettings, policy: str | Path | None
    ) -> None:
        super().__init__(offer)
        self._part, self._source, self._own = part, source, own
        self._parties = tuple(party for party in part.job.partition.parties if party in offer.parties)
        for party in part.job.partition.parties:  # a sum of fewer parts shows more of each
            if part.job.partition.columns(party) and party not in self._parties:
                raise FederationError(f"party {party!r} has columns in the model, and takes no part in the prediction")
        self._receiver = receiver_of(part.job, self._parties)
        self._measured = offer.purpose == EVALUATE
        self._permission = permitted(
            part,
            source,
            None if policy is None else str(policy),
            receiver=self._receiver,
            labels=self._measured and part.party == self._receiver,
            owners=True,
        )
        self._task = part.job.for_party(part.party)
        self._aligning = Aligning(offer, self._task.features, source, own)
        self._ids = False
        self._aligned = False
        self._n_records: int | None = None
        self._parts: dict[str, Vector] = {}
        self._labels: Vector | None = None
        self._offsets: Vector | None = None
        self._rows: Any = None

    @property
    def limits(self) -> Limits:
        """Return the size limits of the next call."""
        if self._n_records is None:
            return Limits(BODY_BYTES, self._aligning.limits)
        return Limits(BODY_BYTES, {"margins": sealed_size(8 * self._n_records * self._part.job.n_margins)})

    def takes(self, message: object) -> Iterable[str]:
        """Return the names of the vectors that a call takes: margins at the party that adds up, once from each other party."""
        if isinstance(message, TakeMargins):
            return ("margins",) * (self._awaits(message.sender))
        return () if self._n_records is not None else self._aligning.takes(message)

    def _awaits(self, sender: str) -> bool:
        """Return True if this party adds up and has no margins of the sender yet."""
        return self._part.party == self._receiver != sender and sender in self._parties and sender not in self._parts

    def accepted(self) -> Sent:
        """Return whether the new records have ids."""
        self._ids = bool(self._part.job.ids) and holds_ids(self._task.features, self._source)
        return About(self._ids), {}

    def other(self, message: object, vectors: Mapping[str, Any], progress: Callable[[int], None]) -> Sent:
        """Return the answer to a call of the prediction."""
        match message:
            case Apply():
                return Applied(self._apply()), {}
            case SendMargins() if message.to == self._receiver != self._part.party:
                part = np.ascontiguousarray(self._own_part())
                return Done(), {"margins": self._own.sealer.seal(message.to, LABEL, part.ravel().view(np.uint8).data)}
            case TakeMargins() if self._part.party == self._receiver and message.sender in self._parties:
                self._take(message.sender, vectors)
                return Done(), {}
            case AddUp() if self._part.party == self._receiver and not self._measured:
                return self._added()
            case Measure() if self._part.party == self._receiver and self._measured:
                return Done(), {"sum": self._sum(message)}
        if self._n_records is not None or isinstance(message, Apply | SendMargins | TakeMargins | AddUp | Measure):
            raise self.undue(message)
        self._aligned = self._aligned or isinstance(message, ReadIds)
        return self._aligning.answer(message, vectors, progress)

    def summary(self) -> dict[str, Any]:
        """Return facts for the owner."""
        return super().summary() | {"records": self._n_records}

    def close(self) -> None:
        """End the processes of an alignment."""
        self._aligning.close()

    def _apply(self) -> int:
        if self._n_records is not None:
            return self._n_records
        index = self._aligning.concluded() if self._aligned else None
        self._rows = None if index is None else index.rows
        own = self._part.party
        if self._measured and own == self._receiver:
            labels = load_labels(self._task.measured, self._source)
            given = self._task.job.targets.measured.parts(labels if index is None else labels[..., index.rows])
            self._labels, self._offsets = given.labels, given.offsets
        if self._task.columns:
            self._parts[own] = self._part.margins(
                self._source, index, permission=self._permission, shards=self._own.shards
            )
            self._n_records = len(self._parts[own])
        elif self._labels is not None:
            self._permission.count(len(self._labels))
            self._n_records = len(self._labels)
        else:
            raise DataError(f"party {own!r} has no column in the model")
        if self._labels is not None and len(self._labels) != self._n_records:
            raise DataError("the label party holds a different number of records from the others")
        return self._n_records

    def _own_part(self) -> Vector:
        if self._part.party not in self._parts:
            raise FederationError(f"party {self._part.party!r} was asked for margins before it computed them")
        return self._parts[self._part.party]

    def _take(self, sender: str, vectors: Mapping[str, Any]) -> None:
        if "margins" not in vectors or sender in self._parts or self._n_records is None:
            raise FederationError(f"party {self._part.party!r} was sent unexpected margins")
        opened = self._own.sealer.open(sender, LABEL, vectors["margins"])
        shape = self._part.job.shape_of_margins(self._n_records)
        if len(opened) != 8 * math.prod(shape):
            raise DataError(f"party {sender!r} holds a different number of records from the other parties")
        self._parts[sender] = np.frombuffer(opened, np.dtype("<f8")).reshape(shape)

    def _margins(self) -> Vector:
        wanted = [party for party in self._parties if self._part.job.partition.columns(party)]
        if any(party not in self._parts for party in wanted):
            raise FederationError(f"party {self._part.party!r} was asked to add margins that it was not sent")
        return added({party: self._parts[party] for party in wanted}, self._part.intercept)

    def _added(self) -> Sent:
        """Return margins and ids in the order of this party's rows."""
        margins = self._margins()
        if not self._ids:
            return Done(), {"margins": np.ascontiguousarray(margins).ravel()}
        ids = raw_ids(self._task.features, self._source)
        if self._rows is not None:
            order = np.argsort(self._rows, kind="stable")
            margins, ids = margins[order], [ids[row] for row in self._rows[order]]
        text = json.dumps(ids, ensure_ascii=False, default=str).encode()
        return Done(), {"margins": np.ascontiguousarray(margins).ravel(), "ids": text}

    def _sum(self, message: Measure) -> Any:
        if self._labels is None:
            raise FederationError(f"party {self._part.party!r} was asked to measure before it read its labels")
        statistic, margins = message.statistic, self._margins()
        if self._part.job.multinomial:
            margins = margins.T.ravel()  # one class after another, as in a run
        if self._offsets is not None:
            margins = margins + self._offsets
        return np.ascontiguousarray(statistic(margins, self._labels) * statistic.grid, np.float64)
