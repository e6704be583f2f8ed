"""`vfl tune JOB --candidates FILE`: train several variants of a job and release the best, under one ε."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vfl.apps.cli.options import JSON_ALONE, OUTPUT, path_option, print_json
from vfl.apps.cli.options.jobs import SOURCES, job_argument, placed, read_job
from vfl.apps.cli.options.site import Where, members_of, site_options, watched
from vfl.apps.cli.training.run import resumable, show, summary, unused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vfl.apps.tuning.run import Tuned


@click.command("tune")
@job_argument
@path_option("--candidates", "TOML: candidates = [{}, {penalty.strength = 1e-3}], score, inclusion.", required=True)
@site_options("ray")
@SOURCES
@OUTPUT
@JSON_ALONE
def command(
    job: str,
    assignments: tuple[str, ...],
    candidates: Path,
    where: Where,
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Train every candidate of FILE, score each on the held-out records, and release the best one.

    The released model and its score together have the job's ε and δ. The other candidates, their scores, and how many were
    considered stay secret. `vfl plan JOB --candidates FILE` shows the cost.
    """
    from vfl.apps.tuning.candidates import read_candidates
    from vfl.apps.tuning.forecast import TunePlan
    from vfl.apps.tuning.run import tune
    from vfl.launch.align import remembered_records
    from vfl.launch.sources import data_of

    spec, environment = read_job(job, assignments)
    given = read_candidates(candidates)
    site, data = placed(where, spec, environment)
    records = None
    if where.federation is None:
        records = (
            remembered_records(spec, environment.data)
            if environment.table is None
            else int(data_of(spec, environment).data.num_rows)
        )
    if records is not None:
        from vfl.apps.tuning.candidates import tuning_of

        planned = TunePlan(tuning_of(spec, **given).with_delta(records), records)
        if not as_json:
            click.echo(str(planned), err=True)
    folder = output or unused(spec.name)
    with resumable(folder), watched(where, members_of(spec, where.federation), job=spec.name, quiet=as_json):
        tuned = tune(
            spec,
            data=data,
            n_records=records,
            at=site,
            ledger=environment.ledger,
            output=folder,
            watch=telling(quiet=as_json),
            **given,
        )
    show_tuned(tuned, folder, as_json=as_json)


def telling(*, quiet: bool) -> Callable[[object], None]:
    """Return a watcher that prints one line per trial. The line is the same for every candidate."""
    from vfl.apps.tuning.run import Begun

    def tell(event: object) -> None:
        if isinstance(event, Begun) and not quiet:
            click.echo(f"candidate {event.number} of {event.of}: {event.plan.messages} messages", err=True)

    return tell


def show_tuned(tuned: Tuned, folder: Path, *, as_json: bool) -> None:
    """Print the winner."""
    if as_json:
        score = None if tuned.score is None else {"value": tuned.score.value, "error": tuned.score.error}
        choice = {"candidate": tuned.candidate, "of": len(tuned.tuning.jobs), "score": score}
        print_json(summary(tuned.result, folder, ()) | {"choice": choice})
        return
    click.echo(repr(tuned).splitlines()[0])
    show(tuned.result, folder, as_json=False)
