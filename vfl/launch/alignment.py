"""`align`: which records all parties have, as a step of a run or by itself."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vfl.alignment import Aligned, Aligning, Keeping
from vfl.errors import SpecificationError
from vfl.job.placement import Placement
from vfl.launch.noted import note
from vfl.launch.sources import paths_of, sources_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from vfl.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """How the alignment of one run is made; `Keeping` says the rest.

    folders : {party: its place for indexes}, as far as the environment names them. cores : for each party, to compute too;
    None decides.
    required : an earlier process of the run has begun on an index, and no other will do.
    """

    folders: Mapping[str, str] = field(default_factory=dict)
    cores: int | None = None
    run: str | None = None
    resumed: bool = False
    later: bool = False
    last: bool = False
    again: bool = False
    required: bool = False

    def __post_init__(self) -> None:
        if self.cores is not None and (isinstance(self.cores, bool) or self.cores < 1):
            raise SpecificationError(f"cores are a whole number of at least 1, not {self.cores!r}")

    def keeping(self, party: str) -> Keeping:
        """Return what the party is to leave on its disk."""
        return Keeping(self.folders.get(party), self.run, self.resumed, self.later, self.last, self.again)

    def cores_each(self, at_once: int) -> int:
        """Return the cores for each of so many parties that work on this machine at the same time."""
        return self.cores or max(1, usable_cores() // at_once)


def usable_cores() -> int:
    """Return how many cores this process may use: at most NUMBA_NUM_THREADS, which joblib sets for its workers."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = os.environ.get("NUMBA_NUM_THREADS", "")
    return min(here, max(1, int(allowed))) if allowed.isdigit() else here


def align(
    job: Job,
    data: Any,
    *,
    engine: str = "ray",
    address: str | None = None,
    policies: Mapping[str, str | Path] | None = None,
    indexes: Mapping[str, str | Path] | None = None,
    cores: int | None = None,
    placement: Placement | None = None,
    again: bool = False,
    watch: Callable[[Aligning], None] | None = None,
) -> Aligned:
    """Align the records of the job's parties by private set intersection; nobody learns an id that is not its own.

    Where a party's data are a file, it leaves its index in its own place for later runs of the job, which then begin at
    once, and refuse to begin when the file has changed. An alignment that is cut off goes on where it stopped. One of the
    same files that every party holds already is not made anew: each compares its file and its ids with what it kept.

    indexes : {party: folder for its index}; see parties.alignment.index for where it lies otherwise.
    cores : for each party; None divides this machine's among those that work on it at once, and takes one on a cluster.
    again : make a new one in any case. watch : called with the progress. Others : as for `train`.

    Returns what the participants learn: n, and the sizes of the sets. Raises as `train` does.
    """
    if job.id is None:
        raise SpecificationError(
            f"job {job.name!r} names no id column: set id, one name for all parties or one for each"
        )
    agreed = paths_of(job.partition, policies, "policy")
    how = Arrangement(folders=paths_of(job.partition, indexes, "index"), cores=cores, later=True, again=again)
    sources = sources_of(job.partition, data, ids=job.ids)
    if engine == "ray":
        from vfl.launch.engines import ray as cluster

        place = cluster.Place(address, placement or Placement())
        events = cluster.align_only(job, sources, how, place=place, policies=agreed)
    else:
        from vfl.launch.engines import inprocess

        events = inprocess.align_only(job, sources, how, policies=agreed)
    for event in events:
        if isinstance(event, Aligned):
            aligned = event
        elif watch is not None:
            watch(event)
    note(job, sources, aligned)
    return aligned
