"""`vfl compare RUN RUN...`: show measures, guarantee and settings of finished runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vfl.cli.options import JSON, PATH, path_option, print_json

if TYPE_CHECKING:
    from pathlib import Path


@click.command("compare")
@click.argument("runs", metavar="RUN RUN...", nargs=-1, required=True, type=PATH)
@path_option("--output", "Also write an HTML page.")
@JSON
def command(runs: tuple[Path, ...], output: Path | None, *, as_json: bool) -> None:
    """Show measures, guarantee and settings of finished runs side by side. Reads the runs' folders only.

    Choosing the best of several runs on the same records by their measures spends the ε of all of them.
    """
    from vfl.report.comparison import as_text, compare, write_comparison

    found = compare(runs)
    if as_json:
        print_json([run.to_dict() for run in found])
    else:
        click.echo(as_text(found))
    if output is not None:
        write_comparison(found, output)
        click.echo(f"page: {output}", err=as_json)
