"""`vfl resume RUN`: continue an interrupted run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from vfl.apps.cli.options import JSON_ALONE, RUN
from vfl.apps.cli.options.site import Where, members_of, site_options, watched
from vfl.apps.cli.training.run import resumable, show
from vfl.apps.cli.training.tune import show_tuned, telling

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from vfl.job import Job
    from vfl.job.site import Site


@click.command("resume")
@RUN
@site_options("ray")
@JSON_ALONE
def command(run: Path, where: Where, *, as_json: bool) -> None:
    """Continue the run in the folder RUN after the last release in its log. A finished run is only shown.

    A run goes back to its site. --at names another address of the cluster, such as a head that was restarted elsewhere, or
    another place of the federation file.
    """
    from vfl.apps.cli.terminal.progress import Progress
    from vfl.apps.tuning.run import is_tune
    from vfl.job import file as jobfile
    from vfl.job.site import Federated, site_of_log
    from vfl.launch.run import checkpoint
    from vfl.launch.run.folder import MODEL, check_folder
    from vfl.launch.run.result import Result
    from vfl.launch.train import resume

    if is_tune(run):
        _resume_tune(run, where, as_json=as_json)
        return
    if (run / MODEL).exists():
        if not as_json:
            click.echo(f"the run in {str(run)!r} is finished: nothing is left to do", err=True)
        show(Result.load(run), run, as_json=as_json)
        return
    check_folder(run)
    job, _ = jobfile.read(run / jobfile.NAME)
    kept = checkpoint.read(run, job)[0].environment
    site = where.resumed(site_of_log(kept), job, run)
    where = replace(where, at=str(site.file) if isinstance(site, Federated) else None)
    earlier = checkpoint.charged_before(run, job)
    with (
        resumable(run, site),
        watched(where, members_of(job, where.federation), job=job.name, quiet=as_json),
        Progress(quiet=as_json, earlier=earlier) as progress,
    ):
        result = resume(run, _kept_data(job, kept, site), at=site, watch=progress)
    show(result, run, as_json=as_json)


def _kept_data(job: Job, kept: Mapping[str, Any], site: Site) -> Any:
    """Return the data that the log of a run names: sources; across organisations {party: owner's name of the source}."""
    from vfl.job.environment import Environment
    from vfl.job.site import Federated
    from vfl.launch.sources import data_of

    if isinstance(site, Federated):
        return kept.get("sources") or {}
    return data_of(job, Environment.of_log(kept))


def _resume_tune(run: Path, where: Where, *, as_json: bool) -> None:
    from vfl.apps.tuning.run import read_state, resume
    from vfl.job.site import Federated, site_of_log

    tuning, _, _, kept = read_state(run)
    job = tuning.jobs[0]
    site = where.resumed(site_of_log(kept), job, run)
    where = replace(where, at=str(site.file) if isinstance(site, Federated) else None)
    with resumable(run), watched(where, members_of(job, where.federation), job=job.name, quiet=as_json):
        tuned = resume(run, _kept_data(job, kept, site), at=site, watch=telling(quiet=as_json))
    show_tuned(tuned, run, as_json=as_json)
