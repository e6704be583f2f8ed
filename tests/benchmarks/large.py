"""A pass over many records, and the memory that a party takes for it, as ratios in one run.

    python -m tests.benchmarks.large [--records N] [--columns P] [--block S]

1. A private logistic pass in blocks of S, as a party walks through it, against two reads of its columns (at most 1.5).
2. Peak memory of the party's process beyond that of a bare worker, in n-vectors beyond its columns (at most 5).

Each is measured in a process of its own, with one thread; the pass with two as well.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
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
    from parties.party import Party
    from parties.storage.dense import Columns
    from vfl.privacy.noise import CryptographicNoise

    names = tuple(f"x{j}" for j in range(X.shape[1]))
    return Party("a", Columns(X, names), CryptographicNoise(), threads=threads)


def columns_of(n: int, p: int) -> np.ndarray:
    """Return random columns."""
    X = np.empty((n, p), order="F")
    rng = np.random.default_rng(0)
    for j in range(p):
        X[:, j] = rng.uniform(-1.0, 1.0, n)
    X.flags.writeable = False
    return X


def visit_of(n: int, p: int, block: int):
    """Return the query of one pass, as a solver puts it, with the margins and labels that it works on."""
    import vfl
    from vfl.messages import Descend, Records
    from vfl.planning import plan

    names = [f"x{j}" for j in range(p)]
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
    return query.shares()["a"], Records(margins=np.zeros(n), labels=y)


def child(what: str, n: int, p: int, block: int) -> None:
    """Measure in this process, and print the figures as JSON."""
    from vfl.privacy.events import ReleaseKey

    if what == "bare":
        visit_of(8, p, block)
        party_of(columns_of(8, p)).answer(*visit_of(8, p, block), ReleaseKey(0))
        print(json.dumps({"peak": peak()}))
        return
    X = columns_of(n, p)
    party, both = party_of(X), party_of(X, threads=2)
    query, records = visit_of(n, p, block)
    party.answer(query, records, ReleaseKey(0))
    memory = peak()
    seconds = {"pass": [], "two threads": [], "two reads": []}
    for k in range(5 if what == "time" else 0):
        for name, run in (
            ("pass", lambda k=k: party.answer(query, records, ReleaseKey(k + 1))),
            ("two threads", lambda k=k: both.answer(query, records, ReleaseKey(k + 1))),
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
        f"{beyond:.1f} n-vectors beyond them (at most 5: two are the margins and labels it is shown)", file=sys.stderr
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
