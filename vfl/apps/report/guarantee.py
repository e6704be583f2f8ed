"""Sections on the certificate: guarantee, who saw what, privacy spent, checks, and settings with digests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from vfl.apps.report import charts
from vfl.apps.report.markup import Markup, element, join, remark, section, table
from vfl.planning.certificate.document import PARTICIPANTS, WHOLE
from vfl.planning.certificate.issue import KEPT
from vfl.planning.certificate.verification import recomputed
from vfl.planning.run_plan import described
from vfl.privacy.events import OnPart
from vfl.privacy.ledger.composition import Accounting, plan_cost
from vfl.queries.protocol import options_of

if TYPE_CHECKING:
    from vfl.apps.report.facts import Facts
    from vfl.launch.run.history import History
    from vfl.planning.certificate import Certificate, Report
    from vfl.privacy.events import Event


def verdict(facts: Facts) -> Markup:
    """Return the verdict on the certificate: the guarantee, or the checks that failed."""
    certificate, report = facts.certificate, facts.report
    if not report.ok:
        lines = (element("div", str(check)) for check in report.failed)
        said = element("b", "The certificate does not hold. Do not rely on it, nor on the model.")
        return element("div", said, *lines, class_="verdict bad")
    looked = sum(check.holds is not None for check in report.checks)
    open_ = len(report.checks) - looked
    checked = f"{looked} checks hold" + (f", {open_} could not be made" if open_ else "") + "; they are listed below."
    if not certificate.private:
        said = element("b", "Not private")
        return element(
            "div", said, f"This model carries no guarantee, as its certificate states. {checked}", class_="verdict warn"
        )
    epsilon, delta = certificate.guaranteed
    guarantee = f"(ε = {epsilon:.4g}, δ = {delta:.3g})-differentially private for every record"
    return element("div", element("b", guarantee), checked, class_="verdict good")


def tiles(facts: Facts) -> Markup:
    """Return the key numbers of the run, as tiles."""
    certificate, result = facts.certificate, facts.result
    epsilon, delta = certificate.guaranteed
    claimed, split = "" if facts.report.ok else " claimed", result.job.split
    records = "records" if split is None else f"records, {split.sizes(certificate.n_records)[1]:,} of them held out"
    shown = (
        (f"ε{claimed}", f"{epsilon:.4g}" if certificate.private else "none"),
        (f"δ{claimed}", f"{delta:.3g}" if certificate.private else "none"),
        (records, f"{certificate.n_records:,}"),
        ("parties", str(len(facts.parties))),
        ("coordinates", f"{len(result.coordinates):,}"),
        ("releases", f"{certificate.releases:,}"),
    )
    return element(
        "dl", *(element("div", element("dt", name), element("dd", value)) for name, value in shown), class_="tiles"
    )


def promise(facts: Facts) -> Markup:
    """Return the guarantee in two sentences, and the flags of the certificate."""
    certificate, report = facts.certificate, facts.report
    if report.ok:
        said = [element("p", sentence.replace(" = ", "\u00a0=\u00a0")) for sentence in report.guarantee]
    else:
        said = [element("p", "Nothing: the certificate contradicts the findings.")]
    flags = element("ul", *(element("li", flag) for flag in certificate.flags), class_="flags")
    reserved = remark(f"{WHOLE}.") if certificate.basis == "reserved" else None
    return section(
        "What is promised",
        element("div", *said, class_="promise"),
        reserved,
        remark(f"Scope: {certificate.scope}.") if report.ok and certificate.private else None,
        join(element("h3", "Warnings of the certificate"), flags) if certificate.flags else None,
    )


def who(facts: Facts) -> Markup:
    """Return the section on what each role saw."""
    said = facts.certificate.who_sees_what
    rows = [(name, said[name]) for name in PARTICIPANTS if name in said]
    return section(
        "Who saw what" if facts.report.ok else "Who saw what, as the certificate claims",
        element("p", "Noise protects the model, not the messages between the participants."),
        table(("", "saw"), rows),
    )


def checks(report: Report) -> Markup:
    """Return the section that lists the checks and their outcomes."""
    marks = {True: ("good", "holds"), False: ("bad", "does not hold"), None: ("soft", "not made")}
    rows = [
        (
            check.name,
            element("span", marks[check.holds][1], class_=marks[check.holds][0]),
            element("span", check.finding, class_="long"),
        )
        for check in report.checks
    ]
    return section(
        "Checks", element("p", "Findings of vfl verify when this page was made."), table(("", "", "finding"), rows)
    )


def particulars(facts: Facts) -> Markup:
    """Return the section of settings and digests."""
    certificate = facts.certificate
    given = {} if facts.plan is None else options_of(facts.plan.job.solver)
    # Fractions of the budget from default rules are left out. `vfl plan --explain` shows them.
    options = ", ".join(
        f"{name} = {_short(value)}"
        for name, value in certificate.solver.items()
        if name != "name" and value is not None and (given.get(name) is not None or not name.endswith("_share"))
    )
    rows = [
        ("objective", facts.plan.problem.describe()) if facts.plan is not None else ("objective", "not known"),
        ("solver", f"{certificate.solver['name']} ({options})"),
        (
            "clip",
            certificate.geometry if certificate.clip is None else f"{_short(certificate.clip)}: {certificate.geometry}",
        ),
        ("smoothness", certificate.smoothness),
        ("noise source", certificate.noise),
        ("adjacency", certificate.adjacency),
        (
            "accounting",
            certificate.accounting + ("" if certificate.basis == "none" else f", of what was {certificate.basis}"),
        ),
        ("data set", certificate.dataset or "none named: covers this one fit only"),
        ("model", element("code", certificate.model_digest)),
        ("job", element("code", certificate.job_digest)),
    ]
    if certificate.signature is not None:
        rows.append(("signed with key", element("code", certificate.signature.public_key)))
    return section("Particulars", table((), rows))


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


POINTS, POINTS_PLD = 150, 10
"""Number of rounds at which ε is computed; fewer for privacy loss distributions, which are slower."""


def spent(facts: Facts) -> Markup | None:
    """Return the section: ε against rounds and the table of charged releases; None without privacy."""
    certificate = facts.certificate
    if certificate.basis == "none":
        return None
    heading = "Privacy spent" if certificate.private else "Privacy spent, had the noise been private"
    return section(heading, _curve(facts), _releases(certificate))


def _curve(facts: Facts) -> Markup:
    certificate, told = facts.certificate, facts.told
    if told is None:
        return remark(f"ε against rounds is not drawn. {facts.why_not_told}")
    points = epsilon_by_round(told, certificate)
    lost = certificate.releases - sum(map(len, told.charged))
    top, last = max(certificate.epsilon, points[-1][1]), max(1, len(told.charged))
    lines = [
        charts.Curve("everything accounted for", [(0.0, certificate.epsilon), (last, certificate.epsilon)], None),
        charts.Curve("ε of what was released up to a round", points, 0, step=True),
    ]
    x, y = charts.Axis("round", 0, last, whole=True), charts.Axis(f"ε at δ = {certificate.delta:.3g}", 0.0, top * 1.06)
    stated = "certified ε" if certificate.private else "ε accounted for"
    stated = stated if facts.report.ok else "ε that the certificate claims"
    note = f"Dashed: the {stated} = {certificate.epsilon:.4g}."
    if lost > 0:
        note += f" It also covers {lost:,} charged releases that were lost with a process or a party, or not used."
    if certificate.basis == "reserved":
        note += " It counts every planned release; the curve shows the releases that were made."
    return join(charts.both(lambda width: charts.curves(width, x, y, lines)), remark(note))


def epsilon_by_round(told: History, certificate: Certificate) -> list[tuple[float, float]]:
    """Return points (rounds done, ε of the charges so far), from 0 to the end, at evenly spaced rounds."""
    wanted = POINTS_PLD if certificate.accounting == "pld" else POINTS
    last = len(told.charged)
    shown = {round(k * last / wanted) for k in range(1, wanted + 1)} if last > wanted else set(range(1, last + 1))
    points = [(0.0, 0.0)]
    charged: Counter[Event] = Counter()
    for number, events in enumerate(told.charged, 1):
        charged.update(events)
        if number in shown and charged:
            found = recomputed(certificate.accounting, tuple(charged.items()), certificate.delta)
            points.append((float(number), found))
    return points


def _releases(certificate: Certificate) -> Markup:
    """Return the table of charged releases. If the accounting adds up costs, the table shows their shares of the budget."""
    shares = ["" for _ in certificate.events]
    if certificate.accounting in ("gdp", "zcdp"):
        way = Accounting(certificate.accounting)
        whole = max(1, plan_cost(certificate.events, way))
        shares = [f"{plan_cost((entry,), way) / whole:.1%}" for entry in certificate.events]
    parts = [event.part if isinstance(event, OnPart) else "" for event, _ in certificate.events]
    rows = [
        (described(event) + (f", of the {part} records" if part else ""), f"{count:,}", share)
        for (event, count), part, share in zip(certificate.events, parts, shares, strict=True)
    ]
    said = f"No record is in two parts of the split, so ε is the largest of their costs{KEPT}."
    return join(
        table(("release", "times", "of its part's budget" if any(parts) else "of the budget"), rows, numbers=(1, 2)),
        remark(said) if any(parts) else None,
    )
