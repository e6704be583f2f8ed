"""HTML of the pages of `vfl ui`. `element` escapes all text: names of jobs, files, columns and data sets are arbitrary."""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from vfl.apps.report import markup
from vfl.apps.report.guarantee import checks, particulars, promise, tiles, verdict
from vfl.apps.report.markup import Child, Markup, details, element, join, remark, section, table
from vfl.apps.report.model import findings
from vfl.base.documents import read_json
from vfl.errors import VflError
from vfl.launch.run.checkpoint import NAME
from vfl.launch.run.folder import CERTIFICATE, FINDINGS, MODEL
from vfl.measures import Findings
from vfl.planning import forecast
from vfl.planning import plan as make_plan
from vfl.planning.certificate import Certificate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vfl.apps.report.facts import Facts
    from vfl.apps.ui.folder import FolderItems, Progress
    from vfl.job import Job
    from vfl.privacy.ledger import Balance

SCRIPT = Markup(Path(__file__).with_name("poll.js").read_text(encoding="utf-8"))
OWN_STYLE = Markup(Path(__file__).with_name("ui.css").read_text(encoding="utf-8"))
_DIGEST = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_DIGEST}'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""Content security policy that lets only `SCRIPT` run, even if foreign markup gets into a page."""


LAST = "last written"
SHOWN = 1 << 24
"""Largest size, in bytes, of a file whose values the overview shows."""


def page(title: str, base: str, *body: Child) -> str:
    """Return a whole page. base : URL path of the overview, which holds the token."""
    top = element("nav", element("a", "All jobs, runs and ledgers", href=base))
    foot = element("footer", element("p", "Served from this machine to this machine. The page only reads."))
    script, own_style = Markup(f"<script>{SCRIPT}</script>"), Markup(f"<style>{OWN_STYLE}</style>")
    return markup.page(f"{title}: vfl", top, *body, foot, script, policy=None, more=own_style)


def link(base: str, kind: str, name: str, said: str | None = None) -> Markup:
    """Return a link to the page of a job, run or ledger."""
    return element("a", said or name, href=f"{base}{kind}/{quoted(name)}")


def quoted(name: str) -> str:
    """Return a name, which may have any bytes, as the path of a URL."""
    return quote(os.fsencode(name), safe="/")


def overview(base: str, root: Path, found: FolderItems, states: Mapping[str, tuple[Child, ...]]) -> str:
    """Return the page that lists all items. states : {run: table cells from `state_of`}."""
    runs = [(link(base, "run", name), *states[name]) for name in found.runs]
    runs += [(name, "a tuning run at work, or interrupted", "", "", written(at)) for name, at in found.tunes.items()]
    return page(
        str(root),
        base,
        element("h1", root.name or str(root)),
        _listed(
            "Runs", ("run", "state", "ε", "measures", LAST), runs, "No run yet: vfl run JOB writes one into runs/."
        ),
        _listed(
            "Jobs",
            ("job", LAST),
            [(link(base, "job", name), written(at)) for name, at in found.jobs.items()],
            "No job yet: vfl init FILES drafts one.",
        ),
        _listed(
            "Ledgers",
            ("ledger", LAST),
            [(link(base, "ledger", name), written(at)) for name, at in found.ledgers.items()],
            "No ledger here. A run without a data set keeps its own, which the page of the run shows.",
        ),
    )


def written(path: Path) -> str:
    """Return the local time at which a file was last written; '' if it is gone."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(path.lstat().st_mtime))
    except (OSError, OverflowError, ValueError):
        return ""


def _listed(heading: str, head: tuple[str, ...], rows: list[tuple[Child, ...]], none: str) -> Markup:
    return section(heading, table(head, rows) if rows else element("p", none, class_="soft"))


def state_of(base: str, name: str, folder: Path, progress: Progress) -> tuple[Child, ...]:
    """Return state, ε, measures and time of a run as its files state them. The page of the run verifies all but the time."""
    if progress.state != "finished":
        return (watched(base, name, progress), _of_cap(progress), "", written(folder / NAME))
    try:
        certificate = Certificate.load(folder / CERTIFICATE, SHOWN, follow=False)
    except VflError as error:
        return ("finished", "", str(error), written(folder / MODEL))
    epsilon = f"{certificate.guaranteed[0]:.4g}" if certificate.private else "not private"
    return ("finished", epsilon, _measures(folder), written(folder / MODEL))


def _measures(folder: Path) -> str:
    try:
        kinds = read_json(folder / FINDINGS, SHOWN, follow=False)
        held = (kinds.get("held out") or kinds.get("score") or {}).get("measures", {})  # a tuning run has a score
        found = Findings.from_dict({"measures": held, "n_records": 0, "note": ""}).named
        return ", ".join(
            f"{name} {'too noisy to tell' if e.too_noisy else f'{e.value:.3g}'} {e.spread}".rstrip()
            for name, e in found.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return ""


def watched(base: str, name: str, progress: Progress) -> Markup:
    """Return one line on the state of a run. The page's script updates the line while the run is in progress."""
    at = f"{base}live/{quoted(name)}"
    return element("span", progress.said, data_live=at, data_state=progress.state, data_show="said")


def _of_cap(progress: Progress) -> str:
    if progress.epsilon is None or progress.cap is None:
        return ""
    return f"{progress.epsilon:.4g} of {progress.cap:.4g}"


def job(base: str, name: str, spec: Job, n_records: int | None, positives: float | None, *, refused: str = "") -> str:
    """Return the page of a job: the plan for n records, and the job's declarations without the paths of the data.

    refused : sentence about values that cannot be read; the page shows the sentence instead of a plan.
    """
    asked = element(
        "form",
        element("label", "records ", _field("n", n_records)),
        element("label", " guessed share of positives ", _field("positives", positives)),
        element("button", "Plan", type="submit"),
        method="get",
    )
    unread = (element("p", f"The form cannot be read: {refused}", class_="bad"),)
    return page(
        name,
        base,
        element("h1", spec.name),
        element("p", name, class_="soft"),
        section("Plan", asked, *(unread if refused else _planned(spec, n_records, positives))),
        section("Declarations", element("pre", _on_lines(spec.to_toml()))),
    )


def _field(name: str, value: float | None) -> Markup:
    filled = None if value is None else f"{value:g}"
    return element("input", name=name, type="number", step="any", min=0.0, value=filled)


def _planned(spec: Job, n_records: int | None, positives: float | None) -> Iterable[Child]:
    if n_records is None:
        yield element("p", "Give the number of records that all parties have: a plan reads no data.", class_="soft")
        return
    try:
        planned = make_plan(spec, n_records)
        yield element("pre", planned.outline(forecast(spec, n_records, positives=positives)))
        yield details("Every release and every choice", element("pre", planned.explain()))
    except VflError as error:
        yield element("p", f"This job cannot be planned: {error}", class_="bad")


def run(base: str, name: str, progress: Progress, facts: Facts | None, own: Markup | None) -> str:
    """Return the page of a run. facts : verified facts of a finished run. own : section on the run's own ledger."""
    if facts is None:
        return page(name, base, element("h1", name), _at_work(base, name, progress), own)
    report, card = link(base, "report", name, "whole report"), link(base, "card", name, "model card")
    return page(
        name,
        base,
        element("h1", facts.certificate.job),
        element("p", name, ": ", report, " · ", card, class_="soft"),
        verdict(facts),
        findings(facts),
        tiles(facts),
        promise(facts),
        checks(facts.report),
        particulars(facts),
        own,
    )


def _at_work(base: str, name: str, progress: Progress) -> Markup:
    at = f"{base}live/{quoted(name)}"
    bars: list[Child] = []
    if progress.of:
        bars.append(
            element("progress", value=float(progress.rounds), max=float(progress.of), data_live=at, data_show="rounds")
        )
    if progress.cap is not None and math.isfinite(progress.cap):
        spent = element("span", _of_cap(progress) or progress.why, data_live=at, data_show="epsilon")
        bars.append(element("p", "ε spent: ", spent))
    elif progress.why:
        bars.append(element("p", progress.why, class_="soft"))
    if progress.state == "interrupted":
        resume = element("code", "vfl resume")
        bars.append(remark("Continue it with ", resume, " and the name of its folder."))
    return section("Progress", element("p", watched(base, name, progress)), *bars)


def ledger(base: str, name: str, balances: tuple[Balance, ...]) -> str:
    """Return the page of a ledger. balances : the ledger's accounts, which were verified while they were read."""
    body = accounts(balances) if balances else element("p", "No data set has a cap yet.", class_="soft")
    below = element("p", name, class_="soft") if Path(name).name != name else None
    return page(name, base, element("h1", Path(name).name), below, body)


def _on_lines(toml: str) -> str:
    """Return TOML text with each array of plain values on one line."""
    joined = r"\[\n((?:    [^\[\]\n]+,\n)+)\]"
    return re.sub(joined, lambda found: f"[{', '.join(line.strip(' ,') for line in found[1].splitlines())}]", toml)


def accounts(balances: tuple[Balance, ...]) -> Markup:
    """Return a section per account: a bar of ε spent and reserved against the account's cap, and the account's runs."""
    return join(*map(_account, balances))


def _account(balance: Balance) -> Markup:
    runs = [
        (run.run, run.status, f"{run.reserved:.4g}", f"{run.spent:.4g}", f"{run.releases:,}") for run in balance.runs
    ]
    return section(
        balance.dataset,
        bar(balance.spent, balance.committed, balance.epsilon),
        element("p", f"Cap ε = {balance.epsilon:.6g} at δ = {balance.delta:.3g}; {balance.sums}."),
        *(element("p", str(revision), class_="bad") for revision in balance.revisions),
        table(("run", "state", "ε reserved", "ε spent", "releases"), runs, numbers=(2, 3, 4)) if runs else None,
        remark(
            f"The ledger states every ε at its own δ = {balance.delta:g}; a certificate states the ε of its run at the δ of "
            "the job. Do not add up the ε of several runs: the ledger adds the costs of their releases."
        )
        if runs
        else None,
    )


def bar(spent: float, committed: float, cap: float) -> Markup:
    """Return a bar that shows two shares of the cap: ε spent, and ε spent or reserved."""

    def share(epsilon: float) -> float:
        return min(100.0, 100.0 * epsilon / cap) if cap > 0 and math.isfinite(cap) else 0.0

    said = f"ε = {spent:.4g} spent, {committed:.4g} spent or reserved, of {cap:.4g}"
    parts = (
        element("span", style=f"width:{share(spent):.2f}%", class_="spent"),
        element("span", style=f"width:{max(0.0, share(committed) - share(spent)):.2f}%", class_="reserved"),
    )
    return element("div", *parts, class_="budget", role="img", aria_label=said, title=said)


def problem(base: str, title: str, said: str) -> str:
    """Return a page that states why something cannot be shown."""
    return page(title, base, element("h1", title), element("p", said, class_="bad"))
