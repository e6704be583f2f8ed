"""`vfl run JOB`: train, show what happened, and leave model and certificate in a fresh folder."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vfl.cli.jobs import job_argument, read_job

if TYPE_CHECKING:
    import pyarrow as pa

    from vfl.launch.result import Result


@click.command("run")
@job_argument
@click.option(
    "--engine", type=click.Choice(["ray", "inprocess"]), default="ray", show_default=True, help="How parties run."
)
@click.option("--address", metavar="ADDRESS", help="A Ray cluster; without it a local Ray is started.")
@click.option("--ledger", metavar="FILE", help="The ledger in which the budget of the job's data set is kept.")
@click.option(
    "--key", metavar="FILE", help="The key that signs the certificate (default: your own, made on first use)."
)
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="FOLDER", help="A new folder (default: runs/NAME-TIME)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON, and no progress.")
def command(
    job: str,
    assignments: tuple[str, ...],
    engine: str,
    address: str | None,
    ledger: str | None,
    key: str | None,
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Train JOB: the path of a job file, or the name of a bundled example."""
    from vfl.cli.progress import Progress
    from vfl.launch import train
    from vfl.launch.simulation import split

    spec, environment = read_job(job, assignments)
    address = address or environment.address
    ledger = ledger or environment.ledger
    folder = output or _unused(Path("runs") / f"{spec.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    data, held_out = split(spec, environment)
    kept = {**environment.to_dict(), "engine": engine, "address": address}
    with Progress(quiet=as_json) as progress:
        result = train(
            spec,
            data,
            engine=engine,
            address=address,
            ledger=ledger,
            policies=environment.policies,
            indexes=environment.indexes,
            cores=environment.cores,
            output=folder,
            key=key,
            watch=progress,
            environment=kept,
        )
    show(result, folder, held_out, as_json=as_json)


def _unused(folder: Path) -> Path:
    """Make and return the folder, or the first of its name with a number that nobody has made."""
    for candidate in (folder, *(folder.with_name(f"{folder.name}-{number}") for number in range(2, 1000))):
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            continue
        return candidate
    return folder


def show(result: Result, folder: Path, held_out: pa.Table | None, *, as_json: bool) -> None:
    """Print what a run came to."""
    from vfl.launch.simulation import evaluate

    evaluation = evaluate(result, held_out) if held_out is not None else None
    if as_json:
        click.echo(json.dumps(_summary(result, folder, evaluation), ensure_ascii=False))
        return
    click.echo()
    click.echo(str(result.certificate))
    if evaluation is not None:
        measures = ", ".join(f"{name} {value:.4g}" for name, value in evaluation.items() if name != "flag")
        click.echo(f"hold-out: {measures}  ({evaluation['flag']})")
    click.echo(f"model and certificate: {folder}")


def _summary(result: Result, folder: Path, evaluation: dict[str, Any] | None) -> dict[str, Any]:
    certificate = result.certificate
    private = certificate.noise != "none"
    return {
        "output": str(folder),
        "private": certificate.private,
        "epsilon": certificate.epsilon if private else None,
        "delta": certificate.delta if private else None,
        "adjacency": certificate.adjacency,
        "flags": list(certificate.flags),
        "coef": dict(zip(result.feature_names, map(float, result.coef_), strict=True)),
        "intercept": result.intercept_,
        "evaluation": evaluation,
    }
