"""Runs of a job on simulated records with two shadows, which compute the exact sums that each of two data sets would release.

Each shadow has one of the two data sets. A shadow answers the queries of the run, with the executor and parties of a training
run, and receives the run's releases. So a shadow's sums are those of its data set *after the same history*, for any solver.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.charging.budget import Budget
from coordinator.charging.charger import Charger
from coordinator.executor import Executor
from coordinator.states.linear_predictors import LinearPredictors
from parties.alignment.reading import ChosenRows, open_for
from parties.loading import load, load_rows, over
from parties.party import Party
from parties.record_cap import OwnCap
from vfl.base.persons import Persons
from vfl.base.problem import Targets
from vfl.job.flags import exact_queries
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.network.shards import LocalGroup
from vfl.privacy.events import PoissonSubsampledGaussian, bare
from vfl.privacy.noise import CryptographicNoise
from vfl.privacy.selection import NoisyScore
from vfl.queries import Descend, Draw, Query, Sample, Select, Tally

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from vfl.base.types import Integers, Vector
    from vfl.job import Job
    from vfl.planning import Plan
    from vfl.privacy.events import Event, ReleaseKey
    from vfl.queries import Fold, Records, Reply, Step
    from vfl.queries.protocol import Released
    from vfl.queries.query import ReleaseTerms

BATCH = "batch"


@dataclass(frozen=True, eq=False)
class Release:
    """One release of a run, with the exact values on D0 and on D1 after the same earlier releases.

    name : kind and number of the query in the run that made the release. party : owner; '' for the coordinator and for joint
        releases.
    event : event whose noise was drawn; None without noise.
    value : (s,) the released vector. For a selection, (1,) the position of the winner among all scores.
    exact : (s,) sums, or all scores times ε/2Δ for a selection, on D0 and on D1.
    true : (s,) exact values on the data that the run used; for a sampled release, with the drawn batch.
    absent : (s,) sums without the canary, for a sampled release; None for any other release.
    grid : (s,) public grid; sums and noise are multiples of the grid. None if the grid is unknown.
    selection : True for a selection. paid : True if a charge of the run pays for the release.
    """

    name: str
    party: str
    event: Event | None
    value: Vector
    exact: tuple[Vector, Vector]
    true: Vector
    absent: Vector | None = None
    selection: bool = False
    paid: bool = True
    grid: Vector | None = None


@dataclass(frozen=True, eq=False)
class Transcript:
    """Outcome of one simulated run.

    releases : releases in order. batches : secret batches with their rates, in order; a batch is an (n,) vector of 0 and 1.
    folds : the distinct public batches.
    """

    releases: tuple[Release, ...]
    batches: tuple[tuple[Vector, float], ...] = ()
    folds: tuple[Fold, ...] = ()


@dataclass(frozen=True, eq=False)
class World:
    """One loaded simulated data set. parties : loaded parties, which every run copies (`Party.afresh`). n_records : n."""

    parties: Mapping[str, Party]
    labels: Vector
    held_out: np.ndarray | None
    n_records: int
    targets: Targets = Targets()  # noqa: RUF009 - frozen

    def margins(self) -> LinearPredictors:
        """Return the margins at w = 0."""
        return LinearPredictors(self.labels, self.held_out, targets=self.targets, n_records=self.n_records)


def world_of(job: Job, table: Mapping[str, Any], rows: Integers | None = None) -> World:
    """Load one simulated data set in the same way as a run does.

    rows : (n,) number of equal rows of each person at the label party; None if rows are records.
    """
    parties = {name: load(job.for_party(name), source) for name, source in sources_of(job, table).items()}
    label, n = job.partition.label_party, next(iter(parties.values())).n_records
    if job.row_rule is not None and rows is not None:
        persons = Persons.of(np.repeat(np.arange(n), rows), n, job.row_rule)
        order = persons.order
        source = sources_of(job, {name: [cells[i] for i in persons.person] for name, cells in table.items()})[label]
        task, chosen = job.for_party(label), ChosenRows(order, len(order), persons=persons.taken(order))
        loaded = load_rows(task, source, open_for(task, source, ids=False), None, chosen)
        parties[label] = over(task, LocalGroup([loaded]), [loaded.facts()], None)
    held_out = None if job.split is None else job.split.held_out(n)
    return World(parties, parties[label].labels(), held_out, n, job.targets)


class ShadowParty(Party):
    """Party that repeats given releases and records its own exact sums. Only audits on simulated records use a shadow party."""

    seen: list[tuple[Vector, float]]
    """Exact sums of each release, with their grid."""
    told: list[Vector]

    @classmethod
    def of(cls, party: Party) -> ShadowParty:
        """Return the shadow of a party, with the same columns."""
        made = party.afresh()
        made.__class__ = cls
        shadow: ShadowParty = made  # type: ignore[assignment]
        shadow._exact = (Query,)
        shadow._cap = OwnCap(shadow.name, shadow.n_coordinates, repeats=True)
        shadow.seen, shadow.told = [], []
        return shadow

    def release(self, sums: Any, terms: ReleaseTerms, key: ReleaseKey) -> Vector:
        """Record the exact sums, and return the next given release."""
        grid = terms.grid / self.units
        self.seen.append((np.asarray(sums * grid, dtype=np.float64), grid))
        return self.told.pop(0).copy()

    def best(self, scores: Vector, sensitivity: float, event: Any, key: ReleaseKey) -> NoisyScore:
        """Record the exact scores."""
        self.seen.append((scores, 0.0))
        return NoisyScore(0, 0)


class ShadowTransport:
    """Transport of queries to shadow parties, without copying vectors."""

    def __init__(self, parties: Mapping[str, ShadowParty]) -> None:
        self._parties = parties
        self.told: list[Vector] = []
        self.seen: list[tuple[str, Vector]] = []
        self.grids: list[float] = []

    def ask(self, shares: Mapping[str, Query], records: Records, key: ReleaseKey) -> dict[str, Reply]:
        """Ask each party for its share, in order. Each party first gets the releases that it has to repeat."""
        replies = {}
        for name, share in shares.items():
            party = self._parties[name]
            if not isinstance(share, Select):
                count = len(share.sizes())
                party.told, self.told = self.told[:count], self.told[count:]
            replies[name] = party.answer(share, records.of(name), key)
            self.seen += [(name, sums) for sums, _ in party.seen]
            self.grids += [grid for _, grid in party.seen]
            party.seen = []
        return replies


class Shadow:
    """Computes, for one data set, the exact sums that a run with given releases would have."""

    def __init__(self, world: World) -> None:
        self._transport = ShadowTransport({name: ShadowParty.of(party) for name, party in world.parties.items()})
        self.margins = world.margins()
        self._execute = Executor(self._transport, self.margins, Charger(None, exact=(Query,)))  # type: ignore[arg-type]

    def exact(self, query: Query, released: Released) -> list[tuple[str, Vector]]:
        """Return [(party, exact values)] for every release of a query. Then take the step that follows from `released`."""
        self._transport.seen, self._transport.told = [], [] if isinstance(query, Select) else list(released)
        self._transport.grids = []
        answered, _ = self._execute(without_noise(query))
        if query.shares():
            return self._transport.seen
        return [("", u) for u in answered]

    def grids(self, query: Query, sizes: Sequence[int]) -> list[Vector]:
        """Return the grids of the entries of the last releases in `exact`, which have these sizes; [] if they are unknown."""
        known = (
            self._transport.grids
            if query.shares()
            else [query.statistic.grid / self.margins.units]
            if isinstance(query, Tally)
            else []
        )
        return [np.full(size, grid) for size, grid in zip(sizes, known, strict=False)]

    def without(self, query: Query, released: Released, canaries: Integers) -> list[tuple[str, Vector]]:
        """Return what `exact` would return for a batch without the canaries, but take no step."""
        before, batch = self.margins.state(), self.margins.drawn(BATCH)
        if batch is not None:
            self.keep(BATCH, with_canaries(batch, canaries, 0.0))
        found = self.exact(query, released)
        self.margins.restore(before)
        return found

    def keep(self, name: str, vector: Vector) -> None:
        """Keep a vector under a name, as the run's coordinator does."""
        self.margins.absorb(name, [vector])


def with_canaries(batch: Vector, canaries: Integers, value: float) -> Vector:
    """Return the batch with all canaries included (value 1) or excluded (value 0)."""
    changed = batch.copy()
    changed[canaries] = value
    return changed


def without_noise(query: Query) -> Query:
    """Return the query without its events."""
    if isinstance(query, Descend):
        steps = {party: tuple(map(_step_without_noise, own)) for party, own in query.steps.items()}
        return replace(query, steps=steps, capped=query.capped and replace(query.capped, paid=None))
    if "event" in {known.name for known in fields(query)}:
        return replace(query, event=None)  # type: ignore[call-arg]
    return query


@lru_cache(maxsize=4096)
def _step_without_noise(step: Step) -> Step:
    """Return the step without its event. Caching works because steps compare by identity and a pass uses one step object."""
    return replace(step, event=None)


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """Test runs of a job on two simulated data sets.

    plan : plan of the job. worlds : D0 and D1. canaries : positions of the canaries among the training records; empty if the
        canaries are held out. name : description of the canary.
    """

    plan: Plan
    worlds: tuple[World, World]
    canaries: Integers
    name: str = ""

    def run(self, side: int) -> Transcript:
        """Run the job on D0 or D1 with fresh noise, together with both shadows."""
        execute, margins = self._executor(self.worlds[side])
        shadows = [Shadow(world) for world in self.worlds]
        truth = Shadow(self.worlds[side]) if self.sampled else shadows[side]
        releases: list[Release] = []
        batches: list[tuple[Vector, float]] = []
        folds: dict[Fold, None] = {}
        # A schedule sees only releases, so queries are equal on D0 and D1. A sealed solver releases its last model alone; its
        # schedule also sees exact answers.
        going, queries = self._begun()
        number = len(self._solved[side]) if self._solved else 0
        passes_charged = False
        while True:
            query = queries[side if self._solved else 0]
            released, charges = execute(query)
            capped = getattr(query, "capped", None) is not None
            passes_charged |= capped and bool(charges)
            # A charge pays for its query's releases, and may pay for later batches of the pass or the rest of a capped pass.
            paid = bool(charges) or (query.batch is not None and query.batch.number > 0) or (capped and passes_charged)
            if query.batch is not None:
                folds[query.batch] = None
            if isinstance(query, Draw) and not query.sizes():
                self._kept(query, margins, shadows, truth, batches)
            else:
                both = queries if self._solved else queries * 2
                found = self._releases(both, number, released, shadows, truth, side)
                releases += found if paid else [replace(release, paid=False) for release in found]
            try:
                queries = [schedule.send(released) for schedule in going]
            except StopIteration:
                return Transcript(tuple(releases), tuple(batches), tuple(folds))
            number += 1

    @cached_property
    def sampled(self) -> bool:
        """True if the plan draws secret samples of the records."""
        return any(isinstance(bare(event), PoissonSubsampledGaussian) for event, _ in self.plan.releases)

    @cached_property
    def _solved(self) -> list[list[Released]]:
        """Exact answers, on D0 and on D1, which a sealed solver uses before the first release; [] for other solvers."""
        if not self.plan.solver.sealed:
            return []
        return [self._unreleased(world) for world in self.worlds]

    def _unreleased(self, world: World) -> list[Released]:
        execute, _ = self._executor(world)
        schedule, answers = self.plan.schedule(), []
        query = next(schedule)
        while not any(query.events()):
            released, _ = execute(query)
            answers.append(released)
            query = schedule.send(released)
        return answers

    def _begun(self) -> tuple[list[Generator[Query, Released, Any]], list[Query]]:
        """Return the schedule and its first query; for a sealed solver, both for D0 and for D1, after exact answers."""
        going = [self.plan.schedule() for _ in self._solved or self.worlds[:1]]
        queries = [next(schedule) for schedule in going]
        for side, answers in enumerate(self._solved):
            for released in answers:
                queries[side] = going[side].send(released)
        return going, queries

    def _kept(
        self,
        query: Query,
        margins: LinearPredictors,
        shadows: Sequence[Shadow],
        truth: Shadow,
        batches: list[tuple[Vector, float]],
    ) -> None:
        """Pass the coordinator's own draws to the shadows, but not which canaries a drawn batch contains.

        The claim of a secret sample holds against an opponent who knows which *other* records were drawn (vfl.privacy.pld).
        The shadows, whose sums enter the likelihood, assume that the canaries were drawn.
        """
        vector = margins.drawn(query.target)
        if vector is None:
            return
        if truth not in shadows:
            truth.keep(query.target, vector)
        if isinstance(query, Sample):
            batches.append((vector, query.rate))
            vector = with_canaries(vector, self.canaries, 1.0)
        for shadow in shadows:
            shadow.keep(query.target, vector)

    def _releases(
        self,
        queries: Sequence[Query],
        number: int,
        released: Released,
        shadows: Sequence[Shadow],
        truth: Shadow,
        side: int,
    ) -> list[Release]:
        query = queries[side]
        events = query.events()
        absent: list[tuple[str, Vector]] | None = None
        if any(isinstance(event, PoissonSubsampledGaussian) for event in events):
            absent = shadows[0].without(query, released, self.canaries)
        on0, on1 = (shadow.exact(own, released) for shadow, own in zip(shadows, queries, strict=True))
        true = truth.exact(query, released) if truth not in shadows else (on0, on1)[side]
        grids = shadows[side].grids(query, [sums.size for _, sums in (on0, on1)[side]])
        kind = f"{type(query).__name__}, query {number}"
        if isinstance(query, Select):
            return [self._selection(query, kind, released, on0, on1, true)]
        each = isinstance(query, Descend)
        if each or len(released) <= 1:
            return [
                Release(
                    f"{kind}, release {part}" if each and len(released) > 1 else kind,
                    on0[part][0],
                    events[part],
                    u,
                    (on0[part][1], on1[part][1]),
                    true[part][1],
                    None if absent is None else absent[part][1],
                    grid=grids[part] if grids else None,
                )
                for part, u in enumerate(released)
            ]
        joined = [np.concatenate([sums for _, sums in found]) for found in (on0, on1, true)]
        without = None if absent is None else np.concatenate([sums for _, sums in absent])
        whole = np.concatenate(released)
        grid = np.concatenate(grids) if grids else None
        return [Release(kind, "", events[0], whole, (joined[0], joined[1]), joined[2], without, grid=grid)]

    def _selection(self, query: Select, kind: str, released: Released, *found: list[tuple[str, Vector]]) -> Release:
        """Return the release of a selection, with the scores of all parties times ε/2Δ."""
        winner, start, position = int(released[0][0]), 0, 0
        factors = {
            party: query.event.epsilon / (2.0 * query.rules[party].sensitivity) if query.event is not None else np.inf
            for party in query.coordinates
        }
        for block, _ in query.coordinates.values():
            if block.coordinates.start <= winner < block.coordinates.stop:
                position = start + winner - block.coordinates.start
            start += block.size
        on0, on1, true = (np.concatenate([scores * factors[party] for party, scores in one]) for one in found)
        return Release(kind, "", query.event, np.array([float(position)]), (on0, on1), true, selection=True)

    def _executor(self, world: World) -> tuple[Executor, LinearPredictors]:
        job, plan = self.plan.job, self.plan
        transport = InProcessTransport({name: party.afresh() for name, party in world.parties.items()})
        margins = world.margins()
        reservation = Budget(uuid.uuid4().hex).reserve(plan)
        noise = job.noise_source() if job.privacy is not None else CryptographicNoise()
        charger = Charger(reservation, noise=noise, exact=exact_queries(job), split=plan.split)
        return Executor(transport, margins, charger), margins
