"""Alignment of two parties against bare X25519, in one run: `python -m tests.benchmarks.alignment [n] [cores]`.

Bare is what `cryptography` does with keys that are made already, in one process for each core, all at the same time. It
is measured before and after each alignment and the mean counts, since the machine's own rate wanders.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import vfl
from vfl.security import psi
from vfl.security.identifiers import normalise

BARE = """
import os, sys, time
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
key, n = X25519PrivateKey.generate(), int(sys.argv[1])
points = [X25519PublicKey.from_public_bytes(os.urandom(32)) for _ in range(n)]
sys.stdout.write("ready\\n"), sys.stdout.flush(), sys.stdin.readline()
start, busy = time.perf_counter(), time.process_time()
for point in points:
    key.exchange(point)
print(n / (time.perf_counter() - start), n / (time.process_time() - busy))
"""


def bare(cores: int, n: int = 40_000) -> tuple[float, float]:
    """Return operations a second of all cores together, and operations a second of processor time."""
    command = [sys.executable, "-c", BARE, str(n)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(cores)]
    for process in processes:
        process.stdout.readline()
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    rates = [tuple(map(float, process.communicate()[0].split())) for process in processes]
    return sum(rate for rate, _ in rates), statistics.fmean(busy for _, busy in rates)


def processor_time() -> float:
    """Return processor seconds of this process and of those that it started and that have ended."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def align(n: int, cores: int) -> tuple[float, dict[str, float]]:
    """Align n ids with n others, half of them shared; returns seconds of all and of its parts."""
    ids = {"a": [f"customer {k}" for k in range(n)], "b": [f"customer {k}" for k in range(n // 2, n + n // 2)]}
    salt, parts, start = psi.new_salt(), {}, time.perf_counter()

    def lap(name: str) -> None:
        parts[name] = time.perf_counter() - start - sum(parts.values())

    normal = {party: normalise(column, party=party) for party, column in ids.items()}
    lap("normalise")
    blinders = {party: psi.Blinder(party, salt, cores=cores) for party in ids}
    sets = {party: blinders[party].own(normal[party]) for party in ids}
    lap("own sets")
    for step in psi.ring(list(ids)):
        sets |= {owner: blinders[party].blind(sets[owner], owner) for party, owner in step.items()}
    lap("others' sets")
    positions = psi.intersect(sets)
    lap("intersect")
    rows = {party: blinders[party].rows(positions[party]) for party in ids}
    for blinder in blinders.values():
        blinder.close()
    lap("rows")
    if [ids["a"][k] for k in rows["a"]] != [ids["b"][k] for k in rows["b"]] or len(rows["a"]) != n - n // 2:
        raise SystemExit("wrong result")
    return sum(parts.values()), parts


def align_a_job(n: int, cores: int) -> tuple[float, float]:
    """Align as many ids as a job does, from Parquet; returns the seconds of all, and the processor's."""
    with tempfile.TemporaryDirectory() as folder:
        sources, first = {}, {"a": 0, "b": n // 2}
        for party, start in first.items():
            sources[party] = f"{folder}/{party}.parquet"
            ids = pa.array([f"customer {k}" for k in range(start, start + n)])
            table = {"customer": ids, party: pa.array([0.5] * n), "label": pa.array([k % 2 for k in range(n)])}
            pq.write_table(pa.table(table).take(np.random.default_rng(start).permutation(n)), sources[party])
        partition = vfl.FeaturePartition({"a": ["a"], "b": ["b"]}, label=("a", "label"))
        job = vfl.Job(partition=partition, id="customer", bounds={"a": (0, 1), "b": (0, 1)}, privacy=None)
        start, busy = time.perf_counter(), processor_time()
        indexes = {party: f"{folder}/own-{party}" for party in sources}
        found = vfl.align(job, vfl.Source(sources, index=indexes), at=vfl.InProcess(cores=cores))
        seconds, busy = time.perf_counter() - start, processor_time() - busy
    if found.n_records != n - n // 2:
        raise SystemExit("wrong result")
    return seconds, busy


def main(n: int = 100_000, cores: int = 2) -> None:
    """Print rates, their ratio, and memory."""
    before, start = bare(cores), processor_time()
    total, parts = align(n, cores)
    busy, after = processor_time() - start, bare(cores)
    (bare_rate, bare_busy), rate = map(statistics.fmean, zip(before, after, strict=True)), 4 * n / total
    blinding = 4 * n / (parts["own sets"] + parts["others' sets"])
    (whole, job_busy), last = align_a_job(n, cores), bare(cores)
    print(f"two parties of {n:,} on {cores} cores: {total:.1f} s, foreseen {psi.seconds([n, n], cores):.1f} s")
    print("  " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in parts.items()))
    print(f"  bare X25519 {bare_rate:,.0f} a second; {1e6 / bare_busy:.1f} µs of processor time")
    print(f"  alignment {rate:,.0f} a second; {busy / (4 * n) * 1e6:.1f} µs of processor time an operation, all told")
    print(f"  {rate / bare_rate:.1%} of bare by the clock (blinding alone {blinding / bare_rate:.1%}),", end=" ")
    print(f"{4 * n / busy / bare_busy:.1%} by processor time, which others on the machine disturb less")
    rate, (bare_rate, bare_busy) = 4 * n / whole, map(statistics.fmean, zip(after, last, strict=True))
    print(f"  as a job, from Parquet, with state and indexes kept on disk: {whole:.1f} s,", end=" ")
    print(f"{rate / bare_rate:.1%} of bare by the clock, {4 * n / job_busy / bare_busy:.1%} by processor time")
    own, children = (
        resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(f"  peak memory {own:,.0f} MB with both parties in it, {children:,.0f} MB the largest process of a core")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
