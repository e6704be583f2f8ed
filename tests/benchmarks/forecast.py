"""Forecast against outcome on simulated problems: `python -m tests.benchmarks.forecast` prints the table of docs/choosing.md.

The rule of `vfl.forecast` was chosen on 100 problems of this kind from other seeds. Problems differ in the number of records
and columns, ε, share of positives, signal, correlation, shapes of columns and the number of columns that matter. The guesses of
each forecast are right: share and best value are those of a large sample from the same distribution.
"""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit
from scipy.stats import norm
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

import vfl
from vfl.planning.forecast import expected

if TYPE_CHECKING:
    from collections.abc import Callable

    Draw = Callable[[int], np.ndarray]

LARGE = 40_000
FRESH = 60_000
TOLERANCE = 0.002


@dataclass(frozen=True)
class Outcome:
    """A problem, its forecast {measure: range}, and the measures {measure: value} of one run on a large fresh sample."""

    n: int
    p: int
    epsilon: float
    positives: float | None
    expected: dict[str, Any]
    found: dict[str, float]

    def holds(self, name: str) -> bool:
        """Return True if the measure lies in its range."""
        return bool(self.expected[name].low - TOLERANCE <= self.found[name] <= self.expected[name].high + TOLERANCE)


def columns(rng: np.random.Generator, p: int) -> Draw:
    """Return a function that draws (m, p) columns in [−1, 1]: uniform, bells, skewed or binary, with common factors."""
    shape = rng.integers(0, 4, p)
    factors = int(rng.integers(0, 3))
    load = rng.normal(size=(p, max(factors, 1))) * (factors > 0) * rng.uniform(0.3, 1.0)

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


def outcome(seed: tuple[int, int]) -> Outcome:
    """Simulate one problem, and train it once with noise of its own."""
    rng = np.random.default_rng(seed)
    logistic = rng.random() < 0.65
    n, p = (int(np.exp(rng.uniform(*np.log(ends)))) for ends in ((300, 60_000), (3, 50)))
    epsilon, share = float(rng.choice([0.3, 1.0, 3.0, 10.0])), float(rng.choice([0.5, 0.3, 0.1, 0.04]))
    strength, r2 = float(rng.uniform(0.4, 2.0)), float(rng.uniform(0.05, 0.9))
    draw = columns(rng, p)
    beta = rng.normal(size=p) * (rng.random(p) < (0.3 if rng.random() < 0.4 else 1.0))
    beta[0] += not beta.any()
    g = np.random.default_rng(rng.integers(2**32))
    large = draw(LARGE, g)
    beta = beta / large.std(axis=0)
    beta /= (large @ beta).std()
    centre = float((large @ beta).mean())
    shift = _shift(strength * (large @ beta - centre), share)

    def drawn(m: int) -> tuple[np.ndarray, np.ndarray]:
        X = draw(m, g)
        signal = X @ beta - centre
        if logistic:
            return X, (g.random(m) < expit(strength * signal + shift)).astype(int)
        return X, np.clip(50 + 8 * (signal + math.sqrt(1 / r2 - 1) * g.normal(size=m)), 0, 100)

    (X, y), (fresh, truth) = drawn(n), drawn(FRESH)
    names = [f"x{j}" for j in range(p)]
    job = vfl.Job(
        partition=vfl.FeaturePartition({"a": names[: p // 2 + 1], "b": names[p // 2 + 1 :]}, label=("a", "y")),
        bounds={"*": (-1, 1)} | ({} if logistic else {"y": (0, 100)}),
        loss="logistic" if logistic else "squared",
        penalty=vfl.L2(1e-4),
        privacy=vfl.Privacy(epsilon=epsilon),
    )
    result = vfl.train(job, {**dict(zip(names, X.T, strict=True)), "y": y}, engine="inprocess")
    margins = fresh @ result.coef_ + result.intercept_
    if logistic:
        best = float(roc_auc_score(truth, LogisticRegression(C=np.inf).fit(fresh, truth).decision_function(fresh)))
        found = {"auc": float(roc_auc_score(truth, margins)), "loss": float(log_loss(truth, expit(margins)))}
    else:
        best = float(LinearRegression().fit(fresh, truth).score(fresh, truth))
        found = {"r2": float(1 - np.mean((truth - margins) ** 2) / truth.var())}
    positives = float(truth.mean()) if logistic else None
    return Outcome(n, p, epsilon, positives, expected(job, n, best, positives), found)


def _shift(margins: np.ndarray, share: float) -> float:
    low, high = -12.0, 12.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if expit(margins + middle).mean() > share else (middle, high)
    return low


def main(seed: int = 2, count: int = 20) -> None:
    """Print the table and the number of measures in their range."""
    warnings.simplefilter("ignore", vfl.PrivacyWarning)
    runs = [outcome((seed, k)) for k in range(count)]
    print("| records × columns | ε | positives | measure | best | forecast | outcome |")
    print("|---|---|---|---|---|---|---|")
    for run in runs:
        share = "" if run.positives is None else f"{run.positives:.2f}"
        for name, r in run.expected.items():
            missed = "" if run.holds(name) else " (outside)"
            row = (f"{run.n:,} × {run.p}", f"{run.epsilon:g}", share, name, f"{r.best:.3f}", str(r))
            print(f"| {' | '.join(row)} | {run.found[name]:.3f}{missed} |")
    inside = [run.holds(name) for run in runs for name in run.expected]
    print(f"\n{sum(inside)} of {len(inside)} measures are in their range, within {TOLERANCE}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
