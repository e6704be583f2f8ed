"""Oracle search: it finds the options of the least mean error by looking at the data, uncharged, as no user may do."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SEEDS = (101, 102, 103)
"""Runs behind every mean that the search compares; what it finds is measured afterwards with other seeds."""


def search(
    errors: Callable[..., list[float]],
    grids: Mapping[str, Sequence],
    starts: Sequence[Mapping[str, object]],
    seeds: Sequence[int] = SEEDS,
) -> tuple[dict[str, object], int]:
    """Return the best options that coordinate search finds from each start, and how many settings it tried.

    errors : called with the seeds and one value of every grid by name; returns an error for each seed.
    grids : {option: values in order}. starts : a value of every grid; between values, the nearest one above counts.
    """

    def at(index):
        return {name: grid[i] for (name, grid), i in zip(grids.items(), index, strict=True)}

    @functools.cache
    def mean(index):
        return float(np.mean(errors(seeds, **at(index))))

    def place(grid, value):
        if value in grid or isinstance(value, str):
            return list(grid).index(value)
        return min(int(np.searchsorted(grid, value)), len(grid) - 1)

    best = None
    for start in starts:
        here, moved = tuple(place(grid, start[name]) for name, grid in grids.items()), True
        while moved:
            moved = False
            for axis, grid in enumerate(grids.values()):
                for shift in (1, -1, 2, -2):
                    there = (*here[:axis], here[axis] + shift, *here[axis + 1 :])
                    if 0 <= there[axis] < len(grid) and mean(there) < mean(here):
                        here, moved = there, True
        best = here if best is None or mean(here) < mean(best) else best
    return at(best), mean.cache_info().currsize
