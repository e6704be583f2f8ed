"""`vfl resume RUN`: continue a run that was cut off."""

from __future__ import annotations

from pathlib import Path

import click

from vfl.cli.run import resumable, show


@click.command("resume")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--key", type=click.Path(), metavar="FILE", help="The key that signs the certificate (default: your own)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON, and no progress.")
def command(run: Path, key: str | None, *, as_json: bool) -> None:
    """Continue the run in the folder RUN after the last release in its log. A finished run is only shown."""
    from vfl.cli.progress import Progress
    from vfl.job import file as jobfile
    from vfl.job.environment import Environment
    from vfl.launch.run import checkpoint
    from vfl.launch.run.folder import MODEL, check_folder
    from vfl.launch.run.result import Result
    from vfl.launch.sources import data_of
    from vfl.launch.train import resume

    if (run / MODEL).exists():
        if not as_json:
            click.echo(f"the run in {str(run)!r} is finished: nothing is left to do", err=True)
        show(Result.load(run), run, as_json=as_json)
        return
    check_folder(run)
    job, _ = jobfile.read(run / jobfile.NAME)
    kept = dict(checkpoint.read(run, job)[0].environment)
    engine, address = kept.pop("engine", "ray"), kept.pop("address", None)
    environment = Environment(**kept)
    data = data_of(job, environment)
    earlier = checkpoint.charged_before(run, job)
    with resumable(run), Progress(quiet=as_json, earlier=earlier) as progress:
        result = resume(
            run,
            data,
            engine=engine,
            address=address,
            key=key,
            watch=progress,
            placement=environment.placement,
            faults=environment.faults,
        )
    show(result, run, as_json=as_json)
