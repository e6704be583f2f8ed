"""Private training without tuning against the best of an oracle search, by relative error (F(w) − F*)/F*.

    python -m tests.benchmarks.defaults [--data DIR] [--only NAME ...] [--seeds N] [--passes-cap N] [--json FILE]

The oracle looks at the data: from two starts it searches (clip, passes, block_size, step_size, iterate) coordinate by
coordinate for the least mean error of three seeds. It and the defaults are then measured with fresh seeds, the same for
both. `left` is (F(w) − F*)/(F(0) − F*), 1 for a model that learnt nothing. DIR holds the real data; without it the
synthetic problems run.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.optimize import minimize

import vfl
from parties.loading import load
from vfl.launch.sources import sources_of
from vfl.planning import plan, problem_of

if TYPE_CHECKING:
    from collections.abc import Callable

CLIPS = tuple(2.0 ** (k / 2) for k in range(-8, 9))  # times the default κ
PASSES = (1, 2, 5, 10, 20, 50, 100)
SIZES = (1, 2, 4, 8, 16)
STEPS = (0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 1.5, 2.0, 4.0)
ITERATES = ("last", "tail")


@dataclass(frozen=True, eq=False)
class Case:
    """A job without solver, and its table."""

    name: str
    job: vfl.Job
    table: pa.Table

    @property
    def n(self):
        return self.table.num_rows

    @functools.cached_property
    def scaled(self):
        """X (n, p) as trained on, the intercept last, and y."""
        owner = self.job.partition.label_party
        parties = {q: load(self.job, q, s) for q, s in sources_of(self.job.partition, self.table).items()}
        columns = problem_of(self.job, self.n).layout.columns
        blocks = [p._columns.array for q, p in parties.items() if columns[q]]
        return np.hstack(blocks), parties[owner].labels()

    @functools.cached_property
    def best(self):
        """F*, by L-BFGS over standardised columns with w = a − b, a, b ≥ 0."""
        X, y = self.scaled
        problem = problem_of(self.job, self.n)
        feature = problem.penalised if problem.centred else np.ones(X.shape[1])
        centre = X.mean(axis=0) * feature if problem.centred else np.zeros(X.shape[1])
        width = np.sqrt(np.maximum(((X - centre) ** 2).mean(axis=0), 1e-12))
        Z, p = (X - centre) / width, X.shape[1]
        l1 = isinstance(self.job.penalty, vfl.L1)
        strength = self.job.penalty.strength * feature

        def value(ab):
            u = ab[:p] - ab[p:]
            v = Z @ u
            g = Z.T @ problem.loss.derivative(v, y) / len(y)
            f = problem.loss.value(v, y).mean()
            if l1:
                thresholds = strength / width
                return f + thresholds @ (ab[:p] + ab[p:]), np.concatenate([g + thresholds, thresholds - g])
            ridge = strength / width**2
            g = g + ridge * u
            return f + 0.5 * ridge @ u**2, np.concatenate([g, -g])

        options = {"maxiter": 5000, "maxfun": 6000, "ftol": 1e-14, "gtol": 1e-9, "maxcor": 30}
        bounds = [(0, None)] * (2 * p)
        found = minimize(value, np.zeros(2 * p), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return float(found.fun)

    @functools.cached_property
    def start(self):
        """F(0)."""
        X, y = self.scaled
        return problem_of(self.job, self.n).value(np.zeros(X.shape[1]), np.zeros(len(y)), y)

    def error(self, seed, **options):
        """(F(w) − F*)/F* of one run."""
        privacy = replace(self.job.privacy, noise=vfl.SeededNoise(seed))
        job = replace(self.job, privacy=privacy, solver=vfl.SkGD(seed=seed, **options))
        w = vfl.train(job, self.table, engine="inprocess").w
        X, y = self.scaled
        F = problem_of(job, self.n).value(w, X @ w, y)
        return (F - self.best) / self.best if math.isfinite(F) else math.inf

    def errors(self, seeds, **options):
        return [self.error(seed, **options) for seed in seeds]


def oracle(case, cap):
    """The options with the least mean error that coordinate search finds, and how many runs it took."""
    default = plan(case.job, case.n).solver
    grids = ([c * default.clip for c in CLIPS], [t for t in PASSES if t <= cap], SIZES, STEPS, ITERATES)
    names = ("clip", "passes", "block_size", "step_size", "iterate")
    at = lambda at_: dict(zip(names, (grid[i] for grid, i in zip(grids, at_, strict=True)), strict=True))  # noqa: E731

    @functools.cache
    def mean(index):
        return float(np.mean(case.errors((101, 102, 103), **at(index))))

    nearest = lambda grid, x: min(range(len(grid)), key=lambda i: abs(math.log(grid[i] / x)))  # noqa: E731
    untuned = (8, len(grids[1]) - 1, SIZES.index(default.block_size), nearest(STEPS, default.step_size), 1)
    best = None
    for start in (untuned, (6, min(3, len(grids[1]) - 1), 1, 4, 0)):
        here, moved = start, True
        while moved:
            moved = False
            for axis, grid in enumerate(grids):
                for shift in (1, -1, 2, -2):
                    there = (*here[:axis], here[axis] + shift, *here[axis + 1 :])
                    if 0 <= there[axis] < len(grid) and mean(there) < mean(here):
                        here, moved = there, True
        best = here if best is None or mean(here) < mean(best) else best
    return at(best), mean.cache_info().currsize


def _job(parties, label, bounds, epsilon, **options):
    return vfl.Job(
        partition=vfl.FeaturePartition(parties, label=label),
        bounds=bounds,
        privacy=vfl.Privacy(epsilon=epsilon),
        **options,
    )


def _electricity(folder, name, epsilon):
    table = pq.read_table(folder / "electricity.parquet")
    features = [c for c in table.column_names if c != "target"]
    values = {c: np.asarray(table[c].to_numpy(), float) for c in features}
    bounds = {c: (1.0, 7.0) if x.max() > 1 else (0.0, 1.0) for c, x in values.items()}
    target = np.asarray(table["target"].to_numpy(), float)
    return _three(name, epsilon, values, bounds, target, {}, [("logistic", vfl.L2(1 / len(target)))] * 3)


def _california(folder, name, epsilon):
    table = pq.read_table(folder / "california_housing.parquet")
    features = [c for c in table.column_names if c != "target"]
    values = {c: np.asarray(table[c].to_numpy(), float) for c in features}
    declared = [(0, 15), (0, 52), (0, 20), (0, 5), (0, 10_000), (0, 10), (32, 42), (-125, -114)]
    bounds = dict(zip(features, declared, strict=True))
    kinds = [("squared", vfl.L1(1.0)), ("squared", vfl.L1(0.1)), ("squared", vfl.L1(1e-3))]
    return _three(name, epsilon, values, bounds, table["target"].to_numpy(), {"target": (0.0, 5.0)}, kinds)


def _three(name, epsilon, values, bounds, target, label_bounds, kinds):
    """Raw and standardised without an intercept, as in the papers; scaled by the declared bounds with one."""
    variant = name.rsplit("-", 1)[1]
    (loss, penalty) = kinds[("raw", "standardised", "bounds").index(variant)]
    own = variant == "bounds"
    if variant == "standardised":
        values = {c: (x - x.mean()) / x.std() for c, x in values.items()}
        bounds = {c: (float(x.min()), float(x.max())) for c, x in values.items()}
    features = list(values)
    parties = {"a": features[: len(features) // 2], "b": features[len(features) // 2 :]}
    job = _job(
        parties, ("b", "target"), bounds | label_bounds, epsilon, loss=loss, penalty=penalty, intercept=own,
        scaling="bounds" if own else "none",
    )  # fmt: skip
    return Case(f"{name} ε={epsilon:g}", job, pa.table(values | {"target": target}))


def _adult(folder, name, epsilon):
    table = pq.read_table(folder / "adult.parquet").drop_columns(["fnlwgt", "split"])
    numeric = {
        "age": (17, 90),
        "education_num": (1, 16),
        "capital_gain": (0, 99_999),
        "capital_loss": (0, 5_000),
        "hours_per_week": (1, 99),
    }
    texts = [c for c in table.column_names if c not in numeric and c != "target"]
    columns = {}
    for c in texts:
        values = table[c].fill_null("?").cast(pa.string())
        table = table.set_column(table.column_names.index(c), c, values)
        columns[c] = vfl.Categorical(tuple(sorted(set(values.to_pylist()))))
    parties = {"a": list(numeric), "b": texts}
    job = _job(parties, ("b", "target"), numeric, epsilon, columns=columns, penalty=vfl.L2(1e-4))
    return Case(f"{name} ε={epsilon:g}", job, table)


def _credit(folder, name, epsilon):
    guest = pq.read_table(folder / "default_credit_raw_guest.parquet")
    table = guest.join(pq.read_table(folder / "default_credit_raw_host.parquet"), "id").sort_by("id")
    named = {"AGE": (18, 90), "SEX": (1, 2), "EDUCATION": (0, 6), "MARRIAGE": (0, 3)}
    starts = (("BILL_AMT", (-2e5, 1e6)), ("PAY_AMT", (0, 1e6)), ("LIMIT", (0, 1e6)), ("PAY_", (-2, 8)))
    bounds = {}
    for c in table.column_names:
        if c not in ("id", "target"):
            bounds[c] = next((bound for start, bound in starts if c.startswith(start)), None) or named[c]
    guests = [c for c in guest.column_names if c in bounds]
    parties = {"guest": guests, "host": [c for c in bounds if c not in guests]}
    return Case(
        f"{name} ε={epsilon:g}", _job(parties, ("guest", "target"), bounds, epsilon, penalty=vfl.L2(1e-4)), table
    )


def _breast(folder, name, epsilon):
    guest, host = (pq.read_table(folder / f"fate_breast_hetero_{side}.parquet") for side in ("guest", "host"))
    table = guest.join(host, "id").sort_by("id")
    parties = {
        side: [c for c in t.column_names if c not in ("id", "target")] for side, t in (("guest", guest), ("host", host))
    }
    bounds = {c: (-4.0, 6.0) for columns in parties.values() for c in columns}
    return Case(
        f"{name} ε={epsilon:g}", _job(parties, ("guest", "target"), bounds, epsilon, penalty=vfl.L2(1e-3)), table
    )


def _synthetic(name, epsilon, *, loss, n, p, correlated=False, l1=False, seed=7):
    """A linear signal of twice the noise's spread, a tenth of the columns active when there are many."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    if correlated:
        X = math.sqrt(0.5) * (X + rng.standard_normal((n, 1)) * np.where(np.arange(p) % 3, -1, 1))
    active = rng.random(p) < (0.1 if p >= 100 else 0.5)
    active[0] = True
    signal = X @ (rng.standard_normal(p) * active)
    signal *= 2 / signal.std()
    features = [f"x{j}" for j in range(p)]
    bounds = dict.fromkeys(features, (-4.0, 4.0))
    if loss == "logistic":
        label = (rng.random(n) < 1 / (1 + np.exp(-signal))).astype(float)
    else:
        label, bounds["y"] = signal + rng.standard_normal(n), (-9.0, 9.0)
    job = _job(
        {"a": features[: p // 2], "b": features[p // 2 :]}, ("b", "y"), bounds, epsilon, loss=loss,
        penalty=vfl.L1(1e-3) if l1 else vfl.L2(1e-4),
    )  # fmt: skip
    return Case(f"{name} ε={epsilon:g}", job, pa.table(dict(zip(features, X.T, strict=True)) | {"y": label}))


REAL: dict[str, tuple[Callable, tuple[float, ...]]] = {
    **{f"electricity-{v}": (_electricity, (1.0,)) for v in ("raw", "standardised")},
    "electricity-bounds": (_electricity, (0.1, 1.0)),
    **{f"california-{v}": (_california, (1.0,)) for v in ("raw", "standardised")},
    "california-bounds": (_california, (0.1, 1.0, 10.0)),
    "adult": (_adult, (1.0,)),
    "credit": (_credit, (1.0,)),
    "breast": (_breast, (1.0, 10.0)),
}
SYNTHETIC: dict[str, tuple[dict, tuple[float, ...]]] = {
    "logistic-1e3x8": ({"loss": "logistic", "n": 1_000, "p": 8}, (1.0,)),
    "logistic-3e4x8-correlated": ({"loss": "logistic", "n": 30_000, "p": 8, "correlated": True}, (0.1,)),
    "logistic-3e4x100": ({"loss": "logistic", "n": 30_000, "p": 100}, (1.0,)),
    "squared-1e3x8": ({"loss": "squared", "n": 1_000, "p": 8}, (10.0,)),
    "squared-3e4x8-l1": ({"loss": "squared", "n": 30_000, "p": 8, "l1": True}, (1.0,)),
    "squared-3e4x100-correlated": ({"loss": "squared", "n": 30_000, "p": 100, "correlated": True}, (10.0,)),
}


def cases(folder, only):
    """Yield the cases one after the other: a table lives only while it is used."""
    for name, (build, budgets) in REAL.items() if folder else ():
        if not only or any(part in name for part in only):
            yield from (build(folder, name, epsilon) for epsilon in budgets)
    for name, (options, budgets) in SYNTHETIC.items():
        if not only or any(part in name for part in only):
            yield from (_synthetic(name, epsilon, **options) for epsilon in budgets)


def shown(options):
    return " ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in options.items())


def measure(case, seeds, cap):
    """One row of the table."""
    fresh = range(1, seeds + 1)
    untuned = case.errors(fresh)
    options, runs = oracle(case, cap)
    tuned = case.errors(fresh, **options)
    left = case.best / (case.start - case.best)
    return {
        "problem": case.name, "n": case.n, "p": case.scaled[0].shape[1], "oracle": float(np.mean(tuned)),
        "oracle_options": options, "oracle_runs": runs, "untuned": float(np.mean(untuned)),
        "untuned_deviation": float(np.std(untuned, ddof=1)), "ratio": float(np.mean(untuned) / np.mean(tuned)),
        "oracle_left": float(np.mean(tuned) * left), "untuned_left": float(np.mean(untuned) * left),
    }  # fmt: skip


def main() -> None:
    """Print the table as it grows; write JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of the real data")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--passes-cap", type=int, default=50, help="most passes that the oracle may make")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(f"{'problem':34} {'untuned':>18} {'oracle':>9} {'ratio':>6} {'left':>8}  oracle's options", flush=True)
    rows = []
    for case in cases(arguments.data, arguments.only):
        row = measure(case, arguments.seeds, arguments.passes_cap)
        rows.append(row)
        print(
            f"{row['problem']:34} {row['untuned']:9.2e} ±{row['untuned_deviation']:7.1e} {row['oracle']:9.2e} "
            f"{row['ratio']:6.2f} {row['untuned_left']:8.1e}  {shown(row['oracle_options'])} [{row['oracle_runs']} tried]",
            flush=True,
        )
    ratios = [row["ratio"] for row in rows]
    if ratios:
        print(
            f"{len(rows)} problems: largest ratio {max(ratios):.2f}, geometric mean {np.exp(np.mean(np.log(ratios))):.2f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
