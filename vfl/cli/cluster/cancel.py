"""`vfl cancel ID`: end a job on a cluster."""

from __future__ import annotations

import click

from vfl.cli.cluster.submit import ADDRESS


@click.command("cancel")
@click.argument("ident", metavar="ID")
@ADDRESS
def command(ident: str, address: str | None) -> None:
    """End job ID. Its releases stay charged. Continue its run with: vfl submit --resume RUN."""
    from vfl.launch.engines.submission import JobServer

    JobServer(address).cancel(ident)
    click.echo(f"{ident}: ended; its run can be resumed")
