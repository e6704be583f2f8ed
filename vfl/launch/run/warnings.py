"""Privacy warnings: questionable plans, and the total ε of this process's private runs that no ledger counts."""

from __future__ import annotations

import sys
import threading
import warnings
from typing import TYPE_CHECKING

from vfl.planning import Plan
from vfl.planning import plan as make_plan
from vfl.planning.forecast import forecast
from vfl.planning.words import compared
from vfl.privacy.events import of_run
from vfl.privacy.ledger import Accounting
from vfl.privacy.ledger.composition import epsilon_of, plan_cost

if TYPE_CHECKING:
    from vfl.job import Job
    from vfl.launch.run.result import Result
    from vfl.privacy.ledger.composition import Plan as Releases

OURS = ("vfl", "coordinator", "parties")


class PrivacyWarning(UserWarning):
    """Warning of a missing declaration, or of a guarantee that is weaker than it seems.

    Warnings come before anything is released: `warnings.simplefilter("error", vfl.PrivacyWarning)` refuses such runs.
    """


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


def doubts(result: Result) -> tuple[str, ...]:
    """Return sentences if public facts say that noise hides any signal, and if the model measures worse than a constant."""
    job, n = result.job, result.certificate.n_records
    said = []
    expected = forecast(job, n)
    if compared(make_plan(job, n)) and expected.noise:
        said.append(f"{expected.lines[0]}. Do not rely on it: use more records, a larger ε or fewer columns")
    findings = result.findings.get("held out")
    measures = {} if findings is None else findings.measures
    if any(name in measures and measures[name].worse for name in ("auc", "d2", "r2")):
        said.append("the model is worse than a constant prediction on held-out records: do not use it")
    return tuple(said)
