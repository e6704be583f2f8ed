"""Accuracy of training on shares against trust='trusted': `python -m tests.benchmarks.secure_accuracy --data DIR`.

Each line is a data set and a solver: the median of (F − F*)/F* over seeds, at the same ε, the same charges and the same seeds.
F is the objective at the model, F* its least value. DIR holds the files of tests.benchmarks.problems.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vfl
from tests.benchmarks import problems

if TYPE_CHECKING:
    from collections.abc import Sequence

CASES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "adult": (problems.adult, "adult", {"SkGD, blocks of 10": vfl.SkGD(block_size=10), "GD": vfl.solvers.GD()}),
    "default_credit": (problems.credit, "credit", {"SkGD": vfl.SkGD(), "GD": vfl.solvers.GD()}),
    "electricity": (problems.electricity, "electricity-bounds", {"SkGD": vfl.SkGD(), "GD": vfl.solvers.GD()}),
    "california_housing": (
        problems.california,
        "california-bounds",
        {"NoisyGram": 1.0, "NoisyGram, clip ×2": 2.0, "NoisyGram, clip ×3": 3.0},
    ),
}


def errors(case: problems.Case, solver: Any, trust: str, seeds: Sequence[int]) -> list[float]:
    """Return (F − F*)/F* of each seed."""
    found = []
    for seed in seeds:
        privacy = replace(case.job.privacy, noise=vfl.SeededNoise(seed))
        job = replace(case.job, solver=solver, privacy=privacy, trust=trust)
        found.append(case.error_of(vfl.train(job, case.table, at="inprocess").w))
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=CASES, nargs="*", default=list(CASES))
    given = parser.parse_args()
    print("| data | solver | trusted | secure | seconds of a run: trusted, secure |\n|---|---|---|---|---|")
    for name in given.only:
        build, variant, solvers = CASES[name]
        case = build(given.data, variant, given.epsilon)
        for label, chosen in solvers.items():
            solver = chosen
            if isinstance(chosen, float):  # a factor of the default clip
                planned = vfl.plan(replace(case.job, solver=vfl.solvers.NoisyGram()), case.n).solver
                solver = vfl.solvers.NoisyGram(clip=chosen * planned.clip, label_scale=planned.label_scale)
            said, took = [], []
            for trust in ("trusted", "secure"):
                start = time.perf_counter()
                found = errors(case, solver, trust, range(given.seeds))
                said.append(f"{statistics.median(found):.2e}")
                took.append(f"{(time.perf_counter() - start) / given.seeds:.1f}")
            print(f"| {name} | {label} | {' | '.join(said)} | {', '.join(took)} |", flush=True)


if __name__ == "__main__":
    main()
