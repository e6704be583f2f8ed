"""Secret draw that chooses the winner among the candidates of a tuning run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_BYTES = 32
"""Number of bytes of a random number. Two such numbers are equal with probability 2⁻²⁵⁶."""


def chosen(losses: Sequence[float], concentration: int, random: Callable[[int], bytes] = os.urandom) -> int:
    """Return the number of the best included candidate; 0 if no candidate is included (vfl.privacy.private_selection).

    All candidates share P, the largest of `concentration` uniform numbers. A candidate is included if its own uniform number
    is below P: given P, each candidate is included independently with probability P. The numbers are compared as integers, so
    nothing is rounded. Further uniform numbers decide between equal losses, as if these numbers were part of the losses.

    losses : loss of each candidate; the smallest loss is the best. random : function that returns a given number of random
    bytes. The bytes are used once and not kept.
    """

    def uniform() -> int:
        return int.from_bytes(random(_BYTES))

    bound = max(uniform() for _ in range(concentration))
    included = [number for number in range(len(losses)) if uniform() < bound]
    ties = [uniform() for _ in losses]
    return min(included, key=lambda number: (losses[number], ties[number]), default=0)
