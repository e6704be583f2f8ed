"""Order of the vectors that the label's owner gives to the margins: labels, offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from vfl.types import Vector


class Parts(NamedTuple):
    """Labels (n,), and offsets log(exposure) (n,), None without exposure."""

    labels: Vector
    offsets: Vector | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """The vectors beside the labels that a job has.

    exposure : records have offsets, which their margins start at.
    """

    exposure: bool = False

    @property
    def count(self) -> int:
        """Return the number of vectors, labels included."""
        return 1 + self.exposure

    def parts(self, given: Any) -> Parts:
        """Return the vectors, of which `given`, (count·n,) or (count, n), holds one after the other."""
        labels, *offsets = given.reshape(self.count, -1)
        return Parts(labels, *offsets)
