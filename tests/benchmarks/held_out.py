"""Errors of untuned SkGD on ten problems that no rule is chosen on, and on others on which rules are chosen.

    python -m tests.benchmarks.held_out [chosen | held-out] [--only NAME ...] [--epsilon E ...]
                                         [--seeds N] [--with OPTION=VALUE ...]

Prints for each problem and ε the excess (F(w) − F*)/F* as mean ± standard error over seeds, and the messages of a run. The
default is `chosen`. Run `held-out` to judge a finished rule, never to choose a constant: its generators, shapes of columns and
labels differ from those of `chosen`, and its seeds were committed before the first run.

For counts, F is half the deviance. For Huber loss, F has the width of the exact spread of the labels.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.special import expit, xlogy

import vfl
from tests.benchmarks.problems import Case
from vfl.base.losses import Huber
from vfl.planning import plan, problem_of

EPSILONS = (0.1, 1.0, 10.0)


@dataclass(frozen=True)
class Recipe:
    """Public description of a problem, from which its records are drawn.

    columns : {kind of `COLUMNS`: number of columns, or the numbers of levels of categorical columns}. noise : kind of NOISE, or
        'counts' or 'amounts', which grow with the exponential of the signal.
    r2 : share of the label's variance that the signal explains; the signal's spread for counts and amounts. span : declared
        range of the label in standard deviations of the residuals; the largest label of counts and amounts.
    shift : position of the mean within the range. rate : share of positive labels, or mean of counts and amounts.
    """

    seed: int
    loss: str
    n: int
    columns: dict[str, Any]
    noise: str = "normal"
    r2: float = 0.4
    span: float = 10.0
    shift: float = 0.5
    rate: float = 0.5
    parties: int = 2


def levels(rng, hidden, sizes):
    """Categorical columns with shares that fall as 1/k², so that the last levels are rare, and a declared level is empty."""
    for size in sizes:
        shares = 1.0 / np.arange(1.0, size) ** 2
        own = (
            np.log(shares) + rng.gumbel(size=(len(hidden), size - 1)) + 0.3 * hidden[:, :1] * rng.normal(size=size - 1)
        )
        yield own.argmax(axis=1), tuple(f"l{k}" for k in range(size))


def numbers(shape, low, high):
    """Return a builder of columns shape(correlated normals, rng) within declared bounds."""

    def build(rng, hidden, count):
        for _ in range(count):
            load = rng.normal(size=hidden.shape[1]) * rng.uniform(0, 1.2)
            z = (hidden @ load + rng.normal(size=len(hidden))) / math.sqrt(1.0 + load @ load)
            yield np.clip(shape(z, rng), low, high), (low, high)

    return build


def parallel(rng, hidden, count):
    """Columns that are one common column up to a tenth of its spread."""
    common = rng.normal(size=len(hidden))
    for _ in range(count):
        yield np.clip(common + 0.1 * rng.normal(size=len(hidden)), -4, 4), (-4.0, 4.0)


COLUMNS = {
    "levels": levels,
    "normal": numbers(lambda z, rng: z, -4.0, 4.0),
    "lognormal": numbers(lambda z, rng: np.exp(z), 0.0, 60.0),
    "integer": numbers(lambda z, rng: np.floor(3.0 * np.exp(0.5 * z)), 0.0, 40.0),
    "wide": numbers(lambda z, rng: 5.0 + z, -100.0, 100.0),
    "tails": numbers(lambda z, rng: z * np.sqrt(3.0 / rng.chisquare(3, len(z))), -30.0, 30.0),
    "spikes": numbers(lambda z, rng: np.where(z > 1.3, np.exp(1.5 * z), 0.0), 0.0, 1000.0),
    "flags": numbers(lambda z, rng: (z > 1.7).astype(float), 0.0, 1.0),
    "waves": numbers(lambda z, rng: np.sin(2.0 * z), -1.0, 1.0),
    "parallel": parallel,
}
NOISE = {
    "normal": lambda rng, n: rng.normal(size=n),
    "laplace": lambda rng, n: rng.laplace(size=n),
    "lognormal": lambda rng, n: np.exp(0.9 * rng.normal(size=n)),
    "tails": lambda rng, n: rng.standard_t(2.5, size=n),
    "mixture": lambda rng, n: rng.normal(size=n) * np.where(rng.random(n) < 0.03, 12.0, 0.7),
    "gamma": lambda rng, n: rng.gamma(1.5, size=n),
}

CHOSEN = {
    "one-hot, squared, span 10": Recipe(101, "squared", 20_000, {"levels": (9, 16, 6, 5, 12), "integer": 4}, span=10),
    "one-hot, squared, span 4": Recipe(102, "squared", 20_000, {"levels": (9, 16, 6, 5, 12), "integer": 4}, span=4),
    "one-hot, squared, span 40": Recipe(
        103, "squared", 20_000, {"levels": (14, 7, 8), "tails": 4}, "gamma", span=40, shift=0.1
    ),
    "normal, squared, R² 0.99": Recipe(104, "squared", 12_000, {"normal": 10}, r2=0.99, span=60),
    "mixed, squared, lognormal": Recipe(
        105, "squared", 15_000, {"lognormal": 6, "flags": 8}, "lognormal", span=100, shift=0.05
    ),
    "one-hot, squared, skewed counts": Recipe(
        114, "squared", 22_000, {"levels": (9, 16, 6, 5, 12), "integer": 4}, "counts", r2=1.0, rate=1.0, span=9
    ),
    "normal, squared, lognormal amounts": Recipe(
        115, "squared", 15_000, {"normal": 8, "flags": 6}, "amounts", r2=0.6, rate=2.0, span=60
    ),
    "parallel, squared": Recipe(106, "squared", 10_000, {"parallel": 6, "normal": 6}, "laplace", span=15),
    "one-hot, logistic": Recipe(107, "logistic", 20_000, {"levels": (9, 16, 6, 5, 12), "integer": 4}, rate=0.25),
    "parallel, logistic": Recipe(108, "logistic", 12_000, {"parallel": 8, "normal": 4}),
    "mixed, logistic, rare": Recipe(109, "logistic", 25_000, {"levels": (6, 4), "tails": 10}, rate=0.05, parties=3),
    "normal, huber": Recipe(110, "huber", 10_000, {"normal": 12}, "tails", span=100),
    "normal, huber, R² 0.98": Recipe(116, "huber", 10_000, {"normal": 10}, "tails", r2=0.98, span=100),
    "one-hot, huber": Recipe(111, "huber", 20_000, {"levels": (12, 9, 7), "integer": 4}, "mixture", span=30),
    "one-hot, poisson": Recipe(112, "poisson", 20_000, {"levels": (12, 9, 7), "integer": 4}, rate=0.4, span=15),
    "levels, poisson, wide rates": Recipe(117, "poisson", 15_000, {"levels": (9, 7), "tails": 5}, rate=2.0, span=100),
    "normal, poisson": Recipe(113, "poisson", 8_000, {"normal": 8}, rate=5.0, span=80),
}
"""Problems on which rules are chosen."""
HELD_OUT = {
    "ordinal label, many levels": Recipe(
        7001, "squared", 18_000, {"levels": (20, 11, 8, 6, 3), "integer": 5}, span=7, r2=0.5
    ),
    "lognormal label, far range": Recipe(
        7002, "squared", 9_000, {"tails": 9, "waves": 5}, "lognormal", span=70, shift=0.04, parties=3
    ),
    "label cut at its range": Recipe(7003, "squared", 26_000, {"waves": 12, "flags": 10}, "gamma", span=3.0, r2=0.3),
    "good fit, spikes": Recipe(7004, "squared", 14_000, {"spikes": 5, "normal": 12}, "laplace", span=45, r2=0.93),
    "rare levels, rare class": Recipe(7005, "logistic", 23_000, {"levels": (24, 13, 5), "spikes": 3}, rate=0.08),
    "parallel and tails": Recipe(
        7006, "logistic", 17_000, {"parallel": 5, "tails": 9, "flags": 4}, rate=0.4, parties=3
    ),
    "few records, wide bounds": Recipe(7007, "logistic", 3_000, {"wide": 7, "integer": 3}, rate=0.55),
    "outliers, far range": Recipe(
        7008, "huber", 11_000, {"lognormal": 6, "waves": 6, "levels": (7,)}, "tails", span=60, shift=0.3
    ),
    "rare counts, levels": Recipe(
        7009, "poisson", 28_000, {"levels": (15, 9, 4), "waves": 4}, rate=0.15, span=10, parties=3
    ),
    "large counts, tails": Recipe(7010, "poisson", 6_500, {"tails": 6, "flags": 5}, rate=9.0, span=120),
}
"""Problems on which no rule is chosen. Their seeds and recipes stand here since before the first run."""
SETS = {"chosen": CHOSEN, "held-out": HELD_OUT}


def hidden_of(recipe, rng):
    """Common parts of the columns, (n, 3): factors of normals; groups of records where the problem is held out."""
    if recipe.seed < min(r.seed for r in HELD_OUT.values()):
        return rng.normal(size=(recipe.n, 3))
    group = rng.choice(5, size=recipe.n, p=(0.4, 0.3, 0.15, 0.1, 0.05))
    return rng.normal(size=(5, 3))[group] * rng.uniform(0.5, 1.5, size=(recipe.n, 1))


def drawn(recipe):
    """Return {name: (values, levels or bounds)} of all columns, and the signal, (n,), of mean 0 and variance 1."""
    rng = np.random.default_rng(recipe.seed)
    hidden, columns, signal = hidden_of(recipe, rng), {}, np.zeros(recipe.n)
    for kind, count in recipe.columns.items():
        for k, (values, public) in enumerate(COLUMNS[kind](rng, hidden, count)):
            effect = rng.normal(size=len(public))[values] if kind == "levels" else rng.laplace() * values
            signal += (effect - effect.mean()) / max(values.std(), 1e-9) ** (kind != "levels")
            columns[f"{kind}{k}"] = values, public
    return columns, (signal - signal.mean()) / signal.std(), rng


def labels(recipe, signal, rng):
    """Return the labels, (n,), and their declared range; None for classes."""
    n = recipe.n
    if recipe.loss == "logistic":
        shift = np.quantile(1.5 * signal + rng.logistic(size=n), 1.0 - recipe.rate)
        return (rng.random(n) < expit(1.5 * signal - shift)).astype(float), None
    if recipe.loss == "poisson":
        mean = np.exp(np.clip(0.5 * signal, -3.0, 3.0))
        return np.minimum(rng.poisson(recipe.rate * mean / mean.mean()), recipe.span).astype(float), (0.0, recipe.span)
    if recipe.noise in ("counts", "amounts"):  # residuals spread as the mean does, and are skewed
        mean = recipe.rate * np.exp(recipe.r2 * signal - recipe.r2**2 / 2.0)
        y = rng.poisson(mean).astype(float) if recipe.noise == "counts" else mean * rng.lognormal(-0.18, 0.6, n)
        return np.minimum(y, recipe.span), (0.0, recipe.span)
    noise = NOISE[recipe.noise](rng, n)
    y = math.sqrt(recipe.r2 / (1.0 - recipe.r2)) * signal + (noise - noise.mean()) / noise.std()
    low, high = -recipe.shift * recipe.span, (1.0 - recipe.shift) * recipe.span
    if recipe.noise == "normal" and "levels" in recipe.columns:  # ordered levels of a label
        y, low, high = np.round(2.0 * y), np.round(2.0 * low), np.round(2.0 * high)
    return np.clip(y, low, high), (float(low), float(high))


@functools.cache
def made(name):
    """Return the case of a problem, at ε = 1."""
    recipe = next(problems[name] for problems in SETS.values() if name in problems)
    columns, signal, rng = drawn(recipe)
    y, declared = labels(recipe, signal, rng)
    names, table, bounds, texts = list(columns), {"y": y}, {} if declared is None else {"y": declared}, {}
    for c, (values, public) in columns.items():
        texts |= {c: vfl.Categorical(public)} if isinstance(public[0], str) else {}
        bounds |= {} if c in texts else {c: public}
        table[c] = np.asarray(public)[values] if c in texts else values
    order = list(rng.permutation(names))
    parties = {f"p{k}": order[k :: recipe.parties] for k in range(recipe.parties)}

    job = vfl.Job(
        partition=vfl.FeaturePartition(parties, label=("p1", "y")), bounds=bounds, columns=texts, loss=recipe.loss,
        penalty=vfl.L2(1e-4), privacy=vfl.Privacy(epsilon=1.0),
    )  # fmt: skip
    return Case(name, job, pa.table(table))


def judged(case):
    """Return (F of a model, F* by which errors are divided): counts above a perfect fit, Huber at the exact width."""
    X, y = case.scaled
    if case.job.loss == "huber":
        low, high = np.quantile(y, (0.25, 0.75))
        case = Case(case.name, replace(case.job, loss=Huber(width=float(high - low))), case.table)
    problem = problem_of(case.job, case.n)
    perfect = float((y - xlogy(y, y)).mean()) if problem.loss.name == "poisson" else 0.0
    return (lambda w: problem.value(w, X @ w, y) - case.best), case.best - perfect


def measured(name, epsilons, seeds, options):
    """Yield one row per ε."""
    case = made(name)
    excess, best = judged(case)
    for epsilon in epsilons:
        own = Case(name, replace(case.job, privacy=vfl.Privacy(epsilon=epsilon)), case.table)
        values = [excess(own.run(seed, **options).w) / best for seed in seeds]
        found = plan(replace(own.job, solver=vfl.SkGD().changed(**options)), own.n)
        yield {
            "problem": name, "epsilon": epsilon, "mean": float(np.mean(values)), "values": values,
            "error": float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan,
            "messages": found.messages, "n": own.n, "p": own.scaled[0].shape[1], "options": options,
        }  # fmt: skip


def option(text):
    """Return (name, value) of NAME=VALUE."""
    name, _, value = text.partition("=")
    return name, json.loads(value)


def main() -> None:
    """Print a row per problem and ε as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", nargs="?", choices=SETS, default="chosen")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--epsilon", nargs="*", type=float, default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--with", nargs="*", type=option, default=[], dest="options", help="options of SkGD, as JSON")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    given = parser.parse_args()
    for name in SETS[given.set]:
        if given.only and not any(part in name for part in given.only):
            continue
        for row in measured(name, given.epsilon, range(1, given.seeds + 1), dict(given.options)):
            shown = "{problem:28} {n:6} × {p:<3} ε={epsilon:<4g} {mean:9.3g} ± {error:8.2g} {messages:5} messages"
            print(json.dumps(row) if given.json else shown.format(**row), flush=True)


if __name__ == "__main__":
    sys.exit(main())
