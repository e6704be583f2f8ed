"""Order of the vectors that the label's owner gives to the margins: labels, offsets, weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from vfl.types import Vector


class Parts(NamedTuple):
    """Labels (n,), offsets log(exposure) (n,) and weights (n,); None for what the job does not have."""

    labels: Vector
    offsets: Vector | None = None
    weights: Vector | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """The vectors beside the labels that a job has.

    exposure : records have offsets, which their margins start at. weights : records have weights.
    """

    exposure: bool = False
    weights: bool = False

    @property
    def count(self) -> int:
        """Return the number of vectors, labels included."""
        return 1 + self.exposure + self.weights

    def parts(self, given: Any) -> Parts:
        """Return the vectors, of which `given`, (count·n,) or (count, n), holds one after the other."""
        labels, *rest = given.reshape(self.count, -1)
        offsets = rest.pop(0) if self.exposure else None
        return Parts(labels, offsets, rest.pop(0) if self.weights else None)
