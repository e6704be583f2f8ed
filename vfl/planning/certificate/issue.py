"""Certificate of a run, made from the plan of the job, the charges in the run's account, and the model.

A tuning run is a private choice among candidate jobs (`vfl.tune`). Its certificate also states the choice.
"""

from __future__ import annotations

import hashlib
import math
import numbers
from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from vfl.crypto.alignment import reveals
from vfl.job.flags import flags_of, voids
from vfl.job.start import total_of
from vfl.measures.fairness import GroupFairness
from vfl.planning.certificate.document import Certificate
from vfl.privacy.events import OnPart, Selection, bare
from vfl.privacy.ledger.codec import canonical
from vfl.privacy.ledger.composition import Accounting, epsilon_of, exact_mu, plan_cost
from vfl.privacy.noise import CryptographicNoise
from vfl.privacy.spending import UNIT_BITS, mu_squared, units
from vfl.queries import Moments
from vfl.queries.protocol import options_of
from vfl.secure.roles import NONE
from vfl.solvers.releases import alone

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from vfl.planning import Plan
    from vfl.planning.certificate.document import Events
    from vfl.privacy.events import Event
    from vfl.privacy.ledger import Head, Statement
    from vfl.queries.protocol import Released

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
    """Return the unsigned certificate of a tuning run, whose charges its account has settled.

    ε is that of the whole choice at the job's δ (vfl.privacy.private_selection), whatever accounting the ledger uses.

    plan : plan of the winner's run. statement : statement of the account. releases : charges of the whole tuning run. epsilon :
        ε of the whole tuning run.
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
        party_ledgers={},
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
        return "a tuning run charges one choice for the training records and one for the held-out ones, whole"
    for event, count in certificate.events:
        choice = bare(event)
        if not isinstance(choice, Selection) or count != 1:
            return "a tuning run charges each of its choices once, and nothing else"
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


WHO_SEES_WHAT: dict[str, dict[str, str]] = {
    "trusted": {
        "outsider": "the model and this certificate: (ε, δ)-differentially private",
        "party": "its columns, its own exact gradients, residuals; linear predictors and labels if a message has "
        "several blocks: NOT protected by noise",
        "coordinator": "labels and linear predictors Xw: NOT protected by noise",
    },
    "secure": {
        "outsider": "the model and this certificate: (ε, δ)-differentially private",
        "party": "its columns, masked values that look random, and opened sums with noise. Up to the stated number of "
        "colluding parties, with the coordinator or without, learn of other columns what (ε, δ) allows, computationally, if "
        "all participants are semi-honest; one more party learns residuals, and the dealer with one party learns columns and "
        "residuals: NOT protected",
        "coordinator": "opened sums with noise, and encrypted texts that it cannot read: (ε, δ), if all participants are "
        "semi-honest",
        "dealer": "its own masks and noise, and opened sums with noise: (ε, δ), with the coordinator or without, if all "
        "participants are semi-honest",
    },
    NONE: {
        "outsider": "the model and this certificate: (ε, δ)-differentially private",
        "party": "its columns, numbers that look random or that it cannot decrypt, and opened sums with noise. With the "
        "coordinator or without, it learns about the other party's columns what (ε, δ) allows, computationally, "
        "if all participants are semi-honest. If the party without the label deviates, it can read the other party's columns "
        "and labels, undetected: NOT protected",
        "coordinator": "opened sums with noise, and encrypted texts that it cannot read: (ε, δ), if all participants are "
        "semi-honest",
    },
}
"""Values that each participant sees. Noise protects the model, not the n-vectors sent by participants (docs/disclosure.md)."""

UNPROTECTED = {"outsider": "the model and this certificate: NOT protected, see the flags"}
SIMULATED = "opened sums, and masked values that it can unmask if it knows the seed: NOT protected, see the flags"
"""Values that a participant sees in a run on shares with seeded noise. There the masks are seeded too."""

AMPLIFIED = (
    "; it assumes that nobody knows which records a step sampled, so it holds for those who see the model alone: "
    "participants see the batches"
)

KEPT = ", if the replaced record keeps its id (without ids: its row)"
PARTED = f"; a public split keeps training and held-out records apart, so ε is the larger of their two costs{KEPT}"
SUBSAMPLED = (
    f"; each release is on one of disjoint public subsamples, so ε is the largest of their costs, not their sum{KEPT}"
)

SCALED = "Euclidean norm of a record's gradient of a block, coordinate j divided by √M_j; cap clip·√|block|"
ISOTROPIC = "Euclidean norm of a record's gradient of a block, in scaled features; cap clip·√(Σ M_j)"
WHOLE = (
    "Euclidean norm of a record's contribution to a whole pass over all columns of all parties, coordinate j divided by √M_j; "
    "cap record_clip·√p"
)
WHOLE_ISOTROPIC = (
    "Euclidean norm of a record's contribution to a whole pass over all columns of all parties, in scaled features; "
    "cap record_clip·√(Σ M_j)"
)
OF_WEIGHTS = {
    "party": "; the weight of every record if a message has several blocks",
    "coordinator": "; the weight of every record",
}
OF_ROWS = {
    "party": "; residuals at the other parties are means over a person's rows, from which they can infer its share of each "
    "label, and often its number of rows",
    "coordinator": "; which rows belong to one person",
}
NORMS = {
    "party": "; also the cap of each residual, or capped residuals, from which it can compute the norm of the other "
    "parties' columns of a record",
    "coordinator": "; also the norm of each party's columns of every record",
}
"""Values that participants also see if the solver caps each residual by the norm of the whole record."""
OF_EXPOSURE = {"coordinator": "; the exposure of every record"}
OF_CURVES = {
    "coordinator": "; the noisy histogram of every column with a curve, of which the model keeps the knots: (ε, δ)"
}
"""Values that the coordinator also sees if the run chooses the knots of curves."""
OF_GROUPS = {"coordinator": "; to check fairness also the group of every held-out record"}
OF_HELD_NORMS = {"coordinator": ", and the norm of each party's columns of it"}
"""Values that the coordinator also sees to check fairness; the second only if near records are counted (`GroupCells`)."""
PRODUCTS = "; for products of columns, Frobenius norm of a record's weighted products of scaled columns; cap 1"
SHARED_ROWS = "; each party cuts its rows to its part of the cap before they are masked"
IN_SPREADS = "; gradients in units of the labels' spread, as released first"
JOINT = "Euclidean norm of a record's gradient over all columns of all parties, in scaled features; cap clip"
GEOMETRY: Mapping[str, str] = {
    "SkGD": SCALED,
    "CD": SCALED,
    "GCD": "absolute value of a record's gradient of one coordinate, divided by √M_j; cap clip",
    "GD": JOINT,
    "SGD": JOINT,
    "SVRG": f"{JOINT}, and difference_clip for differences of gradients",
    "SCD": "Euclidean norm of a record's dual contribution over all columns of all parties; cap clip",
    "OutputPerturbation": "Euclidean distance of the minimisers with and without one record replaced, by strong convexity",
    "NoisyGram": "Euclidean norm of a record's row over all columns of all parties, with its label; cap clip",
}

OF_PRODUCTS = {
    "party": "; for products of columns (intervals, joint steps, NoisyGram), the columns of the parties before it and a weight "
    "per record, with NoisyGram also every label",
    "coordinator": "; for products of columns, the columns of all parties but the last",
}


def who_sees_what(plan: Plan, *, private: bool) -> dict[str, str]:
    """Return {kind of participant: the values that it sees, in words}, without numbers that only participants know."""
    job, trusted = plan.job, plan.job.secure is None
    said = WHO_SEES_WHAT[job.trust_name if trusted or job.dealer else NONE]
    if not private:
        said = said | (UNPROTECTED if trusted else dict.fromkeys(said, SIMULATED) | UNPROTECTED)
    compared = next((evaluation for evaluation in plan.evaluations if isinstance(evaluation, GroupFairness)), None)
    shown = reveals(len(job.ids), job.join) if job.ids else {}
    for also, sees in (
        (NORMS, trusted and plan.vectors.norms > 0),
        (OF_WEIGHTS, job.targets.weights),
        (OF_ROWS, job.row_rule is not None),
        (OF_EXPOSURE, job.targets.exposure),
        (OF_CURVES, plan.n_before > 0),
        (OF_PRODUCTS, trusted and plan.has_products),
        (OF_GROUPS, compared is not None),
        (OF_HELD_NORMS, compared is not None and compared.bounded),
        ({who: f"; in the alignment {what}" for who, what in shown.items()}, True),
    ):
        said = {who: what + also.get(who, "") for who, what in said.items()} if sees else said
    return said


def planned(plan: Plan, others: Iterable[str] = ()) -> dict[str, Any]:
    """Return the certificate's fields that follow from the job and n alone, before any data are touched.

    others : flags of the other candidates, if this job was chosen among candidates by a private choice.
    """
    job, problem, solver = plan.job, plan.problem, plan.solver
    flags = tuple(dict.fromkeys((*flags_of(job), *others)))
    private = problem.private and not voids(flags)
    clip = getattr(solver, "clip", None) if problem.private else None
    isotropic = getattr(solver, "noise_geometry", "scaled") == "isotropic"
    if solver.by_pass:
        geometry = WHOLE_ISOTROPIC if isotropic else WHOLE
    else:
        geometry = ISOTROPIC if isotropic else GEOMETRY.get(solver.name, f"as the solver {solver.name} documents it")
    if solver.by_pass and plan.has_products:
        geometry += PRODUCTS
    if getattr(solver, "constant", False):
        geometry = alone.GEOMETRY
    spread = getattr(solver, "label_share", None) and not problem.loss.classification
    geometry += IN_SPREADS if spread else ""
    sharing = plan.sharing
    geometry += "" if sharing is None else SHARED_ROWS
    geometry += (
        ""
        if job.row_rule is None
        else f"; a record is a person, whose rows (at most {job.row_rule.most_rows}) share its weight"
    )
    geometry += "" if job.base(job.partition.parties) is None else "; its absence at a party is part of a record"
    return {
        "trust": {} if sharing is None else sharing.stated(),
        "private": private,
        "flags": flags,
        "reserved": _counted(plan.releases),
        "noise": "none" if job.privacy is None else type(job.privacy.noise or CryptographicNoise()).__name__,
        "solver": {"name": solver.name, **_options(solver)},
        "clip": float(clip) if isinstance(clip, numbers.Real) else clip,
        "geometry": geometry if problem.private else "none: nothing is clipped",
        "smoothness": problem.smoothness if isinstance(problem.smoothness, str) else "declared",
        "n_records": plan.n_records,
        "who_sees_what": who_sees_what(plan, private=private),
        "job": job.name,
        "job_digest": job.digest,
        "dataset": job.dataset or "",
        "start": {} if job.start is None else job.start.stated(),
    }


def certify(
    plan: Plan,
    statement: Statement | None,
    *,
    model: Mapping[str, Any],
    findings: Mapping[str, Any],
    charged: Mapping[Event, int],
    released: Sequence[Released] = (),
    party_ledgers: Mapping[str, Head] | None = None,
    run: str = "",
    account: str = "",
    flags: Sequence[str] = (),
    federation: Mapping[str, str] | None = None,
    knots: Mapping[str, Sequence[float]] | None = None,
) -> Certificate:
    """Return the unsigned certificate of a run, whose charges the run's account has settled.

    If all planned releases are Gaussian, the certificate states the exact ε at the job's δ, whatever accounting and δ the
    ledger uses. Otherwise the certificate states the ε of the account.

    statement : statement of the account; None without privacy.
    model, findings : contents of model.json and findings.json.
    charged : {event: count} of the run's charges.
    released : values released by the first queries.
    party_ledgers : heads of the hash chains of the parties' own ledgers.
    run, account : names, in the ledger, of the run and of the charged account.
    flags : one sentence for each deviation of the run from its job.
    federation : `vfl.network.federation.file.Federation.stated` of the federation of organisations; None for a run of one
        operator.
    knots : {column: knots} that the run found.
    """
    facts = planned(plan)
    facts["flags"] += tuple(flags)
    common: dict[str, Any] = {
        "events": _counted(tuple(charged.items())),
        "moments_digest": moments_digest(plan, moments_among(plan, released)),
        "model_digest": model_digest(model),
        "findings_digest": findings_digest(findings),
        "party_ledgers": {
            party: {"entries": head.seq, "head": head.hash} for party, head in (party_ledgers or {}).items()
        },
        "federation": dict(federation or {}),
        "knots": {column: list(own) for column, own in (knots or {}).items()},
    }
    if statement is None:
        nothing: dict[str, Any] = {"adjacency": "none", "basis": "none", "accounting": "none", "scope": "no guarantee"}
        return Certificate(**facts, **common, **nothing, epsilon=math.inf, delta=0.0, releases=0)
    place = {"run": run, "account": account, "entries": statement.entries, "head": statement.head}
    facts["flags"] += statement.flags
    epsilon, delta, accounting = statement.epsilon, statement.delta, statement.accounting
    counted = facts["reserved"] if statement.stopped_early else common["events"]
    if is_exact(facts["reserved"]) and plan.problem.delta is not None:
        delta, accounting = plan.problem.delta, str(Accounting.GDP)
        epsilon = epsilon_of(Accounting.GDP, plan_cost(counted, Accounting.GDP), delta)
    parted = SUBSAMPLED if plan.subsamples is not None else PARTED if plan.split else ""
    return Certificate(
        **facts,
        **common,
        epsilon=epsilon,
        delta=delta,
        adjacency=str(statement.adjacency),
        basis="reserved" if statement.stopped_early else "charged",
        accounting=accounting,
        scope=statement.scope + (AMPLIFIED if plan.committed else "") + parted,
        total=total_of(facts["start"], epsilon, delta, exact_mu(counted)),
        releases=statement.releases,
        ledger=place if statement.head else {},
    )


def cost_behind(certificate: Certificate) -> dict[str, float]:
    """Return the cost of all releases behind a certified model, computed again from its events, as fields of a `Start`."""
    mu = exact_mu(certificate.reserved if certificate.basis == "reserved" else certificate.events)
    own = {"epsilon": certificate.epsilon, "delta": certificate.delta} | ({} if mu is None else {"mu": mu})
    found = total_of(certificate.start, certificate.epsilon, certificate.delta, mu) if certificate.start else own
    return {name: found[name] for name in (("mu",) if "mu" in found else ("epsilon", "delta"))}


def is_exact(reserved: Events) -> bool:
    """Return True if all planned releases are Gaussian. Then a run is exactly μ-GDP, however many releases it makes."""
    return exact_mu(reserved) is not None


def model_digest(model: Mapping[str, Any]) -> str:
    """Return the SHA-256 of `w`, `coordinates` and standard errors in a model.json, whatever the spelling of their numbers."""
    counted = {"coordinates": model.get("coordinates"), "w": model.get("w")}
    if model.get("inference") is not None:
        counted["inference"] = model["inference"]
    # Text that UTF-8 cannot encode belongs to another model, so give it a digest instead of an error.
    return hashlib.sha256(canonical(_exact(counted)).encode(errors="surrogatepass")).hexdigest()


def findings_digest(findings: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the values of a findings.json, whatever the spelling of its numbers; '' if there are no values."""
    return hashlib.sha256(canonical(_exact(dict(findings))).encode()).hexdigest() if findings else ""


def moments_among(plan: Plan, released: Sequence[Released]) -> Released:
    """Return the solver's first release, found among the first releases of the run; () if the solver made no release."""
    return released[plan.n_before] if len(released) > plan.n_before else ()


def moments_digest(plan: Plan, moments: Released) -> str:
    """Return the SHA-256 of the column moments that the solver of a private run releases first; '' without such a release.

    The moments themselves are public, but would make a certificate too long.
    """
    privacy = plan.job.privacy
    if privacy is None or privacy.smoothness != "private" or plan.solver.sealed or not moments:
        return ""
    if not isinstance(next(plan.solver.schedule(plan.problem)), Moments):
        return ""
    return hashlib.sha256(canonical(_exact([list(map(float, u)) for u in moments])).encode()).hexdigest()


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _exact(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_exact(item) for item in value]
    return float(value).hex() if isinstance(value, int | float) and not isinstance(value, bool) else value


def _counted(events: Sequence[tuple[Event, int]]) -> Events:
    counts: Counter[Event] = Counter()
    for event, count in events:
        counts[event] += count
    return tuple(counts.items())


def _options(solver: Any) -> dict[str, Any]:
    return {name: value if _is_plain(value) else str(value) for name, value in options_of(solver).items()}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))
