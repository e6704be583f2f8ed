"""Endings of file names, by which a file's kind is told."""

from __future__ import annotations

CSV = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
PARQUET = (".parquet", ".pq")
ARROW = (".feather", ".arrow", ".ipc")
NPY, NPZ = ".npy", ".npz"
TYPED = (*PARQUET, *ARROW, NPY, NPZ)
"""Files that store the types of their columns, so the options of `vfl.csv.Csv` do not apply to them."""
