"""Loading against pyarrow alone, and its memory: `python -m tests.benchmarks.loading [MEGABYTES]`, one run.

Ours ends with columns that are declared, clamped, scaled and stored column by column; pyarrow's with a table in memory.
Every run is a process of its own, since a process's peak never falls; competitors alternate and the best time counts.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

COLUMNS, WANTED = 20, 16
KINDS = {"CSV": "d.csv", "CSV, one column in 4": "d.csv", "Parquet": "d.parquet", "folder of Parquet": "parts"}
REPEATS = 3


def wanted(kind: str) -> list[str]:
    """Return the columns that are read."""
    return [f"c{j}" for j in range(WANTED // 4 if "one column" in kind else WANTED)]


def write(folder: Path, megabytes: int) -> None:
    """Write a CSV file of about that size, and the same records as Parquet."""
    rows, rng = megabytes * 1_000_000 // (COLUMNS * 10), np.random.default_rng(0)
    part = 200_000
    (folder / "parts").mkdir()
    schema = pa.schema([(f"c{j}", pa.float64()) for j in range(COLUMNS)])
    with (
        pa.csv.CSVWriter(folder / "d.csv", schema) as text,
        pa.parquet.ParquetWriter(folder / "d.parquet", schema) as whole,
    ):
        for number, start in enumerate(range(0, rows, part)):
            size = min(part, rows - start)
            table = pa.table({name: np.round(rng.normal(size=size), 7) for name in schema.names}, schema)
            text.write_table(table)
            whole.write_table(table)
            pa.parquet.write_table(table, folder / "parts" / f"{number:05d}.parquet")


def pyarrow_alone(path: Path, columns: list[str]) -> int:
    """Read the columns into a table; return its bytes."""
    if path.suffix == ".csv":
        options = pa.csv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(columns, pa.float64()))
        return pa.csv.read_csv(path, convert_options=options).nbytes
    return pa.parquet.read_table(path, columns=columns).nbytes


def ours(path: Path, columns: list[str]) -> int:
    """Load the party's columns; return their bytes."""
    import vfl
    from parties.loading import load_features

    partition = vfl.FeaturePartition({"bank": columns}, label=("bank", "y"))
    return load_features(
        vfl.Job(partition=partition, privacy=None, bounds={"*": (-5, 5)}).for_party("bank"), path
    ).array.nbytes


def run(who: str, path: str, kind: str) -> None:
    """Load in this process; print seconds, megabytes more than before at the peak, and megabytes that are kept."""
    from parties import loading  # noqa: F401

    load = {"ours": ours, "pyarrow": pyarrow_alone}[who]
    for name in ("warm.csv", "warm.parquet"):  # what is imported on first use is not the loading's
        load(Path(path).parent / name, ["c0"])
    before, busy, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time(), time.perf_counter()
    kept = load(Path(path), wanted(kind))
    seconds = time.perf_counter() - start
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(seconds, time.process_time() - busy, peak, kept / 2**20)


def main(megabytes: int = 300) -> None:
    """Print times, their ratio, and memory."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write(folder, megabytes)
        small = pa.table({"c0": [1.0]})
        pa.csv.write_csv(small, folder / "warm.csv")
        pa.parquet.write_table(small, folder / "warm.parquet")
        for kind, name in KINDS.items():
            times: dict[str, list[float]] = {"pyarrow": [], "ours": []}
            processor: dict[str, list[float]] = {"pyarrow": [], "ours": []}
            memory = {}
            for who in [*times] * REPEATS:
                order = [sys.executable, "-m", "tests.benchmarks.loading", who, str(folder / name), kind]
                said = subprocess.run(order, check=True, capture_output=True, text=True).stdout
                seconds, busy, peak, kept = map(float, said.split())
                times[who].append(seconds)
                processor[who].append(busy)
                memory[who] = peak, kept
            best = {who: min(seconds) for who, seconds in times.items()}
            size = sum(f.stat().st_size for f in [folder / name, *(folder / name).glob("*")] if f.is_file()) / 1e6
            print(f"{kind}, {size:,.0f} MB, {len(wanted(kind))} of {COLUMNS} columns")
            print(
                f"  pyarrow {best['pyarrow']:.2f} s, ours {best['ours']:.2f} s: {best['ours'] / best['pyarrow']:.2f} ×",
                end="",
            )
            print(f", {min(processor['ours']) / min(processor['pyarrow']):.2f} × by processor time")
            for who, (peak, kept) in memory.items():
                print(f"  {who:8s} peak {peak:,.0f} MB for {kept:,.0f} MB kept: {peak - kept:,.0f} MB beyond")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        run(*sys.argv[1:])
    else:
        main(*map(int, sys.argv[1:]))
