"""The study of DP-SkGD: block size × order × clip geometry × ε on balanced and imbalanced data, against CD, GCD and SGD.

    python -m tests.benchmarks.study [--data DIR] [--output DIR] [--quick] [--only PART ...] [--runs N] [--page FILE]

Every arm is (ε, δ = 1/n²) under strict replace-one with the same ε, its M_j taken from the data, uncharged, as the papers'
tables take them; `defaults` alone is what `vfl.train` does when nothing is said, smoothness released out of the same ε. Each
other arm is at its own best: its clip and number of passes (and what else a peer has) are searched over the grids below, on
seeds of their own, then measured on fresh ones. The grids are public; the choice looks at the data, uncharged, for all
alike. Steps of SkGD, CD and GCD are the theorems', γ = 1.

Orders without replacement (shuffled, cyclic, full, CD) cap the whole record, so that a pass is charged as one release. The
others clip every block by itself; `shuffled 1, own clip` does so too, to tell the order from the cap.

- by passes: at any of PASSES, in whole visits, however many messages those are;
- by messages: one block a message (`message="block"`: no party sees margins), all arms at the same number of messages,
  and one arm in whole visits at that number.

DIR holds the real data; without it, two synthetic problems stand in. `--page` writes tables, plots and the rows that they
are drawn from into that page and the folder beside it; with an output that is complete, nothing is measured again.
"""

from __future__ import annotations

import functools
import math
import sys
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import vfl
from coordinator.coordinator import Coordinator
from parties.loading import load
from tests.benchmarks import problems, study_page
from tests.benchmarks.command import alone
from tests.benchmarks.oracle import search
from tests.benchmarks.results import Result, Settings, Task
from tests.benchmarks.study_theory import Constants
from tests.benchmarks.utility import unit
from tests.parties.alone import party_over
from vfl.job.flags import exact_queries
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.planning import plan
from vfl.solvers.skgd import ONCE_A_PASS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from parties.party import Party

CLIPS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Times a typical scaled gradient: half the largest derivative, or a third of the declared label range, over √L."""
PASSES = (8, 40, 160)
CAPS = (0.15, 0.4, 1.0, 2.0, 4.0)
"""The cap C/√p of a whole record, in the same unit."""
ITERATES = ("last", "tail")
ROUNDS = (4, 16, 64, 256)
EPOCHS = (5, 20, 60)
BATCHES = (1, 4)
"""Of SGD, a pass: the larger number where messages are not counted."""
LENGTHS = (0.5, 2.0, 8.0)
"""γ of SGD, in units of 1/(L·mean‖x‖²), which is at most p times too short."""
TRIPS = (17, 65, 257)
START = {
    "clip": 2.0, "record_clip": 1.0, "passes": 40, "iterate": "tail", "rounds": 64, "epochs": 20, "batches": 4,
    "length": 2.0,
}  # fmt: skip
"""Where every search begins."""
SEARCH_SEEDS = (101, 102)
WHOLE = 10**6
"""As a block size: all columns of a party."""


@dataclass(frozen=True)
class Arm:
    """One way of training. fixed : options; stages : grids that are searched one after the other, clips in typical gradients.

    exact : steps are as long as λ_max of the blocks' own Gram matrices allows, uncharged.
    Without stages the rules decide everything, M_j included.
    """

    name: str
    solver: type
    fixed: Mapping[str, Any] = field(default_factory=dict)
    stages: tuple[Mapping[str, tuple], ...] = ()
    exact: bool = False

    @property
    def start(self) -> dict[str, Any]:
        """Where the search begins."""
        return {name: START[name] for grids in self.stages for name in grids}


DESCENT = ({"clip": CLIPS}, {"passes": PASSES})
CAPPED = ({"record_clip": CAPS}, {"passes": PASSES})
STOCHASTIC = ({"clip": CLIPS, "length": LENGTHS}, {"epochs": EPOCHS})
GREEDY = ({"clip": CLIPS}, {"rounds": ROUNDS})
AT_TRIPS = ({"clip": CLIPS, "iterate": ITERATES},)
CAPPED_AT_TRIPS = ({"record_clip": CAPS, "iterate": ITERATES},)
RECORD = {"clip": "record"}


def descent(sampling: str, block: int | None, **options: Any) -> Arm:
    """An arm of SkGD in whole visits; the order of a pass is grouped by party, as by default."""
    fixed = {"sampling": sampling, "block_size": block or WHOLE, "iterate": "tail", "step_size": 1.0, **options}
    capped = sampling in ONCE_A_PASS
    words = [sampling, f"{options['tau']} ×" if "tau" in options else "", size_of(block)]
    words.append("isotropic" if "noise_geometry" in options else "")
    name = " ".join(filter(None, words))
    return Arm(name, vfl.SkGD, fixed | RECORD, CAPPED) if capped else Arm(name, vfl.SkGD, fixed, DESCENT)


def size_of(block: int | None) -> str:
    """Words for a block size."""
    return "party" if block is None else str(block)


def arms(sizes: tuple[int | None, ...]) -> Iterator[Arm]:
    """Yield the arms of the first question, for these block sizes."""
    yield from (descent("shuffled", block) for block in sizes)
    for sampling in ("cyclic", "uniform", "importance"):
        yield from (descent(sampling, block) for block in (1, None))
    yield descent("nice", 1, tau=4)
    yield descent("full", None)
    isotropic = {"noise_geometry": "isotropic"}
    yield from (descent("shuffled", block, **isotropic) for block in sizes if block != 1)
    yield descent("full", None, **isotropic)
    yield replace(descent("shuffled", None), name="shuffled party exact β", exact=True)
    single = descent("shuffled", 1)
    own = {name: value for name, value in single.fixed.items() if name != "clip"}
    yield Arm("shuffled 1, own clip", vfl.SkGD, own, DESCENT)
    yield Arm("CD", vfl.solvers.CD, RECORD, CAPPED)
    yield Arm("GCD", vfl.solvers.GCD, {}, GREEDY)
    yield Arm("SGD", vfl.solvers.SGD, {}, STOCHASTIC)
    yield Arm("defaults", vfl.SkGD)


def arms_at(trips: int, sizes: tuple[int | None, ...], p: int) -> Iterator[Arm]:
    """Yield the arms of the second question: options that make that number of messages, or one less.

    One trip asks for M, and one for the records' norms where whole records are capped. SkGD has one a draw; GCD and SGD
    have two a round or step; GCD rebuilds the margins now and then.
    In whole visits a cyclic pass of two parties has two trips, however many of the p columns there are.
    """
    draws = {"outer_rounds": 1, "inner_rounds": trips - 2, "message": "block", **RECORD}
    descends = draws | {"step_size": 1.0}
    for block in sizes:
        yield Arm(f"shuffled {size_of(block)}", vfl.SkGD, {**descends, "block_size": block or WHOLE}, CAPPED_AT_TRIPS)
    importance = {"outer_rounds": 1, "inner_rounds": trips - 1, "message": "block", "step_size": 1.0}
    yield Arm("importance 1", vfl.SkGD, {**importance, "block_size": 1, "sampling": "importance"}, AT_TRIPS)
    yield Arm("full party", vfl.SkGD, {**descends, "block_size": WHOLE, "sampling": "full"}, CAPPED_AT_TRIPS)
    visits = {"sampling": "cyclic", "block_size": 1, "message": "party", "inner_rounds": p * ((trips - 2) // 2)}
    yield Arm("cyclic 1 in visits", vfl.SkGD, descends | visits, CAPPED_AT_TRIPS)
    yield Arm("CD", vfl.solvers.CD, draws, ({"record_clip": CAPS},))
    yield Arm("GCD", vfl.solvers.GCD, {"trips": trips}, ({"clip": CLIPS},))
    grids = ({"clip": CLIPS, "length": LENGTHS}, {"batches": BATCHES, "iterate": ITERATES})
    yield Arm("SGD", vfl.solvers.SGD, {"steps": trips // 2}, grids)


@dataclass(frozen=True, eq=False)
class Bench:
    """A problem whose columns are read once, and run by any solver at any ε."""

    name: str
    case: problems.Case
    sizes: tuple[int | None, ...]

    @functools.cached_property
    def parties(self) -> dict[str, Party]:
        """The parties as loaded."""
        sources = sources_of(self.case.job, self.case.table)
        return {q: load(self.case.job.for_party(q), source) for q, source in sources.items()}

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
        exact = {"smoothness": "data"} if arm.stages else {}
        privacy = replace(self.case.job.privacy, epsilon=epsilon, noise=vfl.SeededNoise(seed), **exact)
        return replace(self.case.job, privacy=privacy, solver=self.solver(arm, seed, **chosen))

    def solver(self, arm: Arm, seed: int, **chosen: Any) -> Any:
        """The solver of one run: grid values in the solver's own units."""
        options = {**arm.fixed, **chosen}
        for cap in ("clip", "record_clip"):
            if isinstance(options.get(cap), float):
                options[cap] *= self.unit
        if "block_size" in options:  # no party has more columns: a block is all of them
            options["block_size"] = min(
                options["block_size"], max(p.rows.columns.array.shape[1] for p in self.parties.values())
            )
        if arm.exact:
            options["step_size"] *= self.constants.slack(options["block_size"])
        if arm.solver is vfl.solvers.SGD:
            options["clip"] *= math.sqrt(self.constants.total)  # a joint norm: typical |ℓ′| times that of a row
            batches, steps = options.pop("batches", BATCHES[-1]), options.pop("steps", None)
            options["batch_size"] = -(-self.case.n // batches)
            options["passes"] = options.pop("epochs") if steps is None else steps // batches
            options["step_size"] = options.pop("length")
        if arm.solver is vfl.solvers.GCD and (trips := options.pop("trips", None)):
            period = 10 * self.constants.p
            options["rounds"] = next(k for k in range(trips, 0, -1) if 1 + 2 * k + (k - 1) // period <= trips)
        if arm.solver is not vfl.solvers.GCD:
            options["seed"] = seed
        return problems.built(arm.solver, **options)

    def transport(self, job: vfl.Job) -> InProcessTransport:
        """The parties of a run, with columns that are there already and the run's own noise."""
        return InProcessTransport(
            {
                q: party_over(q, p.rows.columns, job.noise_source(), p.rows.y, exact=exact_queries(job))
                for q, p in self.parties.items()
            }
        )

    def error(self, arm: Arm, epsilon: float, seed: int, **chosen: Any) -> float:
        """(F(w) − F*)/F* of one run."""
        job = self.job(arm, epsilon, seed, **chosen)
        *_, outcome = Coordinator(self.transport(job)).stream(job)
        return self.case.error_of(outcome.w)


def measure(bench: Bench, arm: Arm, epsilon: float, seeds: tuple[int, ...], trips: int | None = None) -> Result:
    """The arm at its best, on fresh seeds."""
    begun = time.perf_counter()

    def errors(chosen_seeds, **chosen):
        return [bench.error(arm, epsilon, seed, **chosen) for seed in chosen_seeds]

    chosen, tried = arm.start, 0
    for grids in arm.stages:
        given = {name: value for name, value in chosen.items() if name not in grids}
        found, n_tried = search(functools.partial(errors, **given), grids, (chosen,), SEARCH_SEEDS)
        chosen, tried = chosen | found, tried + n_tried
    values = errors(seeds, **chosen)
    planned = plan(bench.job(arm, epsilon, seeds[0], **chosen), bench.case.n)
    beside = {
        "start": bench.case.start / bench.case.best - 1.0, "epsilon spent": planned.epsilon,
        "messages": planned.messages, "releases": sum(count for _, count in planned.releases), "tried": tried,
    }  # fmt: skip
    if isinstance(planned.solver, vfl.SkGD):
        beside["clipped at the optimum"] = bench.constants.clipped(planned.solver)
    place = {"epsilon": epsilon} if trips is None else {"epsilon": epsilon, "trips": trips}
    options = {**arm.fixed, **chosen}
    if options.get("block_size") == WHOLE:
        options["block_size"] = "party"
    return Result(
        part="study", case=bench.name, arm=arm.name, measure="(F − F*)/F*", values=values, seeds=seeds,
        tuned="oracle grid" if arm.stages else "default", at=place, settings=options, beside=beside,
        seconds=time.perf_counter() - begun,
    )  # fmt: skip


def constants(bench: Bench) -> Iterator[Result]:
    """What the bounds say of a problem; no run."""
    for name, value in bench.constants.described().items():
        yield Result(part="study", case=bench.name, arm="bounds", measure=name, values=(value,), less=None)


def errors_without_noise(bench: Bench) -> Iterator[Result]:
    """What is left of F after the most passes when nothing is clipped and no noise is added: the price of order and steps."""
    for arm in arms(bench.sizes):
        if arm.solver is not vfl.SkGD or not arm.stages or "isotropic" in arm.name:
            continue
        given = replace(arm, fixed={name: value for name, value in arm.fixed.items() if name != "clip"})
        solver = replace(bench.solver(given, 1, clip=1.0, passes=PASSES[-1]), clip=math.inf)
        job = replace(bench.case.job, privacy=None, solver=solver)
        *_, outcome = Coordinator(bench.transport(job)).stream(job)
        error = bench.case.error_of(outcome.w)
        yield Result(part="study", case=bench.name, arm="bounds", measure=f"without noise, {arm.name}", values=(error,))


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


CORE = (
    "shuffled 1", "shuffled party", "importance 1", "shuffled party isotropic", "CD", "GCD", "SGD", "defaults",
)  # fmt: skip
"""Arms that run at every ε; the others run at ε = 1."""


def tasks(settings: Settings) -> Iterator[Task]:
    """Yield the study in the order of what matters: all arms at ε = 1, then few messages, other ε, many messages."""
    found = list(benches(None if settings.quick else settings.data))
    seeds = settings.seeds(whole=4)

    def task(bench, arm, epsilon, trips=None):
        where = f"{bench.name}, {arm.name}, ε={epsilon:g}" + (f", {trips} trips" if trips else "")
        return Task(where, lambda: [measure(bench, arm, epsilon, seeds, trips)])

    for bench in found:
        yield Task(f"{bench.name}, bounds", functools.partial(constants, bench))
        yield from (
            task(bench, a, 1.0) for a in arms(bench.sizes) if not settings.quick or a.name in (*CORE, "uniform 1")
        )
    for trips in TRIPS[:1] if settings.quick else TRIPS[:2]:
        for bench in found:
            yield from (task(bench, arm, 1.0, trips) for arm in arms_at(trips, bench.sizes, bench.constants.p))
    if settings.quick:
        return
    for bench in found:
        yield Task(f"{bench.name}, without noise", functools.partial(errors_without_noise, bench))
    for epsilon in (0.1, 10.0):
        for bench in found:
            yield from (task(bench, arm, epsilon) for arm in arms(bench.sizes) if arm.name in CORE)
    for bench in found:
        yield from (task(bench, arm, 1.0, TRIPS[2]) for arm in arms_at(TRIPS[2], bench.sizes, bench.constants.p))


def fill(page: Path, results: list[Result]) -> None:
    """Write the tables and plots of a page that has marks for them; `command` calls it for `--page`."""
    study_page.write(page, results)


if __name__ == "__main__":
    sys.exit(alone("study"))
