"""Thresholds of decisions: their scale, the histograms of scores that they divide, and thresholds per group.

Thresholds per group are chosen from released histograms of one half of the held-out records, and measured on the other half.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from vfl.evaluation.gaps import Notion
    from vfl.losses import Loss
    from vfl.types import Integers, Vector

ALLOWED = 0.02
"""Largest gap between groups that is not penalised. Beyond it, one unit of gap costs as much as one unit of accuracy."""
OUTWARD = (0.05, 0.12, 0.2, 0.32, 0.5, 0.75, 1.1)
"""Distances of the edges from 0, on both sides, in units of the margins' spread for uniform columns (`spread_of`): 16 bins."""


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


def edges_of(spread: float) -> Vector:
    """Return the edges of the histograms, which are the possible thresholds; 0 is one of them."""
    outward = spread * np.array(OUTWARD)
    return np.concatenate([-outward[::-1], [0.0], outward])


def cut(histograms: Vector, thresholds: Integers) -> tuple[Vector, Vector]:
    """Return counts (G, 2, 2) by group, label and prediction, and the number of bins in each count.

    histograms : (G, 2, bins). thresholds : (G,) positions among the edges; margins above the edge are predicted positive.
    """
    above = np.arange(histograms.shape[2])[None, None, :] > thresholds[:, None, None]
    sides = np.stack([~above, above], axis=3) & np.ones_like(histograms, dtype=bool)[..., None]
    return (histograms[..., None] * sides).sum(axis=2), sides.sum(axis=2).astype(np.float64)


def chosen(histograms: Vector, notion: Notion, *, seen: npt.NDArray[np.bool_]) -> Integers:
    """Return the groups' thresholds (G,), as positions among the edges, that maximise accuracy − max(0, gap − ALLOWED).

    gap : largest difference, between groups, of the rate that the notion compares. The search is exhaustive: for every pair of
        a lowest and a highest rate, each group takes the group's most accurate threshold with a rate between them.

    histograms : (G, 2, bins), noisy. seen : (G,) False for a group whose counts the noise hides; such a group keeps the
        threshold 0.
    """
    G, _, bins = histograms.shape
    default = (bins - 2) // 2
    options = np.arange(bins - 1)
    right, rates = np.zeros((G, bins - 1)), np.zeros((G, bins - 1))
    for option in options:
        counts, _ = cut(histograms, np.full(G, option))
        right[:, option] = counts[:, 0, 0] + counts[:, 1, 1]
        looked_at = (counts * notion.looked_at).sum(axis=(1, 2))
        rates[:, option] = (counts * notion.counted).sum(axis=(1, 2)) / np.maximum(looked_at, 1.0)
    right, rates = right / max(float(histograms.sum()), 1.0), np.clip(rates, 0.0, 1.0)
    right[~seen], rates[~seen] = 0.0, np.nan
    best, found = -np.inf, np.full(G, default)
    levels = np.unique(rates[seen])
    for low in levels:
        for high in levels[levels >= low]:
            inside = (rates >= low) & (rates <= high)
            if not inside[seen].any(axis=1).all():
                continue
            taken = np.where(inside, right, -np.inf).argmax(axis=1)
            value = float(right[seen, taken[seen]].sum()) - max(0.0, float(high - low) - ALLOWED)
            if value > best:
                best, found = value, np.where(seen, taken, default)
    return found


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
