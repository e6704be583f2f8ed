"""`vfl audit JOB`: try to refute a job's ε on simulated records."""

from __future__ import annotations

import json

import click

from vfl.cli.options import JSON, pairs, records_option, several
from vfl.cli.options.jobs import job_argument, read_job


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
@click.option("--data", "private", multiple=True, hidden=True)
@JSON
def command(
    job: str,
    assignments: tuple[str, ...],
    records: int,
    runs: int | None,
    confidence: float,
    public: tuple[str, ...],
    private: tuple[str, ...],
    *,
    as_json: bool,
) -> int:
    """Try to refute the ε of JOB by many runs on simulated records. Charges nothing and reads no private record.

    Exits with 1 if the runs refute the claim.
    """
    from vfl.auditing.audit import audit

    if private:
        raise click.UsageError(
            "an audit takes no --data: each of its runs would be charged; it simulates records, or takes rows that are "
            "public: --public-data PARTY=FILE"
        )
    spec, _ = read_job(job, assignments)
    given = pairs("--public-data", "PARTY=FILE", public) or None
    found = audit(spec, records, runs=runs, confidence=confidence, public_data=given)
    click.echo(json.dumps(found.to_dict(), ensure_ascii=False) if as_json else str(found))
    return 0 if found.passed else 1
