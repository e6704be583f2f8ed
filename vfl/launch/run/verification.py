"""Verification of a run's folder: comparison of certificate, model, job, log and ledger."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.errors import OutputError, VflError
from vfl.launch.run import checkpoint
from vfl.launch.run.checkpoint import LEDGER
from vfl.launch.run.execution import FIRST, counts_among
from vfl.launch.run.folder import CERTIFICATE, check_finished, read_model
from vfl.launch.run.result import Result
from vfl.network.federation.file import read_federation
from vfl.planning import plan as make_plan
from vfl.planning.certificate import Certificate, Check, Report, verify
from vfl.planning.certificate.issue import moments_digest

if TYPE_CHECKING:
    from vfl.base.types import Vector
    from vfl.job import Job
    from vfl.planning import Plan
    from vfl.queries.protocol import Released

UNITS = 1e-9
"""Allowed relative difference of the intercept, since machines may add up its terms in different orders."""


def verify_run(
    run: str | Path,
    *,
    ledger: str | Path | None = None,
    key: str | Path | None = None,
    federation: str | Path | None = None,
    start: str | Path | None = None,
) -> Report:
    """Check the certificate of a run and return all findings. `Report.ok` is True if the certificate holds.

    run : folder of a run, or file of a certificate. For a file alone, the certificate's statements about the model, the job and
        the log are not checked.
    ledger : ledger in which the run was charged; None takes the run's own ledger if there is one in the run's folder.
    key : public key of the expected signer, 64 hexadecimal digits or the path of a PEM file.
    federation : path of the file of the federation in which the run must have been made; None skips this check.
    start : run, or file of the certificate, whose model training started from. None checks no cost of a start.

    Raises OutputError for files that cannot be read, SpecificationError for a malformed `key`.
    """
    run = Path(run)
    read = None if federation is None else read_federation(federation)

    def expected_of(certificate: Certificate) -> dict[str, str] | None:
        return None if read is None else read.stated(certificate.trust.get("dealer", ""))

    begun = None
    if start is not None:
        begun = Certificate.load(Path(start) / CERTIFICATE if Path(start).is_dir() else Path(start))
    if run.is_file():
        certificate = Certificate.load(run)
        return verify(certificate, ledger=ledger, key=key, federation=expected_of(certificate), start=begun)
    check_finished(run)
    certificate = Certificate.load(run / CERTIFICATE, follow=False)
    expected = expected_of(certificate)
    result, model = Result.load(run), read_model(run)
    plan, job = _planned(result.job, certificate)
    released, log = _log(run, result.job)
    if ledger is None and not certificate.dataset and certificate.ledger and (run / LEDGER).exists():
        ledger = run / LEDGER
    facts: dict[str, Any] = {"model": model, "findings": result.told(), "plan": plan, "released": released}
    report = verify(certificate, **facts, ledger=ledger, key=key, federation=expected, start=begun)
    found = {check.name: check for check in report.checks} | {check.name: check for check in (job, log) if check}
    if found["model"].holds:
        found["units"] = _units(result, model)
    if (kept := _moments(result, plan)) is not None and (found["moments"].holds is None or not kept.holds):
        found["moments"] = kept
    if result.labels is not None:
        found["labels"] = _labels(result.labels, plan, released)
    return Report(certificate, tuple(found.values()))


def _planned(job: Job, certificate: Certificate) -> tuple[Plan | None, Check | None]:
    """Return the plan of the run's job; if the job was changed or cannot be planned, return the failed check."""
    if job.digest != certificate.job_digest:
        return None, Check("job", False, "the job file is not the one that was trained: something in it was changed")
    try:
        return make_plan(job, certificate.n_records), None
    except VflError as error:
        return None, Check("job", False, f"it cannot be planned for the stated number of records: {error}")


def _log(run: Path, job: Job) -> tuple[tuple[Released, ...], Check | None]:
    """Return the releases of the first queries if the log is complete; if the log is damaged, return the failed check."""
    if not (run / checkpoint.NAME).exists():
        return (), None
    try:
        log = checkpoint.read(run, job)[2]
        return tuple(released for released in log.released[:FIRST] if released is not None), None
    except OutputError as error:
        return (), Check("log", False, str(error))


def _moments(result: Result, plan: Plan | None) -> Check | None:
    """Compare the moments saved with the model with those in the certificate. Return None if neither has moments."""
    stated = result.certificate.moments_digest
    if not result.moments or (plan is None and stated):
        return None
    if plan is None or moments_digest(plan, result.moments) != stated:
        return Check("moments", False, "those beside the model are not the certified ones")
    return Check("moments", True, "of the columns, from which smoothness follows: the certified ones")


def _labels(labels: Vector, plan: Plan | None, released: tuple[Released, ...]) -> Check:
    """Compare the saved histogram of the labels with the run's log, since the certificate does not state the histogram."""
    try:
        counts = counts_among(plan, released) if plan is not None and released else None
    except (ArithmeticError, LookupError, StopIteration, TypeError, ValueError):  # an altered log may hold anything
        return Check("labels", False, "the run's log does not hold the releases that the job plans")
    if counts is None:
        return Check("labels", None, "not checked: the histogram beside the model is in no certificate; the log has it")
    same = np.array_equal(labels, counts[1])
    return Check("labels", same, f"the histogram beside the model is {'' if same else 'not '}that of the run's log")


def _units(result: Result, model: dict[str, Any]) -> Check:
    """Check that the coefficients in original units are the certified coefficients in other units."""
    said = "the coefficients in original units are {}those of the certified model"
    try:
        own = result.document()
        ours, theirs = (
            given if isinstance(given, dict) else {"": given} for given in (own["intercept"], model["intercept"])
        )
        terms = [*map(abs, ours.values()), *map(abs, own["coef"].values()), *map(abs, own["w"])]
        close = ours.keys() == theirs.keys() and all(
            math.isclose(ours[name], theirs[name], rel_tol=UNITS, abs_tol=UNITS * max(terms)) for name in ours
        )
        if close and own | {"intercept": model["intercept"]} == model:
            return Check("units", True, said.format(""))
    except (KeyError, TypeError, ValueError):
        pass
    return Check("units", False, said.format("not "))
