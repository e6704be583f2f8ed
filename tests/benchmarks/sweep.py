"""Every solver, untuned, on the same problems: error against ε, and at ε = 1 against the number of passes.

    python -m tests.benchmarks.sweep [--data DIR] [--only NAME ...] [--quick] [--runs N] [--output DIR]

All arms spend the same (ε, δ = 1/n²) under replace-one and minimise the same F, ridge with λ = 1e-3; the error is that of
F as stated, without a penalty on the intercept, which SCD and OutputPerturbation need and are compared without. A
solver that refuses a problem is named with its reason. `start`, beside each error, is what a model has that learnt
nothing. The passes are those of solvers that may be told a number; the rest of their options stays with the rules.
"""

from __future__ import annotations

import functools
import sys
import time
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

import vfl
from tests.benchmarks import problems
from tests.benchmarks.command import alone
from tests.benchmarks.results import Absent, Result, Settings, Task
from vfl.errors import PrivacyError, SpecificationError
from vfl.solvers import SOLVERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PENALTY = vfl.L2(1e-3)
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
PASSES = (1, 3, 10, 30, 100)
QUICK_EPSILONS, QUICK_PASSES = (0.1, 1.0, 10.0), (1, 5, 20)


def problems_of(settings: Settings) -> dict[str, Callable[[], problems.Case] | None]:
    """Return {name: how to build it}; None where the data are not at hand."""
    n, folder = 2_000 if settings.quick else 30_000, settings.data
    made = functools.partial(problems.synthetic, epsilon=1.0, n=n, p=8)
    cases = {
        f"logistic, {n:,} × 8": functools.partial(made, "logistic", loss="logistic"),
        f"squared, {n:,} × 8": functools.partial(made, "squared", loss="squared"),
    }
    real = {} if settings.quick else {
        "Electricity": (problems.electricity, "electricity-bounds"),
        "California": (problems.california, "california-bounds"),
    }  # fmt: skip
    return cases | {
        name: None if folder is None else functools.partial(build, folder, key, 1.0)
        for name, (build, key) in real.items()
    }


def tasks(settings: Settings) -> Iterator[Task]:
    """Yield a task for each problem and solver, of ε and of passes."""
    made = problems_of(settings)
    first, last = next(iter(made)), list(made)[-1]
    quick_arms = {(first, "ε", solver) for solver in SOLVERS.values()} | {
        (first, "passes", vfl.SkGD), (first, "passes", vfl.solvers.GD), (last, "ε", vfl.SkGD),
        (last, "ε", vfl.solvers.NoisyGram),
    }  # fmt: skip
    for name, build in made.items():
        case = functools.cache(functools.partial(_case, build)) if build else None
        for solver in SOLVERS.values():
            for axis, run in (("ε", by_epsilon), ("passes", by_passes)):
                if axis == "passes" and "passes" not in {f.name for f in fields(solver)}:
                    continue
                if settings.quick and (name, axis, solver) not in quick_arms:
                    continue
                title = f"{name}, {solver.name} by {axis}"
                if case is None:
                    yield Task(title, absent="its data are not at hand (--data)")
                else:
                    yield Task(title, functools.partial(run, name, case, solver, settings))


def _case(build: Callable[[], problems.Case]) -> problems.Case:
    case = build()
    return replace(case, job=replace(case.job, penalty=PENALTY))


def by_epsilon(name: str, case: Callable[[], problems.Case], solver: type, settings: Settings) -> Iterator[Result]:
    """Yield the error of the untuned solver at each ε."""
    for epsilon in QUICK_EPSILONS if settings.quick else EPSILONS:
        yield measured(name, case(), solver, settings, {"epsilon": epsilon})


def by_passes(name: str, case: Callable[[], problems.Case], solver: type, settings: Settings) -> Iterator[Result]:
    """Yield the error at ε = 1 for each number of passes."""
    for passes in QUICK_PASSES if settings.quick else PASSES:
        yield measured(name, case(), solver, settings, {"passes": passes}, passes=passes)


def measured(name, case, solver, settings, at, **options) -> Result:
    """Return the errors of one arm at one place; raise Absent where the solver refuses the problem."""
    job, seeds = replace(case.job, privacy=vfl.Privacy(epsilon=at.get("epsilon", 1.0))), settings.seeds(whole=5)
    ordered = "seed" in {f.name for f in fields(solver)}
    begun, start, errors = time.perf_counter(), case.start / case.best - 1.0, []
    for seed in seeds:
        made = solver(**options, **({"seed": seed} if ordered else {}))
        privacy = replace(job.privacy, noise=vfl.SeededNoise(seed))
        try:
            found = vfl.train(replace(job, solver=made, privacy=privacy), case.table, at="inprocess")
        except (SpecificationError, PrivacyError) as error:
            raise Absent(f"{type(error).__name__}: {error}") from error
        errors.append(case.error_of(found.w))
    return Result(
        part="sweep", case=name, arm=solver.name, measure="relative error", values=errors, seeds=seeds, at=at,
        tuned="default", settings=options, beside={"start": start}, seconds=(time.perf_counter() - begun) / len(seeds),
        note="no better than w = 0" if np.mean(errors) > start else "",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(alone("sweep"))
