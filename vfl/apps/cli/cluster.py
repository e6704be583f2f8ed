"""`vfl submit`: send a job to a Ray cluster, where `ray job` shows and ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vfl.apps.cli.options import JSON, PATH, several, tell
from vfl.errors import FederationError

if TYPE_CHECKING:
    from pathlib import Path

    from vfl.launch.engines.submission import JobServer

ADDRESS = click.option(
    "--address", metavar="URL", help="The cluster's job server, http://HEAD:8265 (default: RAY_ADDRESS)."
)


@click.command("submit")
@click.argument("job", metavar="JOB", required=False, type=PATH)
@click.option(
    "--resume", "run", metavar="RUN", help="Instead of a job: continue the run in this folder of the cluster."
)
@ADDRESS
@click.option(
    "--folder",
    required=True,
    metavar="FOLDER",
    help="Folder on the cluster's nodes for relative paths in JOB and for runs.",
)
@several("--set", "assignments", "KEY=VALUE", "Change a value of the job.")
@click.option("--ledger", metavar="FILE", help="The ledger of the job's data set, a path on the coordinator's node.")
@click.option(
    "--signing-key", "key", metavar="FILE", help="The key that signs the certificate, a path on the coordinator's node."
)
@click.option("--follow", is_flag=True, help="Wait, and show the job's output.")
@JSON
def submit(
    job: Path | None,
    run: str | None,
    address: str | None,
    folder: str,
    assignments: tuple[str, ...],
    ledger: str | None,
    key: str | None,
    *,
    follow: bool,
    as_json: bool,
) -> None:
    """Send the text of the job file JOB to a Ray cluster; data stay where they are.

    The job is checked here first. Afterwards: ray job status ID, ray job logs ID, ray job stop ID. Releases of a stopped job
    stay charged; continue its run with --resume.
    """
    from vfl.job import file as jobfile
    from vfl.launch.engines.submission import RUNS, JobServer

    if (job is None) == (run is None):
        raise click.UsageError("give a job file, or --resume with the folder of a run")
    if job is None:
        sent = JobServer(address).resume(str(run), folder=folder)
        output = str(run)
    else:
        spec, _ = jobfile.read(job, assignments)
        options: list[tuple[str, ...]] = [("--set", value) for value in assignments]
        options += [
            (name, value) for name, value in (("--ledger", ledger), ("--signing-key", key)) if value is not None
        ]
        text = job.read_text(encoding="utf-8")
        arguments = [part for option in options for part in option]
        sent = JobServer(address).submit(spec.name, text, folder=folder, arguments=arguments)
        output = f"{RUNS}/{sent.id}"
    tell({"id": sent.id, "output": output}, f"{sent.id}: sent; its run is kept in {output}", as_json=as_json)
    if follow:
        _follow(JobServer(address), sent.id)


def _follow(server: JobServer, ident: str) -> None:
    """Print the output of a job until the job ends. Raises FederationError if the job failed."""
    for text in server.follow(ident):
        click.echo(text, nl=False)
    job = server.status(ident)
    if job.status == "FAILED":
        raise FederationError(f"{job.id} failed: {f'{job.brief}; ' if job.brief else ''}see ray job logs {job.id}")
