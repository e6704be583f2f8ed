"""Private training without tuning against the best of an oracle search, by relative error (F(w) − F*)/F*.

    python -m tests.benchmarks.defaults [--data DIR] [--only NAME ...] [--seeds N] [--passes-cap N] [--json FILE]

The oracle looks at the data: from two starts it searches (clip, passes, block_size, step_size, iterate) coordinate by
coordinate for the least mean error of three seeds. The clip is the record cap where that is the default, else κ. The oracle's
options and the defaults are then measured with fresh seeds, the same for both. `left` is (F(w) − F*)/(F(0) − F*), 1 for a model
that learnt nothing. DIR holds the real data; without it the synthetic problems run.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.benchmarks import problems
from tests.benchmarks.oracle import search
from vfl.planning import plan

if TYPE_CHECKING:
    from collections.abc import Callable

CLIPS = tuple(2.0 ** (k / 2) for k in range(-8, 9))  # times the default cap, or the default κ
PASSES = (1, 2, 5, 10, 20, 50, 100)
SIZES = (1, 2, 4, 8, 16)
STEPS = (0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 1.5, 2.0, 4.0)
ITERATES = ("last", "tail")


def oracle(case, cap):
    """The options with the least mean error that coordinate search finds, and how many of them it tried."""
    default = plan(case.job, case.n).solver
    passes = tuple(t for t in PASSES if t <= cap)
    clip, cap = ("record_clip", default.decided.record_clip) if default.by_pass else ("clip", default.clip)
    grids = {
        clip: tuple(c * cap for c in CLIPS), "passes": passes, "block_size": SIZES, "step_size": STEPS,
        "iterate": ITERATES,
    }  # fmt: skip
    untuned = {
        clip: grids[clip][8], "passes": passes[-1], "block_size": default.block_size,
        "step_size": default.step_size, "iterate": "tail",
    }  # fmt: skip
    plain = {
        clip: grids[clip][6], "passes": min(10, passes[-1]), "block_size": 2, "step_size": 0.6, "iterate": "last",
    }  # fmt: skip

    def released(options):
        if not default.by_pass:
            return {}
        return {"label_share": default.label_share}

    found, runs = search(
        lambda seeds, **options: case.errors(seeds, **options, **released(options)), grids, (untuned, plain)
    )
    return found | released(found), runs


REAL: dict[str, tuple[Callable, tuple[float, ...]]] = {
    **{f"electricity-{v}": (problems.electricity, (1.0,)) for v in ("raw", "standardised")},
    "electricity-bounds": (problems.electricity, (0.1, 1.0)),
    **{f"california-{v}": (problems.california, (1.0,)) for v in ("raw", "standardised")},
    "california-bounds": (problems.california, (0.1, 1.0, 10.0)),
    "adult": (problems.adult, (1.0,)),
    "credit": (problems.credit, (1.0,)),
    "breast": (problems.breast, (1.0, 10.0)),
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
            yield from (problems.synthetic(name, epsilon, **options) for epsilon in budgets)


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
