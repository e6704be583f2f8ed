"""Warning about jobs that match records by row number although their files have an id column.

If the rows of such files are in different orders, the model is meaningless and no released number reveals it. The check reads
only the names of columns.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from parties.sources.files import column_names
from vfl.job.environment import path_of
from vfl.launch.drafting.draft import named_as_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.csv import Csv
    from vfl.job import Job


def row_order_warnings(job: Job, files: Mapping[str, str | Csv]) -> tuple[str, ...]:
    """Return a warning if a file has a column that is named like an id and that the job does not use.

    files : {party: path, or a text file with its format}. Paths that are not files on this machine are ignored.
    """
    if job.ids or len(files) < 2:
        return ()
    found = {party: _id_in(job, party, source) for party, source in files.items()}
    seen = {party: column for party, column in found.items() if column is not None}
    if not seen:
        return ()
    named = ", ".join(f"{Path(path_of(files[party])).name} has a column {column!r}" for party, column in seen.items())
    columns = set(found.values())
    spelt = ", ".join(f"{json.dumps(party)} = {json.dumps(column or '...')}" for party, column in found.items())
    value = json.dumps(columns.pop(), ensure_ascii=False) if len(columns) == 1 else f"{{ {spelt} }}"
    warning = (
        f"row i of every file is taken for the same record, so all files must hold the same records in one order; {named}: "
        f"id = {value} at the top of the job file aligns them"
    )
    return (warning,)


def _id_in(job: Job, party: str, source: str | Csv) -> str | None:
    used = {*job.wanted(party), job.partition.label[1]}
    return next((column for column in column_names(source) if named_as_id(column) and column not in used), None)
