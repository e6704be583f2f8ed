"""Secure part of a job: who deals, how many parties may collude, and up to which margin the sigmoid is exact."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vfl.arguments import require_number
from vfl.errors import SpecificationError

SEPARATE, COORDINATOR = "separate", "coordinator"
DEALERS = (SEPARATE, COORDINATOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Secure:
    """Threat model of trust='secure'. Public, and part of the job's digest: owners consent to it.

    Guarantee against semi-honest participants. Up to `collude` parties that pool all they saw, with or without the
    coordinator, learn of the other parties' columns what the opened, noised sums say: the job's (ε, δ), computationally,
    for neighbours that agree on their own columns. So does the dealer, with or without the coordinator. More than
    `collude` parties learn residuals; the dealer together with one party learns columns and residuals.

    dealer : 'separate', a participant of its own without columns; or 'coordinator', which must not be run by a party.
    collude : k ≥ 1, less than the number of parties.
    margin : V, the |margin| up to which the sigmoid is exact; None takes it from the model by a public rule, anew for each
        version. It affects the bias of training, never privacy.
    """

    dealer: str = SEPARATE
    collude: int = 1
    margin: float | None = None

    def __post_init__(self) -> None:
        if self.dealer not in DEALERS:
            raise SpecificationError(
                f"secure: dealer must be 'separate' or 'coordinator', not {self.dealer!r}: a party as the dealer could take "
                "off every mask"
            )
        if not isinstance(self.collude, int) or isinstance(self.collude, bool) or self.collude < 1:
            raise SpecificationError(f"secure: collude is a whole number of at least 1, not {self.collude!r}")
        if self.margin is not None:
            require_number("secure: margin", self.margin)
            if not (math.isfinite(self.margin) and self.margin > 0):
                raise SpecificationError(f"secure: margin must be positive and finite, not {self.margin!r}")

    def describe(self) -> str:
        """Return the threat model in a few words."""
        dealer = "at the coordinator" if self.dealer == COORDINATOR else "separate"
        return f"dealer {dealer}, up to {self.collude} part{'ies' if self.collude > 1 else 'y'} may pool"
