"""How time grows with records, columns, parties and blocks: log-log slopes, with how well a line fits and their spread.

    python -m tests.benchmarks.scale [--quick] [--runs N] [--output DIR]

The time is that of a pass of private logistic SkGD, loading and start left out: in a process the processor's, which
others on the machine disturb less, charges included but not the disk's part in them; on Ray what the rounds took. Sizes
take turns within a repetition, so that a load that comes and goes touches all of them; each repetition has a slope of its
own. `last` is the slope between the two largest sizes, where what is fixed weighs least. In a process there are no
messages; on Ray a pass is a round trip a party, so that parties cost there what messages do.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import vfl
from coordinator.rounds import Round
from tests.benchmarks.command import alone
from tests.benchmarks.results import Result, Settings, Task
from tests.benchmarks.shards import ALL, memory
from tests.benchmarks.timing import follow
from vfl.launch.sites.connection import connected
from vfl.launch.train import stream

if TYPE_CHECKING:
    from collections.abc import Iterator

WHOLE = {
    "records": (1_000, 10_000, 100_000, 1_000_000),
    "columns": (8, 32, 128, 512),
    "parties": (1, 2, 4, 8, 16, 32),
    "block": (1, 2, 4, 8, 16, 32),
}
QUICK = {"records": (1_000, 10_000, 100_000), "columns": (8, 32, 128), "parties": (1, 4, 16), "block": (1, 4, 16)}
ON_RAY = (1, 2, 4, 8)
STARTS = ((4, None), (20, None), (20, 1), (20, 10), (200, None), (200, 200))
"""(parties, parties per process) whose time and memory at the first round are measured; None is the default placement."""
FIXED = {
    "records": {"columns": 8, "parties": 2, "block": 1},
    "columns": {"records": 10_000, "parties": 2, "block": 1},
    "parties": {"records": 50_000, "columns": 32, "block": 1},
    "block": {"records": 50_000, "columns": 32, "parties": 1},
}
EXPECTED = {
    "records": "memory traffic: 1",
    "columns": "memory traffic: 1",
    "parties": "the same arithmetic, whoever holds the columns: 0",
    "block": "a larger block reads margins less often: below 0",
}
PASSES = 3


@functools.lru_cache(maxsize=2)
def table(records: int, columns: int) -> pa.Table:
    """Return uniform columns x0, x1, ... and a label of two classes."""
    rng = np.random.default_rng(0)
    X = {f"x{j}": rng.random(records) for j in range(columns)}
    return pa.table(X | {"y": (X["x0"] + 0.5 * rng.normal(size=records) > 0.5).astype(float)})


def job(columns: int, parties: int, block: int) -> vfl.Job:
    """Return a private job, with nothing to release before the first pass."""
    names = [f"x{j}" for j in range(columns)]
    cuts = [columns * k // parties for k in range(parties + 1)]
    held = {f"party{k}": names[cuts[k] : cuts[k + 1]] for k in range(parties)}
    return vfl.Job(
        partition=vfl.FeaturePartition(held, label=("party0", "y")),
        bounds=dict.fromkeys(names, (0.0, 1.0)),
        intercept=False,
        privacy=vfl.Privacy(epsilon=1.0, smoothness="bounds"),
        solver=vfl.SkGD(block_size=block, passes=PASSES, sampling="cyclic"),
    )


def seconds_a_pass(records: int, columns: int, parties: int, block: int, engine: str = "inprocess") -> float:
    """Return what the rounds of one run took, for each pass."""
    taken = follow(stream(job(columns, parties, block), table(records, columns), at=engine))
    return (taken.processor if engine == "inprocess" else taken.wall) / PASSES


def tasks(settings: Settings) -> Iterator[Task]:
    """Yield a task an axis."""
    for axis, sizes in (QUICK if settings.quick else WHOLE).items():
        yield Task(axis, functools.partial(along, axis, sizes, settings))
    if not settings.quick:
        yield Task("parties on Ray", functools.partial(on_ray, settings))
        yield Task("start of many parties", functools.partial(starts, settings))


def along(axis: str, sizes: tuple[int, ...], settings: Settings, engine: str = "inprocess") -> Iterator[Result]:
    """Yield the time at each size, then the slope."""
    places: list[dict[str, Any]] = [{**FIXED[axis], axis: size} for size in sizes]
    seconds_a_pass(**places[0], engine=engine)
    repeats = range(len(settings.seeds(whole=5)))
    times = np.array([[seconds_a_pass(**place, engine=engine) for place in places] for _ in repeats])
    table.cache_clear()
    gc.collect()
    where = "SkGD in a process" if engine == "inprocess" else "SkGD on Ray"
    fixed = ", ".join(f"{name} {size:,}" for name, size in FIXED[axis].items())
    common = {"part": "scale", "case": f"{axis} ({fixed})", "arm": where}
    for size, column in zip(sizes, times.T, strict=True):
        yield Result(**common, measure="seconds a pass", unit="s", values=column, at={axis: size})
    x, y = np.log(sizes), np.log(times)
    slopes = [np.polyfit(x, row, 1) for row in y]
    fits = [np.corrcoef(x, row)[0, 1] ** 2 for row in y]
    middle = np.median(y, axis=0)
    last = (middle[-1] - middle[-2]) / (x[-1] - x[-2])
    yield Result(
        **common, measure="log-log slope", values=[slope for slope, _ in slopes], less=None,
        beside={"R²": float(np.median(fits)), "last": float(last)},
        note=EXPECTED[axis] if engine == "inprocess" else "a round trip a party: towards 1",
    )  # fmt: skip


def on_ray(settings: Settings) -> Iterator[Result]:
    """Yield times and slope of more and more parties on Ray."""
    with connected(max(ON_RAY) + 1, None):
        yield from along("parties", ON_RAY, settings, engine="ray")


def at_start(parties: int, shared: int | None) -> tuple[float, float]:
    """Return the seconds from `stream` to the first round of a local job, the start of Ray included, and MB of its workers.

    The memory is RssAnon, without libraries and Ray's object store.
    """
    begun = time.perf_counter()
    with contextlib.closing(  # type: ignore[type-var]
        stream(job(parties, parties, 1), table(2_000, parties), at=vfl.Ray(parties_per_process=shared))
    ) as events:
        next(event for event in events if isinstance(event, Round))
        return time.perf_counter() - begun, memory()[ALL]


def starts(settings: Settings) -> Iterator[Result]:
    """Yield time and memory at the first round of many parties, alone and in shared processes, in turn."""
    repeats = range(len(settings.seeds(whole=3)))
    found = np.array([[at_start(*start) for start in STARTS] for _ in repeats])
    for (parties, shared), values in zip(STARTS, found.transpose(1, 2, 0), strict=True):
        common = {"case": "start of many parties", "arm": "SkGD on Ray"}
        at = {"parties": parties, "per process": shared or "default"}
        yield Result(part="scale", **common, measure="seconds to the first round", unit="s", values=values[0], at=at)
        yield Result(part="scale", **common, measure="memory of all workers", unit="MB", values=values[1], at=at)


if __name__ == "__main__":
    sys.exit(alone("scale"))
