"""Row shards on a local Ray: memory of each process against n/S, and time per round against S.

    python -m tests.benchmarks.shards 10000000 1 2 4

Two parties hold four float32 columns each in Parquet files, which are written once to the folder of the system's temporary
files. Memory is the largest RssAnon of a process after any round: what it holds itself, without libraries and without pages of
Ray's object store, which the processes of a node share. Seconds are the median of the rounds after the first pass.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import vfl
from coordinator.rounds import Round

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(tempfile.gettempdir()) / "vfl-shards"
ROW_GROUP = 1 << 18
PARTITION = vfl.FeaturePartition(
    {"bank": ["a0", "a1", "a2", "a3"], "telco": ["b0", "b1", "b2", "b3"]}, label=("telco", "y")
)
PROCESSES = ("RowsActor", "MarginsActor", "PartyActor", "CoordinatorActor")


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
    files = {party: pq.ParquetWriter(parts[party], schemas[party], compression="none") for party in paths}
    for columns in pieces(n):
        for party, file in files.items():
            file.write_table(pa.table({name: columns[name] for name in names[party]}, schemas[party]))
    for party, file in files.items():
        file.close()
        parts[party].rename(paths[party])
    return paths


def pieces(n: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield the columns of n records, piece by piece."""
    rng = np.random.default_rng(0)
    for start in range(0, n, ROW_GROUP):
        size = min(ROW_GROUP, n - start)
        X = rng.uniform(-1.0, 1.0, (8, size)).astype(np.float32)
        y = (X[0] - X[5] + rng.logistic(size=size) > 0).astype(np.int8)
        yield dict(zip(PARTITION.features, X, strict=True)) | {"y": y}


def job(passes: int) -> vfl.Job:
    """Return the job: a private logistic regression."""
    return vfl.Job(
        partition=PARTITION,
        bounds=dict.fromkeys(PARTITION.features, (-1.0, 1.0)),
        storage="float32",
        privacy=vfl.Privacy(epsilon=1.0, noise=vfl.SeededNoise(0)),
        solver=vfl.SkGD(passes=passes, block_size=2),
    )


def memory() -> dict[str, float]:
    """Return the largest RssAnon of the processes of each kind, in MB; of this user's Ray."""
    found: dict[str, float] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            if not command.startswith(b"ray::"):
                continue
            lines = (path / "status").read_text().splitlines()
        except OSError:
            continue
        kind = next((kind for kind in PROCESSES if kind.encode() in command), None)
        if kind is not None:
            anonymous = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024
            found[kind] = max(found.get(kind, 0.0), anonymous)
    return found


def measure(n: int, shards: int, passes: int = 3) -> tuple[vfl.Result, dict[str, float], float]:
    """Return the result, MB per process of each kind, and median seconds per round."""
    largest: dict[str, float] = {}
    seconds = []

    def watch(event: Any) -> None:
        if isinstance(event, Round):
            seconds.append(event.seconds)
            for kind, megabytes in memory().items():
                largest[kind] = max(largest.get(kind, 0.0), megabytes)

    result = vfl.train(job(passes), sources(n), placement=vfl.Placement(shards=shards), watch=watch)
    return result, largest, statistics.median(seconds[len(seconds) // passes :])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=int)
    parser.add_argument("shards", type=int, nargs="+")
    parser.add_argument("--passes", type=int, default=3)
    arguments = parser.parse_args()
    models = set()
    print("| S | s per round | " + " | ".join(f"{kind}, MB" for kind in PROCESSES) + " |")
    print("|---" * (2 + len(PROCESSES)) + "|")
    for shards in arguments.shards:
        result, megabytes, seconds = measure(arguments.records, shards, arguments.passes)
        models.add(result.coef_.tobytes())
        cells = (f"{megabytes[kind]:.0f}" if kind in megabytes else "–" for kind in PROCESSES)
        print(f"| {shards} | {seconds:.2f} | " + " | ".join(cells) + " |", flush=True)
    print(f"models that differ to the bit: {len(models) - 1}")


if __name__ == "__main__":
    main()
