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
from vfl.measures.covariance import Noisy, basis_of, covariances
from vfl.measures.inference import (
    ALONE,
    CAPPED,
    CLAMPED,
    CURVES,
    FEW,
    ROBUST,
    SELECTED,
    TOGETHER,
    UNLIKELY,
    USUAL,
    WITHHELD,
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

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vfl.base.types import Vector
    from vfl.launch.run.model import Model
    from vfl.planning import Plan
    from vfl.queries.protocol import Released

Trained = TypeVar("Trained", bound="Model")


def inference_of(result: Model) -> Inference:
    """Return the result's inference. If there is none, raise SpecificationError, which names the option that releases one."""
    if result.inference is None and result.job.privacy is not None and result.job.intervals is not None:
        raise SpecificationError(
            "this run holds no standard errors: it lost a party or stopped before all releases for them were made. "
            "Train again, in a new run with a budget of its own"
        )
    if result.inference is None:
        raise SpecificationError(
            "this run holds no standard errors: train with Job(..., intervals=True), or vfl run JOB "
            "--set intervals=true. Without privacy, compute them from the training records: result.infer(data)"
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
    elif known := [row.privacy for row in rows if row.privacy is not None and row.privacy < 1.0]:
        facts["widths"] = (
            f"median {np.median((1.0 - np.array(known)) ** -0.5):.3g} of those without the noise of privacy"
        )
    if job.partition.weight is not None:
        facts["weights"] = "sampling weights, not frequencies: a record of weight s is one record"
    if (held := result.findings.get("held out")) is not None and (
        shown := next((name for name in ("d2", "r2", "loss") if name in held.measures), None)
    ):
        facts["held out"] = f"{shown} {held.measures[shown]}"
    kind = "classes" if loss.classification else "numbers" if loss.power is None else "log link"
    notes = [ROBUST if job.privacy is None else CAPPED + USUAL[kind], *estimates.inference.notes]
    notes += [SELECTED] + [UNLIKELY] * (job.privacy is not None)
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
    """Return (n, 2) ends of intervals of the mean response of new records, NaN if withheld; see `Result.mean_confint`."""
    from scipy.special import expit

    found = inference_of(result)
    reach = quantile(level, found.df)
    data, policies, _ = owned(result.job.partition.parties, data)
    directions = _directions(result, found)
    products, _, _ = on_joined_rows(result.job, result.part, data, policies, _products(directions))
    total, k = added(products, directions.get(INTERCEPT, np.zeros(1))), len(found.names)
    squares = total[:, 1:] ** 2
    scores, errors = total[:, 0], np.sqrt(squares[:, :k].sum(axis=1))
    signed = squares[:, k:].reshape(len(squares), len(found.limits), 2, k).sum(axis=3)  # signs as in _directions
    errors[(signed[:, :, 0] > signed[:, :, 1]).any(axis=1)] = np.nan
    ends = np.column_stack([scores - reach * errors, scores + reach * errors])
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
    ((_, labels),) = new_records(task, sources[owner], chosen=rows[owner])
    targets = job.targets.parts(np.asarray(labels))
    w = np.array([dict(zip(result.coordinates, result.w, strict=True))[name] for name in names])
    scores = X @ w + (0.0 if targets.offsets is None else targets.offsets)
    penalised = np.array([float(name != INTERCEPT or job.solver.penalises_intercept) for name in names])
    ridge = len(X) * job.penalty.convexity * penalised
    V = sandwich(X, scores, targets.labels, loss, weights=targets.weights, ridge=ridge)
    coefficients = [
        scaling.original_units(e[: len(scaling.features)], float(e[len(scaling.features) :].sum()))
        for e in np.eye(len(names))
    ]
    A = np.array([[*own, *((constant,) if job.intercept else ())] for own, constant in coefficients]).T
    original = result.original
    nothing, facts = np.zeros((len(names), len(names))), {"covariance": "HC0"}
    inference = Inference(tuple(original), np.array(list(original.values())), A @ V @ A.T, nothing, facts=facts)
    return result.with_inference(inference)


def _products(weights: Mapping[str, Vector]) -> Callable[..., Vector]:
    return lambda part, source, **options: part.products(source, weights, **options)


def _require_classical(result: Model) -> None:
    job, loss = result.job, loss_of(result.job.loss)
    ridge = result.certificate.n_records * job.penalty.convexity
    for met, unfit in (
        (job.privacy is None, "the run is private, and exact errors would not be: train with Job(intervals=True)"),
        (job.row_rule is None, "errors per row of persons with several would be too small; leave most_rows out"),
        (not loss.multinomial, "multinomial loss has one score per class: train a one-vs-rest model"),
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
        (job.row_rule is None, "rows of one person are not independent: train with Job(intervals='subsamples')"),
        (job.split is None, "the given records include those held out from training: train without holdout"),
    ):
        if not met:
            raise SpecificationError(f"infer cannot give standard errors: {unfit}")


def _directions(result: Model, found: Inference) -> dict[str, Vector]:
    """Return {coordinate: (1 + k + 2kq,)} on the scaled features: the coefficient, then the coordinate's rows of roots.

    The first root is that of the covariance. Each of the q limits has a root of its positive and one of its negative part.
    """
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
    roots = [A @ found.estimates]
    for M, signs in ((found.covariance, (1.0,)), *((limit, (1.0, -1.0)) for limit in found.limits)):
        values, vectors = np.linalg.eigh(A @ M @ A.T)
        roots += [vectors * np.sqrt(np.maximum(sign * values, 0.0)) for sign in signs]
    return dict(zip(names, np.column_stack(roots), strict=True))


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
    H, J, to_original, values = Noisy(*first), Noisy(*second), _to_original(plan, seen), np.array([*original.values()])
    none = Inference(tuple(original), values, np.zeros((len(values),) * 2), None)
    determined = Estimates.of(none, full_sets(plan.job.schema, plan.job.partition.features)).weights @ to_original
    basis, numeric = basis_of(determined), np.isin(problem.layout.names, plan.job.partition.features)
    known = covariances(problem, seen, solver.skipped(problem), H, J, basis, numeric)
    noise, both, *limits = (to_original @ M @ to_original.T for M in (known.noise, known.total, *known.limits))
    condition, hidden = H.condition(determined)
    left = float(np.linalg.norm(basis @ known.left @ basis.T, 2))
    facts = {
        "covariance": "HC0 from released matrices, and the noise of privacy",
        "condition": f"{'at least ' * hidden}{condition:.3g}, of the released curvature of scaled columns",
        "converged": f"{len(seen.moves):,} steps, planned and not tested; at most {left:.1%} of the start's error is left",
    }
    few = np.array(problem.layout.names)[seen.long_tailed(problem) & numeric & problem.loss.log_odds]
    notes = *_withheld(problem.layout.names, basis, known.limits), *filter(None, [_listed(few.tolist(), FEW)])
    return Inference(tuple(original), values, both, noise, notes=notes, facts=facts, limits=tuple(limits))


def _withheld(names: Sequence[str], basis: Vector, limits: Sequence[Vector]) -> tuple[str, ...]:
    """Return a note that names columns with standard errors only in combinations, or without any; () if there are none.

    basis : (r, p) of the combinations that records determine. limits : as in `Covariances`.
    """
    values, vectors = np.linalg.eigh(basis @ np.array(limits) @ basis.T)
    excluded = ((vectors.transpose(0, 2, 1) @ basis) ** 2) * (values > 0.0)[:, :, None]
    shares = excluded.sum(axis=1).max(axis=0)  # each coordinate's largest share in an excluded direction
    parts = ((shares >= min(0.03, shares.max())) & (shares < 0.9), TOGETHER), (shares >= 0.9, ALONE)
    said = [text for at, said in parts if (text := _listed(np.array(names)[at].tolist(), said))]
    return (WITHHELD.format("; ".join(said)),) if shares.any() else ()


def _listed(names: Sequence[str], said: str) -> str:
    return said.format(", ".join(names[:9]) + ", …" * (len(names) > 9)) if names else ""


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
