"""Row shards on a local Ray or in one process: memory of each process against n/S, and time per round against S.

    python -m tests.benchmarks.shards 10000000 1 2 4
    python -m tests.benchmarks.shards 4000000 4 --aligned
    python -m tests.benchmarks.shards 2000000 2 --cores [--runs N]

Two parties hold four float32 columns each in Parquet files, which are written once to the folder of the system's temporary
files. Memory is the largest RssAnon of a process of each kind, read five times a second while it loads and trains: its own
memory, without libraries and without pages of Ray's object store, which the processes of a node share. "all" is the largest
sum over all workers, "object store" its shared memory. Seconds are the median of the rounds after the first pass. The files
of 10⁸ records take 4 GB, and training on them in one process 10 GB of memory:

    python -m tests.benchmarks.shards 100000000 4 --passes 2 --engine inprocess --remove

With --aligned, the records are aligned by integer ids, which each party has in an order of its own. Only memory is of interest
there: an exclusive or, which takes next to no time, takes the place of the multiplication of points.

With --cores, S shards on S cores and one shard on one core take turns, each in a process of its own that is pinned to its
cores with all processes of its Ray. The ratio is the seconds per round on one core over those on S cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import vfl
from coordinator.rounds import Round
from vfl.launch.train import stream

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(tempfile.gettempdir()) / "vfl-shards"
ROW_GROUP = 1 << 18
PARTITION = vfl.FeaturePartition(
    {"bank": ["a0", "a1", "a2", "a3"], "telco": ["b0", "b1", "b2", "b3"]}, label=("telco", "y")
)
PROCESSES = ("RowsActor", "LinearPredictorsActor", "PartyActor", "CoordinatorActor")
HERE, ALL, STORE = "this process", "all", "object store"


def sources(n: int) -> dict[str, Path]:
    """Return the parties' files of n records; they are written in pieces."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    FOLDER.mkdir(exist_ok=True)
    paths = {party: FOLDER / f"{party}-{n}.parquet" for party in PARTITION.parties}
    if all(path.exists() for path in paths.values()):
        return paths
    names = {party: PARTITION.wanted(party) for party in paths}
    types = {name: pa.int8() if name == "y" else pa.float32() for own in names.values() for name in own}
    parts = {party: path.with_suffix(".part") for party, path in paths.items()}
    schemas = {party: pa.schema([(name, types[name]) for name in own]) for party, own in names.items()}
    files = {
        party: pq.ParquetWriter(parts[party], schemas[party], compression="none", use_dictionary=False)
        for party in paths
    }
    for columns in pieces(n):
        for party, file in files.items():
            file.write_table(pa.table({name: columns[name] for name in names[party]}, schemas[party]))
    for party, file in files.items():
        file.close()
        parts[party].rename(paths[party])
    return paths


def identified(n: int) -> dict[str, Path]:
    """Return the parties' files with an id per record, the same ids in another order for each party."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = {}
    for k, (party, path) in enumerate(sources(n).items()):
        paths[party] = path.with_name(f"{party}-{n}-ids.parquet")
        if not paths[party].exists():
            ids = 10**9 + np.random.default_rng(k).permutation(n)
            pq.write_table(
                pq.read_table(path).append_column("id", pa.array(ids)), paths[party], row_group_size=ROW_GROUP
            )
    return paths


def unblinded() -> None:
    """Let this process hide points by an exclusive or with a hash of the secret. Each worker of the benchmark calls it."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    from vfl.crypto import psi

    def products(key: Any, data: bytes) -> bytes:
        own = hashlib.sha256(key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())).digest()
        return (np.frombuffer(data, np.uint8).reshape(-1, psi.SIZE) ^ np.frombuffer(own, np.uint8)).tobytes()

    psi._products = products


def pieces(n: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield the columns of n records, piece by piece."""
    rng = np.random.default_rng(0)
    for start in range(0, n, ROW_GROUP):
        size = min(ROW_GROUP, n - start)
        X = 2.0 * rng.random((8, size), np.float32) - 1.0
        y = (X[0] - X[5] + rng.logistic(size=size) > 0).astype(np.int8)
        yield dict(zip(PARTITION.features, X, strict=True)) | {"y": y}


def job(passes: int) -> vfl.Job:
    """Return the job: a private logistic regression."""
    return vfl.Job(
        partition=PARTITION,
        bounds=dict.fromkeys(PARTITION.features, (-1.0, 1.0)),
        precision="float32",
        privacy=vfl.Privacy(epsilon=1.0, noise=vfl.SeededNoise(0)),
        solver=vfl.SkGD(passes=passes, block_size=2),
    )


def memory() -> dict[str, float]:
    """Return MB of this job's Ray: the largest RssAnon of each kind of process, the sum over workers, and the object store."""
    found: dict[str, float] = {ALL: 0.0, STORE: 0.0, HERE: _anonymous(os.getpid())}
    for pid, command in descendants().items():
        try:
            anonymous = _anonymous(pid)
            if b"raylet/raylet" in command:
                found[STORE] = max(found[STORE], _shared(pid))
        except (OSError, StopIteration):  # it has ended
            continue
        if command.startswith(b"ray::"):
            found[ALL] += anonymous
        kind = next((kind for kind in PROCESSES if command.startswith(b"ray::") and kind.encode() in command), None)
        if kind is not None:
            found[kind] = max(found.get(kind, 0.0), anonymous)
    return found


def descendants() -> dict[int, bytes]:
    """Return {pid: command line} of the processes that this one has started, directly or not."""
    parents, commands = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            commands[int(path.name)] = (path / "cmdline").read_bytes()
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return {pid: commands[pid] for pid in own if pid in commands}


def _anonymous(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024


def _shared(pid: int) -> float:
    """Return MB that the object store takes of shared memory; Ray has removed its file's name."""
    files = (file for file in Path(f"/proc/{pid}/fd").iterdir() if "plasma" in str(file.readlink()))
    sizes = {(found.st_dev, found.st_ino): found.st_blocks for found in (file.stat() for file in files)}
    return sum(sizes.values()) * 512 / 2**20


def measure(
    n: int, shards: int, passes: int = 3, engine: str = "ray", *, watched: bool = True, aligned: bool = False
) -> tuple[vfl.Result, dict[str, float], float]:
    """Return the result, MB per process of each kind, and median seconds per round.

    watched : False measures no memory; reading all processes five times a second takes time from the rounds.
    """
    largest: dict[str, float] = {}
    seconds = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            for kind, megabytes in memory().items():
                largest[kind] = max(largest.get(kind, 0.0), megabytes)

    watching = threading.Thread(target=watch)
    if watched:
        watching.start()
    spec, data = (replace(job(passes), id="id"), identified(n)) if aligned else (job(passes), sources(n))
    try:
        for event in stream(spec, data, at=vfl.Ray(shards=shards) if engine == "ray" else vfl.InProcess(shards=shards)):
            if isinstance(event, Round):
                seconds.append(event.seconds)
                print(f"round {event.number}: {event.seconds:.1f} s", file=sys.stderr, flush=True)
    finally:
        ended.set()
        if watched:
            watching.join()
    assert isinstance(event, vfl.Result)
    return event, largest, statistics.median(seconds[len(seconds) // passes :] or seconds)


def pinned(n: int, shards: int, passes: int) -> float:
    """Return the median seconds per round of a run on as many cores as shards."""
    cores = sorted(os.sched_getaffinity(0))[:shards]
    if len(cores) < shards:
        raise SystemExit(f"{shards} cores are needed, and this process may use {len(cores)}")
    command = [sys.executable, "-m", "tests.benchmarks.shards", str(n), str(shards), "--passes", str(passes), "--json"]
    pin = ("taskset", "-c", ",".join(map(str, cores)))
    done = subprocess.run([*pin, *command], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def compared(n: int, shards: int, passes: int, runs: int) -> list[float]:
    """Return, per run, the seconds per round of one shard on one core over those of S shards on S cores."""
    sources(n)
    return [pinned(n, 1, passes) / pinned(n, shards, passes) for _ in range(runs)]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=int)
    parser.add_argument("shards", type=int, nargs="+")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--engine", choices=("ray", "inprocess"), default="ray")
    parser.add_argument("--remove", action="store_true", help="remove the files afterwards")
    parser.add_argument("--aligned", action="store_true")
    parser.add_argument("--cores", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.json:
        seconds = measure(arguments.records, arguments.shards[0], arguments.passes, watched=False)[2]
        print(json.dumps({"seconds": seconds}))
        return
    if arguments.cores:
        for shards in arguments.shards:
            found = compared(arguments.records, shards, arguments.passes, arguments.runs)
            said = f"{statistics.median(found):.2f}  ({min(found):.2f} to {max(found):.2f})"
            print(f"one shard on one core / {shards} shards on {shards} cores: {said}")
        return
    if arguments.aligned:
        import ray

        cpus = len(PARTITION.parties) * max(arguments.shards) + 1
        ray.init(num_cpus=cpus, include_dashboard=False, runtime_env={"worker_process_setup_hook": unblinded})
    models = set()
    kinds = (*PROCESSES, ALL, STORE, HERE) if arguments.engine == "ray" else (HERE,)
    print("| S | s per round | s in all | " + " | ".join(f"{kind}, MB" for kind in kinds) + " |")
    print("|---" * (3 + len(kinds)) + "|")
    files = sources(arguments.records)
    try:
        for shards in arguments.shards:
            start = time.monotonic()
            result, megabytes, seconds = measure(
                arguments.records, shards, arguments.passes, arguments.engine, aligned=arguments.aligned
            )
            models.add(result.coef_.tobytes())
            cells = (f"{megabytes[kind]:.0f}" if kind in megabytes else "–" for kind in kinds)
            lasted = time.monotonic() - start
            print(f"| {shards} | {seconds:.2f} | {lasted:.0f} | " + " | ".join(cells) + " |", flush=True)
            print(result, file=sys.stderr)
    finally:
        for file in files.values() if arguments.remove else ():
            file.unlink()
    print(f"models that differ to the bit: {len(models) - 1}")


if __name__ == "__main__":
    main()
