"""`vfl summary RUN`: print coefficients with standard errors, or test a hypothesis on them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from vfl.cli.options import JSON, RUN, print_json, several
from vfl.errors import OutputError

if TYPE_CHECKING:
    from pathlib import Path


@click.command("summary")
@RUN
@click.option("--level", type=float, default=0.95, show_default=True, help="Level of the intervals.")
@several(
    "--test",
    "hypotheses",
    "HYPOTHESIS",
    "Also test, such as 'age = 0' or 'age = income, calls = 0'; may be repeated.",
)
@JSON
def command(run: Path, level: float, hypotheses: tuple[str, ...], *, as_json: bool) -> None:
    """Show the coefficients of the run in the folder RUN with standard errors, p-values and intervals.

    The run must have been trained with --intervals, or without privacy. The table costs no privacy.
    """
    from vfl.launch.run.result import Result

    result = Result.load(run)
    if why := result.altered():
        raise OutputError(f"the model in {str(run)!r} cannot be relied on, since its certificate does not hold: {why}")
    summary = result.summary(level)
    tests = [result.test(hypothesis) for hypothesis in hypotheses]
    if as_json:
        told = summary.to_dict() | {"tests": [dataclasses.asdict(test) for test in tests]}
        print_json(told)
        return
    click.echo(str(summary))
    for test in tests:
        click.echo(str(test))
