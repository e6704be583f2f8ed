"""`vfl ui [FOLDER]`: show jobs, runs and ledgers of a folder in a browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click


@click.command("ui")
@click.argument("folder", metavar="[FOLDER]", default=".", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on this machine (default: a free one).")
@click.option(
    "--ledger",
    "ledgers",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A ledger outside FOLDER to show; may be repeated.",
)
@click.option("--open", "opened", is_flag=True, help="Open the page in a browser.")
def command(folder: Path, port: int, ledgers: tuple[Path, ...], *, opened: bool) -> None:
    """Show jobs, plans, runs at work with their ε, reports, model cards and ledgers of FOLDER on a local page.

    The page is for this machine alone, and only reads. Its address holds a secret token, so keep it to yourself. Ctrl-C
    ends it.
    """
    from vfl.ui import Server

    with Server(folder, port, ledgers) as server:
        click.echo(f"vfl ui: {server.url}")
        if opened:
            webbrowser.open(server.url)
        server.serve_forever(poll_interval=0.2)
