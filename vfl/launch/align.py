"""Function `align`: find the records that all parties have, before any training, and keep their number n for `vfl plan`."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from parties.alignment.index import file_of, label
from parties.alignment.index import place as folder_of
from vfl.base.documents import read_json
from vfl.base.writing import write_whole
from vfl.crypto.alignment import Aligned, AlignmentProgress
from vfl.errors import OutputError, SpecificationError
from vfl.job.job import require_job
from vfl.launch.sites.open_site import Organisations, module_of, require_fit, site_and_data
from vfl.launch.sources import ask_owners, named_by_owners, of_environment, sources_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from vfl.job import Job
    from vfl.launch.sites.open_site import At
    from vfl.network.federation.file import Federation

FORMAT = 1


def align(
    job: Job,
    data: Any = None,
    *,
    at: At = None,
    again: bool = False,
    watch: Callable[[AlignmentProgress], None] | None = None,
) -> Aligned:
    """Align the parties' records by private set intersection. No party learns an id that the party does not hold itself.

    A party whose data are a file keeps an index (positions of the aligned records) for later runs of the job. Those runs need
    no alignment, and refuse to start if the file has changed. An interrupted alignment continues where it stopped. An earlier
    alignment of the same files is reused if every party still holds its index: each party compares file and ids with the
    index.

    data, at : as for `train`. vfl.Source(source, index=FOLDER) names the folder of a party's index.
    again : True aligns again even if an alignment can be reused. watch : function that is called with the progress.

    Returns n and the number of ids of each party, which the participants learn. Raises as `train` does.
    """
    require_job(job)
    if job.id is None:
        raise SpecificationError(
            f"job {job.name!r} names no id column: set id, one name for all parties or one for each"
        )
    data, at, _, _ = of_environment(job, data, at, None)
    site, data, arrangement = site_and_data(job.partition.parties, data, at)
    require_fit(site, job)
    sources: Mapping[str, Any]
    if isinstance(site, Organisations):
        sources = named_by_owners(job.partition, data)
    else:
        ask_owners(job, data, arrangement.policies)
        sources = sources_of(job, data, ids=True)
    arrangement = replace(arrangement, later=True, again=again)
    for event in module_of(site).align_only(job, sources, arrangement, site=site):
        if isinstance(event, Aligned):
            aligned = event
        elif watch is not None:
            watch(event)
    path = _memory(job, sources, site.federation if isinstance(site, Organisations) else None)
    if path is not None:
        with contextlib.suppress(OSError, OutputError):  # the alignment is complete without this file
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path, json.dumps({"format": FORMAT, "n_records": aligned.n_records}))
    return aligned


def remembered_records(job: Job, sources: Mapping[str, Any], federation: Federation | None = None) -> int | None:
    """Return n of this user's last alignment of the same parties, id columns and paths; None if there is no such alignment.

    federation : federation whose organisations aligned the records. `sources` then holds the owners' names of their sources.

    The files may have changed since that alignment. A run refuses changed files until they are aligned again.
    """
    path = _memory(job, sources, federation)
    try:
        plain = read_json(path) if path is not None else None
    except (OSError, ValueError):
        return None
    n = plain.get("n_records") if isinstance(plain, dict) and plain.get("format") == FORMAT else None
    return n if isinstance(n, int) and n > 0 else None


def _memory(job: Job, sources: Mapping[str, Any], federation: Federation | None) -> Path | None:
    """Return the path of the file that keeps n. None unless every party's data are a file, or a federation is given."""
    if federation is not None:
        named = {party: sources.get(party, "") for party in job.partition.parties}
        parts = *job.joining, federation.digest, list(named.items())
        return folder_of(None) / f"{label('noted', *parts)}.noted"
    files = {party: file_of(sources[party]) for party in job.partition.parties if party in sources}
    if not job.ids or not all(files.get(party) for party in job.ids):
        return None
    return folder_of(None) / f"{label('noted', *job.joining, list(files.items()))}.noted"
