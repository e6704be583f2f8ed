"""SCD against SGD on adult: ridge and SVM at ε = 1, each with the settings that a search on the data finds best.

    python -m tests.benchmarks.dual --data DIR [--only NAME ...] [--seeds N] [--epsilon E] [--json FILE]

F has no intercept (one-hot columns hold one), so that both solve the same problem. The search goes coordinate by
coordinate over clip, step or overlap, passes, batch size, sampling and iterate, by the mean `left` of two seeds; both
solvers are then measured with fresh seeds. `left` is (F(w) − F*)/(F(0) − F*), 1 for a model that learnt nothing; the
last columns say how often SCD's run ended below SGD's of the same seed. Privacy is that of `plan`, and the search is
not counted: it serves a comparison only.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

import vfl
from coordinator.coordinator import Coordinator
from parties.loading import load
from tests.benchmarks.problems import adult
from vfl.errors import VflError
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.planning import plan, problem_of

PROBLEMS = {
    f"{name} λ={strength:g}": (loss, strength)
    for strength in (1e-2, 1e-3)
    for name, loss in (("ridge", "squared"), ("svm", "hinge"))
}
FACTORS = tuple(2.0**k for k in range(-7, 8))
"""Times the default clip, step, or overlap."""
PASSES = (1, 2, 5, 10, 20)
SHARES = (0.05, 0.1, 0.25, 0.5, 1.0)
"""Of the records, in a batch."""
AXES = {
    "SGD": {"step_size": FACTORS, "decay": ("constant", "root")},
    "SCD": {"overlap": FACTORS},
}
COMMON = {
    "clip": FACTORS,
    "passes": PASSES,
    "batch_size": SHARES,
    "sampling": ("poisson", "disjoint"),
    "iterate": ("last", "tail"),
}
STARTS = {"passes": 5, "batch_size": 0.25, "sampling": "poisson", "iterate": "tail", "decay": "constant"}


@dataclass(frozen=True, eq=False)
class Comparison:
    """One problem, loaded once."""

    job: vfl.Job
    actors: dict
    n: int

    @functools.cached_property
    def data(self):
        """X (n, p) as trained on, and y."""
        columns = problem_of(self.job, self.n).layout.columns
        X = np.hstack([actor.rows.columns.array for q, actor in self.actors.items() if columns[q]])
        return X, self.actors[self.job.partition.label_party].labels()

    def value(self, w):
        """F(w)."""
        X, y = self.data
        return problem_of(self.job, self.n).value(w, X @ w, y)

    @functools.cached_property
    def range(self):
        """F* and F(0) − F*: F* in closed form, or by liblinear's dual solver."""
        X, y = self.data
        λ = self.job.penalty.strength
        if self.job.loss == "squared":
            w = np.linalg.solve(X.T @ X / self.n + λ * np.eye(X.shape[1]), X.T @ y / self.n)
        else:
            from sklearn.svm import LinearSVC

            machine = LinearSVC(C=1 / (λ * self.n), loss="hinge", fit_intercept=False, tol=1e-6, max_iter=20_000)
            w = np.ravel(machine.fit(X, y).coef_)
        best = self.value(w)
        return best, self.value(np.zeros(X.shape[1])) - best

    def left(self, solver, seed):
        """(F(w) − F*)/(F(0) − F*) of one run."""
        privacy = replace(self.job.privacy, noise=vfl.SeededNoise(seed))
        job = replace(self.job, privacy=privacy, solver=replace(solver, seed=seed))
        *_, outcome = Coordinator(InProcessTransport(self.actors)).stream(job)
        assert outcome.statement.epsilon <= privacy.epsilon
        best, width = self.range
        found = (self.value(outcome.w) - best) / width
        return found if np.isfinite(found) else np.inf

    def search(self, name):
        """The solver with the least mean `left` of two seeds, and how many were tried."""
        kind = {"SGD": vfl.solvers.SGD, "SCD": vfl.solvers.SCD}[name]
        axes = COMMON | AXES[name]
        default = plan(replace(self.job, solver=kind()), self.n).solver
        scales = {axis: getattr(default, axis) for axis in ("clip", "step_size", "overlap") if axis in axes}

        def build(at):
            chosen = {axis: values[i] for (axis, values), i in zip(axes.items(), at, strict=True)}
            chosen |= {axis: scale * chosen[axis] for axis, scale in scales.items()}
            return kind(**(chosen | {"batch_size": max(1, round(chosen["batch_size"] * self.n))}))

        @functools.cache
        def mean(at):
            try:
                return float(np.mean([self.left(build(at), seed) for seed in (101, 102)]))
            except VflError:
                return np.inf

        here = tuple(values.index(STARTS.get(axis, 1.0)) for axis, values in axes.items())
        moved = True
        while moved:
            moved = False
            for axis, values in enumerate(axes.values()):
                for shift in (1, -1):
                    there = (*here[:axis], here[axis] + shift, *here[axis + 1 :])
                    while 0 <= there[axis] < len(values) and mean(there) < mean(here):
                        here, moved = there, True
                        there = (*here[:axis], here[axis] + shift, *here[axis + 1 :])
        return build(here), mean.cache_info().currsize


def comparison(folder, loss, strength, epsilon):
    """Adult, with the label as ±1 for ridge."""
    case = adult(folder, "adult", epsilon)
    table, bounds = case.table, dict(case.job.bounds)
    if loss == "squared":
        sign = 2.0 * np.asarray(table["target"].to_numpy(), float) - 1.0
        table = table.set_column(table.column_names.index("target"), "target", pa.array(sign))
        bounds["target"] = (-1.0, 1.0)
    job = replace(case.job, loss=loss, penalty=vfl.L2(strength), intercept=False, bounds=bounds)
    sources = sources_of(job, table).items()
    return Comparison(job, {q: load(job.for_party(q), source) for q, source in sources}, table.num_rows)


def main() -> None:
    """Print the table as it grows; write JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for name, (loss, strength) in PROBLEMS.items():
        if arguments.only and not any(part in name for part in arguments.only):
            continue
        case = comparison(arguments.data, loss, strength, arguments.epsilon)
        found = {}
        for solver in AXES:
            best, tried = case.search(solver)
            found[solver] = np.array([case.left(best, seed) for seed in range(1, arguments.seeds + 1)])
            rows.append({"problem": name, "solver": solver, "left": found[solver].tolist(), "options": str(best)})
            mean, spread = found[solver].mean(), found[solver].std(ddof=1)
            print(f"{name:14} {solver} left {mean:9.2e} ± {spread:7.1e}  {best} [{tried} tried]", flush=True)
        wins, ratio = int((found["SCD"] < found["SGD"]).sum()), found["SGD"].mean() / found["SCD"].mean()
        print(f"{name:14} SCD below SGD for {wins} of {arguments.seeds} seeds, {ratio:.2f} times less", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
