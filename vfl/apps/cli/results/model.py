"""`vfl summary` and `vfl export`: show a model's coefficients with standard errors, or write the model for other tools."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import TYPE_CHECKING, Any

import click

from vfl.apps.cli.options import JSON, RUN, path_option, several, tell
from vfl.errors import OutputError, SpecificationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vfl.launch.run.result import Result

FORMS = {
    "sklearn": "Write a scikit-learn Pipeline for pickle.load, of the model or with --party of one part; it needs no vfl.",
    "onnx": "Write an ONNX graph in double precision, of the model or with --party of one part.",
    "sql": "Write a SELECT for DuckDB or PostgreSQL from a table 'records', of the model or with --party of one part.",
    "scorecard": "Write points per category as a CSV file, for a logistic model of binned and categorical columns.",
    "tracking": "Write parameters, metrics and tags as JSON, for experiment trackers; without --output, print them.",
}
OF_PARTS = ("sklearn", "sql", "onnx")
"""Export formats that can also hold only one party's part of the model."""


def _forms(command: Callable[..., Any]) -> Callable[..., Any]:
    for form, about in reversed(FORMS.items()):
        command = click.option(f"--{form}", "forms", flag_value=form, multiple=True, help=about)(command)
    return command


@click.command("export")
@RUN
@click.option("--party", metavar="NAME", help="Write the part of one party, which holds its own coefficients only.")
@_forms
@path_option(
    "--output", "New file; without any of the above a new folder for the parts of all parties.", metavar="PATH"
)
def export_command(run: Path, party: str | None, output: Path | None, forms: tuple[str, ...]) -> None:
    """Write the model in the folder RUN for others to apply: split by party, or for tools that need no vfl.

    A party predicts with its part by vfl predict --part NAME=FILE. Pipelines, graphs and queries take one table of all
    columns; they fill, clamp and encode them as declared, and decide at the model's threshold. They join no parties, and
    carry no certificate. The scorecard has 600 points at even odds and 20 more when the odds of the negative class double.
    """
    from vfl.base.writing import write_whole
    from vfl.launch.run.result import Result

    if len(forms) > 1:
        raise SpecificationError(f"export one form at a time: give --{forms[0]} or --{forms[1]}")
    form = forms[0] if forms else None
    if party is not None and form is not None and form not in OF_PARTS:
        raise SpecificationError(f"--{form} exports the whole model: leave --party out")
    if output is None and form != "tracking":
        raise click.MissingParameter(param_hint="'--output'", param_type="option")
    result = Result.load(run)
    if output is None:
        click.echo(_content(result, "tracking", None))
        return
    if form is None and party is None:
        for path in result.save_parts(output).values():
            click.echo(path)
        return
    if output.exists():
        raise OutputError(f"the output file {str(output)!r} exists: name a new one")
    write_whole(output, _content(result, form, party))
    click.echo(output)


def _content(result: Result, form: str | None, party: str | None) -> str | bytes:
    """Return the content of the exported file. form : None for a party's part of the model in the format of vfl."""
    from vfl.launch.run.tracking import tracked

    if form == "sklearn":
        return pickle.dumps(result.to_sklearn(party=party))
    if form == "onnx":
        return result.to_onnx(party=party)
    if form == "sql":
        return result.to_sql(party=party)
    if form == "scorecard":
        return result.scorecard(digits=1).to_csv()
    if form == "tracking":
        return json.dumps(tracked(result).to_dict(), indent=2, ensure_ascii=False)
    return result.part(str(party)).to_json()


@click.command("summary")
@RUN
@click.option("--level", type=float, default=0.95, show_default=True, help="Level of the intervals.")
@several(
    "--test", "hypotheses", "HYPOTHESIS", "Also test, such as 'age = 0' or 'age = income, calls = 0'; may be repeated."
)
@JSON
def summary_command(run: Path, level: float, hypotheses: tuple[str, ...], *, as_json: bool) -> None:
    """Show the coefficients of the run in the folder RUN with standard errors, p-values and intervals.

    The run must have been trained with --intervals, or without privacy. The table costs no privacy.
    """
    from vfl.launch.run.result import Result

    result = Result.load(run)
    result.require_unaltered(f"the model in {str(run)!r} cannot be relied on")
    summary = result.summary(level)
    tests = [result.test(hypothesis) for hypothesis in hypotheses]
    told = summary.to_dict() | {"tests": [dataclasses.asdict(test) for test in tests]}
    tell(told, summary, *tests, as_json=as_json)
