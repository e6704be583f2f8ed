"""`vfl report RUN`: one page on a run that is over."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("report")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="FILE", help="The HTML file (default: RUN/report.html)."
)
@click.option(
    "--ledger", metavar="FILE", type=click.Path(path_type=Path), help="The ledger that the run was charged to."
)
@click.option(
    "--key", metavar="PUBLIC", help="Who should have signed: 64 hexadecimal digits, or the PEM file of a public key."
)
@click.option("--timing", is_flag=True, help="Show how long rounds took too; the page is then not for release.")
def command(run: Path, output: Path | None, ledger: Path | None, key: str | None, *, timing: bool) -> None:
    """Draw what the folder RUN holds into one HTML page that needs no other file.

    It shows released values and public facts only, so it may go wherever the model may. A certificate that does not hold
    is drawn as such, and the command then ends with an error.
    """
    from vfl.report import write_run

    path, report = write_run(run, output, ledger=ledger, key=key, with_timing=timing)
    click.echo(f"report: {path}")
    report.require()
