"""`vfl export RUN`: write a model split by party, or as a plain scikit-learn pipeline."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import click


@click.command("export")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--party", metavar="NAME", help="Write the part of one party, which holds its own coefficients only.")
@click.option(
    "--sklearn",
    "plain",
    is_flag=True,
    help="Write a scikit-learn Pipeline for pickle.load or joblib.load; it needs no vfl.",
)
@click.option(
    "--scorecard",
    "points",
    is_flag=True,
    help="Write points per category as a CSV file, for a logistic model of binned and categorical columns.",
)
@click.option(
    "--tracking",
    "tracker",
    is_flag=True,
    help="Write parameters, metrics and tags as JSON, for experiment trackers; without --output, print them.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="New file; without any of the above a new folder for the parts of all parties.",
)
def command(run: Path, party: str | None, output: Path | None, *, plain: bool, points: bool, tracker: bool) -> None:
    """Write the model in the folder RUN for others to apply: split by party, for scikit-learn, or as a scorecard.

    A party predicts with its part by vfl predict --part NAME=FILE. The pipeline takes one frame of all columns; it fills,
    clamps and encodes them as declared. It does not join parties, and it carries no certificate. The scorecard has 600
    points at even odds and 20 more when the odds of the negative class double.
    """
    from vfl.errors import OutputError, SpecificationError
    from vfl.launch.run.result import Result
    from vfl.launch.run.tracking import tracked
    from vfl.writing import write_whole

    if tracker and (plain or points or party is not None):
        raise SpecificationError("--tracking writes no model: give it without --party, --sklearn and --scorecard")
    if plain and party is not None:
        raise SpecificationError("a party's part is not a scikit-learn model: give --party or --sklearn")
    if points and (plain or party is not None):
        raise SpecificationError("a scorecard is of the whole model: give --scorecard without --party and --sklearn")
    if output is None and not tracker:
        raise click.MissingParameter(param_hint="'--output'", param_type="option")
    result = Result.load(run)
    if output is None:
        click.echo(json.dumps(tracked(result).to_dict(), indent=2, ensure_ascii=False))
        return
    if output.exists() and (plain or points or tracker or party is not None):
        raise OutputError(f"the output file {str(output)!r} exists: name a new one")
    if plain:
        write_whole(output, pickle.dumps(result.to_sklearn()))
    elif tracker:
        write_whole(output, json.dumps(tracked(result).to_dict(), indent=2, ensure_ascii=False))
    elif points:
        write_whole(output, result.scorecard(digits=1).to_csv())
    elif party is not None:
        write_whole(output, result.part(party).to_json())
    else:
        for path in result.save_parts(output).values():
            click.echo(path)
        return
    click.echo(output)
