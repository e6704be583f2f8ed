"""A tune of four candidates against the job as it is, at the same total ε = 1: the exact held-out loss of both.

    python -m tests.benchmarks.tuning [--data DIR] [--only NAME ...] [--repeats N] [--json FILE]

The candidates are the job as it is, a penalty 30 times as strong, and 5 and 25 passes. Both sides hold out the same fifth
of the records, and each repetition draws fresh noise. `default` and `tuned` are means of the loss on the held-out records;
± is the standard error over the repetitions. DIR holds the real data; without it the synthetic problems run.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

import vfl
from tests.benchmarks import problems
from vfl.base.losses import loss_of

SYNTHETIC = {
    "logistic 5,000 × 10": lambda name: problems.synthetic(name, 1.0, loss="logistic", n=5_000, p=10),
    "logistic 30,000 × 10": lambda name: problems.synthetic(name, 1.0, loss="logistic", n=30_000, p=10),
    "logistic 10,000 × 20, correlated": lambda name: problems.synthetic(
        name, 1.0, loss="logistic", n=10_000, p=20, correlated=True
    ),
    "squared 10,000 × 10": lambda name: problems.synthetic(name, 1.0, loss="squared", n=10_000, p=10),
    "sparse squared 5,000 × 100": lambda name: problems.synthetic(name, 1.0, loss="squared", n=5_000, p=100, l1=True),
}
REAL = {
    "adult": lambda folder: problems.adult(folder, "adult", 1.0),
    "default_credit": lambda folder: problems.credit(folder, "default_credit", 1.0),
    "breast": lambda folder: problems.breast(folder, "breast", 1.0),
    "california": lambda folder: problems.california(folder, "california-bounds", 1.0),
    "electricity": lambda folder: problems.electricity(folder, "electricity-bounds", 1.0),
}


def candidates(job):
    """The four candidates of every problem."""
    return [
        {},
        {"penalty.strength": 30.0 * job.penalty.strength},
        {"solver.passes": 5},
        {"solver.passes": 25},
    ]


def held_out_loss(case, job, w):
    """The exact mean loss of w on the held-out records."""
    X, y = case.scaled
    kept = job.split.held_out(case.n)
    return float(loss_of(job.loss).value(X[kept] @ w, y[kept]).mean())


def measured(case, repeats):
    """Mean and standard error of the loss of both, and how often each candidate won."""
    privacy = vfl.Privacy(epsilon=1.0, delta=1.0 / case.n**2)
    job = replace(case.job, evaluation=vfl.Evaluation(holdout=0.2), privacy=privacy)
    losses, won = {"default": [], "tuned": []}, [0] * 4
    for _ in range(repeats):
        found = vfl.train(job, case.table, at="inprocess", watch=lambda event: None)
        losses["default"].append(held_out_loss(case, job, found.w))
        tuned = vfl.tune(job, candidates(job), case.table, at="inprocess", watch=lambda event: None)
        losses["tuned"].append(held_out_loss(case, tuned.result.job, tuned.result.w))
        won[tuned.candidate - 1] += 1
    constant = held_out_loss(case, job, np.zeros_like(found.w))
    return {
        "n": case.n,
        "p": len(found.w),
        "constant": constant,
        **{side: float(np.mean(values)) for side, values in losses.items()},
        **{f"{side}_error": float(np.std(values, ddof=1) / math.sqrt(len(values))) for side, values in losses.items()},
        "won": won,
        "repeats": repeats,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of the real data")
    parser.add_argument("--only", nargs="*", help="names of problems")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the results there")
    options = parser.parse_args()
    warnings.simplefilter("ignore", vfl.PrivacyWarning)
    cases = {name: (lambda make=make, name=name: make(name)) for name, make in SYNTHETIC.items()}
    if options.data is not None:
        cases |= {name: (lambda make=make: make(options.data)) for name, make in REAL.items()}
    results = {}
    print("| problem | n × p | loss at 0 | default | tuned | wins of the candidates |")
    print("|---|---|---|---|---|---|")
    for name, make in cases.items():
        if options.only and name not in options.only:
            continue
        row = results[name] = measured(make(), options.repeats)
        print(
            f"| {name} | {row['n']:,} × {row['p']} | {row['constant']:.4f} | "
            f"{row['default']:.4f} ± {row['default_error']:.4f} | {row['tuned']:.4f} ± {row['tuned_error']:.4f} | "
            f"{', '.join(map(str, row['won']))} |",
            flush=True,
        )
        if options.json is not None:
            options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
