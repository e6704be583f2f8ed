"""`vfl run`: train, print the outcome, and write model and certificate to the folder of the run."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vfl.apps.cli import INTERRUPTED
from vfl.apps.cli.options import JSON_ALONE, OUTPUT, path_option, print_json
from vfl.apps.cli.options.jobs import SOURCES, job_argument, placed, read_job
from vfl.apps.cli.options.site import Where, members_of, site_options, watched
from vfl.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vfl.launch.run.result import Result


LONGEST = 60
"""Largest number of characters that the name of a run's folder takes from the job's name."""


@click.command("run")
@job_argument
@site_options("ray")
@SOURCES
@OUTPUT
@path_option("--warm-start", "Start from this run's released model.", metavar="RUN")
@click.option("--track", metavar="URI", help="Log the finished run to MLflow at URI.")
@JSON_ALONE
def command(
    job: str,
    assignments: tuple[str, ...],
    where: Where,
    output: Path | None,
    warm_start: Path | None,
    track: str | None,
    *,
    as_json: bool,
) -> None:
    """Train JOB: the path of a job file, or the name of a bundled example.

    The run's folder holds the model, its certificate, and the files that vfl resume, predict, verify, evaluate and report
    read.
    """
    from vfl.apps.cli.terminal.progress import Progress
    from vfl.job.file import EXAMPLE
    from vfl.launch import train
    from vfl.launch.run.tracking import check_tracker
    from vfl.launch.sources import row_order_warnings
    from vfl.launch.train import starting_from

    if track is not None:
        check_tracker(track)  # here, so that a failure leaves no run folder
    spec, environment = read_job(job, assignments)
    spec = starting_from(spec, warm_start)  # here, so that a failure leaves no run folder
    if isinstance(environment.table, str) and environment.table.startswith(EXAMPLE):
        where = replace(where, otherwise="inprocess")  # an example takes less time than starting actors
    site, data = placed(where, spec, environment)
    warnings = () if where.federation is not None else row_order_warnings(spec, environment.data)
    with contextlib.ExitStack() as stack:
        stack.enter_context(watched(where, members_of(spec, where.federation), job=spec.name, quiet=as_json))
        folder = output or unused(spec.name)
        stack.enter_context(resumable(folder, site))
        progress = stack.enter_context(Progress(quiet=as_json))
        for warning in () if as_json else warnings:
            click.echo(f"warning: {warning}", err=True)
        result = train(
            spec,
            data,
            at=site,
            ledger=environment.ledger,
            output=folder,
            watch=progress,
        )
    show(result, folder, as_json=as_json, warnings=warnings)
    if track is None:
        return
    try:
        ident = result.log_to_mlflow(uri=track, run_name=folder.name)
    except OutputError as error:
        error.add_note(f"the run is finished and kept in {str(folder)!r}; Result.log_to_mlflow can log it later")
        raise
    click.echo(f"logged to MLflow as run {ident}", err=True)


@contextlib.contextmanager
def resumable(folder: Path, site: Any = None) -> Iterator[None]:
    """Print the command that continues the run if Ctrl-C interrupts the code in this block; on a cluster, print it at once.

    Ray ends this process without an error of ours a minute after the cluster's head has died.
    """
    from vfl.apps.tuning.run import is_tune
    from vfl.launch.run import checkpoint

    if getattr(site, "address", None) is not None:
        click.echo(
            f"the run is kept in {folder}; if this process is cut off, continue with: vfl resume {folder}", err=True
        )
    try:
        yield
    except KeyboardInterrupt:
        if not (folder / checkpoint.NAME).exists() and not is_tune(folder):
            raise
        click.echo(f"interrupted; the run keeps its releases; continue with: vfl resume {folder}", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None


def unused(name: str) -> Path:
    """Make and return runs/NAME-TIME. If the folder exists, append the first free number. Any job name is allowed."""
    plain = re.sub(r"[^\w.-]+", "-", name).lstrip(".-")[:LONGEST] or "run"
    folder = Path("runs") / f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}"
    for candidate in (folder, *(folder.with_name(f"{folder.name}-{number}") for number in range(2, 1000))):
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            continue
        return candidate
    return folder


def show(result: Result, folder: Path, *, as_json: bool, warnings: Sequence[str] = ()) -> None:
    """Print the outcome of a run. warnings : further warnings, which only the JSON contains."""
    from vfl.launch.run.warnings import doubts
    from vfl.launch.run.wide_bounds import wide_bounds

    wide = (*doubts(result), *wide_bounds(result))
    if as_json:
        print_json(summary(result, folder, (*warnings, *wide)))
        return
    for warning in wide:
        click.echo(f"warning: {warning}", err=True)
    click.echo()
    for name, findings in result.findings.items():
        click.echo(f"{name}: {findings}")
    click.echo(str(result.certificate))
    click.echo(f"model and certificate: {folder}")
    if said := headline(result):
        click.echo(said)


HEADLINES = {"auc": "AUC", "d2": "D²", "r2": "R²"}
"""Names that the last line of `vfl run` prints for measures. The line shows the first measure here that the run has."""


def headline(result: Result) -> str | None:
    """Return the main measure on held-out records, with its 95 % interval; None without measures."""
    from vfl.measures.estimates import name_of

    findings = result.findings.get("held out")
    for name, shown in HEADLINES.items():
        if findings is not None and (measure := findings.measures.get(name)) is not None:
            value = "too noisy to tell:" if measure.too_noisy else f"{measure.value:.3f}"
            said = f"{name_of(name, measure).replace(name, shown, 1)} {value} {measure.spread}"
            return f"{said} on {findings.n_records:,} held-out records (95 %)"
    return None


def summary(result: Result, folder: Path, warnings: Sequence[str]) -> dict[str, Any]:
    """Return the outcome of a run as plain values."""
    from vfl.planning import warnings_of

    certificate = result.certificate
    private, (epsilon, delta) = certificate.noise != "none", certificate.guaranteed
    return {
        "output": str(folder),
        "private": certificate.private,
        "epsilon": epsilon if private else None,
        "delta": delta if private else None,
        "adjacency": certificate.adjacency,
        "flags": list(certificate.flags),
        "warnings": [
            *(warnings_of(epsilon, delta, certificate.n_records) if private else ()),
            *warnings,
        ],
        **result.in_original_units(),
        "findings": {name: findings.shown() for name, findings in result.findings.items()},
    }
