"""Arrangement of a run: the data owners' policies, and the rules for index files (positions of aligned records)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vfl.alignment import Keeping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from coordinator.coordinator import Event
    from coordinator.prediction import Predicted
    from vfl.alignment import Aligned, Aligning
    from vfl.evaluation import Findings
    from vfl.types import Vector

    RunEvent: TypeAlias = Aligning | Aligned | Event
    """Event of a run; the last is its Outcome."""
    ApplyEvent: TypeAlias = Aligning | Aligned | Predicted | Findings
    """Event of a prediction or an evaluation; the last is Predicted or Findings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement(Keeping):
    """Arrangement of one run. Fields inherited from `Keeping` apply to all parties; `folders` replaces `folder`.

    policies : {party: path of its owner's policy}. folders : {party: folder of its index}. All paths are absolute.
    required : True if an earlier process of the run has trained on the rows of an index. Then no other index may be used.
    """

    policies: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    required: bool = False

    def keeping(self, party: str) -> Keeping:
        """Return the rules for the index that one party keeps."""
        return Keeping(self.folders.get(party), self.run, self.resumed, self.later, self.last, self.again)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Application:
    """Application of a model to new records, for predictions or measures.

    parts : {party: its part of the model, or the path of that part}. policies : {party: path of its owner's policy}.
    given : {party: source as the user gave it}; across organisations, the owner's name of the source.
    sources : function that returns the sources that the parties read. This process calls it; the function checks all owners'
    policies before it opens a file that holds all parties' columns. None takes `given`.
    w : the whole model, to measure it on labelled records; None predicts.
    threshold : margin above which the model predicts the positive class; None takes the threshold in the model's parts.
    """

    parts: Mapping[str, Any]
    given: Mapping[str, Any]
    policies: Mapping[str, str]
    sources: Callable[[], Mapping[str, Any]] | None = None
    w: Vector | None = None
    threshold: float | None = None

    def opened(self) -> Mapping[str, Any]:
        """Return the sources that the parties read."""
        return self.given if self.sources is None else self.sources()

    def cut(self, own: float) -> float:
        """Return the threshold; if none was given, `own`, which is the threshold in the model's parts."""
        return own if self.threshold is None else self.threshold


def cores_each(cores: int | None, at_once: int) -> int:
    """Return the cores per party: the given number; else an equal share of this machine for `at_once` parties at work."""
    return cores or max(1, usable_cores() // at_once)


def usable_cores() -> int:
    """Return the number of cores that this process may use: at most NUMBA_NUM_THREADS, which joblib sets for its workers."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = os.environ.get("NUMBA_NUM_THREADS", "")
    return min(here, max(1, int(allowed))) if allowed.isdigit() else here
