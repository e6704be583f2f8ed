"""Page of a finished run for `vfl report`, computed from the run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vfl.launch.run import timing
from vfl.launch.run.folder import check_finished
from vfl.report import effects
from vfl.report.curves import curves
from vfl.report.facts import gathered
from vfl.report.fairness import fairness
from vfl.report.guarantee import checks, particulars, promise, tiles, verdict, who
from vfl.report.markup import Child, Markup, element, join, page, remark, section, table
from vfl.report.model import bounds, choices, coefficients, contribution, findings, forest, importance
from vfl.report.signal import signal
from vfl.report.spending import spent
from vfl.version import __version__
from vfl.writing import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.certificate import Report
    from vfl.report.facts import Facts


NAME = "report.html"
TIMED = element("span", "This page shows how long rounds took, which depends slightly on the data.")


def write_run(
    run: str | Path,
    output: str | Path | None = None,
    *,
    ledger: str | Path | None = None,
    key: str | Path | None = None,
    with_timing: bool = False,
) -> tuple[Path, Report]:
    """Write the page of the run in a folder. Return its path and the report of `verify_run`, whose checks may fail.

    The page is post-processing of released values and public facts, so everybody who may see the model may see the page. With
    `with_timing` the page also shows the durations of rounds. Durations depend slightly on the data, so the page then states
    that it is not for release.

    output : file to write; None writes report.html into the folder. ledger, key : as for `verify_run`.

    Raises OutputError if the run is not finished or a file cannot be read or written.
    """
    run = Path(run)
    check_finished(run)
    facts = gathered(run, ledger=ledger, key=key, with_timing=with_timing)
    path = run / NAME if output is None else Path(output)
    write_whole(path, html(facts))
    return path, facts.report


def html(facts: Facts) -> str:
    """Return the page as HTML."""
    certificate = facts.certificate
    signed = "" if certificate.signature is None else f", signed {certificate.signature.signed}"
    return page(
        f"{certificate.job}: report of a vfl run",
        element("h1", certificate.job),
        element("p", f"Report of a training run by vfl {certificate.code_version}{signed}", class_="soft"),
        element("div", element("b", "Not for release"), TIMED, class_="verdict warn")
        if facts.timing is not None
        else None,
        verdict(facts),
        findings(facts),
        curves(facts),
        effects.curves(facts),
        fairness(facts),
        tiles(facts),
        promise(facts),
        who(facts),
        spent(facts),
        signal(facts),
        choices(facts),
        forest(facts) or coefficients(facts),
        importance(facts),
        bounds(facts),
        contribution(facts),
        course(facts),
        checks(facts.report),
        particulars(facts),
        _footer(facts),
    )


def course(facts: Facts) -> Markup:
    """Return the section on the course of the run: resumed processes, lost parties and, on request, timing."""
    certificate, told = facts.certificate, facts.told
    rows: list[tuple[Child, ...]] = []
    if facts.processes:
        resumed = facts.processes - 1
        times = {0: "never", 1: "once"}.get(resumed, f"{resumed} times")
        rows.append(("resumed", times))
    if told is not None:
        lost = certificate.releases - sum(map(len, told.charged))
        rows.append(("rounds", f"{len(told.charged):,}"))
        rows.append(("rounds repeated after the loss of a process or a party", f"{told.repeated:,}"))
        rows += [("given up", f"party {party}, in round {number + 1:,}") for number, party in told.left.items()]
        if certificate.basis != "none":
            rows.append(("releases charged and not used", f"{max(0, lost):,}"))
    if certificate.basis != "none":
        reserved = sum(count for _, count in certificate.reserved)
        rows.append(("releases reserved", f"{reserved:,}"))
        rows.append(("releases charged", f"{certificate.releases:,}"))
    if facts.plan is not None and facts.plan.sharing is None:
        rows.append(("expected time of the rounds", f"about {facts.plan.seconds:.2g} s, by the plan"))
    if facts.timing is None:
        said = (
            "The measured time of rounds is not shown: it depends slightly on the data, and is not released. The operator of "
            f"the job finds it in {timing.NAME}, and can draw it with vfl report --timing."
        )
        return section("Course of the run", table((), rows, numbers=()), remark(said))
    return section("Course of the run", table((), rows), element("h3", "Timing"), _timing(facts.timing))


def _timing(lines: Sequence[timing.Line]) -> Markup:
    if not lines:
        return remark(f"There is no {timing.NAME} in this folder.")
    groups: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        groups.setdefault((line.kind, line.parties), []).append(line.seconds)
    rows = [
        (kind, who or "coordinator", f"{len(s):,}", *(f"{x:.3g}" for x in (sum(s), 1e3 * np.median(s), 1e3 * max(s))))
        for (kind, who), s in groups.items()
    ]
    total = sum(line.seconds for line in lines)
    return join(
        element("p", f"{total:.3g} s in {len(lines):,} rounds, from charge to last reply."),
        table(("query", "answered by", "rounds", "seconds", "median, ms", "longest, ms"), rows, numbers=(2, 3, 4, 5)),
    )


def _footer(facts: Facts) -> Markup:
    if facts.timing is not None:
        said = "Apart from the timing, this page is computed from released values and public facts."
    elif facts.certificate.private and facts.report.ok:
        said = (
            "This page is computed from public facts and from values that were released with noise and charged. "
            "That is post-processing: it adds nothing to the stated ε, and whoever may see the model may see this page."
        )
    else:
        said = (
            "This page is computed from public facts and from the run's releases. The releases carry no verified guarantee, so "
            "neither does this page: show it only to those who may see the data."
        )
    return element("footer", element("p", said), element("p", f"Drawn by vfl {__version__}. The page loads nothing."))
