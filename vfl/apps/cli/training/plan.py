"""`vfl plan` and `vfl align`: show what a job would release and cost, and find its records, before it spends any budget."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

import click

from vfl.apps.cli.options import JSON, JSON_ALONE, path_option, print_json, records_option, tell
from vfl.apps.cli.options.jobs import SOURCES, job_argument, placed, read_job, require_files
from vfl.apps.cli.options.site import Where, site_options, watched

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from vfl.job import Job
    from vfl.job.environment import Environment
    from vfl.network.federation.file import Federation
    from vfl.planning import Forecast, Plan
    from vfl.planning.cost import Cost


@click.command("plan")
@job_argument
@records_option("Records common to all parties (default: those of the simulated table, or the n of vfl align).")
@path_option("--plot", "Draw expected quality, noise and cost against ε into an .html page.")
@click.option(
    "--positives", type=float, metavar="SHARE", help="Your guess of the share of positive labels (default: 0.5)."
)
@click.option(
    "--signal",
    type=float,
    metavar="VALUE",
    help="Your guess of the AUC, or R², of the best model without noise (default: a weak to a strong one).",
)
@click.option("--explain", is_flag=True, help="Show every release and choice; memory, bytes and time of each node.")
@site_options("ray")
@path_option("--candidates", "Plan a private choice among the candidates of FILE instead (vfl tune).")
@click.option(
    "--link",
    metavar="RATE/TRIP",
    help="Bound rounds, bytes and time on such connections to the coordinator, e.g. 100Mbit/20ms.",
)
@JSON
def plan_command(
    job: str,
    assignments: tuple[str, ...],
    records: int | None,
    plot: Path | None,
    positives: float | None,
    signal: float | None,
    candidates: Path | None,
    where: Where,
    *,
    explain: bool,
    link: str | None,
    as_json: bool,
) -> None:
    """Show the guarantee of JOB and its expected quality and cost. Reads no party's records."""
    from vfl.launch.sites.open_site import check_job, dealer_of, open_site, require_fit
    from vfl.launch.sources import data_of, row_order_warnings
    from vfl.network.federation.file import read_federation
    from vfl.planning import forecast, plan

    spec, environment = read_job(job, assignments)
    across, federation = None, where.federation
    if federation is not None:
        across = read_federation(federation)
        check_job(spec, across)
    else:
        require_fit(open_site(where.site(spec, environment.site), environment.site), spec)
    noted = None
    if records is None and (across is not None or environment.table is None):
        noted = _noted(spec, environment, federation, across)
    if records is None and noted is None:
        require_files(environment)
    warnings = row_order_warnings(spec, {} if across is not None else environment.data)
    records = records or noted or int(data_of(spec, environment).data.num_rows)
    if candidates is not None:
        from vfl.apps.tuning.candidates import read_candidates, tuning_of
        from vfl.apps.tuning.forecast import TunePlan

        choice = TunePlan(tuning_of(spec, **read_candidates(candidates)).with_delta(records), records)
        tell(choice.to_dict(), choice, as_json=as_json)
        return
    planned = dataclasses.replace(plan(spec, records, link=link), aligned=noted is not None)
    expected = forecast(spec, records, positives=positives, signal=signal)
    if plot is not None:
        from vfl.apps.report import write_plan

        write_plan(planned, plot, positives=positives, signal=signal)
    if as_json:
        print_json(_to_dict(planned, expected, records, warnings, environment))
        return
    click.echo(planned.explain() if explain else planned.outline(expected))
    if across is not None:
        dealer = dealer_of(spec, across)
        third = "" if dealer is None else f"; dealer {dealer}"
        parties = ", ".join(spec.partition.parties)
        click.echo(f"  across     federation {across.name}, digest {across.digest}: {parties}{third}")
    for warning in warnings:
        click.echo(f"  warning    {warning}")
    _print_costs(planned, environment, nodes=explain)
    if noted is not None:
        click.echo(f"n was found by vfl align: {noted} records; runs start from that alignment")
    if plot is not None:
        click.echo(f"plot: {plot}")


def _noted(job: Job, environment: Environment, federation: Path | None, across: Federation | None) -> int:
    """Return the number n that an earlier alignment stored. Raises UsageError if there is none."""
    from vfl.launch.align import remembered_records

    noted = remembered_records(job, environment.data, across)
    if noted is None:
        align = f"vfl align JOB --at {federation}" if across is not None else "vfl align JOB"
        first = f"; or run {align}, which records it" if job.ids else ""
        raise click.UsageError(f"give the number of records: --records N{first} (a plan reads no party's data)")
    return noted


def _costs(planned: Plan, environment: Environment) -> dict[str, Cost]:
    from vfl.launch.sites.bundles import cpus_of
    from vfl.launch.sites.open_site import usable_cores
    from vfl.planning.cost import APART, CLUSTER, RAY, TRANSPORTS, Machine, cost_of
    from vfl.planning.run_plan import sizes_of

    declared, job = environment.site, planned.job
    here = declared
    if not environment.policies:
        here = declared.for_simulation(job.partition.parties, job.trust_name, usable_cores())
    return {
        transport: cost_of(
            sizes_of(planned),
            Machine.here(),
            transport,
            shards=declared.shards if transport in (RAY, CLUSTER) else 1,
            # On this machine all cores compute: during a pass for one party after another, otherwise for all parties at once.
            threads=max(1, int(cpus_of(declared, apart=True))) if transport in APART else usable_cores(),
            processes=len(here.processes(job.partition.parties)) if transport == RAY else None,
        )
        for transport in TRANSPORTS
    }


def _print_costs(planned: Plan, environment: Environment, *, nodes: bool) -> None:
    """Print advice on memory. nodes : True also prints a table of memory, bytes and time for each transport."""
    from vfl.planning.cost import Machine, advice, table
    from vfl.planning.run_plan import sizes_of

    machine = Machine.here()
    for sentence in advice(sizes_of(planned), machine):
        click.echo(f"  memory     {sentence}")
    if nodes and planned.sharing is not None:
        click.echo("costs of nodes are not predicted for a run on shares, whose participants wait for one another")
    elif nodes:
        click.echo("\n".join(table(cost) for cost in _costs(planned, environment).values()))
        if not machine.measured:
            click.echo("costs of a typical server; for those of this machine run vfl doctor --measure")


def _to_dict(
    planned: Plan, expected: Forecast, records: int, warnings: Sequence[str], environment: Environment
) -> dict[str, Any]:
    """Return the plan as plain values, for --json. records : n, including held-out records."""
    from vfl.crypto.alignment import reveals
    from vfl.job.flags import voids
    from vfl.planning.cost import Machine, advice
    from vfl.planning.run_plan import sizes_of
    from vfl.privacy.events import OnPart, bare

    job, problem = planned.job, planned.problem
    private = job.privacy is not None
    return {
        "digest": job.digest,
        "n_records": problem.n_records * planned.n_fits,
        "held_out": 0 if job.split is None else records - problem.n_records,
        "private": private and not voids(planned.flags),
        "flags": list(planned.flags),
        "warnings": [*planned.warnings, *warnings],
        "epsilon": planned.epsilon if private else None,
        "delta": problem.delta,
        "releases": [
            {"type": type(bare(event)).__name__, **dataclasses.asdict(bare(event)), "count": count}
            | ({"part": event.part} if isinstance(event, OnPart) else {})
            for event, count in planned.releases
        ],
        "messages": planned.messages,
        "bytes": planned.n_bytes,
        "seconds": planned.seconds,
        "nodes": {transport: dataclasses.asdict(cost) for transport, cost in _costs(planned, environment).items()}
        if planned.sharing is None
        else None,
        "link": None
        if planned.link is None
        else dataclasses.asdict(planned.link)
        | {
            stage: dataclasses.asdict(found) | {"seconds": found.seconds(planned.link)}
            for stage, found in planned.transfers.items()
        },
        "placement": list(advice(sizes_of(planned), Machine.here())),
        "alignment": {
            "id": {party: list(columns) for party, columns in job.ids.items()},
            "seconds_on_one_core": planned.alignment_seconds,
            "reveals": reveals(len(job.ids), job.join),
        }
        if job.ids
        else None,
        "forecast": expected.to_dict(),
        "objective": problem.describe(),
        "asks": {evaluation.name: evaluation.explain() for evaluation in planned.evaluations},
        "choices": list(planned.solver.explain(problem)),
    }


@click.command("align")
@job_argument
@site_options("ray")
@SOURCES
@click.option("--again", is_flag=True, help="Make a new alignment, even if the parties still hold a valid one.")
@JSON_ALONE
def align_command(job: str, assignments: tuple[str, ...], where: Where, *, again: bool, as_json: bool) -> None:
    """Find the records that all parties of JOB have, by private set intersection: no party shows its ids to another.

    A party whose data are files stores the positions of its common rows, and later runs of the job read them. Repeat the
    command to continue an interrupted alignment. An alignment that still fits the files is reused.
    """
    from vfl.apps.cli.terminal.progress import Progress
    from vfl.crypto.alignment import reveals
    from vfl.launch.align import align

    spec, environment = read_job(job, assignments)
    site, data = placed(where, spec, environment)
    started = time.monotonic()
    with watched(where, spec.partition.parties, job=spec.name, quiet=as_json), Progress(quiet=as_json) as progress:
        aligned = align(spec, data, at=site, again=again, watch=progress)
    seconds, seen = time.monotonic() - started, reveals(len(spec.partition.parties), spec.join)
    if as_json:
        outcome = {
            "n_records": aligned.n_records,
            "sizes": dict(aligned.sizes),
            "alignment": aligned.alignment,
            "kept": environment.table is None,
            "reused": aligned.reused,
            "seconds": seconds,
            "revealed": seen,
        }
        print_json(outcome)
        return
    click.echo(f"{aligned}; {seconds:.1f} s")
    if aligned.reused:
        click.echo("every party still holds an alignment of these files, which is reused; --again makes a new one")
        return
    for who, what in seen.items():
        click.echo(f"  {'public' if who == 'outsider' else f'{who} learned'}: {what}")
    if environment.table is None:
        click.echo("each party stores its rows locally; runs of this job start from them")
    else:
        click.echo("nothing is stored: the parties are simulated from one table")
