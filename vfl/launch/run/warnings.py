"""Privacy warnings: questionable plans, and the total ε of this process's private runs that no ledger counts."""

from __future__ import annotations

import sys
import threading
import warnings
from typing import TYPE_CHECKING

import numpy as np

from coordinator.rounds import Round
from vfl.planning import Plan
from vfl.planning import plan as make_plan
from vfl.planning.forecast import forecast
from vfl.planning.run_plan import compared
from vfl.privacy.events import of_run
from vfl.privacy.ledger import Accounting
from vfl.privacy.ledger.composition import epsilon_of, plan_cost

if TYPE_CHECKING:
    from vfl.job import Job
    from vfl.launch.run.model import Model
    from vfl.privacy.ledger.composition import Plan as Releases

RELEASED_FIRST = ("Moments", "Tally", "ExactTally")
"""Kinds of queries whose releases update no coordinate: statistics of columns or labels, and the objective."""
DEEP = 35.0
"""Distance from the limit of the mean, as a logarithm, at which a model of counts predicts 0."""
OURS = ("vfl", "coordinator", "parties")


class PrivacyWarning(UserWarning):
    """Warning of a missing declaration, or of a guarantee that is weaker than it seems.

    Warnings come before anything is released: `warnings.simplefilter("error", vfl.PrivacyWarning)` refuses such runs.
    """


class ConvergenceWarning(UserWarning):
    """Warning of a run without privacy that ended before it converged, or of a model whose predictions are at their limit."""


class Passes:
    """Counts the passes of a run without privacy, and warns if the run made all of its passes without converging.

    remedy : advice in the warning. category : class of the warning. updates : number of coordinates that rounds updated so far.
    """

    def __init__(
        self,
        remedy: str = "give its solver more passes, a larger tol, another solver (SkGD, CD), or the job a stronger penalty",
        category: type[Warning] = ConvergenceWarning,
    ) -> None:
        self._plan: Plan | None = None
        self._remedy, self._category = remedy, category
        self.updates = 0

    def __call__(self, event: object) -> None:
        """Handle an event of the run: store the plan, or add to the count of coordinate updates."""
        if isinstance(event, Plan):
            self._plan = event
        elif isinstance(event, Round) and event.kind not in RELEASED_FIRST:
            self.updates += sum(map(len, event.released))

    def ended(self, result: Model) -> None:
        """Warn of a run that has not converged, and of a model at the limit of its predictions.

        Private runs issue no such warning: a filter that turns the warning into an error would lose a paid model.
        """
        plan = self._plan
        if plan is None or plan.problem.private:
            return
        last = plan.solver.last_pass(plan.problem)
        if last is not None and self.updates >= last * plan.problem.layout.n_coordinates:
            warn(f"{result.job.name} has not converged in {last:,} passes: {self._remedy}", self._category)
        loss, middle = result.job.response, result.intercept_on_scaled
        if loss.power is not None and not loss.highest - DEEP < middle < loss.highest:
            warn(
                f"{result.job.name}: in the middle of the columns' bounds the model predicts its limit, a mean of "
                f"{loss.response(np.array([middle]))[0]:.3g}: the run has not converged, or the limits of {loss.name} loss "
                "do not fit the labels. Correct the label's bounds or these limits, or give the solver more passes",
                self._category,
            )


class RunningTotal:
    """Upper bound on the ε of all private runs so far, for a record that all these runs use. Thread-safe.

    The process cannot know which runs share records, so every run counts: fits and releases of bounds. The μ² of all planned
    releases add up (Smith & Thakurta 2022, arXiv 2210.17520). The sum is exact for Gaussian releases and an upper bound for
    other releases (vfl.privacy.ledger.composition). Unfinished runs count in full.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs = 0
        self._units = 0

    def add(self, releases: Releases, delta: float) -> None:
        """Count a run that is about to start. Runs 2, 4, 8 and so on issue a warning with the total ε at the given δ.

        A warning for every fit of a search would hide other warnings. If a warnings filter turns the warning into an error,
        the run does not start and is not counted.
        """
        with self._lock:
            units = self._units + plan_cost(releases, Accounting.GDP)
            number = self._runs + 1
            if number > 1 and number & (number - 1) == 0:
                warn(
                    f"private run {number} of this process without a ledger: together, the runs are (ε = "
                    f"{epsilon_of(Accounting.GDP, units, delta):.4g}, δ = {delta:.3g})-differentially private for "
                    "records that they share, not counting other processes. Bound the total with ledger='budget.db', "
                    f"dataset='NAME' (next warning at run {2 * number})"
                )
            self._runs += 1
            self._units = units


of_this_process = RunningTotal()


def count_run(job: Job, *events: object) -> None:
    """Add the plans of a starting run to this process's total, unless a ledger counts the run or the job's noise is seeded.

    events : events of the run; only plans are counted.
    """
    plans = [event for event in events if isinstance(event, Plan)]
    if plans:
        releases = [(of_run(event, plan.job.name), times) for plan in plans for event, times in plan.releases]
        count_releases(job, releases, plans[0].problem.delta or 0.0)


def count_releases(job: Job, releases: Releases, delta: float) -> None:
    """Add the charges of a job to this process's total, unless a ledger counts them or the job's noise is seeded."""
    if releases and job.privacy is not None and job.privacy.noise is None and job.dataset is None:
        of_this_process.add(releases, delta)


def warn_of_plan(event: object) -> None:
    """Issue the warnings of a plan as PrivacyWarning, for callers that do not receive the plan as an event."""
    if isinstance(event, Plan):
        for warning in event.warnings:
            warn(warning)


def warn(message: str, category: type[Warning] = PrivacyWarning) -> None:
    """Issue a warning at the line, outside this project, that started the run."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OURS:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def doubts(result: Model) -> tuple[str, ...]:
    """Return sentences if public facts say that noise hides any signal, and if the model measures worse than a constant."""
    job, n = result.job, result.certificate.n_records
    said = []
    expected = forecast(job, n)
    if compared(make_plan(job, n)) and expected.noise:
        said.append(f"{expected.lines[0]}. Do not rely on the model: use more records, a larger ε or fewer columns")
    findings = result.findings.get("held out")
    measures = {} if findings is None else findings.measures
    if any(name in measures and measures[name].worse for name in ("auc", "d2", "r2")):
        said.append("the model is worse than a constant prediction on held-out records: do not use it")
    return tuple(said)
