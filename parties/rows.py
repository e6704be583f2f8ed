"""Some rows of one party, in one process: sums over the rows without noise, and per-record vectors for `LinearPredictors`.

Results have no noise. They must reach only parties.party, or `LinearPredictors`, the coordinator's per-record state.
parties.party checks the budget and adds noise, once for all rows of the party.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.record_cap import OwnBounds
from parties.storage.classes import ClassColumns
from parties.storage.dense import Columns as Dense
from vfl.base.holdout import Side
from vfl.base.persons import UNITS, laid
from vfl.base.problem import weighed
from vfl.errors import PrivacyError
from vfl.kernels.dense import inverse_grid
from vfl.kernels.geometry import WEIGHTS, Geometry, pieces
from vfl.network.shards.lending import no_room

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from parties.storage.classes import Storage
    from vfl.base.holdout import Subsamples
    from vfl.base.persons import Persons
    from vfl.base.problem import Block
    from vfl.base.types import Integers, Room, Vector
    from vfl.privacy.geometry import Clip
    from vfl.queries import Fold, Query, RecordCap, Records
    from vfl.queries.parts import Knots, Scaled, Sums
    from vfl.queries.query import StepsInProgress

    Signs = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Public numbers of some rows of a party: training records, held-out records, coordinates and stored columns."""

    n_trained: int
    n_held_out: int
    n_coordinates: int
    n_columns: int


class Rows:
    """Some rows of a party's columns, with the kernels for their storage (`vfl.queries.query.Rows`).

    columns : scaled features of the training records, in canonical order; the intercept is last, if the party owns it.
    labels : y of all of these records, at the label party; with k exposures and weights (1 + k, n), y first
        (parties.storage.labels).
    held_out : the same features of the held-out records. From these records the party computes only X_k w_k and the norms of
        rows, which only the coordinator's `LinearPredictors` receives. This class never computes a noised sum from them.
    held_labels : labels of the held-out records in a run on secret shares; `labels` then are those of the training records.
    groups : {column: (m,) codes}, groups of the held-out records for fairness checks, for `LinearPredictors` only.
    threads : number of threads of the kernels. The number does not change results.
    first : position of the first of these records among all training records of the party.
    n_trained : number of all training records of the party; None if all of them are here.
    n_outputs : margins per record: one, or one per class under multinomial loss. A column has one coordinate per margin.
    persons : (n,) position of each row's person among the training records, if rows are not records (`PersonRows`).
    """

    def __init__(
        self,
        party: str,
        columns: Storage,
        labels: Vector | Signs | None = None,
        *,
        held_out: Storage | None = None,
        held_labels: Vector | None = None,
        groups: Mapping[str, Integers] | None = None,
        threads: int = 1,
        first: int = 0,
        n_trained: int | None = None,
        n_outputs: int = 1,
        persons: Integers | None = None,
    ) -> None:
        self.party = party
        self.columns, self.held_out, self.held_labels = columns, held_out, held_labels
        self._n_outputs = n_outputs
        self._coordinates: Any = columns if n_outputs == 1 else ClassColumns(columns, n_outputs)
        self.groups = groups or {}
        self._labels = None if labels is None else _compact(labels)
        self.kernels: Any = self._coordinates.kernels
        self.threads = threads
        self._where: Any = slice(first, first + columns.n_records) if persons is None else persons
        self._n_trained = columns.n_records if n_trained is None else n_trained
        self._units = 1 if persons is None else UNITS
        self._bounds = OwnBounds(party, self._record_norms)
        self._steps: StepsInProgress | None = None

    def afresh(self) -> Rows:
        """Return an object with the same rows, without the state of any run."""
        again = copy.copy(self)
        again._bounds, again._steps = OwnBounds(self.party, again._record_norms), None
        return again

    def facts(self) -> RowFacts:
        """Return the numbers of records and coordinates of these rows."""
        held_out = 0 if self.held_out is None else self.held_out.n_records
        return RowFacts(self.columns.n_records, held_out, self._coordinates.n_coordinates, self.columns.n_coordinates)

    @property
    def y(self) -> Vector | None:
        """Labels of these records, (n,) float64; None at a party without labels. Only `LinearPredictors` may receive them."""
        return None if self._labels is None else self._labels.astype(np.float64, copy=False)

    def labels(self) -> Vector:
        """Return y of these records, then their exposures and weights, (n + kn,), for `LinearPredictors` only."""
        y = self.y
        if y is None:
            raise PrivacyError(f"party {self.party!r} holds no label")
        return y.ravel()

    @np.errstate(all="ignore")  # an overflow warning would reveal one record's cell, here and below
    def sums(self, query: Query, records: Records) -> list[Sums]:
        """Return the exact sums over these rows, one per release of a query."""
        self.place(query.knots, fixes=query.fixes_knots)
        return query.exact(self, records)

    @np.errstate(all="ignore")
    def vector(self, query: Query, records: Records, deltas: Sequence[Vector] = ()) -> Vector:
        """Return the per-record vector that a query asks for, (n,). Only `LinearPredictors` may receive it.

        deltas : Δ of each step of a message, once its releases are known.
        """
        self.place(query.knots)
        return query.vector(self, records, deltas)

    @np.errstate(all="ignore")
    def enter(self, query: Query, records: Records) -> Sums:
        """Begin the steps of a message, and return the sum of the first step."""
        self.place(query.knots)
        self._steps = query.begin(self, records)
        return self._steps.step(0, np.zeros(0), 0.0)

    @np.errstate(all="ignore")
    def step(self, number: int, delta: Vector, shift: Any) -> Sums:
        """Add the previous step's update to the margins, and return the sum of the next step."""
        return self._in_progress().step(number, delta, shift)

    @np.errstate(all="ignore")
    def leave(self, delta: Vector, shift: Any, room: Room = no_room) -> Vector:
        """End the steps, and return the change of the margins, (n,), for `LinearPredictors` only."""
        steps, self._steps = self._in_progress(), None
        return steps.leave(delta, shift, room)

    def place(self, knots: Knots | None, *, fixes: bool = True) -> None:
        """Compute the coordinates of curves from the released knots. Any query except a histogram fixes the knots.

        The knots must not change later, because caps of records rest on norms of these coordinates, which are kept.
        """
        own = (knots or {}).get(self.party)
        for columns in (self.columns, self.held_out):
            if columns is not None and (own or isinstance(columns, Dense)):
                dense = self._dense(columns)
                dense.curves.place(own or None, dense.array, fixes=fixes)

    def _dense(self, columns: Storage) -> Dense:
        if not isinstance(columns, Dense):
            raise PrivacyError(f"party {self.party!r} stores its columns as a sparse matrix, which has no curves")
        return columns

    def _in_progress(self) -> StepsInProgress:
        if self._steps is None:
            raise PrivacyError(f"party {self.party!r} was asked for a step before the first one")
        return self._steps

    # Methods that queries use (vfl.queries.query.Rows).

    def curves(self) -> Any:
        """Return the curves among the columns."""
        return self._dense(self.columns).curves

    def block(self, block: Block, side: Side = Side.TRAINING) -> Any:
        """Return the columns of a block, of the training or the held-out records."""
        if side is Side.TRAINING:
            return self._coordinates.block(block.start, block.stop)
        apart: Any = self._apart() if self._n_outputs == 1 else ClassColumns(self._apart(), self._n_outputs)
        return apart.block(block.start, block.stop)

    def zeros(self, side: Side = Side.TRAINING) -> Vector:
        """Return margins of 0: one per record, or K per record with K classes."""
        n = self.columns.n_records if side is Side.TRAINING else self.n_held_out()
        return np.zeros(n * self._n_outputs)

    def n_held_out(self) -> int:
        """Return m, the number of held-out records. Raises PrivacyError if there are none."""
        return self._apart().n_records

    def _apart(self) -> Storage:
        if self.held_out is None:
            raise PrivacyError(f"party {self.party!r} has no held-out records")
        return self.held_out

    def column(self, row: Scaled, j: int) -> Vector:
        """Return column j of a block, centred and scaled: scale_j (x_j − c_j), (n,)."""
        block, centre, scale = row
        own, s = replace(block, start=block.start + j, stop=block.start + j + 1), float(scale[j])
        moved: Vector = self.kernels.forward(
            self.block(own), np.array([s]), self.zeros(), -float(centre[j]) * s, threads=self.threads
        )
        return moved

    def codes(self, column: str) -> Integers:
        """Return the groups of the held-out records in a column that the job compares, (m,)."""
        if column not in self.groups:
            raise PrivacyError(
                f"party {self.party!r} was asked for groups by {column!r}, which the job does not compare"
            )
        return self.groups[column]

    def within(self, fold: Fold | None, r: Vector) -> Vector:
        """Return r, set to 0 outside of a public batch of records. Disjoint batches then need no trust in the coordinator."""
        if fold is None:
            return r
        return weighed(r, fold.members(self._n_trained)[self._where])

    def bounds(self, cap: RecordCap, given: Vector | None, labels: Vector, loss: int) -> Vector:
        """Return the largest residuals under a record cap; see `OwnBounds.of`."""
        return self._bounds.of(cap, given, labels, loss)

    def geometry(self, centre: Vector, scale: Vector, clip: Clip) -> Geometry:
        """Return the geometry of a clipped sum, after checking that the sum over all n records stays an exact integer."""
        inverse_grid(clip.cap, clip.grid, self._n_trained * self._units)
        return Geometry(centre, scale, clip.cap, clip.grid)

    def sum(self, block: Block, centre: Vector, scale: Vector, clip: Clip, r: Vector, cap: RecordCap | None) -> Sums:
        """Return Σ_i clip(scale ∘ r_i (x_{i,S} − c)), (s,), in multiples of the clip's grid if there is a clip.

        A record cap bounds |r_i| by the record's whole row, and replaces the clip of the single block.
        """
        X, sums = self.block(block), None
        if not clip.finite:
            at = Geometry(centre, scale)
            sums = self.kernels.plain_gradient(X, r, r, WEIGHTS, at, threads=self.threads)
        elif cap is None:
            at = self.geometry(centre, scale, clip)
            sums = self.kernels.gradient(X, r, r, WEIGHTS, at, threads=self.threads)
        else:
            none, at = self.columns.block(0, 0), self.geometry(centre, scale, clip)
            bounds = self.bounds(cap, None, r, WEIGHTS)
            sums = self.kernels.capped_step(
                none, np.zeros(0), 0.0, r.copy(), WEIGHTS, X, at, bounds, threads=self.threads
            )
        made: Sums = sums
        return made

    def _record_norms(self, row: Scaled) -> Vector:
        norms: Vector = self.kernels.record_norms(self.block(row[0]), *row[1:])
        return norms


def _compact(labels: Vector | Signs) -> Vector | Signs:
    """Return labels as int8 if all of them are ±1, else unchanged.

    This saves memory, since labels are kept for the whole run.
    """
    signs = all(bool(np.all(abs(labels[rows]) == 1.0)) for rows in pieces(len(labels)))
    return labels.astype(np.int8, copy=False) if signs else labels


def with_persons(labels: Vector, persons: Persons | None) -> Vector:
    """Return labels and factors of all rows, followed by the numbers of their persons if rows have persons; padded by −1."""
    return labels if persons is None else persons.padded(np.concatenate([labels, persons.person]), -1.0)


class PersonRows:
    """Rows with the methods of `parties.rows.Rows`, of which several may belong to one person (vfl.base.persons).

    Guarantee. The sums are Σ units·(sums over the rows of these units), integers in multiples of the grid divided by UNITS. A
    row's contribution is that of a record, whatever the coordinator sends, and this object alone weighs it.

    columns, labels, groups, threads, n_outputs : as for `Rows`, of all rows in the order of `persons`; groups of held-out
        rows alone.
    persons : persons of the rows, in the order of their weights. apart : (N,) booleans, True for held-out persons, or None.
    """

    def __init__(
        self,
        party: str,
        columns: Storage,
        labels: Vector | None,
        persons: Persons,
        *,
        apart: np.ndarray | None = None,
        groups: Mapping[str, Integers] | None = None,
        threads: int = 1,
        n_outputs: int = 1,
    ) -> None:
        self.party, self.persons = party, persons
        self._labels, self._n_outputs = labels, n_outputs
        none = np.zeros(persons.count, dtype=bool)
        self.held = held = none if apart is None else apart
        trained, self._held = persons.among(~held), persons.among(held)
        self._trained, self.parts = trained, list[tuple[int, Rows]]()
        of_rows, units, done = held[persons.person], persons.units, 0
        for weight in np.unique(units)[::-1].tolist():
            columns, part = columns.parted(units == weight)
            out = of_rows[units == weight]
            part, held_out = part.parted(out) if apart is not None else (part, None)
            of_rows, units = of_rows[units != weight], units[units != weight]
            done, first = done + int(out.sum()), done
            self.parts.append(
                (
                    weight,
                    Rows(
                        party,
                        part,
                        held_out=held_out,
                        groups={column: codes[first:done] for column, codes in (groups or {}).items()},
                        threads=threads,
                        n_trained=trained.count,
                        n_outputs=n_outputs,
                        persons=trained.person[trained.units == weight],
                    ),
                )
            )

    def afresh(self) -> PersonRows:
        """Return an object with the same rows, without the state of any run."""
        again = copy.copy(self)
        again.parts = [(units, rows.afresh()) for units, rows in self.parts]
        return again

    def facts(self) -> RowFacts:
        """Return the numbers of records and coordinates. Records are persons."""
        one = self.parts[0][1].facts()
        return replace(one, n_trained=self._trained.count, n_held_out=self._held.count)

    def labels(self) -> Vector:
        """Return y of all rows, their exposures and weights, and the numbers of their persons. For `LinearPredictors` alone."""
        if self._labels is None:
            raise PrivacyError(f"party {self.party!r} holds no label")
        return with_persons(np.asarray(self._labels, dtype=np.float64).ravel(), self.persons)

    def sums(self, query: Query, records: Records) -> list[Sums]:
        """Return the exact sums over all rows, one per release of the query, in multiples of the grid divided by UNITS."""
        made = [[units * own for own in rows.sums(query, cut)] for units, rows, cut in self._cut(query, records)]
        return [functools.reduce(np.add, own) for own in zip(*made, strict=True)]

    def vector(self, query: Query, records: Records, deltas: Sequence[Vector] = ()) -> Vector:
        """Return the vector that a query asks for, with an entry per row, padded. Only `LinearPredictors` may receive it."""
        width = query.answer_width(self._n_outputs)
        made = [rows.vector(query, cut, deltas).reshape(width, -1) for _, rows, cut in self._cut(query, records)]
        persons = self._trained if query.side is Side.TRAINING else self._held
        return persons.padded(np.concatenate(made, axis=1).ravel())

    def _cut(self, query: Query, records: Records) -> Iterator[tuple[int, Rows, Records]]:
        """Yield units and rows of each part, with the part's entries of the padded weights."""
        if records.margins is not None:
            raise self._one_by_one()
        given, stop = records.weights, 0
        r = None if given is None else laid(given, self._trained.room, query.width * self._n_outputs)
        for units, rows in self.parts:
            start, stop = stop, stop + rows.columns.n_records
            yield units, rows, records if r is None else replace(records, weights=r[:, start:stop].ravel())

    def enter(self, *given: Any) -> Any:
        """Raise PrivacyError: the coordinator sends residuals, and no linear predictors or labels."""
        del given
        raise self._one_by_one()

    step = leave = enter

    def _one_by_one(self) -> PrivacyError:
        return PrivacyError(
            f"party {self.party!r} was asked for steps one after another, which need linear predictors and labels of each "
            "row: in a job in which persons have several rows, every step is a query of its own"
        )


class SubsampledRows:
    """Rows with the methods of `parties.rows.Rows`, divided among disjoint subsamples.

    Guarantee. A query uses only the rows of the subsample on which the query's releases are charged. The party computes the
    division itself, from its job and n, and refuses a query on any other records (parties.party).

    columns, labels, threads, n_outputs : as for `Rows`. start : position of the first of these rows among all n.
    persons : as for `PersonRows`; the rows of a person are then in one subsample.
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
        n_outputs: int = 1,
        persons: Persons | None = None,
    ) -> None:
        self._party, self._labels, self._persons = party, labels, persons
        self._n_records = columns.n_records if persons is None else persons.count
        self._asked: Rows | None = None
        numbers, parts = subsamples.numbers(), list[Any]()
        before, own = numbers[:start], numbers[start : start + self._n_records]
        of_rows = own if persons is None else own[persons.person]
        for k in range(subsamples.count):
            mine = of_rows == k
            columns, part = columns.parted(mine)
            of_rows = of_rows[~mine]
            shared: dict[str, Any] = {"threads": threads, "n_outputs": n_outputs}
            if persons is None:
                first = int(np.count_nonzero(before == k))
                parts.append(Rows(party, part, first=first, n_trained=subsamples.size, **shared))
            else:
                parts.append(PersonRows(party, part, None, persons.among(own == k), **shared))
        self.parts: Sequence[Any] = parts

    def facts(self) -> RowFacts:
        """Return the numbers of records and coordinates. Only the records of the first subsample count as training records."""
        first: RowFacts = self.parts[0].facts()
        return replace(first, n_held_out=self._n_records - first.n_trained)

    def labels(self) -> Vector:
        """Return y of this shard's records, then their exposures and weights, for `LinearPredictors` only."""
        if self._labels is None:
            raise PrivacyError(f"party {self._party!r} holds no label")
        return with_persons(np.asarray(self._labels, dtype=np.float64).ravel(), self._persons)

    def sums(self, query: Query, records: Records) -> list[Sums]:
        """Return the exact sums over the rows of the query's subsample, one per release of the query."""
        return self._of(query).sums(query, records)

    def vector(self, query: Query, records: Records, deltas: Sequence[Vector] = ()) -> Vector:
        """Return the vector that a query asks for, with one entry per record of its subsample.

        Only `LinearPredictors` may receive it.
        """
        return self._of(query).vector(query, records, deltas)

    def enter(self, query: Query, records: Records) -> Sums:
        """Begin the steps of a message, and return the sum of the first step."""
        self._asked = self._of(query)
        return self._asked.enter(query, records)

    def step(self, number: int, delta: Vector, shift: Any) -> Sums:
        """Take the next step, and return its sum."""
        return self._in_progress().step(number, delta, shift)

    def leave(self, delta: Vector, shift: Any, room: Room = no_room) -> Vector:
        """End the steps, and return the change of the margins. Only `LinearPredictors` may receive it."""
        return self._in_progress().leave(delta, shift, room)

    def _in_progress(self) -> Rows:
        if self._asked is None:
            raise PrivacyError(f"party {self._party!r} was asked for a step before the first one")
        return self._asked

    def _of(self, query: Query) -> Rows:
        rows: Rows = self.parts[query.subsample]  # type: ignore[index]  # parties.party refuses every other number
        return rows
