"""Roles in a run on secret shares: the holders of residual shares, the dealer, and the contributors of noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vfl.errors import SpecificationError

DEALER = "dealer"
"""Reserved name of the dealer, wherever the dealer runs."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Public roles of a run, and the number of parties that may pool what they saw.

    Guarantee. Up to `collude` parties, with or without the coordinator, learn the opened sums and no more. The dealer, with or
    without the coordinator, also learns no more. More than `collude` parties together can learn residuals. The dealer together
    with one party can learn columns and residuals, since the dealer can unmask what this party received.

    parties : all m parties, in the order that all participants use; m ≥ 2.
    label : the party with the label.
    collude : k, 1 ≤ k < m.
    """

    parties: tuple[str, ...]
    label: str
    collude: int = 1

    def __post_init__(self) -> None:
        m = len(self.parties)
        if len(set(self.parties)) < m or self.label not in self.parties:
            raise SpecificationError(
                "trust='secure': parties need different names, and one of them has to hold the label"
            )
        if DEALER in self.parties:
            raise SpecificationError(f"trust='secure': the name {DEALER!r} is reserved: rename the party")
        if not 1 <= self.collude < m:
            raise SpecificationError(
                f"trust='secure': collude = {self.collude} of {m} parties: give a number from 1 to {m - 1}"
            )

    @property
    def holders(self) -> tuple[str, ...]:
        """Return the k + 1 parties that hold shares of residuals: the label party, then the first k of the others."""
        others = [party for party in self.parties if party != self.label]
        return (self.label, *others[: self.collude])

    @property
    def supplied(self) -> str:
        """Return the holder of residual shares to which the dealer sends shares of Fourier terms in full.

        The other holders generate their shares from seeds.
        """
        return self.holders[-1]

    def receivers(self, owner: str) -> tuple[str, ...]:
        """Return the parties that receive an owner's masked columns and send the owner their masked residual shares."""
        return tuple(holder for holder in self.holders if holder != owner)

    def summed(self, owner: str) -> tuple[str, ...]:
        """Return the parties among which the dealer splits its part of a sum: the owner of the columns, then other holders."""
        return (owner, *self.receivers(owner))

    @property
    def price(self) -> float:
        """Return the factor by which the noise of an opened sum exceeds the charged σ: √(1 + k/m)."""
        return math.sqrt(1.0 + self.collude / len(self.parties))
