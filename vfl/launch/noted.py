"""What whoever started an alignment notes of it: n, which is public, so that a plan of the job need not be told it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from parties.alignment.index import file_of, label, place
from vfl.errors import OutputError
from vfl.launch.run.result import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from vfl.alignment import Aligned
    from vfl.job import Job

FORMAT = 1


def note(job: Job, sources: Mapping[str, Any], aligned: Aligned) -> None:
    """Note n of an alignment of files in the place of this process's own user (parties.alignment.index.place).

    A note that cannot be written is none: an alignment is not lost for it.
    """
    path = _path(job, sources)
    if path is None:
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, json.dumps({"format": FORMAT, "n_records": aligned.n_records}))
    except (OSError, OutputError):
        return


def noted_records(job: Job, sources: Mapping[str, Any]) -> int | None:
    """Return n as the last `note` for the same parties, id columns and paths has it; None where there is none.

    The files may have changed since: a run would refuse them until they are aligned again.
    """
    path = _path(job, sources)
    try:
        plain = json.loads(path.read_text(encoding="utf-8")) if path is not None else None
    except (OSError, ValueError):
        return None
    n = plain.get("n_records") if isinstance(plain, dict) and plain.get("format") == FORMAT else None
    return n if isinstance(n, int) and n > 0 else None


def _path(job: Job, sources: Mapping[str, Any]) -> Path | None:
    files = {party: file_of(source) for party, source in sources.items()}
    if not job.ids or not all(files.get(party) for party in job.ids):
        return None
    return place(None) / f"{label('noted', list(job.ids.items()), job.id_kind, list(files.items()))}.noted"
