"""Summary, intervals and tests of a result's coefficients; intervals for the mean response of new records."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from parties.loading import new_records
from parties.prediction import added
from vfl.base.features import Curve, Spline
from vfl.base.losses import loss_of
from vfl.base.problem import INTERCEPT
from vfl.errors import SpecificationError
from vfl.launch.sources import on_joined_rows, owned
from vfl.measures.covariance import DRAWS, Noisy, covariances, remaining
from vfl.measures.inference import (
    CAPPED,
    CLAMPED,
    CONSERVATIVE,
    CURVES,
    ROBUST,
    SELECTED,
    UNLIKELY,
    USUAL,
    Estimates,
    Inference,
    Summary,
    full_sets,
    quantile,
    rows_of,
    sandwich,
)
from vfl.planning.run_plan import model_of
from vfl.solvers.releases.products import Observed
from vfl.solvers.rules.intervals import CLEAR, clearness

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from parties.prediction import ModelPart, Permission
    from vfl.base.types import Vector
    from vfl.launch.run.model import Model
    from vfl.planning import Plan
    from vfl.queries.protocol import Released

Trained = TypeVar("Trained", bound="Model")


def inference_of(result: Model) -> Inference:
    """Return the result's inference. If there is none, raise SpecificationError, which names the option that releases one."""
    privacy = result.job.privacy
    if result.inference is None and privacy is not None and privacy.inference is not None:
        raise SpecificationError(
            "this run holds no standard errors: it lost a party or stopped before all releases for them were made. "
            "Train again, in a new run with a budget of its own"
        )
    if result.inference is None:
        raise SpecificationError(
            "this run holds no standard errors: train with Privacy(epsilon=..., inference=True), or vfl run JOB "
            "--intervals. Without privacy, compute them from the training records: result.infer(data)"
        )
    return result.inference


def estimates_of(result: Model) -> Estimates:
    """Return the coefficients that the records determine. Raises SpecificationError."""
    found, job = inference_of(result), result.job
    return Estimates.of(found, full_sets(job.schema, job.partition.features))


def summary_of(result: Model, level: float) -> Summary:
    """Return the summary of a result. Raises SpecificationError."""
    estimates, job, certificate = estimates_of(result), result.job, result.certificate
    loss = loss_of(job.loss)
    rows = rows_of(estimates, level)
    n = certificate.n_records if job.split is None else job.split.sizes(certificate.n_records)[0]
    facts = {
        "records": f"{n:,}",
        "loss": job.loss if isinstance(job.loss, str) else loss.name,
        "privacy": "ε = {:.4g}, δ = {:.3g}, for every record (replace one)".format(*certificate.guaranteed),
        "units": "original",
        **estimates.inference.facts,
    }
    if job.privacy is None:
        facts["privacy"] = "none"
    if job.partition.weight is not None:
        facts["weights"] = "sampling weights, not frequencies: a record of weight s is one record"
    if (held := result.findings.get("held out")) is not None and (
        shown := next((name for name in ("d2", "r2", "loss") if name in held.measures), None)
    ):
        facts["held out"] = f"{shown} {held.measures[shown]}"
    kind = "classes" if loss.classification else "numbers" if loss.power is None else "log link"
    notes = [ROBUST if job.privacy is None else CAPPED + USUAL[kind], *estimates.inference.notes]
    notes += [CONSERVATIVE] * estimates.inference.conservative + [SELECTED] + [UNLIKELY] * (job.privacy is not None)
    label = job.partition.label[1]
    if not loss.classification and not job.schema.unbounded([label]):
        notes.append(CLAMPED.format(*job.schema[label].limits))
    notes += [CURVES] * any(isinstance(job.schema[column], Curve | Spline) for column in job.partition.features)
    return Summary(
        f"{model_of(loss)} of {label!r}, job {job.name!r}",
        facts,
        float(level),
        rows,
        tuple(dict.fromkeys(notes)),
        estimates.inference.df,
    )


def mean_confint_of(result: Model, data: Any, level: float) -> Vector:
    """Return (n, 2) ends of intervals of the mean response of new records; see `Result.mean_confint`."""
    from scipy.special import expit

    found = inference_of(result)
    reach = quantile(level, found.df)
    data, policies, _ = owned(result.job.partition.parties, data)
    directions = _directions(result, found)
    products, _, _ = on_joined_rows(result.job, result.part, data, policies, _products(directions))
    total = added(products, directions.get(INTERCEPT, np.zeros(1)))
    margins, errors = total[:, 0], np.sqrt((total[:, 1:] ** 2).sum(axis=1))
    ends = np.column_stack([margins - reach * errors, margins + reach * errors])
    loss = result.job.response
    return np.asarray(expit(ends) if loss.log_odds else loss.response(ends), dtype=np.float64)


def inferred(result: Trained, data: Any) -> Trained:
    """Return a copy of a result without privacy, with standard errors added; see `Result.infer`."""
    job, loss = result.job, result.job.declared_loss
    _require_classical(result)
    partition, features = job.partition, job.partition.features
    data, policies, _ = owned(partition.parties, data)
    scaling = job.scaling_of(features)
    names = (*scaling.features, *((INTERCEPT,) if job.intercept else ()))
    units = dict(zip(names, np.eye(len(names)), strict=True))
    products, sources, rows = on_joined_rows(result.job, result.part, data, policies, _products(units), labels=True)
    X, owner = added(products, units.get(INTERCEPT, np.zeros(1))), partition.label_party
    if owner not in sources or len(X) != result.certificate.n_records:
        raise SpecificationError("infer needs the records that the model was trained on, with their labels")
    task = replace(job.for_party(owner), intercept=False, storage="float64", groups=())
    ((_, labels),) = new_records(task, sources[owner])
    targets = job.targets.parts(np.reshape(np.asarray(labels), (job.targets.count, -1))[:, rows[owner]])
    w = np.array([dict(zip(result.coordinates, result.w, strict=True))[name] for name in names])
    margins = X @ w + (0.0 if targets.offsets is None else targets.offsets)
    penalised = np.array([float(name != INTERCEPT or job.solver.penalises_intercept) for name in names])
    ridge = len(X) * job.penalty.convexity * penalised
    V = sandwich(X, margins, targets.labels, loss, weights=targets.weights, ridge=ridge)
    coefficients = [
        scaling.original_units(e[: len(scaling.features)], float(e[len(scaling.features) :].sum()))
        for e in np.eye(len(names))
    ]
    A = np.array([[*own, *((constant,) if job.intercept else ())] for own, constant in coefficients]).T
    original = result.original
    nothing, facts = np.zeros((len(names), len(names))), {"covariance": "HC0"}
    inference = Inference(tuple(original), np.array(list(original.values())), A @ V @ A.T, nothing, facts=facts)
    return result.with_inference(inference)


def _products(weights: Mapping[str, Vector]) -> Callable[[ModelPart, Any, Permission], Vector]:
    return lambda part, source, permission: part.products(source, weights, permission=permission)


def _require_classical(result: Model) -> None:
    job, loss = result.job, loss_of(result.job.loss)
    ridge = result.certificate.n_records * job.penalty.convexity
    for met, unfit in (
        (job.privacy is None, "the run is private, and exact errors would not be: train with Privacy(inference=True)"),
        (not loss.multinomial, "multinomial loss has one margin per class: train one class against the rest"),
        (
            loss.log_odds or not loss.classification,
            f"{loss.name} loss has no log-odds: choose logistic, squared or Huber loss",
        ),
        (
            loss.power is not None or math.isfinite(loss.curvature),
            f"{loss.name} loss has a kink: choose logistic, squared or Huber loss",
        ),
        (job.penalty.name in ("none", "l2"), f"the penalty {job.penalty.name} biases coefficients: leave it out"),
        (
            ridge <= 1.0 + 1e-9,
            f"the penalty biases coefficients: lower its strength to {1 / result.certificate.n_records:.2g}",
        ),
        (job.split is None, "held-out records are not told apart here: train without holdout"),
    ):
        if not met:
            raise SpecificationError(f"infer cannot give standard errors: {unfit}")


def _directions(result: Model, found: Inference) -> dict[str, Vector]:
    """Return {coordinate: (1 + k,)} on the scaled features: the coefficient, then the coordinate's row of a covariance root."""
    scaling = result.job.scaling_of(result.job.partition.features)
    at = {name: j for j, name in enumerate(found.names)}
    unit = np.eye(len(at))
    own = unit[[at[name] for name in scaling.features]]
    to_scaled = [*(own * scaling.width[:, None])]
    names = [*scaling.features]
    if INTERCEPT in at:
        names.append(INTERCEPT)
        to_scaled.append(unit[at[INTERCEPT]] + scaling.shift @ own)
    A = np.array(to_scaled)
    values, vectors = np.linalg.eigh(A @ found.covariance @ A.T)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return dict(zip(names, np.column_stack([A @ found.estimates, root]), strict=True))


def observed(plan: Plan, released: Sequence[Released | None]) -> Observed | None:
    """Replay a run's schedule on the run's releases; return the updates and the released matrices. None if a release was lost.

    released : released values of all queries, in order; None in place of a query that was refused.
    """
    schedule, seen = plan.solver.schedule(plan.problem), Observed()
    try:
        query = next(schedule)
        for values in released:
            if values is None:
                return None
            seen.note(query, values)
            query = schedule.send(values)
    except StopIteration:
        return seen
    return None


def inference_from(plan: Plan, released: Sequence[Released | None], original: dict[str, float]) -> Inference | None:
    """Return estimates and covariance of a finished run. None if the run lost a party or released no curvature.

    original : coefficients in original units, as in `Result.original`.
    """
    problem = plan.problem
    if problem.inference is None or (seen := observed(plan, released)) is None:
        return None
    first, second = (seen.matrix(of_curvature=kind) for kind in (True, False))
    solver: Any = plan.solver
    if first is None or second is None:
        return None
    to_original, none = _to_original(plan, seen), np.zeros((len(original), len(original)))
    found = Inference(tuple(original), np.array(list(original.values())), none, none)
    determined = Estimates.of(found, full_sets(plan.job.schema, plan.job.partition.features)).weights @ to_original
    H, J = Noisy(*first, determined), Noisy(*second, determined)
    noise, both = covariances(problem, seen, solver.skipped(problem), H, J)
    condition, hidden = H.condition(determined)
    mean = H.drawn(DRAWS, np.random.default_rng(0)).mean(axis=0)
    left = remaining(seen.updates, solver.skipped(problem), mean, determined)
    facts = {
        "covariance": "HC0 from released matrices, and the noise of privacy",
        "condition": f"{'at least ' * hidden}{condition:.3g}, of the released curvature of scaled columns",
        "converged": f"{len(seen.updates):,} steps, planned and not tested; at most {left:.1%} of the start's error is left",
    }
    return replace(
        found,
        covariance=to_original @ both @ to_original.T,
        noise_covariance=to_original @ noise @ to_original.T,
        conservative=H.clearness < CLEAR or clearness(solver, problem) < CLEAR,
        facts=facts,
    )


def _to_original(plan: Plan, seen: Observed) -> Vector:
    """Return the matrix (k, p) that maps scaled and centred coordinates to the original units of `Result.original`."""
    job, names = plan.job, plan.problem.layout.names
    scaling = job.scaling_of(job.partition.features)
    features = job.schema.features(job.partition.features)
    found = np.zeros((len(features) + job.intercept, len(names)))
    for column, (name, s, c) in enumerate(zip(names, seen.scale, seen.centre, strict=True)):
        w = np.array([s if own == name else 0.0 for own in features])
        coefficients, constant = scaling.original_units(w, s if name == INTERCEPT else -s * c if job.intercept else 0.0)
        found[: len(features), column] = coefficients
        if job.intercept:
            found[-1, column] = constant
    return found
