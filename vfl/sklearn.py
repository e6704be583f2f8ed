"""scikit-learn estimators."""

from __future__ import annotations

from vfl.apps.estimators import VerticalElasticNet as VerticalElasticNet
from vfl.apps.estimators import VerticalGammaRegressor as VerticalGammaRegressor
from vfl.apps.estimators import VerticalGridSearch as VerticalGridSearch
from vfl.apps.estimators import VerticalLasso as VerticalLasso
from vfl.apps.estimators import VerticalLinearRegression as VerticalLinearRegression
from vfl.apps.estimators import VerticalLogisticRegression as VerticalLogisticRegression
from vfl.apps.estimators import VerticalPoissonRegressor as VerticalPoissonRegressor
from vfl.apps.estimators import VerticalRidge as VerticalRidge
from vfl.apps.estimators import VerticalTweedieRegressor as VerticalTweedieRegressor
