"""`vfl predict` and `vfl evaluate`: apply a saved model to new records, or measure it on records with labels."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vfl.apps.cli.options import JSON, JSON_ALONE, RUN, new_file, pairs, print_json, several, tell
from vfl.apps.cli.options.jobs import CSV, POLICIES, records_of
from vfl.apps.cli.options.site import Where, site_options, watched
from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from vfl.launch.predict import Predictions


def _threshold(decides: str) -> Callable[[Any], Any]:
    said = f"{decides} T: a probability with logistic loss, else a linear predictor (default: that of the model)."
    return click.option("--threshold", type=float, metavar="T", help=said)


@click.command("predict")
@click.argument("models", metavar="RUN | PARTY=PART...", nargs=-1, required=True)
@several(
    "--data",
    "sources",
    "[PARTY=]FILE",
    "One table of all columns, or PARTY=FILE once per party; with a federation PARTY=NAME, the owner's name of a source.",
    type=click.Path(),
)
@CSV
@_threshold("Predict the positive class above")
@site_options("inprocess")
@POLICIES
@new_file("A new CSV file (default: print).")
@JSON_ALONE
def predict_command(
    models: tuple[str, ...],
    threshold: float | None,
    where: Where,
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print score, prediction and, under logistic or multinomial loss, probability for every record, by the model in RUN.

    The parties' own parts of the model (vfl export) may take the place of RUN.

    The score is the linear predictor: log-odds under logistic loss. If the job aligns records by ids, these records are
    aligned too: the ids are printed, and records that a party lacks are left out.
    """
    from vfl.apps.cli.terminal.progress import Progress, warnings_told
    from vfl.base.writing import write_whole
    from vfl.launch.predict import predict
    from vfl.launch.run.result import Result

    run = None if "=" in models[0] and not Path(models[0]).exists() else Path(models[0])
    site = where.site(None, parts=run is None)
    if not where.sources and where.federation is None:
        raise click.UsageError("Missing option '--data'.")
    if run is not None and len(models) > 1:
        raise SpecificationError("name the folder RUN of one model, or PARTY=FILE once for each party")
    model = pairs("a part of the model", "PARTY=FILE", models) if run is None else Result.load(run)
    parties = model.job.partition.parties if isinstance(model, Result) else tuple(model)
    data = records_of(where, parties, run=run)
    with watched(where, parties, quiet=as_json), warnings_told(), Progress(quiet=as_json) as progress:
        found = predict(model, data, at=site, threshold=threshold, watch=progress)
    if found.rows is not None and not as_json:
        without = ", ".join(f"{left:,} of {found.rows[party]:,} of {party}" for party, left in found.unmatched.items())
        without = f"; rows without a counterpart: {without}" if without else ""
        click.echo(f"matched {len(found):,} records{without}", err=True)
    if output is not None:
        write_whole(output, _table(found))
    if as_json:
        print_json(_summary(found, output))
    elif output is None:
        sys.stdout.write(_table(found))
    else:
        click.echo(f"predictions of {len(found.scores)} records: {output}")


def _rows(found: Predictions) -> list[list[Any]]:
    scores, chances = (list(found.numbers(name).values()) for name in ("score", "probability"))
    columns = [own.tolist() for own in (*scores, found.labels, *chances)]
    return [list(row) for row in zip(*([] if found.ids is None else [found.ids]), *columns, strict=True)]


def _names(found: Predictions) -> list[str]:
    return [*found.numbers("score"), "prediction", *found.numbers("probability")]


def _table(found: Predictions) -> str:
    """Return the text of a CSV file. The doubles that are read from it are the same to the bit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*([] if found.ids is None else [found.id_column]), *_names(found)])
    writer.writerows(_rows(found))
    return text.getvalue()


def _summary(found: Predictions, output: Path | None) -> dict[str, Any]:
    said: dict[str, Any] = {"n_records": len(found.scores), "id": found.id_column, "unmatched": found.unmatched}
    said |= {} if found.threshold is None else {"threshold": found.threshold}
    if output is not None:
        return said | {"output": str(output)}
    keys = ([] if found.ids is None else ["id"]) + _names(found)
    return said | {"predictions": [dict(zip(keys, row, strict=True)) for row in _rows(found)]}


@click.command("evaluate")
@RUN
@several(
    "--data",
    "sources",
    "[PARTY=]FILE",
    "Records with labels: one table of all columns, or PARTY=FILE once for each party.",
    type=click.Path(),
)
@CSV
@POLICIES
@_threshold("Measure decisions at")
@site_options("inprocess")
@JSON
def evaluate_command(run: Path, threshold: float | None, where: Where, *, as_json: bool) -> None:
    """Measure the model in the folder RUN on records with labels.

    The measures are exact and have no privacy protection. If the job aligns records by ids, these records are aligned too.
    With a federation, --data PARTY=NAME takes the source to which its owner gave this name. `vfl show RUN` prints the measures
    that the run released.
    """
    from vfl.apps.cli.terminal.progress import warnings_told
    from vfl.launch.predict import evaluate
    from vfl.launch.run.result import Result

    result = Result.load(run)
    parties = result.job.partition.parties
    site = where.site(result.job)
    if not where.sources and where.federation is None:
        raise click.UsageError("Missing option '--data'. (vfl show RUN prints the measures that the run released.)")
    data = records_of(where, parties, run=run)
    with watched(where, parties, quiet=as_json), warnings_told():
        found = {"data": evaluate(result, data, at=site, threshold=threshold)}
    plain = {name: findings.shown() for name, findings in found.items()}
    tell(plain, *(f"{name}: {findings}" for name, findings in found.items()), as_json=as_json)
