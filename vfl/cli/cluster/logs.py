"""`vfl logs ID`: show the output of a job on a cluster."""

from __future__ import annotations

import click

from vfl.cli.cluster.submit import ADDRESS, finish


@click.command("logs")
@click.argument("ident", metavar="ID")
@ADDRESS
@click.option("--follow", is_flag=True, help="Wait until the job ends, and fail if it failed.")
def command(ident: str, address: str | None, *, follow: bool) -> None:
    """Show the output of job ID: its plan, rounds and certificate. The output holds no data."""
    from vfl.launch.engines.submission import JobServer

    server = JobServer(address)
    if not follow:
        click.echo(server.logs(ident), nl=False)
        return
    for text in server.follow(ident):
        click.echo(text, nl=False)
    finish(server.status(ident))
