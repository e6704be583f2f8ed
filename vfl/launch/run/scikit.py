"""Export of a result as a scikit-learn Pipeline, which can be pickled and needs no vfl.

The pipeline takes a pandas frame with the columns of all parties by name. It fills, clamps, one-hot encodes and makes features
as declared, with scikit-learn's own transformers, then applies `coef_` and `intercept_` in original units. Its margins agree
with `Result.decision_function` up to rounding.

It takes frames as pandas reads them, as a party does: categories as integers, floats, truth values or text with surrounding
blanks, and booleans as text. Numbers have to be numbers. It does not join parties or ids. It carries no certificate, and
fitting it again would have no guarantee.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.columns import Categorical
from vfl.errors import SpecificationError
from vfl.features import Feature
from vfl.launch.run.scikit_columns import function_step, plain_steps
from vfl.launch.run.scikit_features import example_of, feature_steps
from vfl.losses import loss_of

if TYPE_CHECKING:
    from vfl.job import Job
    from vfl.launch.run.result import Result
    from vfl.losses import Loss


def pipeline_of(result: Result) -> Any:
    """Return the fitted Pipeline: 'columns', a ColumnTransformer, and 'model' with coef_ and intercept_.

    The model is LogisticRegression, LinearSVC (hinge losses; no probabilities), PoissonRegressor, GammaRegressor,
    TweedieRegressor or LinearRegression (squared and Huber loss).

    A threshold different from 0.5, or from the margin 0, wraps the model in a FixedThresholdClassifier as `estimator_`.

    Raises SpecificationError if pandas, whose frames name the columns, is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise SpecificationError(
            "to_sklearn needs pandas, by whose frames the columns are named: pip install 'vfl[frames]'"
        ) from None
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import make_pipeline

    job, coefficients = result.applied, dict(zip(result.feature_names, result.coef_.T, strict=True))
    steps: list[tuple[str, Any, Any]] = []
    names: list[str] = []
    for column in job.partition.features:
        declared, sources = job.schema[column], _in_one_table(job, column)
        if isinstance(declared, Feature):
            made = feature_steps(column, declared, sources, pd)
            steps += made.steps
            names += made.names
            continue
        transformers, own = plain_steps(column, declared, pd)
        steps.append((column, make_pipeline(*transformers) if len(transformers) > 1 else transformers[0], [*sources]))
        names += own
        if declared.missing is not None and not isinstance(declared, Categorical):
            steps.append((f"{column}=(missing)", function_step(pd.DataFrame.isna), [*sources]))
            names.append(f"{column}=(missing)")
    columns = ColumnTransformer(steps, verbose_feature_names_out=False, sparse_threshold=0)
    columns.fit(_example(job, pd))
    model = _at_threshold(result, _fitted(job, np.array([coefficients[name] for name in names]), result.intercept_))
    from sklearn.pipeline import Pipeline

    return Pipeline([("columns", columns), ("model", model)])


def _at_threshold(result: Result, model: Any) -> Any:
    """Return the model with the threshold of the result."""
    if not result.margin_threshold:
        return model
    from sklearn.frozen import FrozenEstimator
    from sklearn.model_selection import FixedThresholdClassifier

    least = float(np.nextafter(result.margin_threshold, np.inf))  # it compares by >=
    fixed = FixedThresholdClassifier(
        FrozenEstimator(model), threshold=least, pos_label=model.classes_[1], response_method="decision_function"
    )
    return fixed.fit(np.zeros((2, len(model.coef_[0]))), model.classes_)


def _in_one_table(job: Job, column: str) -> list[str]:
    """Return the columns, in one frame of all parties, from which a column of the job is made."""
    names = job.table_names[job.partition.owner(column)]
    return [names[source] for source in job.schema.sources(column)]


def _example(job: Job, pd: Any) -> Any:
    """Return a frame of records made from the declarations alone, so that fitting on it reads no data."""
    record: dict[str, Any] = {}
    for column in job.partition.features:
        record |= example_of(job.schema[column], _in_one_table(job, column), pd)
    return pd.DataFrame([record, record])  # SplineTransformer needs two records


def _unfitted(loss: Loss) -> Any:
    """Return the model of scikit-learn that predicts as a loss does."""
    from sklearn import linear_model
    from sklearn.svm import LinearSVC

    if loss.power is not None:
        named = {1.0: linear_model.PoissonRegressor, 2.0: linear_model.GammaRegressor}
        return named[loss.power]() if loss.power in named else linear_model.TweedieRegressor(power=loss.power)
    if loss.log_odds or loss.multinomial:
        return linear_model.LogisticRegression()
    return LinearSVC() if loss.classification else linear_model.LinearRegression()


def _fitted(job: Job, coef: Any, intercept: Any) -> Any:
    """Return the estimator of the job's loss, fitted to zeros and then given the coefficients, (p,) or (p, K)."""
    loss, nothing, labels = loss_of(job.loss), np.zeros((2, len(coef))), np.array([0.0, 1.0])
    if job.multinomial:
        K = job.n_margins
        model = _unfitted(loss).fit(np.zeros((K, len(coef))), np.arange(K))
        if K == 2:  # scikit-learn keeps the difference of two classes
            coef, intercept = np.diff(coef, axis=1), np.diff(intercept)
        model.classes_ = np.array(job.classes)
        model.coef_, model.intercept_ = np.ascontiguousarray(coef.T), intercept
        return model
    if not job.classification:
        model = _unfitted(loss).fit(nothing, labels + 1.0)
        model.coef_, model.intercept_ = coef, intercept
        return model
    model = _unfitted(loss).fit(nothing, labels)
    negative, positive = job.classes or (0, 1)
    model.classes_ = np.array([False, True] if isinstance(negative, tuple) else [negative, positive])
    model.coef_, model.intercept_ = coef[np.newaxis, :], np.array([intercept])
    return model
