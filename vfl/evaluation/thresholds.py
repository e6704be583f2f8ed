"""Thresholds of decisions: their scale, and the histograms of scores that they divide."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.losses import Loss
    from vfl.types import Vector


ALL = "all records"
"""Key in `Findings.thresholds` for a single threshold that applies to all records."""


def margin_of(threshold: float, loss: Loss) -> float:
    """Return the margin above which a record is predicted positive.

    threshold : a probability with logistic loss, a margin with other losses of two classes.

    Raises SpecificationError for a threshold that is not on this scale, and for a loss without two classes.
    """
    if not loss.classification or loss.multinomial:
        raise SpecificationError(
            f"a threshold separates two classes, and {loss.name} loss does not have exactly two: leave the threshold out"
        )
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not math.isfinite(threshold):
        raise SpecificationError(f"a threshold is a finite number, not {threshold!r}")
    if not loss.log_odds:
        return float(threshold)
    if not 0.0 < threshold < 1.0:
        raise SpecificationError(
            f"under {loss.name} loss a threshold is a probability strictly between 0 and 1, not {threshold!r}"
        )
    return math.log(threshold / (1.0 - threshold))


def threshold_of(margin: float, *, log_odds: bool) -> float:
    """Return the threshold for a margin, on the scale of `margin_of`. log_odds : True if margins are log-odds."""
    return float(0.5 * (1.0 + math.tanh(0.5 * margin))) if log_odds else float(margin)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Released counts of margins per class. Bins lie between edges, so there is one bin more than edges.

    edges : (m,) ascending; a margin at an edge counts below the edge. negative, positive : (m + 1,) counts, each with noise
        N(0, sigma²).
    logistic : True if margins are log-odds.
    """

    edges: tuple[float, ...]
    negative: tuple[float, ...]
    positive: tuple[float, ...]
    sigma: float
    logistic: bool

    @classmethod
    def of(cls, edges: Vector, counts: Vector, sigma: float, *, logistic: bool) -> Self:
        """Return the histogram for released counts (2(m + 1),), the negative class first."""
        negative, positive = counts.reshape(2, -1).tolist()
        return cls(tuple(edges.tolist()), tuple(negative), tuple(positive), float(sigma), logistic)

    def shown(self, margin: float) -> float:
        """Return a margin on the scale of thresholds: a probability if margins are log-odds."""
        return threshold_of(margin, log_odds=self.logistic)

    def nearest(self, margins: Sequence[float] | Vector) -> list[int]:
        """Return the positions of the edges nearest to the margins, ascending and without repeats."""
        return sorted({int(np.argmin(abs(np.array(self.edges) - margin))) for margin in margins})

    def to_dict(self) -> dict[str, Any]:
        """Return the histogram as plain values, which `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Return the histogram that `to_dict` wrote; raise KeyError, TypeError or ValueError for any other input."""
        edges, negative, positive = (tuple(map(float, plain[name])) for name in ("edges", "negative", "positive"))
        if not len(negative) == len(positive) == len(edges) + 1:
            raise ValueError("a histogram has one bin more than edges")
        return cls(edges, negative, positive, float(plain["sigma"]), bool(plain["logistic"]))
