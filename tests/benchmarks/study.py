"""The study of DP-SkGD: block size × order × clip geometry × ε on balanced and imbalanced data, against CD, GCD and SGD.

    python -m tests.benchmarks.study [--data DIR] [--output DIR] [--quick] [--only PART ...] [--seeds N] [--page FILE]

Every arm is (ε, δ = 1/n²) under strict replace-one with the same ε, its M_j taken from the data, uncharged, as the papers'
tables take them; `defaults` alone is what `vfl.train` does when nothing is said, smoothness bought out of the same ε. Each
arm is at its own best: clip, passes, step and iterate by coordinate search over the grids below (which are public; the choice
looks at the data, uncharged, for all arms alike), on seeds of its own; then it is measured with fresh ones. Two questions:

- passes: at any of PASSES, in whole visits, whatever number of messages that is;
- trips: one block a message (`sweep="block"`, so that no party sees margins), all arms at the same number of round trips.

DIR holds the real data; without it, two synthetic problems stand in. Rows go to OUTPUT/rows.jsonl one by one: what is
there is not measured again, so an interrupted study goes on. `--page` writes tables and plots of the rows into the page.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import vfl
from coordinator.coordinator import Coordinator
from parties.loading import load
from parties.party import Party
from tests.benchmarks import problems
from tests.benchmarks.oracle import search
from tests.benchmarks.study_theory import Constants
from tests.benchmarks.utility import machine, unit
from vfl.launch.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.planning import plan, unnoised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

CLIPS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Times a typical scaled gradient: half the largest derivative, or a third of the declared label range, over √L."""
PASSES = (8, 40, 200)
STEPS = (0.25, 0.7, 1.9)
"""γ in γ/(|S| M_j): below 2 every one converges for any data."""
ITERATES = ("last", "tail")
ROUNDS = (4, 16, 64, 256)
EPOCHS = (5, 20, 80)
BATCHES = (1, 4)
"""Of SGD, a pass."""
LENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""γ of SGD, in units of 1/(L·mean‖x‖²), which is at most p times too short."""
TRIPS = (17, 65, 257)
START = {
    "clip": 2.0, "passes": 40, "step_size": 1.9, "iterate": "tail", "rounds": 64, "epochs": 20, "batches": 4,
    "length": 2.0,
}  # fmt: skip
"""Where every search begins."""
SEARCH_SEEDS = (101, 102, 103)


@dataclass(frozen=True)
class Arm:
    """One way of training. fixed : options; grids : those that are searched, the clip in typical gradients.

    block : columns a block, None for all of a party's. exact : steps may use λ_max of each block's own Gram matrix.
    """

    name: str
    solver: type
    fixed: Mapping[str, Any] = field(default_factory=dict)
    grids: Mapping[str, tuple] = field(default_factory=dict)
    exact: bool = False
    tuned: bool = True

    @property
    def start(self) -> dict[str, Any]:
        """Where the search begins."""
        return {name: START[name] for name in self.grids}


DESCENT = {"clip": CLIPS, "passes": PASSES, "step_size": STEPS}
STOCHASTIC = {"clip": CLIPS, "epochs": EPOCHS, "batches": BATCHES, "length": LENGTHS}
GREEDY = {"clip": CLIPS, "rounds": ROUNDS, "step_size": STEPS}


def descent(sampling: str, block: int | None, **options: Any) -> Arm:
    """An arm of SkGD in whole visits, in the sampler's own order."""
    fixed = {"sampling": sampling, "block_size": block or 10**6, "sweep": "visit", "iterate": "tail", **options}
    name = " ".join([sampling, f"{options['tau']} ×" if "tau" in options else "", size_of(block)]).replace("  ", " ")
    return Arm(name + (" isotropic" if "noise_geometry" in options else ""), vfl.SkGD, fixed, DESCENT)


def size_of(block: int | None) -> str:
    """Words for a block size."""
    return "party" if block is None else str(block)


def arms(sizes: tuple[int | None, ...]) -> Iterator[Arm]:
    """Yield the arms of the first question, for these block sizes."""
    for sampling in ("shuffled", "cyclic", "uniform", "importance"):
        yield from (descent(sampling, block) for block in sizes)
    yield from (descent("nice", block, tau=tau) for block, tau in ((1, 2), (1, 4)))
    yield descent("full", None)
    isotropic = {"noise_geometry": "isotropic"}
    yield from (descent("shuffled", block, **isotropic) for block in sizes if block != 1)
    yield from (descent(sampling, None, **isotropic) for sampling in ("importance", "full"))
    yield replace(descent("shuffled", None), name="shuffled party exact β", exact=True)
    yield Arm("CD", vfl.CD, {}, {"clip": CLIPS, "passes": PASSES})
    yield Arm("GCD", vfl.GCD, {}, GREEDY)
    yield Arm("SGD", vfl.SGD, {}, STOCHASTIC)
    yield Arm("defaults", vfl.SkGD, tuned=False)


def arms_at(trips: int, sizes: tuple[int | None, ...]) -> Iterator[Arm]:
    """Yield the arms of the second question: options that make that number of round trips, or one less.

    One trip asks for M. SkGD has one a draw; GCD and SGD have two a round or step; GCD rebuilds the margins now and then.
    """
    draws = {"outer_rounds": 1, "inner_rounds": trips - 1, "sweep": "block"}
    grids = {"clip": CLIPS, "step_size": STEPS, "iterate": ITERATES}
    for block in sizes:
        yield Arm(f"shuffled {size_of(block)}", vfl.SkGD, {**draws, "block_size": block or 10**6}, grids)
    yield Arm("importance 1", vfl.SkGD, {**draws, "block_size": 1, "sampling": "importance"}, grids)
    yield Arm("full party", vfl.SkGD, {**draws, "block_size": 10**6, "sampling": "full"}, grids)
    yield Arm("CD", vfl.CD, draws, {"clip": CLIPS})
    yield Arm("GCD", vfl.GCD, {"trips": trips}, {"clip": CLIPS, "step_size": STEPS})
    grids = {"clip": CLIPS, "batches": BATCHES, "length": LENGTHS, "iterate": ITERATES}
    yield Arm("SGD", vfl.SGD, {"steps": trips // 2}, grids)


@dataclass(frozen=True, eq=False)
class Bench:
    """A problem whose columns are read once, and run by any solver at any ε."""

    name: str
    case: problems.Case
    sizes: tuple[int | None, ...]

    @functools.cached_property
    def parties(self) -> dict[str, Party]:
        """The parties as loaded."""
        sources = sources_of(self.case.job.partition, self.case.table)
        return {q: load(self.case.job, q, source) for q, source in sources.items()}

    @functools.cached_property
    def unit(self) -> float:
        """A typical scaled gradient."""
        return unit(self.case)

    @functools.cached_property
    def constants(self) -> Constants:
        """What the papers' bounds are made of, at the optimum."""
        problem = plan(self.case.job, self.case.n).problem
        return Constants.of(problem, *self.case.scaled, self.case.minimum[1])

    def job(self, arm: Arm, epsilon: float, seed: int, **chosen: Any) -> vfl.Job:
        """The job of one run."""
        exact = {"smoothness": "data"} if arm.tuned else {}
        privacy = replace(self.case.job.privacy, epsilon=epsilon, noise=vfl.SeededNoise(seed), **exact)
        return replace(self.case.job, privacy=privacy, solver=self.solver(arm, seed, **chosen))

    def solver(self, arm: Arm, seed: int, **chosen: Any) -> Any:
        """The solver of one run: grid values in the solver's own units."""
        options = {**arm.fixed, **chosen}
        if "clip" in options:
            options["clip"] *= self.unit
        if "block_size" in options:  # no party has more columns: a block is all of them
            options["block_size"] = min(options["block_size"], max(p._columns.array.shape[1] for p in self.parties.values()))
        if arm.exact:
            options["step_size"] *= self.constants.slack(options["block_size"])
        if arm.solver is vfl.SGD:
            options["clip"] *= math.sqrt(self.constants.total)  # a joint norm: typical |ℓ′| times that of a row
            batches, steps = options.pop("batches"), options.pop("steps", None)
            options["batch_size"] = -(-self.case.n // batches)
            options["passes"] = options.pop("epochs") if steps is None else steps // batches
            options["step_size"] = options.pop("length")
        if arm.solver is vfl.GCD and (trips := options.pop("trips", None)):
            period = 10 * self.constants.p
            options["rounds"] = next(k for k in range(trips, 0, -1) if 1 + 2 * k + (k - 1) // period <= trips)
        if arm.solver is not vfl.GCD:
            options["seed"] = seed
        return arm.solver(**options)

    def train(self, job: vfl.Job) -> Any:
        """The outcome of a run on columns that are there already."""
        parties = {
            q: Party(q, p._columns, job.noise_source(), p._labels, unnoised=unnoised(job)) for q, p in self.parties.items()
        }
        *_, outcome = Coordinator(InProcessTransport(parties)).stream(job)
        return outcome


def measure(bench: Bench, arm: Arm, epsilon: float, seeds: int, trips: int | None = None) -> dict[str, Any]:
    """One row: the arm at its best, on fresh seeds."""
    begun = time.perf_counter()

    def errors(chosen_seeds, **chosen):
        return [bench.case.error_of(bench.train(bench.job(arm, epsilon, s, **chosen)).w) for s in chosen_seeds]

    chosen, tried = search(errors, arm.grids, (arm.start,), SEARCH_SEEDS) if arm.grids else ({}, 0)
    fresh = range(1, seeds + 1)
    found = errors(fresh, **chosen)
    planned = plan(bench.job(arm, epsilon, 1, **chosen), bench.case.n)
    options = {**arm.fixed, **chosen}
    return {
        "problem": bench.name, "n": bench.case.n, "p": bench.constants.p, "epsilon": epsilon, "delta": planned.problem.delta,
        "arm": arm.name, "question": "passes" if trips is None else "trips", "trips": trips,
        "solver": arm.solver.name, "options": options | ({"γ times": bench.constants.slack(10**6)} if arm.exact else {}),
        "planned_epsilon": planned.epsilon, "round_trips": planned.round_trips,
        "releases": sum(count for _, count in planned.releases),
        "clipped": bench.constants.clipped(planned.solver) if isinstance(planned.solver, vfl.SkGD) else None,
        "smoothness": "exact, uncharged" if arm.tuned else "private",
        "tuned": "public grid, chosen on the data" if arm.tuned else "default", "tried": tried,
        "search_seeds": list(SEARCH_SEEDS), "seeds": list(fresh), "errors": found,
        "mean": float(np.mean(found)), "deviation": float(np.std(found, ddof=1)), "median": float(np.median(found)),
        "start": bench.case.start / bench.case.best - 1.0, "seconds": time.perf_counter() - begun,
    }  # fmt: skip


def benches(folder: Path | None) -> Iterator[Bench]:
    """Yield the problems: real ones, or the two synthetic ones that stand in for them."""
    sizes = (1, 2, None)
    if folder is None:
        yield Bench("synthetic balanced", stand_in(0.0), sizes)
        yield Bench("synthetic imbalanced", stand_in(1.0), sizes)
        return
    for title, build in (("Electricity", problems.electricity), ("California", problems.california)):
        for kind, variant in (("raw", "stored"), ("standardised", "standardised")):
            yield Bench(f"{title} {kind}", build(folder, f"{title.lower()}-{variant}", 1.0), sizes)
    yield Bench("Credit", problems.credit(folder, "credit", 1.0), (1, 2, 4, None))


def stand_in(spread: float, *, n: int = 4_000, p: int = 8, seed: int = 5) -> problems.Case:
    """Logistic labels of correlated columns whose scales are log-normal: 10^(spread·N(0, 1))."""
    rng = np.random.default_rng(seed)
    X = math.sqrt(0.5) * (rng.standard_normal((n, p)) + rng.standard_normal((n, 1)))
    w = rng.standard_normal(p)
    label = (rng.random(n) < 1 / (1 + np.exp(-2 * (X @ w) / (X @ w).std()))).astype(float)
    scales = 10.0 ** (spread * rng.standard_normal(p))
    return problems.plain("stand-in", 1.0, X * scales, label, None, loss="logistic", penalty=vfl.L2(1 / n))


@dataclass(frozen=True)
class Cell:
    """One row to be measured."""

    bench: Bench
    arm: Arm
    epsilon: float
    trips: int | None

    @property
    def key(self) -> tuple:
        """What names the row."""
        return (self.bench.name, self.arm.name, self.epsilon, self.trips)


def cells(folder: Path | None, *, quick: bool = False) -> Iterator[Cell]:
    """Yield what the study consists of."""
    found = list(benches(None if quick else folder))
    for bench in found:
        yield from (Cell(bench, arm, 1.0, None) for arm in arms(bench.sizes) if not quick or arm.name in CORE)
    for trips in TRIPS[:1] if quick else TRIPS:
        for bench in found:
            yield from (Cell(bench, arm, 1.0, trips) for arm in arms_at(trips, bench.sizes))
    for epsilon in () if quick else (0.1, 10.0):
        for bench in found:
            yield from (Cell(bench, arm, epsilon, None) for arm in arms(bench.sizes) if arm.name in CORE)


CORE = (
    "shuffled 1", "shuffled 2", "shuffled party", "uniform 1", "importance 1", "full party", "shuffled party isotropic", "CD",
    "GCD", "SGD", "defaults",
)  # fmt: skip
"""Arms that run at every ε; the others run at ε = 1."""


def study(
    folder: Path | None, output: Path, *, quick: bool = False, seeds: int = 5, only: tuple[str, ...] = (),
    said: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> dict[str, Any]:  # fmt: skip
    """Measure what is not there yet and return all: the entry for the one command that runs all benchmarks."""
    output.mkdir(parents=True, exist_ok=True)
    book = output / "rows.jsonl"
    rows = [json.loads(line) for line in book.read_text(encoding="utf-8").splitlines()] if book.exists() else []
    done = {(row["problem"], row["arm"], row["epsilon"], row["trips"]) for row in rows}
    constants = {}
    for cell in cells(folder, quick=quick):
        constants[cell.bench.name] = cell.bench.constants.described()
        if cell.key in done or (only and not any(part in f"{cell.bench.name} {cell.arm.name}" for part in only)):
            continue
        row = measure(cell.bench, cell.arm, cell.epsilon, 3 if quick else seeds, cell.trips)
        rows.append(row)
        with book.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        where = f"ε={cell.epsilon:g}" + (f" {cell.trips} trips" if cell.trips else "")
        said(f"{row['problem']:24} {where:16} {row['arm']:28} {row['mean']:9.2e} ± {row['deviation']:7.1e} {row['seconds']:5.1f} s")
    result = {**machine(), "tuned": "public grid, chosen on the data", "constants": constants, "rows": rows}
    (output / "study.json").write_text(json.dumps(result), encoding="utf-8")
    return result


def main(arguments=None) -> None:
    """Run the study and write its page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of the real data")
    parser.add_argument("--output", type=Path, default=Path("runs/study"))
    parser.add_argument("--quick", action="store_true", help="a minute: synthetic problems, ε = 1, few arms")
    parser.add_argument("--only", nargs="*", default=[], help="parts of 'problem arm'")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--page", type=Path, help="page whose tables and plots are written anew")
    given = parser.parse_args(arguments)
    result = study(given.data, given.output, quick=given.quick, seeds=given.seeds, only=tuple(given.only))
    from tests.benchmarks.study_page import tables, write

    for title, table in tables(result).items():
        print(f"\n## {title}\n\n{table}")
    if given.page:
        write(given.page, result)


if __name__ == "__main__":
    sys.exit(main())
