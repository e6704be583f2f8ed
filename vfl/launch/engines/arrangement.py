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
