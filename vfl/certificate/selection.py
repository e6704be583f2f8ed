"""Certificate of a tuning run, and the check of what the certificate states about the choice.

Tuning is a private choice among candidate jobs (`vfl.tune`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from vfl.certificate.document import Certificate
from vfl.certificate.issue import PARTED, findings_digest, model_digest, planned
from vfl.job.start import total_of
from vfl.privacy.events import OnPart, Selection, bare
from vfl.privacy.ledger.codec import canonical
from vfl.privacy.spending import UNIT_BITS, mu_squared, units

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.planning import Plan
    from vfl.privacy.events import Event
    from vfl.privacy.ledger import Statement

ACCOUNTING = "selection"
WITHHELD = "the number of candidates that were considered, and all candidates that lost, are withheld"
SEEN = "; the same for every candidate, losers included, whose solvers may show more, such as scaled columns"


def is_selection(events: Sequence[tuple[Event, int]]) -> bool:
    """Return True if the charged events are those of a private choice."""
    return any(type(bare(event)) is Selection for event, _ in events)


def digest_of(candidates: Sequence[str], score: str, inclusion: int) -> str:
    """Return the SHA-256 that names a tuning run in a ledger. candidates : digest of each candidate's job, in order."""
    text = canonical({"candidates": list(candidates), "score": score, "inclusion": inclusion})
    return hashlib.sha256(text.encode()).hexdigest()


def certify_selection(
    plan: Plan,
    statement: Statement,
    *,
    releases: Sequence[tuple[Event, int]],
    epsilon: float,
    candidates: Sequence[str],
    score: str,
    inclusion: int,
    model: Mapping[str, Any],
    findings: Mapping[str, Any],
    run: str,
    account: str,
    flags: Sequence[str] = (),
    knots: Mapping[str, Sequence[float]],
) -> Certificate:
    """Return the unsigned certificate of a tuning run, whose charges its book (privacy account) has settled.

    ε is that of the whole choice at the job's δ (vfl.privacy.private_selection), whatever accounting the ledger uses.

    plan : plan of the winner's run. statement : statement of the book. releases : charges of the whole tuning run. epsilon : ε
        of the whole tuning run.
    candidates : digest of each candidate's job, in order. model, findings : contents of model.json and findings.json.
    flags : flags of all candidates. The choice compares all candidates, so one candidate without a guarantee voids the
        winner's.
    knots : {column: knots} that the winner's run found.

    The certificate omits the heads of the parties' own ledgers. Their numbers of entries would show if a loser's training
    failed.
    """
    facts = planned(plan, flags)
    facts["reserved"] = tuple(releases)
    facts["flags"] += statement.flags
    facts["who_sees_what"] = seen(facts["who_sees_what"])
    place = {"run": run, "account": account, "entries": statement.entries, "head": statement.head}
    return Certificate(
        **facts,
        events=tuple(releases),
        moments_digest="",
        model_digest=model_digest(model),
        findings_digest=findings_digest(findings),
        knots={column: list(own) for column, own in knots.items()},
        books={},
        epsilon=epsilon,
        delta=float(plan.problem.delta or 0.0),
        adjacency=str(statement.adjacency),
        basis="charged",
        accounting=ACCOUNTING,
        scope=statement.scope + PARTED,
        total=total_of(facts["start"], epsilon, float(plan.problem.delta or 0.0), None),
        releases=len(releases),
        ledger=place if statement.head else {},
        selection={
            "candidates": list(candidates),
            "winner": plan.job.digest,
            "score": score,
            "inclusion": inclusion,
            "withheld": WITHHELD,
        },
    )


def seen(who: Mapping[str, str]) -> dict[str, str]:
    """Return the table of who sees what in a tuning run, whose participants see the vectors of all candidates."""
    return {name: said + (SEEN if name != "outsider" else "") for name, said in who.items()}


def fault_of(certificate: Certificate, plan: Plan | None) -> str:
    """Return a contradiction between the certificate's events, candidates and winner; '' if there is no contradiction.

    plan : plan of the winner's run. The winner may spend at most the μ that the events state.
    """
    stated = certificate.selection
    if not stated:
        return "it charges a private choice, and names no candidates"
    if not is_selection(certificate.events):
        return "it names candidates, and charges no private choice"
    candidates = stated["candidates"]
    if len(set(candidates)) != len(candidates) or stated["winner"] not in candidates:
        return "its winner is not one of its candidates, or a candidate is listed twice"
    if stated["winner"] != certificate.job_digest:
        return "its winner is not the job that it certifies"
    if dict(certificate.events) != dict(certificate.reserved) or Counter(
        getattr(event, "part", "") for event, _ in certificate.events
    ) != Counter(("training", "held out")):
        return "a tune charges one choice for the training records and one for the held-out ones, whole"
    for event, count in certificate.events:
        choice = bare(event)
        if not isinstance(choice, Selection) or count != 1:
            return "a tune charges each of its choices once, and nothing else"
        if (choice.candidates, choice.concentration) != (len(candidates), stated["inclusion"]):
            return "a charge is for a number of candidates or an inclusion that differs from the stated one"
        if plan is not None and isinstance(event, OnPart):
            spent = sum(
                units(own, mu_squared) * times
                for own, times in plan.releases
                if isinstance(own, OnPart) and own.part == event.part
            )
            if Fraction(spent, 1 << UNIT_BITS) > Fraction(choice.mu) ** 2 * (1 + Fraction(1, 10**9)):
                return f"the winner's plan spends more on the {event.part} records than a trial may"
    return ""
