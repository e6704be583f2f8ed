"""A party: its own columns, a noise source, and its owner's book if there is one. No model, no solver.

Every query carries the parameters that its answer needs. A restarted party therefore only reloads its data. The party answers
a closed set of queries, so its owner can read in this module everything that can be computed on its columns, and every
result that leaves without noise (`Reply.vector`, to margins only).
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.record_cap import OwnCap
from vfl.errors import PrivacyError
from vfl.holdout import Side
from vfl.kernels.dense import CODES, LOGISTIC, SQUARED, WEIGHTS
from vfl.kernels.geometry import Geometry
from vfl.messages import (
    Backward,
    Descend,
    Forward,
    Greeting,
    Groups,
    Moments,
    Ranges,
    RecordNorms,
    Reply,
    Select,
    Tally,
)
from vfl.privacy import magnitudes
from vfl.privacy.geometry import GRID_BITS, moments_sensitivity
from vfl.privacy.mechanisms import release
from vfl.privacy.selection import noisy_best
from vfl.privacy.sensitivity import check, check_score
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from parties.book import Costs, PartyBook
    from parties.holder import Holder
    from parties.storage.base import Storage
    from vfl.messages import Block, BookHeads, Notice, Query, Records, Step, Weighting
    from vfl.privacy.events import Gaussian, PoissonSubsampledGaussian, ReleaseKey
    from vfl.privacy.geometry import Clip
    from vfl.privacy.noise import NoiseSource
    from vfl.privacy.selection import NoisyScore
    from vfl.secure.legs import Leg
    from vfl.types import Integers, Vector

UNIT_GRID = 2.0**-GRID_BITS


class Party:
    """Answers queries over its (n, p_k) features, with the kernels of the kind of columns that they are stored as.

    columns : its features in canonical order, scaled, the intercept last if it owns it; of the records trained on.
    noise : where the noise of its releases comes from.
    labels : y of all records, at the label party.
    book : its owner's release log; None keeps none.
    unnoised : the kinds of query that the job lets it answer without noise (vfl.planning.unnoised). It refuses others,
        whatever the coordinator says.
    alignment : hash of its records' ids in their order, '' when it was not aligned.
    held_out : the same features of the records that are held out. Nothing is computed on them but X_k w_k and the norms of
        rows, for margins only: no noised sum of theirs is ever asked of a party.
    groups : {column: (m,) codes} of the held-out records' groups, where fairness is checked; for margins only.
    threads : number of threads of the kernels; it changes no result.
    holder : of a run on shares, in which this party answers no query about margins; None for trust='trusted'.
    """

    def __init__(
        self,
        name: str,
        columns: Storage,
        noise: NoiseSource,
        labels: Vector | None = None,
        book: PartyBook | None = None,
        unnoised: tuple[type[Query], ...] = (),
        *,
        alignment: str = "",
        held_out: Storage | None = None,
        groups: Mapping[str, Integers] | None = None,
        threads: int = 1,
        holder: Holder | None = None,
    ) -> None:
        self.name = name
        self._holder = holder
        self._columns = columns
        self._kernels = columns.kernels
        self._noise = noise
        self._labels = labels
        self._book = book
        self._unnoised = unnoised
        self._alignment = alignment
        self._held_out = held_out
        self._groups = groups or {}
        self._threads = threads
        self._cap = OwnCap(name, columns, self._record_norms, repeats=not noise.private)

    def afresh(self) -> Party:
        """Return a party over the same columns that has answered nothing, for another run on simulated records.

        It keeps no book, so a party with one raises PrivacyError.
        """
        if self._book is not None:
            raise PrivacyError(f"party {self.name!r} keeps a book, which counts every run: load it again")
        again = copy.copy(self)
        again._cap = OwnCap(self.name, self._columns, again._record_norms, repeats=not self._noise.private)
        return again

    def greet(self) -> Greeting:
        """Return version, number of records, book and alignment of this party, before training."""
        return Greeting(__version__, self.n_records, self._book is not None, self._alignment)

    def hear(self, notice: Notice) -> BookHeads:
        """Pass a notice of the coordinator to the owner's book; return the heads of the book."""
        if self._book is None:
            raise PrivacyError(f"party {self.name!r} keeps no book")
        return self._book.hear(notice, self.n_records)

    def costs(self) -> Costs | None:
        """Return the cost of the current run by the owner's book; None without a book."""
        return None if self._book is None else self._book.costs()

    def labels(self) -> Vector:
        """Return y, (n,). Only the margins actor may ask for it, and nobody in a run on shares."""
        if self._holder is not None:
            raise PrivacyError(f"party {self.name!r} shows its labels to nobody: its job runs under trust='secure'")
        if self._labels is None:
            raise PrivacyError(f"party {self.name!r} holds no label")
        return self._labels

    def leg(self, leg: Leg, parcels: Sequence[bytes]) -> tuple[object, list[bytes]]:
        """Return the reply to a leg of a run on shares, and the parcels that the party sends with it."""
        if self._holder is None:
            raise PrivacyError(f"party {self.name!r} was sent a leg, and its job shares nothing")
        return self._holder.leg(leg, parcels)

    @np.errstate(all="ignore")  # an overflow warning would reveal one record's cell
    def answer(self, query: Query, records: Records, key: ReleaseKey) -> Reply:
        """Return the reply to this party's share of a query.

        Noise is drawn from the event that the query carries, which the coordinator has charged, in a stream of its own
        for every release: `key` with the release's number as its part. Where the owner keeps a book, all releases are
        in it before that.
        """
        start = time.perf_counter()
        if None in query.events() and not isinstance(query, self._unnoised):
            raise PrivacyError(
                f"party {self.name!r} was asked to release without noise ({type(query).__name__}), which the job does not "
                "declare"
            )
        if self._holder is not None and not isinstance(query, Moments | Ranges | Tally):
            raise PrivacyError(
                f"party {self.name!r} was asked for {type(query).__name__}, which works on margins: its job runs under "
                "trust='secure'"
            )
        check(query)
        if isinstance(query, Select) and self.name in query.coordinates:
            check_score(query, query.coordinates[self.name][1], self._columns.n_records, self.name)
        if isinstance(query, Descend | Backward) and query.capped is not None:
            self._cap.admit(query, query.capped)
        if self._book is not None:
            self._book.record(query, key)
        match query:
            case Descend() if query.sweep:
                reply = self._visit(query, records, key)
            case Descend():
                reply = self._together(query, records, key)
            case Backward(blocks=(block,), centres=(centre,), scales=(scale,)):
                r = self._weights(query, records)
                bounds = None if query.capped is None else self._cap.bounds(query.capped, None, r, WEIGHTS)
                sums = self._sum(block, centre, scale, query.clip, r, bounds)
                Δ = query.clip.sensitivity_of(query, block.size)
                reply = Reply((self._release(sums, query.clip, query.event, replace(key, part=query.part), Δ),))
            case Forward(side=Side.HELD_OUT, coordinates={self.name: (block, w)}):
                rows = self._apart().block(block.start, block.stop)
                zeros = np.zeros(self._apart().n_records)
                reply = Reply(vector=self._kernels.forward(rows, w, zeros, threads=self._threads))
            case Forward(coordinates={self.name: (block, w)}):
                shift = query.shifts.get(self.name, 0.0)
                reply = Reply(
                    vector=self._kernels.forward(self._block(block), w, self._zeros(), shift, threads=self._threads)
                )
            case Moments():
                reply = Reply((self._moments(query, replace(key, part=query.part)),))
            case Ranges():
                reply = Reply((self._ranges(query, replace(key, part=query.part)),))
            case Select(coordinates={self.name: (block, w)}):
                best = self._select(query, block, w, _required(records.weights), replace(key, part=query.part))
                reply = Reply(selected=best.moved(block.coordinates.start))
            case RecordNorms(side=Side.HELD_OUT, rows={self.name: row}):
                reply = Reply(vector=self._norms(self._apart().block(row[0].start, row[0].stop), row))
            case RecordNorms(rows={self.name: row}):
                reply = Reply(vector=self._record_norms(row))
            case Groups(columns={self.name: own}):
                reply = Reply(vector=self._codes(own))
            case Tally(side=Side.TRAINING) if getattr(query.statistic, "labels_only", False):
                reply = Reply((self._tally(query, key),))
            case _:
                raise PrivacyError(f"party {self.name!r} does not answer {type(query).__name__}")
        return replace(reply, seconds=time.perf_counter() - start)

    def _visit(self, query: Descend, records: Records, key: ReleaseKey) -> Reply:
        """Take the steps one after another: release u, compute Δ = rule(w_S, u), add X_S Δ to the margins, repeat.

        One pass over the records adds X_S Δ and computes the next gradient. Under a record cap, residuals of squared loss
        take the place of the margins, so that no step reads the labels.
        """
        entered, y = _required(records.margins), _required(records.labels)
        if query.capped is not None and query.weighting.kernel == "squared":
            entered = entered - y
        v = entered.copy()
        w = query.start[self.name].copy()
        pending, delta, shift = self._columns.block(0, 0), np.zeros(0), 0.0
        bounds = None
        if query.capped is not None and query.replayed is None:
            code = LOGISTIC if query.weighting.kernel == "logistic" else WEIGHTS
            bounds = self._cap.bounds(query.capped, _required(records.limits), y, code)
        released = []
        for k, step in enumerate(query.steps[self.name]):
            X = self._block(step.block)
            if query.replayed is not None:
                self._kernels.forward(pending, delta, v, shift, threads=self._threads)
                released.append(query.replayed[k])
            else:
                sums = self._next_sum(pending, delta, shift, v, y, query.weighting, X, step, bounds)
                release_key = replace(key, part=query.parts.get(self.name, 0) + k)
                released.append(self._release(sums, step.clip, step.event, release_key, _of_step(query, step)))
            own = w[step.block.local]
            pending, delta = X, step.rule(own, released[-1])
            shift = -float(step.centre @ delta)
            own += delta
        self._kernels.forward(pending, delta, v, shift, threads=self._threads)
        v -= entered
        return Reply(tuple(released), v)

    def _together(self, query: Descend, records: Records, key: ReleaseKey) -> Reply:
        """Take all steps from the same weights r."""
        r = _required(records.weights)
        w = query.start[self.name].copy()
        moved = self._zeros()
        bounds = None
        if query.capped is not None and query.replayed is None:
            bounds = self._cap.bounds(query.capped, None, r, WEIGHTS)
        released = []
        for k, step in enumerate(query.steps[self.name]):
            if query.replayed is not None:
                released.append(query.replayed[k])
            else:
                sums = self._sum(step.block, step.centre, step.scale, step.clip, r, bounds)
                release_key = replace(key, part=query.parts.get(self.name, 0) + k)
                released.append(self._release(sums, step.clip, step.event, release_key, _of_step(query, step)))
            own = w[step.block.local]
            delta = step.rule(own, released[-1])
            own += delta
            self._kernels.forward(
                self._block(step.block), delta, moved, -float(step.centre @ delta), threads=self._threads
            )
        return Reply(tuple(released), moved)

    def _sum(
        self, block: Block, centre: Vector, scale: Vector, clip: Clip, r: Vector, bounds: Vector | None
    ) -> Integers | Vector:
        """Return Σ_i clip(scale ∘ r_i (x_{i,S} − c)), in multiples of the clip's grid where there is a clip.

        bounds : under a record cap, the most that each r_i may be; there the block is not clipped by itself.
        """
        X = self._block(block)
        if clip.finite:
            at = Geometry(centre, scale, clip.cap, clip.grid)
            if bounds is not None:
                none = self._columns.block(0, 0)
                capped: Integers = self._kernels.capped_step(
                    none, np.zeros(0), 0.0, r.copy(), WEIGHTS, X, at, bounds, threads=self._threads
                )
                return capped
            sums: Integers = self._kernels.gradient(X, r, r, WEIGHTS, at, threads=self._threads)
            return sums
        plain: Vector = self._kernels.plain_gradient(X, r, r, WEIGHTS, Geometry(centre, scale), threads=self._threads)
        return plain

    def _next_sum(
        self,
        pending: Any,
        delta: Vector,
        shift: float,
        v: Vector,
        y: Vector,
        weighting: Weighting,
        X: Any,
        step: Step,
        bounds: Vector | None,
    ) -> Integers | Vector:
        """Add pending·Δ + shift to the margins v in place, then return the clipped sum over X at the new margins."""
        kernels, clip = self._kernels, step.clip
        code = CODES.get(weighting.kernel)
        if bounds is not None and code == SQUARED:  # v holds the residuals
            code = WEIGHTS
        if code is None:
            kernels.forward(pending, delta, v, shift, threads=self._threads)
            pending, delta, shift = self._columns.block(0, 0), delta[:0], 0.0
            v, code = kernels.weigh(X, lambda margins, labels: weighting(margins, labels, {})[0], v, y), WEIGHTS
        if clip.finite:
            at = Geometry(step.centre, step.scale, clip.cap, clip.grid)
            if bounds is not None:
                capped: Integers = kernels.capped_step(
                    pending, delta, shift, v, code, X, at, bounds, threads=self._threads
                )
                return capped
            sums: Integers = kernels.step(pending, delta, shift, v, y, code, X, at, threads=self._threads)
            return sums
        at = Geometry(step.centre, step.scale)
        plain: Vector = kernels.plain_step(pending, delta, shift, v, y, code, X, at, threads=self._threads)
        return plain

    def _release(
        self,
        sums: Integers | Vector,
        clip: Clip,
        event: Gaussian | PoissonSubsampledGaussian | None,
        key: ReleaseKey,
        sensitivity: float,
    ) -> Vector:
        return self._noised(sums, clip.grid if clip.finite else 1.0, event, key, sensitivity)

    def _noised(
        self,
        sums: Integers | Vector,
        grid: float,
        event: Gaussian | PoissonSubsampledGaussian | None,
        key: ReleaseKey,
        sensitivity: float,
    ) -> Vector:
        """Return sums with the noise of their event; every sum that leaves the party passes through here."""
        return release(sums, grid, event, self._noise, key, sensitivity)

    def _moments(self, query: Moments, key: ReleaseKey) -> Vector:
        """Release Σ x_ij/(2B_j) and Σ x_ij²/B_j² over the first columns, or the exact Σ x_ij and Σ x_ij² without B."""
        X = self._columns.block(0, query.widths[self.name])
        if query.reach is None:
            first, second = self._kernels.plain_moments(X)
            sums = np.concatenate([first, second]) if query.asks_means(self.name) else second
            return self._noised(sums, 1.0, query.event, key, math.inf)
        reach, means = query.reach[self.name], query.asks_means(self.name)
        parts = [self._kernels.first_moments(X, reach, UNIT_GRID, threads=self._threads)] if means else []
        parts.append(self._kernels.second_moments(X, reach**2, UNIT_GRID, threads=self._threads))
        sensitivity = moments_sensitivity(len(reach), means=means)
        return self._noised(np.concatenate(parts), UNIT_GRID, query.event, key, sensitivity)

    def _ranges(self, query: Ranges, key: ReleaseKey) -> Vector:
        """Release histograms over powers of two of the asked columns."""
        indices = query.columns[self.name]
        counts = [magnitudes.histogram(self._columns.column(j)) for j in indices]
        sensitivity = magnitudes.sensitivity(len(indices))
        return self._noised(np.concatenate(counts), 1.0, query.event, key, sensitivity)

    def _select(self, query: Select, block: Block, w: Vector, r: Vector, key: ReleaseKey) -> NoisyScore:
        """Return the best of the noisy scores; the scores do not leave the party."""
        sensitivity = query.rules[self.name].sensitivity
        return noisy_best(self._scores(query, block, w, r), sensitivity, query.event, self._noise, key)

    def _scores(self, query: Select, block: Block, w: Vector, r: Vector) -> Vector:
        """Return the exact score of each coordinate, (s,)."""
        centre, scale, rule = query.centres[self.name], query.scales[self.name], query.rules[self.name]
        X, clip = self._block(block), query.clip
        if clip.finite:
            at = Geometry(centre, scale, clip.cap, clip.grid)
            u = self._kernels.singles(X, r, r, WEIGHTS, at, threads=self._threads) * clip.grid
        else:
            u = self._kernels.plain_gradient(X, r, r, WEIGHTS, Geometry(centre, scale), threads=self._threads)
        return rule(w, u)

    def _record_norms(self, row: tuple[Block, Vector, Vector]) -> Vector:
        return self._norms(self._block(row[0]), row)

    def _norms(self, X: Any, row: tuple[Block, Vector, Vector]) -> Vector:
        norms: Vector = self._kernels.record_norms(X, *row[1:])
        return norms

    def _codes(self, columns: tuple[tuple[str, int], ...]) -> Vector:
        """Return Σ_k stride_k·code_k of the held-out records, (m,)."""
        codes = np.zeros(self._apart().n_records)
        for column, stride in columns:
            if column not in self._groups:
                raise PrivacyError(
                    f"party {self.name!r} was asked for groups by {column!r}, which the job does not compare"
                )
            codes += stride * self._groups[column]
        return codes

    def _tally(self, query: Tally, key: ReleaseKey) -> Vector:
        """Release a statistic of the labels alone, which this party holds."""
        if self._held_out is not None:
            raise PrivacyError(
                f"party {self.name!r} tallies labels of records that are all trained on, and some are held out"
            )
        if self._labels is None:
            raise PrivacyError(f"party {self.name!r} holds no label")
        statistic = query.statistic
        sums = statistic(np.zeros(self._columns.n_records), self._labels)
        return self._noised(sums, statistic.grid, query.event, key, statistic.sensitivity)

    def _apart(self) -> Storage:
        """Return the features of the held-out records."""
        if self._held_out is None:
            raise PrivacyError(f"party {self.name!r} holds no records out")
        return self._held_out

    def _weights(self, query: Backward, records: Records) -> Vector:
        """Return r, set to 0 outside the query's batch. Disjoint batches then need no trust in the coordinator."""
        r = _required(records.weights)
        if query.batch is None:
            return r
        return np.where(query.batch.members(len(r)) > 0.0, r, 0.0)

    def _block(self, block: Block) -> Any:
        return self._columns.block(block.start, block.stop)

    @property
    def n_coordinates(self) -> int:
        """Return p_k, with the intercept where the party owns it."""
        return self._columns.n_coordinates

    @property
    def n_trained(self) -> int:
        """Return the number of records that are trained on."""
        return self._columns.n_records

    @property
    def n_records(self) -> int:
        """Return the number of records, held-out ones included."""
        return self._columns.n_records + (self._held_out.n_records if self._held_out is not None else 0)

    def _zeros(self) -> Vector:
        return np.zeros(self._columns.n_records)


def _of_step(query: Descend, step: Step) -> float:
    """Return Δ of one step's release, from its cap and its block."""
    return step.clip.sensitivity_of(query, step.block.size)


def _required(vector: Vector | None) -> Vector:
    if vector is None:
        raise PrivacyError("a query came without the per-record vectors that it works on")
    return vector
