"""Grid search whose fits and scores together cost one ε, in the form of scikit-learn's GridSearchCV."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.model_selection import ParameterGrid
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from vfl.apps.estimators.vertical import VerticalModel
from vfl.apps.tuning.candidates import INCLUSION
from vfl.apps.tuning.run import tune
from vfl.base.losses import loss_of
from vfl.errors import PrivacyError, SpecificationError, nearest
from vfl.launch.run.warnings import PrivacyWarning
from vfl.measures import Evaluation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vfl.apps.tuning.run import Tuned
    from vfl.job import Job
    from vfl.launch.run.result import Result

SCORES = {
    "loss": "loss",
    "neg_log_loss": "loss",
    "accuracy": "accuracy",
    "mae": "mae",
    "neg_mean_absolute_error": "mae",
    "mse": "mse",
    "neg_mean_squared_error": "mse",
    "deviance": "deviance",
    "neg_mean_poisson_deviance": "deviance",
    "neg_mean_gamma_deviance": "deviance",
}
"""Measure that each scoring name stands for; names are those of vfl and of scikit-learn."""
POWERS = {"neg_mean_poisson_deviance": 1.0, "neg_mean_gamma_deviance": 2.0}
"""Power of the variance for which each of scikit-learn's names of a deviance is meant."""


def _has(name: str) -> Callable[[VerticalGridSearch], bool]:
    """Return a check for `available_if`, which raises AttributeError unless the searched estimator has the method."""

    def check(self: VerticalGridSearch) -> bool:
        getattr(self.best_estimator_ if hasattr(self, "best_estimator_") else self.estimator, name)
        return True

    return check


class VerticalGridSearch(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Exhaustive search over parameters of an estimator: the whole search is (ε, δ)-differentially private for every record.

    The guarantee covers the fitted model, its parameters and `best_score_` together, with the ε and δ of the estimator. All
    candidates are fitted once on a public part of the records, and scored once, with noise, on the remaining records. A secret
    draw leaves some candidates out, and the best remaining candidate is kept (docs/tuning.md). All else stays secret:
    `cv_results_` has no scores.

    Use this class instead of sklearn.model_selection.GridSearchCV, in which every fit spends its own ε. There is no `cv`
    parameter, since folds would spend more, and no `refit`, since the winner is not fitted again.

    Parameters
    ----------
    estimator : a vertical estimator with an epsilon, such as vfl.sklearn.VerticalLogisticRegression(epsilon=1.0).
    param_grid : {parameter: values}, or a list of such mappings. The parameters may be C, alpha, l1_ratio, penalty, solver,
        max_iter and fit_intercept, which do not change data, bounds or guarantee. At least 2 and at most 64 combinations.
    scoring : 'neg_log_loss' (or 'loss') or 'accuracy' for classes; 'neg_mean_squared_error' ('mse') or
        'neg_mean_absolute_error' ('mae') for numbers. None is 'neg_log_loss' or 'neg_mean_squared_error'.
        VerticalPoissonRegressor also has 'neg_mean_poisson_deviance', VerticalGammaRegressor 'neg_mean_gamma_deviance'. These
            two and VerticalTweedieRegressor have 'deviance'. Losses, errors and deviances are clamped.
    holdout : share of the records used only to score the candidates.
    inclusion : the secret draw considers each candidate with probability inclusion/(inclusion + 1).

    Attributes
    ----------
    best_estimator_ : the fitted winner. best_params_, best_index_ : the winner's parameters, and its number in the grid.
    best_score_ : the winner's noisy score; larger is better. The score is optimistic, since the best score wins.
    best_score_error_ : standard error of best_score_. Score and error are None if the winner's training failed.
    cv_results_ : {"params": all combinations}. certificate_ : vfl.Certificate of the whole search.
    classes_, n_features_in_, feature_names_in_ : attributes of the winner.

    Raises vfl.errors, if possible before anything is charged, and scikit-learn's own errors for a bad X or y.
    """

    def __init__(
        self,
        estimator: Any,
        param_grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]],
        *,
        scoring: str | None = None,
        holdout: float = 0.2,
        inclusion: int = INCLUSION,
    ) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.scoring = scoring
        self.holdout = holdout
        self.inclusion = inclusion

    def __sklearn_tags__(self) -> Any:
        tags, own = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.estimator_type = own.estimator_type
        tags.classifier_tags, tags.regressor_tags = own.classifier_tags, own.regressor_tags
        tags.input_tags.sparse = own.input_tags.sparse
        tags.target_tags = own.target_tags
        tags.non_deterministic = True  # the secret draw is random even with seeded noise
        return tags

    def fit(self, X: Any, y: Any, **given: Any) -> Self:
        """Fit all candidates to X (n, p) and y (n,), and keep the best. The whole search is (ε, δ)-DP for every record.

        given : other arguments of the estimator's `fit`, such as sample_weight. Scores weight all records equally.
        """
        if not isinstance(self.estimator, VerticalModel):
            raise SpecificationError(
                f"estimator is a vertical estimator such as vfl.sklearn.VerticalRidge(), not {self.estimator!r}"
            )
        if self.estimator.epsilon is None:
            raise PrivacyError(
                "epsilon=None searches without privacy, so a private choice would add noise for nothing: use GridSearchCV"
            )
        grid = list(ParameterGrid(self.param_grid))
        fitted = [clone(self.estimator).set_params(**params) for params in grid]
        prepared, n_records = [fitted[0].prepared(X, y, **given)], len(y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)  # the first candidate warned of all declarations
            prepared += [each.prepared(X, y, **given) for each in fitted[1:]]
        jobs = [dataclasses.replace(each.job, evaluation=Evaluation(holdout=self.holdout)) for each in prepared]
        try:
            _ = None if jobs[0].split is None else jobs[0].split.sizes(n_records)
        except SpecificationError as error:
            raise SpecificationError(f"{error} (n_samples={n_records})") from error
        tuned = self._tuned(jobs, prepared[0].sources, n_records)
        self.best_index_ = tuned.candidate - 1
        passes = getattr(tuned.result.job.solver, "passes", None) or 1
        winner = fitted[self.best_index_].fitted(prepared[self.best_index_], tuned.result, passes)
        self.best_estimator_ = winner
        self.best_params_ = grid[self.best_index_]
        sign = 1.0 if tuned.tuning.score == "accuracy" else -1.0
        self.best_score_ = None if tuned.score is None else sign * tuned.score.value
        self.best_score_error_ = None if tuned.score is None else tuned.score.error
        self.cv_results_ = {"params": grid}
        self.certificate_ = winner.certificate_
        self.result_: Result = winner.result_
        self.n_features_in_ = winner.n_features_in_
        for name in ("feature_names_in_", "classes_"):
            if hasattr(winner, name):
                setattr(self, name, getattr(winner, name))
        return self

    def _tuned(self, jobs: list[Job], sources: Mapping[str, Any], n_records: int) -> Tuned:
        if self.scoring is not None and self.scoring not in SCORES:
            raise SpecificationError(
                f"unknown scoring {self.scoring!r}{nearest(str(self.scoring), SCORES)}; give one of: {', '.join(SCORES)}"
            )
        loss = loss_of(jobs[0].loss)
        if self.scoring is not None and POWERS.get(self.scoring, loss.power) != loss.power:
            raise SpecificationError(
                f"scoring {self.scoring!r} is not a deviance of {loss.name} loss: give 'deviance' or None"
            )
        ledger = self.estimator.ledger
        return tune(
            jobs[0],
            jobs,
            sources,
            score=None if self.scoring is None else SCORES[self.scoring],
            inclusion=self.inclusion,
            n_records=n_records,
            at=self.estimator.at,
            ledger=None if ledger is None else str(Path(ledger).expanduser().resolve()),
        )

    @available_if(_has("predict"))  # type: ignore[untyped-decorator]
    def predict(self, X: Any) -> Any:
        """Return the winner's predictions (n,)."""
        check_is_fitted(self)
        return self.best_estimator_.predict(X)

    @available_if(_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """Return the winner's probabilities (n, 2)."""
        check_is_fitted(self)
        return self.best_estimator_.predict_proba(X)

    @available_if(_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Any:
        """Return the winner's scores (n,)."""
        check_is_fitted(self)
        return self.best_estimator_.decision_function(X)

    def score(self, X: Any, y: Any) -> float:
        """Return the winner's accuracy or R² on X and y, without noise: no ε covers this score."""
        check_is_fitted(self)
        return float(self.best_estimator_.score(X, y))
