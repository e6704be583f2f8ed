"""Sections on the certificate: guarantee, who saw what, checks, and settings with digests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfl.certificate.words import WHOLE
from vfl.report.markup import Markup, element, join, remark, section, table
from vfl.solvers.options import options_of

if TYPE_CHECKING:
    from vfl.certificate import Report
    from vfl.report.facts import Facts


ORDER = ("outsider", "party", "coordinator")


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
    guarantee = f"(ε = {certificate.epsilon:.4g}, δ = {certificate.delta:.3g})-differentially private for every record"
    return element("div", element("b", guarantee), checked, class_="verdict good")


def tiles(facts: Facts) -> Markup:
    """Return the key numbers of the run, as tiles."""
    certificate, result = facts.certificate, facts.result
    claimed, split = "" if facts.report.ok else " claimed", result.job.split
    records = "records" if split is None else f"records, {split.sizes(certificate.n_records)[1]:,} of them held out"
    shown = (
        (f"ε{claimed}", f"{certificate.epsilon:.4g}" if certificate.private else "none"),
        (f"δ{claimed}", f"{certificate.delta:.3g}" if certificate.private else "none"),
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
        join(element("h3", "What the certificate warns of"), flags) if certificate.flags else None,
    )


def who(facts: Facts) -> Markup:
    """Return the section on what each role saw."""
    said = facts.certificate.who_sees_what
    rows = [(name, said[name]) for name in ORDER]
    return section(
        "Who saw what" if facts.report.ok else "Who saw what, as the certificate claims",
        element("p", "Noise protects the model. It does not protect what travelled between the participants."),
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
    # Shares of the budget that default rules set are left out; vfl plan --explain shows these shares.
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
