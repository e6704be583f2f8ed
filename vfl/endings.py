"""Endings of file names, which determine the kind of a file."""

from __future__ import annotations

CSV = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
PARQUET = (".parquet", ".pq")
ARROW = (".feather", ".arrow", ".ipc")
NPY, NPZ = ".npy", ".npz"
TYPED = (*PARQUET, *ARROW, NPY, NPZ)
"""Endings of files that store the types of their columns, so that the options of `vfl.csv.Csv` do not apply."""
