"""Costs of sparse columns: `python -m tests.benchmarks.sparse`. Times and their ratios, from one run.

A step should cost time per stored entry, for any number of records. A job as wide as 800 × 88,119, or 100,000 × 100,000
with 50 entries per record, should fit into memory and train.
"""

from __future__ import annotations

import resource
import time

import numpy as np
import scipy.sparse

import vfl
from coordinator.rounds import Round
from tests.benchmarks.kernels import GRID, best, show
from vfl.kernels import dense, sparse
from vfl.kernels.geometry import Geometry
from vfl.kernels.sparse import SparseBlock


def steps() -> None:
    """Time one step on blocks of more and more entries, then of more and more records."""
    rng = np.random.default_rng(0)

    def run(n: int, s: int, entries: int):
        rows = np.concatenate([np.sort(rng.choice(n, entries, replace=False)) for _ in range(s)]).astype(np.int32)
        block = SparseBlock.of(rng.normal(size=entries * s), rows, np.arange(s + 1) * entries, n)
        v, y, c, one = rng.normal(size=n), np.sign(rng.normal(size=n)), np.zeros(s), np.ones(s)
        return lambda: sparse.step(
            block, 1e-9 * one, 0.0, v, y, dense.LOGISTIC, block, Geometry(c, one, float(s) ** 0.5, GRID)
        )

    show(
        "a step on 8 columns of 100,000 records, by stored entries",
        best(200, **{f"{8 * k:,} entries": run(100_000, 8, k) for k in (50, 500, 5_000, 50_000)}),
        "400 entries",
    )
    show(
        "a step on 8 columns of 50 entries each, by records",
        best(200, **{f"{n:,} records": run(n, 8, 50) for n in (1_000, 10_000, 100_000, 1_000_000)}),
        "1,000 records",
    )


def against_dense(n: int = 100_000, s: int = 16) -> None:
    """Time a step on the same columns, dense and sparse."""
    rng, runs = np.random.default_rng(0), {}
    y, c, one = np.sign(rng.normal(size=n)), np.zeros(s), np.ones(s)
    for density in (0.001, 0.01, 0.1, 1.0):
        X = rng.normal(size=(n, s)) * (rng.random((n, s)) < density)
        stored = scipy.sparse.csc_array(X)
        blocks = {sparse: SparseBlock.of(stored.data, stored.indices, stored.indptr, n)}
        if density == 1.0:
            blocks[dense] = np.asfortranarray(X)
        for module, A in blocks.items():
            v = rng.normal(size=n)
            at = 1e-9 * one, 0.0, v, y, dense.LOGISTIC, A, Geometry(c, one, 4.0, GRID)
            runs["dense" if module is dense else f"sparse, {density:.1%} stored"] = lambda module=module, A=A, at=at: (
                module.step(A, *at)
            )
    show(f"a step on {s} columns of {n:,} records", best(50, **runs), "dense")


def job(n: int, p: int, stored: int, solver: vfl.SkGD | vfl.GCD, parties: int = 2) -> None:
    """Train in this process and print what a release took."""
    rng = np.random.default_rng(0)
    X = scipy.sparse.csc_array(
        (rng.uniform(0.2, 1.0, stored), (rng.integers(0, n, stored), rng.integers(0, p, stored))), (n, p)
    )
    X.data = np.minimum(X.data, 1.0)
    y = {"y": (X @ rng.normal(size=p) + 0.1 * rng.normal(size=n) > 0).astype(int)}
    cut = [p * k // parties for k in range(parties + 1)]
    owned = {f"p{k}": [f"x{j}" for j in range(cut[k], cut[k + 1])] for k in range(parties)}
    spec = vfl.Job(
        partition=vfl.FeaturePartition({**owned, "lab": []}, label=("lab", "y")),
        bounds={"*": (0, 1)},
        sparse=list(owned),
        privacy=vfl.Privacy(epsilon=2.0, smoothness="bounds"),
        penalty=vfl.L1(1e-4),
        solver=solver,
    )
    data = {f"p{k}": X[:, cut[k] : cut[k + 1]] for k in range(parties)} | {"lab": y}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times, releases = [time.perf_counter()], 0

    def watch(event: object) -> None:
        nonlocal releases
        if not times[1:] or isinstance(event, Round):
            times.append(time.perf_counter())
        if isinstance(event, Round):
            releases += len(event.released)

    vfl.train(spec, data, at="inprocess", watch=watch)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    took = times[-1] - times[1]
    print(f"\n{spec.solver.name}, {n:,} × {p:,}, {X.nnz:,} stored entries ({8e-6 * n * p:,.0f} MB if they were dense)")
    print(f"  to load and plan {times[1] - times[0]:.1f} s, then {releases:,} releases in {took:.2f} s,", end=" ")
    print(f"{1e6 * took / releases:,.0f} µs each; {(after - before) / 1024:,.0f} MB more than before")


if __name__ == "__main__":
    steps()
    against_dense()
    job(800, 88_119, 400_000, vfl.GCD(rounds=200))
    job(100_000, 100_000, 5_000_000, vfl.SkGD(passes=1, block_size=50))
    job(100_000, 100_000, 5_000_000, vfl.SkGD(passes=1, block_size=1))
