"""Untuned errors of the solvers that a plan may recommend, kept in recommended.json for a test of its choice.

    python -m tests.benchmarks.recommended [--data DIR] [--only NAME ...] [--seeds N]

The rows are those of `methods` and of the papers with sparse signals. A row holds the job, which is public, and the mean error
of each solver. The test in tests/solvers/test_recommend.py plans each job anew, so that a changed rule is held against what was
measured. Batch solvers are left out: a plan recommends them only for losses that the others refuse.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import vfl
from tests.benchmarks import methods, problems, utility
from tests.benchmarks.results import Settings
from vfl.errors import PrivacyError, SpecificationError
from vfl.planning.public_problem import problem_of
from vfl.solvers import SOLVERS
from vfl.solvers.rules.recommend import recommendation

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD = Path(__file__).with_name("recommended.json")
LARGE = 10_000
"""Records from which greedy descent takes minutes a run; a plan recommends it for few records per column alone."""
NAMED = ("SkGD", "GCD", "NoisyGram")
SPARSE = ("Sparse LASSO, ε=10", "Square, L1", "log1, L2", "log2, L2", "California standardised, L1")


def cases(folder: Path | None) -> dict[str, tuple[Callable[[], problems.Case], tuple[float, ...]]]:
    """Return {name: how to build it, its values of ε}; rows whose data are missing are left out."""
    found = {
        name: (build, methods.EPSILONS) for name, build in methods.cases_of(Settings(data=folder)).items() if build
    }
    if folder is not None:
        made = functools.partial(problems.electricity, folder, "electricity-bounds", 1.0)
        found["Electricity"] = made, methods.EPSILONS
    rows = {row.name: row for row in utility.ROWS if row.name in SPARSE and (folder is not None or not row.real)}
    return found | {name: (functools.partial(row.build, folder), ()) for name, row in rows.items()}


def measured(case: problems.Case, seeds: range) -> dict[str, float]:
    """Return the mean error of each solver that can run the case."""
    errors = {}
    for name in NAMED:
        if name == "GCD" and case.n > LARGE:
            continue
        try:
            errors[name] = float(np.mean(case.errors(seeds, SOLVERS[name])))
        except (SpecificationError, PrivacyError):
            continue
    return errors


def main() -> int:
    """Measure the rows that are asked for, and replace them in the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of the real data")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    for name, (build, epsilons) in cases(given.data).items():
        if given.only and not any(word in name for word in given.only):
            continue
        built = build()
        for epsilon in epsilons or (built.job.privacy.epsilon,):
            case = replace(built, job=replace(built.job, privacy=vfl.Privacy(epsilon=epsilon)))
            errors = measured(case, range(1, given.seeds + 1))
            about = {"job": case.job.to_toml(), "n": case.n, "seeds": given.seeds, "errors": errors}
            record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
            record[f"{name}, ε={epsilon:g}" if epsilons else name] = about
            RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(name, epsilon, recommendation(problem_of(case.job, case.n)).solver, errors, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
