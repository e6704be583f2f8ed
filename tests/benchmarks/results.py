"""What a benchmark gives: results, made by tasks, so that one command can run, keep and print those of every part.

A part is a module of this folder with a function `tasks(settings)` that yields `Task`s; its name stands in
`command.PARTS`. A task is what is done or not done when a run is interrupted: a call that yields `Result`s, or the
reason why it cannot run here. A result is one row: what was measured, of whom, at which place of a sweep, all runs of it.

    def tasks(settings):
        for p in (8,) if settings.quick else (8, 64, 512):
            yield Task(f"width {p}", lambda p=p: width(p, settings))

    def width(p, settings):
        seeds = settings.seeds(whole=10)
        values = [... for seed in seeds]
        yield Result(
            part="scale", case="synthetic", arm="SkGD", measure="seconds", values=values, tuned="default", seeds=seeds,
            at={"p": p},
        )

A part runs alone by `python -m tests.benchmarks PART`, or by its own name when it ends with
`if __name__ == "__main__": sys.exit(alone("PART"))` and `alone` of `command`.
"""

from __future__ import annotations

import functools
import math
import os
import platform
import statistics
import subprocess
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

PACKAGES = ("vfl", "numpy", "scipy", "numba", "ray", "scikit-learn")
TUNINGS = ("default", "public grid", "oracle grid", "as printed", "")
"""Nothing was chosen; chosen by public facts; by looking at the data, uncharged; by a paper; there is nothing to choose."""


def here() -> Mapping[str, Any]:
    """Return the machine behind the figures, with its load of the last minute: times under load are no evidence."""
    return _fixed() | {"load": round(os.getloadavg()[0], 1)}


@functools.cache
def _fixed() -> dict[str, Any]:
    return {
        "system": platform.system(), "machine": platform.machine(), "processor": _processor(), "processors": os.cpu_count(),
        "python": platform.python_version(), "commit": _commit(),
        "versions": {name: _version(name) for name in PACKAGES if _version(name)},
    }  # fmt: skip


def _processor() -> str:
    """Return the processor's name if the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    """Return the commit of the checkout, with a + if files differ from it; nothing outside a checkout."""

    def said(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        commit = said("rev-parse", "--short=10", "HEAD")
        return commit + ("+" if commit and said("status", "--porcelain", "--untracked-files=no") else "")
    except OSError:
        return ""


TIMED = ("s", "/s", "×")
"""Units of what a loaded machine disturbs: seconds, rates, and ratios of either."""


@dataclass(frozen=True)
class Settings:
    """Settings of the command.

    data : folder of the real data, or None. quick : three minutes in all. runs : number of runs in place of a part's
        own. scratch : a folder for temporary files. peers : environment with diffprivlib, or None. search : search
        again for recorded oracle settings.
    """

    data: Path | None = None
    quick: bool = False
    runs: int | None = None
    scratch: Path = Path()
    peers: Path | None = None
    search: bool = False

    def seeds(self, whole: int, quick: int = 3) -> tuple[int, ...]:
        """Return 1, 2, ...: as many as requested, or as a part uses in a whole or quick run."""
        return tuple(range(1, 1 + (self.runs or (quick if self.quick else whole))))


class Absent(Exception):
    """Raised by a task that finds at run time that it cannot run, with the reason."""


@dataclass(frozen=True)
class Task:
    """A unit of work. name : unique in its part. absent : the reason why it cannot run here, if known."""

    name: str
    run: Callable[[], Iterable[Result]] | None = None
    absent: str = ""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One row.

    part, case, arm : what belongs together, the problem, and who or what was measured on it.
    measure, unit : what the values are. values : one of each run. seeds : theirs, if they have any.
    tuned : one of TUNINGS. at : the place in a sweep, such as {"epsilon": 1.0}. settings : the options that were chosen.
    beside : other figures of the same runs. against : a figure to compare `figure` with, `source` says whose.
    ours : False where somebody else's rule is held against ours, so that it is no matter of being behind.
    less : whether less is better; None, where neither is.
    note : a sentence, such as why it is behind. seconds : how long a run took, where that is not what is measured.
    """

    part: str
    case: str
    arm: str
    measure: str
    values: tuple[float, ...]
    unit: str = ""
    seeds: tuple[int, ...] = ()
    tuned: str = ""
    at: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, float] = field(default_factory=dict)
    against: float | None = None
    source: str = ""
    ours: bool = True
    less: bool | None = True
    note: str = ""
    seconds: float | None = None
    machine: Mapping[str, Any] = field(default_factory=here)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(float(value) for value in self.values))
        object.__setattr__(self, "seeds", tuple(self.seeds))
        if not self.values:
            raise ValueError(f"{self.part}, {self.case}, {self.arm}: a result needs at least one run")
        if self.tuned not in TUNINGS:
            raise ValueError(f"{self.tuned!r} is not a kind of tuning: {', '.join(TUNINGS)}")

    @property
    def mean(self) -> float:
        """Mean of the runs."""
        return statistics.fmean(self.values)

    @property
    def median(self) -> float:
        """Median of the runs."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Standard deviation of the runs, NaN of a single one."""
        return (
            statistics.stdev(self.values) if len(self.values) > 1 and all(map(math.isfinite, self.values)) else math.nan
        )

    @property
    def figure(self) -> float:
        """The figure of all runs: the mean of errors, or the median of times."""
        return self.median if self.unit in TIMED else self.mean

    @property
    def ahead(self) -> float | None:
        """Factor by which it is better than its comparison; below 1 it is behind."""
        if self.against is None or self.less is None:
            return None
        return self.against / self.figure if self.less else self.figure / self.against
