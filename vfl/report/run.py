"""`vfl report`: one page on a run that is over, from what its folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vfl.launch.run.folder import check_finished, write_whole
from vfl.report.course import course
from vfl.report.facts import gathered
from vfl.report.guarantee import checks, particulars, promise, tiles, verdict, who
from vfl.report.markup import Markup, element, page
from vfl.report.model import choices, coefficients, contribution, findings
from vfl.report.signal import signal
from vfl.report.spending import spent
from vfl.version import __version__

if TYPE_CHECKING:
    from vfl.certificate import Report
    from vfl.report.facts import Facts


NAME = "report.html"


def write_run(
    run: str | Path,
    output: str | Path | None = None,
    *,
    ledger: str | Path | None = None,
    key: str | Path | None = None,
    with_timing: bool = False,
) -> tuple[Path, Report]:
    """Write the page of the run in a folder; return its path and what `verify_run` found, which may be that it is false.

    All that it shows is post-processing of released values and public facts, so it may go wherever the model may; with
    `with_timing` it also shows how long rounds took, which depends on data a little, and says that it is not for release.

    output : a file; None writes report.html into the folder. ledger, key : as for `verify_run`.

    Raises OutputError for a run that is not finished, or cannot be read or written.
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
        _release_ban() if facts.timing is not None else None,
        verdict(facts),
        tiles(facts),
        promise(facts),
        who(facts),
        spent(facts),
        signal(facts),
        choices(facts),
        coefficients(facts),
        contribution(facts),
        findings(facts),
        course(facts),
        checks(facts.report),
        particulars(facts),
        _footer(facts),
    )


def _release_ban() -> Markup:
    said = element("b", "Not for release")
    why = element("span", "This page shows how long rounds took, and that depends on data a little.")
    return element("div", said, why, class_="verdict warn")


def _footer(facts: Facts) -> Markup:
    if facts.timing is not None:
        said = "But for the timing, all that is drawn here is computed from released values and public facts."
    elif facts.certificate.private and facts.report.ok:
        said = (
            "Everything drawn here is computed from values that were released with noise and charged, and from public facts. "
            "That is post-processing: this page adds nothing to the ε stated, and may go wherever the model may."
        )
    else:
        said = (
            "Everything drawn here is computed from what the run released and from public facts. What was released carries no "
            "verified guarantee, so neither does this page: keep it where the data may be seen."
        )
    return element("footer", element("p", said), element("p", f"Drawn by vfl {__version__}. The page loads nothing."))
