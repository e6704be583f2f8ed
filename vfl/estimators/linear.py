"""Least squares with the usual penalties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from vfl.estimators.columns import DEFAULT_BOUNDS
from vfl.estimators.vertical import Prepared, VerticalRegressor
from vfl.penalties import L1, L2, ElasticNet, NoPenalty

if TYPE_CHECKING:
    from vfl.penalties import Penalty
    from vfl.types import Vector


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
    at : place to run: 'inprocess', 'ray' (an actor for each party), or vfl.InProcess(...) or vfl.Ray(...).
    partition : owners of the columns: None (one party), a number of parties, {party: its columns}, or a
        vfl.FeaturePartition of X's columns.
    bounds : public range of the features: (lo, hi), an array of shape (p, 2), or a mapping from column to pair. Values
        outside are clamped. None is (−1, 1), with a warning (vfl.PrivacyWarning): the range is never taken from data.
        Without privacy None neither clamps nor scales.
    fit_intercept : True adds an unpenalised intercept.
    penalty : a penalty such as vfl.L1(0.1), which replaces the penalty set by other parameters; None keeps the latter.
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
    inference : True, or a share of the budget, releases standard errors of the coefficients, for `summary` and `confint`.
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

    def prepared(self, X: Any, y: Any, sample_weight: Any = None) -> Prepared:  # type: ignore[override]
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
        return self._margins(X)


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
