"""`vfl verify` and `vfl audit`: check a certificate, or try to refute a job's ε on simulated records."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import click

from vfl.apps.cli.options import (
    CHARGED,
    JSON,
    RUN,
    SIGNER,
    pairs,
    path_option,
    print_json,
    records_option,
    several,
    tell,
)
from vfl.apps.cli.options.jobs import job_argument, read_job
from vfl.errors import OutputError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from vfl.planning.certificate import Report


@click.command("verify")
@RUN
@CHARGED
@SIGNER
@path_option("--federation", "Federation file: the run has to be made by these organisations.")
@path_option("--warm-start", "Run or certificate of the model that training started from.", metavar="RUN")
@JSON
def verify_command(
    run: Path, ledger: Path | None, key: str | None, federation: Path | None, warm_start: Path | None, *, as_json: bool
) -> None:
    """Check the certificate of RUN, a run's folder or a certificate's file, and recompute its ε.

    Prints the guarantee in two sentences, the outcome of each check, and the checks that were skipped for lack of input.
    """
    from vfl.launch.run.verification import verify_run

    report = verify_run(run, ledger=ledger, key=key, federation=federation, start=warm_start)
    if as_json:
        print_json(_plain(report))
    elif report.ok:
        for sentence in report.guarantee:
            click.echo(sentence)
        for flag in report.certificate.flags:
            click.echo(f"flag: {flag}")
        click.echo()
    if not as_json:
        click.echo(str(report))
        if failed := ", ".join(check.name for check in report.failed):
            raise OutputError(
                f"the certificate does not hold, see FAIL above: {failed}; do not rely on the certificate or the model"
            )
    report.require()


def _plain(report: Report) -> dict[str, Any]:
    certificate = report.certificate
    epsilon, delta = certificate.guaranteed
    return {
        "verified": report.ok,
        "private": report.ok and certificate.private,
        "epsilon": epsilon if math.isfinite(epsilon) else None,
        "delta": delta,
        "guarantee": list(report.guarantee) if report.ok else [],
        "flags": list(certificate.flags),
        "checks": [dataclasses.asdict(check) for check in report.checks],
    }


@click.command("audit")
@job_argument
@records_option("Number of simulated records.", least=2, default=100, show_default=True)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    metavar="R",
    help="Runs for each part of the records (default: enough to find noise of σ/√2 with probability 0.95, at most 1,000).",
)
@click.option(
    "--confidence",
    type=float,
    default=0.95,
    show_default=True,
    help="Probability with which a correct job passes, at least.",
)
@several(
    "--public-data",
    "public",
    "PARTY=FILE",
    "Rows that are declared public, in the place of simulated ones; once per party.",
)
@JSON
def audit_command(
    job: str,
    assignments: tuple[str, ...],
    records: int,
    runs: int | None,
    confidence: float,
    public: tuple[str, ...],
    *,
    as_json: bool,
) -> int:
    """Try to refute the ε of JOB by many runs on simulated records. Charges nothing and reads no private record.

    Exits with 1 if the runs refute the claim.
    """
    from vfl.apps.auditing.audit import audit

    spec, _ = read_job(job, assignments)
    given = pairs("--public-data", "PARTY=FILE", public) or None
    found = audit(spec, records, runs=runs, confidence=confidence, public_data=given)
    tell(found.to_dict(), found, as_json=as_json)
    return 0 if found.passed else 1
