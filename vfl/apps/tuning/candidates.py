"""Public facts of a tuning run: the candidates, their score, and the budget of each trial (training of one candidate).

A file of candidates is TOML that is read together with a job file.

score = "loss"         or "accuracy"; without classes "mae" or "mse", and "deviance" for counts and amounts; left out: "loss" or
                       "mse"
inclusion = 4          each candidate is considered with probability 4/5
candidates = [
    {},                                            the job as it is
    {penalty.strength = 1e-3},                     changes to the job
    {penalty = {kind = "l1", strength = 1e-3}, solver.passes = 20},
]
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.base.documents import read_toml
from vfl.base.features import Pair
from vfl.base.losses import loss_of
from vfl.base.types import Adjacency
from vfl.errors import JobFileError, PrivacyError, SpecificationError, VflError, nearest
from vfl.job import Job
from vfl.job.file import decode
from vfl.job.flags import flags_of
from vfl.job.job import require_job
from vfl.measures.specification import Evaluation, scores_of
from vfl.planning import plan as make_plan
from vfl.planning.certificate.issue import digest_of
from vfl.privacy import gaussian_dp
from vfl.privacy.events import MOST_CANDIDATES, Gaussian, OnPart, Selection, bare, on_part
from vfl.privacy.private_selection import epsilon_of, mu_of
from vfl.privacy.spending import floor_units, mu_squared, units

if TYPE_CHECKING:
    from vfl.planning import Plan
    from vfl.privacy.specification import Privacy

INCLUSION = 4
"""Default inclusion: each candidate is considered with probability 4/5."""
CHANGES = ("loss", "penalty", "solver", "intercept")
"""Options of a job in which candidates may differ, in addition to CHANGES_OF_PRIVACY and to products of two columns."""
CHANGES_OF_PRIVACY = ("smoothness", "smoothness_share")

Change = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Tuning:
    """Candidates, score and inclusion of a tuning run. All of these are public.

    Guarantee: the released model and the released score are together (ε, δ)-DP for every record, with the ε and δ of the
    jobs, whichever candidate wins. A trial trains one candidate, with a smaller ε, `trial_epsilon`.

    jobs : the candidates, each with the ε and δ of the whole tuning run. If the draw considers no candidate, the first
        candidate is released.
    score : 'loss', 'accuracy', 'mae', 'mse' or 'deviance'. inclusion : a whole number a from 1 to 64; each candidate is
        considered with probability a/(a + 1).

    Raises SpecificationError for candidates that cannot be compared under one budget.
    """

    jobs: tuple[Job, ...]
    score: str
    inclusion: int = INCLUSION

    def __post_init__(self) -> None:
        if len(self.jobs) < 2:
            raise SpecificationError(
                "a choice needs at least two candidates: with one, train it with vfl run (vfl.train)"
            )
        if (m := len(self.jobs)) > MOST_CANDIDATES:
            raise SpecificationError(
                f"{m} candidates are more than {MOST_CANDIDATES}: each one adds noise to all others; leave some out"
            )
        first = self.jobs[0]
        _check_job(first)
        whole = isinstance(self.inclusion, int) and not isinstance(self.inclusion, bool)
        if not whole or not 1 <= self.inclusion <= MOST_CANDIDATES:
            raise SpecificationError(
                f"inclusion is a whole number from 1 to {MOST_CANDIDATES}, not {self.inclusion!r}: with 4, each candidate is "
                "considered with probability 4/5"
            )
        fitting = scores_of(loss_of(first.loss))
        if self.score not in fitting:
            raise SpecificationError(
                f"score {self.score!r} does not fit {loss_of(first.loss).name} loss: give {' or '.join(map(repr, fitting))}"
            )
        known: dict[str, int] = {}
        for number, job in enumerate(self.jobs, 1):
            _check_alike(first, job, number, self.score)
            if (same := known.setdefault(job.digest, number)) != number:
                raise SpecificationError(f"candidates {same} and {number} are the same job: leave one of them out")

    @property
    def delta(self) -> float | None:
        """δ of the jobs; None means 1/n²."""
        return self._privacy.delta

    @property
    def _privacy(self) -> Privacy:
        return _of(self.jobs[0])

    @property
    def split(self) -> str:
        """Name of the public split of the records."""
        split = self.jobs[0].split
        return "" if split is None else split.name

    def with_delta(self, n_records: int | None) -> Tuning:
        """Return the tuning with an explicit δ, by default 1/n². Raises SpecificationError if n is needed and not known."""
        if self.delta is not None:
            return self
        if n_records is None:
            raise SpecificationError(
                "privacy.delta is left out and stands for 1/n², and n is not known before the first trial: state the number "
                "of records (n_records=..., or --records), or declare privacy.delta"
            )
        delta = 1.0 / max(n_records, 2) ** 2
        return replace(self, jobs=tuple(replace(job, privacy=replace(_of(job), delta=delta)) for job in self.jobs))

    @cached_property
    def budgets(self) -> tuple[float, float]:
        """Budgets μ of one trial: for the training records, and for the held-out records. δ must be known."""
        asked = self.jobs[0].evaluation or Evaluation()
        return self._mu(self._privacy.epsilon), self._mu(asked.epsilon or self._privacy.epsilon)

    def _mu(self, epsilon: float) -> float:
        return mu_of(epsilon, self._stated, len(self.jobs), self.inclusion)

    @property
    def _stated(self) -> float:
        if self.delta is None:
            raise PrivacyError("a tuning run needs δ before it can plan: see `with_delta`")
        return self.delta

    @property
    def events(self) -> tuple[tuple[OnPart | Selection, int], ...]:
        """Charges of the whole tuning run, as (event, count): one for the training records, one for the held-out records."""
        sides = ("training", "held out")
        made = [Selection(Adjacency.REPLACE_ONE, mu, len(self.jobs), self.inclusion) for mu in self.budgets]
        return tuple((on_part(event, self.split, side), 1) for event, side in zip(made, sides, strict=True))  # type: ignore[misc]

    @cached_property
    def epsilon(self) -> float:
        """ε of the whole tuning run at its δ, rounded up."""
        return epsilon_of(max(self.budgets), self._stated, len(self.jobs), self.inclusion)

    @cached_property
    def trial_epsilon(self) -> float:
        """ε of one trial (training of one candidate) at the same δ. A single run with this ε would have as much noise."""
        return _epsilon_below(self.budgets[0], self._stated)

    @cached_property
    def trials(self) -> tuple[Job, ...]:
        """Jobs of the trials. Each job has the budget of a trial and measures only the score."""
        asked = self.jobs[0].evaluation or Evaluation()
        measured = None
        if asked.epsilon is not None:
            measured = min(self.trial_epsilon, _epsilon_below(self.budgets[1], self._stated))
        evaluation = replace(asked, score=self.score, epsilon=measured)
        return tuple(
            replace(job, privacy=replace(_of(job), epsilon=self.trial_epsilon).numbered(number), evaluation=evaluation)
            for number, job in enumerate(self.jobs)
        )

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of all candidates, since the choice depends on the uncharged values of every candidate."""
        return tuple(dict.fromkeys(flag for job in self.jobs for flag in flags_of(job)))

    @property
    def digest(self) -> str:
        """SHA-256 of the digests of all trials, the score and the inclusion. The ledger keeps this digest."""
        return digest_of([job.digest for job in self.trials], self.score, self.inclusion)

    def plans(self, n_records: int) -> tuple[Plan, ...]:
        """Return the plan of each trial. Raises SpecificationError for a candidate whose plan does not fit a trial's budget."""
        plans = []
        for number, job in enumerate(self.trials, 1):
            try:
                plan = make_plan(job, n_records)
            except VflError as error:
                raise type(error)(f"candidate {number}: {error}") from error
            for event, _ in plan.releases:
                if type(bare(event)) is not Gaussian:
                    raise SpecificationError(
                        f"candidate {number} plans a release of type {type(bare(event)).__name__}, and private choice "
                        "needs Gaussian releases. Leave the candidate out, or give its solver no selections and no "
                        "secret samples"
                    )
            for side, mu in zip(("training", "held out"), self.budgets, strict=True):
                spent = sum(
                    units(event, mu_squared) * count
                    for event, count in plan.releases
                    if isinstance(event, OnPart) and event.part == side
                )
                if spent > floor_units(Fraction(mu) ** 2):
                    raise PrivacyError(
                        f"candidate {number} plans more than a trial may spend: this is a defect, report it"
                    )
            plans.append(plan)
        return tuple(plans)

    def to_dict(self) -> dict[str, Any]:
        """Return the tuning as plain values, which `from_dict` reads."""
        return {"score": self.score, "inclusion": self.inclusion, "jobs": [job.to_dict() for job in self.jobs]}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Tuning:
        """Return the tuning that `to_dict` wrote."""
        return cls(tuple(decode(job) for job in plain["jobs"]), plain["score"], plain["inclusion"])


def tuning_of(
    job: Job, candidates: Sequence[Change | Job], *, score: str | None = None, inclusion: int = INCLUSION
) -> Tuning:
    """Return the tuning that compares variants of a job.

    candidates : jobs, or changes to `job`: {"penalty": {"strength": 1e-3}} or {"penalty.strength": 1e-3}; {} is `job` itself.
    score : as for `Tuning`; None is 'loss' with classes and 'mse' without classes.
    """
    require_job(job)
    if isinstance(candidates, Mapping | str) or not isinstance(candidates, Sequence):
        raise SpecificationError("candidates must be a list of changes to the job, or of jobs; {} is the job itself")
    jobs = tuple(
        candidate if isinstance(candidate, Job) else changed(job, candidate, number)
        for number, candidate in enumerate(candidates, 1)
    )
    # All jobs have one name: a job's name must not reveal the winner before the certificate does.
    jobs = tuple(replace(each, name=job.name) for each in jobs)
    return Tuning(jobs, score or ("loss" if job.classification else "mse"), inclusion)


def changed(job: Job, change: Change, number: int) -> Job:
    """Return the job with a candidate's changes. A changed table with another `kind` replaces the whole table of the job."""
    if not isinstance(change, Mapping):
        raise SpecificationError(f"candidate {number} must be a table of changes to the job, or a job, not {change!r}")
    plain = job.to_dict()
    for name, value in _nested(change, number).items():
        _merge(plain, name, value)
    try:
        return decode(plain)
    except VflError as error:
        raise type(error)(f"candidate {number}: {error}") from error


def _nested(change: Change, number: int) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in change.items():
        *tables, last = str(name).split(".")
        target = nested
        for table in tables:
            target = target.setdefault(table, {})
            if not isinstance(target, dict):
                raise JobFileError(f"candidate {number} gives {table!r} twice")
        if isinstance(value, Mapping) and isinstance(target.get(last), dict):
            target[last] |= value
        else:
            target[last] = dict(value) if isinstance(value, Mapping) else value
    return nested


def _merge(plain: dict[str, Any], name: str, value: Any) -> None:
    known: Any = plain.get(name)
    both = isinstance(value, Mapping) and isinstance(known, dict)
    if both and value.get("kind", known.get("kind")) == known.get("kind"):
        for key, inner in value.items():
            _merge(known, key, inner)
    else:
        plain[name] = value


def _check_job(job: Job) -> None:
    """Refuse a job that needs no private choice, or for which no guarantee is proved."""
    if job.privacy is None:
        raise SpecificationError(
            "the job has no privacy, so a private choice would only add noise: compare runs with an ordinary grid search"
        )
    if job.secure is not None:
        raise SpecificationError(
            "a private choice hides the models and scores of all other candidates, which every participant sees under "
            "trust='secure': tune with trust='trusted', or train candidates in runs of their own, each with "
            "evaluation.score and a part of the budget"
        )
    if job.holdout is None:
        raise SpecificationError(
            "candidates are scored on records that are held out: set evaluation=Evaluation(holdout=0.2) in the job"
        )
    asked = job.evaluation or Evaluation()
    if asked.public:
        raise SpecificationError(
            "the held-out records are declared public, so scores on them cost nothing: run the candidates one by one, or leave "
            "evaluation.public out"
        )
    if asked.thresholds is not None or asked.cost is not None:
        raise SpecificationError(
            "a tuning run releases one score, at the default threshold: leave evaluation.cost and evaluation.thresholds out, "
            "and measure the chosen job in a run of its own"
        )
    if asked.diagnostics:
        raise SpecificationError(
            "diagnostics releases exact values of every candidate: leave diagnostics out of a tuning run"
        )
    if job.fairness is not None:
        raise SpecificationError(
            "fairness takes a share of the scores' budget in every trial: leave fairness out, and check it in a run of its own"
        )
    if job.intervals:
        raise SpecificationError(
            "tuning gives no standard errors, for which every trial would spend budget: leave intervals out, or "
            "train the chosen job in a run of its own"
        )


def _check_alike(first: Job, job: Job, number: int, score: str) -> None:
    """Refuse a candidate that differs from the first candidate in an option that all candidates must share."""
    if job.privacy is None:
        raise SpecificationError(
            f"candidate {number} has no privacy: give it the privacy of the first candidate, since one budget covers all"
        )
    for field in dataclasses.fields(Job):
        if not field.init or field.name in (*CHANGES, "privacy", "name"):
            continue
        if _plain(first, field.name, job) != _plain(job, field.name, first):
            raise SpecificationError(
                f"candidate {number} differs from the first in {field.name}. Candidates may differ only in "
                f"{', '.join(CHANGES)}, the pairs of columns, privacy.{' and privacy.'.join(CHANGES_OF_PRIVACY)}"
            )
    shared = {name: getattr(_of(first), name) for name in CHANGES_OF_PRIVACY}
    ours, theirs = _of(first), replace(_of(job), **shared)
    for option in dataclasses.fields(ours):
        if getattr(ours, option.name) != getattr(theirs, option.name):
            raise SpecificationError(
                f"candidate {number} differs from the first in privacy.{option.name}: one budget covers all candidates"
            )
    if job.classification != first.classification or (score == "loss" and loss_of(job.loss) != loss_of(first.loss)):
        raise SpecificationError(
            f"candidate {number} has a different loss from the first, and the score compares losses: choose by 'accuracy', "
            "or leave the loss as it is"
        )
    if score == "deviance" and loss_of(job.loss).power != loss_of(first.loss).power:
        raise SpecificationError(
            f"candidate {number} has a different loss from the first, and their deviances cannot be compared: choose "
            "by 'mae' or 'mse', or leave the loss as it is"
        )


def _plain(job: Job, option: str, other: Job) -> Any:
    """Return the value of an option for a comparison, leaving out the products of columns in which candidates may differ."""
    pairs = {column for column, declared in job.columns.items() if isinstance(declared, Pair)}
    value = getattr(job, option)
    if option == "partition":
        value = value.without(pairs - set(other.partition.features))
    if option == "columns":
        return {column: declared for column, declared in value.items() if column not in pairs}
    return value.to_dict() if hasattr(value, "to_dict") else value


def _of(job: Job) -> Privacy:
    if job.privacy is None:
        raise SpecificationError("tuning is for private jobs")
    return job.privacy


def _epsilon_below(mu: float, delta: float) -> float:
    """Return an ε at which a run with this δ gets a μ of at most `mu`."""
    epsilon = gaussian_dp.epsilon_of(mu * (1.0 - 1e-12), delta)
    while gaussian_dp.mu_of(epsilon, delta) > mu:
        epsilon = math.nextafter(epsilon * (1.0 - 1e-13), 0.0)
    return epsilon


KEYS = ("score", "inclusion", "candidates")


def read_candidates(path: str | Path) -> dict[str, Any]:
    """Return the contents of a candidates file, as keyword arguments of `tuning_of`."""
    path = Path(path)
    plain = read_toml(path, "file of candidates", error=JobFileError, shows=True)
    for key in plain:
        if key not in KEYS:
            raise JobFileError(
                f"unknown key {key!r} in {str(path)!r}{nearest(key, KEYS)}; known: {', '.join(KEYS)}. Options of the job stand "
                "in its own file"
            )
    if not isinstance(plain.get("candidates"), list):
        raise JobFileError(f"{str(path)!r} needs candidates = [{{}}, ...]: a list of changes to the job")
    if not isinstance(plain.get("score", ""), str):
        raise JobFileError(f"{str(path)!r}: score must be text, not {plain['score']!r}")
    return {
        "candidates": plain["candidates"],
        "score": plain.get("score"),
        "inclusion": plain.get("inclusion", INCLUSION),
    }
