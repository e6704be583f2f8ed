"""`vfl align JOB`: find the records that all parties have, once for several runs."""

from __future__ import annotations

import json
import time

import click

from vfl.cli.jobs import engine_options, job_argument, read_job, require_files


@click.command("align")
@job_argument
@engine_options
@click.option("--cores", type=click.IntRange(min=1), metavar="N", help="Cores for each party (default: all).")
@click.option("--again", is_flag=True, help="Make a new alignment, even if the parties still hold a valid one.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON, and no progress.")
def command(
    job: str,
    assignments: tuple[str, ...],
    engine: str,
    address: str | None,
    cores: int | None,
    *,
    again: bool,
    as_json: bool,
) -> None:
    """Find the records that all parties of JOB have, by private set intersection: no party shows its ids to another.

    A party whose data are files stores the positions of its common rows, and later runs of the job read them. Give the
    command again to continue an alignment that was cut off. An alignment that still fits the files is reused.
    """
    from vfl.alignment import reveals
    from vfl.cli.progress import Progress
    from vfl.launch.align import align
    from vfl.launch.sources import data_of

    spec, environment = read_job(job, assignments)
    if (address or environment.address) is None:
        require_files(environment)
    data = data_of(spec, environment)
    started = time.monotonic()
    with Progress(quiet=as_json) as progress:
        aligned = align(
            spec,
            data,
            engine=engine,
            address=address or environment.address,
            policies=environment.policies,
            indexes=environment.indexes,
            cores=cores or environment.cores,
            placement=environment.placement,
            again=again,
            watch=progress,
        )
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
        click.echo(json.dumps(outcome, ensure_ascii=False))
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
