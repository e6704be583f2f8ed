"""Score of one candidate in hyperparameter tuning: one clamped measure on held-out records, which takes the whole budget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.base.holdout import Side
from vfl.errors import BudgetExceeded, PrivacyError, SpecificationError
from vfl.measures.estimates import Findings, bounded_mean
from vfl.measures.evaluations import NOISED, HeldOut, ReleasedEvaluation, event_of, moved, tally
from vfl.queries import Forward
from vfl.queries.statistics import Lost, weight

if TYPE_CHECKING:
    from collections.abc import Collection

    from vfl.base.problem import Problem
    from vfl.base.types import Vector
    from vfl.measures.evaluations import Found
    from vfl.measures.specification import Evaluation
    from vfl.privacy.events import Gaussian
    from vfl.queries.protocol import Exchange

NAME = "score"


@dataclass(frozen=True, slots=True, eq=False)
class Score(ReleasedEvaluation):
    """One measure of the model on held-out records. The release is μ-GDP for each of them and uses no other records.

    Each record contributes t between 0 and 1, so the sum of all t has Δ = 1, and the noise of their mean is 1/(μn). For
    `accuracy`, t is 1 if the prediction is wrong.

    problem : problem of the training records. n_records : number of held-out records. mu : budget. price : as in `HeldOut`.
    """

    problem: Problem
    spec: Evaluation
    n_records: int
    mu: float
    price: float = 1.0

    name: ClassVar[str] = NAME
    queries: ClassVar[int] = 2  # margins and sum

    @property
    def _measure(self) -> str:
        return str(self.spec.score)

    @property
    def _lost(self) -> Lost:
        whole = HeldOut(self.problem, self.spec, self.n_records, self.mu)
        cap: float | None = 1.0
        if self._measure != "accuracy":
            caps = {"loss": whole.loss_cap, "deviance": whole.deviance_cap}
            cap = caps.get(self._measure, whole.error_cap)()
        if cap is None:
            raise SpecificationError(f"{self.problem.loss.name} loss has no deviance: choose another score")
        return Lost(self.problem.loss, cap, self._measure, weight(1.0, 1.0))

    @property
    def _event(self) -> Gaussian:
        event = event_of(self._lost, self.mu)
        if event is None:
            raise PrivacyError("a score is released with noise only")
        return event

    @property
    def _events(self) -> tuple[Gaussian]:
        return (self._event,)

    def schedule(self, w: Vector, found: Found = None, gone: Collection[str] = ()) -> Exchange[Findings]:
        """Query the margins, which stay at the coordinator; then query the sum."""
        yield Forward(moved(self.problem, w), side=Side.HELD_OUT)
        lost, event = self._lost, self._event
        try:
            (total,) = yield from self._tallied(lost, event)
        except BudgetExceeded:
            return Findings({}, self.n_records, f"{NOISED}; a run that was cut off had paid for it")
        mean = float(total) / (lost.steps * lost.grid) / self.n_records
        measured = bounded_mean(mean, self._noise, self.n_records, lost.unit)
        cap = None if self._measure == "accuracy" else lost.cap
        measured = replace(measured, value=mean * lost.unit, cap=cap)  # not clamped, since it ranks the candidates
        if self._measure == "accuracy":
            low, high = measured.interval
            measured = replace(measured, value=1.0 - mean, within=(1.0 - high, 1.0 - low))
        return Findings({self._measure: measured}, self.n_records, self._note)

    @property
    def _note(self) -> str:
        """The protection under which the score is released, in words."""
        return NOISED

    def _tallied(self, lost: Lost, event: Gaussian) -> Exchange[Vector]:
        """Query the sum."""
        (released,) = yield tally(lost, event, Side.HELD_OUT)
        return released

    @property
    def _noise(self) -> float:
        return self.price * self._event.sigma / (self._lost.steps * self._lost.grid) / self.n_records

    def explain(self) -> str:
        """Return a sentence for the plan: the measure, the number of records, and the expected noise."""
        lost = self._lost
        cap = "" if self._measure == "accuracy" else f"; clamped at {lost.unit:.4g}"
        return f"{self.n_records} records held out; noise of the {self._measure} {self._noise * lost.unit:.2g}{cap}"


def lower_is_better(measure: str) -> bool:
    """Return True if a lower value of the measure is better; False only for accuracy."""
    return measure != "accuracy"


def worst(measure: str) -> float:
    """Return the score of a candidate that failed; every other score is better."""
    return np.inf if lower_is_better(measure) else -np.inf
