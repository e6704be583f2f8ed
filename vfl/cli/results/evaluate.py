"""`vfl evaluate RUN`: print the measures that a run released, or measure its model on other records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vfl.cli.options import JSON, RUN, print_json, several
from vfl.cli.options.federated import watched
from vfl.cli.options.jobs import CSV, POLICIES, records_of
from vfl.cli.options.site import Where, site_options
from vfl.errors import OutputError, SpecificationError

if TYPE_CHECKING:
    from pathlib import Path


@click.command("evaluate")
@RUN
@several(
    "--data",
    "sources",
    "[PARTY=]FILE",
    "Records with labels to measure on, without noise: one table of all columns, or PARTY=FILE once for each party.",
    type=click.Path(),
)
@CSV
@POLICIES
@click.option(
    "--threshold",
    type=float,
    metavar="T",
    help="With --data, measure decisions at T: a probability with logistic loss, else a margin (default: the model's own).",
)
@site_options("inprocess")
@JSON
def command(
    run: Path,
    sources: tuple[str, ...],
    formats: tuple[str, ...],
    policies: tuple[str, ...],
    threshold: float | None,
    where: Where,
    *,
    as_json: bool,
) -> None:
    """Print the released measures of the run in the folder RUN, or measure its model on other records.

    Printing released measures costs no privacy. Measures on --data are exact and have no privacy protection. If the job
    aligns records by ids, the records of --data are aligned too. With --federation, --data PARTY=NAME takes the source to
    which its owner gave this name.
    """
    from vfl.cli.terminal.progress import warnings_told
    from vfl.launch.evaluate import evaluate
    from vfl.launch.run.result import Result

    result = Result.load(run)
    found, parties = dict(result.findings), result.job.partition.parties
    site = where.site(result.job, policy=policies)
    if not sources and where.federation is None:
        if threshold is not None:
            raise click.UsageError(
                "--threshold needs --data: the released measures have the thresholds that the job names"
            )
        for option in ("engine", "address", "shards", "cores"):
            if getattr(where, option):
                raise click.UsageError(f"--{option} needs --data: it says where other records are measured")
        if found and (why := result.altered()):
            raise OutputError(
                f"the measures in {str(run)!r} cannot be relied on, since its certificate does not hold: {why}"
            )
    else:
        data = records_of(where, sources, parties, formats=formats, policies=policies, run=run)
        with watched(federation=where.federation, parties=parties, quiet=as_json), warnings_told():
            found = {"data": evaluate(result, data, at=site, threshold=threshold)}
    if not found:
        raise SpecificationError(
            f"the run in {str(run)!r} has no measures: train with --set holdout=0.2, or give --data with records to measure on"
        )
    if as_json:
        print_json({name: findings.to_dict() for name, findings in found.items()})
        return
    for name, findings in found.items():
        click.echo(f"{name}: {findings}")
