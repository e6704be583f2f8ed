"""Problems on which forecasts are compared with outcomes: sets of real records, and simulated ones.

Each has a job without privacy, records, and the signal of the best linear model: the AUC or R² of one with a slight ridge, on
records that it was not trained on. The rule of `Plan.forecast` was chosen without the problems that are `kept` aside.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from scipy.special import expit
from scipy.stats import norm
from sklearn import datasets
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import vfl
from tests.benchmarks import problems
from vfl import examples
from vfl.job import file as jobfile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Draw = Callable[[int, np.random.Generator], np.ndarray]

RECORDS = 100_000
"""Records of a simulated problem."""
KEPT_SIMULATED = 50
"""Simulated problems from this seed on are held out."""


NORMAL = NormalDist()


@dataclass(frozen=True, eq=False)
class Set:
    """A problem. job : without privacy. table : columns and label. kept : True if no rule was chosen on it."""

    name: str
    job: vfl.Job
    table: pa.Table
    kept: bool

    @property
    def logistic(self) -> bool:
        """True for two classes."""
        return self.job.loss == "logistic"

    @functools.cached_property
    def scaled(self) -> tuple[np.ndarray, np.ndarray]:
        """(N, p) columns as the model sees them, the intercept last, and (N,) labels, −1 and 1 for classes."""
        return problems.Case(self.name, self.job, self.table).scaled

    @functools.cached_property
    def best(self) -> float:
        """AUC or R² of the best linear model, by cross-validation."""
        X, y = self.scaled
        chosen = np.random.default_rng(0).permutation(len(y))
        X, y = X[chosen][:, X.std(axis=0) > 0], y[chosen]
        linear = LogisticRegression(C=1.0, max_iter=3000) if self.logistic else Ridge(1.0)
        method = "decision_function" if self.logistic else "predict"
        folds = KFold(5, shuffle=True, random_state=0)
        predicted = cross_val_predict(make_pipeline(StandardScaler(), linear), X, y, cv=folds, method=method)
        return float(roc_auc_score(y > 0, predicted) if self.logistic else r2_score(y, predicted))


def names() -> list[str]:
    """Return the names of all problems, real ones first."""
    kinds = (f"kind {name}, {loss}" for name in KINDS for loss in ("logistic", "squared"))
    return [*REAL, *(f"simulated {k}" for k in (*range(20), *range(KEPT_SIMULATED, KEPT_SIMULATED + 20))), *kinds]


def made(name: str, folder: Path | None) -> Set | None:
    """Return a problem; None if its data are not in the folder."""
    if name.startswith("simulated"):
        return simulated(int(name.split()[1]))
    if name.startswith("kind "):
        return of_kind(*name.removeprefix("kind ").split(", "))
    build, kept = REAL[name]
    found = build(folder)
    if found is None:
        return None
    job, table = found
    return Set(name, job, table, kept)


def simulated(seed: int) -> Set:
    """Return a simulated problem: shapes, common factors, number of columns and signal are drawn."""
    rng = np.random.default_rng((11, seed))
    logistic = rng.random() < 0.65
    p = int(np.exp(rng.uniform(np.log(3), np.log(50))))
    share, strength = float(rng.choice([0.5, 0.3, 0.1, 0.04])), float(rng.uniform(0.4, 4.0))
    r2 = float(rng.uniform(0.05, 0.9))
    draw = _columns(rng, p)
    X = draw(RECORDS, rng)
    beta = rng.normal(size=p) * (rng.random(p) < (0.3 if rng.random() < 0.4 else 1.0))
    beta[0] += not beta.any()
    signal = X @ (beta / X.std(axis=0))
    signal = (signal - signal.mean()) / signal.std()
    if logistic:
        label = (rng.random(RECORDS) < expit(strength * signal + _shift(strength * signal, share))).astype(float)
    else:
        label = np.clip(50 + 8 * (signal + math.sqrt(1 / r2 - 1) * rng.normal(size=RECORDS)), 0, 100)
    columns = {f"x{j}": X[:, j] for j in range(p)}
    bounds = {"*": (-1.0, 1.0)} | ({} if logistic else {"y": (0.0, 100.0)})
    name = f"simulated {seed}"
    job = _job(list(columns), "y", bounds, "logistic" if logistic else "squared")
    return Set(name, job, pa.table(columns | {"y": label}), seed >= KEPT_SIMULATED)


KINDS = ("one-hot", "dependent", "lognormal", "integer", "wide bounds", "heavy tails")
"""Kinds of columns of the problems `kind NAME, LOSS`, all held out: made and seeded before any run."""


def of_kind(name: str, loss: str) -> Set:
    """Return a problem whose columns are of one kind; labels of classes have a share of 0.3, numbers an R² of 0.4."""
    rng = np.random.default_rng((12, KINDS.index(name), loss == "logistic"))
    X, bounds = _of_kind(name, rng)
    signal = X @ (rng.normal(size=X.shape[1]) / np.maximum(X.std(axis=0), 1e-9))
    signal = (signal - signal.mean()) / signal.std()
    if loss == "logistic":
        label = (rng.random(RECORDS) < expit(1.5 * signal + _shift(1.5 * signal, 0.3))).astype(float)
    else:
        label = np.clip(50 + 8 * (signal + math.sqrt(1.5) * rng.normal(size=RECORDS)), 0, 100)
        bounds |= {"y": (0.0, 100.0)}
    columns = {f"x{j}": X[:, j] for j in range(X.shape[1])}
    job = _job(list(columns), "y", bounds, loss)
    return Set(f"kind {name}, {loss}", job, pa.table(columns | {"y": label}), kept=True)


def _of_kind(name: str, rng: np.random.Generator) -> tuple[np.ndarray, dict[str, tuple[float, float]]]:
    p, Z = 10, rng.normal(size=(RECORDS, 10))
    if name == "one-hot":
        shares = np.array([0.5, 0.3, 0.15, 0.03, 0.015, 0.004, 0.001, 0.0])
        levels = rng.choice(len(shares), size=RECORDS, p=shares / shares.sum())
        X = np.column_stack([np.eye(len(shares))[levels], np.clip(Z[:, :4] / 4, -1, 1)])
        return X, {f"x{j}": (0.0, 1.0) if j < len(shares) else (-1.0, 1.0) for j in range(X.shape[1])}
    if name == "dependent":
        return np.clip((Z[:, :1] + 0.05 * Z) / 4, -1, 1), {"*": (-1.0, 1.0)}
    if name == "lognormal":
        return np.clip(np.exp(Z), 0, 50), {f"x{j}": (0.0, 50.0) for j in range(p)}
    if name == "integer":
        return np.floor(10 * norm.cdf(Z)), {f"x{j}": (0.0, 10.0) for j in range(p)}
    if name == "wide bounds":  # ten times wider than all records
        return Z, {f"x{j}": (-40.0, 40.0) for j in range(p)}
    return np.clip(rng.standard_t(2, size=(RECORDS, p)), -100, 100), {f"x{j}": (-100.0, 100.0) for j in range(p)}


def _columns(rng: np.random.Generator, p: int) -> Draw:
    """Return a function that draws (m, p) columns in [−1, 1]: uniform, bells, skewed or binary, with common factors."""
    shape = rng.integers(0, 4, p)
    factors = int(rng.integers(0, 4))
    load = rng.normal(size=(p, max(factors, 1))) * (factors > 0) * rng.uniform(0.3, 2.0)

    def draw(m: int, g: np.random.Generator) -> np.ndarray:
        Z = (g.normal(size=(m, p)) + g.normal(size=(m, load.shape[1])) @ load.T) / np.sqrt(1 + (load**2).sum(1))
        kinds = (
            2 * norm.cdf(Z) - 1,
            np.clip(Z / 4, -1, 1),
            np.clip(2 * np.exp(0.8 * Z) / np.exp(2.0) - 1, -1, 1),
            np.where(Z > 0.5, 1.0, -1.0),
        )
        return np.choose(shape, kinds)

    return draw


def _shift(margins: np.ndarray, share: float) -> float:
    low, high = -12.0, 12.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if expit(margins + middle).mean() > share else (middle, high)
    return low


def _job(columns: list[str], label: str, bounds: dict[str, tuple[float, float]], loss: str) -> vfl.Job:
    half = len(columns) // 2 + 1
    parties = {"a": columns[:half], "b": columns[half:]} if len(columns) > 1 else {"a": columns}
    partition = vfl.FeaturePartition(parties, label=("a", label))
    return vfl.Job(partition=partition, bounds=bounds, loss=loss, penalty=vfl.L2(1e-4), privacy=None)


def _breast_cancer(folder: Path | None) -> tuple[vfl.Job, pa.Table]:

    job = jobfile.read(examples.job_file("breast_cancer"))[0]
    return replace(job, evaluation=None, privacy=None), examples.table("breast_cancer")


def _bundled(load: Callable[[], Any], positive: Callable[[np.ndarray], np.ndarray] | None, digits: int) -> Any:
    """Return a set of scikit-learn. Bounds are the range of each column, widened to `digits` decimals as published."""
    bunch = load()
    X, y = np.asarray(bunch.data, float), np.asarray(bunch.target, float)
    unit = 10.0**-digits
    used = [j for j in range(X.shape[1]) if X[:, j].max() > X[:, j].min()]
    columns = {f"x{j}": X[:, j] for j in used}
    bounds = {
        f"x{j}": (float(np.floor(X[:, j].min() / unit) * unit), float(np.ceil(X[:, j].max() / unit) * unit))
        for j in used
    }
    if positive is None:
        bounds["y"] = (float(np.floor(y.min())), float(np.ceil(y.max())))
    label = y if positive is None else positive(y).astype(float)
    job = _job(list(columns), "y", bounds, "squared" if positive is None else "logistic")
    return job, pa.table(columns | {"y": label})


def _made(make: Callable[..., Any], **options: Any) -> Any:
    """Return a set of a generator of scikit-learn, 20,000 records."""
    X, y = make(n_samples=20_000, random_state=5, **options)
    bunch = SimpleNamespace(data=X, target=y)
    return _bundled(lambda: bunch, (lambda y: y == 1) if len(np.unique(y)) == 2 else None, 1)


def _of_folder(build: Callable[[Path, str, float], problems.Case]) -> Callable[[Path | None], Any]:
    def found(folder: Path | None) -> Any:

        if folder is None:
            return None
        case = build(folder, "x-bounds", 1.0)
        return replace(case.job, privacy=None, penalty=vfl.L2(1e-4)), case.table

    return found


def _dear(folder: Path | None) -> Any:
    """Return California's houses as classes: dearer than 250,000 USD."""
    found = _of_folder(problems.california)(folder)
    if found is None:
        return None
    job, table = found
    label = (np.asarray(table["target"].to_numpy(), float) > 2.5).astype(float)
    bounds = {c: b for c, b in job.bounds.items() if c != "target"}
    table = table.set_column(table.column_names.index("target"), "target", pa.array(label))
    return _job(list(job.partition.features), "target", bounds, "logistic"), table


REAL: dict[str, tuple[Callable[[Path | None], Any], bool]] = {
    "breast_cancer": (_breast_cancer, False),
    "digits, 5 to 9": (lambda _: _bundled(datasets.load_digits, lambda y: y >= 5, 0), False),
    "diabetes": (lambda _: _bundled(datasets.load_diabetes, None, 2), False),
    "electricity": (_of_folder(problems.electricity), False),
    "California": (_of_folder(problems.california), False),
    "wine, second kind": (lambda _: _bundled(datasets.load_wine, lambda y: y == 1, 0), True),
    "iris, virginica": (lambda _: _bundled(datasets.load_iris, lambda y: y == 2, 0), True),
    "digits, eight": (lambda _: _bundled(datasets.load_digits, lambda y: y == 8, 0), False),
    "adult": (_of_folder(problems.adult), True),
    "default_credit": (_of_folder(problems.credit), True),
    "California, dear": (_dear, False),
    "make_classification, 20": (lambda _: _made(datasets.make_classification, n_features=20), True),
    "make_classification, 8": (
        lambda _: _made(datasets.make_classification, n_features=8, n_redundant=5, flip_y=0.2, weights=[0.8]),
        True,
    ),
    "make_friedman1": (lambda _: _made(datasets.make_friedman1, noise=2.0), True),
    "make_friedman2": (lambda _: _made(datasets.make_friedman2, noise=200.0), True),
    "make_regression, low rank": (
        lambda _: _made(datasets.make_regression, n_features=30, effective_rank=5, noise=3.0),
        True,
    ),
}
"""{name: (how to build it from the folder of the real data, True if it is held out)}."""
