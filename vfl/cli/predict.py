"""`vfl predict RUN --data ...`: apply a saved model to new records."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from vfl.cli.jobs import named_sources


@click.command("predict")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--data",
    "sources",
    multiple=True,
    required=True,
    metavar="[PARTY=]FILE",
    help="One table of all columns, or PARTY=FILE once for each party.",
)
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="A new CSV file (default: print).")
def command(run: Path, sources: tuple[str, ...], output: Path | None) -> None:
    """Print margin and prediction for every record, with the model saved in the folder RUN."""
    from vfl.errors import OutputError
    from vfl.launch.result import Result

    result = Result.load(run)
    data = named_sources(sources, result.job.partition.parties)
    if output is not None and output.exists():
        raise OutputError(f"the output file {str(output)!r} exists: name a new one")
    margins = result.decision_function(data)
    lines = [
        "margin,prediction",
        *(f"{m!r},{p}" for m, p in zip(margins.tolist(), result.labels_of(margins).tolist(), strict=True)),
    ]
    if output is None:
        sys.stdout.write("\n".join(lines) + "\n")
    else:
        output.write_text("\n".join(lines) + "\n", encoding="utf-8")
