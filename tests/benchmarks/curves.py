"""SkGD's own curves: error against passes by the order of blocks, without noise and with, and against ε by the iterate.

    python -m tests.benchmarks.curves [--data DIR] [--only NAME ...] [--quick] [--runs N] [--output DIR]

The first has no noise, so that only the order is seen: an independent draw leaves coordinates out, rounds of several
parties take shorter steps. The second has that of ε = 1: few passes leave the optimum unreached, many pay for noise. Real
data by the bounds that anybody would declare, else synthetic; all else stays with the rules.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import vfl
from tests.benchmarks import problems
from tests.benchmarks.command import alone
from tests.benchmarks.results import Result, Settings, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PASSES = (1, 2, 3, 5, 10, 20, 30, 50, 100)
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
FLOOR = 1e-9
"""Errors below this are drawn there: F* is not known better."""
ORDERS: dict[str, dict[str, Any]] = {
    "shuffled": {},
    "cyclic": {"sampling": "cyclic"},
    "uniform": {"sampling": "uniform"},
    "importance": {"sampling": "importance"},
    "shuffled, all parties at once": {"parallel": 9},
    "uniform, all parties at once": {"sampling": "uniform", "parallel": 9},
    "all blocks at once": {"sampling": "full"},
}
ITERATES = ("last", "average", "tail")


def tasks(settings: Settings) -> Iterator[Task]:
    """Yield three curves for each problem."""
    for name, build in problems_of(settings).items():
        case = functools.cache(build)
        for title, run in (("order", by_order), ("iterate", by_iterate), ("ε", by_epsilon)):
            yield Task(f"{name} by {title}", functools.partial(run, name, case, settings))


def problems_of(settings: Settings) -> dict[str, Callable[[], problems.Case]]:
    """Return {name: how to build it}: two of real data where they are at hand, else two synthetic ones."""
    if settings.data is not None and not settings.quick:
        return {
            "Electricity": functools.partial(problems.electricity, settings.data, "electricity-bounds", 1.0),
            "California": functools.partial(problems.california, settings.data, "california-bounds", 1.0),
        }
    n = 1_000 if settings.quick else 30_000
    return {
        f"{loss}, {n:,} × 8": functools.partial(problems.synthetic, loss, 1.0, loss=loss, n=n, p=8, correlated=True)
        for loss in ("logistic", "squared")
    }


def by_order(name: str, case: Callable[[], problems.Case], settings: Settings) -> Iterator[Result]:
    """Yield the error without noise after each number of passes, for each order of blocks."""
    job = replace(case().job, privacy=None)
    for order, options in ORDERS.items():
        for passes in PASSES[::3] if settings.quick else PASSES:
            seeds, errors = settings.seeds(whole=3, quick=1), []
            for seed in seeds:
                solver = vfl.SkGD().changed(passes=passes, seed=seed, **options)
                found = vfl.train(replace(job, solver=solver), case().table, at="inprocess")
                errors.append(max(case().error_of(found.w), FLOOR))
            yield _result(name, order, "relative error without noise", errors, seeds, options, passes=passes)


def by_iterate(name: str, case: Callable[[], problems.Case], settings: Settings) -> Iterator[Result]:
    """Yield the error at ε = 1 after each number of passes, for each iterate that a run may end with."""
    seeds = settings.seeds(whole=10)
    for iterate in ITERATES:
        for passes in PASSES[::3] if settings.quick else PASSES[2:]:
            errors = case().errors(seeds, passes=passes, iterate=iterate)
            yield _result(name, iterate, "relative error at ε = 1", errors, seeds, {"iterate": iterate}, passes=passes)


def by_epsilon(name: str, case: Callable[[], problems.Case], settings: Settings) -> Iterator[Result]:
    """Yield the error of the untuned solver at each ε, for each iterate that a run may end with."""
    seeds = settings.seeds(whole=10)
    for iterate in ITERATES:
        for epsilon in EPSILONS[::2] if settings.quick else EPSILONS:
            here = replace(case(), job=replace(case().job, privacy=vfl.Privacy(epsilon=epsilon)))
            errors = [case().error_of(here.run(seed, iterate=iterate).w) for seed in seeds]
            yield _result(
                name, iterate, "relative error of iterates", errors, seeds, {"iterate": iterate}, epsilon=epsilon
            )


def _result(
    name: str, arm: str, measure: str, errors: list[float], seeds: tuple[int, ...], options: dict[str, Any], **at: Any
) -> Result:
    return Result(
        part="curves", case=name, arm=arm, measure=measure, values=tuple(errors), seeds=seeds, tuned="default", at=at,
        settings=options,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(alone("curves"))
