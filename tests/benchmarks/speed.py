"""Kernels against the memory's rate, passes against a bare loop and the papers' times, visits against bare Ray.

    python -m tests.benchmarks.speed [--data DIR] [--only NAME ...] [--quick] [--runs N] [--output DIR]

Ratios come from one run in which the contenders take turns; on a loaded machine they wander, and seconds say nothing.
The papers' times are of their authors' laptops, ours of this machine: an order of magnitude, no race.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

import vfl
from tests.benchmarks import kernels, large, problems, rounds
from tests.benchmarks.command import alone
from tests.benchmarks.results import Result, Settings, Task
from tests.benchmarks.timing import follow
from vfl.launch.train import stream

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = {
    "gradient_squared": 1.0, "gradient_logistic": 1 / 0.7, "in-process pass": 1.15, "a visit": 1.2, "50 passes": 1.7,
}  # fmt: skip
"""Times np.sum over the block, a bare pass, or bare round trips: what the project set out for."""
PAPER = {"Electricity": (0.246, 1.86), "California": (0.065, 0.65)}
"""Seconds of 50 passes of the DP-CD paper's C++ (Table 3): DP-CD, DP-SGD."""


def tasks(settings: Settings) -> Iterator[Task]:
    """Yield the kernels, passes, the papers' runs, memory traffic and Ray."""
    shapes = ((100_000, 16),) if settings.quick else ((1_000_000, 16), (100_000, 100))
    for n, s in shapes:
        yield Task(f"kernels, {n:,} × {s}", functools.partial(block, n, s, settings))
    yield Task("pass, bare loop", functools.partial(passes, settings))
    for name, build in (("Electricity", problems.electricity), ("California", problems.california)):
        if settings.data is None:
            yield Task(f"papers, {name}", absent="its data are not at hand (--data)")
        else:
            yield Task(f"papers, {name}", functools.partial(papers, name, build, settings))
    if not settings.quick:
        yield Task("two reads", two_reads)
    yield Task("Ray", functools.partial(on_ray, settings))


def block(n: int, s: int, settings: Settings) -> Iterator[Result]:
    """Yield the kernels' times in times of np.sum over the same block."""
    with contextlib.redirect_stdout(sys.stderr):
        times = kernels.large(n, s, np.float64, repeats=5 if settings.quick else 15)
    gigabytes = n * s * 8 / times["sum"] / 1e9
    for name, seconds in times.items():
        if name == "sum":
            continue
        limit = LIMITS.get(name)
        yield Result(
            part="speed", case=f"block of {n:,} × {s}", arm=name, measure="best time / np.sum's", unit="×",
            values=(seconds / times["sum"],), against=limit, source="aim" if limit else "",
            beside={"GB/s of np.sum": gigabytes}, less=True if limit else None,
        )  # fmt: skip


def passes(settings: Settings) -> Iterator[Result]:
    """Yield an in-process pass against a bare numba loop."""
    found = rounds.in_process(rounds.table(settings.data), len(settings.seeds(whole=9)))
    yield _ratio("Electricity's shape, in process", "in-process pass / bare numba pass", found)


def papers(name: str, build, settings: Settings) -> Iterator[Result]:
    """Yield what 50 passes take here, and what the paper's C++ took there."""
    key = f"{name.lower()}-stored"
    case, seeds = build(settings.data, key, 1.0), settings.seeds(whole=5)
    for solver, paper in zip((vfl.solvers.CD(passes=50), vfl.solvers.SGD(passes=50)), PAPER[name], strict=True):
        job = replace(case.job, solver=solver)
        seconds = [follow(stream(job, case.table, at="inprocess")).processor for _ in (0, *seeds)]
        yield Result(
            part="speed", case=f"50 passes, {name} ({case.n:,} × {case.scaled[0].shape[1]})", arm=f"vfl {solver.name}",
            measure="processor seconds of the rounds", unit="s", values=seconds[1:], against=paper,
            source="paper's C++, its laptop",
        )  # fmt: skip


def two_reads() -> Iterator[Result]:
    """Yield a pass over a million records against two reads of its columns, and the memory for it."""
    taken, beyond = large.measured(1_000_000, 100, 10)
    case = "1,000,000 × 100, blocks of 10, one thread"
    yield Result(
        part="speed", case=case, arm="party's pass / two np.sum", measure="ratio", unit="×", values=(taken,), against=1.5,
        source="aim",
    )  # fmt: skip
    yield Result(
        part="speed", case=case, arm="party's memory", measure="n-vectors beyond its columns", values=(beyond,),
        against=5.0, source="aim",
    )  # fmt: skip


def on_ray(settings: Settings) -> Iterator[Result]:
    """Yield a visit and 50 passes against bare round trips, and the seconds to the first round."""
    for name, values in rounds.on_ray(rounds.table(settings.data), len(settings.seeds(whole=5, quick=2))).items():
        if "memory" in name:
            yield Result(part="speed", case="Ray", arm=name, measure="megabytes", values=values, less=None)
        elif "seconds" in name:
            limit = float(re.search(r"under ([\d.]+)", name)[1])
            yield Result(
                part="speed", case="Ray", arm=name.split(" (")[0], measure="seconds", unit="s", values=values, against=limit,
                source="aim",
            )  # fmt: skip
        else:
            yield _ratio("Ray", name.split(" (")[0], values)


def _ratio(case: str, arm: str, values: list[float]) -> Result:
    limit = next(aim for name, aim in LIMITS.items() if arm.startswith(name))
    return Result(
        part="speed", case=case, arm=arm, measure="ratio", unit="×", values=values, against=limit, source="aim"
    )


if __name__ == "__main__":
    sys.exit(alone("speed"))
