"""Check of convergence for fits without privacy. The check depends on the data, so a private fit must not use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from parties.loading import load, load_features
from parties.storage.classes import ClassColumns
from vfl.kernels.dense import WEIGHTS
from vfl.kernels.geometry import Geometry
from vfl.launch.run.warnings import warn
from vfl.losses import loss_of
from vfl.planning import plan
from vfl.problem import coordinates_of
from vfl.targets import weighed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.launch.run.result import Result

TOLERANCE = 1e-5
"""A model has converged if a full step would move no coordinate by more than this share of the largest coefficient."""


def next_move(result: Result, features: Mapping[str, Any], labelled: Any) -> float:
    """Return how far one exact proximal gradient step moves a coordinate at most, as a share of the largest coefficient.

    Steps are 1/M_j on the scaled features. The move is 0 only at the optimum.

    features : {party: training data without the label}. labelled : the label party's data, with the label.
    """
    job, loss = result.applied, loss_of(result.job.loss)
    y, offsets, weights = job.targets.parts(load(job.for_party(job.partition.label_party), labelled).labels())
    K, classes = job.n_margins, job.class_names
    margins = result.decision_function(features).T.ravel()  # (K·n,), one class after the other
    r = weighed(loss.derivative(margins if offsets is None else margins + offsets, y), weights)
    w = dict(zip(result.coordinates, result.w, strict=True))
    # The intercept is not penalised, so its step is a plain gradient step.
    moves = [float(abs(r.reshape(K, -1).mean(axis=1)).max() / loss.curvature)] if job.intercept else []
    for party, source in features.items():
        if job.partition.columns(party):
            columns = load_features(job.for_party(party), source)
            own = np.array([w[name] for column in columns.names for name in coordinates_of(column, classes)])
            X, zeros, ones = columns.block(0, len(columns.names)), np.zeros(own.size), np.ones(own.size)
            M = np.repeat(loss.curvature * columns.kernels.plain_moments(X)[1] / len(y), K)
            M[M == 0] = 1.0  # only the penalty moves the coefficient of a column of zeros
            kernels = ClassColumns(columns, K).kernels if classes else columns.kernels
            g = kernels.plain_gradient(X, r, r, WEIGHTS, Geometry(zeros, ones)) / len(y)
            moves.append(float(abs(job.penalty.prox(own - g / M, 1.0 / M) - own).max()))
    return float(max(moves) / max(abs(result.w).max(), 1e-150))


def ran_out(result: Result, n_iter: int) -> bool:
    """Return True if a solver with a stopping rule made all of its passes and the rule was never met."""
    planned = plan(result.job, result.certificate.n_records)
    last = planned.solver.last_pass(planned.problem)
    return last is not None and n_iter >= last


def warn_unless_converged(
    result: Result, features: Mapping[str, Any], labelled: Any, *, tol: float | None, n_iter: int
) -> None:
    """Issue scikit-learn's ConvergenceWarning if a step would still move the model, or if the stopping rule was never met.

    features, labelled : as for `next_move`.
    tol : tolerance of the fit. The tolerance and `next_move` have different units, so a move up to ten times the tolerance is
    accepted.
    n_iter : number of passes made. For a fit that made all passes, any next move causes the warning, since a model far from
    the optimum hardly moves along nearly collinear columns.
    """
    if ran_out(result, n_iter) or next_move(result, features, labelled) > max(TOLERANCE, 10.0 * (tol or 0.0)):
        warn(
            f"{result.job.name} has not converged: give it more passes with max_iter=, a larger tol, or a stronger penalty",
            ConvergenceWarning,
        )
