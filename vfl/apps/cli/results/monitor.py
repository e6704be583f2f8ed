"""`vfl monitor RUN`: compare the records of today with the training records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vfl.apps.cli.options import JSON_ALONE, RUN, path_option, several, tell
from vfl.apps.cli.options.jobs import CSV, POLICIES, named_sources, records_of
from vfl.apps.cli.options.site import Where, site_options, watched
from vfl.errors import OutputError, SpecificationError

if TYPE_CHECKING:
    from pathlib import Path

    from vfl.apps.monitor import NoisyCounts

DRIFTED = 7
"""Exit code if the drift of a column or of the score exceeds the threshold."""
BASELINE, HISTORY = "baseline.json", "monitored"
"""File in a run's folder with the counts of the training records, and folder with the counts of later days."""


@click.command("monitor")
@RUN
@several("--data", "sources", "[PARTY=]FILE", "Records of today, with labels: one table, or PARTY=FILE once per party.")
@several(
    "--training",
    "before",
    "[PARTY=]FILE",
    "Count the records of the training as the baseline, once; it is kept in RUN/baseline.json.",
)
@click.option(
    "--party", metavar="NAME", help="Compare this party's own columns exactly, here; nothing is charged or leaves."
)
@click.option("--epsilon", type=float, metavar="E", help="ε of each counting.")
@click.option("--delta", type=float, metavar="D", help="δ of each counting (default: from the records).")
@click.option(
    "--dataset", metavar="NAME", help="The ledger's account of the records of today (default: that of the job)."
)
@path_option("--ledger", "The ledger to which each counting is charged.")
@CSV
@POLICIES
@site_options("inprocess")
@click.option(
    "--drift",
    "threshold",
    type=float,
    default=0.2,
    show_default=True,
    metavar="T",
    help="Stability index that is drift.",
)
@path_option("--output", "HTML page; replaces an earlier one of this run.")
@JSON_ALONE
def command(
    run: Path,
    before: tuple[str, ...],
    party: str | None,
    epsilon: float | None,
    delta: float | None,
    dataset: str | None,
    ledger: Path | None,
    where: Where,
    threshold: float,
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print the population stability index of each column and of the score of the model in RUN; exit with 7 for drift.

    Each count of a data set is one release, (ε, δ)-DP for every record, which is charged to the ledger first. The baseline is
    released once. With --party, one owner compares its own columns without noise, from PARTY=FILE in --data and --training.
    Noisy counts stay in RUN/monitored, and the page shows all of them over time.
    """
    import time

    from vfl.apps.monitor import NoisyCounts, compare, count, count_own
    from vfl.apps.report.comparison import drift_page
    from vfl.apps.report.markup import element
    from vfl.base.writing import write_whole
    from vfl.launch.run.result import Result

    if not threshold > 0:
        raise SpecificationError(f"--drift is a positive stability index, such as 0.2, not {threshold:g}")
    if not where.sources:
        raise click.UsageError("Missing option '--data'.")
    result = Result.load(run)
    result.require_unaltered(f"the model in {str(run)!r} cannot be relied on")
    parties, title = result.job.partition.parties, f"{result.job.name}: drift"
    if output is not None and output.exists() and str(element("title", title)).encode() not in output.read_bytes():
        raise OutputError(f"the output file {str(output)!r} is not an earlier page of this run: name another file")
    if party is not None:
        if where.federation is not None or epsilon is not None or ledger is not None or not before:
            raise SpecificationError(
                "--party compares on this machine without noise: give --data and --training, and no --epsilon"
            )
        then, now = (count_own(result, party, _own(given, party, where.formats)) for given in (before, where.sources))
    else:
        if epsilon is None or ledger is None:
            raise SpecificationError(
                "each count is a release that costs ε: give --epsilon and --ledger, or --party to compare your own columns"
            )
        site, paid = where.site(result.job), epsilon
        account = dataset or result.job.dataset
        if account is None:
            raise SpecificationError(
                "a ledger keeps a budget for each data set, and the job names none: give --dataset NAME"
            )

        def counted(given: tuple[str, ...], account: str | None) -> NoisyCounts:
            data = records_of(where, parties, run=run, sources=given)
            with watched(where, parties, quiet=as_json):
                return count(result, data, dataset=account, at=site, epsilon=paid, delta=delta, ledger=ledger)

        then = _baseline(run, lambda given: counted(given, result.job.dataset or dataset), before)
        now = counted(where.sources, account)
    found = compare(result, then, now)
    exceeding = found.exceeding(threshold)
    if party is None:
        (run / HISTORY).mkdir(exist_ok=True)
        now.save(run / HISTORY / f"{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() // 10**6 % 1000:03}.json")
    if output is not None:
        past = [] if party is not None else sorted((run / HISTORY).glob("*.json"))
        days = {path.stem: compare(result, then, NoisyCounts.load(path)) for path in past}
        write_whole(output, drift_page(found, threshold, title, days))
    rows = {one.name: {"index": one.index, "floor": one.floor, "limit": one.limit} for one in found.drifts}
    said = (f"{one}{'  DRIFT' if one.name in exceeding else ''}" for one in found.drifts)
    tell({"drift": rows, "exceeding": exceeding, "unwatched": found.unwatched}, *said, as_json=as_json)
    if exceeding:
        raise SystemExit(DRIFTED)


def _own(given: tuple[str, ...], party: str, formats: tuple[str, ...]) -> Any:
    found = named_sources(given, (party,), formats)
    if isinstance(found, dict):
        if set(found) != {party}:
            raise SpecificationError(f"with --party {party}, give {party}=FILE alone")
        return found[party]
    return found


def _baseline(run: Path, counted: Any, before: tuple[str, ...]) -> NoisyCounts:
    """Return the stored counts of the training records. If there are none, release, charge and store the counts."""
    from vfl.apps.monitor import NoisyCounts

    path = run / BASELINE
    if path.exists():
        if before:
            click.echo(
                f"{str(path)!r} holds the baseline already: --training is not read or charged again; remove the file to count "
                "other records",
                err=True,
            )
        return NoisyCounts.load(path)
    if not before:
        raise SpecificationError(
            "there is no baseline yet: give --training, the records of the training, to release one"
        )
    found: NoisyCounts = counted(before)
    found.save(path)
    return found
