"""Fairness of private models against the model without noise: what bounds allow, and what 100 private models show.

    python -m tests.benchmarks.fairness --data DIR [--output DIR] [--models 100]

Equal opportunity by sex, on adult and on the credit defaults of Taiwan: logistic loss, L2 penalty on every coordinate, output
perturbation, δ = 1/n², 10 % of the records held out. For each place the script draws private models around the exact
minimiser h*, with the noise that a run would add, and compares F(h) − F(h*) on the held-out records with

    thesis     Theorem 6.5.1 of P. Mangold's thesis (arXiv 2210.16242), P(R ≤ d | E) ≤ d·E(1/R | E) by Markov's inequality
    Chernoff   its other form, P(R ≤ d | E) ≤ min over t of E(exp(t(d − R)) | E)
    count      the records with R ≤ d themselves
    released   the interval that a run states: counts with noise at the same ε, and sampling

R = |xᵀw|/‖x‖. The first two take d from the textbook calibration of the noise (σ = Δ√(2 ln(1.25/δ))/ε, and ‖N‖² ≤ 4pσ²ln(2/ζ)
for its length), the others the d of a run (`OutputPerturbation.radius`). Not private: it reads the data, which nobody may.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

import vfl
from tests.benchmarks.problems import adult, credit
from vfl.measures.distance import ERROR, OF_DISTANCE, lipschitz
from vfl.measures.fairness import Notion, Table, gap, shift
from vfl.planning import plan as make_plan
from vfl.queries.statistics import GRID, GroupCells, is_near

NOTION = Notion("opportunity", 1, correct=True)
EPSILONS = (0.3, 1.0, 3.0, 10.0)
SHARES = (0.1, 0.3, 1.0)
FLOOR = 5e-4
"""Smallest difference that is drawn."""
KEPT = ("relationship", "marital_status", "race", "sex")


@dataclass(frozen=True)
class Place:
    """One setting. gap : F of h*. shown : lowest and highest F(h) − F(h*) of the drawn models. Others : one bound each."""

    data: str
    strength: float
    epsilon: float
    n: int
    d: float
    length: float
    gap: float
    shown: tuple[float, float]
    thesis: float
    chernoff: float
    count: tuple[float, float]
    released: tuple[float, float]
    beyond: int


def of_adult(folder, epsilon):
    """Adult with its numbers and few categories: sex is a feature of party b."""
    case = adult(folder, "adult", epsilon)
    dropped = [c for c in case.job.partition.features if c in case.job.columns and c not in KEPT]
    partition = case.job.partition.without(dropped)
    columns = {c: declared for c, declared in case.job.columns.items() if c in KEPT}
    job = replace(
        case.job, partition=partition.changed(sparse=["b"]), columns=columns
    )  # categories are 0 and 1, not ±1
    return replace(case, job=job), "sex", ("Female", "Male")


def of_credit(folder, epsilon):
    """Defaults of credit cards in Taiwan, from two parties: sex lies with the host and is no feature here."""
    case = credit(folder, "credit", epsilon)
    parties = {p: [c for c in case.job.partition.columns(p) if c != "SEX"] for p in case.job.partition.parties}
    partition = vfl.FeaturePartition(parties, label=case.job.partition.label, groups={"host": ["SEX"]})
    bounds = {c: limits for c, limits in case.job.bounds.items() if c != "SEX"}
    columns = {"SEX": vfl.Categorical((1, 2))}
    fairness = vfl.Fairness(group="SEX")
    changed = {
        "partition": partition,
        "bounds": bounds,
        "columns": columns,
        "evaluation": vfl.Evaluation(holdout=0.1, fairness=fairness),
    }
    return replace(case, job=replace(case.job, **changed)), "SEX", (1, 2)


DATA = {"adult": of_adult, "credit": of_credit}


def job_of(case, group, epsilon, strength, **options):
    """The job of one place: output perturbation and a check of fairness."""
    fixed = {
        "privacy": vfl.Privacy(epsilon=epsilon),
        "penalty": vfl.L2(strength),
        "solver": vfl.solvers.OutputPerturbation(),
        "evaluation": vfl.Evaluation(holdout=0.1, fairness=vfl.Fairness(group=group)),
    }
    return replace(case.job, **(fixed | options))


def minimiser(X, y, strength):
    """h*, for logistic loss and L2 on every coordinate."""

    def value(w):
        v = -y * (X @ w)
        r = -y / (1.0 + np.exp(-v))
        return float(np.logaddexp(0.0, v).mean()) + 0.5 * strength * float(w @ w), X.T @ r / len(y) + strength * w

    options = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 3000}
    return minimize(value, np.zeros(X.shape[1]), jac=True, method="L-BFGS-B", options=options).x


def textbook_distance(problem, epsilon, delta, chance):
    """d of output perturbation by the classical Gaussian mechanism and a tail bound of its length."""
    Δ = 2.0 * lipschitz(problem) / (problem.penalty.convexity * problem.n_records)
    sigma = Δ * math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon
    return 2.0 * sigma * math.sqrt(problem.layout.n_coordinates * math.log(2.0 / chance))


def chernoff(R, d):
    """The smallest bound of P(R ≤ d) over t ≥ 0."""
    ts = np.concatenate([[0.0], np.geomspace(1e-2, 1e4, 60) / max(d, 1e-9) / 10.0])
    return float(min(np.exp(np.clip(t * (d - R), -700, 50)).mean() for t in ts))


def scaled(case):
    """X and y of all records, as trained on."""
    return replace(case, job=case.job.on_all_records()).scaled


def place_of(name, case, whole, group, values, epsilon, strength, n, models, rng):
    """Draw private models around h*, and compare."""
    job = job_of(case, group, epsilon, strength)
    plan = make_plan(job, n)
    apart = job.split.held_out(n)
    order = np.random.default_rng(0).permutation(case.n)[:n]
    X, y = (array[order] for array in whole)
    codes = np.asarray([values.index(v) for v in np.asarray(case.table[group].to_pylist(), object)[order]])
    best = minimiser(X[~apart], y[~apart], strength)
    ((event, _),) = plan.solver.releases(plan.problem)
    d = plan.solver.radius(plan.problem, OF_DISTANCE)
    wide = textbook_distance(plan.problem, epsilon, plan.problem.delta, ERROR)
    (evaluation,) = (i for i in plan.evaluations if i.name == "fairness")
    ((released, _),) = evaluation.releases()
    held, labels, groups = X[apart], y[apart], codes[apart].astype(float)
    squares = (held**2).sum(axis=1)

    def table(w, distance, sigma=0.0):
        counts = GroupCells((len(values),), distance)(held @ w, labels, groups, squares) * GRID
        noisy = counts + (sigma * rng.normal(size=counts.size) if sigma else 0.0)
        return Table(noisy.reshape(len(values), 2, 2, 2), np.ones((len(values), 2, 2, 2)), sigma)

    def value(w):
        return gap(table(w, d), NOTION, 0).value

    positive, own = labels > 0, groups == 0
    weight = 1.0 - (own & positive).sum() / positive.sum()
    at_best, moved, bounds, beyond = value(best), [], [], 0
    for k in range(models):
        w = best + event.sigma * rng.normal(size=best.size)
        margins = held @ w
        now, near, hit = value(w), is_near(margins, squares, d), margins > 0
        # Of positive records, those that another model may lose and those that it may gain.
        lose, gain = (
            [float((positive & g & near & side).sum() / (positive & g).sum()) for g in (own, ~own)]
            for side in (hit, ~hit)
        )
        low, high = -weight * (lose[0] + gain[1]), weight * (gain[0] + lose[1])
        moved.append(now - at_best)
        beyond += not low - 1e-12 <= at_best - now <= high + 1e-12
        if k < 10:
            R = abs(margins) / np.sqrt(squares)
            sides = [R[positive & g] for g in (own, ~own)]
            markov = weight * sum(min(1.0, wide * float((1.0 / side).mean())) for side in sides)
            other = weight * sum(chernoff(side, wide) for side in sides)
            stated = shift(table(w, d, released.sigma), NOTION, 0)
            bounds.append((markov, other, low, high, *stated))
    markov, other, low, high, *stated = np.median(bounds, axis=0)
    shown = (-max(moved), -min(moved))  # F(h*) − F(h), as the bounds state it
    return Place(
        name, strength, epsilon, n, d, float(np.linalg.norm(best)), at_best, shown, markov, other,
        (low, high), tuple(stated), beyond,
    )  # fmt: skip


def places(folder, models, *, only=None):
    """Yield every place: ε at all records, and sizes at ε = 1 and 3."""
    rng = np.random.default_rng(1)
    for name, build in DATA.items():
        if only not in (None, name):
            continue
        case, group, values = build(folder, 1.0)
        whole = scaled(case)
        for strength in (0.03, 0.1):
            settings = [(epsilon, case.n) for epsilon in EPSILONS]
            settings += [(epsilon, int(share * case.n)) for epsilon in (1.0, 3.0) for share in SHARES[:-1]]
            for epsilon, n in settings:
                yield place_of(name, case, whole, group, list(values), epsilon, strength, n, models, rng)


def runs(folder):
    """Yield (data, ε, settings, findings) of whole runs through vfl, 20 % held out."""
    for name, build in DATA.items():
        for epsilon in (1.0, 3.0):
            case, group, _ = build(folder, epsilon)
            privacy = vfl.Privacy(epsilon=epsilon, noise=vfl.SeededNoise(5))
            fixed = {"evaluation": vfl.Evaluation(holdout=0.2), "privacy": privacy}
            thresholds = vfl.Fairness(group=group, bound=False, threshold_per_group=True)
            for said, strength, options in (
                ("output perturbation, λ = 0.03", 0.03, {}),
                ("SkGD, λ = 1e-4", 1e-4, {"solver": vfl.SkGD()}),
                (
                    "SkGD, λ = 1e-4, thresholds",
                    1e-4,
                    {"solver": vfl.SkGD(), "evaluation": vfl.Evaluation(fairness=thresholds)},
                ),
            ):
                job = job_of(case, group, epsilon, strength, **fixed, **options)
                result = vfl.train(job, case.table, at="inprocess", watch=lambda event: None)
                yield name, epsilon, said, result.findings


def draw(found, path):
    """Draw the bounds against ε and n, as Figure 6.6.1 of the thesis does."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 6.4), dpi=110, layout="constrained")
    axes = figure.subplots(2, 2, sharey="row")
    for row, name in zip(axes, DATA, strict=True):
        for panel, along in zip(row, ("epsilon", "n"), strict=True):
            own = [p for p in found if p.data == name and p.strength == 0.1]
            whole = max(p.n for p in own)
            own = [p for p in own if (p.n == whole if along == "epsilon" else p.epsilon == 3.0)]
            own.sort(key=lambda p: getattr(p, along))
            x = [getattr(p, along) for p in own]
            panel.plot(x, [min(p.thesis, 2.0) for p in own], "C3^--", label="thesis, Markov")
            panel.plot(x, [p.chernoff for p in own], "C1v--", label="thesis, Chernoff")
            panel.plot(x, [max(-p.count[0], p.count[1]) for p in own], "C0o-", label="counted")
            released = [max(-p.released[0], p.released[1]) for p in own]
            panel.plot(x, released, "C2s-", label="stated by a run: counted, noise, sampling")
            panel.plot(x, [max(FLOOR, *map(abs, p.shown)) for p in own], "kx:", label="largest of the private models")
            panel.set(xscale="log", yscale="log", xlabel="ε" if along == "epsilon" else "records, ε = 3")
            panel.set_xticks(x, [f"{value:g}" if along == "epsilon" else f"{value:,}" for value in x])
            panel.set_xticks([], minor=True)
            panel.set_ylim(bottom=FLOOR)
            panel.grid(alpha=0.3)
            panel.set_title(f"{name}, λ = 0.1" + (f", {whole:,} records" if along == "epsilon" else ""))
        row[0].set_ylabel("|F(h) − F(h*)|")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small")
    figure.savefig(path)


def said(found):
    """The table of docs/fairness.md."""
    head = (
        "| data | λ | ε | records | d, ‖h*‖ | thesis: Markov, Chernoff | counted | stated by a run | private models |"
    )
    yield head + "\n|---|---|---|---|---|---|---|---|---|"
    for p in found:
        counted, stated, shown = (f"{a:+.3f}, {b:+.3f}".replace("-", "−") for a, b in (p.count, p.released, p.shown))
        yield (
            f"| {p.data} | {p.strength:g} | {p.epsilon:g} | {p.n:,} | {p.d:.3g}, {p.length:.3g} | {p.thesis:.2f}, "
            f"{p.chernoff:.2f} | {counted} | {stated} | {shown} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data")
    parser.add_argument("--output", type=Path, default=Path(), help="folder of the figure and of the numbers")
    parser.add_argument("--models", type=int, default=100, help="private models per place")
    parser.add_argument("--only", choices=DATA)
    given = parser.parse_args()
    found = []
    for place in places(given.data, given.models, only=given.only):
        found.append(place)
        print(list(said([place]))[1], f"beyond {place.beyond}", flush=True)
    given.output.mkdir(parents=True, exist_ok=True)
    (given.output / "fairness.json").write_text(json.dumps([vars(p) for p in found], indent=1))
    if given.only is None:
        draw(found, given.output / "fairness.png")
    print(*said(found), sep="\n")
    print(f"{sum(p.beyond for p in found)} of {given.models * len(found)} models beyond their interval")
    for name, epsilon, settings, findings in runs(given.data):
        print(f"{name}, ε = {epsilon:g}, {settings}", *(f"{k}: {v}" for k, v in findings.items()), sep="\n")


if __name__ == "__main__":
    main()
