"""Regressors: least squares with the usual penalties; counts and amounts, whose mean is the exponential of the score."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.metrics import d2_tweedie_score

from vfl.apps.estimators.columns import DEFAULT_BOUNDS
from vfl.apps.estimators.vertical import PreparedFit, RecordNumbers, VerticalRegressor, per_record
from vfl.base.columns import checked_bounds
from vfl.base.losses import Gamma, Poisson, Tweedie, loss_of
from vfl.base.penalties import L1, L2, ElasticNet, NoPenalty
from vfl.errors import DataError, SpecificationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.base.losses import Loss
    from vfl.base.penalties import Penalty
    from vfl.base.types import Vector


@dataclass(kw_only=True, eq=False, repr=False)
class VerticalLinearRegression(VerticalRegressor):
    """Least squares, (ε, δ)-differentially private for every record (replace one) of each fit.

    The guarantee covers `coef_`, `intercept_` and everything computed from them alone, for the data that reach `fit`. The
    guarantee does not cover earlier steps on the same records (a scaler in a pipeline), scores on these records, or other
    fits: each fit of a search spends an ε of its own. `certificate_` states the guarantee.

    The objective is scikit-learn's half mean squared error. Features are clamped to their bounds and mapped to [−1, 1], which
    leaves them unchanged under the default bounds; labels are clamped to their bounds. Without privacy and without bounds, X
    and y are used unchanged. If several models are optimal, as with more columns than records, the model found depends on the
    means of the columns. Then weights and repeated records may give different models.

    X may be a SciPy sparse matrix. The columns of a sparse X are scaled, but neither shifted nor centred, so that zeros stay
    zeros. The bounds of these columns must contain 0.

    Parameters
    ----------
    label_bounds : public range (lo, hi) of y. Values outside are clamped. None is (−1, 1), with a warning
        (vfl.PrivacyWarning): the range is never taken from data. Without privacy None clamps nothing.
    epsilon : ε; only None trains without privacy.
    delta : δ; None takes 1/n².
    at : site of the run: 'inprocess', 'ray' (an actor for each party), or vfl.InProcess(...) or vfl.Ray(...).
    partition : owners of the columns: None (one party), a number of parties, {party: its columns}, or a
        vfl.FeaturePartition of X's columns.
    bounds : public range of the features: (lo, hi), an array of shape (p, 2), or a mapping from column to pair. Values
        outside are clamped. None is (−1, 1), with a warning (vfl.PrivacyWarning): the range is never taken from data.
        Without privacy None neither clamps nor scales.
    fit_intercept : True adds an unpenalised intercept.
    penalty : a penalty such as vfl.L1(0.1), which overrides the other parameters of the penalty; None uses those parameters.
    solver : vfl.SkGD(...); None lets public rules choose the solver and all of its options.
    max_iter : maximum number of passes over the coordinates; None leaves the number to the solver. A private fit always makes
        all passes.
    tol : a fit without privacy stops once no full step would move a coordinate by more than this share of the largest
        coordinate; None takes 1e-9. A private fit refuses a tolerance, since the stopping time would depend on the records.
    random_state : seed for the order of the blocks of columns. This parameter never seeds noise.
    noise : None draws noise from the operating system. vfl.SeededNoise(seed) makes runs repeatable and NOT PRIVATE.
    ledger, dataset : path of a ledger, and name of a data set in the ledger. The cap of the data set bounds all fits
        together. Without both, every certificate covers its own fit alone, and a vfl.PrivacyWarning states the total ε of the
        private runs in this process.
    weight_bounds : public range (lo, hi) of sample_weight, lo ≥ 0. Values outside are clamped. A record of weight s counts
        s/hi times, so a hi far above the usual weight adds noise. None is (0, 1), with a warning; without privacy None clamps
        nothing.
    intervals : True, or a share of the budget, releases standard errors of the coefficients, for `summary` and `confint`.
        'subsamples' computes the errors from fits on disjoint subsamples. Without privacy True computes the errors directly.
    curves : True fits a curve of every column (vfl.Curve), not a straight line. Curves need bounds that fit the columns.

    Attributes
    ----------
    coef_ : (p,) coefficients in the units and order of X; with curves, one per name in `result_.feature_names`.
    intercept_ : float. n_features_in_ : p. feature_names_in_ : (p,) names of the columns of X, if the names are text.
    certificate_ : vfl.Certificate of this fit. result_ : vfl.Result, which can be saved and certified.
    n_iter_ : number of passes over the coordinates.

    Raises vfl.errors, and scikit-learn's own errors for an X or y that is not numeric or holds NaN, or for shapes that do not
    match. All errors come before any release. A fit without privacy that has not converged issues scikit-learn's
    ConvergenceWarning.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model to X (n, p), dense or sparse, and numbers y (n,). The fit is (ε, δ)-DP for every record.

        sample_weight : (n,) weights of the records, clamped to `weight_bounds`; None gives equal weights.
        """
        return self._fit(X, y, sample_weight=sample_weight)

    def prepared(self, X: Any, y: Any, sample_weight: Any = None) -> PreparedFit:  # type: ignore[override]
        """Return the job that `fit` would run on these data."""
        X, y = self._validated(X, y, y_numeric=True)
        factors = self._weights(sample_weight, X)
        return self._prepare(
            X,
            y,
            loss="squared",
            penalty=self._penalty(*self._counted(len(y), factors)),
            label_bounds=self._declared_label_bounds(DEFAULT_BOUNDS),
            factors=factors,
        )

    def _penalty(self, count: float, share: float) -> Penalty:
        return NoPenalty()

    def predict(self, X: Any) -> Vector:
        """Return the predictions (n,). Values of X outside the bounds are clamped."""
        return self._scored(X)


@dataclass(kw_only=True, eq=False, repr=False)
class VerticalRidge(VerticalLinearRegression):
    """Ridge regression, (ε, δ)-differentially private for every record (replace one) of each fit.

    The objective is that of VerticalLinearRegression plus alpha/(2n)·‖w‖², as in scikit-learn's Ridge(alpha). The intercept
    is not penalised.

    Parameters
    ----------
    alpha : strength of the penalty, λ = alpha/n. Other parameters and all attributes : as for VerticalLinearRegression.
    """

    alpha: float = 1.0

    def _penalty(self, count: float, share: float) -> Penalty:
        return L2(self.alpha / count)


@dataclass(kw_only=True, eq=False, repr=False)
class VerticalLasso(VerticalLinearRegression):
    """The lasso, (ε, δ)-differentially private for every record (replace one) of each fit.

    The objective is that of VerticalLinearRegression plus alpha·‖w‖₁, as in scikit-learn's Lasso(alpha). The intercept is not
    penalised.

    Parameters
    ----------
    alpha : strength of the penalty. Other parameters and all attributes : as for VerticalLinearRegression.
    """

    alpha: float = 1.0

    def _penalty(self, count: float, share: float) -> Penalty:
        return L1(self.alpha * share)


@dataclass(kw_only=True, eq=False, repr=False)
class VerticalElasticNet(VerticalLinearRegression):
    """The elastic net, (ε, δ)-differentially private for every record (replace one) of each fit.

    The objective is that of VerticalLinearRegression plus alpha·(l1_ratio·‖w‖₁ + (1 − l1_ratio)/2·‖w‖²), as in
    scikit-learn's ElasticNet. The intercept is not penalised.

    Parameters
    ----------
    alpha : strength of the penalty. l1_ratio : share of the L1 norm.
    Other parameters and all attributes : as for VerticalLinearRegression.
    """

    alpha: float = 1.0
    l1_ratio: float = 0.5

    def _penalty(self, count: float, share: float) -> Penalty:
        return ElasticNet(self.alpha * share, self.l1_ratio)


DEFAULT_LABELS = (0.0, 10.0)
"""Default bounds of the labels of a private fit."""

SPREAD = 20.0
"""By default the mean is limited to 1/SPREAD to SPREAD times the overall mean. The loss is linear beyond the limits."""


@dataclass(kw_only=True, eq=False, repr=False)
class VerticalPoissonRegressor(VerticalRegressor):
    """Poisson regression of counts, (ε, δ)-differentially private for every record (replace one) of each fit.

    The guarantee covers `coef_`, `intercept_` and everything computed from them alone, for the data that reach `fit`. The
    guarantee does not cover earlier steps on the same records, scores on these records, or other fits. `certificate_` states
    the guarantee.

    The objective is that of scikit-learn's PoissonRegressor: half the mean deviance plus alpha/2·‖w‖². Features are clamped
    to their bounds and mapped to [−1, 1]; labels are clamped to their bounds. Beyond the limits of the mean, the loss is
    linear (vfl.losses.Poisson).

    With an exposure e_i, such as the years for which record i was observed, the record's mean is e_i·exp(x_iᵀw). This is
    PoissonRegressor on y/e with sample_weight=e. `predict` returns the rate, which is the mean for an exposure of 1.

    Parameters
    ----------
    alpha : strength of the penalty, λ = alpha.
    label_bounds : public range (lo, hi) of y, lo ≥ 0. Values outside are clamped. None is (0, 10), with a warning
        (vfl.PrivacyWarning): the range is never taken from data. Without privacy None clamps nothing.
    mean_bounds : public range (lo, hi) of plausible means, exposure included, lo > 0. Steps shrink as the range grows.
        None is (h/400, h), h being the upper label bound. Without privacy None is (m/20, 20m), m being the mean of y.
    exposure_bounds : public range (lo, hi) of the exposures, lo > 0. Values outside are clamped. A private fit with exposures
        needs this range; without privacy None clamps nothing.
    Other parameters : as for VerticalLinearRegression.

    Attributes
    ----------
    coef_, intercept_, certificate_, result_, n_iter_, n_features_in_, feature_names_in_ : those of VerticalLinearRegression.

    Raises the errors of VerticalLinearRegression. Also raises SpecificationError for exposures without public limits and for
    malformed limits; without privacy, DataError for labels below 0 and for exposures that are not above 0.
    """

    alpha: float = 1.0
    mean_bounds: Sequence[float] | None = None
    exposure_bounds: Sequence[float] | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def fit(self, X: Any, y: Any, exposure: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model to X (n, p), dense or sparse, and counts y (n,). The fit is (ε, δ)-DP for every record.

        exposure : (n,) exposures above 0; None is 1 for every record. sample_weight : (n,) weights of the records, clamped to
            `weight_bounds`; None gives equal weights.
        """
        return self._fit(X, y, exposure=exposure, sample_weight=sample_weight)

    def prepared(self, X: Any, y: Any, exposure: Any = None, sample_weight: Any = None) -> PreparedFit:  # type: ignore[override]
        """Return the job that `fit` would run on these data."""
        X, y = self._validated(X, y, y_numeric=True)
        if exposure is not None:
            exposure = per_record(exposure, len(y), "exposure")
        label_bounds = self._limits_of_labels(y, self._declared_label_bounds(DEFAULT_LABELS))
        factors = self._exposure(exposure) | self._weights(sample_weight, X)
        return self._prepare(
            X,
            y,
            loss=self._loss(*self._means(y, label_bounds[1])),
            penalty=self._penalty(*self._counted(len(y), factors)),
            label_bounds=label_bounds,
            factors=factors,
        )

    def _limits_of_labels(self, y: Vector, declared: tuple[float, float] | None) -> tuple[float, float]:
        """Return the bounds of the labels. Only a fit without privacy may read the bounds from y."""
        if declared is None:
            if not (y >= 0.0).all():
                raise DataError(
                    "y holds numbers below 0, which are not counts or amounts: drop the records, or declare label_bounds"
                )
            return 0.0, max(float(y.max()), 1e-6)
        low, high = declared
        if not low >= 0.0:
            raise SpecificationError(
                f"label_bounds of counts and amounts are two numbers from 0 on, not ({low}, {high})"
            )
        return low, high

    def _exposure(self, exposure: Vector | None) -> dict[str, RecordNumbers]:
        """Return the exposures with their limits, in the form that `_prepare` takes; {} without exposures."""
        if exposure is None:
            return {}
        if self.exposure_bounds is not None:
            return {"exposure": RecordNumbers(exposure, checked_bounds(tuple(self.exposure_bounds)))}
        if self.epsilon is not None:
            raise SpecificationError(
                "exposure needs public limits, above 0: declare exposure_bounds=(lo, hi), from what is publicly known"
            )
        if not exposure.min() > 0.0:
            raise DataError("exposure holds numbers that are not above 0: drop the records")
        low, high = float(exposure.min()), float(exposure.max())
        return {"exposure": RecordNumbers(exposure, (low, high if high > low else math.nextafter(low, math.inf)))}

    def _means(self, y: Vector, largest: float) -> tuple[float, float]:
        """Return the limits of the mean. Only a fit without privacy may read the limits from y."""
        if self.mean_bounds is not None:
            low, high = checked_bounds(tuple(self.mean_bounds))
            if not low > 0.0:
                raise SpecificationError(f"mean_bounds are two numbers above 0, not ({low}, {high})")
            return low, high
        if self.epsilon is not None:
            return largest / SPREAD**2, largest
        mean = float(np.minimum(y, largest).mean()) or 1.0
        return mean / SPREAD, mean * SPREAD

    def _loss(self, low: float, high: float) -> Loss:
        return Poisson(margin=math.log(high))

    def _penalty(self, count: float, share: float) -> Penalty:
        del count
        return L2(self.alpha * share)

    def predict(self, X: Any) -> Vector:
        """Return the means (n,) for an exposure of 1. Values of X outside the bounds are clamped."""
        scores = self._scored(X)
        return self.result_.job.response.response(scores)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return D², the fraction of the deviance that the model explains. NOT PRIVATE if X and y are private.

        After a fit with exposures e, give the rates y/e and sample_weight=e, as for scikit-learn's PoissonRegressor.
        """
        mean = self.predict(X)
        power = loss_of(self.result_.job.loss).power
        return float(d2_tweedie_score(y, mean, sample_weight=sample_weight, power=power))


@dataclass(kw_only=True, eq=False, repr=False)
class VerticalGammaRegressor(VerticalPoissonRegressor):
    """Gamma regression of amounts above 0, (ε, δ)-differentially private for every record (replace one) of each fit.

    The guarantee and the parameters are those of VerticalPoissonRegressor. The objective is that of scikit-learn's
    GammaRegressor: the standard deviation of an amount is proportional to its mean (vfl.losses.Gamma).
    """

    def _loss(self, low: float, high: float) -> Loss:
        return Gamma(low=math.log(low), high=math.log(high))


@dataclass(kw_only=True, eq=False, repr=False)
class VerticalTweedieRegressor(VerticalPoissonRegressor):
    """Tweedie regression of amounts that are often 0, (ε, δ)-differentially private for every record (replace one) of each fit.

    The guarantee and the parameters are those of VerticalPoissonRegressor. The objective is that of scikit-learn's
    TweedieRegressor: the variance of an amount is proportional to the p-th power of its mean (vfl.losses.Tweedie).

    Parameters
    ----------
    power : p, between 1 and 2.
    """

    power: float = 1.5

    def _loss(self, low: float, high: float) -> Loss:
        return Tweedie(low=math.log(low), high=math.log(high), power=self.power)
