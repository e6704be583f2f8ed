"""Measures of a multinomial model on held-out records: accuracy, recall of each class, and mean clamped loss."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.base.holdout import Side
from vfl.measures.confusion import mean_loss, of_outcomes
from vfl.measures.evaluations import EXACT, NOISED, PUBLIC, SHARES, HeldOut, event_of, tally
from vfl.queries.statistics import GRID, CellsAndLoss, on_simplex, weight, wrong

if TYPE_CHECKING:
    from vfl.base.types import Integers, Vector
    from vfl.measures.estimates import Estimate
    from vfl.privacy.events import Gaussian
    from vfl.queries.protocol import Exchange


@dataclass(frozen=True, slots=True, eq=False)
class ClassOutcomes(CellsAndLoss):
    """Counts of wrong and right predictions per class, and the sum of clamped losses.

    There are 2K cells: for each class, first its records that are predicted wrongly, then those predicted correctly. A label
    outside the classes counts in the last class.

    classes : K.
    """

    classes: int

    @property
    def dimension(self) -> int:
        """Return 2K + 1."""
        return 2 * self.classes + 1

    def cells(self, margins: Vector, labels: Vector) -> Integers:
        """Return the number of records per cell. margins : (K·n,)."""
        K = self.classes
        own = np.clip(np.nan_to_num(labels, nan=K - 1), 0, K - 1).astype(np.int64)
        return np.bincount(2 * own + ~wrong(margins, labels), minlength=2 * K)


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutClasses(HeldOut):
    """Measures of a multinomial model. The release is μ-GDP for each held-out record and does not depend on other records.

    One release: counts of right and wrong predictions by class, and the sum of the clamped losses (ClassOutcomes).
    """

    @property
    def _outcomes(self) -> ClassOutcomes:
        total = SHARES["cells"] + SHARES["loss"]
        steps = (weight(SHARES["cells"] / total, 2.0), weight(SHARES["loss"] / total, 1.0))
        return ClassOutcomes(self.problem.loss, self.loss_cap(), steps, self.problem.layout.width)

    @property
    def _events(self) -> tuple[Gaussian | None]:
        return (event_of(self._outcomes, self.mu),)

    @property
    def _measures(self) -> tuple[str, ...]:
        return ("accuracy", "loss", *(f"recall[{name}]" for name in self.problem.layout.classes))

    def _measure(self, w: Vector, found: dict[str, Estimate], further: dict[str, Any]) -> Exchange[None]:
        outcomes, (event,) = self._outcomes, self._events
        (released,) = yield tally(outcomes, event, Side.HELD_OUT)
        sigma = event.sigma if event is not None else 0.0
        found |= measured(released, outcomes, self.problem.layout.classes, self.n_records, sigma)
        if event is None:
            exact, (loss,) = replace(outcomes, cap=math.inf), (yield from self._exact(None)).values()
            found["loss"] = replace(loss, baseline=constant_loss(exact, released, self.n_records))

    def explain(self) -> str:
        """Return a sentence for the plan: the measures, the number of records, and the expected noise."""
        about = f"{self.n_records} records held out"
        outcomes, (event,) = self._outcomes, self._events
        if event is None:
            return f"{about}, measured {PUBLIC if self.problem.private else EXACT}"
        a, b = (event.sigma / (step * GRID) / self.n_records for step in outcomes.steps)
        noise = a * math.sqrt(outcomes.classes / 2.0)
        return (
            f"{about}, measured {NOISED}; noise of the accuracy {noise:.2g}, of the loss {b * outcomes.cap:.2g} (clamped at "
            f"{outcomes.cap:.3g})"
        )

    @property
    def queries(self) -> int:
        """Return the number of queries: margins and release; without noise, also the unclamped loss."""
        return 3 if self.mu is None else 2


def constant_loss(statistic: ClassOutcomes, released: Vector, n_records: int) -> float:
    """Return the mean clamped loss of a model that predicts each class's share of the records (at least one record's share)."""
    cells = on_simplex(released[:-1] / (statistic.steps[0] * GRID), n_records)
    shares = cells.reshape(-1, 2).sum(axis=1) / n_records
    least = np.maximum(shares, 1.0 / (n_records + shares.size))
    return float(shares @ np.minimum(-np.log(least), statistic.cap))


def measured(
    released: Vector, statistic: ClassOutcomes, classes: tuple[str, ...], n_records: int, sigma: float
) -> dict[str, Estimate]:
    """Return accuracy, mean clamped loss, and the recall of each class whose number of records exceeds the noise.

    released : (2K + 1,) noisy sums. sigma : standard deviation of the noise of each sum; 0 without noise.
    """
    cells, K = of_outcomes(released, statistic, n_records, sigma), statistic.classes
    base = float(cells.possible.reshape(K, 2).sum(axis=1).max()) / n_records
    found = {"accuracy": replace(cells.mean([0.0, 1.0] * K), baseline=base)}
    found["loss"] = mean_loss(released, statistic, n_records, sigma, constant_loss(statistic, released, n_records))
    for k, name in enumerate(classes):
        if (recall := cells.rate(2 * k + 1, 2 * k)) is not None:
            found[f"recall[{name}]"] = recall
    return found
