"""Logistic regression of two classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from parties.sources.sparse import is_sparse
from vfl.errors import DataError, SpecificationError
from vfl.estimators.vertical import VerticalModel
from vfl.penalties import L1, L2, ElasticNet, NoPenalty
from vfl.schema import canonical_category

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.penalties import Penalty
    from vfl.types import Vector

CLASSES_FROM_DATA = (
    "the names of the two classes were read from y and not charged: they are taken to be public "
    "(classes=(negative, positive) declares them)"
)


@dataclass(kw_only=True, eq=False, repr=False)
class VerticalLogisticRegression(ClassifierMixin, VerticalModel):  # type: ignore[misc]
    """Logistic regression, (ε, δ)-differentially private for every record (replace one) of each fit.

    The guarantee covers `coef_`, `intercept_` and what follows from them, for the data that reach `fit`. It does not
    cover what was learnt from the same records before (a scaler in a pipeline), scores on them, nor other fits: each
    of a search's fits spends ε of its own. `certificate_` says what is guaranteed.

    The objective is scikit-learn's: mean logistic loss + 1/(nC)·(l1_ratio·‖w‖₁ + (1 − l1_ratio)/2·‖w‖²), on features
    that are clamped to their bounds and mapped to [−1, 1]; with the default bounds these are the features themselves.
    Without privacy and without bounds it is that of X as it is.

    X may be a SciPy sparse matrix: then columns are scaled by a factor, never shifted, so that zeros stay zeros, their bounds
    must hold 0, and without a shift they are not centred either. The classes are 0 and 1 to `result_` then.

    Parameters
    ----------
    C : inverse strength of the penalty, λ = 1/(nC); inf for none.
    l1_ratio : share of the L1 norm in the penalty; 0 is ridge, 1 is lasso.
    classes : the two labels, declared. None reads them from y, which is flagged. The larger is the positive one.
    epsilon : ε; None, and nothing else, trains without privacy.
    delta : δ; None takes 1/n².
    engine : 'inprocess', or 'ray' (an actor for each party).
    partition : who owns the columns: None (one party), a number of parties, or a vfl.FeaturePartition of X's columns.
    bounds : public range of the features: (lo, hi), an array of shape (p, 2), or a mapping from column to pair. Values
        outside are clamped. None is (−1, 1), with a warning (vfl.PrivacyWarning): it is never taken from data. Without
        privacy None neither clamps nor scales.
    fit_intercept : whether to add an unpenalised intercept.
    solver : vfl.SkGD(...); None decides everything by public rules.
    max_iter : passes over the coordinates, at the most; None leaves them to the solver. A private fit makes all of them.
    tol : without privacy, a fit stops once no whole step would move a coordinate by more than this share of the largest
        one; None takes 1e-9. Refused for private fits: when they stop would tell of the records.
    random_state : orders the blocks of columns, and nothing else. Noise is never seeded by it.
    noise : None draws from the operating system. vfl.SeededNoise(seed) repeats, and makes NOTHING PRIVATE.
    ledger, dataset : path of a ledger and name of the data set in it, whose cap then bounds all fits together. Without,
        every fit counts for itself, and from a process's second private run on a vfl.PrivacyWarning states their ε.

    Attributes
    ----------
    coef_ : (1, p) coefficients in the units and order of X. intercept_ : (1,).
    classes_ : (2,) labels, sorted; the second is the positive one.
    n_features_in_ : p. feature_names_in_ : (p,) names of the columns, when X has names that are text.
    certificate_ : vfl.Certificate of this fit. result_ : vfl.Result, which can be saved and certified.
    n_iter_ : passes over the coordinates that were made.

    Raises vfl.errors, and scikit-learn's own errors for X and y that are no numbers or do not fit together. A fit without
    privacy that has not converged says so by scikit-learn's ConvergenceWarning.
    """

    C: float = 1.0
    l1_ratio: float = 0.0
    classes: Sequence[Any] | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        # Honest noise at ε = 1 leaves little to learn from the few dozen records of scikit-learn's checks.
        tags.classifier_tags.poor_score = self.epsilon is not None
        return tags

    def fit(self, X: Any, y: Any, **refused: Any) -> Self:
        """Fit to X (n, p), dense or sparse, and y (n,) of two classes; the model is (ε, δ)-DP for every record.

        sample_weight is refused, with the reason.
        """
        X, y = self._validated(X, y, refused, y_numeric=False)
        self.classes_ = self._two_classes(y)
        positive = y == self.classes_[1]
        negative_name, positive_name = _plain(self.classes_[0]), _plain(self.classes_[1])
        labels = np.where(positive, canonical_category(positive_name), canonical_category(negative_name))
        if is_sparse(X):  # a sparse matrix holds its label among its numbers
            negative_name, positive_name, labels = 0, 1, positive.astype(int)
        coef, intercept = self._train(
            X,
            labels,
            loss="logistic",
            penalty=self._penalty(len(y)),
            classes=(negative_name, positive_name),
            flags=(CLASSES_FROM_DATA,) if self.classes is None else (),
        )
        self.coef_ = coef[np.newaxis, :]
        self.intercept_ = np.array([intercept])
        return self

    def _penalty(self, n_records: int) -> Penalty:
        if not self.C > 0:
            raise SpecificationError(f"C must be positive, not {self.C!r}")
        if np.isinf(self.C):
            return NoPenalty()
        strength = 1.0 / (n_records * self.C)
        if self.l1_ratio in (0, 1):
            return L1(strength) if self.l1_ratio else L2(strength)
        return ElasticNet(strength, self.l1_ratio)

    def _two_classes(self, y: Any) -> Any:
        """Return (2,) labels, sorted: as declared, or those of y."""
        check_classification_targets(y)
        if self.classes is not None:
            declared = np.unique(np.asarray(self.classes))
            if declared.shape != (2,):
                raise SpecificationError(f"classes are two different labels, not {self.classes!r}")
            if not np.isin(y, declared).all():
                raise DataError(
                    "y holds a label that is not among the declared classes: declare it, or drop the records"
                )
            return declared
        found = np.unique(y)
        if len(found) > 2:
            kind = type_of_target(y, input_name="y", raise_unknown=True)
            raise DataError(
                f"Only binary classification is supported. The type of the target is {kind}. Merge classes, or fit one "
                "model for each (every fit spends ε of its own)"
            )
        if len(found) < 2:
            raise DataError("y holds only one class: declare both, classes=(negative, positive), or check the labels")
        return found

    def decision_function(self, X: Any) -> Vector:
        """Return the margins (n,); positive ones stand for classes_[1]. Values outside the bounds are clamped."""
        return self._margins(X)

    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities (n, 2) of the classes."""
        from scipy.special import expit

        margins = self._margins(X)
        return np.column_stack([expit(-margins), expit(margins)])

    def predict(self, X: Any) -> Any:
        """Return the labels (n,)."""
        positive = self._margins(X) > 0  # before classes_, which an unfitted model has not
        return self.classes_[positive.astype(int)]


def _plain(label: Any) -> str | int | float | bool:
    """Return a label as a job may hold it."""
    value = label.item() if isinstance(label, np.generic) else label
    return value if isinstance(value, str | int | float | bool) else str(value)
