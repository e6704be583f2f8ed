"""The papers' utility tables beside this project, by relative error (F(w) − F*)/F*, in one command.

    python -m tests.benchmarks.utility [--data DIR] [--rows PART ...] [--quick] [--seeds N] [--cores N]
                                       [--json FILE] [--markdown FILE]

Every row has two runs of ours, both (ε, δ = 1/n²) under strict replace-one with Δ = 2κ and exact accounting:

- tuned: the paper's solver at the paper's number of passes, options from an oracle grid. The oracle looks at the data,
  uncharged, as the papers' tuning does. `exact M` takes M_j from the data, uncharged and flagged, as the papers' main
  tables do; `private M` buys it with 10 % of μ², in those 10 % of the tuned run too.
- untuned: what `vfl.train` does when nothing is said but the solver's name, smoothness bought out of the same budget.

Settings are compared on seeds of their own and measured with fresh ones. `start` is F(0)/F* − 1, the error of a model
that learnt nothing: what the synthetic problems are pinned by. `ahead` is the paper's error over ours. DIR holds the
real data; without it, the rows that need them are named and left out.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import json
import multiprocessing
import os
import platform
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import vfl
from tests.benchmarks import problems
from tests.benchmarks.oracle import SEEDS, search
from vfl.planning import plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CLIPS = tuple(2.0 ** (k / 3) for k in range(-9, 13))
"""Times a typical scaled gradient: half the largest derivative, or a third of the declared label range, over √L."""
STEPS = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
ORDERS = ("shuffled", "cyclic")
ITERATES = ("last", "tail")
ABSENT = ("dorothea", "madelon")
"""Rows of the papers whose data are not at hand."""


@dataclass(frozen=True)
class Row:
    """One figure of a paper.

    build : the problem, given the folder of the data or None. paper : its error. source : where that stands.
    solver : as in the paper; `grids` and `starts` are the oracle's, with clips in typical gradients; `fixed` is not searched.
    untuned : solver that the default figure is of.
    """

    name: str
    build: Callable[[Path | None], problems.Case]
    paper: float | None
    source: str
    solver: type
    grids: Mapping[str, tuple]
    starts: tuple[Mapping[str, Any], ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    smoothness: str = "data"
    real: bool = True
    untuned: type = vfl.SkGD
    search_seeds: tuple[int, ...] = SEEDS


def descent(name, build, paper, source, passes, **options):
    """A row of coordinate descent at a number of passes."""
    grids = {"clip": CLIPS, "step_size": STEPS, "sampling": ORDERS, "iterate": ITERATES}
    start = {"clip": 4.0, "step_size": 1.0, "sampling": "cyclic", "iterate": "last"}
    seeds = {"search_seeds": tuple(range(101, 109))} | options
    return Row(name, build, paper, source, vfl.CD, grids, (start,), {"passes": passes}, **seeds)


def greedy(name, build, paper, source, rounds, start, **options):
    """A row of greedy coordinate descent; the papers tune its number of rounds too."""
    grids = {"clip": CLIPS, "rounds": rounds, "step_size": STEPS, "selection_share": (0.3, 0.5, 0.7, 0.8, 0.9)}
    return Row(name, build, paper, source, vfl.GCD, grids, (start,), untuned=vfl.GCD, **options)


def electricity(folder, variant):
    return problems.electricity(folder, f"electricity-{variant}", 1.0)


def california(folder, variant):
    return problems.california(folder, f"california-{variant}", 1.0)


def sparse(folder, epsilon):
    return problems.sparse("sparse", epsilon, scale=109.55117306574385, noise=10.0)  # pinned: start = 0.7551


def quasi_sparse(folder, spread, noise):
    return problems.quasi_sparse("log", 1.0, spread, noise)


def small(folder):
    return problems.synthetic("squared-1e3x8", 10.0, loss="squared", n=1_000, p=8)


CD_TABLE, CD_APPENDIX, GCD_TABLE = "DP-CD, main table", "DP-CD, appendix F", "thesis, table D.4"
part = functools.partial
ROWS = (
    descent("Electricity raw", part(electricity, variant="stored"), 2.0e-3, CD_TABLE, 50),
    descent("Electricity standardised", part(electricity, variant="standardised"), 1.3e-3, CD_TABLE, 10),
    descent("California raw", part(california, variant="stored"), 1.24e-2, CD_TABLE, 50),
    descent("California standardised", part(california, variant="standardised"), 7e-4, CD_TABLE, 2),
    descent("Sparse LASSO, ε=10", part(sparse, epsilon=10.0), 0.250, CD_TABLE, 2, real=False, search_seeds=(101, 102)),
    descent(
        "Electricity raw, private M", part(electricity, variant="stored"), 2.5e-3, CD_APPENDIX, 50, smoothness="private"
    ),
    descent(
        "California raw, private M", part(california, variant="stored"), 1.75e-2, CD_APPENDIX, 50, smoothness="private"
    ),
    greedy(
        "California standardised, L1", part(california, variant="standardised"), 5.6e-4, GCD_TABLE,
        (2, 3, 4, 6, 8, 12, 16, 24), {"clip": 4.0, "rounds": 8, "step_size": 1.0, "selection_share": 0.5},
        search_seeds=tuple(range(101, 111)),
    ),
    greedy(
        "Square, L1", part(sparse, epsilon=1.0), 0.35, GCD_TABLE, (1, 2, 3, 4, 6),
        {"clip": 0.5, "rounds": 2, "step_size": 1.0, "selection_share": 0.9}, real=False,
        search_seeds=tuple(range(101, 107)),
    ),
    greedy(
        "log1, L2", part(quasi_sparse, spread=1.0, noise=0.94), 0.521, "DP-GCD, figure", (2, 5, 10, 20, 30, 50, 75),
        {"clip": 1.0, "rounds": 20, "step_size": 1.0, "selection_share": 0.5}, real=False,
        search_seeds=tuple(range(101, 107)),
    ),
    greedy(
        "log2, L2", part(quasi_sparse, spread=2.0, noise=1.0), 0.216, "DP-GCD, figure", (2, 5, 10, 20, 30, 50, 75),
        {"clip": 1.0, "rounds": 20, "step_size": 1.0, "selection_share": 0.5}, real=False,
        search_seeds=tuple(range(101, 107)),
    ),
)  # fmt: skip
QUICK = descent(
    "quick: squared, 1,000 × 8, ε=10", small, None, "in no paper", 10, real=False,
    search_seeds=(101, 102),
)  # fmt: skip


def unit(case):
    """A typical scaled gradient, in which the grid of clips counts: public, as in vfl.solvers.defaults."""
    problem = plan(case.job, case.n).problem
    loss = problem.loss
    typical = loss.slope / 2 if np.isfinite(loss.slope) else problem.label_range / 3
    return typical / np.sqrt(loss.curvature)


def measure(row, folder, n_seeds):
    """One row of the table: tuned and untuned errors on the same fresh seeds."""
    begun, case, fresh = time.perf_counter(), row.build(folder), range(1, n_seeds + 1)
    typical = unit(case)

    def runs(seeds, *, clip, **options):
        given = {**row.fixed, **options, "clip": clip * typical}
        return [case.run(seed, row.solver, row.smoothness, **given) for seed in seeds]

    def errors(seeds, **options):
        return [case.error_of(result.w) for result in runs(seeds, **options)]

    options, tried = search(errors, row.grids, row.starts, row.search_seeds)
    tuned, untuned = runs(fresh, **options), [case.run(seed, row.untuned) for seed in fresh]
    measured = {
        "problem": row.name, "paper": row.paper, "source": row.source, "n": case.n, "p": case.scaled[0].shape[1],
        "epsilon": case.job.privacy.epsilon, "start": case.start / case.best - 1.0, "smoothness": row.smoothness,
        "solver": row.solver.name, "options": {**row.fixed, **options, "clip": options["clip"] * typical},
        "tuned": summary([case.error_of(result.w) for result in tuned], row.paper), "tried": tried,
        "search_seeds": list(row.search_seeds), "seeds": list(fresh), "untuned_solver": row.untuned.name,
        "untuned": summary([case.error_of(result.w) for result in untuned], row.paper),
    }  # fmt: skip
    if isinstance(case.job.penalty, vfl.L1):
        for kind, results in (("tuned", tuned), ("untuned", untuned)):
            measured[kind]["support"] = float(np.mean([case.support_score(result.w) for result in results]))
    return measured | {"seconds": time.perf_counter() - begun}


def summary(errors, paper):
    """Mean, spread and what the paper's figure is of the mean."""
    return {
        "mean": float(np.mean(errors)), "deviation": float(np.std(errors, ddof=1)), "median": float(np.median(errors)),
        "ahead": None if paper is None else paper / float(np.mean(errors)),
    }  # fmt: skip


def machine():
    """What the figures were measured on."""
    return {
        "machine": platform.machine(), "processors": os.cpu_count(), "python": platform.python_version(),
        "versions": {name: version(name) for name in ("vfl", "numpy", "scipy", "numba")},
        "tuned": "oracle grid, coordinate search, uncharged", "untuned": "defaults",
    }  # fmt: skip


def markdown(rows, about, left_out):
    """The table, and what it was measured on."""
    lines = [
        "| problem | start | paper | ours, tuned | ahead | ours, untuned | ahead | support F1 | tuned options |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        tuned, untuned = row["tuned"], row["untuned"]
        support = f"{tuned['support']:.2f} / {untuned['support']:.2f}" if "support" in tuned else ""
        lines.append(
            f"| {row['problem']} | {row['start']:.4f} | {figure(row['paper'])} ({row['source']}) "
            f"| {row['solver']} {tuned['mean']:.2e} ± {tuned['deviation']:.1e} | {verdict(tuned['ahead'])} "
            f"| {row['untuned_solver']} {untuned['mean']:.2e} ± {untuned['deviation']:.1e} | {verdict(untuned['ahead'])} "
            f"| {support} | {shown(row['options'])}, {'exact' if row['smoothness'] == 'data' else 'private'} M |"
        )
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    seeds = f"{len(rows[0]['seeds'])} fresh seeds a row" if rows else "no rows"
    how = f"Tuned: {about['tuned']}. Untuned: {about['untuned']}. {seeds}, mean ± standard deviation. δ = 1/n², replace-one."
    lines += ["", f"{how} {about['machine']}, {about['processors']} processors, Python {about['python']}, {versions}."]
    if left_out:
        lines.append(f"Left out, their data are not at hand: {', '.join(left_out)}.")
    return "\n".join(lines)


def figure(error):
    return "–" if error is None else f"{error:.3g}"


def verdict(ahead):
    if ahead is None:
        return "–"
    return f"{ahead:.2f} ×" if ahead >= 1.0 else f"**behind**, {ahead:.2g} ×"


def shown(options):
    return ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in options.items())


def main(arguments=None) -> None:
    """Print each row as it is done, then the table; write JSON and Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of the real data")
    parser.add_argument("--rows", nargs="*", default=[], help="parts of names")
    parser.add_argument("--quick", action="store_true", help="one small synthetic row")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--cores", type=int, default=2, help="rows that are measured at a time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args(arguments)
    wanted = [QUICK] if given.quick else [r for r in ROWS if not given.rows or any(p in r.name for p in given.rows)]
    can = [row for row in wanted if given.data or not row.real]
    left_out = [row.name for row in wanted if row not in can] + ([] if given.quick or given.rows else list(ABSENT))
    rows = []
    for row in measured(can, given.data, given.seeds, 1 if given.quick else given.cores):
        rows.append(row)
        said = f"{row['problem']}: tuned {row['tuned']['mean']:.2e}, untuned {row['untuned']['mean']:.2e}"
        print(
            f"{said}, paper {figure(row['paper'])} [{row['tried']} tried, {row['seconds']:.0f} s]",
            file=sys.stderr,
            flush=True,
        )
    about = machine()
    table = markdown(rows, about, left_out)
    print(table)
    if given.json:
        given.json.write_text(json.dumps({**about, "left_out": left_out, "rows": rows}, indent=2), encoding="utf-8")
    if given.markdown:
        given.markdown.write_text(table + "\n", encoding="utf-8")


def measured(rows, folder, n_seeds, cores):
    """Yield the rows' measurements in order, some at a time in processes of their own."""
    if cores == 1:
        yield from (measure(row, folder, n_seeds) for row in rows)
        return
    with concurrent.futures.ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(measure, rows, [folder] * len(rows), [n_seeds] * len(rows))


if __name__ == "__main__":
    sys.exit(main())
