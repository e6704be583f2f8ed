"""Coverage and width of private intervals: share of intervals that hold the true coefficient, over many simulated data sets.

    python -m tests.benchmarks coverage [--only squared] [--runs 200] [--output DIR]

A cell is a number of records, columns, an ε, a loss and a world. Each run draws new records and new noise and trains with
`Job(intervals=True)`, in process. The truth of a misspecified model is the coefficient of the same regression without
privacy on a million other records, whose own error weighs at n = 200,000. Widths are divided by those of
the sandwich without privacy.

Logistic and squared loss run in all worlds, losses with a log link in the correlated one, at n = 20,000 and p = 5: Poisson
with an exposure of 0.25 to 1, gamma loss with a coefficient of variation of 0.7.

    plain        independent normal columns, model correct
    correlated   neighbours correlate by ½, model correct
    wrong        correlated; errors whose spread grows with a column and a curved mean, or a share of random labels
    levels       a categorical column of four levels beside the numbers; contrasts with its first level

Tasks named "kind" judge what a table shows, and what it withholds, on the kinds of columns of `tests.benchmarks.designs`.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit
from scipy.stats import norm

import vfl
from tests.benchmarks import designs
from tests.benchmarks.command import alone
from tests.benchmarks.results import Absent, Result, Settings, Task

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDS, COLUMNS, EPSILONS = (20_000, 2_000, 200_000), (5, 20), (0.5, 1.0, 5.0)
LOSSES, WORLDS = ("squared", "logistic"), ("correlated", "wrong", "plain", "levels")
LINKS, HIGHEST = ("poisson", "gamma"), {"squared": (-10.0, 10.0), "poisson": (0.0, 20.0), "gamma": (0.0, 20.0)}
LEVELS, (NOMINAL, WIDE) = ("north", "east", "south", "west"), (0.90, 0.95)
TRUTH = 1_000_000
KIND_RECORDS, KIND_LOSSES, KIND_EPSILONS = (
    (5_000, 20_000, 3_000, 50_000),
    ("logistic", "squared", "huber"),
    (1.0, 4.0, 0.5),
)


def tasks(settings: Settings) -> Iterator[Task]:
    """Yield a task per cell."""
    for n, p, world, loss, epsilon in itertools.product(RECORDS, COLUMNS, WORLDS, LOSSES, EPSILONS):
        if settings.quick and (n, p) != (RECORDS[0], COLUMNS[0]):
            continue
        name = f"{loss} {world} n={n} p={p} ε={epsilon:g}"
        yield Task(name, functools.partial(cell, settings, n, p, world, loss, epsilon))
    for loss, epsilon in itertools.product(LINKS, EPSILONS):
        n, p, world = RECORDS[0], COLUMNS[0], WORLDS[0]
        name = f"{loss} {world} n={n} p={p} ε={epsilon:g}"
        yield Task(name, functools.partial(cell, settings, n, p, world, loss, epsilon))
    for n, loss, epsilon in itertools.product(KIND_RECORDS, KIND_LOSSES, KIND_EPSILONS):
        for kind in designs.CHOSEN | designs.JUDGED:
            if not settings.quick or (n, loss, epsilon) == (KIND_RECORDS[0], KIND_LOSSES[0], KIND_EPSILONS[1]):
                name = f"kind {kind}: {loss} n={n} ε={epsilon:g}"
                yield Task(name, functools.partial(kind_cell, settings, kind, n, loss, epsilon))


def drawn(n: int, p: int, world: str, loss: str, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return numeric columns (n, p), codes of levels, labels, and exposures, (n,) each."""
    X = rng.normal(size=(n, p))
    if world != "plain":
        for j in range(1, p):
            X[:, j] = 0.5 * X[:, j - 1] + math.sqrt(0.75) * X[:, j]
    X = np.clip(X, -4.0, 4.0)
    levels = rng.choice(4, size=n, p=(0.4, 0.3, 0.2, 0.1))
    slopes = np.array([0.5, -0.4, 0.3, 0.2, 0.0] * (p // 5)) * math.sqrt(5 / p)
    v = X @ slopes + (np.array([0.0, 0.3, -0.2, 0.5])[levels] if world == "levels" else 0.0)
    exposures = rng.uniform(0.25, 1.0, n) if loss == "poisson" else np.ones(n)
    if loss == "poisson":
        return X, levels, np.minimum(rng.poisson(exposures * np.exp(v - 0.5)), 20.0), exposures
    if loss == "gamma":
        return X, levels, np.minimum(np.exp(v - 0.5) * rng.gamma(2.0, 0.5, n), 20.0), exposures
    if loss == "squared":
        spread = np.exp(0.35 * X[:, 0]) if world == "wrong" else 1.0
        bent = 0.15 * (X[:, 1] ** 2 - 1.0) if world == "wrong" else 0.0
        return X, levels, np.clip(v + bent + spread * rng.normal(size=n), -10.0, 10.0), exposures
    y = rng.random(n) < expit(1.5 * v - 0.5)
    if world == "wrong":
        y = np.where(rng.random(n) < 0.15, rng.random(n) < 0.5, y)
    return X, levels, y.astype(float), exposures


def fitted(X: np.ndarray, y: np.ndarray, loss: str, exposures: np.ndarray | float = 1.0) -> tuple[np.ndarray, ...]:
    """Return the coefficients without privacy, (k,), and their sandwich covariance, (k, k)."""
    w = np.zeros(X.shape[1])
    for _ in range(50):
        v = X @ w + np.log(exposures)
        mean = v if loss == "squared" else expit(v) if loss == "logistic" else np.exp(v)
        u, h = y - mean, {"squared": np.ones(len(y)), "logistic": mean * (1.0 - mean), "poisson": mean}.get(loss)
        if h is None:
            u, h = y / mean - 1.0, y / mean
        H = X.T @ (X * h[:, None])
        step = np.linalg.solve(H, X.T @ u)
        w = w + step
        if abs(step).max() < 1e-10:
            break
    J = X.T @ (X * (u**2)[:, None])
    return w, np.linalg.solve(H, np.linalg.solve(H, J).T)


def design(X: np.ndarray, levels: np.ndarray, world: str) -> np.ndarray:
    """Return the columns with contrasts of levels and the intercept, (n, k)."""
    contrasts = [levels == k for k in (1, 2, 3)] if world == "levels" else []
    return np.column_stack([X, *contrasts, np.ones(len(X))]).astype(np.float64)


@functools.lru_cache(maxsize=8)
def truth(p: int, world: str, loss: str) -> np.ndarray:
    """Return the coefficients of the model if it is correct, else those on a million other records."""
    if world != "wrong":
        slopes = np.array([0.5, -0.4, 0.3, 0.2, 0.0] * (p // 5)) * math.sqrt(5 / p)
        known = np.append(slopes, [0.3, -0.2, 0.5] if world == "levels" else [])
        return np.append(1.5 * known, -0.5) if loss == "logistic" else np.append(known, -0.5 * (loss != "squared"))
    X, levels, y, _ = drawn(TRUTH, p, world, loss, np.random.default_rng(10**6))
    return fitted(design(X, levels, world), y, loss)[0]


def job_of(p: int, world: str, loss: str, epsilon: float, seed: int) -> vfl.Job:
    """Return the job of one run; two parties hold the columns."""
    names = [f"x{j}" for j in range(p)]
    more: dict[str, Any] = {"columns": {"level": vfl.Categorical(LEVELS)}} if world == "levels" else {}
    return vfl.Job(
        partition=vfl.FeaturePartition(
            {"a": names[: p // 2], "b": [*names[p // 2 :], *(["level"] if world == "levels" else [])]},
            label=("b", "y"),
            exposure="e" if loss == "poisson" else None,
        ),
        loss=loss,
        bounds=dict.fromkeys(names, (-4.0, 4.0))
        | ({"y": HIGHEST[loss]} if loss in HIGHEST else {})
        | ({"e": (0.25, 1.0)} if loss == "poisson" else {}),
        privacy=vfl.Privacy(epsilon=epsilon, noise=vfl.SeededNoise(seed)),
        intervals=True,
        **more,
    )


def contrasts_of(names: tuple[str, ...], world: str) -> np.ndarray:
    """Return the matrix from the coefficients of a result to those of `design`."""
    k = len(names)
    if world != "levels":
        return np.eye(k)
    at = {name: i for i, name in enumerate(names)}
    rows = [np.eye(k)[i] for i, name in enumerate(names) if name.startswith("x")]
    rows += [np.eye(k)[at[f"level={one}"]] - np.eye(k)[at[f"level={LEVELS[0]}"]] for one in LEVELS[1:]]
    rows.append(np.eye(k)[at["(intercept)"]] + np.eye(k)[at[f"level={LEVELS[0]}"]])
    return np.array(rows)


def one(n: int, p: int, world: str, loss: str, epsilon: float, seed: int) -> tuple[np.ndarray, ...]:
    """Return z-scores, widths over those without privacy, and privacy's share of the variance, (k,) each; NaN if withheld."""
    X, levels, y, exposures = drawn(n, p, world, loss, np.random.default_rng(seed))
    data: dict[str, Any] = {f"x{j}": X[:, j] for j in range(p)} | {"y": y, "e": exposures}
    if world == "levels":
        data["level"] = np.array(LEVELS)[levels]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vfl.PrivacyWarning)
        found = vfl.train(job_of(p, world, loss, epsilon, seed), data, at="inprocess").inference
    assert found is not None
    C = contrasts_of(found.names, world)
    V, noise = (np.diag(C @ M @ C.T) for M in (found.covariance, found.noise_covariance))
    _, without = fitted(design(X, levels, world), y, loss, exposures)
    z = (C @ found.estimates - truth(p, world, loss)) / np.sqrt(V)
    shown = np.where(found.shown(C), 1.0, np.nan)
    return z * shown, np.sqrt(V / np.diag(without)) * shown, noise / V * shown


def cell(settings: Settings, n: int, p: int, world: str, loss: str, epsilon: float) -> Iterator[Result]:
    """Yield the coverage of one cell."""
    seeds = settings.seeds(whole=200, quick=20)
    try:
        runs = [one(n, p, world, loss, epsilon, seed) for seed in seeds]
    except vfl.errors.SpecificationError as error:
        raise Absent(str(error)) from error
    z, widths, noise = (np.array(values) for values in zip(*runs, strict=True))
    held = {level: np.where(np.isnan(z), np.nan, abs(z) <= norm.ppf(0.5 + level / 2.0)) for level in (NOMINAL, WIDE)}
    yield Result(
        part="coverage",
        case=f"{loss}, {world}, n = {n:,}, p = {p}",
        arm="SkGD",
        measure="coverage of 95 %",
        values=tuple(np.nanmean(held[WIDE], axis=1)),
        seeds=seeds,
        at={"epsilon": epsilon},
        less=None,
        beside={
            "coverage of 90 %": float(np.nanmean(held[NOMINAL])),
            "worst column, 95 %": float(np.nanmin(np.nanmean(held[WIDE], axis=0))),
            "spread of z": float(np.nanstd(z)),
            "largest mean z": float(np.nanmax(abs(np.nanmean(z, axis=0)))),
            "width over non-private": float(np.nanmedian(widths)),
            "share of noise": float(np.nanmedian(noise)),
            "share shown": float(1.0 - np.isnan(z).mean()),
        },
    )


def kind_cell(settings: Settings, kind: str, n: int, loss: str, epsilon: float) -> Iterator[Result]:
    """Yield the coverage of what the tables of one kind of columns show."""
    seeds, chosen = settings.seeds(whole=200, quick=10), designs.CHOSEN | designs.JUDGED
    try:
        found = designs.measured([designs.one(chosen[kind], n, loss, epsilon, seed) for seed in seeds])
    except vfl.errors.SpecificationError as error:
        raise Absent(str(error)) from error
    yield Result(
        part="coverage",
        case=f"{kind}, {loss}, n = {n:,}",
        arm="SkGD",
        measure="coverage of what is shown",
        values=(found.pop("coverage"),),
        seeds=seeds,
        at={"epsilon": epsilon},
        less=None,
        beside=found,
    )


if __name__ == "__main__":
    sys.exit(alone("coverage"))
