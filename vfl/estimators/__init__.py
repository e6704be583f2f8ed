"""scikit-learn estimators: a fit is a job with one table, trained in this process or by Ray actors.

Every fit is (ε, δ)-differentially private for every record unless `epsilon=None`. What an estimator cannot know (what was
done to the data before, which fits saw the same records) it says: in `certificate_.flags`, and as a `PrivacyWarning`.
"""

from __future__ import annotations

from vfl.estimators.linear import VerticalElasticNet, VerticalLasso, VerticalLinearRegression, VerticalRidge
from vfl.estimators.logistic import VerticalLogisticRegression
from vfl.launch.run.warnings import PrivacyWarning

__all__ = [
    "PrivacyWarning",
    "VerticalElasticNet",
    "VerticalLasso",
    "VerticalLinearRegression",
    "VerticalLogisticRegression",
    "VerticalRidge",
]
