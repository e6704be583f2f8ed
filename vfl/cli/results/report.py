"""`vfl report RUN`: draw a finished run as one HTML page, or write its model card."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vfl.cli.options import CHARGED, RUN, SIGNER, path_option

if TYPE_CHECKING:
    from pathlib import Path


@click.command("report")
@RUN
@path_option("--output", "The file (default: RUN/report.html, or RUN/card.md).")
@CHARGED
@SIGNER
@click.option("--card", is_flag=True, help="Write the model card instead: Markdown, or HTML if --output ends in .html.")
@click.option("--timing", is_flag=True, help="Also show how long rounds took; do not release the page then.")
def command(run: Path, output: Path | None, ledger: Path | None, key: str | None, *, card: bool, timing: bool) -> None:
    """Draw the run in the folder RUN as one HTML page that needs no other file.

    The page shows released values and public facts only, so everybody who may see the model may see the page. If the
    certificate does not hold, the page says so and the command ends with an error.
    """
    from vfl.report import write_card, write_run

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
