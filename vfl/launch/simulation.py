"""Simulating from one table: reading it; the launch then splits it among the parties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vfl import examples
from vfl.job.file import EXAMPLE

if TYPE_CHECKING:
    from vfl.job import Job
    from vfl.job.file import Environment


def data_of(job: Job, environment: Environment) -> Any:
    """Return what to train on: a source for each party, or the one table of a simulated job, read here."""
    if environment.table is None:
        return dict(environment.data)
    from parties.sources.opening import read_table

    if environment.table.startswith(EXAMPLE):
        return examples.table(environment.table.removeprefix(EXAMPLE))
    columns = dict.fromkeys((*job.partition.features, job.partition.label_column, *job.ids.values()))
    return read_table(environment.table, tuple(columns))
