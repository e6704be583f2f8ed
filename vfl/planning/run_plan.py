"""Plan of a run: everything that follows from public facts, decided before any data are read.

With trust='secure', the plan also states roles, bits, bias and traffic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from vfl.base import markup
from vfl.base.columns import categories_of
from vfl.base.holdout import Side, part_of
from vfl.base.persons import UNITS
from vfl.crypto import psi
from vfl.crypto.alignment import reveals
from vfl.crypto.identifiers import key_name
from vfl.crypto.psi import SIZE
from vfl.errors import PartyLost, PrivacyError, SpecificationError
from vfl.job.flags import flags_of
from vfl.job.start import total_of
from vfl.measures import distance as distances
from vfl.measures.classes import HeldOutClasses
from vfl.measures.distance import Distance
from vfl.measures.evaluations import ClassBalance, Diagnosis, HeldOut
from vfl.measures.fairness import GroupColumn, GroupFairness
from vfl.measures.on_shares import HeldOutOnShares, ScoreOnShares
from vfl.measures.score import Score
from vfl.planning.cost import HEAD, JOINING, PER_COORDINATE, RAY, Link, Machine, Sizes, Transfer, cost_of
from vfl.planning.forecast import forecast
from vfl.planning.public_problem import bounds_fairness, budgets_of, knots_of, problem_of
from vfl.privacy.accountants import choose_accountant
from vfl.privacy.calibration import split as split_mu
from vfl.privacy.events import Gaussian, OnPart, PoissonSubsampledGaussian, bare, on_part
from vfl.privacy.gaussian_dp import mu_of
from vfl.privacy.ledger.composition import exact_mu
from vfl.privacy.zcdp import rho_of
from vfl.queries.protocol import require_bearable
from vfl.secure.cost import gram, logistic, moments
from vfl.secure.homomorphic import MOST_REPLIES
from vfl.secure.measures import Measuring
from vfl.secure.ring import RESIDUAL_BITS, bits
from vfl.secure.roles import dealing
from vfl.secure.sharing import GramSharing, Sharing
from vfl.secure.sigmoid import SERIES, chosen, error, residual_bound
from vfl.solvers import on_shares
from vfl.solvers.on_shares import products_of, rows_of
from vfl.solvers.output_perturbation import bounding
from vfl.solvers.rules.recommend import recommendation
from vfl.solvers.rules.record_defaults import standing_still

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from vfl.base.holdout import Split, Subsample, Subsamples
    from vfl.base.losses import Loss
    from vfl.base.problem import Problem
    from vfl.base.types import Vector
    from vfl.job import Job
    from vfl.measures.estimates import Findings
    from vfl.measures.evaluations import ReleasedEvaluation
    from vfl.planning.forecast import Forecast
    from vfl.privacy.events import Event
    from vfl.queries import Query
    from vfl.queries.protocol import Released, Solver, Vectors
    from vfl.secure.ring import Bits
    from vfl.secure.roles import Roles, Secure
    from vfl.solvers.on_shares import Products
    from vfl.solvers.releases.knots import Knots, Placed

SLACK = 1.001
"""Safety factor on the sensitivity 2C of a sum that is clipped at C. The factor covers the rounding of values to a grid."""
TYPICAL_MARGIN = 8.0
"""Default of V, the largest absolute margin for which a plan bounds the bias and counts the traffic."""
LARGEST_BIAS = 0.5
"""Largest allowed ratio of bias to σ. Beyond this ratio, a run uses more Fourier terms."""


def sharing_of(
    job: Job, problem: Problem, solver: Solver, trained: Sequence[tuple[Event, int]]
) -> Sharing | GramSharing | None:
    """Return the public facts of a run on shares; None for other runs. Raises SpecificationError or PrivacyError.

    solver : the solver, with all options resolved. trained : the solver's releases.
    """
    if job.secure is None:
        return None
    secure, parties = job.secure, job.partition.parties
    roles = secure.roles(parties, job.partition.label_party)
    found = products_of(solver, problem, roles.label)
    products = None if found is None else _of_products(job.secure, roles, problem, found)
    if products is not None and products.label_scale is not None:
        if secure.margin is not None:
            raise SpecificationError(
                "secure: margin limits the sigmoid, which squared loss does not have: leave margin out"
            )
        return products
    places = range(len(SERIES)) if secure.margin is None else [chosen(secure.margin), chosen(secure.margin, fine=True)]
    residual = residual_bound(places)
    rows = rows_of(solver, problem)
    squares = rows.squares
    once = None if products is None else products.first.event  # its noise follows from the plan alone
    multipliers = [e.sigma / e.sensitivity for e, _ in trained if isinstance(e, Gaussian) and e != once]
    smallest = min(squares.values()) / math.fsum(squares.values())
    deviation = 2.0 * SLACK * max(multipliers) * residual / 2.0**RESIDUAL_BITS / math.sqrt(smallest)
    width = bits(problem.n_records, residual, deviation, len(parties), roles.ring)
    typical = [chosen(secure.margin or TYPICAL_MARGIN, fine=fine) for fine in (False, True)]
    biases = [_bias(problem, parties, place, rows.size, residual, width) / multipliers[-1] for place in typical]
    fine = biases[0] > LARGEST_BIAS
    widths = {q: len(names) for q, names in problem.layout.columns.items()}
    margins = [secure.margin] if secure.margin else sorted({series.margin for series in SERIES})
    used = dict.fromkeys(SERIES[chosen(margin, fine=fine)] for margin in margins)
    costs = {series.terms: logistic(roles, problem.n_records, widths, series.terms, rows.models) for series in used}
    if products is not None:
        costs = {terms: cost.then(products.cost) for terms, cost in costs.items()}
    return Sharing(
        secure,
        roles,
        width,
        residual,
        frozenset(places),
        squares,
        fine,
        biases[fine],
        min(multipliers),
        rows.models.count,
        costs,
        products,
    )


def _measuring(sharing: Sharing, evaluations: Sequence[ReleasedEvaluation]) -> Sharing:
    """Return the public facts of a run on shares with those of its measures of held-out records, if it has any."""
    asked = [own for own in evaluations if isinstance(own, HeldOutOnShares | ScoreOnShares)]
    if not asked:
        return sharing
    ((evaluation,), roles) = asked, sharing.roles
    opened, n = evaluation.opened, evaluation.n_records
    cost = moments(roles, n, len(opened), sum(statistic.dimension for statistic, _ in opened))
    found = Measuring(roles, n, opened)
    for number in range(len(opened)):
        found.bits(number)  # refuses what the ring cannot hold
    return replace(sharing, measuring=found, costs={K: own.then(cost, again=True) for K, own in sharing.costs.items()})


def _of_products(secure: Secure, roles: Roles, problem: Problem, products: Products) -> GramSharing:
    """Return the public facts of one release of all products of two columns."""
    from vfl.secure.gram import gram_bits, gram_caps  # loads compiled loops

    smallest, sigma = min(gram_caps(products.clip, products.squares).values()), products.event.sigma * products.unit
    found = gram_bits(problem.n_records, sigma / smallest**2, roles.ring)
    labelled = products.label_scale is not None
    widths = {q: len(names) + (labelled and q == roles.label) for q, names in problem.layout.columns.items()}
    if not roles.dealt and math.prod(widths.values()) >= MOST_REPLIES:
        raise SpecificationError(
            f"trust='secure' without a dealer opens fewer than {MOST_REPLIES:,} products of two parties' columns: use fewer "
            "columns, a dealer, or for SkGD joint=False"
        )
    return GramSharing(
        secure,
        roles,
        found,
        products.clip,
        products.squares,
        sigma,
        products.label_scale,
        products.label_centre,
        widths,
        gram(roles, problem.n_records, widths),
        products.first,
        products.unit,
    )


def _bias(problem: Problem, parties: Sequence[str], place: int, size: float, residual: int, found: Bits) -> float:
    """Return a bound on the bias of an opened sum for margins up to V, in units of 2C = σ/z.

    The bound is half of n·(error of a residual)·size + n·r_max·2^−(FX + 1). Here r_max is the largest residual, C the clip, z
    the noise multiplier and FX = `Bits.columns`. The second term is due to the rounding of rows.
    """
    series = SERIES[place]
    residuals = error(series, len(parties), series.margin) * size
    rows = residual / 2.0**RESIDUAL_BITS * 2.0 ** -(found.columns + 1)
    return problem.n_records * (residuals + rows) / 2.0


T = TypeVar("T")

MANY = 10**9
"""Number of records that is larger than in any job."""
THRESHOLDS = (
    "thresholds per group: predicting with them needs each record's group and treats equal records of two groups "
    "differently, which law may forbid; leave fairness.threshold_per_group out to measure only"
)


def _evaluation_mu(epsilon: float, delta: float, trained: tuple[tuple[Event, int], ...]) -> float:
    """Return the largest μ of a Gaussian release on the held-out records that fits under (ε, δ).

    trained : the solver's releases, which decide the accounting. Gaussian releases are composed exactly, mixed releases by ρ =
        μ²/2, and plans with secret samples by their privacy loss distribution, whose rounding costs less than a thousandth.
    """
    kinds = {type(event) for event, _ in trained}
    if PoissonSubsampledGaussian in kinds:
        return 0.999 * mu_of(epsilon, delta)
    if kinds <= {Gaussian}:
        return mu_of(epsilon, delta)
    return math.sqrt(2.0 * rho_of(epsilon, delta)) * (1.0 - 1e-12)


def evaluations_of(
    job: Job, problem: Problem, n_records: int, solver: Solver, trained: tuple[tuple[Event, int], ...]
) -> tuple[ReleasedEvaluation, ...]:
    """Return the evaluations (releases planned after training), in order. trained : releases of the resolved solver."""
    asked: list[ReleasedEvaluation] = []
    privacy, delta = job.privacy, problem.delta
    if job.evaluation is not None and job.evaluation.holdout is not None:
        mu = None
        if privacy is not None and delta is not None and not job.evaluation.public:
            mu = _evaluation_mu(job.evaluation.epsilon or privacy.epsilon, delta, trained)
        measured = n_records - problem.n_records
        score, whole, price = Score, HeldOut, 1.0
        if job.secure is not None:
            score, whole = ScoreOnShares, HeldOutOnShares
            price = job.secure.roles(job.partition.parties, job.partition.label_party).price
        if job.evaluation.score is not None and mu is not None:
            asked.append(score(problem, job.evaluation, measured, mu, price))
        elif job.multinomial:
            asked.append(HeldOutClasses(problem, job.evaluation, measured, mu))
        elif job.fairness is None:
            asked.append(whole(problem, job.evaluation, measured, mu, price=price))
        else:
            compared, mu = (None, None) if mu is None else split_mu(mu, job.fairness.share)
            asked.append(HeldOut(problem, job.evaluation, measured, mu))
            asked += _comparisons(job, problem, solver, measured, compared)
    if delta is not None and job.class_balance is not None:
        asked.append(ClassBalance(problem.n_records, budgets_of(job, problem).class_balance))
    if job.diagnostics:
        asked.append(Diagnosis(problem))
    return tuple(asked)


def _comparisons(
    job: Job, problem: Problem, solver: Solver, n_records: int, mu: float | None
) -> list[ReleasedEvaluation]:
    """Return the evaluations on fairness: the distance to the noise-free model for a bound, if possible; then the counts."""
    spec, partition, asked = job.fairness, job.partition, []
    if spec is None:
        return []
    if bounds_fairness(job, problem):
        public = getattr(solver, "radius", None)
        radius = None if public is None else public(problem, distances.OF_DISTANCE)
        asked.append(Distance(problem, budgets_of(job, problem).distance if problem.private else None, radius))
    columns = tuple(GroupColumn(c, partition.owner(c), categories_of(job.schema[c])) for c in spec.columns)
    why = distances.why_none(problem) if spec.bound else ""
    return [*asked, GroupFairness(problem, spec, columns, n_records, mu, why)]


WEAK = 50.0
"""ε above which a guarantee counts as weak. Usual values are at most 10 (Ponomareva et al. 2023, section 5.2.1)."""


def warnings_of(epsilon: float, delta: float, n_records: int) -> tuple[str, ...]:
    """Return warnings if ε is too large to protect, or δ too large for n (Dwork & Roth 2014, section 2.3)."""
    odds = (
        f"ε = {epsilon:.4g} protects next to nothing: one record may change the odds of an outcome by a factor of "
        f"e^{epsilon:.3g}; give ε of 10 or less"
    )
    weak = (odds,) if WEAK < epsilon < math.inf else ()
    if delta * n_records < 1.0:
        return weak
    warning = (
        f"δ = {delta:.3g} is not below 1/n = {1 / n_records:.3g}: so weak a guarantee lets one record, drawn at random, be "
        f"published; leave privacy.delta out for 1/n² = {1 / n_records**2:.3g}, or give less"
    )
    return (*weak, warning)


class ScheduleResult(NamedTuple):
    """Result of a plan's schedule: model w (p,), {evaluation: findings}, {column: knots}, and w of each subsample."""

    w: Vector
    findings: Mapping[str, Findings]
    knots: Mapping[str, tuple[float, ...]]
    fits: tuple[Vector, ...] = ()


def _noting(
    schedule: Generator[Query, Released, T], gone: set[str], placed: Placed | None, subsample: int | None = None
) -> Generator[Query, Released, T]:
    """Run a schedule with the knots and the subsample set in every query. Add the parties that are lost to `gone`."""
    try:
        query = next(schedule)
        while True:
            if placed is not None or subsample is not None:
                query = replace(query, knots=placed, subsample=subsample)
            try:
                released = yield query
            except PartyLost as lost:
                gone.add(lost.party)
                query = schedule.throw(lost)
            except Exception as error:  # noqa: BLE001 - the schedule decides
                query = schedule.throw(error)
            else:
                query = schedule.send(released)
    except StopIteration as end:
        outcome: T = end.value
        return outcome


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """Plan of a job, with every open option decided.

    problem : public problem of the training records. n_records : n, held-out records included.
    releases : all charges of the run, as (event, count); () without privacy.
    evaluations : releases planned after training, such as measures.
    split : name of the public split of the records; None without a hold-out.
    sharing : roles, bits and traffic of a run on shares; None for other runs.
    knots : first release of the run, which chooses knots of curves; None if all knots are declared.
    link : network link on which the time of messages is bounded; None leaves the bound out.
    subsamples : disjoint subsamples on which the run trains one model each, in turn; None for a run on all records at once.
    aligned : True if the records are aligned already.
    """

    job: Job
    problem: Problem
    solver: Solver
    releases: tuple[tuple[Event, int], ...]
    n_records: int
    evaluations: tuple[ReleasedEvaluation, ...] = ()
    split: str | None = None
    sharing: Sharing | GramSharing | None = None
    knots: Knots | None = None
    link: Link | None = None
    subsamples: Subsamples | None = None
    aligned: bool = False

    @property
    def division(self) -> Split | Subsample | None:
        """The public division of the records with which training begins; None if training uses all records."""
        return self.job.split if self.subsamples is None else self.subsamples[0]

    @property
    def has_products(self) -> bool:
        """True if the run releases products of columns; under trust='trusted', participants see columns for them."""
        return bool(self.solver.pieces(self.problem))

    @property
    def n_fits(self) -> int:
        """Number of models that the run trains, one after another: one per subsample, or 1 without subsamples."""
        return self.problem.subsamples

    def schedule(self) -> Generator[Query, Released, ScheduleResult]:
        """Choose the knots, train, then run the evaluations. With subsamples, w is the mean of the models."""
        if self.subsamples is not None:
            fits: list[Vector] = []
            for k in range(self.n_fits):
                w = yield from _noting(self.solver.schedule(self.problem), set(), None, k)
                fits.append(w)
            return ScheduleResult(np.mean(fits, axis=0), {}, {}, tuple(fits))
        gone: set[str] = set()
        placed = None if self.knots is None else (yield from self._place(self.knots, gone))
        w = yield from _noting(self.solver.schedule(self.problem), gone, placed)
        found: dict[str, Findings] = {}
        for evaluation in self.evaluations:
            found[evaluation.name] = yield from _noting(evaluation.schedule(w, found, frozenset(gone)), gone, placed)
        return ScheduleResult(w, found, {} if self.knots is None or placed is None else self.knots.by_column(placed))

    def _place(self, knots: Knots, gone: set[str]) -> Generator[Query, Released, Placed]:
        """Release the histograms and choose the knots from them. If a party is lost meanwhile, the run fits straight lines."""
        if not knots.bent:
            return knots.lines()
        try:
            released = yield knots.query()
        except PartyLost as lost:
            gone.add(lost.party)
            return knots.lines()
        return knots.placed(released)

    @property
    def n_before(self) -> int:
        """Number of queries before the solver's first query: 1 if the run releases histograms for knots, else 0."""
        return int(self.knots is not None and bool(self.knots.bent))

    @property
    def committed(self) -> bool:
        """True if the stated cost is valid only for exactly these releases, as in plans that sample records secretly."""
        return any(isinstance(bare(event), PoissonSubsampledGaussian) for event, _ in self.releases)

    @property
    def epsilon(self) -> float:
        """Joint ε of all planned releases at the plan's δ; inf without privacy."""
        if self.problem.delta is None:
            return math.inf
        accountant = choose_accountant(self.releases, committed=self.committed)
        return accountant.compose_all(self.releases).epsilon(self.problem.delta)

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of the certificate that follow from the plan: sentences on data-dependent values that are not charged."""
        return flags_of(self.job)

    @cached_property
    def messages(self) -> int:
        """Number of messages whose answers the coordinator awaits. Counting may iterate over all steps of the solver."""
        fits = self.n_fits * self.solver.messages(self.problem)
        return self.n_before + fits + sum(evaluation.queries for evaluation in self.evaluations)

    @property
    def n_bytes(self) -> int:
        """Bytes of per-record vectors sent between participants, or of the requests of a run on shares."""
        return self.sharing.n_bytes if self.sharing is not None else sum(self.traffic)

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes of per-record vectors that parties receive in queries, and bytes that they send, each summed over the parties.

        The single transfer of labels to the coordinator is not included. Without privacy, the sums assume the largest number
        of passes.
        """
        if self.sharing is not None:
            return self.sharing.n_bytes - self.sharing.n_bytes // 2, self.sharing.n_bytes // 2
        n, moved = self.problem.n_records * self.n_fits, self.vectors
        held_out = sum(own.side is Side.HELD_OUT for own in self.evaluations) * len(self.problem.layout.whole())
        saved = n * moved.in_steps * (8 - np.dtype(self.job.targets.kind).itemsize) * self.job.n_outputs
        received = self.job.n_outputs * moved.out + moved.limits + moved.labels * (1 + self.job.targets.weights)
        margins = n * moved.back + (self.n_records - n) * held_out
        each = 8 * self.entries
        sent = each * (self.job.n_outputs * margins + n * moved.norms)
        return round(each * n * received) - saved, round(sent) - saved

    @property
    def entries(self) -> float:
        """Mean number of entries per record in a vector: 1, and at most more if the label party's have most_rows."""
        rule, whole = self.job.row_rule, self.problem.layout.whole()
        if rule is None:
            return 1.0
        own = (
            max(whole[rule.party].size / self.problem.layout.n_coordinates, 1.0 / len(whole))
            if rule.party in whole
            else 0.0
        )
        return 1.0 + (rule.most_rows - 1) * own

    @cached_property
    def vectors(self) -> Vectors:
        """Number of per-record vectors sent in training. Counting may iterate over all steps of the solver."""
        return self.solver.vectors(self.problem)

    @property
    def transfers(self) -> dict[str, Transfer]:
        """Upper bounds on rounds and bytes per stage, 'training' and 'alignment' (vfl.planning.cost)."""
        return transfers(self)

    @property
    def alignment_seconds(self) -> float:
        """Expected time of the alignment on one core, if all parties have the same ids; 0.0 without alignment."""
        return psi.seconds([self.n_records] * len(self.job.ids), 1) if self.job.ids and not self.aligned else 0.0

    @property
    def seconds(self) -> float:
        """Rough estimate of the time of the rounds with Ray on one idle, typical machine, once all actors run.

        For a run on shares: an upper bound on the time in which all participants compute (vfl.secure.cost).
        """
        return cost_of(sizes_of(self), Machine(), RAY).seconds if self.sharing is None else self.sharing.seconds

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about questionable options, each with a remedy, from public facts alone."""
        fairness = self.job.fairness
        chosen = (THRESHOLDS,) if fairness is not None and fairness.threshold_per_group else ()
        if self.problem.delta is None or self.job.privacy is None:
            return chosen
        return (*warnings_of(self.job.privacy.epsilon, self.problem.delta, self.n_records), *chosen)

    def __str__(self) -> str:
        return text(title(self), outline(self))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html(title(self), outline(self))

    def forecast(
        self, *, positives: float | None = None, signal: float | tuple[float, float] | None = None
    ) -> Forecast:
        """Return the quality to expect of the run, from public facts and two guesses (`vfl.planning.forecast.forecast`)."""
        return forecast(self.job, self.n_records, positives=positives, signal=signal)

    def outline(self, expected: Forecast) -> str:
        """Return the plan as text, with a forecast from the caller's guesses (`forecast`)."""
        return text(title(self), outline(self, expected))

    def explain(self) -> str:
        """Return the whole plan as text: the objective as a formula, every release with its noise, and every choice."""
        return text(title(self), whole(self))


def plan(job: Job, n_records: int, *, link: str | None = None) -> Plan:
    """Decide every open option of a job from public facts. Raises SpecificationError if the job cannot run.

    n_records : n, the number of aligned records. link : rate and round trip of the participants' network connections, such as
        '100Mbit/20ms', to bound the time of messages and bytes.
    """
    over = None if link is None else Link.of(link)
    problem = problem_of(job, n_records)
    given = bounding(job.solver) if bounds_fairness(job, problem) else job.solver
    if job.row_rule is not None and given.several_steps:  # parties may not see linear predictors of rows
        given = given.changed(message="block", local_passes=given.local_passes or 1)  # type: ignore[attr-defined]
    solver = given.resolve(problem) if job.secure is None else on_shares.resolved(given, problem)
    trained = solver.releases(problem)
    evaluations = evaluations_of(job, problem, n_records, solver, trained)
    name = None if job.split is None else job.split.name
    knots = knots_of(job, problem)
    asked: list[tuple[tuple[Event, int], Side]] = []
    if knots is not None and knots.event is not None:
        asked.append(((knots.event, 1), Side.TRAINING))
    asked += [(release, Side.TRAINING) for release in trained]
    asked += [(release, evaluation.side) for evaluation in evaluations for release in evaluation.releases()]
    subsamples = job.subsamples(n_records)
    if subsamples is not None:
        name = subsamples.name
        parts = [(event, count, part_of(k)) for k in range(subsamples.count) for (event, count), _ in asked]
    else:
        parts = [(event, count, side.value) for (event, count), side in asked]
    releases = tuple((on_part(event, name, part), count) for event, count, part in parts)
    if job.row_rule is not None:
        for event in (bare(event) for event, _ in releases):
            if isinstance(event, Gaussian | PoissonSubsampledGaussian):
                require_bearable(2.0 * event.sigma / event.sensitivity * UNITS)  # the grid is finer by UNITS
    sharing = sharing_of(job, problem, solver, trained)
    if isinstance(sharing, Sharing):
        sharing = _measuring(sharing, evaluations)
    planned = Plan(job, problem, solver, releases, n_records, evaluations, name, sharing, knots, over, subsamples)
    if problem.besides and planned.epsilon > job.privacy.epsilon * (1.0 + 1e-9):  # type: ignore[union-attr]
        raise PrivacyError(
            f"the accounting of {solver.name} leaves no room for releases besides its own: declare knots, leave class_balance "
            "and the bound of fairness out, or use SkGD"
        )
    return planned


def check(job: Job) -> Plan:
    """Raise an error if `plan` refuses the job for every number of records. Use `check` before an alignment finds n.

    Return the plan of training, without evaluation, for the largest n that is not refused. Each n tried is half the one
    before, since intervals refuse small n for the noise and large n for a fixed L2 penalty.
    """
    for n_records in (MANY, *(125 << k for k in range(13, -1, -1))):
        try:
            return plan(job.on_all_records(), n_records)
        except (SpecificationError, PrivacyError) as error:
            refused = error
    raise refused


def cheapest(job: Job) -> Plan | None:
    """Return a plan for training alone that needs the least budget over all n; None if no such plan is known.

    As n grows, δ = 1/n² falls, and so does the budget that a plan needs. With secret samples the budget depends on n
    differently.
    """
    largest = check(job)
    sampled = any(isinstance(bare(event), PoissonSubsampledGaussian) for event, _ in largest.releases)
    return None if sampled or largest.n_records < MANY else largest


def sizes_of(plan: Plan) -> Sizes:
    """Return the sizes of a planned run. Without privacy, passes count up to their limit, which a run seldom reaches."""
    problem, solver = plan.problem, plan.solver
    layout = problem.layout
    widths = {party: block.stop - block.start for party, block in layout.whole().items()}
    counted = plan.releases
    if problem.private:
        updates = sum(count * getattr(bare(event), "dimension", 1) for event, count in counted)
    else:
        passes = solver.last_pass(problem) or getattr(solver, "passes", None) or 1
        updates = passes * layout.n_coordinates
    itemsize = int(np.dtype(plan.job.precision).itemsize)
    # A pass charged as one release still draws noise for each of its blocks.
    releases = max(sum(count for _, count in counted), updates if problem.private else 0)
    received, sent = plan.traffic
    pairs = plan.job.n_outputs * (plan.vectors.out + plan.vectors.back) / 2
    return Sizes(
        n_records=plan.n_records,
        widths=widths,
        updates=int(updates),
        releases=int(releases),
        exchanges=pairs if plan.sharing is None else plan.messages,
        itemsize=itemsize,
        entry=int(np.dtype(plan.job.targets.kind).itemsize),
        messages=plan.messages,
        received=received,
        sent=sent,
    )


def transfers(plan: Plan) -> dict[str, Transfer]:
    """Return the upper bounds of each stage: 'training', and 'alignment' for a job with ids.

    The bounds on alignment assume that no party holds ids beyond the n aligned ones.
    """
    rounds = plan.messages + JOINING
    targets, owner = plan.job.targets, plan.job.partition.label_party
    labels = 8 * plan.n_records * plan.n_fits * targets.count * targets.rows_at(owner)
    trusted = plan.n_bytes + labels + rounds * _message(plan, len(plan.job.partition.parties))
    found = {"training": Transfer(rounds, trusted) if plan.sharing is None else _secure_transfers(plan)}
    parties = len(plan.job.ids)
    if parties:
        # Each set of ids passes the coordinator on the way to every other party, and ends at the coordinator.
        sets, positions = SIZE * parties * (2 * parties - 1), 8 * parties
        messages = 8 * parties * parties
        found["alignment"] = Transfer(3 * parties + 6, plan.n_records * (sets + positions) + messages * HEAD)
    return found


def _secure_transfers(plan: Plan) -> Transfer:
    """Return the bounds of a run on shares, in which each encrypted message passes the coordinator's link twice.

    Each model takes four requests: terms and angles, rows, the check of the rows, and residuals. Opening sums also takes four
    requests: columns in two steps, contributions to the noise, and the dealer's words. All products of columns together take
    one opening.
    """
    parties, models = len(plan.job.partition.parties), getattr(plan.sharing, "versions", 0)
    models += 2 * (getattr(plan.sharing, "measuring", None) is not None)  # another session, and another model
    openings = plan.messages if models else 1 + plan.messages - plan.n_fits * plan.solver.messages(plan.problem)
    requests = (models + openings) * (2 + 2 * parties + parties * parties)
    rounds = JOINING + 4 * models + 4 * openings
    return Transfer(rounds, 2 * plan.n_bytes + _message(plan, requests + JOINING * parties))


def _message(plan: Plan, count: int) -> int:
    return count * HEAD + count * PER_COORDINATE * plan.problem.layout.n_coordinates


Lines = tuple[tuple[str, str], ...]
"""Lines (name, words). A line with an empty name continues the previous line."""


def text(title: str, lines: Lines) -> str:
    """Return a title and its lines as text."""
    return "\n".join((title, *(f"  {key:<10} {said}" for key, said in lines)))


def html(title: str, lines: Lines) -> str:
    """Return a title and its lines as HTML, for notebooks."""
    return markup.whole(markup.line(title, strong=True), markup.table((), lines))


def model_of(loss: Loss) -> str:
    """Return the name of the model that a loss fits."""
    return loss.words or f"{loss.name} loss"


def title(plan: Plan) -> str:
    """Return the plan's title: the model and its sizes."""
    parties = len(plan.job.partition.parties)
    n = plan.problem.n_records
    records = f"{n:,} records" if plan.split is None else f"{n:,} of {plan.n_records:,} records"
    if plan.subsamples is not None:
        records = f"{plan.n_fits} subsamples of {n:,} of {plan.n_records:,} records"
    features = plan.problem.layout.n_columns - int(plan.job.intercept)
    columns = f"{features:,} feature{'s' * (features != 1)} of {parties} part{'ies' if parties > 1 else 'y'}"
    return f"plan of job {plan.job.name!r}: {model_of(plan.problem.loss)}, {columns}, {records}"


def outline(plan: Plan, expected: Forecast | None = None) -> Lines:
    """Return the plan without formulas. expected : forecast from the caller's guesses; None uses the default guesses."""
    faint = (
        standing_still(plan.problem) if plan.solver.name in ("SkGD", "CD") else ""
    )  # the model learns almost nothing
    return (
        *_privacy(plan),
        ("penalty", _penalty(plan)),
        *(() if plan.knots is None else (("curves", plan.knots.explain()),)),
        ("training", _training(plan)),
        *_expected(plan, expected),
        *_asks(plan),
        *_flags(plan),
        *_trust(plan),
        *_sparse(plan),
        _cost(plan),
        *_remark(plan),
        *_link(plan),
        *_alignment(plan),
        *((("signal", faint),) if faint else ()),
        *_advice(plan),
        ("more", "every release, its noise and every choice: vfl plan JOB --explain (in Python: plan.explain())"),
    )


def whole(plan: Plan) -> Lines:
    """Return the plan with its formulas: the objective, every release and every choice."""
    lines = [("minimise", plan.problem.describe()), *_sparse(plan), *_privacy(plan)]
    if plan.job.privacy is not None:
        for event, count in plan.releases[: len(plan.releases) // plan.n_fits]:
            where = f", of the {event.part} records" if isinstance(event, OnPart) else ""
            where = where if plan.subsamples is None else f", on each of {plan.n_fits} subsamples"
            lines.append(("releases", f"{count} × {described(event)}{where}"))
        if plan.split is not None:
            lines.append(("", "ε is the largest cost of a part: no record is in two parts"))
        lines += _flags(plan)
    lines += [("curves", plan.knots.explain())] if plan.knots is not None else []
    lines += [("digest", f"{plan.job.digest}, by which owners approve the job")]
    lines += [*_trust(plan), _cost(plan), *_remark(plan), *_link(plan)]
    lines += [*_alignment(plan), *_asks(plan)]
    lines += [("choice", sentence) for sentence in plan.solver.explain(plan.problem)]
    if plan.problem.private and compared(plan):
        lines.append(("advice", str(recommendation(plan.problem))))
    return tuple(lines)


def described(event: Event) -> str:
    """Return an event in words: the mechanism and its numbers."""
    event = bare(event)
    numbers = {f.name: getattr(event, f.name) for f in fields(event) if f.name != "adjacency"}
    return f"{type(event).__name__} ({', '.join(f'{name} {value:.6g}' for name, value in numbers.items())})"


def _with_start(plan: Plan) -> str:
    """Return the cost of the run together with its start; '' if there is none, and if it is not known."""
    start, delta = plan.job.start, plan.problem.delta
    if start is None or delta is None:
        return ""
    total = total_of(start.stated(), plan.epsilon, delta, exact_mu(plan.releases))
    said = ": with its cost, ε = {epsilon:.4g} at δ = {delta:.3g} for records on which it was trained"
    return said.format(**total) if total else ""


def _privacy(plan: Plan) -> Lines:
    privacy = plan.job.privacy
    start = plan.job.start
    last = [] if start is None else [("start", f"from the released model {start.model[:12]}{_with_start(plan)}")]
    if privacy is None:
        return (("privacy", "NONE: the model is not differentially private"), *last)
    rule = plan.job.row_rule
    unit = "record" if rule is None else f"person with at most {rule.most_rows} rows"
    stated = f"ε = {plan.epsilon:.4g} at δ = {plan.problem.delta:.3g} for every {unit} (replace one)"
    lines = [("privacy", f"{stated}, of ε = {privacy.epsilon:g} allowed")]
    lines += [("warning", warning) for warning in plan.warnings]
    if privacy.noise is not None:
        lines.append(("", "NOT PRIVATE as run: seeded noise can be computed by anybody who has the seed"))
    return (*lines, *last)


def _penalty(plan: Plan) -> str:
    penalty = plan.problem.penalty
    options = ", ".join(f"{f.name.replace('_', ' ')} {getattr(penalty, f.name):g}" for f in fields(penalty))  # type: ignore[arg-type]
    name = type(penalty).__name__
    return "none" if name == "NoPenalty" else f"{name}, {options}"


def _training(plan: Plan) -> str:
    solver = plan.solver
    said = [solver.name]
    if passes := getattr(solver, "passes", None):
        said.append(f"{passes} passes over all columns")
    releases = sum(count for _, count in solver.releases(plan.problem)) if plan.job.privacy is not None else 0
    if releases:
        each = "" if plan.subsamples is None else f" on each of {plan.n_fits} subsamples, whose mean is the model"
        said.append(f"{releases:,} release{'s' * (releases > 1)} with noise{each}")
    return ", ".join(said)


def _expected(plan: Plan, expected: Forecast | None) -> Lines:
    found = forecast(plan.job, plan.n_records) if expected is None else expected
    first, *others = found.lines
    lines = [("expect", first), *(("", line) for line in others)]
    if found.guessed:
        options = " and ".join(f"--{guess}" for guess in found.guessed)
        lines.append(("", f"guessed: {' and '.join(found.guessed)}; give your own to vfl plan with {options}"))
    return tuple(lines)


def _flags(plan: Plan) -> Lines:
    return tuple(("flag", flag) for flag in plan.flags) if plan.job.privacy is not None else ()


def _asks(plan: Plan) -> Lines:
    return tuple(("asks", f"{evaluation.name}: {evaluation.explain()}") for evaluation in plan.evaluations)


def _sparse(plan: Plan) -> Lines:
    if not plan.job.partition.sparse:
        return ()
    named = ", ".join(plan.job.partition.sparse)
    return (("sparse", f"columns of {named}: scaled by a factor, neither shifted nor centred, so 0 stays 0"),)


def _trust(plan: Plan) -> Lines:
    """Return lines on the threat model of a run on shares, and on the run's cost, bits and bias."""
    sharing = plan.sharing
    if sharing is None:
        return ()
    roles, stated = sharing.roles, sharing.stated()
    many = f"up to {roles.collude} part{'ies' if roles.collude > 1 else 'y'} may pool what they saw"
    where = dealing(stated)
    bits, accuracy, shares, *traffic = sharing.described()
    return (
        (
            "trust",
            f"secure, if all are semi-honest: {many}; {where}; shares held by {', '.join(stated['holders'])}",
        ),
        ("", broken_by(roles)),
        (
            "",
            f"price: {sharing.price:.3g} times the noise charged to ε, drawn by all parties{' and the dealer' * roles.dealt}",
        ),
        ("bits", bits),
        ("accuracy", accuracy),
        ("shares", shares),
        *(("", said) for said in traffic),
    )


def broken_by(roles: Roles) -> str:
    """Describe who could learn more than the opened sums: coalitions, or without a dealer a party that deviates."""
    if roles.dealt:
        return f"broken by: the dealer with one party, or {roles.collude + 1} parties that pool what they saw"
    return f"broken by: {roles.key_owner} if it deviates, undetected, or a solution of the ring learning with errors problem"


def _cost(plan: Plan) -> tuple[str, str]:
    most = "at most " * (plan.sharing is not None)
    traffic = f"{plan.messages:,} messages, {most}{plan.n_bytes / 1e6:.3g} MB between participants"
    if plan.sharing is not None:
        return "cost", f"{traffic}, at most {plan.seconds:.2g} s of computing by all participants on idle machines"
    taken = f"about {plan.seconds:.2g} s of rounds on an idle machine"
    return "cost", f"{traffic}, {taken}, after processes have started and parties have loaded"


def _remark(plan: Plan) -> Lines:
    alone = plan.sharing is not None or plan.job.row_rule is not None  # the option is about joint steps
    said = "" if alone else plan.job.solver.remark(plan.problem, plan.solver)
    return (("", said),) if said else ()


def _link(plan: Plan) -> Lines:
    link = plan.link
    if link is None:
        return ()
    said = (
        f"{stage}: at most {found.rounds:,} rounds, {found.n_bytes / 1e6:.3g} MB, {found.seconds(link):.2g} s"
        for stage, found in plan.transfers.items()
    )
    return (("link", f"{link}: {'; '.join(said)}; computing takes its own time"),)


def _alignment(plan: Plan) -> Lines:
    job = plan.job
    if not job.ids and len(job.partition.parties) > 1:
        return (("rows", "row i of every party is taken for the same record, since the job names no id"),)
    if not job.ids:
        return ()
    named = {party: key_name(columns) for party, columns in job.ids.items()}
    same = len(set(named.values())) == 1
    columns = next(iter(named.values())) if same else ", ".join(f"{party}: {c}" for party, c in named.items())
    n = plan.n_records
    base = job.base(job.partition.parties)
    holding = "all have" if base is None else f"{base} has"
    cost = (
        f"about {plan.alignment_seconds:.2g} s on one core if no party holds more ids than the {n} that {holding}; "
        "other ids take time too"
    )
    cost = "as done by vfl align" if plan.aligned else cost
    shown = reveals(len(job.ids), job.join).items()
    return (("align", f"by {columns}, {cost}"), *(("shows", f"{who}: {said}") for who, said in shown))


def compared(plan: Plan) -> bool:
    """Return True if measurements on this loss compared the solvers."""
    return plan.problem.loss.power is None


def _advice(plan: Plan) -> Lines:
    """Return a sentence on the solver with the smallest expected error, if the job names another solver."""
    if plan.problem.private and not compared(plan) and plan.solver.name in ("GCD", "SCD"):
        why = "does not find the mean of counts and amounts with noise; predictions may be wrong by a factor of 10 or more"
        return (("advice", f"{plan.solver.name} {why}: solver = SkGD"),)
    # The comparison has solvers that cannot run on shares, or with several rows per person.
    unfit = plan.sharing is not None or plan.job.row_rule is not None
    if unfit or not compared(plan):
        return ()
    if not plan.problem.private or (first := recommendation(plan.problem).solver) == plan.solver.name:
        return ()
    return (("advice", f"{first} is expected to do better on this job: solver = {first}"),)
