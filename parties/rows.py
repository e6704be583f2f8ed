"""Some rows of one party, in one process: sums over the rows without noise, and per-record vectors for `Margins`.

Results have no noise. They must therefore reach only parties.party, or `Margins`, the coordinator's per-record state.
parties.party checks the budget and adds noise, once for all rows of the party.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.record_cap import OwnBounds
from parties.storage.classes import ClassColumns
from parties.storage.dense import Columns as Dense
from vfl.errors import PrivacyError
from vfl.holdout import Side
from vfl.kernels.dense import CODES, LOGISTIC, MULTINOMIAL, SQUARED, WEIGHTS, inverse_grid
from vfl.kernels.geometry import Geometry, capped, pieces
from vfl.messages import (
    OFF_DIAGONAL,
    Backward,
    Columns,
    Counts,
    Descend,
    Forward,
    Gram,
    Groups,
    Moments,
    Ranges,
    RecordNorms,
    Select,
    Tally,
)
from vfl.privacy import magnitudes
from vfl.privacy.geometry import GRID_BITS
from vfl.shards.lending import no_room
from vfl.targets import apart, weighed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from parties.storage.classes import Storage
    from vfl.holdout import Subsamples
    from vfl.messages import Block, Query, Records, Step
    from vfl.messages.query import Knots
    from vfl.privacy.geometry import Clip
    from vfl.shards.lending import Room
    from vfl.types import Integers, Vector

    Sums = Integers | Vector
    Signs = npt.NDArray[np.int8]


UNIT_GRID = 2.0**-GRID_BITS
WITH_LABELS = {"logistic": LOGISTIC, "multinomial": MULTINOMIAL}
"""Losses whose residuals are capped using margins and labels. For other losses, only the residuals are needed."""


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Public numbers of some rows of a party: training records, held-out records and coordinates."""

    n_trained: int
    n_held_out: int
    n_coordinates: int


@dataclass(slots=True, eq=False)
class _Visit:
    """Visit in progress: the current margins, and the block whose update X_S Δ has not yet been added to the margins.

    entered : (n,) margins before the visit. v : (n,) current margins, float64. bounds : bounds of residuals under a record cap.
        pending : the block. kind : type of the given margins, and of their change.
    """

    query: Descend
    steps: tuple[Step, ...]
    entered: Vector
    v: Vector
    y: Vector
    weights: Vector | None
    bounds: Vector | None
    pending: Any
    kind: npt.DTypeLike


class Rows:
    """Some rows of a party's columns, with the kernels for their storage.

    columns : scaled features of the training records, in canonical order; the intercept is last, if the party owns it.
    labels : y of all of these records, at the label party; with k exposures and weights (1 + k, n), y first
        (parties.storage.labels).
    held_out : the same features of the held-out records. From these records the party computes only X_k w_k and the norms of
        rows, which only the coordinator's `Margins` receives. It never computes a noised sum from them.
    groups : {column: (m,) codes}, groups of the held-out records for fairness checks; only `Margins` receives the codes.
    threads : number of threads of the kernels. It does not change results.
    first : position of the first of these records among all training records of the party.
    n_trained : number of all training records of the party; None if all of them are here.
    n_margins : margins per record: one, or one per class under multinomial loss. A column has one coordinate per margin.
    """

    def __init__(
        self,
        party: str,
        columns: Storage,
        labels: Vector | Signs | None = None,
        *,
        held_out: Storage | None = None,
        groups: Mapping[str, Integers] | None = None,
        threads: int = 1,
        first: int = 0,
        n_trained: int | None = None,
        n_margins: int = 1,
    ) -> None:
        self.columns = columns
        self.held_out = held_out
        self._n_margins = n_margins
        self._coordinates: Any = columns if n_margins == 1 else ClassColumns(columns, n_margins)
        self.groups = groups or {}
        self._party = party
        self._labels = None if labels is None else _compact(labels)
        self._kernels: Any = self._coordinates.kernels
        self._threads = threads
        self._first = first
        self._n_trained = columns.n_records if n_trained is None else n_trained
        self._bounds = OwnBounds(party, self._record_norms)
        self._visit: _Visit | None = None

    def afresh(self) -> Rows:
        """Return an object with the same rows, without the state of any run."""
        again = copy.copy(self)
        again._bounds, again._visit = OwnBounds(self._party, again._record_norms), None
        return again

    def facts(self) -> RowFacts:
        """Return the numbers of records and coordinates of these rows."""
        held_out = 0 if self.held_out is None else self.held_out.n_records
        return RowFacts(self.columns.n_records, held_out, self._coordinates.n_coordinates)

    @property
    def y(self) -> Vector | None:
        """Labels of these records, (n,) float64; None at a party without labels. Only `Margins` may receive them."""
        return None if self._labels is None else self._labels.astype(np.float64, copy=False)

    def labels(self) -> Vector:
        """Return y of these records, then their exposures and weights, (n + kn,). Only `Margins` may receive the result."""
        y = self.y
        if y is None:
            raise PrivacyError(f"party {self._party!r} holds no label")
        return y.ravel()

    @np.errstate(all="ignore")  # an overflow warning would reveal one record's cell, here and below
    def sums(self, query: Query, records: Records) -> list[Sums]:
        """Return the exact sums over these rows, one per release of a query.

        All releases of the query use the same weights r.
        """
        self.place(query.knots, fixes=not (isinstance(query, Ranges) and query.of_curves))
        match query:
            case Descend():
                r = _required(records.weights)
                bounds = None if query.capped is None else self._bounds.of(query.capped, None, r, WEIGHTS)
                return [
                    self._sum(step.block, step.centre, step.scale, step.clip, r, bounds)
                    for step in query.steps[self._party]
                ]
            case Gram():
                return [self._products(query, _required(records.weights))]
            case Backward(blocks=(block,), centres=(centre,), scales=(scale,)):
                r = self._weights(query, records)
                bounds = None if query.capped is None else self._bounds.of(query.capped, None, r, WEIGHTS)
                return [self._sum(block, centre, scale, query.clip, r, bounds)]
            case Moments():
                return [self._moments(query)]
            case Counts(columns={self._party: own}, most={self._party: most}):
                return [self._counts(own, most, _required(records.weights))]
            case Ranges(of_curves=True):
                own = query.columns[self._party]
                return [np.concatenate([self._dense(self.columns).curves.histogram(k, query.cells) for k in own])]
            case Ranges():
                counts = [magnitudes.histogram(self.columns.column(j)) for j in query.columns[self._party]]
                return [np.concatenate(counts)]
            case Select(coordinates={self._party: (block, _)}):
                return [self._singles(query, block, _required(records.weights))]
            case Tally():
                return [query.statistic(np.zeros(self.columns.n_records), self.labels())]
        raise self._unknown(query)

    @np.errstate(all="ignore")
    def vector(self, query: Query, records: Records, deltas: Sequence[Vector] = ()) -> Vector:
        """Return the per-record vector that a query asks for, (n,). Only `Margins` may receive it.

        deltas : Δ of each step of a `Descend` query, once its releases are known.
        """
        self.place(query.knots)
        match query:
            case Descend():
                v = self._zeros() if not query.sweep else np.array(self._entered(query, records), np.float64)
                for step, delta in zip(query.steps[self._party], deltas, strict=True):
                    self._kernels.forward(self._block(step.block), delta, v, step.shift(delta), threads=self._threads)
                if not query.sweep:
                    return v
                v -= self._entered(query, records)
                return v.astype(_required(records.margins).dtype, copy=False)
            case Forward(side=Side.HELD_OUT, coordinates={self._party: (block, w)}):
                rows = self._apart_block(block)
                zeros = np.zeros(self._apart().n_records * self._n_margins)
                return self._moved(rows, w, zeros, 0.0)
            case Forward(coordinates={self._party: (block, w)}):
                return self._moved(self._block(block), w, self._zeros(), query.shifts.get(self._party, 0.0))
            case Columns(rows={self._party: row}):
                columns = np.empty((row[0].size, self.columns.n_records))
                for j in range(row[0].size):
                    columns[j] = self._column(row, j)
                return columns.ravel()
            case RecordNorms(side=Side.HELD_OUT, rows={self._party: row}):
                return self._norms(self._apart_block(row[0]), row)
            case RecordNorms(rows={self._party: row}):
                return self._record_norms(row)
            case Groups(columns={self._party: own}):
                return self._codes(own)
        raise self._unknown(query)

    @np.errstate(all="ignore")
    def enter(self, query: Descend, records: Records) -> Sums:
        """Begin a visit (steps one after another), and return the sum of the first step.

        For squared loss under a record cap, the visit keeps residuals instead of margins, so that no step reads the labels.
        """
        self.place(query.knots)
        entered, given = self._entered(query, records), _required(records.labels)
        y, weights = apart(given, self.columns.n_records)
        steps = query.steps[self._party]
        # The kernels of K classes cap residuals before they weigh them; a clip per block needs weighed residuals.
        if query.weighting.kernel == "multinomial" and (query.capped or not any(step.clip.finite for step in steps)):
            y, weights = given, None
        bounds = None
        if query.capped is not None:
            code = WEIGHTS if weights is not None else WITH_LABELS.get(query.weighting.kernel, WEIGHTS)
            bounds = self._bounds.of(query.capped, _required(records.limits), given, code)
        nothing = self.columns.block(0, 0)
        v, kind = np.array(entered, np.float64), _required(records.margins).dtype
        self._visit = _Visit(query, steps, entered, v, y, weights, bounds, nothing, kind)
        return self.step(0, np.zeros(0), 0.0)

    @np.errstate(all="ignore")
    def step(self, number: int, delta: Vector, shift: Any) -> Sums:
        """Add X_S Δ + shift of the previous step to the margins and return this step's sum, in one pass over the records."""
        visit = self._visiting()
        step = visit.steps[number]
        X = self._block(step.block)
        sums = self._next_sum(visit, delta, shift, X, step)
        visit.pending = X
        return sums

    @np.errstate(all="ignore")
    def leave(self, delta: Vector, shift: Any, room: Room = no_room) -> Vector:
        """Add X_S Δ + shift of the last step, and return the change of the margins, (n,), for `Margins` only.

        The change has the type of the margins with which the visit began.

        room : function that returns memory, (size,), for a change in float64. If it returns None, the change is computed in
            place.
        """
        visit, self._visit = self._visiting(), None
        self._kernels.forward(visit.pending, delta, visit.v, shift, threads=self._threads)
        out = room(visit.v.size) if visit.kind == np.float64 else None
        change = np.subtract(visit.v, visit.entered, out=visit.v if out is None else out)
        return change.astype(visit.kind, copy=False)

    def place(self, knots: Knots | None, *, fixes: bool = True) -> None:
        """Compute the coordinates of curves from the released knots. Any query except a histogram fixes the knots.

        The knots must not change later, because caps of records rest on norms of these coordinates, which are kept.
        """
        own = (knots or {}).get(self._party)
        for columns in (self.columns, self.held_out):
            if columns is not None and (own or isinstance(columns, Dense)):
                dense = self._dense(columns)
                dense.curves.place(own or None, dense.array, fixes=fixes)

    def _dense(self, columns: Storage) -> Dense:
        if not isinstance(columns, Dense):
            raise PrivacyError(f"party {self._party!r} stores its columns as a sparse matrix, which has no curves")
        return columns

    def _visiting(self) -> _Visit:
        if self._visit is None:
            raise PrivacyError(f"party {self._party!r} was asked for a step outside of a visit")
        return self._visit

    def _entered(self, query: Descend, records: Records) -> Vector:
        """Return the margins. For squared loss under a record cap and without record weights, return residuals instead."""
        entered = _required(records.margins)
        if query.capped is None or query.weighting.kernel != "squared":
            return entered
        y, weights = apart(_required(records.labels), self.columns.n_records)
        return entered - y if weights is None else entered

    def _sum(self, block: Block, centre: Vector, scale: Vector, clip: Clip, r: Vector, bounds: Vector | None) -> Sums:
        """Return Σ_i clip(scale ∘ r_i (x_{i,S} − c)), in multiples of the clip's grid if there is a clip.

        bounds : largest |r_i| per record under a record cap, which replaces the clip of the single block; None without a record
            cap.
        """
        X = self._block(block)
        if clip.finite:
            at = self._geometry(centre, scale, clip)
            if bounds is not None:
                none = self.columns.block(0, 0)
                within: Integers = self._kernels.capped_step(
                    none, np.zeros(0), 0.0, r.copy(), WEIGHTS, X, at, bounds, threads=self._threads
                )
                return within
            sums: Integers = self._kernels.gradient(X, r, r, WEIGHTS, at, threads=self._threads)
            return sums
        plain: Vector = self._kernels.plain_gradient(X, r, r, WEIGHTS, Geometry(centre, scale), threads=self._threads)
        return plain

    def _counts(self, columns: tuple[int, ...], most: int, r: Vector) -> Integers:
        """Return the numbers of records per coordinate with r_i > 0, then with r_i < 0, (2s,); see `Counts` for the bound."""
        left, sums = np.full(self.columns.n_records, most), np.zeros((2, len(columns)), dtype=np.int64)
        for k, j in enumerate(columns):
            counted = (self.columns.column(j) > 0.5) & (left > 0)
            left -= counted
            sums[:, k] = np.count_nonzero(counted & (r > 0.0)), np.count_nonzero(counted & (r < 0.0))
        return sums.ravel()

    def _products(self, query: Gram, weights: Vector) -> Sums:
        """Return products of own columns: first with the received vectors, then with one another. One column is made at a time.

        The clip bounds a record's contribution to each column. The weights t bound its contributions to all columns together.
        """
        (block,), (centre,), (scale,), clip = query.blocks, query.centres, query.scales, query.clip
        if weights.size != query.width * self.columns.n_records:
            raise PrivacyError(
                f"party {self._party!r} needs {query.width} vectors of {self.columns.n_records} numbers for products of its "
                f"columns, and was sent {weights.size} numbers in total"
            )
        t, *held = weights.reshape(query.width, -1)[: 1 + len(query.rows_for(self._party))]
        sums = [self._sum(block, centre, OFF_DIAGONAL * scale, clip, r, None) for r in held]
        for j in range(block.size if query.own else 0):
            r = t * self._column((block, centre, scale), j)
            if clip.finite:
                r = np.where(np.isfinite(r), r, 0.0)  # t is 0 where the norm overflows
            later = replace(block, start=block.start + j)
            factors = np.where(np.arange(later.size) == 0, 1.0, OFF_DIAGONAL)
            sums.append(self._sum(later, centre[j:], factors * scale[j:], clip, r, None))
        return np.concatenate(sums)  # type: ignore[return-value]  # all are integers, or all are not

    def _column(self, row: tuple[Block, Vector, Vector], j: int) -> Vector:
        """Return column j of a block, centred and scaled: scale_j (x_j − c_j), (n,)."""
        block, centre, scale = row
        own, s = replace(block, start=block.start + j, stop=block.start + j + 1), float(scale[j])
        return self._moved(self._block(own), np.array([s]), self._zeros(), -float(centre[j]) * s)

    def _next_sum(self, visit: _Visit, delta: Vector, shift: Any, X: Any, step: Step) -> Sums:
        """Add (pending columns)·Δ and the shift to the margins, in place; return the clipped sum over X at the new margins.

        If records have weights, r is capped before it is weighed, as in `Margins.records`; the kernels of K classes do the
        same.
        """
        kernels, clip, weighting = self._kernels, step.clip, visit.query.weighting
        pending, v, y, bounds = visit.pending, visit.v, visit.y, visit.bounds
        code = None if visit.weights is not None else CODES.get(weighting.kernel)
        if bounds is not None and code == SQUARED:  # v holds the residuals
            code = WEIGHTS
        capped_here = code is not None and bounds is not None and clip.finite
        if not capped_here:  # the kernel of a capped pass moves the margins itself
            kernels.forward(pending, delta, v, shift, threads=self._threads)
            pending, delta, shift = self.columns.block(0, 0), delta[:0], 0.0
        if code is None:
            v, code = kernels.weigh(X, lambda margins, labels: weighting(margins, labels, {})[0], v, y), WEIGHTS
            if visit.weights is not None:
                v = weighed(v if bounds is None else capped(v, bounds, weighting.kernel), visit.weights)
        sums: Sums
        if not clip.finite:
            at = Geometry(step.centre, step.scale)
            sums = kernels.plain_gradient(X, v, y, code, at, threads=self._threads)
            return sums
        at = self._geometry(step.centre, step.scale, clip)
        if bounds is None:
            sums = kernels.gradient(X, v, y, code, at, threads=self._threads)
        else:
            sums = kernels.capped_step(pending, delta, shift, v, code, X, at, bounds, threads=self._threads)
        return sums

    def _geometry(self, centre: Vector, scale: Vector, clip: Clip) -> Geometry:
        """Return the geometry of a clipped sum, after checking that the sum over all n records stays an exact integer."""
        inverse_grid(clip.cap, clip.grid, self._n_trained)
        return Geometry(centre, scale, clip.cap, clip.grid)

    def _moments(self, query: Moments) -> Sums:
        """Return Σ x_ij/(2B_j) and Σ x_ij²/B_j² over the first columns.

        Without bounds B, return the exact Σ x_ij and Σ x_ij².
        """
        X, kernels = self.columns.block(0, query.widths[self._party]), self.columns.kernels
        means = query.asks_means(self._party)
        if query.reach is None:
            first, second = kernels.plain_moments(X)
            return np.concatenate([first, second]) if means else second
        reach = query.reach[self._party]
        parts = [kernels.first_moments(X, reach, UNIT_GRID, threads=self._threads)] if means else []
        parts.append(kernels.second_moments(X, reach**2, UNIT_GRID, threads=self._threads))
        return np.concatenate(parts)

    def _singles(self, query: Select, block: Block, r: Vector) -> Sums:
        """Return one sum per coordinate, (s,). Each coordinate is clipped on its own."""
        centre, scale, clip, X = query.centres[self._party], query.scales[self._party], query.clip, self._block(block)
        if clip.finite:
            sums: Integers = self._kernels.singles(
                X, r, r, WEIGHTS, self._geometry(centre, scale, clip), threads=self._threads
            )
            return sums
        plain: Vector = self._kernels.plain_gradient(X, r, r, WEIGHTS, Geometry(centre, scale), threads=self._threads)
        return plain

    def _moved(self, X: Any, w: Vector, v: Vector, shift: Any) -> Vector:
        moved: Vector = self._kernels.forward(X, w, v, shift, threads=self._threads)
        return moved

    def _record_norms(self, row: tuple[Block, Vector, Vector]) -> Vector:
        return self._norms(self._block(row[0]), row)

    def _norms(self, X: Any, row: tuple[Block, Vector, Vector]) -> Vector:
        norms: Vector = self._kernels.record_norms(X, *row[1:])
        return norms

    def _codes(self, columns: tuple[tuple[str, int], ...]) -> Vector:
        """Return Σ_k stride_k·code_k for each held-out record, (m,): one number for its groups in all columns k."""
        codes = np.zeros(self._apart().n_records)
        for column, stride in columns:
            if column not in self.groups:
                raise PrivacyError(
                    f"party {self._party!r} was asked for groups by {column!r}, which the job does not compare"
                )
            codes += stride * self.groups[column]
        return codes

    def _apart(self) -> Storage:
        if self.held_out is None:
            raise PrivacyError(f"party {self._party!r} has no held-out records")
        return self.held_out

    def _weights(self, query: Backward, records: Records) -> Vector:
        """Return r, set to 0 outside the query's batch. Disjoint batches then need no trust in the coordinator."""
        r = _required(records.weights)
        if query.batch is None:
            return r
        members = query.batch.members(self._n_trained)[self._first : self._first + len(r)]
        return np.where(members > 0.0, r, 0.0)

    def _block(self, block: Block) -> Any:
        return self._coordinates.block(block.start, block.stop)

    def _apart_block(self, block: Block) -> Any:
        apart: Any = self._apart() if self._n_margins == 1 else ClassColumns(self._apart(), self._n_margins)
        return apart.block(block.start, block.stop)

    def _zeros(self) -> Vector:
        return np.zeros(self.columns.n_records * self._n_margins)

    def _unknown(self, query: Query) -> PrivacyError:
        return PrivacyError(f"party {self._party!r} does not answer {type(query).__name__}")


def _compact(labels: Vector | Signs) -> Vector | Signs:
    """Return labels as int8 if all of them are ±1, else unchanged.

    This saves memory, since labels are kept for the whole run.
    """
    signs = all(bool(np.all(abs(labels[rows]) == 1.0)) for rows in pieces(len(labels)))
    return labels.astype(np.int8, copy=False) if signs else labels


def _required(vector: Vector | None) -> Vector:
    if vector is None:
        raise PrivacyError("a query arrived without the per-record vectors that it needs")
    return vector


class SubsampledRows:
    """Rows with the methods of `parties.rows.Rows`, divided among disjoint subsamples.

    Guarantee. A query uses only the rows of the subsample on which the query's releases are charged. The party computes the
    division itself, from its job and n, and refuses a query on any other records (parties.party).

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
        rows: Rows = self.parts[query.subsample]  # type: ignore[index]  # parties.party refuses every other number
        return rows
