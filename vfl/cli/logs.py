"""`vfl logs ID`: what a job on a cluster has printed."""

from __future__ import annotations

import click

from vfl.cli.submit import ADDRESS, finish


@click.command("logs")
@click.argument("ident", metavar="ID")
@ADDRESS
@click.option("--follow", is_flag=True, help="Go on until the job ends; then end as it did.")
def command(ident: str, address: str | None, *, follow: bool) -> None:
    """Show what the driver of job ID has printed: its plan, its rounds, its certificate. Never data."""
    from vfl.launch.engines.submission import JobServer

    server = JobServer(address)
    if not follow:
        click.echo(server.logs(ident), nl=False)
        return
    for text in server.follow(ident):
        click.echo(text, nl=False)
    finish(server.status(ident))
