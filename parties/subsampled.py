"""Some rows of one party in a run on disjoint subsamples (vfl.holdout). Every query works on the rows of one subsample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parties.rows import RowFacts, Rows
from vfl.errors import PrivacyError
from vfl.shards.lending import no_room

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parties.rows import Sums
    from parties.storage.base import Storage
    from vfl.holdout import Subsamples
    from vfl.messages import Descend, Query, Records
    from vfl.shards.lending import Room
    from vfl.types import Vector


class SubsampledRows:
    """Rows with the methods of `parties.rows.Rows`, divided among disjoint subsamples.

    Guarantee. A query uses only the rows of the subsample on which the query's releases are charged. The party computes the
    division itself, from its job and n, and refuses a query that names no subsample.

    columns, labels, threads, n_margins : as for `Rows`. start : position of the first of these rows among all n.
    """

    def __init__(
        self,
        party: str,
        columns: Storage,
        labels: Vector | None,
        subsamples: Subsamples,
        *,
        start: int = 0,
        threads: int = 1,
        n_margins: int = 1,
    ) -> None:
        self._party, self._labels, self._n_records = party, labels, columns.n_records
        self._visited: Rows | None = None
        numbers, parts = subsamples.numbers(), []
        before, own = numbers[:start], numbers[start : start + columns.n_records]
        for k in range(subsamples.count):
            mine = own == k
            columns, part = columns.parted(mine)
            own = own[~mine]
            parts.append(
                Rows(
                    party,
                    part,
                    threads=threads,
                    first=int(np.count_nonzero(before == k)),
                    n_trained=subsamples.size,
                    n_margins=n_margins,
                )
            )
        self.parts: Sequence[Rows] = parts

    def facts(self) -> RowFacts:
        """Return the numbers of records and coordinates. Only the records of the first subsample count as training records."""
        first = self.parts[0].facts()
        return RowFacts(first.n_trained, self._n_records - first.n_trained, first.n_coordinates)

    def labels(self) -> Vector:
        """Return y of this shard's records, followed by their exposures and weights. Only `Margins` may receive the result."""
        if self._labels is None:
            raise PrivacyError(f"party {self._party!r} holds no label")
        return np.asarray(self._labels, dtype=np.float64).ravel()

    def sums(self, query: Query, records: Records) -> list[Sums]:
        """Return the exact sums over the rows of the query's subsample, one per release of the query."""
        return self._of(query).sums(query, records)

    def vector(self, query: Query, records: Records, deltas: Sequence[Vector] = ()) -> Vector:
        """Return the vector that a query asks for, with one entry per record of its subsample.

        Only `Margins` may receive it.
        """
        return self._of(query).vector(query, records, deltas)

    def enter(self, query: Descend, records: Records) -> Sums:
        """Begin a visit (steps one after another), and return the sum of the first step."""
        self._visited = self._of(query)
        return self._visited.enter(query, records)

    def step(self, number: int, delta: Vector, shift: Any) -> Sums:
        """Take the next step of the visit, and return its sum."""
        return self._visiting().step(number, delta, shift)

    def leave(self, delta: Vector, shift: Any, room: Room = no_room) -> Vector:
        """End the visit, and return the change of the margins. Only `Margins` may receive it."""
        return self._visiting().leave(delta, shift, room)

    def _visiting(self) -> Rows:
        if self._visited is None:
            raise PrivacyError(f"party {self._party!r} was asked for a step outside of a visit")
        return self._visited

    def _of(self, query: Query) -> Rows:
        number = query.subsample
        if number is None or not 0 <= number < len(self.parts):
            raise PrivacyError(f"party {self._party!r} trains on subsamples, and was sent a query that names none")
        return self.parts[number]
