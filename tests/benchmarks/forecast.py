"""Forecast against outcome: train problems of `forecast_problems` at many n and ε, and compare the measures with their ranges.

    python -m tests.benchmarks.forecast FILE [--data DIR] [--only NAME ...]

FILE keeps one line of JSON per run, so that an interrupted benchmark continues and tables are made again without runs. The
guesses of each forecast are right: the share of positive labels and the signal of the best linear model are those of all
records. Tables give problems on which the rule was chosen apart from those that were held out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit
from sklearn.metrics import log_loss, r2_score, roc_auc_score

import vfl
from tests.benchmarks import forecast_problems
from vfl.planning.forecast import NOISE, expected
from vfl.planning.public_problem import problem_of
from vfl.planning.quality import Facts, missed
from vfl.solvers.rules.record_defaults import signal_to_noise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SIZES = (30, 100, 300, 1_000, 3_000, 10_000)
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
FRESH = 20_000
"""Largest number of records that a model is measured on."""
RATIOS = (0.0, 1.0, 5.0, 20.0, 100.0, math.inf)
MEASURES = {"auc": "AUC", "loss": "log loss", "r2": "R²"}


@dataclass(frozen=True)
class Run:
    """A run: its problem, the guesses, {measure: value} on fresh records, and {measure: (low, high)} of its forecast."""

    name: str
    kept: bool
    n: int
    p: int
    epsilon: float
    best: float
    positives: float | None
    found: dict[str, float]
    expected: dict[str, tuple[float, float]]
    ratio: float
    missed: float

    def holds(self, measure: str) -> bool:
        """Return True if the measure lies in its range."""
        low, high = self.expected[measure]
        return low <= self.found[measure] <= high

    @property
    def left(self) -> float:
        """Share of what the columns can explain that the run missed; above 1 if it is worse than a constant model."""
        if "r2" in self.found:
            return 1.0 - self.found["r2"] / self.best
        normal = forecast_problems.NORMAL
        share = normal.inv_cdf(min(max(self.found["auc"], 1e-9), 1.0 - 1e-9)) / normal.inv_cdf(self.best)
        return 1.0 - math.copysign(share * share, share)


def trained(chosen: forecast_problems.Set, seed: int) -> Iterator[dict[str, Any]]:
    """Yield one row per n and ε: the measures of a model on records that it was not trained on."""
    X, y = chosen.scaled
    rng, total = np.random.default_rng(seed), len(y)
    for n in sorted({m for m in SIZES if m <= 0.75 * total} | ({int(0.7 * total)} if total < 2_000 else set())):
        for epsilon in EPSILONS:
            order = rng.permutation(total)
            rows, fresh = order[:n], order[n : n + FRESH]
            noise = vfl.SeededNoise(int(rng.integers(2**30)))
            job = replace(chosen.job, privacy=vfl.Privacy(epsilon=epsilon, noise=noise))
            result = vfl.train(job, chosen.table.take(rows), at="inprocess")
            margins, truth = X[fresh] @ np.asarray(result.w), y[fresh]
            row = {"name": chosen.name, "n": n, "eps": epsilon, "best": chosen.best, "q": None}
            if chosen.logistic:
                row |= {"q": float((y > 0).mean()), "auc": float(roc_auc_score(truth > 0, margins))}
                row["ll"] = float(log_loss(truth > 0, expit(margins), labels=[False, True]))
            else:
                row["r2"] = float(r2_score(truth, margins))
            yield row


def compared(row: dict[str, Any], job: vfl.Job, *, kept: bool) -> Run:
    """Return the run of a row with its forecast."""
    job = replace(job, privacy=vfl.Privacy(epsilon=row["eps"]))
    problem = problem_of(job, row["n"])
    keys = {"auc": "auc", "ll": "loss", "r2": "r2"}
    ranges = expected(job, row["n"], row["best"], row["q"])
    return Run(
        name=row["name"],
        kept=kept,
        n=row["n"],
        p=problem.layout.n_coordinates,
        epsilon=row["eps"],
        best=row["best"],
        positives=row["q"],
        found={keys[key]: row[key] for key in keys if key in row},
        expected={name: (r.low, r.high) for name, r in ranges.items()},
        ratio=signal_to_noise(problem),
        missed=missed(Facts.of(problem), row["best"], row["q"]),
    )


def coverage(runs: Sequence[Run], measure: str) -> tuple[int, float, float, float, float, float]:
    """Return the number of runs, the shares within, below and above their ranges, the median width, and the bias.

    Bias : median of the outcome minus the middle of its range, in widths.
    """
    chosen = [run for run in runs if measure in run.found]
    low, high = np.array([run.expected[measure] for run in chosen]).T
    value = np.array([run.found[measure] for run in chosen])
    bias = float(np.median((value - (low + high) / 2.0) / (high - low)))
    shares = (float(np.mean(test)) for test in ((low <= value) & (value <= high), value < low, value > high))
    within, below, above = shares
    return len(chosen), within, below, above, float(np.median(high - low)), bias


def _table(title: str, groups: Sequence[tuple[str, Callable[[Run], bool]]], runs: Sequence[Run]) -> None:
    print(f"\n{title}\n\n| measure | runs of | runs | within | below | above | median width | bias |")
    print("|---|---|---|---|---|---|---|---|")
    for measure, said in MEASURES.items():
        for name, test in groups:
            chosen = [run for run in runs if measure in run.found and test(run)]
            if chosen:
                n, within, below, above, width, bias = coverage(chosen, measure)
                shares = f"{within:.0%} | {below:.0%} | {above:.0%}"
                print(f"| {said} | {name} | {n} | {shares} | {width:.3f} | {bias:+.2f} |")


def _alarms(title: str, runs: Sequence[Run]) -> None:
    """Print the missed shares of runs that were told to be noise, and of the others."""
    print(
        f"\n{title}\n\n| told | runs | median missed | missed less than half | missed more than ¾ |\n|---|---|---|---|---|"
    )
    for name, chosen in (
        ("noise", [run.left for run in runs if run.missed > NOISE]),
        ("no noise", [run.left for run in runs if run.missed <= NOISE]),
    ):
        if chosen:
            left = np.array(chosen)
            numbers = f"{np.median(left):.2f} | {np.mean(left < 0.5):.0%} | {np.mean(left > 0.75):.0%}"
            print(f"| {name} | {len(left)} | {numbers} |")


def tables(runs: Sequence[Run]) -> None:
    """Print coverage, width and bias by problem, by ρ and by ε, and the alarms."""
    sides = {"chosen on": [r for r in runs if not r.kept], "held out": [r for r in runs if r.kept]}
    for name, own in sides.items():
        if not own:
            continue
        _table(f"All, {name}", [("all", lambda _: True)], own)
        bands = [
            (f"ρ {low:g} to {high:g}", lambda r, low=low, high=high: low <= r.ratio < high)
            for low, high in itertools.pairwise(RATIOS)
        ]
        _table(f"By ρ = μn/p, {name}", bands, own)
        _table(f"By ε, {name}", [(f"ε = {e:g}", lambda r, e=e: r.epsilon == e) for e in EPSILONS], own)
        named = [
            (problem, lambda r, problem=problem: r.name == problem) for problem in dict.fromkeys(r.name for r in own)
        ]
        _table(f"By problem, {name}", named, own)
        _alarms(f"Alarms, {name}", own)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what the file lacks, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="rows, one line of JSON each; new runs are appended")
    parser.add_argument("--data", type=Path, help="folder of the real data")
    parser.add_argument("--only", nargs="*", default=[], help="names of problems")
    parser.add_argument("--tables", action="store_true", help="train nothing; print tables of the rows that are there")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore", vfl.PrivacyWarning)
    lines = given.file.read_text(encoding="utf-8").splitlines() if given.file.exists() else []
    rows = [json.loads(line) for line in lines]
    done = {row["name"] for row in rows}
    known: dict[str, tuple[vfl.Job, bool]] = {}
    for name in given.only or forecast_problems.names():
        if given.tables and name not in done:
            continue
        chosen = forecast_problems.made(name, given.data)
        if chosen is None:
            print(f"{name}: its data are not there", file=sys.stderr)
            continue
        if not chosen.logistic:  # no other loss has a forecast
            continue
        known[name] = chosen.job, chosen.kept
        if name not in done:
            new = list(trained(chosen, seed=3))
            with given.file.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in new)
            rows += new
            print(f"{name}: {len(new)} runs", file=sys.stderr)
    chosen_rows = [(row, *known[row["name"]]) for row in rows if row["name"] in known]
    tables([compared(row, job, kept=kept) for row, job, kept in chosen_rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
