"""The arrangement of a run: cores per party, and the indexes that its alignment uses and leaves behind."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vfl.alignment import Keeping
from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """Arrangement of one run; vfl.alignment.Keeping describes the other fields.

    folders : {party: folder for its index}, for the parties that the environment names.
    cores : of each party, for alignment and training; None divides this machine's cores among the parties.
    shards : number of row shards of each party and of the margins, for a run in this process.
    required : an earlier process of the run has trained on the rows of an index, so only that index may be used.
    """

    folders: Mapping[str, str] = field(default_factory=dict)
    cores: int | None = None
    run: str | None = None
    resumed: bool = False
    later: bool = False
    last: bool = False
    again: bool = False
    required: bool = False
    shards: int = 1

    def __post_init__(self) -> None:
        if self.cores is not None and (isinstance(self.cores, bool) or self.cores < 1):
            raise SpecificationError(f"cores are a whole number of at least 1, not {self.cores!r}")

    def keeping(self, party: str) -> Keeping:
        """Return the rules by which the party keeps its index on its disk."""
        return Keeping(self.folders.get(party), self.run, self.resumed, self.later, self.last, self.again)

    def cores_each(self, at_once: int) -> int:
        """Return the cores per party if `at_once` parties work on this machine at the same time."""
        return self.cores or max(1, usable_cores() // at_once)


def usable_cores() -> int:
    """Return the number of cores that this process may use: at most NUMBA_NUM_THREADS, which joblib sets for its workers."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = os.environ.get("NUMBA_NUM_THREADS", "")
    return min(here, max(1, int(allowed))) if allowed.isdigit() else here
