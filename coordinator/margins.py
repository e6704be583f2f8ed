"""The only place that knows Xw, y and any other per-record state in the clear.

What leaves it is what the trust setting allows a party to see (DESIGN §5): residuals, or margins and labels in a sweep.
A `secure` setting would replace this module and the transport, and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vfl.messages import Need, Records, Weighted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vfl.messages import Query
    from vfl.types import Vector


class Margins:
    """Xw (n,), starting at w = 0, with the labels y (n,)."""

    def __init__(self, labels: Vector) -> None:
        self._labels = labels
        self._margins = np.zeros_like(labels)
        self._kept: dict[str, Vector] = {}

    @property
    def n_records(self) -> int:
        """Return n."""
        return len(self._labels)

    def records(self, query: Query) -> Records:
        """Return the per-record vectors that the parties are shown for this query; state that it replaces is kept."""
        if query.need is Need.MARGINS:
            return Records(margins=self._margins, labels=self._labels)
        if isinstance(query, Weighted) and query.need is Need.WEIGHTS:
            if query.batch is not None:
                self._kept["batch"] = query.batch.members(self.n_records)
            weights, replaced = query.weighting(self._margins, self._labels, self._kept)
            self._kept.update(replaced)
            # What a pass costs rests on its folds being disjoint: not left to the weighting.
            return Records(weights=weights if query.batch is None else weights * self._kept["batch"])
        return Records()

    def absorb(self, target: str, vectors: Iterable[Vector]) -> None:
        """Sum the n-vectors of the replies in order, then add to Xw, reset Xw, or keep under a name."""
        total: Vector | None = None
        for vector in vectors:
            total = vector if total is None else total + vector
        if total is None:
            return
        if target == "add":
            self._margins = self._margins + total
        elif target == "reset":
            self._margins = total
        else:
            self._kept[target] = total
