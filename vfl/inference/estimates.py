"""Linear combinations of coefficients that the records determine, such as differences of levels, with standard errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vfl.columns import Categorical, indicators
from vfl.errors import SpecificationError
from vfl.features import Binned, Hashed, Spline, own_of
from vfl.problem import INTERCEPT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.inference.inference import Inference
    from vfl.schema import Schema
    from vfl.types import Vector


def full_sets(schema: Schema, columns: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the full sets: coordinates of one column, such as levels, bins or buckets, whose sum is 1 on every record."""
    found = []
    for column in columns:
        declared = schema[column]
        names = own_of(declared, column)
        if isinstance(declared, Categorical):
            full = declared.unknown != "zero"
        else:
            full = isinstance(declared, Binned | Spline) or (isinstance(declared, Hashed) and not declared.signed)
        if full:
            # A missing cell without a fill value is in no level, so the indicator of missing cells completes the set.
            found.append(names if declared.fill is not None else (*names, *indicators(column, declared.missing)))
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """Linear combinations of a run's coefficients that the records determine, in original units.

    The levels of a full set add up to 1 on every record, as does the intercept. Adding a number to the coefficients of all
    levels and subtracting it from the intercept changes no prediction. So neither the levels nor the intercept have standard
    errors of their own. Levels are therefore reported as differences from the first level of their set. The intercept is
    reported for a record that is in the first level of every set.

    names : (m,) expressions in the coefficients, in the syntax of `wald`. weights : (m, k) weights of the coefficients.
    sets : (s, k) indicators: one row for the intercept, then one per full set of levels.
    """

    inference: Inference
    names: tuple[str, ...]
    weights: Vector
    sets: Vector

    @classmethod
    def of(cls, inference: Inference, levels: Sequence[Sequence[str]]) -> Estimates:
        """Return the combinations for a model. levels : names of the coordinates of each full set."""
        at = {name: j for j, name in enumerate(inference.names)}
        unit = np.eye(len(at))
        ones = [[at[name] for name in own] for own in ([INTERCEPT], *levels) if all(name in at for name in own)]
        sets = np.array([unit[own].sum(axis=0) for own in ones]).reshape(len(ones), len(at))
        first, rest = ones[:1], ones[1:]
        reference = {j: own[0] for own in rest for j in own}
        whole, alone = sum((unit[own[0]] for own in rest), np.zeros(len(at))), {j for own in first for j in own}
        rows: dict[str, Vector] = {}
        order = sorted(at.values(), key=lambda j: (inference.names[j] != INTERCEPT, j))
        for j in order:
            name = inference.names[j]
            if j in alone and rest:
                rows[" + ".join((name, *(inference.names[own[0]] for own in rest)))] = unit[j] + whole
            elif j not in reference:
                rows[name] = unit[j]
            elif j != reference[j]:
                rows[f"{name} - {inference.names[reference[j]]}"] = unit[j] - unit[reference[j]]
        return cls(inference, tuple(rows), np.array(list(rows.values())).reshape(len(rows), len(at)), sets)

    @property
    def values(self) -> Vector:
        """(m,) estimates."""
        return self.weights @ self.inference.estimates

    @property
    def covariance(self) -> Vector:
        """(m, m) covariance of the estimates."""
        return self.weights @ self.inference.covariance @ self.weights.T

    @property
    def errors(self) -> Vector:
        """(m,) standard errors."""
        return errors_of(self.inference.covariance, self.weights)

    @property
    def privacy_shares(self) -> Vector:
        """(m,) share of each variance due to the noise of privacy; 0 for a variance of 0, NaN where the share is unknown."""
        if self.inference.noise_covariance is None:
            return np.full(len(self.names), np.nan)
        whole, noise = self.errors**2, errors_of(self.inference.noise_covariance, self.weights) ** 2
        return np.clip(np.divide(noise, whole, out=np.zeros_like(whole), where=whole > 0.0), 0.0, 1.0)

    def weights_of(self, terms: Mapping[str, float]) -> Vector:
        """Return the weights (k,) of a combination. SpecificationError if the records do not determine the combination."""
        row = np.array([float(terms.get(name, 0.0)) for name in self.inference.names])
        sums = self.sets @ row
        for own, total in zip(self.sets, sums, strict=True):
            if abs(total - sums[0]) > 1e-9 * max(1.0, float(np.abs(row).sum())):
                first, second = (self.inference.names[j] for j in np.flatnonzero(own)[:2])
                raise SpecificationError(
                    f"{first!r} and the other levels add up to 1 on every record, so records determine their differences "
                    f"only: test a difference, such as {f'{second} = {first}'!r}"
                )
        return row


def errors_of(covariance: Vector, weights: Vector) -> Vector:
    """Return the standard deviations (m,) of the combinations with weights (m, k)."""
    variances: Vector = ((weights @ covariance) * weights).sum(axis=1)
    return np.sqrt(np.maximum(variances, 0.0))
