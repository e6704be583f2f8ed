"""Audit of a configured job on simulated records: a lower bound on the job's ε, and checks of its noise."""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.apps.auditing.bounds import MOST_RUNS, Claim, log_ratio, moved, runs_for, shown
from vfl.apps.auditing.canaries import Canary, candidates, group_size, meeting, tables
from vfl.apps.auditing.rehearsal import Rehearsal, Transcript, world_of
from vfl.apps.auditing.residuals import Check, checks_of
from vfl.base.arguments import require_count, require_number, require_whole
from vfl.base.columns import Boolean, Categorical, Known, Numeric
from vfl.base.features import Curve
from vfl.base.holdout import Side
from vfl.crypto.identifiers import JOINS, Id
from vfl.errors import PrivacyError, SpecificationError
from vfl.planning import plan as make_plan
from vfl.privacy.events import OnPart, bare

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vfl.base.types import Integers
    from vfl.job import Job
    from vfl.planning import Plan

ENOUGH = 0.97
"""Share of the claimed μ that a canary must reach to end the search for a canary. A canary is a record that an audit tests."""
SEARCH_SECONDS = 30.0
"""Time in seconds after which the search takes the best canary so far."""
WEAK = 0.9
"""Share of the claimed μ below which an audit warns that the canary is weak."""
PROBES = 2
"""Number of runs on each of the two data sets that measure which share of the claimed μ the chosen canary attains."""


@dataclass(frozen=True)
class Attack:
    """Attack on training or held-out records: guesses of the data set that a run used, and the ε that these guesses prove.

    part : 'training' or 'held out'; 'all' without a hold-out.
    claim : ε that the charges promise to records of the part. claim_mu : μ of the claim; None for a claim that is not Gaussian.
    canary : description of the canaries, the records in which the two data sets differ. size : k, number of canaries.
    reach : share of the claimed μ that the two data sets attain, at most 1.
    runs, right : numbers of runs and of right guesses. level : probability that the guesses refute a correct claim.
    allowed : largest share of right guesses under the claim. shown : lower bound on the true share, at `level`.
    lower, lower_mu : lower bounds on the job's ε and μ, if the true share of right guesses is at least `shown`.
    needed : number of runs that would detect noise of σ/√2 instead of σ with probability 0.95; None if no number would.
    checks : checks of the noise in these runs.
    """

    part: str
    claim: float
    claim_mu: float | None
    canary: str
    size: int
    reach: float
    runs: int
    right: int
    level: float
    allowed: float
    shown: float
    lower: float
    lower_mu: float | None
    needed: int | None
    checks: tuple[Check, ...]

    @property
    def consistent(self) -> bool:
        """True if the guesses do not refute the claim."""
        return self.shown <= self.allowed

    @property
    def passed(self) -> bool:
        """True if neither the guesses nor any check refutes the claim."""
        return self.consistent and all(check.passed for check in self.checks)


@dataclass(frozen=True)
class Audit:
    """Outcome of an audit. An audit can detect errors but cannot prove that there are none.

    claim : the plan's ε at `delta`. attacks : on the training records, and on the held-out records if there are any.
    taken_off : settings that the audit left out, since they concern real records only. seconds : duration of the audit.
    """

    name: str
    n_records: int
    claim: float
    delta: float
    confidence: float
    attacks: tuple[Attack, ...]
    taken_off: tuple[str, ...] = ()
    simulated: bool = True
    seconds: float = field(default=0.0, compare=False)

    @property
    def lower(self) -> float:
        """Lower bound on the job's ε, at the stated confidence, from the best attack; 0 if no attack proves anything."""
        return max(attack.lower for attack in self.attacks)

    @property
    def reach(self) -> float:
        """Smallest share, over the attacks, of the claimed μ that the attack's canaries attain."""
        return min(attack.reach for attack in self.attacks)

    @property
    def checks(self) -> tuple[Check, ...]:
        """Checks of the noise in the runs of all attacks."""
        return tuple(check for attack in self.attacks for check in attack.checks)

    @property
    def passed(self) -> bool:
        """True if nothing refutes the claim. A correct job fails with probability at most 1 − confidence."""
        return all(attack.passed for attack in self.attacks)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Weaknesses of the audit, each with a remedy."""
        return tuple(said for attack in self.attacks for said in _warnings(attack))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        whole = {"job": self.name, "n_records": self.n_records, "passed": self.passed, "claim": self.claim}
        whole |= {"delta": self.delta, "lower": self.lower, "reach": self.reach, "confidence": self.confidence}
        whole |= {"warnings": list(self.warnings), "taken_off": list(self.taken_off), "seconds": self.seconds}
        whole["attacks"] = [
            asdict(attack) | {"passed": attack.passed, "consistent": attack.consistent} for attack in self.attacks
        ]
        return whole

    def __str__(self) -> str:
        kind = "simulated records" if self.simulated else "records declared public, with simulated canaries"
        lines = [
            f"audit of {self.name!r} on {self.n_records} {kind}: nothing is charged, no ledger and no policy is read"
        ]
        for attack in self.attacks:
            lines += [f"  {key:<10} {said}" for key, said in _lines(attack, self.delta)]
        lines += [f"  {'warning':<10} {said}" for said in self.warnings]
        if self.taken_off:
            lines.append(f"  {'left out':<10} {', '.join(self.taken_off)}: they concern real records only")
        verdict = "PASS: nothing refutes the claim" if self.passed else "FAIL: the job does not keep its claim"
        verdict += f" (confidence {self.confidence:g}). An audit finds errors; it does not prove their absence."
        return "\n".join((*lines, verdict))


def _lines(attack: Attack, delta: float) -> Iterator[tuple[str, str]]:
    part = "" if attack.part == "all" else f" of the {attack.part} records"
    mu = "" if attack.claim_mu is None else f"; μ = {attack.claim_mu:.3g}"
    together = "" if attack.claim_mu is None or attack.size == 1 else f", together {attack.size * attack.claim_mu:.3g}"
    yield "claim", f"ε = {attack.claim:.3g} at δ = {delta:.3g}{part}{mu}"
    canaries = "one canary" if attack.size == 1 else f"{attack.size} canaries{together}"
    yield "canary", f"{canaries}: {attack.canary}; reach {attack.reach:.2f}"
    verdict = "consistent" if attack.consistent else "FAIL"
    found = f"ε ≥ {attack.lower:.2g}"
    if attack.lower_mu is not None:
        found = f"μ ≥ {attack.lower_mu:.2g}, {found}"
    right = f"{attack.runs} runs, {attack.right} guesses right; the claim allows {attack.allowed * attack.runs:.0f} on average"
    yield "attack", f"{right}; {found} with confidence {1 - attack.level:g}: {verdict}"
    for check in attack.checks:
        yield check.name, check.said if check.passed else f"FAIL (p = {check.p:.1g}): {check.said}"


def _warnings(attack: Attack) -> Iterator[str]:
    part = "" if attack.part == "all" else f" ({attack.part} records)"
    if attack.reach < WEAK:
        yield (
            f"the canary reaches {attack.reach:.2f} of the claim{part}, so the guesses can miss an error; the checks of the "
            "noise do not depend on the canary"
        )
    if attack.needed is None:
        yield f"guesses with this canary cannot find noise of σ/√2 in any number of runs{part}"
    elif attack.needed > attack.runs:
        yield (
            f"guesses find noise of σ/√2 with probability 0.95 in {attack.needed:,} runs{part}, more than were made: "
            f"--runs {attack.needed}"
        )


def audit(
    job: Job,
    n_records: int = 100,
    *,
    runs: int | None = None,
    confidence: float = 0.95,
    public_data: Mapping[str, Any] | None = None,
) -> Audit:
    """Return a lower bound on the ε of a job, from runs on simulated records. Charges nothing and reads no private record.

    A coin chooses one of two data sets, D1 or D0, which differ in k records (canaries). The job runs on the chosen data set
    in this process, with the executor, the parties and the noise of a real run. The most powerful test between D1 and D0
    guesses the coin. If more guesses are right than the claimed ε allows, the claim is refuted. The audit also checks the
    residuals of all releases (vfl.apps.auditing.residuals). Training records and held-out records are audited separately.

    n_records : n of the simulated run, on which the job's default options depend.
    runs : number of runs per attack. None takes the number that detects noise of σ/√2 instead of σ with probability 0.95, at
        most 1,000.
    confidence : 1 − the probability that a correct job fails.
    public_data : {party: source} of records that are declared public, or one table of all columns, to use instead of simulated
        records. The canaries replace the first public records, and n is the number of public records.

    Raises PrivacyError or SpecificationError for a job that claims no ε or that an audit cannot simulate.
    """
    started = time.perf_counter()
    _require(job, confidence, runs)
    taken_off = tuple(name for name in ("dataset", "id") if getattr(job, name) is not None)
    # Presence in a left join is read like any column, so that canaries can be present or absent. Rows need the id's rule.
    columns = {c: Boolean(fill=False) if isinstance(own, Known) else own for c, own in job.columns.items()}
    kept = replace(job.id, join=JOINS[0]) if isinstance(job.id, Id) and job.row_rule is not None else None
    bare_job = replace(job, id=kept, dataset=None, columns=columns)
    public, n_records = _public(bare_job, public_data, n_records)
    plan = make_plan(bare_job, n_records)
    parts: Sequence[Side | None] = (None,) if bare_job.split is None else (Side.TRAINING, Side.HELD_OUT)
    level = (1.0 - confidence) / (2 * len(parts))
    coins = np.random.default_rng(secrets.randbits(128))
    attacks = [_attack(plan, side, public, runs, level, coins) for side in parts]
    return Audit(
        job.name,
        n_records,
        plan.epsilon,
        _delta(plan),
        confidence,
        tuple(attack for attack in attacks if attack is not None),
        taken_off,
        simulated=public is None,
        seconds=time.perf_counter() - started,
    )


def _require(job: Job, confidence: float, runs: int | None) -> None:
    if job.privacy is None:
        raise PrivacyError("the job has privacy=None: it claims nothing that an audit could refute")
    if job.secure is not None:
        raise SpecificationError(
            "an audit compares noised sums with exact ones, which trust='secure' shows to nobody: audit the same job with "
            "trust='trusted', whose releases have the same charges"
        )
    if job.subsampled:
        raise SpecificationError(
            "an audit follows one model, and intervals='subsamples' trains 8: audit the job without it, for n/8 records"
        )
    if job.multinomial:
        raise SpecificationError(
            "an audit simulates one linear predictor per record, and multinomial loss has one per class: audit the job with "
            "two classes and loss = 'logistic'"
        )
    if job.privacy.noise is not None:
        raise PrivacyError(
            "the job's noise is seeded: anyone who knows the seed can subtract it, so no audit is possible; leave noise out"
        )
    if job.privacy.smoothness == "data" or job.uncharged:
        said = job.uncharged or "the smoothness of the columns is released exact and uncharged (smoothness='data')"
        raise PrivacyError(f"the job is NOT PRIVATE as a whole, so there is no ε to audit: {said}")
    unbounded = job.schema.unbounded(job.partition.features)
    if unbounded:
        raise SpecificationError(
            f"column {unbounded[0]!r} has no bounds, so an audit cannot simulate its extreme values: declare bounds"
        )
    for column in job.partition.features:
        declared = job.schema[column]
        if not isinstance(declared, Numeric | Boolean | Categorical | Curve):
            raise SpecificationError(
                f"column {column!r} is made by its owner ({declared.kind}), and an audit cannot simulate it. Audit the job "
                "with a number in place of the column, with the range of the feature as its bounds"
            )
    require_number("confidence", confidence)
    if not 0.5 < confidence < 1.0:
        raise SpecificationError(f"confidence must lie between 0.5 and 1, not {confidence!r}")
    if runs is not None:
        require_count("runs", runs)


def _public(job: Job, data: Any, n_records: int) -> tuple[dict[str, Any] | None, int]:
    require_whole("n_records", n_records)
    if data is None:
        return None, n_records
    from parties.sources.opening import read_table
    from parties.storage.cells import contents_of
    from vfl.launch.sources import sources_of

    found: dict[str, Any] = {}
    for party, source in sources_of(job, data).items():
        task = job.for_party(party)
        table = read_table(source, contents_of(task.schema, task.columns, task.label, (), task.factors))
        local = job.partition.local
        found |= {column: table.column(local(column)).to_pylist() for column in job.partition.wanted(party)}
    sizes = {len(cells) for cells in found.values()}
    if len(sizes) != 1:
        raise SpecificationError("the parties' public data have different numbers of records")
    return found, sizes.pop()


def _attack(
    plan: Plan,
    side: Side | None,
    public: dict[str, Any] | None,
    runs: int | None,
    level: float,
    coins: np.random.Generator,
) -> Attack | None:
    """Audit the training or the held-out records; None if no charge covers them."""
    events = tuple(
        (bare(event), count)
        for event, count in plan.releases
        if not isinstance(event, OnPart) or side is None or event.part == side.value
    )
    if not events:
        return None
    claim = Claim(events, _delta(plan))
    chosen, size, reach = _canary(plan, side, claim, public)
    most = claim.accuracy(size)
    planned = runs_for(most, min(1.0, reach), level)
    number = runs or min(planned or MOST_RUNS, MOST_RUNS)
    made: list[Transcript] = []
    right = 0
    for _ in range(number):
        coin = int(coins.integers(2))
        transcript = chosen.run(coin)
        ratio = log_ratio(transcript.releases)
        guess = int(coins.integers(2)) if ratio == 0.0 else int(ratio > 0.0)
        right += guess == coin
        made.append(transcript)
    found = shown(right, number, level)
    lower, lower_mu = claim.implied(found, size)
    return Attack(
        part="all" if side is None else side.value,
        claim=claim.epsilon,
        claim_mu=claim.mu if claim.gaussian else None,
        canary=chosen.name,
        size=size,
        reach=reach,
        runs=number,
        right=right,
        level=level,
        allowed=most,
        shown=found,
        lower=lower,
        lower_mu=lower_mu,
        needed=planned,
        checks=checks_of(made, size=size, paid=claim.mu, level=level),
    )


def _canary(plan: Plan, side: Side | None, claim: Claim, public: dict[str, Any] | None) -> tuple[Rehearsal, int, float]:
    """Return the rehearsal whose canary attains the largest share of the claim, the number k of canaries, and this share."""
    job, n = plan.job, plan.n_records
    held_out = np.zeros(n, dtype=bool) if job.split is None else job.split.held_out(n)
    eligible = np.flatnonzero(held_out if side is Side.HELD_OUT else ~held_out)
    size = group_size(claim, len(eligible))
    positions: Integers = eligible[:size]
    best: tuple[float, Canary] | None = None
    started = time.perf_counter()
    for number, canary in enumerate(candidates(len(job.partition.features))):
        if public is not None and canary.rest is not None:
            break
        rehearsal = _rehearsal(plan, canary, positions, held_out, public)
        probe = rehearsal.run(number % 2)
        if number == 0 and probe.folds:
            trained = np.flatnonzero(~held_out)
            if side is not Side.HELD_OUT:
                shared = meeting([fold.members(len(trained)) for fold in probe.folds], np.arange(len(trained)), size)
                positions = trained[shared]
                rehearsal = _rehearsal(plan, canary, positions, held_out, public)
                probe = rehearsal.run(0)
        reach = _reach(probe, size, claim)
        if best is None or reach > best[0]:
            best = reach, canary
        if reach >= ENOUGH or time.perf_counter() - started > SEARCH_SECONDS:
            break
    if best is None:
        raise SpecificationError("no canary fits the job")
    rehearsal = _rehearsal(plan, best[1], positions, held_out, public)
    reach = float(np.mean([_reach(rehearsal.run(number % 2), size, claim) for number in range(2 * PROBES)]))
    return rehearsal, size, reach


def _rehearsal(
    plan: Plan, canary: Canary, positions: Integers, held_out: np.ndarray, public: dict[str, Any] | None
) -> Rehearsal:
    on1, on0 = tables(plan.job, canary, positions, plan.n_records, public)
    trained = (np.cumsum(~held_out) - 1)[positions[~held_out[positions]]]
    rows: list[Any] = [None, None]
    if (rule := plan.job.row_rule) is not None:  # neighbours differ in the number of the canaries' rows, too
        rows = [np.arange(plan.n_records) % rule.most_rows + 1 for _ in rows]
        rows[0][positions], rows[1][positions] = 1, rule.most_rows
    worlds = world_of(plan.job, on0, rows[0]), world_of(plan.job, on1, rows[1])
    return Rehearsal(plan, worlds, trained, canary.name)


def _reach(run: Transcript, size: int, claim: Claim) -> float:
    """Return √Σ (‖s1 − s0‖/σ)² over the releases of a run, divided by k times the claimed μ."""
    return math.sqrt(math.fsum(moved(release) ** 2 for release in run.releases)) / (size * claim.mu)


def _delta(plan: Plan) -> float:
    return plan.problem.delta or 0.0
