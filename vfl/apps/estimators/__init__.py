"""scikit-learn estimators: each fit trains a job on one table, in this process or with Ray actors.

Every fit is (ε, δ)-differentially private for every record unless `epsilon=None`. An estimator cannot know how the data were
prepared, or which other fits used the same records: `certificate_.flags` and a `PrivacyWarning` state these limits.
"""

from __future__ import annotations

from vfl.apps.estimators.logistic import VerticalLogisticRegression
from vfl.apps.estimators.regression import (
    VerticalElasticNet,
    VerticalGammaRegressor,
    VerticalLasso,
    VerticalLinearRegression,
    VerticalPoissonRegressor,
    VerticalRidge,
    VerticalTweedieRegressor,
)
from vfl.apps.estimators.search import VerticalGridSearch
from vfl.launch.run.warnings import PrivacyWarning

__all__ = [
    "PrivacyWarning",
    "VerticalElasticNet",
    "VerticalGammaRegressor",
    "VerticalGridSearch",
    "VerticalLasso",
    "VerticalLinearRegression",
    "VerticalLogisticRegression",
    "VerticalPoissonRegressor",
    "VerticalRidge",
    "VerticalTweedieRegressor",
]
