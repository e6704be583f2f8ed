"""A prediction or an evaluation in a federation, at the coordinator: parts of margins pass sealed to the party that adds up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.alignment import align
from coordinator.federation.alignment import FederationAlignment
from coordinator.federation.link import SENTENCE
from coordinator.federation.transport import MOST_RECORDS, expected, sized, together
from vfl.documents import parse_json
from vfl.errors import DataError, FederationError
from vfl.messages.joining import About, AddUp, Applied, Apply, Done, Measure, SendMargins, TakeMargins
from vfl.security.sealing import sealed_size
from vfl.wire.frames import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coordinator.federation.gathering import Gathering
    from coordinator.federation.link import Answer, Link
    from vfl.alignment import Aligned, Aligning
    from vfl.job import Job
    from vfl.messages import Statistic
    from vfl.messages.joining import Offer
    from vfl.types import Vector

LOAD_SECONDS = 3600.0
ID_BYTES = 1 << 10
"""Bytes of one id in JSON, at most."""


class FederationPrediction:
    """Has the parties apply their parts of one model. timeout : seconds that a party may take for one answer."""

    def __init__(self, gathering: Gathering, job: Job, parties: tuple[str, ...], timeout: float) -> None:
        self._gathering, self._job, self._timeout = gathering, job, timeout
        self._parties = tuple(party for party in job.partition.parties if party in parties)
        owner = job.partition.label_party
        self._receiver = owner if owner in self._parties else self._parties[0]
        self._alignment = FederationAlignment(gathering, self._parties, timeout)
        self._ids = False
        self._n_records = 0

    def offer(self, offer: Callable[[str], Offer], all_hold_ids: Callable[[dict[str, bool]], bool]) -> None:
        """Offer the work to all parties, whose owners' policies decide.

        all_hold_ids : returns whether records are joined, given {party: whether its data hold ids}.
        """
        calls = {name: self._calling(name, offer(name)) for name in self._parties}
        about = together(calls, lambda name, answer: expected(answer.wait(self._timeout)[0], About, name))
        self._ids = bool(self._job.ids) and all_hold_ids({name: said.ids for name, said in about.items()})

    def align(self) -> Iterator[Aligning | Aligned]:
        """Exchange the keys for sealed texts, and align the new records if they have ids."""
        if len(self._parties) == 1:
            return
        self._alignment.introduce(salted=self._ids)
        if self._ids:
            yield (yield from align(self._alignment))

    def collect(self) -> int:
        """Have the parties compute, and pass their parts to the one that adds up; return the number of records."""
        calls = {name: self._calling(name, Apply()) for name in self._parties}
        applied = together(calls, lambda name, answer: expected(answer.wait(LOAD_SECONDS)[0], Applied, name))
        n_records = {said.n_records for said in applied.values()}
        if len(n_records) > 1:
            raise DataError(
                "the parties hold different numbers of records: give the same records for all, or their ids"
            )
        self._n_records = n_records.pop()
        if not 0 <= self._n_records <= MOST_RECORDS:
            raise FederationError("a party reported an impossible number of records")
        size = sealed_size(8 * self._n_records * self._job.n_margins)
        for name in self._parties:
            if name != self._receiver and self._job.partition.columns(name):
                asked = self._link(name).call(SendMargins(self._receiver), limits=Limits(SENTENCE, {"margins": size}))
                message, vectors = asked.wait(self._timeout)
                expected(message, Done, name)
                sealed = sized(vectors, "margins", size, name, "bytes")
                handed = self._link(self._receiver).call(TakeMargins(name), vectors={"margins": sealed})
                expected(handed.wait(self._timeout)[0], Done, self._receiver)
        return self._n_records

    def margins(self) -> tuple[list[Any] | None, Vector]:
        """Return ids (None without any) and margins of the records, (n,) or (n, K), in the order of the adding party's rows."""
        n = self.collect()
        size = 8 * n * self._job.n_margins
        limits = Limits(SENTENCE, {"margins": size, "ids": ID_BYTES * n if self._ids else 0})
        message, vectors = self._link(self._receiver).call(AddUp(), limits=limits).wait(self._timeout)
        expected(message, Done, self._receiver)
        margins: Vector = sized(vectors, "margins", size, self._receiver).reshape(self._job.shape_of_margins(n))
        if "ids" not in vectors:
            return None, margins
        return self._ids_of(vectors["ids"].tobytes()), margins

    def sums(self, statistic: Statistic) -> Vector:
        """Return the exact sum of a statistic over the records, from the label party."""
        size = 8 * statistic.dimension
        asked = self._link(self._receiver).call(Measure(statistic), limits=Limits(SENTENCE, {"sum": size}))
        message, vectors = asked.wait(self._timeout)
        expected(message, Done, self._receiver)
        total: Vector = sized(vectors, "sum", size, self._receiver)
        return total

    def _ids_of(self, text: bytes) -> list[Any]:
        try:
            ids = parse_json(text)
        except ValueError:
            ids = None
        if not isinstance(ids, list) or any(isinstance(one, list | dict) for one in ids):
            raise FederationError(f"party {self._receiver!r} sent ids that are not a list of ids")
        if len(ids) != self._n_records:
            raise FederationError(f"party {self._receiver!r} sent a different number of ids from records")
        return ids

    def _calling(self, party: str, message: object) -> Callable[[], Answer]:
        return lambda: self._link(party).call(message)

    def _link(self, party: str) -> Link:
        return self._gathering.link(party, 0.0)
