"""`vfl resume RUN`: continue a run that was cut off."""

from __future__ import annotations

from pathlib import Path

import click

from vfl.cli.options.federated import federated, federation_options, members_of, watched, watching_options
from vfl.cli.training.run import resumable, show


@click.command("resume")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--key", type=click.Path(), metavar="FILE", help="The key that signs the certificate (default: your own)."
)
@federation_options
@watching_options
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON, and no progress.")
def command(
    run: Path,
    key: str | None,
    federation: Path | None,
    name: str | None,
    identity: Path | None,
    metrics: str | None,
    log: Path | None,
    *,
    as_json: bool,
) -> None:
    """Continue the run in the folder RUN after the last release in its log. A finished run is only shown.

    A run across organisations finds its federation file and key where they were; --federation and --identity name others.
    """
    from vfl.cli.terminal.progress import Progress
    from vfl.job import file as jobfile
    from vfl.job.environment import Environment
    from vfl.launch.run import checkpoint
    from vfl.launch.run.folder import MODEL, check_folder
    from vfl.launch.run.result import Result
    from vfl.launch.sources import data_of
    from vfl.launch.train import resume
    from vfl.tuning.run import is_tune

    if is_tune(run):
        resume_tune(run, key, federation, name, identity, as_json=as_json)
        return
    if (run / MODEL).exists():
        if not as_json:
            click.echo(f"the run in {str(run)!r} is finished: nothing is left to do", err=True)
        show(Result.load(run), run, as_json=as_json)
        return
    check_folder(run)
    job, _ = jobfile.read(run / jobfile.NAME)
    kept = dict(checkpoint.read(run, job)[0].environment)
    engine, address = kept.pop("engine", "ray"), kept.pop("address", None)
    began, own, asked = kept.pop("federation", None), kept.pop("identity", None), kept.pop("sources", {})
    environment = Environment(**kept)
    if federation is not None and began is None:
        raise click.UsageError(f"the run in {str(run)!r} did not begin across organisations: leave out --federation")
    federation, identity = federation or (began and Path(began)), identity or (own and Path(own))
    across = federated(federation, name, identity, job, only={"metrics": metrics, "log": log})
    data = asked if across else data_of(job, environment)
    earlier = checkpoint.charged_before(run, job)
    with (
        resumable(run),
        watched(metrics, log, federation=federation, parties=members_of(job, federation), job=job.name, quiet=as_json),
        Progress(quiet=as_json, earlier=earlier) as progress,
    ):
        result = resume(
            run,
            data,
            engine=engine,
            address=address,
            key=key,
            watch=progress,
            placement=None if across else environment.placement,
            faults=environment.faults,
            **across,
        )
    show(result, run, as_json=as_json)


def resume_tune(
    run: Path, key: str | None, federation: Path | None, name: str | None, identity: Path | None, *, as_json: bool
) -> None:
    """Continue the tune in a folder."""
    from vfl.cli.training.tune import show_tuned, telling
    from vfl.job.environment import Environment
    from vfl.launch.sources import data_of
    from vfl.tuning.run import read_state, resume

    tuning, _, _, kept = read_state(run)
    job = tuning.jobs[0]
    engine, address = kept.pop("engine", "ray"), kept.pop("address", None)
    began, own, asked = kept.pop("federation", None), kept.pop("identity", None), kept.pop("sources", {})
    environment = Environment(**kept)
    federation, identity = federation or (began and Path(began)), identity or (own and Path(own))
    across = federated(federation, name, identity, job)
    with resumable(run):
        tuned = resume(
            run,
            asked if across else data_of(job, environment),
            engine=engine,
            address=address,
            key=key,
            watch=telling(quiet=as_json),
            placement=None if across else environment.placement,
            faults=environment.faults,
            **across,
        )
    show_tuned(tuned, run, as_json=as_json)
