"""Page of a finished run for `vfl report`, computed from the run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vfl.launch.run.folder import check_finished
from vfl.report import effects
from vfl.report.course import course
from vfl.report.curves import curves
from vfl.report.facts import gathered
from vfl.report.fairness import fairness
from vfl.report.guarantee import checks, particulars, promise, tiles, verdict, who
from vfl.report.intervals import forest
from vfl.report.markup import Markup, element, page
from vfl.report.model import bounds, choices, coefficients, contribution, findings, importance
from vfl.report.signal import signal
from vfl.report.spending import spent
from vfl.version import __version__
from vfl.writing import write_whole

if TYPE_CHECKING:
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
    `with_timing` it also shows the durations of rounds. They depend slightly on the data, so the page then states that it is
    not for release.

    output : a file; None writes report.html into the folder. ledger, key : as for `verify_run`.

    Raises OutputError if the run is not finished or a file cannot be read or written.
    """
    run = Path(run)
    check_finished(run)
    facts = gathered(run, ledger=ledger, key=key, with_timing=with_timing)
    path = run / NAME if output is None else Path(output)
    write_whole(path, html(facts))
    return path, facts.report


def html(facts: Facts) -> str:
    """Return the page."""
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
