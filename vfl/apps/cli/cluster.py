"""`vfl submit`: send a job to a Ray cluster, where `ray job` shows and ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vfl.apps.cli.options import JSON, PATH, several, tell

if TYPE_CHECKING:
    from pathlib import Path


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
@JSON
def submit(
    job: Path | None,
    run: str | None,
    address: str | None,
    folder: str,
    assignments: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """Send the text of the job file JOB to a Ray cluster; data stay where they are.

    The job is checked here first. Afterwards: ray job status ID, ray job logs ID --follow, ray job stop ID.
    Releases of a stopped job stay charged; continue its run with --resume.
    """
    from vfl.job import file as jobfile
    from vfl.launch.sites.submission import RUNS, JobServer

    if (job is None) == (run is None):
        raise click.UsageError("give a job file, or --resume with the folder of a run")
    if job is None:
        sent = JobServer(address).resume(str(run), folder=folder)
        output = str(run)
    else:
        spec, _ = jobfile.read(job, assignments)
        text = job.read_text(encoding="utf-8")
        arguments = [part for value in assignments for part in ("--set", value)]
        sent = JobServer(address).submit(spec.name, text, folder=folder, arguments=arguments)
        output = f"{RUNS}/{sent}"
    tell({"id": sent, "output": output}, f"{sent}: sent; its run is kept in {output}", as_json=as_json)
