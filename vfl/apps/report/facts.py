"""Facts for the page of a run: the contents of its folder that match the certificate."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.errors import VflError
from vfl.launch.run import checkpoint
from vfl.launch.run.folder import Timing, read_timing
from vfl.launch.run.history import history
from vfl.launch.run.result import Result
from vfl.launch.run.verification import verify_run
from vfl.planning import plan as make_plan
from vfl.planning.certificate.verification import events_of
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.launch.run.history import History
    from vfl.measures import Findings
    from vfl.planning import Plan
    from vfl.planning.certificate import Certificate, Report


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """Facts for the page of a run.

    plan, told : plan and history of the run; None if they are missing or contradict the certificate. why_not_told : reason why
        `told` is None. processes : number of processes that worked on the run.
    """

    report: Report
    result: Result
    plan: Plan | None
    told: History | None
    why_not_told: str
    processes: int
    timing: Sequence[Timing] | None

    @property
    def certificate(self) -> Certificate:
        """Certificate of the run."""
        return self.report.certificate

    @property
    def parties(self) -> tuple[str, ...]:
        """Names of the parties, in the partition's order."""
        return self.result.job.partition.parties

    @property
    def findings(self) -> Mapping[str, Findings]:
        """Measures of the run, from its log if it can be read."""
        return self.result.findings if self.told is None else self.told.findings

    @property
    def owners(self) -> list[str]:
        """Party that owns each coordinate of w, in the order of the model."""
        return list(self.result.owners.values())


def gathered(run: Path, *, ledger: str | Path | None, key: str | Path | None, with_timing: bool) -> Facts:
    """Read the folder of a run, leaving out contents that do not match the certificate."""
    report = verify_run(run, ledger=ledger, key=key)
    result = Result.load(run)
    wrong = {check.name for check in report.failed}
    plan, told, why = None, None, ""
    if "job" not in wrong:
        try:
            plan = make_plan(result.job, report.certificate.n_records)
        except VflError as error:
            why = f"The job cannot be planned: {error}"
    if wrong & {"job", "log", "plan", "moments"}:
        why = "The job or the log does not match the certificate, so nothing is drawn from them."
    elif report.certificate.code_version != __version__:
        why = f"Made by vfl {report.certificate.code_version}; vfl {__version__} may read its log differently."
    elif not (run / checkpoint.NAME).exists():
        why = "There is no log of rounds in this folder: it holds a saved result only."
    elif plan is not None and plan.solver.sealed and plan.problem.private:
        why = "This solver works on values without noise and releases its result alone, so its log holds no releases."
    elif plan is not None:
        _, budget, log = checkpoint.read(run, result.job)
        charged = None
        if budget.ledger is not None and Path(budget.ledger).exists():
            with contextlib.suppress(VflError):  # the checks report a damaged ledger
                charged = events_of(budget.ledger, budget.run)
        told = history(plan, log, charged)
        if not told.whole:
            told, why = None, "The log does not fit the job's schedule to its end, so nothing is drawn from it."
    processes = checkpoint.processes(run) if "log" not in wrong else 0
    return Facts(report, result, plan, told, why, processes, read_timing(run) if with_timing else None)
