"""A party: its own columns, a source of noise, and the owner's release log (book), if any. It has no model and no solver.

Every query carries the parameters that the answer needs. A restarted party therefore only reloads its data. The party answers
a closed set of queries. Its owner can read in this module and in parties.rows everything that can be computed from the
columns, and every result that is sent without noise (`Reply.vector`, only to the coordinator's `Margins`).
"""

from __future__ import annotations

import copy
import functools
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.addressed import check_addressed
from parties.record_cap import OwnCap
from parties.rows import UNIT_GRID
from vfl.errors import DataError, PrivacyError
from vfl.holdout import Side
from vfl.messages import (
    Backward,
    Columns,
    Counts,
    Descend,
    Forward,
    Gram,
    Greeting,
    Groups,
    Moments,
    Ranges,
    RecordNorms,
    Records,
    Reply,
    Select,
    Tally,
)
from vfl.privacy import magnitudes
from vfl.privacy.geometry import moments_sensitivity
from vfl.privacy.mechanisms import release
from vfl.privacy.selection import noisy_best
from vfl.privacy.sensitivity import check, check_score
from vfl.secure.requests import Begin
from vfl.shards import Each, Here
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parties.book import Costs, PartyBook
    from parties.charges import Charges
    from parties.holder import Holder
    from parties.rows import RowFacts, Rows, Sums
    from vfl.holdout import Subsamples
    from vfl.messages import BookHeads, Notice, Query, Step
    from vfl.privacy.events import Gaussian, PoissonSubsampledGaussian, ReleaseKey
    from vfl.privacy.geometry import Clip
    from vfl.privacy.noise import NoiseSource
    from vfl.privacy.selection import NoisyScore
    from vfl.secure.requests import Parcel, Request
    from vfl.shards import Group
    from vfl.types import Integers, Vector


class Party:
    """Answers queries over a party's (n, p_k) features. Rows compute exact sums; noise is added once, to the total.

    This object holds no record itself. Its releases are the same to the bit for any number of shards.

    shards : objects with the methods of `Rows`, in this or other processes, each with some of the rows. facts : facts of each
        shard.
    noise : source of the noise of the party's releases.
    book : the owner's release log; None keeps no log. A run on secret shares is then counted in memory (parties.book.RunCount).
    unnoised : the kinds of query that the job lets the party answer without noise (vfl.job.flags.unnoised). The party refuses
        all other queries without noise, whatever the coordinator says.
    products : True if the job's plan releases products of columns. Otherwise the party refuses `Columns` and `Gram`.
    alignment : hash of the ids of the party's records in their order, '' without an alignment.
    holder : the party's role in a run on secret shares, in which the party answers no query about margins; None for
        trust='trusted'.
    subsamples : the disjoint subsamples of the job's plan; None if the job has none. Charges count the dearest subsample alone
        (vfl.holdout), so the party refuses every query on other records, whether or not it keeps a book.
    """

    def __init__(
        self,
        name: str,
        shards: Group,
        facts: Sequence[RowFacts],
        noise: NoiseSource,
        book: PartyBook | None = None,
        unnoised: tuple[type[Query], ...] = (),
        *,
        products: bool = False,
        alignment: str = "",
        holder: Holder | None = None,
        subsamples: Subsamples | None = None,
    ) -> None:
        self.name = name
        self._holder = holder
        self._shards = shards
        self._facts = tuple(facts)
        self._noise = noise
        self._book = book
        self._charges: Charges | None = book if holder is None else holder.charges
        self._unnoised, self._products = unnoised, products
        self._alignment = alignment
        self._numbers: Sequence[int | None] = (None,) if subsamples is None else range(subsamples.count)
        self._cap = OwnCap(name, self.n_coordinates, repeats=not noise.private)

    @property
    def rows(self) -> Rows:
        """Return the rows of a party whose rows are all in one shard of this process; DataError for other parties."""
        if not isinstance(self._shards, Here) or self._shards.size > 1:
            raise DataError(f"party {self.name!r} holds its rows in shards")
        rows: Rows = self._shards.members[0]
        return rows

    def afresh(self) -> Party:
        """Return a party over the same columns for another run on simulated records. It has answered no query yet.

        The new party keeps no release log. PrivacyError is raised if this party keeps one, on disk (book) or in memory.
        """
        if self._charges is not None:
            raise PrivacyError(f"party {self.name!r} counts the releases of every run: load it again")
        again = copy.copy(self)
        again._shards = Here([self.rows.afresh()])
        again._cap = OwnCap(self.name, self.n_coordinates, repeats=not self._noise.private)
        return again

    def greet(self) -> Greeting:
        """Return the facts about this party that other participants need before training."""
        return Greeting(__version__, self.n_records, self._book is not None, self._alignment)

    def hear(self, notice: Notice) -> BookHeads:
        """Report a phase of the run to the owner's release log (book), and return the log's answer."""
        if self._book is None:
            raise PrivacyError(f"party {self.name!r} keeps no book")
        return self._book.hear(notice, self.n_records)

    def costs(self) -> Costs | None:
        """Return the cost of the last run that the owner's release log (book) opened; None without a log."""
        return None if self._book is None else self._book.costs()

    def labels(self) -> Any:
        """Return the labels y, (n,); with several shards, one array per shard.

        Only the coordinator's `Margins` may ask for y; in a run on secret shares, nobody may.
        """
        if self._holder is not None:
            raise PrivacyError(f"party {self.name!r} shows its labels to nobody: its job runs under trust='secure'")
        return self._piece(self._shards.vectors("labels"))

    def takes(self, request: Request) -> int:
        """Return the number of sealed parcels that must come with a request of a run on secret shares."""
        return 0 if self._holder is None else self._holder.takes(request)

    def request(self, request: Request, parcels: Sequence[Parcel]) -> tuple[object, list[Parcel]]:
        """Return the reply to a request of a run on secret shares, and the sealed parcels that the party sends."""
        if self._holder is None:
            raise PrivacyError(
                f"party {self.name!r} was sent a request of training on shares, which its job does not use"
            )
        if isinstance(request, Begin):
            self._shards.ask("place", request.knots)
        return self._holder.request(request, parcels)

    @np.errstate(all="ignore")  # an overflow warning would reveal one record's cell
    def answer(self, query: Query, records: Records | Each, key: ReleaseKey) -> Reply:
        """Return this party's reply to a query.

        Noise is drawn for the query's event, which the coordinator has charged. Each release has its own noise stream: its key
        is `key` with the number of the release as its part. If the owner keeps a book, the book records all releases before any
        noise is drawn.

        records : per-record vectors of the query; `Each` with one entry per shard if the rows are in shards.
        """
        start = time.perf_counter()
        check_addressed(query, self.name, self.n_coordinates)
        if query.subsample not in self._numbers:
            raise PrivacyError(
                f"party {self.name!r} was sent a query on records that its job does not plan: a query names one of the job's "
                "subsamples if the job has subsamples, and only then"
            )
        if isinstance(query, Columns | Gram) and not self._products:
            raise PrivacyError(
                f"party {self.name!r} was asked for {type(query).__name__}, which shows columns before noise: the plan of its "
                "job has no products of columns"
            )
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
        if isinstance(query, Select):
            check_score(query, query.coordinates[self.name][1], self.n_trained, self.name)
        if isinstance(query, Descend | Backward) and query.capped is not None:
            self._cap.admit(query, query.capped)
        if self._charges is not None:
            self._charges.record(query, key)
        if isinstance(records, Records):
            records = Each([records] * self._shards.size)
        match query:
            case Descend() if query.replayed is not None:
                reply = Reply(query.replayed, self._vector(query, records, self._deltas(query, query.replayed)))
            case Descend() if query.sweep:
                reply = self._visit(query, records, key)
            case Descend():
                reply = self._together(query, records, key)
            case Backward(blocks=(block,)):
                (sums,) = self._sums(query, records)
                Δ = query.clip.sensitivity_of(query, block.size)
                reply = Reply((self._release(sums, query.clip, query.event, replace(key, part=query.part), Δ),))
            case Moments():
                reply = Reply((self._moments(query, replace(key, part=query.part)),))
            case Counts():
                (counts,) = self._sums(query, records)
                Δ = magnitudes.sensitivity(query.most[self.name])
                reply = Reply((self._noised(counts, 1.0, query.event, replace(key, part=query.part), Δ),))
            case Ranges():
                reply = Reply((self._ranges(query, replace(key, part=query.part)),))
            case Select(coordinates={self.name: (block, w)}):
                (sums,) = self._sums(query, records)
                best = self._select(query, w, sums, replace(key, part=query.part))
                reply = Reply(selected=best.moved(block.coordinates.start))
            case Forward() | RecordNorms() | Columns() | Groups():
                reply = Reply(vector=self._vector(query, records))
            case Tally(side=Side.TRAINING) if self._holder is not None and getattr(
                query.statistic, "labels_only", False
            ):
                reply = Reply((self._tally(query, key),))
            case _:
                raise PrivacyError(f"party {self.name!r} does not answer {type(query).__name__}")
        return replace(reply, seconds=time.perf_counter() - start)

    def _visit(self, query: Descend, records: Each, key: ReleaseKey) -> Reply:
        """Take the steps one after another: release u, compute Δ = rule(w_S, u), add X_S Δ to the margins, repeat.

        A single pass over the records adds X_S Δ and computes the gradient of the next step.
        """
        w = query.start[self.name].copy()
        released: list[Vector] = []
        delta: Vector = np.zeros(0)
        shift: Any = 0.0
        for k, step in enumerate(query.steps[self.name]):
            sums = self._total("step", k, delta, shift) if k else self._total("enter", query, records)
            release_key = replace(key, part=query.parts.get(self.name, 0) + k)
            released.append(self._release(sums, step.clip, step.event, release_key, _of_step(query, step)))
            delta = step.moved(w, released[-1], query.push.get(self.name))
            shift = step.shift(delta)
            w[step.block.local] += delta
        if not released:
            return Reply((), self._vector(query, records))
        return Reply(tuple(released), self._piece(self._shards.vectors("leave", delta, shift)))

    def _together(self, query: Descend, records: Each, key: ReleaseKey) -> Reply:
        """Take all steps of a query whose gradients use one and the same vector of weights r."""
        released = []
        for k, (step, sums) in enumerate(zip(query.steps[self.name], self._sums(query, records), strict=True)):
            release_key = replace(key, part=query.parts.get(self.name, 0) + k)
            released.append(self._release(sums, step.clip, step.event, release_key, _of_step(query, step)))
        return Reply(tuple(released), self._vector(query, records, self._deltas(query, released)))

    def _deltas(self, query: Descend, released: Sequence[Vector]) -> tuple[Vector, ...]:
        w, deltas = query.start[self.name].copy(), []
        for step, u in zip(query.steps[self.name], released, strict=True):
            deltas.append(step.moved(w, u, query.push.get(self.name)))
            w[step.block.local] += deltas[-1]
        return tuple(deltas)

    def _sums(self, query: Query, records: Each) -> list[Sums]:
        """Return the sum over all rows for each release of a query, in the order of the releases."""
        return [_added(sums) for sums in zip(*self._shards.ask("sums", query, records), strict=True)]

    def _total(self, method: str, *arguments: Any) -> Sums:
        return _added(self._shards.ask(method, *arguments))

    def _vector(self, query: Query, records: Each, deltas: tuple[Vector, ...] = ()) -> Any:
        """Return the per-record vector of a query. Only the coordinator's `Margins` may receive it."""
        return self._piece(self._shards.vectors("vector", query, records, deltas))

    def _piece(self, pieces: Each) -> Any:
        """Return a per-record vector: of a single shard as it is, of several shards as one array per shard."""
        return pieces[0] if self._shards.size == 1 else pieces

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
        """Return sums with the noise of their event. Every sum that the party sends passes through this method."""
        return release(sums, grid, event, self._noise, key, sensitivity)

    def _moments(self, query: Moments, key: ReleaseKey) -> Vector:
        """Release Σ x_ij/(2B_j) and Σ x_ij²/B_j² for the first columns.

        Without bounds B, release the exact Σ x_ij and Σ x_ij².
        """
        (sums,) = self._sums(query, self._nothing())
        if query.reach is None:
            return self._noised(sums, 1.0, query.event, key, math.inf)
        sensitivity = moments_sensitivity(len(query.reach[self.name]), means=query.asks_means(self.name))
        return self._noised(sums, UNIT_GRID, query.event, key, sensitivity)

    def _ranges(self, query: Ranges, key: ReleaseKey) -> Vector:
        (counts,) = self._sums(query, self._nothing())
        sensitivity = magnitudes.sensitivity(len(query.columns[self.name]))
        return self._noised(counts, 1.0, query.event, key, sensitivity)

    def _select(self, query: Select, w: Vector, sums: Sums, key: ReleaseKey) -> NoisyScore:
        """Return the best of the noisy scores. No other score is sent."""
        sensitivity = query.rules[self.name].sensitivity
        return noisy_best(self._scores(query, w, sums), sensitivity, query.event, self._noise, key)

    def _scores(self, query: Select, w: Vector, sums: Sums) -> Vector:
        """Return the exact score of each coordinate, (s,)."""
        grid = query.clip.grid if query.clip.finite else 1.0
        return query.rules[self.name](w, np.asarray(sums * grid, dtype=np.float64))

    def _tally(self, query: Tally, key: ReleaseKey) -> Vector:
        """Release, with noise, a statistic that is computed only from the labels of this party."""
        if self.n_records > self.n_trained:
            raise PrivacyError(
                f"some records are held out, and party {self.name!r} tallies its labels only in jobs without a hold-out"
            )
        (sums,) = self._sums(query, self._nothing())
        return self._noised(sums, query.statistic.grid, query.event, key, query.statistic.sensitivity)

    def _nothing(self) -> Each:
        return Each([Records()] * self._shards.size)

    @property
    def n_coordinates(self) -> int:
        """Return p_k, the number of the party's coordinates, including the intercept if this party has it."""
        return self._facts[0].n_coordinates

    @property
    def n_trained(self) -> int:
        """Return the number of records that are trained on."""
        return sum(facts.n_trained for facts in self._facts)

    @property
    def n_records(self) -> int:
        """Return the number of all records, including held-out records."""
        return self.n_trained + sum(facts.n_held_out for facts in self._facts)


def _added(sums: Sequence[Sums]) -> Sums:
    """Return the total of the shards' sums: exact for integers, else (without a clip) exact up to rounding."""
    return functools.reduce(np.add, sums)


def _of_step(query: Descend, step: Step) -> float:
    return step.clip.sensitivity_of(query, step.block.size)
