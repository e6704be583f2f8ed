"""How error and time vary with who holds what: the number of parties, imbalance and correlation between parties.

    python -m tests.benchmarks.partitions [--quick] [--runs N] [--output DIR]

In VertiBench's manner (Wu, Hou, He 2024), as we read it: importance is spread over parties by a Dirichlet with parameter
α (small: one party has nearly all), each column going to party k with probability r_k, after one to each; correlation is
measured by Icor, the mean over ordered pairs of parties of Pcor(X_i, X_j) − Pcor(X_i, X_i), Pcor(A, B) being the spread
of the singular values of the correlation matrix of A with B, and β = 0..1 moves it from the least to the largest that
swaps of columns find. The records and columns are always the same: 24 columns in four correlated groups. Two arms: `SkGD`
as it is by default, where a partition decides only the order of blocks and the number of messages; and `SkGD, parallel`,
where blocks of all parties move at once from the same margins, so that correlation between parties is felt.
"""

from __future__ import annotations

import functools
import itertools
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import vfl
from tests.benchmarks import problems
from tests.benchmarks.command import alone
from tests.benchmarks.results import Result, Settings, Task
from tests.benchmarks.timing import follow
from vfl.launch.train import stream
from vfl.planning import plan, problem_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

GROUPS, COLUMNS = 4, 24
PARTIES = {"whole": (1, 2, 3, 4, 6, 8, 12, 24), "quick": (1, 4, 24)}
ALPHAS = {"whole": (0.1, 0.3, 1.0, 3.0, 10.0, 100.0), "quick": (0.1, 1.0, 100.0)}
BETAS = {"whole": (0.0, 0.25, 0.5, 0.75, 1.0), "quick": (0.0, 0.5, 1.0)}
NAMES = tuple(f"x{j}" for j in range(COLUMNS))


@functools.lru_cache(maxsize=1)
def case(records: int) -> problems.Case:
    """Return a logistic problem with columns in correlated groups, held by one party."""
    rng = np.random.default_rng(7)
    shared = rng.normal(size=(records, GROUPS)).repeat(COLUMNS // GROUPS, axis=1)
    X = np.clip(np.sqrt(0.7) * shared + np.sqrt(0.3) * rng.normal(size=(records, COLUMNS)), -4, 4)
    signal = X @ rng.normal(size=COLUMNS)
    label = (rng.random(records) < 1 / (1 + np.exp(-2 * signal / signal.std()))).astype(float)
    job = problems.private_job(
        {"a": list(NAMES)}, ("a", "y"), dict.fromkeys(NAMES, (-4.0, 4.0)), 1.0, loss="logistic", penalty=vfl.L2(1e-3)
    )
    return problems.Case("groups", job, pa.table(dict(zip(NAMES, X.T, strict=True)) | {"y": label}))


def tasks(settings: Settings) -> Iterator[Task]:
    """Yield a task an axis."""
    size = "quick" if settings.quick else "whole"
    for axis, places in (("parties", PARTIES), ("α", ALPHAS), ("β", BETAS)):
        yield Task(axis, functools.partial(along, axis, places[size], settings))


def along(axis: str, places: Sequence[float], settings: Settings) -> Iterator[Result]:
    """Yield error and time at each place, for the default and for all parties at once."""
    whole = case(2_000 if settings.quick else 20_000)
    seeds = settings.seeds(whole=5, quick=2)
    for place in places:
        held = [assigned(axis, place, seed, whole) for seed in seeds]
        icor = float(np.mean([inter_party_correlation(correlation(whole), h.values()) for h in held]))
        most = float(np.mean([max(map(len, h.values())) / COLUMNS for h in held]))
        for arm, options in (("SkGD", {}), ("SkGD, parallel", {"block_size": 1, "parallel": len(held[0])})):
            if options and len(held[0]) == 1:
                continue
            runs = [one(whole, h, seed, options) for h, seed in zip(held, seeds, strict=True)]
            errors, trips, seconds = zip(*runs, strict=True)
            common = {
                "part": "partitions", "case": f"by {axis}", "arm": arm, "at": {axis: place}, "seeds": seeds,
                "tuned": "default", "settings": {k: v for k, v in options.items() if k == "parallel"},
            }  # fmt: skip
            beside = {
                "Icor": icor, "largest party": most, "messages": float(np.mean(trips)),
                "processor seconds": float(np.median(seconds)),
            }  # fmt: skip
            yield Result(**common, measure="relative error", values=errors, beside=beside)
            if axis == "parties":
                yield Result(**common, measure="processor seconds of the rounds", unit="s", values=seconds)


def one(whole: problems.Case, held: Mapping[str, Sequence[str]], seed: int, options: Mapping[str, Any]):
    """Return (error, messages, processor seconds of the rounds) of a run on a partition."""
    partition = vfl.FeaturePartition({party: list(names) for party, names in held.items()}, label=("party0", "y"))
    privacy = replace(whole.job.privacy, noise=vfl.SeededNoise(seed))
    job = replace(whole.job, partition=partition, privacy=privacy, solver=vfl.SkGD().changed(seed=seed, **options))
    taken = follow(stream(job, whole.table, at="inprocess"))
    names, order = problem_of(job, whole.n).layout.names, problem_of(whole.job, whole.n).layout.names
    w = dict(zip(names, taken.result.w, strict=True))
    return (
        whole.error_of(np.array([w[name] for name in order])),
        plan(job, whole.n).messages,
        taken.processor,
    )


def assigned(axis: str, place: float, seed: int, whole: problems.Case) -> dict[str, list[str]]:
    """Return {party: columns}, drawn with the seed."""
    rng = np.random.default_rng(seed)
    shuffled = [NAMES[j] for j in rng.permutation(COLUMNS)]
    if axis == "parties":
        cuts = [COLUMNS * k // int(place) for k in range(int(place) + 1)]
        return {f"party{k}": shuffled[a:b] for k, (a, b) in enumerate(itertools.pairwise(cuts))}
    if axis == "α":
        share = rng.dirichlet([place] * GROUPS)
        owners = [*range(GROUPS), *rng.choice(GROUPS, COLUMNS - GROUPS, p=share)]
        return {f"party{k}": [c for c, o in zip(shuffled, owners, strict=True) if o == k] for k in range(GROUPS)}
    least, most = (_towards(target, correlation(whole), shuffled, rng) for target in (-np.inf, np.inf))
    ends = [inter_party_correlation(correlation(whole), held.values()) for held in (least, most)]
    return _towards(ends[0] + place * (ends[1] - ends[0]), correlation(whole), shuffled, rng)


@functools.lru_cache(maxsize=1)
def correlation(whole: problems.Case) -> np.ndarray:
    """Return the correlations of all columns, (p, p) in the order of NAMES."""
    return np.corrcoef(np.column_stack([whole.table[name].to_numpy() for name in NAMES]), rowvar=False)


def inter_party_correlation(C: np.ndarray, parties) -> float:
    """Return Icor of a partition, 0 for a single party."""
    index = {name: j for j, name in enumerate(NAMES)}
    rows = [[index[name] for name in names] for names in parties]
    if len(rows) == 1:
        return 0.0
    spread = [[_pcor(C[np.ix_(a, b)]) for b in rows] for a in rows]
    m = len(rows)
    pairs = itertools.permutations(range(m), 2)
    return float(sum(spread[i][j] - spread[i][i] for i, j in pairs) / (m * (m - 1)))


def _pcor(block: np.ndarray) -> float:
    """Return Pcor: 1/√d times the standard deviation of d singular values; a single one counts as itself."""
    values = np.linalg.svd(block, compute_uv=False)
    d = len(values)
    return float(values[0]) if d == 1 else float(np.std(values, ddof=1) / np.sqrt(d))


def _towards(target: float, C: np.ndarray, shuffled: Sequence[str], rng, tries: int = 300) -> dict[str, list[str]]:
    """Return equal parties whose Icor is near a target: swaps of two columns that bring it nearer are kept."""
    names, size = list(shuffled), COLUMNS // GROUPS

    def parties():
        return [names[k * size : (k + 1) * size] for k in range(GROUPS)]

    def off() -> float:
        icor = inter_party_correlation(C, parties())
        return abs(icor - target) if np.isfinite(target) else -np.sign(target) * icor

    best = off()
    for a, b in rng.integers(0, COLUMNS, (tries, 2)):
        names[a], names[b] = names[b], names[a]
        if (found := off()) < best:
            best = found
        else:
            names[a], names[b] = names[b], names[a]
    return {f"party{k}": held for k, held in enumerate(parties())}


if __name__ == "__main__":
    sys.exit(alone("partitions"))
