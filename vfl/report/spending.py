"""Section on the privacy spent: ε after each round, and the charged releases."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from vfl.certificate.verification import recomputed
from vfl.planning.words import described
from vfl.privacy.events import OnPart
from vfl.privacy.ledger.composition import Accounting, plan_cost
from vfl.report import charts
from vfl.report.markup import Markup, join, remark, section, table

if TYPE_CHECKING:
    from vfl.certificate import Certificate
    from vfl.launch.run.history import History
    from vfl.privacy.events import Event
    from vfl.report.facts import Facts


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
    said = "No record is in two parts of the split, so ε is the largest of their costs."
    return join(
        table(("release", "times", "of its part's budget" if any(parts) else "of the budget"), rows, numbers=(1, 2)),
        remark(said) if any(parts) else None,
    )
