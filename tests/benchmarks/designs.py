"""Kinds of columns on which intervals are judged: nearly dependent, not determined, rare, skewed, or far inside their bounds.

`CHOSEN` are kinds on which rules and constants of intervals may be chosen. `JUDGED` are others of the same sorts, for whole
runs that judge them; simulations of the noise alone saw both. Models are correct. Every kind has a column without effect.

    python -m tests.benchmarks coverage --only kind
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import expit
from scipy.stats import norm

import vfl
from vfl.base.losses import loss_of
from vfl.measures.inference import sandwich

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

INTERCEPT = "(intercept)"
ERRORS = (-10.0, 10.0)


@dataclass(frozen=True)
class Kind:
    """Columns of one kind.

    draw : (rng, n) → {column: values}. bounds : of the numeric columns. slopes : of columns and levels, 0 if absent.
    levels : {column: levels}. free : combinations on which no record depends, so that rows with a part of them are unknown.
    known : further combinations that the records determine.
    """

    draw: Callable[[np.random.Generator, int], dict[str, Any]]
    bounds: Mapping[str, tuple[float, float]]
    slopes: Mapping[str, float]
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    free: Sequence[Mapping[str, float]] = ()
    known: Sequence[Mapping[str, float]] = ()
    centre: float = 0.0


class Rows(NamedTuple):
    """Rows of one run's table, then the known combinations, (k,) each; NaN for a row that is not shown.

    z : (estimate − truth)/error; inf for a shown row that no record determines. null : z for 0 where the truth is 0.
    width : error over that without privacy. determined : True if the records determine the row.
    """

    names: tuple[str, ...]
    z: np.ndarray
    null: np.ndarray
    width: np.ndarray
    determined: np.ndarray


def pair(rho: float) -> Kind:
    """Return two normal columns with this correlation, and one alone."""

    def draw(rng: np.random.Generator, n: int) -> dict[str, Any]:
        a, e, c = rng.normal(size=(3, n))
        return clipped({"a": a, "b": rho * a + np.sqrt(1.0 - rho**2) * e, "c": c}, 4.0)

    return Kind(draw, box("abc", 4.0), {"a": 0.5, "c": -0.4}, known=({"a": 1.0, "b": 1.0},))


def power(low: float, high: float) -> Kind:
    """Return a uniform column, its square, and one alone."""

    def draw(rng: np.random.Generator, n: int) -> dict[str, Any]:
        x = rng.uniform(low, high, n)
        return {"x": x, "x2": x**2, "c": np.clip(rng.normal(size=n), -4.0, 4.0)}

    slope, middle = 2.0 / (high - low), (low + high) / 2.0
    bounds = {"x": (low, high), "x2": (low**2, high**2), "c": (-4.0, 4.0)}
    return Kind(draw, bounds, {"x": slope, "c": -0.4}, known=({"x": 1.0, "x2": 2.0 * middle},), centre=slope * middle)


def shares(concentrations: Sequence[float]) -> Kind:
    """Return shares that add up to 1, and one column alone."""
    names = [f"s{j}" for j in range(len(concentrations))]

    def draw(rng: np.random.Generator, n: int) -> dict[str, Any]:
        parts = rng.dirichlet(concentrations, n)
        return dict(zip(names, parts.T, strict=True)) | {"c": np.clip(rng.normal(size=n), -4.0, 4.0)}

    free = dict.fromkeys(names, 1.0) | {INTERCEPT: -1.0}
    bounds = dict.fromkeys(names, (0.0, 1.0)) | {"c": (-4.0, 4.0)}
    known = ({"s0": 1.0, "s1": -1.0}, {"s1": 1.0, "s2": -1.0})
    return Kind(draw, bounds, {"s0": 2.0, "c": -0.4}, free=(free,), known=known, centre=0.7)


def combined(weights: Mapping[str, float], noise: float = 0.0) -> Kind:
    """Return a column d that is a sum of others, up to noise: a copy, a total, or nearly that."""

    def draw(rng: np.random.Generator, n: int) -> dict[str, Any]:
        found = clipped(dict(zip("abc", rng.normal(size=(3, n)), strict=True)), 3.0)
        total = sum(weight * found[name] for name, weight in weights.items())
        return found | {"d": total + noise * np.clip(rng.normal(size=n), -3.0, 3.0)}

    widest = 3.0 * sum(map(abs, weights.values())) + 3.0 * noise
    free = () if noise else (dict(weights) | {"d": -1.0},)
    known = tuple({name: 1.0, "d": weight} for name, weight in weights.items())
    return Kind(draw, box("abc", 3.0) | {"d": (-widest, widest)}, {"a": 0.5, "c": -0.4}, free=free, known=known)


def constant() -> Kind:
    """Return a column without spread, and two others."""

    def draw(rng: np.random.Generator, n: int) -> dict[str, Any]:
        return clipped(dict(zip("ab", rng.normal(size=(2, n)), strict=True)), 4.0) | {"d": np.full(n, 2.0)}

    free = ({"d": 1.0, INTERCEPT: -2.0},)
    return Kind(draw, box("ab", 4.0) | {"d": (0.0, 5.0)}, {"a": 0.5}, free=free, known=({INTERCEPT: 1.0, "d": 2.0},))


def category(probabilities: Sequence[float], effect: float = 0.0) -> Kind:
    """Return a column of levels with these probabilities, and two numeric columns. The second level has an effect."""
    names = tuple(f"l{j}" for j in range(len(probabilities)))

    def draw(rng: np.random.Generator, n: int) -> dict[str, Any]:
        found = clipped(dict(zip("ab", rng.normal(size=(2, n)), strict=True)), 4.0)
        return found | {"g": np.array(names)[rng.choice(len(names), size=n, p=probabilities)]}

    free = [{f"g={name}": 1.0} for name, share in zip(names, probabilities, strict=True) if not share]
    return Kind(draw, box("ab", 4.0), {"a": 0.5, "g=l1": 0.4 + effect}, {"g": names}, free)


def skewed(sigma: float) -> Kind:
    """Return a lognormal column, a small integer and a normal one."""

    def draw(rng: np.random.Generator, n: int) -> dict[str, Any]:
        found = {"a": np.minimum(rng.lognormal(0.0, sigma, n), 40.0), "b": np.minimum(rng.poisson(1.5, n), 10.0)}
        return found | clipped({"c": rng.normal(size=n)}, 4.0)

    bounds = {"a": (0.0, 40.0), "b": (0.0, 10.0), "c": (-4.0, 4.0)}
    return Kind(draw, bounds, {"b": 0.3, "c": -0.4}, centre=0.45)


def distant(factor: float, *, aside: bool = False) -> Kind:
    """Return three columns whose bounds are `factor` times too wide; `aside`, around a point at their edge."""

    def draw(rng: np.random.Generator, n: int) -> dict[str, Any]:
        return clipped(dict(zip("abc", rng.normal(size=(3, n)), strict=True)), 4.0)

    low = -4.0 if aside else -4.0 * factor
    return Kind(draw, dict.fromkeys("abc", (low, 8.0 * factor + low if aside else 4.0 * factor)), {"a": 0.5, "c": -0.4})


def mixed(rho: float, numbers: int, probabilities: Sequence[float]) -> Kind:
    """Return equally correlated columns, a lognormal one, and levels."""
    names, levels = [f"x{j}" for j in range(numbers)], tuple(f"l{j}" for j in range(len(probabilities)))

    def draw(rng: np.random.Generator, n: int) -> dict[str, Any]:
        shared, own = rng.normal(size=n), rng.normal(size=(numbers, n))
        X = np.sqrt(rho) * shared + np.sqrt(1.0 - rho) * own
        found = clipped(dict(zip(names, X, strict=True)), 4.0)
        found |= {"v": np.minimum(rng.lognormal(0.0, 1.0, n), 20.0)}
        return found | {"g": np.array(levels)[rng.choice(len(levels), size=n, p=probabilities)]}

    bounds = box(names, 4.0) | {"v": (0.0, 20.0)}
    return Kind(draw, bounds, {"x0": 0.4, "g=l1": 0.3}, {"g": levels})


def clipped(columns: dict[str, Any], bound: float) -> dict[str, Any]:
    """Return the columns within ±bound."""
    return {name: np.clip(values, -bound, bound) for name, values in columns.items()}


def box(names: Sequence[str], bound: float) -> dict[str, tuple[float, float]]:
    """Return bounds ±bound for each name."""
    return dict.fromkeys(names, (-bound, bound))


CHOSEN: dict[str, Kind] = {
    "independent": pair(0.0),
    "correlated 0.9": pair(0.9),
    "correlated 0.99": pair(0.99),
    "age and its square": power(20.0, 90.0),
    "three shares": shares((2.0, 3.0, 4.0)),
    "copy": combined({"a": 1.0}),
    "constant": constant(),
    "levels, rare and empty": category((0.5, 0.48, 0.02, 0.0)),
    "skewed": skewed(1.0),
    "bounds 200 times": distant(200.0),
    "mixed": mixed(0.7, 3, (0.5, 0.3, 0.18, 0.02)),
}
JUDGED: dict[str, Kind] = {
    "correlated 0.6": pair(0.6),
    "correlated 0.95": pair(0.95),
    "correlated 0.999": pair(0.999),
    "year and its square": power(0.0, 30.0),
    "five shares": shares((5.0, 1.0, 1.0, 2.0, 0.5)),
    "total": combined({"a": 1.0, "b": 1.0}),
    "nearly a total": combined({"a": 1.0, "b": 1.0, "c": -1.0}, 0.1),
    "seven levels, one empty": category((0.3, 0.3, 0.2, 0.1, 0.08, 0.02, 0.0)),
    "more skewed": skewed(1.3),
    "bounds 50 times": distant(50.0),
    "bounds 20 times, aside": distant(20.0, aside=True),
    "mixed, wider": mixed(0.5, 6, (0.4, 0.3, 0.15, 0.1, 0.05)),
    "many": mixed(0.4, 20, (0.5, 0.5)),
}


def drawn(kind: Kind, n: int, loss: str, seed: int) -> tuple[dict[str, Any], np.ndarray]:
    """Return columns with labels, and margins of the true model, (n,)."""
    rng = np.random.default_rng(seed)
    data = kind.draw(rng, n)
    v = np.full(n, -0.3 - kind.centre)
    for name, slope in kind.slopes.items():
        column, _, level = name.partition("=")
        v = v + slope * (data[column] == level if level else data[column])
    if loss == "logistic":
        y = (rng.random(n) < expit(v)).astype(float)
    elif loss == "poisson":
        y = np.minimum(rng.poisson(np.exp(v)), 20.0).astype(float)
    else:
        y = np.clip(v + (rng.standard_t(5, n) if loss == "huber" else rng.normal(size=n)), *ERRORS)
    return data | {"y": y}, v


def job_of(kind: Kind, loss: str, epsilon: float, seed: int) -> vfl.Job:
    """Return the job of one run; two parties hold the columns."""
    names = [*kind.bounds, *kind.levels]
    label = {} if loss == "logistic" else {"y": (0.0, 20.0) if loss == "poisson" else ERRORS}
    return vfl.Job(
        partition=vfl.FeaturePartition({"p": names[:1], "q": names[1:]}, label=("q", "y")),
        loss=loss,
        bounds=dict(kind.bounds) | label,
        columns={name: vfl.Categorical(levels) for name, levels in kind.levels.items()},
        privacy=vfl.Privacy(epsilon=epsilon, noise=vfl.SeededNoise(seed)),
        intervals=True,
    )


def without_privacy(kind: Kind, data: Mapping[str, Any], v: np.ndarray, loss: str, names: Sequence[str]) -> np.ndarray:
    """Return the sandwich covariance at the true model, (k, k), for coefficients of these names."""
    columns = []
    for name in names:
        column, _, level = name.partition("=")
        columns.append(
            np.ones(len(v))
            if name == INTERCEPT
            else np.asarray(data[column] == level if level else data[column], float)
        )
    X = np.column_stack(columns)
    middle = np.append(
        X[:, :-1].mean(axis=0), 0.0
    )  # centred columns, for a condition number that double precision bears
    back = np.eye(len(names))
    back[-1] -= middle
    y = 2.0 * data["y"] - 1.0 if loss == "logistic" else data["y"]
    return back @ sandwich(X - middle, v, y, loss_of(loss)) @ back.T


def one(kind: Kind, n: int, loss: str, epsilon: float, seed: int) -> Rows:
    """Return the rows of one run on new records, with new noise."""
    data, v = drawn(kind, n, loss, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vfl.PrivacyWarning)
        result = vfl.train(job_of(kind, loss, epsilon, seed), data, at="inprocess")
    return rows_of(kind, result, without_privacy(kind, data, v, loss, tuple(result.original)))


def rows_of(kind: Kind, result: vfl.Result, V: np.ndarray) -> Rows:
    """Return the rows of a result's table and tests. V : (k, k) covariance without privacy."""
    names = tuple(result.original)
    at = {name: j for j, name in enumerate(names)}
    truth = np.array([kind.slopes.get(name, 0.0) for name in names])
    truth[at[INTERCEPT]] = -0.3 - kind.centre
    found: list[tuple[str, np.ndarray, float, float]] = []
    for row in result.summary().rows:
        weights = np.zeros(len(names))
        for sign, name in terms_of(row.name, names):
            weights[at[name]] += sign
        error = row.standard_error
        found.append((row.name, weights, row.coefficient, np.nan if error is None else error))
    for terms in kind.known:
        weights = np.array([terms.get(name, 0.0) for name in names])
        value = float(weights @ np.array(list(result.original.values())))
        try:
            error = abs(value) / max(float(np.sqrt(result.test(dict(terms)).statistic)), 1e-300)
        except vfl.errors.SpecificationError:
            error = np.nan
        found.append((" + ".join(terms), weights, value, error))
    texts, weights_, values, errors = zip(*found, strict=True)
    W, e = np.array(weights_), np.array(errors, float)
    free = np.array([[one.get(name, 0.0) for name in names] for one in kind.free]).reshape(-1, len(names))
    determined = (abs(W @ free.T) < 1e-9).all(axis=1)
    true = W @ truth
    z = np.where(determined | np.isnan(e), (np.array(values) - true) / e, np.inf)
    null = np.where(true == 0.0, np.array(values) / e, np.nan)
    usual = np.where(determined, np.sqrt(np.maximum(((W @ V) * W).sum(axis=1), 0.0)), np.nan)
    return Rows(texts, z, null, e / usual, determined)


def terms_of(text: str, names: Sequence[str]) -> list[tuple[float, str]]:
    """Return the signed names of a table's row."""
    if text in names:
        return [(1.0, text)]
    if " - " in text:
        first, second = text.split(" - ")
        return [(1.0, first), (-1.0, second)]
    return [(1.0, name) for name in text.split(" + ")]


def measured(runs: Sequence[Rows]) -> dict[str, float]:
    """Return the coverage of what is shown, of the worst row, and of rows that no record determines; widths; null p-values."""
    z, null, width = (np.array([getattr(run, name) for run in runs]) for name in ("z", "null", "width"))
    determined, shown = runs[0].determined, ~np.isnan(z)
    held = abs(z) <= norm.ppf(0.975)
    each = np.where(shown.any(axis=0), held.sum(axis=0) / np.maximum(shown.sum(axis=0), 1), np.nan)
    often = shown.mean(axis=0) >= 0.1
    p = 2.0 * norm.sf(abs(null[~np.isnan(null)]))
    return {
        "coverage": float(held.sum() / shown.sum()) if shown.any() else np.nan,
        "worst row": float(np.nanmin(each[often])) if often.any() else np.nan,
        "shown, determined": float(shown[:, determined].mean()),
        "shown, not determined": float(shown[:, ~determined].mean()) if (~determined).any() else 0.0,
        "width over non-private": float(np.nanmedian(width)) if shown[:, determined].any() else np.nan,
        "widest": float(np.nanmax(width)) if shown[:, determined].any() else np.nan,
        "null p < 0.05": float((p < 0.05).mean()) if len(p) else np.nan,
    }
