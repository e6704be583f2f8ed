"""`vfl ui [FOLDER]`: show jobs, runs and ledgers of a folder in a browser."""

from __future__ import annotations

import contextlib
import os
import tempfile
import webbrowser
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfl.cli.options import PATH, several

if TYPE_CHECKING:
    from collections.abc import Iterator


@click.command("ui")
@click.argument("folder", metavar="[FOLDER]", default=".", type=PATH)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on this machine (default: a free one).")
@several("--ledger", "ledgers", "FILE", "A ledger outside FOLDER to show; may be repeated.", type=PATH)
@click.option("--open", "opened", is_flag=True, help="Open the page in a browser.")
def command(folder: Path, port: int, ledgers: tuple[Path, ...], *, opened: bool) -> None:
    """Show jobs, plans, running jobs with their ε, reports, model cards and ledgers of FOLDER on a local page.

    The page is for this machine alone, and only reads. Its address holds a secret token, so keep it to yourself. Ctrl-C
    ends it.
    """
    from vfl.ui import Server

    with Server(folder, port, ledgers) as server:
        click.echo(f"vfl ui: {server.url}")
        if opened:
            with redirecting(server.url) as page:
                webbrowser.open(page.as_uri())
                server.serve_forever(poll_interval=0.2)
        server.serve_forever(poll_interval=0.2)


@contextlib.contextmanager
def redirecting(url: str) -> Iterator[Path]:
    """Yield a page that redirects to a URL. Only this user can read the page, but every user can see a browser's arguments."""
    descriptor, name = tempfile.mkstemp(prefix="vfl-ui-", suffix=".html")  # mode 0600
    page = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(
                f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={escape(url)}">'
            )
        yield page
    finally:
        page.unlink(missing_ok=True)
