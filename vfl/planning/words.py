"""Description of a plan in words: a short outline, or the whole plan with formulas."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from vfl import markup
from vfl.alignment import reveals
from vfl.job.start import total_of
from vfl.planning.forecast import forecast
from vfl.privacy.events import OnPart, bare
from vfl.privacy.ledger.composition import exact_mu
from vfl.solvers.rules.recommend import recommendation
from vfl.solvers.rules.record_defaults import standing_still

if TYPE_CHECKING:
    from vfl.losses import Loss
    from vfl.planning.forecast import Forecast
    from vfl.planning.run_plan import Plan
    from vfl.privacy.events import Event

Lines = tuple[tuple[str, str], ...]
"""Lines (name, words). A line with an empty name continues the previous line."""

UNPREDICTED = (
    "every step on shares waits several times for messages between all participants and for the words of the dealer"
)
"""Reason why the time of a run on shares is not predicted."""


def text(title: str, lines: Lines) -> str:
    """Return a title and its lines as text."""
    return "\n".join((title, *(f"  {key:<10} {said}" for key, said in lines)))


def html(title: str, lines: Lines) -> str:
    """Return a title and its lines as HTML, for notebooks."""
    return markup.whole(markup.line(title, strong=True), markup.table((), lines))


def model_of(loss: Loss) -> str:
    """Return the name of the model that a loss fits."""
    return loss.words or f"{loss.name} loss"


def title(plan: Plan) -> str:
    """Return the plan's title: the model and its sizes."""
    parties = len(plan.job.partition.parties)
    n = plan.problem.n_records
    records = f"{n:,} records" if plan.split is None else f"{n:,} of {plan.n_records:,} records"
    if plan.subsamples is not None:
        records = f"{plan.n_fits} subsamples of {n:,} of {plan.n_records:,} records"
    features = plan.problem.layout.n_columns - int(plan.job.intercept)
    columns = f"{features:,} feature{'s' * (features != 1)} of {parties} part{'ies' if parties > 1 else 'y'}"
    return f"plan of job {plan.job.name!r}: {model_of(plan.problem.loss)}, {columns}, {records}"


def outline(plan: Plan, expected: Forecast | None = None) -> Lines:
    """Return the plan without formulas. expected : forecast from the caller's guesses; None uses the default guesses."""
    faint = (
        standing_still(plan.problem) if plan.solver.name in ("SkGD", "CD") else ""
    )  # the model learns almost nothing
    return (
        *_privacy(plan),
        ("penalty", _penalty(plan)),
        *(() if plan.knots is None else (("curves", plan.knots.explain()),)),
        ("training", _training(plan)),
        *_expected(plan, expected),
        *_asks(plan),
        *_flags(plan),
        *_trust(plan),
        *_sparse(plan),
        _cost(plan),
        *_remark(plan),
        *_link(plan),
        *_alignment(plan),
        *((("signal", faint),) if faint else ()),
        *_advice(plan),
        ("more", "every release, its noise and every choice: vfl plan JOB --explain (in Python: plan.explain())"),
    )


def whole(plan: Plan) -> Lines:
    """Return the plan with its formulas: the objective, every release and every choice."""
    lines = [("minimise", plan.problem.describe()), *_sparse(plan), *_privacy(plan)]
    if plan.job.privacy is not None:
        for event, count in plan.releases[: len(plan.releases) // plan.n_fits]:
            where = f", of the {event.part} records" if isinstance(event, OnPart) else ""
            where = where if plan.subsamples is None else f", on each of {plan.n_fits} subsamples"
            lines.append(("releases", f"{count} × {described(event)}{where}"))
        if plan.split is not None:
            lines.append(("", "ε is the largest of what the parts cost: no record is in two of them"))
        lines += _flags(plan)
    lines += [("curves", plan.knots.explain())] if plan.knots is not None else []
    lines += [*_trust(plan), _cost(plan), *_remark(plan), *_link(plan)]
    lines += [*_alignment(plan), *_asks(plan)]
    lines += [("choice", sentence) for sentence in plan.solver.explain(plan.problem)]
    if plan.problem.private and compared(plan):
        lines.append(("advice", str(recommendation(plan.problem))))
    return tuple(lines)


def described(event: Event) -> str:
    """Return an event in words: the mechanism and its numbers."""
    event = bare(event)
    numbers = {f.name: getattr(event, f.name) for f in fields(event) if f.name != "adjacency"}
    return f"{type(event).__name__} ({', '.join(f'{name} {value:.6g}' for name, value in numbers.items())})"


def _with_start(plan: Plan) -> str:
    """Return the cost of the run together with its start; '' if there is none, and if it is not known."""
    start, delta = plan.job.start, plan.problem.delta
    if start is None or delta is None:
        return ""
    total = total_of(start.stated(), plan.epsilon, delta, exact_mu(plan.releases))
    said = ": with its cost, ε = {epsilon:.4g} at δ = {delta:.3g} for records on which it was trained"
    return said.format(**total) if total else ""


def _privacy(plan: Plan) -> Lines:
    privacy = plan.job.privacy
    start = plan.job.start
    last = [] if start is None else [("start", f"from the released model {start.model[:12]}{_with_start(plan)}")]
    if privacy is None:
        return (("privacy", "NONE: the model is not differentially private"), *last)
    stated = f"ε = {plan.epsilon:.4g} at δ = {plan.problem.delta:.3g} for every record (replace one)"
    lines = [("privacy", f"{stated}, of ε = {privacy.epsilon:g} allowed")]
    lines += [("warning", warning) for warning in plan.warnings]
    if privacy.noise is not None:
        lines.append(("", "NOT PRIVATE as run: seeded noise can be computed by anybody who has the seed"))
    return (*lines, *last)


def _penalty(plan: Plan) -> str:
    penalty = plan.problem.penalty
    options = ", ".join(f"{f.name.replace('_', ' ')} {getattr(penalty, f.name):g}" for f in fields(penalty))  # type: ignore[arg-type]
    name = type(penalty).__name__
    return "none" if name == "NoPenalty" else f"{name}, {options}"


def _training(plan: Plan) -> str:
    solver = plan.solver
    said = [solver.name]
    if passes := getattr(solver, "passes", None):
        said.append(f"{passes} passes over all columns")
    releases = sum(count for _, count in solver.releases(plan.problem)) if plan.job.privacy is not None else 0
    if releases:
        each = "" if plan.subsamples is None else f" on each of {plan.n_fits} subsamples, whose mean is the model"
        said.append(f"{releases:,} release{'s' * (releases > 1)} with noise{each}")
    return ", ".join(said)


def _expected(plan: Plan, expected: Forecast | None) -> Lines:
    found = forecast(plan.job, plan.n_records) if expected is None else expected
    first, *others = found.lines
    lines = [("expect", first), *(("", line) for line in others)]
    if found.guessed:
        options = " and ".join(f"--{guess}" for guess in found.guessed)
        lines.append(("", f"guessed: {' and '.join(found.guessed)}; give your own to vfl plan with {options}"))
    return tuple(lines)


def _flags(plan: Plan) -> Lines:
    return tuple(("flag", flag) for flag in plan.flags) if plan.job.privacy is not None else ()


def _asks(plan: Plan) -> Lines:
    return tuple(("asks", f"{inquiry.name}: {inquiry.explain()}") for inquiry in plan.inquiries)


def _sparse(plan: Plan) -> Lines:
    if not plan.job.sparse:
        return ()
    named = ", ".join(plan.job.sparse)
    return (("sparse", f"columns of {named}: scaled by a factor, neither shifted nor centred, so 0 stays 0"),)


def _trust(plan: Plan) -> Lines:
    """Return lines on the threat model of a run on shares, and on the run's cost, bits and bias."""
    sharing = plan.sharing
    if sharing is None:
        return ()
    roles, dealer = sharing.roles, sharing.secure.dealer
    many = f"up to {roles.collude} part{'ies' if roles.collude > 1 else 'y'} may pool what they saw"
    where = "a separate dealer" if dealer == "separate" else "a dealer at the coordinator"
    bits, accuracy, shares, *traffic = sharing.described()
    return (
        (
            "trust",
            f"secure, if all are semi-honest: {many}; {where}; shares held by {', '.join(sharing.stated()['holders'])}",
        ),
        ("", broken_by(roles.collude)),
        ("", f"price: {sharing.price:.3g} times the noise charged to ε, drawn by all parties and the dealer"),
        ("bits", bits),
        ("accuracy", accuracy),
        ("shares", shares),
        *(("", said) for said in traffic),
    )


def broken_by(collude: int) -> str:
    """Describe the coalitions of participants that would learn more than the opened sums if they pooled what they see."""
    return f"broken by: the dealer with one party, or {collude + 1} parties that pool what they saw"


def _cost(plan: Plan) -> tuple[str, str]:
    most = "at most " * (plan.sharing is not None)
    traffic = f"{plan.round_trips:,} round trips, {most}{plan.n_bytes / 1e6:.3g} MB between participants"
    if plan.sharing is not None:
        return "cost", f"{traffic}; the time is not predicted, since {UNPREDICTED}"
    taken = f"about {plan.seconds:.2g} s of rounds on an idle machine"
    return "cost", f"{traffic}, {taken}, after processes have started and parties have loaded"


def _remark(plan: Plan) -> Lines:
    said = "" if plan.sharing is not None else plan.job.solver.remark(plan.problem, plan.solver)
    return (("", said),) if said else ()


def _link(plan: Plan) -> Lines:
    link = plan.link
    if link is None:
        return ()
    said = (
        f"{stage}: at most {found.rounds:,} rounds, {found.n_bytes / 1e6:.3g} MB, {found.seconds(link):.2g} s"
        for stage, found in plan.transfers.items()
    )
    return (("link", f"{link}: {'; '.join(said)}; computing takes its own time"),)


def _alignment(plan: Plan) -> Lines:
    job = plan.job
    if not job.ids and len(job.partition.parties) > 1:
        return (("rows", "row i of every party is taken for the same record, since the job names no id"),)
    if not job.ids:
        return ()
    columns = job.id if isinstance(job.id, str) else ", ".join(f"{party}: {c}" for party, c in job.ids.items())
    n = plan.n_records
    cost = (
        f"about {plan.alignment_seconds:.2g} s on one core if no party holds more ids than the {n} that all have; "
        "other ids take time too"
    )
    cost = "as done by vfl align" if plan.aligned else cost
    shown = reveals(len(job.ids)).items()
    return (("align", f"by {columns}, {cost}"), *(("shows", f"{who}: {said}") for who, said in shown))


def compared(plan: Plan) -> bool:
    """Return True if measurements on this loss compared the solvers."""
    return plan.problem.loss.power is None


def _advice(plan: Plan) -> Lines:
    """Return a sentence on the solver with the smallest expected error, if the job names another solver."""
    if plan.problem.private and not compared(plan) and plan.solver.name in ("GCD", "SCD"):
        why = "does not find the mean of counts and amounts with noise; predictions may be wrong by a factor of 10 or more"
        return (("advice", f"{plan.solver.name} {why}: solver = SkGD"),)
    if plan.sharing is not None or not compared(plan):  # the comparison has solvers that cannot run on shares
        return ()
    if not plan.problem.private or (first := recommendation(plan.problem).solver) == plan.solver.name:
        return ()
    return (("advice", f"{first} is expected to do better on this job: solver = {first}"),)
