"""Central DP methods with an oracle's tuning, beside untuned SkGD, by relative error (F(w) − F*)/F*.

    python -m tests.benchmarks.methods [--data DIR] [--only NAME ...] [--quick] [--runs N] [--search] [--output DIR]

A row is ahead if *untuned* SkGD has a smaller error than the best peer. Each peer's options come from a grid search that
looks at the data, uncharged, with seeds of its own; the best setting is then measured with the seeds of our runs. The
settings found are kept in methods.json; --search searches again, which takes about two hours. All methods get one
(ε, δ = 1/n²) under replace-one and the same records, penalty and objective.

| peer | release | accounting |
|---|---|---|
| noisy GD | T gradients, rows capped at C/‖z_i‖ jointly | √T·2C/σ-GDP, exact |
| GD, whitened (Ganesh et al. 2023) | a noisy Gram matrix, then noisy GD in its metric | both Gaussian, exact |
| objective perturbation (Redberg, Koskela, Wang 2023) | the minimiser with a random linear term | see below |
| AdaSSP (Wang 2018) | noisy XᵀX and Xᵀy with a ridge | both Gaussian, exact |

Tasks "joint steps, NAME, ε=E" measure untuned SkGD and SkGD(joint=True) on these problems and on `problems.SIMULATED`, with the
messages of a whole run (docs/studies/dp-skgd.md). `--only "joint steps"` runs these alone.

"declared" scales columns by their bounds. "released" centres and scales them by noisy moments for a tenth of μ², as SkGD does;
squared loss with an intercept also releases mean and spread of the labels.

Objective perturbation is accounted in its favour. Replacing one row of norm R changes log det of the Hessian by at most
log(1 + LR²/λ), which takes a share of ε, and shifts the linear term by at most 2R; the rest of ε pays for that shift as
for one Gaussian release. The exact analysis costs a little more, because the direction of the shift depends on the output.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import minimize

import vfl
from tests.benchmarks import problems, report
from tests.benchmarks.command import alone
from tests.benchmarks.oracle import SEEDS
from tests.benchmarks.results import Result, Settings, Task
from vfl.planning import plan, problem_of
from vfl.privacy.gaussian_dp import epsilon_of, mu_of
from vfl.queries.moments import moments_sensitivity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from vfl.base.problem import Problem

EPSILONS = (0.1, 1.0, 10.0)
MOMENTS_SHARE, LABELS_SHARE = 0.1, 0.02
CAPS = {"logistic": (0.15, 0.35, 0.7, 1.3, 2.5), "squared": (0.1, 0.3, 0.8, 2.0, 4.0)}
"""C in units of the median row norm, for squared loss times the spread of the labels."""
GD_GRID = {"steps": (8, 30, 100), "step_size": (0.1, 0.3, 1.0, 2.0)}
WHITE_GRID = {"share": (0.1, 0.3), "steps": (6, 25), "step_size": (0.25, 1.0), "lift": (0.3, 2.0)}
PERTURBATION_GRID = {"cap": (0.5, 0.8, 1.1, 1.6, 2.5), "share": (0.03, 0.15, 0.4)}
ADASSP_GRID = {"cap": (0.7, 1.0, 1.5, 3.0), "label_cap": (1.0, 2.0, 3.0, 4.5), "lift": (0.0, 0.1, 0.5, 1.5)}


VARIANTS = {"by bounds": "bounds", "raw": "stored", "standardised": "standardised"}
"""Of the two real problems of the papers: the words for them, and their keys."""
RECORD = Path(__file__).with_name("methods.json")
"""{task: {peer: the setting that its search found}}."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """Columns as a peer uses them, Z = (X − centre)∘scale, with the budget that is left.

    start : value at which the intercept starts. unit : typical residual. mu : μ left for the method.
    """

    case: problems.Case
    Z: np.ndarray
    norms: np.ndarray
    centre: np.ndarray
    scale: np.ndarray
    start: float
    unit: float
    mu: float

    @functools.cached_property
    def problem(self) -> Problem:
        """The public facts of the case."""
        return problem_of(self.case.job, self.case.n)

    @property
    def y(self) -> np.ndarray:
        """Labels."""
        return self.case.scaled[1]

    @functools.cached_property
    def median(self) -> float:
        """Median row norm; a grid over C includes what a public rule would choose."""
        return float(np.median(self.norms))

    @functools.cached_property
    def ridge(self) -> np.ndarray:
        """(p,) strength of the L2 penalty on the coordinates of Z."""
        penalty = self.case.job.penalty
        return (penalty.strength if isinstance(penalty, vfl.L2) else 0.0) * self.scale**2 * self.problem.penalised

    @functools.cached_property
    def lasso(self) -> np.ndarray:
        """(p,) strength of the L1 penalty on the coordinates of Z."""
        penalty = self.case.job.penalty
        return (penalty.strength if isinstance(penalty, vfl.L1) else 0.0) * self.scale * self.problem.penalised

    def origin(self) -> np.ndarray:
        """Return the first iterate, (p,)."""
        return self.problem.intercept * self.start / self.scale

    def error(self, u: np.ndarray) -> float:
        """Return the relative error of coordinates on Z; inf for a diverged run."""
        if not np.isfinite(u).all():
            return math.inf
        w = u * self.scale
        return self.case.error_of(w - self.problem.intercept * float(self.centre @ w))


def prepared(case: problems.Case, seed: int, *, released: bool) -> Prepared:
    """Return the columns in declared or in released scales."""
    X, y = case.scaled
    problem, rng = problem_of(case.job, case.n), np.random.default_rng(seed)
    mu, B, n = problem.mu, problem.reach, case.n
    centre, scale = np.zeros(B.size), 1.0 / B
    feature = problem.intercept == 0.0
    if released:
        sigma = moments_sensitivity(int(feature.sum()), means=True) / (mu * math.sqrt(MOMENTS_SHARE))
        mu *= math.sqrt(1.0 - MOMENTS_SHARE)
        mean = 2.0 * B * (X.mean(axis=0) / (2.0 * B) + sigma / n * rng.standard_normal(B.size))
        centre = np.where(problem.centred_coordinates, mean, 0.0)
        share = (X**2).mean(axis=0) / B**2 + sigma / n * rng.standard_normal(B.size) - (centre / B) ** 2
        scale = np.where(feature, 1.0 / (B * np.sqrt(np.clip(share, 0.0, 1.0) + sigma / n)), 1.0)
    start, unit = problem.label_centre, problem.label_range / 7.2
    if problem.loss.name == "squared" and problem.centred:
        spent, mu = mu * math.sqrt(LABELS_SHARE), mu * math.sqrt(1.0 - LABELS_SHARE)
        half = problem.label_range / 2.0
        t = np.clip((y - problem.label_centre) / half, -1.0, 1.0)
        sigma = moments_sensitivity(1, means=True) / (spent * n)
        first = 2.0 * (t.mean() / 2.0 + sigma * rng.standard_normal())
        second = (t**2).mean() + sigma * rng.standard_normal()
        start = problem.label_centre + half * float(np.clip(first, -1.0, 1.0))
        unit = half * math.sqrt(max(second - first**2, 1e-4))
    Z = (X - centre) * scale
    return Prepared(case, Z, np.linalg.norm(Z, axis=1), centre, scale, start, unit, mu)


def capped_sum(at: Prepared, u: np.ndarray, C: float) -> np.ndarray:
    """Return Σ_i clip(ℓ'(v_i), ±C/‖z_i‖) z_i, (p,)."""
    r = at.problem.loss.derivative(at.Z @ u, at.y)
    limit = C / np.maximum(at.norms, 1e-12)
    return at.Z.T @ np.clip(r, -limit, limit)


def cap_of(at: Prepared, cap: float) -> float:
    """Return C for a cap in typical residuals times typical norms."""
    return cap * at.median * (at.unit if at.problem.loss.name == "squared" else 1.0)


def descent(at: Prepared, seed: int, *, cap: float, steps: int, step_size: float) -> float:
    """Return the error of noisy proximal GD: the better of the last iterate and the mean of the last half."""
    rng, n, C = np.random.default_rng(seed + 777), at.case.n, cap_of(at, cap)
    sigma = 2.0 * C * math.sqrt(steps) / at.mu
    s = step_size / at.problem.loss.curvature
    u, tail = at.origin(), []
    for _ in range(steps):
        g = (capped_sum(at, u, C) + sigma * rng.standard_normal(u.size)) / n + at.ridge * u
        u = u - s * g
        u = np.sign(u) * np.maximum(abs(u) - s * at.lasso, 0.0)
        tail.append(u)
    return min(at.error(u), at.error(np.mean(tail[steps // 2 :], axis=0)))


def whitened(at: Prepared, seed: int, *, cap: float, share: float, steps: int, step_size: float, lift: float) -> float:
    """Return the error of GD in the metric of a noisy Gram matrix, released with a share of μ² (no L1 penalty)."""
    rng, n, p, C = np.random.default_rng(seed + 778), at.case.n, at.Z.shape[1], cap_of(at, cap)
    R = 1.5 * at.median
    rows = at.Z * np.minimum(1.0, R / np.maximum(at.norms, 1e-12))[:, None]
    deviation = math.sqrt(2.0) * R**2 / (at.mu * math.sqrt(share) * n)
    N = np.triu(rng.standard_normal((p, p)))
    values, vectors = np.linalg.eigh(rows.T @ rows / n + deviation * (N + np.triu(N, 1).T))
    H = (vectors / (np.maximum(values, 0.0) + lift * deviation * math.sqrt(p))) @ vectors.T
    sigma = 2.0 * C * math.sqrt(steps) / (at.mu * math.sqrt(1.0 - share))
    u, tail = at.origin(), []
    for _ in range(steps):
        g = (capped_sum(at, u, C) + sigma * rng.standard_normal(p)) / n + at.ridge * u
        u = u - step_size / at.problem.loss.curvature * (H @ g)
        tail.append(u)
        if not np.isfinite(u).all():
            return math.inf
    return min(at.error(u), at.error(np.mean(tail[steps // 2 :], axis=0)))


def perturbed(at: Prepared, seed: int, *, cap: float, share: float) -> float:
    """Return the error of objective perturbation on rows shrunk to norm R; logistic loss with an L2 penalty."""
    n, delta, L = at.case.n, at.problem.delta, at.problem.loss.curvature
    epsilon, R = epsilon_of(at.mu, delta), cap * at.median
    rows = at.Z * np.minimum(1.0, R / np.maximum(at.norms, 1e-12))[:, None]
    convexity = L * R**2 / math.expm1(share * epsilon)
    b = (
        2.0
        * R
        / mu_of((1.0 - share) * epsilon, delta)
        * np.random.default_rng(seed + 779).standard_normal(rows.shape[1])
    )

    def objective(u):
        v = rows @ u
        value = at.problem.loss.value(v, at.y).mean() + 0.5 * at.ridge @ u**2
        slope = rows.T @ at.problem.loss.derivative(v, at.y) / n + at.ridge * u
        return value + (0.5 * convexity * u @ u + b @ u) / n, slope + (convexity * u + b) / n

    return at.error(minimize(objective, at.origin(), jac=True, method="L-BFGS-B", options={"maxiter": 200}).x)


def adassp(at: Prepared, seed: int, *, cap: float, label_cap: float, lift: float) -> float:
    """Return the error of AdaSSP with half of μ² for each of its two releases; squared loss with an L2 penalty."""
    rng, n, p, mu = np.random.default_rng(seed + 780), at.case.n, at.Z.shape[1], at.mu * math.sqrt(0.5)
    R, Y = cap * at.median, label_cap * at.unit
    rows = at.Z * np.minimum(1.0, R / np.maximum(at.norms, 1e-12))[:, None]
    deviation = math.sqrt(2.0) * R**2 / (mu * n)
    N = np.triu(rng.standard_normal((p, p)))
    G = rows.T @ rows / n + deviation * (N + np.triu(N, 1).T)
    h = rows.T @ np.clip(at.y - at.start, -Y, Y) / n + 2.0 * R * Y / (mu * n) * rng.standard_normal(p)
    ridge = at.ridge + lift * deviation * math.sqrt(p)
    u = np.linalg.lstsq(G + np.diag(ridge), h, rcond=None)[0]
    return at.error(u + at.origin())


@dataclass(frozen=True)
class Peer:
    """One method: its runs, its grid, and whether columns are in released scales."""

    name: str
    run: Callable[..., float]
    grid: Mapping[str, tuple]
    released: bool

    def best(self, case: problems.Case, seeds: tuple[int, ...]) -> tuple[list[float], dict[str, float]]:
        """Return the errors of the setting with the least mean error on the search's seeds, and that setting."""
        chosen = self.searched(case)
        return self.measured(case, seeds, chosen), chosen

    def measured(self, case: problems.Case, seeds: tuple[int, ...], options: Mapping[str, float]) -> list[float]:
        """Return the errors of one setting."""
        with np.errstate(all="ignore"):
            return [self.run(prepared(case, seed, released=self.released), seed, **options) for seed in seeds]

    def searched(self, case: problems.Case) -> dict[str, float]:
        """Return the setting with the least mean error on the search's seeds."""
        columns = functools.cache(lambda seed: prepared(case, seed, released=self.released))

        def mean(options, of):
            with np.errstate(all="ignore"):
                return float(np.mean([self.run(columns(seed), seed, **options) for seed in of]))

        settings = [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]
        first = sorted(settings, key=lambda options: mean(options, SEEDS[:1]))[:5]
        return min(first, key=lambda options: mean(options, SEEDS))


def peers_of(case: problems.Case) -> Iterator[Peer]:
    """Yield the peers that can run a case."""
    loss, lasso = case.job.loss, isinstance(case.job.penalty, vfl.L1)
    caps = {"cap": CAPS[loss]}
    for released in (False, True):
        scales = "released" if released else "declared"
        yield Peer(f"noisy GD, {scales} scales", descent, caps | GD_GRID, released)
        if loss == "logistic" and not lasso:
            yield Peer(f"objective perturbation, {scales} scales", perturbed, PERTURBATION_GRID, released)
    if not lasso:
        yield Peer("GD, whitened", whitened, caps | WHITE_GRID, released=True)
    if loss == "squared" and not lasso:
        yield Peer("AdaSSP", adassp, ADASSP_GRID, released=True)


def cases_of(settings: Settings) -> dict[str, Callable[[], problems.Case] | None]:
    """Return {name: how to build it}; None if its data are missing."""
    n, folder = 2_000 if settings.quick else 24_000, settings.data
    cases: dict[str, Callable[[], problems.Case] | None] = {
        f"{loss}, {n:,} × 8": functools.partial(problems.synthetic, loss, 1.0, loss=loss, n=n, p=8)
        for loss in ("logistic", "squared")
    }
    if settings.quick:
        return cases
    cases["logistic, 30,000 × 100"] = functools.partial(
        problems.synthetic, "wide", 1.0, loss="logistic", n=30_000, p=100
    )
    real = {"adult": (problems.adult, "adult"), "credit": (problems.credit, "credit")}
    for title, build in (("California", problems.california), ("Electricity", problems.electricity)):
        for shown, variant in VARIANTS.items():
            real[f"{title} {shown}"] = build, f"{title.lower()}-{variant}"
    return cases | {
        name: None if folder is None else functools.partial(build, folder, key, 1.0)
        for name, (build, key) in real.items()
    }


def tasks(settings: Settings) -> Iterator[Task]:
    """Yield one task per problem and ε."""
    for name, build in cases_of(settings).items():
        if build is None:
            yield Task(name, absent="its data are not at hand (--data)")
            continue
        built = functools.cache(build)
        for epsilon in (1.0,) if settings.quick else EPSILONS:
            yield Task(f"{name}, ε={epsilon:g}", functools.partial(compared, name, built, epsilon, settings))
    yield from joint_tasks(settings)


def joint_tasks(settings: Settings) -> Iterator[Task]:
    """Yield one task per problem and ε that compares joint steps with the rule's passes."""
    simulated = {} if settings.quick else problems.SIMULATED
    for name, build in (
        cases_of(settings) | {key: functools.partial(problems.correlated, key, 1.0) for key in simulated}
    ).items():
        if build is not None:
            built = functools.cache(build)
            for epsilon in (10.0,) if settings.quick else EPSILONS:
                made = functools.partial(joint_steps, name, built, epsilon, settings)
                yield Task(f"joint steps, {name}, ε={epsilon:g}", made)


def joint_steps(name: str, build: Callable[[], problems.Case], epsilon: float, settings: Settings) -> Iterator[Result]:
    """Yield untuned SkGD, then its joint steps where the rule takes them, each with the messages of a run."""
    case = replace(build(), job=replace(build().job, privacy=vfl.Privacy(epsilon=epsilon)))
    seeds, against = settings.seeds(whole=8), None
    for joint in (False, True):
        planned = plan(replace(case.job, solver=vfl.SkGD(joint=joint)), case.n)
        if planned.solver.joint == joint:
            found = Result(
                part="joint steps", case=name, arm="vfl SkGD, joint" if joint else "vfl SkGD", measure="relative error",
                values=case.errors(seeds, joint=joint), seeds=seeds, tuned="default", at={"epsilon": epsilon},
                beside={"messages": planned.messages}, against=against, source="vfl SkGD" if joint else "",
            )  # fmt: skip
            against = found.mean
            yield found


def compared(name: str, build: Callable[[], problems.Case], epsilon: float, settings: Settings) -> Iterator[Result]:
    """Yield every peer with the oracle's options, then untuned SkGD against the best of them."""
    case = replace(build(), job=replace(build().job, privacy=vfl.Privacy(epsilon=epsilon)))
    seeds = settings.seeds(whole=8)
    about = {"part": "methods", "case": name, "measure": "relative error", "at": {"epsilon": epsilon}, "seeds": seeds}
    found, beside = [], {"start": case.start / case.best - 1.0}
    known = {} if settings.quick or settings.search else recorded().get(f"{name}, ε={epsilon:g}", {})
    for peer in peers_of(case):
        chosen = known.get(peer.name) or peer.searched(case)
        errors = peer.measured(case, seeds, chosen)
        found.append(Result(arm=peer.name, values=errors, tuned="oracle grid", settings=chosen, ours=False, **about))
        yield found[-1]
    if not settings.quick and {row.arm: dict(row.settings) for row in found} != known:
        record(f"{name}, ε={epsilon:g}", {row.arm: dict(row.settings) for row in found})
    best = min(found, key=lambda row: row.mean)
    yield Result(
        arm="vfl SkGD", values=case.errors(seeds), tuned="default", against=best.mean, source=best.arm, beside=beside,
        **about,
    )  # fmt: skip


LIMITS = {0.1: 1.5}
"""Largest ratio to the best peer's error that is asked for, by ε; 1 elsewhere."""
MARK, MARK_OF_JOINT = (
    re.compile(rf"(<!-- table of {what} -->\n).*?(<!-- end -->)", re.S) for what in ("methods", "joint steps")
)


def fill(page: Path, results: Sequence[Result]) -> None:
    """Update a page's table between `<!-- table of methods -->` and `<!-- end -->`; unchanged without results."""
    for part, mark, shown in (("methods", MARK, compact), ("joint steps", MARK_OF_JOINT, messages)):
        if found := [result for result in results if result.part == part]:
            text = "\n\n".join([shown(found), report.provenance(found)])
            page.write_text(
                mark.sub(functools.partial(_filled, text), page.read_text(encoding="utf-8")), encoding="utf-8"
            )


def _filled(text: str, found: re.Match[str]) -> str:
    return f"{found[1]}\n{text}\n\n{found[2]}"


def messages(results: Sequence[Result]) -> str:
    """Return one line per problem and ε: messages and errors by rule and with joint steps, and the ratio of the errors."""
    lines = ["| problem | ε | messages by rule → joint | error by rule | joint | ratio |", "|---|---|---|---|---|---|"]
    rules = {(r.case, r.at["epsilon"]): r for r in results if r.arm == "vfl SkGD"}
    joints = {(r.case, r.at["epsilon"]): r for r in results if r.arm != "vfl SkGD"}
    for key, rule in rules.items():
        joint = joints.get(key)
        changed = ("–",) * 3 if joint is None else (f"{joint.beside['messages']:g}", spread(joint), ratio(joint, rule))
        counted = f"{rule.beside['messages']:g} → {changed[0]}"
        lines.append(f"| {key[0]} | {key[1]:g} | {counted} | {spread(rule)} | {changed[1]} | {changed[2]} |")
    return "\n".join(lines)


def ratio(one: Result, other: Result) -> str:
    """Return the ratio of the means of two results ± its standard error."""
    parts = [r.spread / r.mean for r in (one, other)]
    return (
        f"{one.mean / other.mean:.2f} ± {one.mean / other.mean * math.hypot(*parts) / math.sqrt(len(one.values)):.2f}"
    )


def compact(results: Sequence[Result]) -> str:
    """Return one line per problem and ε: the best peer, untuned SkGD, and the ratio of their errors, bold where it is late."""
    lines = [
        "| row | ε | start | best peer, oracle's grid | | untuned SkGD | untuned / peer |",
        "|---|---|---|---|---|---|---|",
    ]
    for ours in (result for result in results if result.ours):
        epsilon = ours.at["epsilon"]
        best = min((r for r in results if not r.ours and (r.case, r.at) == (ours.case, ours.at)), key=lambda r: r.mean)
        ratio = ours.mean / best.mean
        bold = "**" if ratio > LIMITS.get(epsilon, 1.0) else ""
        cells = (
            ours.case,
            f"{epsilon:g}",
            short(ours.beside["start"]),
            spread(best),
            best.arm,
            spread(ours),
            f"{bold}{ratio:.2f}{bold}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(result: Result) -> str:
    """Return mean ± standard deviation."""
    return f"{short(result.mean)} ± {short(result.spread)}"


def short(value: float) -> str:
    """Return three digits, or two and an exponent below 0.01."""
    if value >= 0.01:
        return f"{value:.3g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def recorded() -> dict[str, dict[str, dict[str, float]]]:
    """Return the settings that searches have found."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def record(task: str, found: Mapping[str, Mapping[str, float]]) -> None:
    """Keep the settings that a search has found."""
    tasks = recorded() | {task: found}
    RECORD.write_text(json.dumps(tasks, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(alone("methods"))
