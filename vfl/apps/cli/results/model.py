"""`vfl show` and `vfl export`: show what runs released, or write a model for other tools."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import TYPE_CHECKING, Any

import click

from vfl.apps.cli.options import JSON, PATH, RUN, path_option, several, tell
from vfl.errors import OutputError, SpecificationError

if TYPE_CHECKING:
    from pathlib import Path

    from vfl.launch.run.result import Result

FORMS = ("sklearn", "onnx", "sql", "scorecard", "tracking")
OF_PARTS = ("sklearn", "sql", "onnx")
"""Export formats that can also hold only one party's part of the model."""


@click.command("export")
@RUN
@click.option("--party", metavar="NAME", help="Write the part of one party, which holds its own coefficients only.")
@click.option("--form", type=click.Choice(FORMS), help="Form for other tools.")
@path_option(
    "--output", "New file; without --party and --form a new folder for the parts of all parties.", metavar="PATH"
)
def export_command(run: Path, party: str | None, form: str | None, output: Path | None) -> None:
    """Write the model in the folder RUN for others to apply: split by party, or for tools that need no vfl.

    A party predicts with its part by vfl predict NAME=FILE. The forms for other tools are sklearn, a pickled
    scikit-learn Pipeline; onnx, a graph in double precision; sql, a SELECT for DuckDB or PostgreSQL from a table 'records'.
    Each takes one table of all columns, or those of --party, applies the declared fills, bounds and encodings, and decides at
    the model's threshold. The export does not align records, and has no certificate.

    scorecard writes points per category as CSV, for a logistic model of binned and categorical columns: 600 points at even
    odds, and 20 more when the odds of the negative class double. tracking writes parameters, metrics and tags as JSON, for
    experiment trackers; without --output it prints them.
    """
    from vfl.base.writing import write_whole
    from vfl.launch.run.result import Result

    if party is not None and form is not None and form not in OF_PARTS:
        raise SpecificationError(f"--form {form} exports the whole model: leave --party out")
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


@click.command("show")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=PATH)
@click.option("--level", type=float, default=0.95, show_default=True, help="Level of the intervals of coefficients.")
@several(
    "--test", "hypotheses", "HYPOTHESIS", "Also test, such as 'age = 0' or 'age = income, calls = 0'; may be repeated."
)
@JSON
def show_command(runs: tuple[Path, ...], level: float, hypotheses: tuple[str, ...], *, as_json: bool) -> None:
    """Show what the run in the folder RUN released: coefficients and measures. Costs no privacy.

    Standard errors need a job with intervals = true. Several runs are shown side by side, with measures,
    guarantee and settings. Choosing the best of several runs on the same records spends the ε of all of them.
    """
    from vfl.apps.report.comparison import as_text, compare
    from vfl.launch.run.result import Result

    if len(runs) > 1:
        if hypotheses:
            raise click.UsageError("--test takes a single run")
        found = compare(runs)
        tell([one.to_dict() for one in found], as_text(found), as_json=as_json)
        return
    (run,) = runs
    result = Result.load(run)
    result.require_unaltered(f"the run in {str(run)!r} cannot be relied on")
    measured = {name: findings.shown() for name, findings in result.findings.items()}
    lines = [f"{name}: {findings}" for name, findings in result.findings.items()]
    told: dict[str, Any] = {"measures": measured}
    if result.inference is None and not hypotheses:
        told["coefficients"] = dict(result.original)
        lines = [str(result)]
    else:
        summary, tests = result.summary(level), [result.test(hypothesis) for hypothesis in hypotheses]
        told |= summary.to_dict() | {"tests": [dataclasses.asdict(test) for test in tests]}
        lines = [str(summary), *map(str, tests), *lines]
    tell(told, *lines, as_json=as_json)
