"""`align`: the records that all parties have, found as a step by itself; its n is remembered for `vfl plan`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from parties.alignment.index import file_of, label
from parties.alignment.index import place as folder_of
from vfl.alignment import Aligned, Aligning
from vfl.documents import read_json
from vfl.errors import OutputError, SpecificationError
from vfl.job.job import require_job
from vfl.launch.engines.arrangement import Arrangement
from vfl.launch.engines.dispatch import align_only
from vfl.launch.engines.place import Organisations, across, place_of
from vfl.launch.sources import ask_owners, named_by_owners, paths_of, sources_of
from vfl.writing import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from vfl.federation.file import Federation
    from vfl.job import Job
    from vfl.job.placement import Placement
    from vfl.launch.engines.place import Place

FORMAT = 1


def align(
    job: Job,
    data: Any = None,
    *,
    engine: str = "ray",
    address: str | None = None,
    policies: Mapping[str, str | Path] | None = None,
    indexes: Mapping[str, str | Path] | None = None,
    cores: int | None = None,
    placement: Placement | None = None,
    again: bool = False,
    watch: Callable[[Aligning], None] | None = None,
    federation: str | Path | Organisations | None = None,
    identity: str | Path | None = None,
) -> Aligned:
    """Align the records of the job's parties by private set intersection; nobody learns an id that is not its own.

    A party whose data are a file keeps its index for later runs of the job. Those runs start training at once, and refuse
    to start if the file has changed. An interrupted alignment continues where it stopped. If every party still holds the
    index of an alignment of the same files, that alignment is used again: each party compares its file and its ids with
    what it kept.

    indexes : {party: folder for its index}; parties.alignment.index names the default.
    cores : for each party; None divides this machine's cores among the parties that work at the same time, and takes one
        on a cluster.
    federation, identity : as for `train`; each party then keeps its index in its own place.
    again : make a new alignment in any case. watch : called with the progress. All others : as for `train`.

    Returns n and the sizes of the sets, which the participants learn. Raises as `train` does.
    """
    require_job(job)
    if job.id is None:
        raise SpecificationError(
            f"job {job.name!r} names no id column: set id, one name for all parties or one for each"
        )
    agreed = paths_of(job.partition, policies, "policy")
    arrangement = Arrangement(folders=paths_of(job.partition, indexes, "index"), cores=cores, later=True, again=again)
    place: Place | Organisations | None
    sources: Mapping[str, Any]
    if federation is None:
        place = place_of(engine, address, placement)
        ask_owners(job, data, agreed)
        sources = sources_of(job, data, ids=True)
    else:
        own: dict[str, Any] = {"address": address, "policies": policies, "indexes": indexes, "cores": cores}
        place = across(federation, identity, placement=placement, **own)
        sources = named_by_owners(job.partition, data)
    events = align_only(job, sources, arrangement, place=place, policies=agreed)
    for event in events:
        if isinstance(event, Aligned):
            aligned = event
        elif watch is not None:
            watch(event)
    _remember(job, sources, aligned, place.federation if isinstance(place, Organisations) else None)
    return aligned


def remembered_records(job: Job, sources: Mapping[str, Any], federation: Federation | None = None) -> int | None:
    """Return n of the last alignment of the same parties, id columns and paths by this user; None if there was none.

    federation : across whose organisations the records were aligned, under the owners' names of their sources.

    The files may have changed since. A run then refuses them until they are aligned again.
    """
    path = _memory(job, sources, federation)
    try:
        plain = read_json(path) if path is not None else None
    except (OSError, ValueError):
        return None
    n = plain.get("n_records") if isinstance(plain, dict) and plain.get("format") == FORMAT else None
    return n if isinstance(n, int) and n > 0 else None


def _remember(job: Job, sources: Mapping[str, Any], aligned: Aligned, federation: Federation | None) -> None:
    """Write n, which is public, to this user's own place; a failure to write it does not fail the alignment."""
    path = _memory(job, sources, federation)
    if path is None:
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, json.dumps({"format": FORMAT, "n_records": aligned.n_records}))
    except (OSError, OutputError):
        return


def _memory(job: Job, sources: Mapping[str, Any], federation: Federation | None) -> Path | None:
    """Return the file that remembers n; None unless every party's data are a file, or known by an owner's name."""
    if federation is not None:
        named = {party: sources.get(party, "") for party in job.partition.parties}
        parts = list(job.ids.items()), job.id_kind, federation.digest, list(named.items())
        return folder_of(None) / f"{label('noted', *parts)}.noted"
    files = {party: file_of(sources[party]) for party in job.partition.parties if party in sources}
    if not job.ids or not all(files.get(party) for party in job.ids):
        return None
    return folder_of(None) / f"{label('noted', list(job.ids.items()), job.id_kind, list(files.items()))}.noted"
