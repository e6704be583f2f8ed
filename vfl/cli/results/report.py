"""`vfl report RUN`: draw a finished run as one HTML page, or write its model card."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("report")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The file (default: RUN/report.html, or RUN/card.md).",
)
@click.option(
    "--ledger", metavar="FILE", type=click.Path(path_type=Path), help="The ledger that recorded the run's charges."
)
@click.option(
    "--key", metavar="PUBLIC", help="The expected signer: 64 hexadecimal digits, or the PEM file of a public key."
)
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
