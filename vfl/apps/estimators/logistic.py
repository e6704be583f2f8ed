"""Logistic regression with two classes, or with more classes (multinomial)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from parties.sources.sparse import is_sparse
from vfl.apps.estimators.vertical import PreparedFit, RecordNumbers, VerticalModel
from vfl.base.arguments import require_number
from vfl.base.columns import canonical_category
from vfl.base.losses import ClassWeighted
from vfl.base.penalties import L1, L2, ElasticNet, NoPenalty
from vfl.errors import DataError, PrivacyError, SpecificationError
from vfl.launch.run.warnings import warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.base.penalties import Penalty
    from vfl.base.types import Integers, Vector
    from vfl.launch.run.result import Result

CLASSES_READ = "the names of the two classes"
ALL_CLASSES_READ = "the names and the number of the classes"
FROM_DATA = "from data"
PLAIN_CLASSES = ((0, 1), (-1, 1), (False, True))
"""Names of two classes that a private fit takes without a declaration, negative first."""


@dataclass(kw_only=True, eq=False, repr=False)
class VerticalLogisticRegression(ClassifierMixin, VerticalModel):  # type: ignore[misc]
    """Logistic regression, (ε, δ)-differentially private for every record (replace one) of each fit.

    The guarantee covers `coef_`, `intercept_` and everything computed from them alone, for the data that reach `fit`. The
    guarantee does not cover earlier steps on the same records (a scaler in a pipeline), scores on these records, or other
    fits: each fit of a search spends an ε of its own. `certificate_` states the guarantee.

    The objective is scikit-learn's: mean logistic loss, weighted by class, + 1/(nC)·(l1_ratio·‖w‖₁ + (1 − l1_ratio)/2·‖w‖²).
    Features are clamped to their bounds and mapped to [−1, 1], which leaves them unchanged under the default bounds. Without
    privacy and without bounds, X is used unchanged.

    X may be a SciPy sparse matrix. The columns of a sparse X are scaled, but neither shifted nor centred, so that zeros stay
    zeros. The bounds of these columns must contain 0. For a sparse X, `result_` names the classes 0, 1 and so on.

    With more than two classes the model is multinomial (softmax), as in scikit-learn, and one ε covers all classes.

    Parameters
    ----------
    C : inverse strength of the penalty, λ = 1/(nC); inf for no penalty.
    l1_ratio : share of the L1 norm in the penalty; 0 is ridge, 1 is lasso.
    class_weight : {label: weight}, declared; a label without an entry has weight 1. A record's loss is multiplied by the
        weight of the record's label. A private fit caps each record's contribution after weighting, so the guarantee is
        unchanged. 'balanced' computes weights from the labels and `sample_weight`. A private fit refuses 'balanced': declare
        1/(K·share) for publicly known shares of K classes. With K > 2 class weights multiply `sample_weight`, whose upper
        limit becomes hi·(largest class weight).
    classes : the labels, from public knowledge; of two classes, the larger label is positive. Any other label in y is
        refused. None stands for labels 0 and 1, −1 and 1, or False and True; without privacy it reads any labels from y.
        'from data' reads the labels of a private fit from y, with a warning (vfl.PrivacyWarning): the fit is then NOT PRIVATE,
        and `certificate_` says so.
    Other parameters : as for VerticalLinearRegression.

    Attributes
    ----------
    coef_ : (1, p) coefficients in the units and order of X, (K, p) with K > 2 classes. intercept_ : (1,) or (K,).
    classes_ : (K,) labels, sorted; of two classes, the second is positive.
    certificate_, result_, n_iter_, n_features_in_, feature_names_in_ : those of VerticalLinearRegression.

    Raises the errors of VerticalLinearRegression, all of them before any release.
    """

    C: float = 1.0
    l1_ratio: float = 0.0
    class_weight: Mapping[Any, float] | str | None = None
    classes: Sequence[Any] | str | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # Noise at ε = 1 leaves little accuracy on the few dozen records of scikit-learn's checks.
        tags.classifier_tags.poor_score = self.epsilon is not None
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model to X (n, p), dense or sparse, and classes y (n,). The fit is (ε, δ)-DP for every record.

        sample_weight : (n,) weights of the records, clamped to `weight_bounds`; None gives equal weights.
        """
        return self._fit(X, y, sample_weight=sample_weight)

    def prepared(self, X: Any, y: Any, sample_weight: Any = None) -> PreparedFit:  # type: ignore[override]
        """Return the job that `fit` would run on these data. Sets `classes_`."""
        reads = self.epsilon is None if self.classes is None else _reads(self.classes)
        declared = self.classes is not None and not reads
        if not reads and isinstance(y, list | tuple):
            y = np.array(y, dtype=object)  # numpy would choose one type for all labels, from their values
        X, y = self._validated(X, y, y_numeric=False)
        self.classes_ = self._declared_classes() if declared else self._classes_in(y) if reads else _plain_classes(y)
        codes, several = _codes(y, self.classes_), len(self.classes_) > 2
        names = tuple(map(_plain, self.classes_))
        labels = np.array([canonical_category(name) for name in names])[codes]
        if is_sparse(X):  # in a sparse matrix the label is one of the columns
            names, labels = tuple(range(len(names))), codes
        factors = self._weights(sample_weight, X)
        if several:
            factors = self._with_class_weights(factors, codes)
        read = None if not reads else ALL_CLASSES_READ if several else CLASSES_READ
        return self._prepare(
            X,
            labels,
            loss="multinomial" if several else self._loss(codes, factors),
            penalty=self._penalty(*self._counted(len(y), factors)),
            classes=names,
            read_from_data=read,
            factors=factors,
        )

    def fitted(self, prepared: PreparedFit, result: Result, n_iter: int) -> Self:
        """Set the attributes of a finished fit; `coef_` is (1, p) and `intercept_` (1,) for two classes."""
        super().fitted(prepared, result, n_iter)
        self.coef_, self.intercept_ = np.atleast_2d(self.coef_), np.atleast_1d(self.intercept_)
        return self

    def _loss(self, codes: Integers, factors: Mapping[str, RecordNumbers]) -> str | ClassWeighted:
        weights = self._class_weights(codes, factors["weight"].values if "weight" in factors else None)
        return "logistic" if weights is None else ClassWeighted(negative=weights[0], positive=weights[1])

    def _with_class_weights(self, factors: dict[str, RecordNumbers], codes: Integers) -> dict[str, RecordNumbers]:
        """Multiply the records' weights by the weights of the records' classes, and adapt the public limits of the weights.

        The product is between 0 and (upper limit of record weights)·(largest class weight).
        """
        weights = self._class_weights(codes, factors["weight"].values if "weight" in factors else None)
        if weights is None:
            return factors
        s, (low, high) = factors.get("weight", RecordNumbers(np.ones(len(codes)), (0.0, 1.0)))
        product = np.clip(s, low, high) * weights[codes]
        return {**factors, "weight": RecordNumbers(product, (0.0, high * float(weights.max())))}

    def _class_weights(self, codes: Integers, s: Vector | None) -> Vector | None:
        """Return the declared weight of each class, (K,); None if all weights are 1.

        'balanced' counts the labels, codes (n,), by the weights s of the records. A private fit refuses 'balanced'.
        """
        if self.class_weight is None:
            return None
        if isinstance(self.class_weight, str) and self.class_weight == "balanced":
            if self.epsilon is not None:
                ClassWeighted(positive="balanced")  # type: ignore[arg-type]  # refused, with the reason
            counts = np.bincount(codes, s, minlength=len(self.classes_))
            balanced: Vector = counts.sum() / (len(counts) * np.where(counts > 0.0, counts, 1.0))
            return balanced
        if not isinstance(self.class_weight, Mapping):
            raise SpecificationError(
                f"class_weight is {{label: weight}}, 'balanced' without privacy, or None, not {self.class_weight!r}"
            )
        names = [canonical_category(label) for label in self.classes_]
        given = {canonical_category(label): weight for label, weight in self.class_weight.items()}
        for label, weight in given.items():
            if label not in names:
                raise SpecificationError(f"class_weight names {label!r}, which is not one of the classes {names}")
            require_number(f"class_weight of {label!r}", weight)
            if not 0.0 < weight < np.inf:
                raise SpecificationError(f"class_weight of {label!r} must be positive, not {weight!r}")
        weights = np.array([float(given.get(name, 1.0)) for name in names])
        return None if (weights == 1.0).all() else weights

    def _penalty(self, count: float, share: float) -> Penalty:
        del share
        if not self.C > 0:
            raise SpecificationError(f"C must be positive, not {self.C!r}")
        if np.isinf(self.C):
            return NoPenalty()
        strength = 1.0 / (count * self.C)
        if self.l1_ratio in (0, 1):
            return L1(strength) if self.l1_ratio else L2(strength)
        return ElasticNet(strength, self.l1_ratio)

    def _declared_classes(self) -> Any:
        given = np.asarray(self.classes)
        declared = np.unique(given)
        if given.ndim != 1 or len({canonical_category(label) for label in declared}) < max(2, given.size):
            raise SpecificationError(f"classes are two or more different labels, not {self.classes!r}")
        return declared

    def _classes_in(self, y: Any) -> Any:
        """Return the labels (K,) found in y, sorted; issue a warning if the fit is to be private."""
        check_classification_targets(y)
        found = np.unique(y)
        if len(found) < 2:
            raise DataError("y holds only one class: declare both, classes=(negative, positive), or check the labels")
        if self.epsilon is not None:
            warn(
                "classes='from data' reads the labels from y, uncharged: this fit is NOT PRIVATE. Declare "
                f"{'both' if len(found) == 2 else 'all'} labels from public knowledge: classes=(negative, "
                f"positive{'' if len(found) == 2 else ', ...'})"
            )
        return found

    def decision_function(self, X: Any) -> Vector:
        """Return the scores (n,), positive for classes_[1]; (n, K) for K > 2 classes. Values of X are clamped."""
        return self._scored(X)

    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities (n, K) of the classes."""
        from scipy.special import expit, softmax

        scores = self._scored(X)
        if scores.ndim > 1:
            return softmax(scores, axis=1)
        return np.column_stack([expit(-scores), expit(scores)])

    def predict(self, X: Any) -> Any:
        """Return the labels (n,)."""
        scores = self._scored(X)  # checks that the model is fitted, before classes_ is read
        return self.classes_[scores.argmax(axis=1) if scores.ndim > 1 else (scores > 0).astype(int)]


def _plain(label: Any) -> str | int | float | bool:
    """Return a label as a type that a job file can hold."""
    value = label.item() if isinstance(label, np.generic) else label
    return value if isinstance(value, str | int | float | bool) else str(value)


def _reads(classes: Any) -> bool:
    return isinstance(classes, str) and classes == FROM_DATA


def _plain_classes(y: Any) -> Any:
    """Return one of PLAIN_CLASSES for the labels of a private fit, (2,), as the type of y unless y holds objects.

    All neighbouring data sets that are accepted have the same classes. Proof: two or more records hold the negative label of
    an accepted y. After one record is replaced, another record still holds this label, and a second negative label is refused.

    Raises PrivacyError for any other labels.
    """
    if y.dtype != object:  # scikit-learn refuses objects, even truth values
        check_classification_targets(y)
    held: Counter[str] = Counter()
    labels, counts = (y, [1] * len(y)) if y.dtype == object else np.unique(y, return_counts=True)
    for label, count in zip(labels, counts, strict=True):
        held[canonical_category(label)] += int(count)
    for names in PLAIN_CLASSES:
        negative, positive = map(canonical_category, names)
        plain = held.keys() <= {negative, positive} and not any(isinstance(label, str) for label in labels)
        if plain and held[negative] > 1:
            return np.array(names, dtype=None if y.dtype == object else y.dtype)
    raise PrivacyError(
        "classes are not declared, and the labels are not 0 and 1, −1 and 1, or booleans, with at least two records of class "
        "0, −1 or False: declare classes=(negative, positive), or all labels, from public knowledge. classes='from data' reads "
        "the labels from y, and the fit is then NOT PRIVATE"
    )


def _codes(y: Any, classes: Any) -> Any:
    """Return the index of each label of y among the classes, (n,). How one label is read does not depend on other labels.

    Labels are compared as text, as in a job (vfl.base.columns.canonical_category). Raises DataError for an unknown label.
    """
    code_of = {canonical_category(label): code for code, label in enumerate(classes)}
    labels, position = (y, None) if y.dtype == object else np.unique(y, return_inverse=True)
    codes = np.array([code_of.get(canonical_category(label), -1) for label in labels], dtype=np.int64)
    if (codes < 0).any():
        raise DataError("y holds a label that is not among the declared classes: declare it, or drop the records")
    return codes if position is None else codes[position]
