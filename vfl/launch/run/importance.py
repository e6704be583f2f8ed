"""Importance of features from released values alone: coefficient times the released spread of the column."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vfl.base.problem import INTERCEPT, coordinates_of
from vfl.errors import OutputError, SpecificationError
from vfl.launch.run.intervals import estimates_of
from vfl.planning import plan as make_plan
from vfl.planning.certificate.issue import moments_digest
from vfl.solvers.releases.smoothness import spreads

if TYPE_CHECKING:
    from vfl.launch.run.model import Model

LEVEL = 1.959963984540054
"""Number of standard deviations within which a normal value lies with probability 0.95."""
EACH = 2.241402727604947
"""Number of standard deviations within which a normal value lies with probability 0.975."""


@dataclass(frozen=True, slots=True)
class Importance:
    """Change of the score if one feature changes by its standard deviation.

    feature, party : name and owner of the feature. coefficient : coefficient on the scaled feature.
    spread : released standard deviation of the scaled feature in the training records; about 0 for sparse columns.
    value : |coefficient|·spread. low, high : interval that contains |coefficient|·(standard deviation without noise) with
        probability 0.95. If the run released standard errors, the interval includes the coefficient's error too; it is
        unbounded, [0, inf], if that error is withheld.
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
        """True if noise alone may explain the released spread, or the coefficient if its error is known."""
        return self.low == 0.0 and self.high > 0.0

    def __str__(self) -> str:
        value = "too noisy to tell" if self.too_noisy else f"{self.value:.3g}"
        return f"{self.feature} {value} ({self.low:.3g} to {self.high:.3g})"


def importance_of(result: Model) -> tuple[Importance, ...]:
    """Return the importance of every feature; the largest comes first. Post-processing, which costs no privacy.

    Training released mean and mean square of the columns, as one Gaussian release that the run's ε includes (see
    vfl.solvers.releases.smoothness). Mean and mean square give a variance v_j with noise N(0, s_j²) of known s_j. So
    [v_j − 1.96 s_j, v_j + 1.96 s_j] contains the variance of the training records with probability 0.95 (to first order where
    a mean is squared). Without standard errors the interval is about the spread alone: it says nothing about the coefficient
    that a model without noise or with other records would have. With standard errors, the interval is the product of one
    interval for the coefficient and one for the spread, each of level 0.975, so that both hold with probability at least
    0.95. A level of a full set of indicators has no standard error, and the interval is about the spread alone. Correlated
    features share their importance arbitrarily.

    Raises SpecificationError for a run that released no moments, and OutputError for moments that the certificate does not
    name.
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
    own_error = _errors(result)
    intercepts, found = coordinates_of(INTERCEPT, job.class_names), []
    for name, w, reach, v, s in zip(names, result.w, plan.problem.reach, variance, error, strict=True):
        if name in intercepts:
            continue
        level = EACH if name in own_error else LEVEL
        at, low, high = (math.sqrt(min(max(float(v + side * level * s), 0.0), reach * reach)) for side in (0, -1, 1))
        size, away = abs(float(w)), EACH * own_error.get(name, 0.0)
        ends = (0.0, math.inf) if math.isnan(away) else (max(0.0, size - away) * low, (size + away) * high)
        found.append(Importance(name, owner[name], float(w), at, size * at, *ends))
    return tuple(sorted(found, key=lambda one: -one.value))


def _errors(result: Model) -> dict[str, float]:
    """Return {feature: standard error on the scaled feature}, NaN if withheld; {} without errors."""
    if result.inference is None:
        return {}
    scaling, estimates = result.job.scaling_of(result.job.partition.features), estimates_of(result)
    width = dict(zip(scaling.features, map(float, scaling.width), strict=True))
    rows = zip(estimates.names, estimates.errors.tolist(), strict=True)
    return {name: error * width[name] for name, error in rows if name in width}
