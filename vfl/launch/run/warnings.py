"""What a process is warned of: plans that are hardly meant, and the sum of its private runs that no ledger counts."""

from __future__ import annotations

import sys
import threading
import warnings
from typing import TYPE_CHECKING

from vfl.planning import Plan
from vfl.privacy.events import of_run
from vfl.privacy.ledger import Accounting
from vfl.privacy.ledger.composition import epsilon_of, plan_cost

if TYPE_CHECKING:
    from vfl.job import Job
    from vfl.privacy.ledger.composition import Plan as Releases

OURS = ("vfl", "coordinator", "parties")


class PrivacyWarning(UserWarning):
    """A guarantee that says less than one might think, or a declaration that is missing.

    Raised before anything is released: `warnings.simplefilter("error", vfl.PrivacyWarning)` refuses such runs.
    """


class RunningTotal:
    """ε of all private runs so far, as if each had seen the same records. Threads may share it.

    Which runs share records cannot be known, so every one counts, fits and bounds that are bought: the total is what holds
    in the worst case. μ² of all planned releases adds up (Smith & Thakurta 2022, arXiv 2210.17520), exactly for Gaussian
    ones and as an upper bound for others (vfl.privacy.ledger.composition), whether or not a run came to its end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs = 0
        self._units = 0

    def add(self, releases: Releases, delta: float) -> None:
        """Count a run that is about to start, and warn from the second on, with ε at this run's δ.

        Where the filter makes the warning an error, the run is not counted: it does not start.
        """
        with self._lock:
            units = self._units + plan_cost(releases, Accounting.GDP)
            if self._runs:
                warn(
                    f"private run {self._runs + 1} of this process without a ledger. Its certificate covers this one run "
                    f"only; all of them together are (ε = {epsilon_of(Accounting.GDP, units, delta):.4g}, "
                    f"δ = {delta:.3g})-differentially private for records that they share. Other processes are not "
                    "counted. A ledger bounds the sum: ledger='book.sqlite', dataset='NAME'"
                )
            self._runs += 1
            self._units = units


of_this_process = RunningTotal()


def count_run(job: Job, *events: object) -> None:
    """Add the plans of a run that begins to this process's total, unless a ledger counts it or its noise is seeded.

    events : other than plans are passed over.
    """
    plans = [event for event in events if isinstance(event, Plan)]
    if plans and job.privacy is not None and job.privacy.noise is None and job.dataset is None:
        releases = [(of_run(event, plan.job.name), times) for plan in plans for event, times in plan.releases]
        of_this_process.add(releases, plans[0].problem.delta or 0.0)


def warn_of_plan(event: object) -> None:
    """Raise what a plan warns of as PrivacyWarning: for whoever is not shown the plan."""
    if isinstance(event, Plan):
        for warning in event.warnings:
            warn(warning)


def warn(message: str) -> None:
    """Raise a PrivacyWarning at the line, outside this project, that asked for the run."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OURS:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, PrivacyWarning, stacklevel=level)
