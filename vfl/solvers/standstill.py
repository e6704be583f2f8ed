"""When a run without privacy may stop: nothing moves any more. Data-dependent, so never in a private run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from vfl.arguments import require_number
from vfl.errors import PrivacyError, SpecificationError

if TYPE_CHECKING:
    from vfl.problem import Problem
    from vfl.types import Vector

STILL = 1e-9
"""The tolerance where neither it nor the number of steps is given: a thousandth of what differs from the optimum is left."""
INTERCEPT_COUNTS = 1e-6
"""Share of the intercept in the size of a model: labels far from 0 must not make the other coordinates rough."""


def require_tolerance(solver: str, tol: float | None) -> None:
    """Raise SpecificationError unless tol is None or a number of at least 0 and below 1."""
    if tol is not None:
        require_number(f"{solver}: tol", tol)
    if tol is not None and not 0 <= tol < 1:
        raise SpecificationError(f"{solver}: tol must be None or a number from 0 to 1, not {tol!r}")


def tolerance(solver: str, problem: Problem, tol: float | None, *, limited: bool) -> float | None:
    """Return the tolerance that a run stops by, None where it makes all of its steps.

    limited : whether the number of steps was given; then it stops early only when it is told by how much.

    Raises PrivacyError for a tolerance in a private run: when it stops would tell of the records.
    """
    if problem.private:
        if tol is not None:
            raise PrivacyError(
                f"{solver}: tol stops a run by what the data say, which a private run must not: leave tol out; how many "
                "steps it makes is decided before"
            )
        return None
    return tol if tol is not None or limited else STILL


def describe(tol: float | None) -> tuple[str, ...]:
    """Return a sentence on when a run stops, none where it makes all of its steps."""
    if tol is None:
        return ()
    return (f"stops as soon as whole steps would move no coordinate by more than {tol:.3g} of the largest one.",)


def largest(w: Vector, unit: Vector, intercept: Vector) -> float:
    """Return max_j √M_j|w_j|, about what the strongest column adds to the margins.

    w : (p,). unit : (p,) √M_j. intercept : (p,) 1 for the intercept, whose size counts a millionth.
    """
    return float((unit * abs(w) * np.where(intercept > 0, INTERCEPT_COUNTS, 1.0)).max())


class Standstill:
    """Watches the updates of a run: at rest once every coordinate moved by less than `tol`, since any moved by more.

    A move is measured in units of 1/√M_j as a share of the largest coordinate (`largest`): the units of columns do not
    matter.

    tol : None never stops. unit, intercept : as in `largest`.
    """

    def __init__(self, tol: float | None, unit: Vector, intercept: Vector) -> None:
        self._tol = tol
        self._unit = unit
        self._intercept = intercept
        self._least = 0.0
        self._clock = self._restless = self._looked = self._quiet = 0
        self._last = np.zeros(unit.size, dtype=np.int64)
        self._farthest = 0.0

    def after(self, w: Vector, moved: Vector, S: slice = slice(None), *, stretch: float = 1.0) -> bool:
        """Take note of an update and return whether the run is at rest.

        w : (p,) after it. moved : (s,) what it added to w[S].
        stretch : how many times farther a step of 1/M_j on each coordinate alone might have gone. A prox-gradient step
            of length s goes at least sM_j times as far as one of length 1/M_j, for s up to that (its length over s falls).
        """
        if self._tol is None:
            return False
        self._clock += 1
        far = stretch * float((self._unit[S] * abs(moved)).max())
        if far <= self._least:
            self._quiet += int(np.count_nonzero(self._last[S] <= self._restless))
            self._farthest = max(self._farthest, far)
        else:
            self._begin_again()
        self._last[S] = self._clock
        self._looked += moved.size
        if self._quiet < w.size and self._looked < w.size:
            return False
        self._looked = 0
        self._least = self._tol * largest(w, self._unit, self._intercept)
        if self._quiet < w.size:
            return False
        if math.isfinite(self._least) and self._farthest <= self._least:
            return True
        self._begin_again()  # the model has shrunk meanwhile: what was little no longer is
        return False

    def _begin_again(self) -> None:
        """Wait anew for every coordinate to move little."""
        self._restless, self._quiet, self._farthest = self._clock, 0, 0.0
