"""`vfl status [ID]`: show the state of jobs on a cluster."""

from __future__ import annotations

import dataclasses

import click

from vfl.cli.cluster.submit import ADDRESS
from vfl.cli.options import JSON, print_json


@click.command("status")
@click.argument("ident", metavar="[ID]", required=False)
@ADDRESS
@JSON
def command(ident: str | None, address: str | None, *, as_json: bool) -> None:
    """Show the state of job ID, or of all jobs that the cluster's job server knows."""
    from vfl.launch.engines.submission import JobServer

    server = JobServer(address)
    jobs = [server.status(ident)] if ident is not None else server.list()
    if as_json:
        print_json([dataclasses.asdict(job) for job in jobs])
        return
    for job in jobs:
        click.echo(f"{job.id}  {job.status.lower()}  {job.message if ident is not None else job.brief}".rstrip())
