"""`vfl report` and `vfl ui`: show a finished run as a page, or a whole folder in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vfl.apps.cli.options import CHARGED, PATH, SIGNER, path_option, several

if TYPE_CHECKING:
    from pathlib import Path


@click.command("report")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=PATH)
@path_option("--output", "The file (default for one RUN: RUN/report.html, or RUN/card.md).")
@CHARGED
@SIGNER
@click.option("--card", is_flag=True, help="Write the model card instead: Markdown, or HTML if --output ends in .html.")
@click.option("--timing", is_flag=True, help="Also show how long rounds took; do not release the page then.")
def report_command(
    runs: tuple[Path, ...], output: Path | None, ledger: Path | None, key: str | None, *, card: bool, timing: bool
) -> None:
    """Draw the run in the folder RUN, or several runs side by side, as one HTML page that needs no other file.

    The page shows released values and public facts only, so everybody who may see the model may see the page. If the
    certificate does not hold, the page says so and the command ends with an error.
    """
    from vfl.apps.report import write_card, write_run
    from vfl.apps.report.comparison import compare, write_comparison

    if len(runs) > 1:
        if output is None or card or timing or ledger or key:
            raise click.UsageError("a page of several runs takes --output FILE, and no other option")
        click.echo(f"page: {write_comparison(compare(runs), output)}")
        return
    (run,) = runs
    if card and timing:
        raise click.UsageError("a card shows no timing: leave --timing out")
    if card:
        path, report = write_card(run, output, ledger=ledger, key=key)
        click.echo(f"card: {path}")
        report.require()
        return
    path, report = write_run(run, output, ledger=ledger, key=key, with_timing=timing)
    click.echo(f"report: {path}")
    report.require()


@click.command("ui")
@click.argument("folder", metavar="[FOLDER]", default=".", type=PATH)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on this machine (default: a free one).")
@several("--ledger", "ledgers", "FILE", "A ledger outside FOLDER to show; may be repeated.", type=PATH)
def ui_command(folder: Path, port: int, ledgers: tuple[Path, ...]) -> None:
    """Show jobs, plans, running jobs with their ε, reports, model cards and ledgers of FOLDER on a local page.

    The page is for this machine alone, and only reads. Its address holds a secret token, so keep it to yourself. Ctrl-C
    ends it.
    """
    from vfl.apps.ui import Server

    with Server(folder, port, ledgers) as server:
        click.echo(f"vfl ui: {server.url}")
        server.serve_forever(poll_interval=0.2)
