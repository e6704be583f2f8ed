"""Classification with several classes by one model per class against the rest, all under one privacy budget."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.base import markup
from vfl.base.columns import canonical_category
from vfl.crypto.signatures import signing_key
from vfl.errors import BudgetExceeded, DataError, PrivacyError, SpecificationError
from vfl.job.environment import Ledger
from vfl.job.job import require_job
from vfl.launch.run.execution import finish, new_budget, settings_of
from vfl.launch.run.warnings import count_run, warn_of_plan
from vfl.planning import Plan
from vfl.planning import plan as make_plan
from vfl.privacy.accountants import choose_accountant
from vfl.privacy.events import of_run
from vfl.privacy.gaussian_dp import epsilon_of, mu_of
from vfl.privacy.ledger import DatasetBook, SqliteLedger

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from vfl.base.columns import Category
    from vfl.base.types import Vector
    from vfl.job import Job
    from vfl.launch.engines.place import Arrangement, At
    from vfl.launch.run.execution import Watch
    from vfl.launch.run.result import Result
    from vfl.privacy.events import Event

SMALLER = (0.0, *(10.0**k for k in range(-14, 0)), *(k / 10 for k in range(2, 10)))
"""Fractions by which μ of every class is lowered, tried in order until the plans of all classes fit the budget together."""


@dataclass(frozen=True, slots=True, eq=False)
class OneVsRest:
    """Results of one-vs-rest training, one per class.

    epsilon, delta : the guarantee of all results together, composed exactly; inf and 0 without privacy. The certificate of each
        result is for that result alone.
    """

    classes: tuple[Category, ...]
    results: tuple[Result, ...]
    epsilon: float
    delta: float

    def __repr__(self) -> str:
        private = all(result.certificate.private for result in self.results)
        guarantee = f"(ε = {self.epsilon:.4g}, δ = {self.delta:.3g})" if private else "NOT PRIVATE"
        lines = [f"{len(self.classes)} classes, each against the rest: together {guarantee}"]
        return "\n".join(
            lines + [f"{name!r}: {result!r}" for name, result in zip(self.classes, self.results, strict=True)]
        )

    def _repr_html_(self) -> str:
        first, *_ = repr(self).splitlines()
        parts = (
            markup.line(f"class {name!r}", strong=True) + result._repr_html_()
            for name, result in zip(self.classes, self.results, strict=True)
        )
        return markup.whole(markup.line(first, strong=True), *parts)

    def decision_function(self, data: Any) -> Vector:
        """Return the margins (n, classes) of new records."""
        return np.column_stack([result.decision_function(data) for result in self.results])

    def predict(self, data: Any) -> Any:
        """Return the class (n,) with the largest margin."""
        return np.array(self.classes)[self.decision_function(data).argmax(axis=1)]


def jobs_of(job: Job, classes: Sequence[Category], n_records: int) -> tuple[tuple[Job, ...], float]:
    """Return one job per class, the class against the rest, and the joint ε of the releases of all jobs at the job's δ.

    All models are trained on the same records, and replacing one record may change the record's label in all of them. The
    releases therefore compose, and each of K classes gets μ/√K (Dong, Roth, Su 2022, Cor. 3.3). Plans with non-Gaussian
    releases get less, as their accounting requires. ε is inf without privacy.

    Raises SpecificationError, and PrivacyError if no division of the budget fits.
    """
    listed = tuple(classes)
    if len({canonical_category(c) for c in listed}) != len(listed) or len(listed) < 3:
        raise SpecificationError(f"one-vs-rest needs at least three different classes, not {listed!r}")
    require_job(job)
    if not job.classification or job.classes is not None:
        raise SpecificationError(
            "one-vs-rest needs a classification loss, and no classes in the job, since the argument `classes` names them"
        )
    if job.start is not None:
        raise SpecificationError(
            "one-vs-rest trains a model for each class, and start holds one model: leave start out"
        )
    single = tuple(
        replace(job, name=f"{job.name}-{k}", classes=((*listed[:k], *listed[k + 1 :]), positive))
        for k, positive in enumerate(listed)
    )
    privacy = job.privacy
    if privacy is None:
        return single, math.inf
    delta = privacy.delta if privacy.delta is not None else 1.0 / max(n_records, 2) ** 2
    share = mu_of(privacy.epsilon, delta) / math.sqrt(len(listed))
    for less in SMALLER:
        part = replace(privacy, epsilon=epsilon_of(share * (1.0 - less), delta), delta=delta)
        jobs = tuple(replace(each, privacy=part.numbered(k)) for k, each in enumerate(single))
        plans = [make_plan(each, n_records) for each in jobs]
        releases, committed = united(plans), any(plan.committed for plan in plans)
        epsilon = choose_accountant(releases, committed=committed).compose_all(releases).epsilon(delta)
        if epsilon <= privacy.epsilon:
            return jobs, epsilon
    raise PrivacyError("the plans of all classes together do not fit the budget: raise epsilon, or lower the passes")


def train_one_vs_rest(
    job: Job,
    data: Any = None,
    *,
    classes: Sequence[Category],
    n_records: int,
    at: At = None,
    ledger: str | Path | Ledger | None = None,
    key: str | Path | None = None,
    watch: Watch | None = None,
) -> OneVsRest:
    """Train one model per class against the rest. All models together have the job's (ε, δ)-DP guarantee for every record.

    job : a job without `classes`. data and other parameters : as for `train`. There is no output folder; save each result.
    classes : all labels that may occur, from public knowledge. Any other label is refused before training starts.
    n_records : n, the public number of records. n fixes every plan before the first release. Data with a different n are
        refused.

    A job that aligns records aligns them once. If the call fails, every party keeps its index (positions of aligned records).

    With a ledger, all plans are checked against the budget before the first plan is reserved. Without a ledger, the guarantee
    is for this call alone. Raises the errors of `train` and of `jobs_of`.
    """
    jobs, epsilon = jobs_of(job, classes, n_records)
    plans = [make_plan(each, n_records) for each in jobs]
    _require_room(plans, ledger)

    def both(event: Any) -> None:
        if isinstance(event, Plan) and event.n_records != n_records:
            raise DataError("the data hold a different number of records from n_records: no plan was made for them")
        if watch is not None:
            watch(event)

    signer = None if key is None else signing_key(key)
    first = settings_of(job, data, at=at, ledger=ledger)
    if watch is None:
        warn_of_plan(plans[0])
    count_run(job, *plans)

    each = [
        replace(first, budget=new_budget(single, ledger), arrangement=arrangement, counted=False)
        for single, arrangement in zip(jobs, _aligned_once(jobs, first.arrangement), strict=True)
    ]
    results = tuple(
        finish(single, settings, watches=(both,), signer=signer) for single, settings in zip(jobs, each, strict=True)
    )
    delta = 0.0 if jobs[0].privacy is None else float(jobs[0].privacy.delta or 0.0)
    return OneVsRest(tuple(classes), results, epsilon, delta)


def _aligned_once(jobs: Sequence[Job], arrangement: Arrangement) -> tuple[Arrangement, ...]:
    """Return one arrangement per class. The first run aligns. Every party keeps its index until the last run has loaded."""
    if jobs[0].id is None:
        return (arrangement,) * len(jobs)
    run, last = uuid.uuid4().hex, len(jobs) - 1
    return tuple(replace(arrangement, run=run, resumed=k > 0, required=k > 0, last=k == last) for k in range(len(jobs)))


def united(plans: Sequence[Plan]) -> tuple[tuple[Event, int], ...]:
    """Return the releases of all plans. Splits of different runs count separately, since each alignment splits records anew."""
    return tuple((of_run(event, plan.job.name), count) for plan in plans for event, count in plan.releases)


def _require_room(plans: Sequence[Plan], ledger: str | Path | Ledger | None) -> None:
    """Raise BudgetExceeded, before the first class is trained, if the data set's budget is too small for all classes."""
    job, path = plans[0].job, Ledger.of(ledger).path
    if path is None or job.dataset is None or job.privacy is None:
        return
    asked = DatasetBook(SqliteLedger(str(path), readonly=True), job.dataset).preview(united(plans))
    if not asked.fits:
        raise BudgetExceeded(
            f"{len(plans)} classes together ask for ε = {asked.asked:.4g} at δ = {asked.delta:.3g} of data set "
            f"{job.dataset!r}, ε = {asked.left:.4g} is left of ε = {asked.cap:.4g}: ask for less, or merge classes"
        )
