"""Per-record vectors of a job: the labels, offsets and weights that the label's owner gives, in this order, and the margins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from vfl.types import Vector


class Parts(NamedTuple):
    """Labels (n,); offsets log(exposure) (n,), None without exposure; weights s/s_max (n,), None without weights."""

    labels: Vector
    offsets: Vector | None = None
    weights: Vector | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """Per-record vectors that a job has besides the labels, and the form of the job's margins.

    exposure : True if records have offsets, which are the first margins. weights : True if records have weights between 0 and
        1.
    n_margins : margins per record, K with multinomial loss. A vector of margins is then (K·n,), one class after another.
    kind : type of the margins that a party sees in a pass. 'float32' rounds the margins, and parties answer with changes in
        float32.
    """

    exposure: bool = False
    weights: bool = False
    n_margins: int = 1
    kind: str = "float64"

    @property
    def count(self) -> int:
        """Return the number of vectors, labels included."""
        return 1 + self.exposure + self.weights

    @property
    def measured(self) -> Targets:
        """Return the targets for measures of a released model. They have no weights: measures count every record once."""
        return replace(self, weights=False)

    def parts(self, given: Any) -> Parts:
        """Split `given`, (count·n,) or (count, n), into the labels and the other vectors, which it holds one after another."""
        labels, *others = given.reshape(self.count, -1)
        return Parts(labels, others[0] if self.exposure else None, others[-1] if self.weights else None)


def weighed(r: Vector, weights: Vector | None) -> Vector:
    """Return s_i·r_i, (n,); for K values per record (K·n,), one class after the other.

    A weight s_i lies between 0 and 1, so no |r_i| grows: caps and bounds that hold for r hold for s·r. A record of weight 0
    contributes 0 for any r.
    """
    if weights is None or not weights.size:
        return r
    with np.errstate(invalid="ignore"):
        return np.ravel(np.where(weights > 0.0, r.reshape(-1, weights.size) * weights, 0.0))


def beside(labels: Vector, weights: Vector | None) -> Vector:
    """Return the vector that a party reads during a pass: the labels y, (n,), or y followed by the weights s, (2n,)."""
    return labels if weights is None else np.concatenate([labels, weights])


def apart(given: Vector, n_records: int) -> tuple[Vector, Vector | None]:
    """Return y and s, (n,) each, from the result of `beside`; s is None if records have no weights."""
    return given[:n_records], given[n_records:] if given.size > n_records else None
