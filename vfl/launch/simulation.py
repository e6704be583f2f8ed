"""Simulating from one table: reading it, keeping a public hold-out, and evaluating on it in the clear."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl import examples
from vfl.job.file import EXAMPLE
from vfl.launch.sources import sources_of

if TYPE_CHECKING:
    import pyarrow as pa

    from vfl.job import Job
    from vfl.job.file import Environment
    from vfl.launch.result import Result

PUBLIC = "un-noised and uncharged: this split was declared public"


def held_out(n_records: int, share: float) -> np.ndarray:
    """Return (n,) booleans: True where the SHA-256 of the record's position falls into the share. Public, repeatable."""
    limit = int(share * 2**64)
    draws = (hashlib.sha256(b"holdout:%d" % i).digest()[:8] for i in range(n_records))
    return np.array([int.from_bytes(draw, "big") < limit for draw in draws], dtype=bool)


def split(job: Job, environment: Environment) -> tuple[Any, pa.Table | None]:
    """Return what to train on, and the hold-out of a simulated job, if it keeps one."""
    if environment.table is None:
        return dict(environment.data), None
    from parties.sources import read_table

    if environment.table.startswith(EXAMPLE):
        table = examples.table(environment.table.removeprefix(EXAMPLE))
    else:
        columns = dict.fromkeys((*job.partition.features, job.partition.label_column, *job.ids.values()))
        table = read_table(environment.table, tuple(columns))
    if not environment.holdout:
        return table, None
    out = held_out(table.num_rows, environment.holdout)
    return table.filter(~out), table.filter(out)


def evaluate(result: Result, table: pa.Table) -> dict[str, Any]:
    """Return un-noised measures on a table that the job declares public, with the flag that says so."""
    from parties.loading import load

    job = result.job
    owner = job.partition.label_party
    labels = load(job, owner, sources_of(job.partition, table)[owner]).labels()
    margins = result.decision_function(table)
    if job.classification:
        return {"accuracy": float(((margins > 0) == (labels > 0)).mean()), "records": len(labels), "flag": PUBLIC}
    error = float(((margins - labels) ** 2).mean())
    return {"rmse": error**0.5, "r2": 1.0 - error / float(labels.var()), "records": len(labels), "flag": PUBLIC}
