"""Ends of a run: averages of iterates, and the stopping rule, under which a run stops once no coordinate moves.

The rule depends on data, so private runs never use it. Averages are post-processing of released values, which costs no
budget.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from vfl.base.arguments import number
from vfl.errors import PrivacyError

if TYPE_CHECKING:
    from vfl.base.problem import Problem
    from vfl.base.types import Vector

STILL = 1e-9
"""Default tolerance if the number of steps is not given. It leaves about 1/1000 of the distance to the optimum."""
TOLERANCE = number(lambda tol: 0 <= tol < 1, "must be None or a number from 0 to 1")
INTERCEPT_COUNTS = 1e-6
"""Weight of the intercept in `largest`. The weight is small so that labels far from 0 do not loosen the tolerance."""


def tolerance(solver: str, problem: Problem, tol: float | None, *, limited: bool) -> float | None:
    """Return the tolerance of the stopping rule; None for a run that takes all of its steps.

    limited : True if the number of steps was given. Then the run stops early only if a tolerance was given, too.

    Raises PrivacyError for a tolerance in a private run, because the stopping time would depend on records.
    """
    if problem.private:
        if tol is not None:
            raise PrivacyError(
                f"{solver}: tol makes the number of steps depend on data, which a private run must not: leave tol out; "
                "public rules fix the number of steps"
            )
        return None
    return tol if tol is not None or limited else STILL


def describe(tol: float | None) -> tuple[str, ...]:
    """Return a sentence about the stopping rule; () for a run that takes all of its steps."""
    if tol is None:
        return ()
    return (f"stops as soon as whole steps would move no coordinate by more than {tol:.3g} of the largest one.",)


def largest(w: Vector, unit: Vector, intercept: Vector) -> float:
    """Return max_j √M_j|w_j|, the approximate contribution of the strongest column to the margins.

    w : (p,). unit : (p,) √M_j. intercept : (p,) 1 for the intercept, which has weight 1e-6.
    """
    return float((unit * abs(w) * np.where(intercept > 0, INTERCEPT_COUNTS, 1.0)).max())


class Convergence:
    """Test for convergence: since the last move above the tolerance, every coordinate has moved by less than the tolerance.

    Moves are measured in units of 1/√M_j, as a share of the largest coordinate (`largest`), so that the columns' units do not
    matter.

    tol : tolerance; None never stops. unit, intercept : as in `largest`.
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
        """Record an update. Return True if the run has converged.

        w : (p,) after the update. moved : (s,) change of w[S].
        stretch : upper bound on the ratio of the full step length 1/M_j to the length s of this step. For s ≤ 1/M_j, a
            prox-gradient step of length s moves at least sM_j times as far as a step of length 1/M_j.
        """
        if self._tol is None:
            return False
        self._clock += 1
        far = stretch * float((self._unit[S] * abs(moved)).max())
        if far <= self._least:
            self._quiet += int(np.count_nonzero(self._last[S] <= self._restless))
            self._farthest = max(self._farthest, far)
        else:
            self.restart()
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
        self.restart()  # the model shrank, so earlier moves are no longer small relative to its norm
        return False

    def restart(self) -> None:
        """Forget earlier moves. The test then waits until every coordinate has moved again by less than the tolerance."""
        self._restless, self._quiet, self._farthest = self._clock, 0, 0.0


def length_of(turn: int, turns: int) -> float:
    """Return the length of a step in units of γ, given its number among successive steps of a coordinate.

    In the second half, steps shrink as 1, 1/2, 1/3, … If columns are uncorrelated, the last iterate is then the mean of as
    many iterates of whole steps, and the next party starts from a model with less noise.
    """
    return 1.0 / max(1, turn - turns // 2 + 1) if turns > 1 else 1.0


def weight_of(turn: int, turns: int) -> int:
    """Return the number of iterates of whole steps for which an iterate of `length_of` counts in an average."""
    half = turns // 2
    return 1 if turn < half else (turns - half) * (turn == turns - 1)


class Average:
    """Average of iterates, of the kind that the option `iterate` names.

    iterate : 'last'; 'average' of each outer round (Maranjyan et al. 2024, Alg. 1); or 'tail', average of the last part of the
        run.
    skip : number of updates that the average 'tail' leaves out.
    turns : number of successive updates of a coordinate that count by themselves, with weights of `weight_of`. 1 counts an
        iterate for as long as it lasts, while others move: with several turns, the last iterate would last longest.
    """

    def __init__(self, iterate: str, skip: int, turns: int = 1) -> None:
        self._iterate = iterate
        self._skip = skip
        self._turns = turns
        self._seen = 0
        self._count = 0
        # A step moves few of p coordinates. So a value is added to the sum only when the value changes, times the number of
        # steps for which the value lasted. With several turns `_since` is the number of updates.
        self._value: Vector | None = None
        self._total = np.zeros(0)
        self._since = np.zeros(0)

    def add(self, θ: Vector, *moved: slice) -> None:
        """Record an iterate θ, (p,).

        moved : slices of the coordinates that changed, one per update since the last call. Without slices, the call counts as
            one update of all coordinates.
        """
        self._seen += max(1, len(moved))
        if self._iterate == "last" or (self._iterate == "tail" and self._seen <= self._skip):
            return
        self._count += 1
        if self._value is None:
            self._value, self._total, self._since = θ.copy(), np.zeros(θ.size), np.zeros(θ.size)
            if self._turns == 1:
                return
        for S in moved or (slice(None),):
            if self._turns > 1:
                self._total[S] += weight_of(int(self._since[S.start]) % self._turns, self._turns) * θ[S]
                self._since[S] += 1.0
                self._value[S] = θ[S]
                continue
            self._total[S] += self._value[S] * (self._count - 1 - self._since[S])
            self._value[S], self._since[S] = θ[S], self._count - 1

    def _mean(self) -> Vector | None:
        if self._value is None:
            return None
        if self._turns > 1:
            return np.where(self._since > 0.0, self._total / np.maximum(self._since, 1.0), self._value)
        return np.asarray((self._total + self._value * (self._count - self._since)) / self._count)

    def outer(self, θ: Vector) -> Vector:
        """Return the result of an outer round."""
        mean = self._mean() if self._iterate == "average" else None
        if mean is None:
            return θ
        self._value, self._count = None, 0
        return mean

    def final(self, w: Vector) -> Vector:
        """Return the result of the run. w : result of the run's last outer round."""
        mean = self._mean() if self._iterate == "tail" else None
        return np.asarray(w) if mean is None else mean
