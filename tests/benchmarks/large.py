"""A pass over many records, and the memory that a party takes for it, as ratios in one run.

    python -m tests.benchmarks.large [--records N] [--columns P] [--block S]

1. A private logistic pass in blocks of S, as a party walks through it, against two reads of its columns (at most 1.5).
2. Peak memory of the party's process beyond that of a bare worker, in n-vectors beyond its columns (at most 5).

Each is measured in a process of its own, with one thread; the pass with two as well.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def peak() -> int:
    """Return the largest resident size that this process had, in bytes.

    Linux tells it of this program alone; what getrusage tells begins at the size of whoever started the process.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def party_of(X: np.ndarray, threads: int = 1):
    """Return a party with these columns."""
    from parties.storage.dense import Columns
    from tests.parties.alone import party_over
    from vfl.privacy.noise import CryptographicNoise

    names = tuple(f"x{j}" for j in range(X.shape[1]))
    return party_over("a", Columns(X, names), CryptographicNoise(), threads=threads)


def columns_of(n: int, p: int) -> np.ndarray:
    """Return random columns."""
    X = np.empty((n, p), order="F")
    rng = np.random.default_rng(0)
    for j in range(p):
        X[:, j] = rng.uniform(-1.0, 1.0, n)
    X.flags.writeable = False
    return X


def visit_of(X: np.ndarray, block: int):
    """Return the query of one pass, with the vectors that it works on and the key of the charge that pays for it."""
    import vfl
    from vfl.kernels.dense import record_norms
    from vfl.kernels.geometry import record_limits
    from vfl.planning import plan
    from vfl.privacy.events import ReleaseKey
    from vfl.queries import Descend, Records
    from vfl.queries.passes import Paid

    n, names = len(X), [f"x{j}" for j in range(X.shape[1])]
    job = vfl.Job(
        partition=vfl.FeaturePartition({"a": names, "b": ["z"]}, label=("b", "y")),
        bounds=dict.fromkeys([*names, "z"], (-1.0, 1.0)),
        intercept=False,
        privacy=vfl.Privacy(epsilon=1.0, smoothness="bounds"),
        solver=vfl.SkGD(block_size=block, passes=1, sampling="cyclic"),
    )
    made = plan(job, n)
    query = next(q for q in made.solver.schedule(made.problem) if isinstance(q, Descend) and "a" in q.steps)
    y = np.sign(np.random.default_rng(1).normal(size=n))
    key = ReleaseKey(0)
    query = replace(query, capped=replace(query.capped, paid=Paid(key, query.capped.price(0))))
    _, centre, scale = query.capped.rows["a"]
    limits = record_limits(record_norms(X, centre, scale), query.capped.cap)
    return query.shares()["a"], Records(margins=np.zeros(n), labels=y, limits=limits), key


def child(what: str, n: int, p: int, block: int) -> None:
    """Measure in this process, and print the figures as JSON."""
    if what == "bare":
        few = columns_of(8, p)
        party_of(few).answer(*visit_of(few, block))
        print(json.dumps({"peak": peak()}))
        return
    X = columns_of(n, p)
    party, both = party_of(X), party_of(X, threads=2)
    query, records, key = visit_of(X, block)
    party.answer(query, records, key)
    memory = peak()
    seconds = {"pass": [], "two threads": [], "two reads": []}
    for k in range(5 if what == "time" else 0):
        key = replace(key, round=k + 1)
        query = replace(query, capped=replace(query.capped, paid=replace(query.capped.paid, key=key)))
        for name, run in (
            ("pass", functools.partial(party.answer, query, records, key)),
            ("two threads", functools.partial(both.answer, query, records, key)),
            ("two reads", lambda: (X.sum(), X.sum())),
        ):
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    print(
        json.dumps({"peak": memory, "columns": X.nbytes} | {name: min(s, default=0.0) for name, s in seconds.items()})
    )


def measured(n: int, p: int, block: int) -> tuple[float, float]:
    """Return the time of a pass in two reads of its columns, and its memory in n-vectors beyond them; print both."""

    def said(what: str) -> dict[str, float]:
        shape = (f"--records={n}", f"--columns={p}", f"--block={block}")
        command = [sys.executable, "-m", "tests.benchmarks.large", "--child", what, *shape]
        environment = os.environ | dict.fromkeys(THREADS, "1")
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)

    bare, memory, taken = said("bare"), said("memory"), said("time")
    ratio = taken["pass"] / taken["two reads"]
    beyond = (memory["peak"] - bare["peak"] - memory["columns"]) / (8 * n)
    print(f"n = {n}, p = {p}, blocks of {block}, one thread", file=sys.stderr)
    seconds = f"pass {taken['pass']:.3f} s, two reads of X {taken['two reads']:.3f} s"
    print(f"{seconds}: ratio {ratio:.2f} (at most 1.5)", end=", ", file=sys.stderr)
    print(f"with two threads {taken['two threads'] / taken['two reads']:.2f}", file=sys.stderr)
    sizes = {"peak": memory["peak"], "bare worker": bare["peak"], "columns": memory["columns"]}
    print(", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in sizes.items()), end=": ", file=sys.stderr)
    print(
        f"{beyond:.1f} n-vectors beyond them (at most 5: three are the margins, labels and limits it is shown)",
        file=sys.stderr,
    )
    return ratio, beyond


def main() -> None:
    """Run the children and print both ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--block", type=int, default=10)
    parser.add_argument("--child", choices=("bare", "memory", "time"))
    options = parser.parse_args()
    shape = (options.records, options.columns, options.block)
    if options.child:
        child(options.child, *shape)
    else:
        measured(*shape)


if __name__ == "__main__":
    main()
