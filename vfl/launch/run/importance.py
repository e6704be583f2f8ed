"""Importance of features from released values alone: coefficient times released spread of the column."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vfl.certificate.issue import moments_digest
from vfl.errors import OutputError, SpecificationError
from vfl.planning import plan as make_plan
from vfl.problem import INTERCEPT, coordinates_of
from vfl.solvers.releases.smoothness import spreads

if TYPE_CHECKING:
    from vfl.launch.run.result import Result

LEVEL = 1.959963984540054
"""A normal value is within this many standard deviations of its mean with probability 0.95."""


@dataclass(frozen=True, slots=True)
class Importance:
    """Change of the margin when one feature changes by its standard deviation.

    feature, party : name and owner of the feature. coefficient : coefficient on the scaled feature.
    spread : released standard deviation of the scaled feature in the training records; about 0 for sparse columns.
    value : |coefficient|·spread. low, high : interval that contains |coefficient|·(standard deviation without noise) with
        probability 0.95.
    """

    feature: str
    party: str
    coefficient: float
    spread: float
    value: float
    low: float
    high: float

    @property
    def too_noisy(self) -> bool:
        """True if noise may explain the whole released spread."""
        return self.low == 0.0 and self.high > 0.0

    def __str__(self) -> str:
        shown = f"{self.feature} {self.value:.3g} ({self.low:.3g} to {self.high:.3g})"
        return f"{shown}, too noisy to tell" if self.too_noisy else shown


def importance_of(result: Result) -> tuple[Importance, ...]:
    """Return the importance of every feature, largest first. Post-processing of released values: it costs no privacy.

    Training released mean and mean square of the columns, as one Gaussian release that its ε covers (see
    vfl.solvers.releases.smoothness). They give a variance v_j with noise N(0, s_j²) of known s_j, so that
    [v_j − 1.96 s_j, v_j + 1.96 s_j] contains the variance of the training records with probability 0.95 (to first order where
    a mean is squared). The interval is about the spread alone: it says nothing about the coefficient that a model without
    noise or with other records would have. Correlated features share their importance arbitrarily.

    Raises SpecificationError for a run that released no moments, OutputError for moments that the certificate does not name.
    """
    job, n_records = result.job, result.certificate.n_records
    plan = make_plan(job, n_records)
    names = plan.problem.layout.names
    if not result.moments or tuple(names) != result.coordinates:
        raise SpecificationError(
            "importance needs the spread of the columns, which this run did not release: train with "
            "Privacy(smoothness='private') and a solver that releases it, such as SkGD"
        )
    if moments_digest(plan, result.moments) != result.certificate.moments_digest:
        raise OutputError("the released moments of the columns are not those that the certificate names")
    variance, error = spreads(plan.problem, result.moments)
    owner = result.owners
    intercepts, found = coordinates_of(INTERCEPT, job.class_names), []
    for name, w, reach, v, s in zip(names, result.w, plan.problem.reach, variance, error, strict=True):
        if name in intercepts:
            continue
        at, low, high = (math.sqrt(min(max(v + side * LEVEL * s, 0.0), reach * reach)) for side in (0, -1, 1))
        size = abs(float(w))
        found.append(Importance(name, owner[name], float(w), at, size * at, size * low, size * high))
    return tuple(sorted(found, key=lambda one: -one.value))
