"""Base classes of the estimators. An estimator builds a job on one table from parameters that `clone` and joblib can copy."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from parties.sources.sparse import is_sparse
from vfl.apps.estimators import columns
from vfl.base.arguments import require_number
from vfl.base.columns import checked_bounds
from vfl.base.features import Curve
from vfl.errors import DataError, PrivacyError, SpecificationError
from vfl.job import Job
from vfl.launch.run.result import Result
from vfl.launch.run.warnings import Passes, warn, warn_of_plan
from vfl.launch.train import stream
from vfl.privacy.noise import SeededNoise
from vfl.privacy.specification import Privacy
from vfl.solvers import SOLVERS, SkGD
from vfl.solvers.iterates.convergence import STILL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.base.losses import Loss
    from vfl.base.penalties import Penalty
    from vfl.base.types import Vector
    from vfl.job.site import InProcess, Ray
    from vfl.measures.inference import Summary
    from vfl.queries.protocol import Solver

SPARSE = ("csc", "csr", "coo")
"""Sparse formats that are not converted. scikit-learn converts other formats to the first of these."""

NOT_VOUCHED_FOR = (
    "steps before this fit (of a pipeline, scaling, selection of features or of parameters) are unknown to it: if they "
    "learned from the same records, ε does not cover them"
)

DEFAULT_WEIGHTS = (0.0, 1.0)
"""Default limits of the records' weights."""


class RecordNumbers(NamedTuple):
    """Exposures or weights of the records, (n,), and their declared limits."""

    values: Vector
    bounds: tuple[float, float]


class PreparedFit(NamedTuple):
    """A fit before its run: the job, {party: source}, and the names of X's columns."""

    job: Job
    sources: Mapping[str, Any]
    names: list[str]


def per_record(values: Any, n_records: int, name: str) -> Vector:
    """Return an array of per-record numbers, (n,); a single number is repeated n times.

    Each cell is checked by itself, and no error shows a cell's value, so no record affects how other records are read.
    scikit-learn's own check would refuse weights that are all zero.

    Raises DataError for cells that are not numbers, NaN or infinite, and ValueError for a wrong shape.
    """
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{name} holds cells that are not numbers") from None
    if numbers.ndim == 0:
        numbers = np.full(n_records, float(numbers))
    if numbers.ndim != 1:
        raise ValueError(f"{name} has one number per record: it has {numbers.ndim} dimensions, not 1")
    if len(numbers) != n_records:
        raise ValueError(f"X has {n_records} records and {name} has {len(numbers)}")
    if not np.isfinite(numbers).all():
        raise DataError(f"Input {name} contains NaN or infinite numbers: drop the records")
    return numbers


@dataclass(kw_only=True, eq=False, repr=False)
class VerticalModel(BaseEstimator, ABC):  # type: ignore[misc]
    """A generalised linear model, (ε, δ)-differentially private for every record (replace one) of each fit.

    Base class of the estimators. Subclasses add a loss and a penalty and document the parameters. All parameters are public.
    """

    epsilon: float | None = 1.0
    delta: float | None = None
    at: InProcess | Ray | str = "inprocess"
    partition: columns.Partitioned = None
    bounds: Any = None
    fit_intercept: bool = True
    penalty: Penalty | None = None
    solver: Solver | None = None
    max_iter: int | None = None
    tol: float | None = None
    random_state: Any = None
    noise: SeededNoise | None = None
    ledger: str | None = None
    dataset: str | None = None
    weight_bounds: Sequence[float] | None = None
    intervals: bool | float | str | None = None
    curves: bool = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = self.epsilon is not None and self.noise is None
        return tags

    def _validated(self, X: Any, y: Any, *, y_numeric: bool) -> tuple[Any, Any]:
        """Return X (n, p) float64, dense or sparse, and y (n,), or raise as scikit-learn does. Sets feature names and p."""
        if y_numeric and isinstance(y, list | tuple):
            y = np.array(y, dtype=np.float64)  # numpy would choose one type for all numbers, from their values
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=y_numeric, accept_sparse=SPARSE)
        if self.bounds is None and self.epsilon is not None:  # depends on parameters only, never on X
            warn(
                f"bounds are not declared, so every column is clamped to {columns.DEFAULT_BOUNDS}, whatever X holds: "
                "declare bounds=(lo, hi), or a pair for every column, from what is publicly known"
            )
        return X, y.astype(np.float64, copy=False) if y_numeric else y

    def _weights(self, sample_weight: Any, X: Any) -> dict[str, RecordNumbers]:
        """Return the records' weights with their limits, in the form that `_prepare` takes; {} without weights."""
        if sample_weight is None:
            return {}
        s = per_record(sample_weight, X.shape[0], "sample_weight")
        if self.weight_bounds is not None:
            return {"weight": RecordNumbers(s, checked_bounds(tuple(self.weight_bounds)))}
        if self.epsilon is not None:
            warn(
                f"weight_bounds are not declared, so sample_weight is clamped to {DEFAULT_WEIGHTS}: declare "
                "weight_bounds=(lo, hi), from what is publicly known"
            )
            return {"weight": RecordNumbers(s, DEFAULT_WEIGHTS)}
        if not ((s >= 0.0).all() and s.any()):
            raise DataError("sample_weight holds numbers below 0, or only zeros: drop the records")
        return {"weight": RecordNumbers(s, (0.0, float(s.max())))}

    def _counted(self, n_records: int, factors: Mapping[str, RecordNumbers]) -> tuple[float, float]:
        """Return n·s_max and the mean of s/s_max (1 for a private fit), for weights s up to s_max. Penalties follow from both.

        A job divides Σ s_i·ℓ_i by n·s_max. scikit-learn does not divide the sum (Ridge), or divides it by Σ s_i (Lasso).
        """
        if "weight" not in factors:
            return n_records, 1.0
        s, (low, high) = factors["weight"]
        share = float(np.clip(s, low, high).mean() / high) if self.epsilon is None else 1.0
        return n_records * high, share

    def _fit(self, X: Any, y: Any, **given: Any) -> Self:
        prepared = self.prepared(X, y, **given)
        return self.fitted(prepared, *self._run(prepared.job, prepared.sources))

    @abstractmethod
    def prepared(self, X: Any, y: Any, **given: Any) -> PreparedFit:
        """Return the job that `fit` would run on these data; nothing is released. given : other arguments of `fit`."""

    def _prepare(
        self,
        X: Any,
        y: Any,
        *,
        loss: str | Loss,
        penalty: Penalty,
        label_bounds: tuple[float, float] | None = None,
        classes: tuple[Any, ...] | None = None,
        read_from_data: str | None = None,
        factors: Mapping[str, RecordNumbers] = columns.NO_FACTORS,
    ) -> PreparedFit:
        """Return the job of a fit, with its data.

        y : (n,) labels in the form that the job reads. read_from_data : the declarations that were read from X or y, in words.
        factors : {'exposure': ..., 'weight': ...}, with the factors that were given to `fit`.
        """
        names = columns.column_names(self.partition, getattr(self, "feature_names_in_", None), X.shape[1])
        partition = columns.partition_of(self.partition, names)
        label = {} if label_bounds is None else {partition.label_column: label_bounds}
        for role, keyword in (("exposure", "exposure"), ("weight", "sample_weight")):
            if role in factors:
                partition = columns.with_factor(partition, names, role)
                label[getattr(partition, role)] = factors[role].bounds
            elif (column := getattr(partition, role)) is not None:
                raise SpecificationError(f"the partition names {role} {column!r}: give it, fit(X, y, {keyword}=...)")
        plain = self.epsilon is None and self.bounds is None  # no clamping was requested
        if self.curves and (plain or is_sparse(X)):
            raise SpecificationError("curves need a dense X and bounds=(lo, hi): give both, or leave curves out")
        if is_sparse(X):
            partition = partition.changed(sparse=[q for q in partition.parties if partition.columns(q)])
        job = Job(
            name=type(self).__name__,
            partition=partition,
            privacy=self._privacy(read_from_data),
            loss=loss,
            penalty=penalty if self.penalty is None else self.penalty,
            solver=self._chosen_solver(),
            columns={"*": Curve()} if self.curves else {},
            bounds=({} if plain else columns.bounds_of(self.bounds, names)) | label,
            scaling="none" if plain else "bounds",
            classes=classes,
            intercept=bool(self.fit_intercept),
            dataset=self.dataset,
            intervals=self.intervals,
        )
        sources = columns.sources_of(partition, names, X, y, {role: given.values for role, given in factors.items()})
        return PreparedFit(job, sources, names)

    def fitted(self, prepared: PreparedFit, result: Result, n_iter: int) -> Self:
        """Set the attributes of a fit, given the result and the number of passes.

        `coef_` is (p,) in the order and units of X's columns, and (K, p) with K > 2 classes. With curves `coef_` has one
        entry per name in `result_.feature_names`.
        """
        job, sources, names = prepared
        if job.privacy is None:
            if self.intervals:
                result = result.infer(sources)
        else:
            certificate = result.certificate
            added = dataclasses.replace(certificate, flags=(*certificate.flags, NOT_VOUCHED_FOR))
            result = dataclasses.replace(result, certificate=added)
        self.result_ = result
        self.certificate_ = result.certificate
        self.n_iter_ = n_iter
        self.coef_, self.intercept_ = result.coef_, result.intercept_
        if not self.curves:
            position = {name: j for j, name in enumerate(result.feature_names)}
            self.coef_ = self.coef_[..., [position[name] for name in names]]
        return self

    def _privacy(self, read_from_data: str | None) -> Privacy | None:
        if self.epsilon is None:
            if self.ledger is not None:
                raise PrivacyError("epsilon=None trains without privacy, which no ledger can count: leave ledger out")
            return None
        require_number("epsilon", self.epsilon)
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise PrivacyError(
                f"epsilon must be positive and finite, not {self.epsilon!r}; epsilon=None trains without privacy"
            )
        if self.noise is not None and not isinstance(self.noise, SeededNoise):
            raise PrivacyError(
                f"noise must be None, or vfl.SeededNoise(seed) for a fit that is NOT PRIVATE, not {self.noise!r}; to order the "
                "blocks, give random_state"
            )
        return Privacy(epsilon=float(self.epsilon), delta=self.delta, noise=self.noise, read_from_data=read_from_data)

    def _chosen_solver(self) -> Solver:
        """Return the solver with the estimator's `max_iter` and `tol`, and with blocks seeded by `random_state`."""
        solver: Any = SkGD() if self.solver is None else self.solver
        if type(solver) not in SOLVERS.values():
            raise SpecificationError(f"solver is None or a solver such as vfl.SkGD(...), not {solver!r}")
        options = solver.option_names
        changes: dict[str, Any] = {}
        if self.max_iter is not None:
            if "passes" not in options:
                raise SpecificationError(f"{solver.name} makes no passes that max_iter could limit: leave max_iter out")
            if solver.passes is not None or getattr(solver, "inner_rounds", None) is not None:
                raise SpecificationError("max_iter and the passes of the solver set the same option: give only one")
            changes["passes"] = operator.index(self.max_iter)
        if self.tol is not None:
            if "tol" not in options:
                raise SpecificationError(f"{solver.name} has no stopping rule: leave tol out, or use SkGD")
            changes["tol"] = float(self.tol)
        elif self.epsilon is None and "tol" in options and solver.tol is None:
            changes["tol"] = STILL  # so that the solver can stop early and report convergence
        if self.random_state is not None and "seed" in options:
            changes["seed"] = int(check_random_state(self.random_state).randint(2**31 - 1))
        chosen: Solver = solver.changed(**changes)
        return chosen

    def _run(self, job: Job, sources: Mapping[str, Any]) -> tuple[Result, int]:
        if (self.ledger is None) != (self.dataset is None):
            raise SpecificationError(
                "ledger and dataset go together: the path of a ledger, and the name of a data set's account in it"
            )
        # An actor has a different working directory, so relative paths would not work there.
        ledger = None if self.ledger is None else str(Path(self.ledger).expanduser().resolve())
        passes = Passes("give it more passes with max_iter=, a larger tol, or a stronger penalty", ConvergenceWarning)
        with contextlib.closing(stream(job, sources, at=self.at, ledger=ledger)) as events:  # type: ignore[type-var]
            for event in events:
                passes(event)
                warn_of_plan(event)
                if isinstance(event, Result):
                    passes.ended(event)
                    return event, max(1, round(passes.updates / len(event.w)))
        raise AssertionError("a run ended without its result")

    def summary(self, level: float = 0.95) -> Summary:
        """Return the table of coefficients with standard errors, p-values and intervals; see `Result.summary`.

        Raises SpecificationError unless the model was fitted with intervals=True.
        """
        check_is_fitted(self)
        return self.result_.summary(level)

    def confint(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Return {coefficient: (low, high)}, for the rows of `summary`."""
        check_is_fitted(self)
        return self.result_.confint(level)

    def _scored(self, X: Any) -> Vector:
        """Return the scores (n,). Values outside the bounds are clamped as in training."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, accept_sparse=SPARSE, reset=False)
        job = self.result_.job
        if is_sparse(X) and not job.partition.sparse:  # training shifted the columns, which a sparse matrix cannot hold
            X = X.toarray()
        names = columns.column_names(self.partition, getattr(self, "feature_names_in_", None), X.shape[1])
        return self.result_.decision_function(columns.sources_of(job.partition, names, X))


@dataclass(kw_only=True, eq=False, repr=False)
class VerticalRegressor(RegressorMixin, VerticalModel):  # type: ignore[misc]
    """Base class of the regressors. A private fit clamps labels to the declared bounds."""

    label_bounds: Sequence[float] | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # Noise at ε = 1 and clamped labels leave little accuracy on the small data of scikit-learn's checks.
        tags.regressor_tags.poor_score = self.epsilon is not None
        return tags

    def _declared_label_bounds(self, default: tuple[float, float]) -> tuple[float, float] | None:
        """Return the declared bounds of the labels; else the default, with a warning, for a private fit; else None."""
        if self.label_bounds is not None:
            return checked_bounds(tuple(self.label_bounds))
        if self.epsilon is None:
            return None
        warn(
            f"label_bounds are not declared, so y is clamped to {default}: declare label_bounds=(lo, hi), from what is "
            "publicly known"
        )
        return checked_bounds(default)
