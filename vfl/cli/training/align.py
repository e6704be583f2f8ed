"""`vfl align JOB`: find the records that all parties have, once for several runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from vfl.cli.options import JSON_ALONE, print_json
from vfl.cli.options.federated import watched, watching_options
from vfl.cli.options.jobs import SOURCES, job_argument, placed, read_job
from vfl.cli.options.site import Where, site_options

if TYPE_CHECKING:
    from pathlib import Path


@click.command("align")
@job_argument
@site_options("ray")
@SOURCES
@click.option("--again", is_flag=True, help="Make a new alignment, even if the parties still hold a valid one.")
@watching_options
@JSON_ALONE
def command(
    job: str,
    assignments: tuple[str, ...],
    where: Where,
    sources: tuple[str, ...],
    metrics: str | None,
    log: Path | None,
    *,
    again: bool,
    as_json: bool,
) -> None:
    """Find the records that all parties of JOB have, by private set intersection: no party shows its ids to another.

    A party whose data are files stores the positions of its common rows, and later runs of the job read them. Repeat the
    command to continue an interrupted alignment. An alignment that still fits the files is reused.
    """
    from vfl.alignment import reveals
    from vfl.cli.terminal.progress import Progress
    from vfl.launch.align import align

    spec, environment = read_job(job, assignments)
    site, data, _ = placed(where, spec, environment, sources, metrics=metrics, log=log)
    started = time.monotonic()
    with (
        watched(
            metrics, log, federation=where.federation, parties=spec.partition.parties, job=spec.name, quiet=as_json
        ),
        Progress(quiet=as_json) as progress,
    ):
        aligned = align(spec, data, at=site, again=again, watch=progress)
    seconds, seen = time.monotonic() - started, reveals(len(spec.partition.parties))
    if as_json:
        outcome = {
            "n_records": aligned.n_records,
            "sizes": dict(aligned.sizes),
            "alignment": aligned.alignment,
            "kept": environment.table is None,
            "reused": aligned.reused,
            "seconds": seconds,
            "revealed": seen,
        }
        print_json(outcome)
        return
    sizes = ", ".join(f"{party} {size}" for party, size in aligned.sizes.items())
    click.echo(f"{aligned.n_records} records are common to all parties ({sizes}); {seconds:.1f} s")
    if aligned.reused:
        click.echo("every party still holds an alignment of these files, which is reused; --again makes a new one")
        return
    for who, what in seen.items():
        click.echo(f"  {who} learned  {what}" if who != "outsider" else f"  public  {what}")
    if environment.table is None:
        click.echo("each party stores its rows locally; runs of this job start from them")
    else:
        click.echo("nothing is stored: the parties are simulated from one table")
