"""Threat model of a job on shares: its dealer, the parties that may collude, and the margins with an accurate sigmoid."""

from __future__ import annotations

from dataclasses import dataclass

from vfl.arguments import require_positive
from vfl.errors import SpecificationError

SEPARATE, COORDINATOR = "separate", "coordinator"
DEALERS = (SEPARATE, COORDINATOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Secure:
    """Threat model of trust='secure'. The threat model is public and part of the job's digest, so owners consent to it.

    Guarantee against semi-honest participants. Up to `collude` parties may pool all that they saw, with or without the
    coordinator. About the columns of the remaining parties they learn only the opened sums, which have noise. Their view is
    computationally (ε, δ)-differentially private, with the ε and δ of the job. Neighbouring data agree on the pooling parties'
    own columns. The same holds for the dealer, with or without the coordinator. More than `collude` parties can learn
    residuals. The dealer together with one party can learn columns and residuals.

    dealer : 'separate': a further participant without columns deals. 'coordinator': the coordinator deals, and no party may run
        the coordinator.
    collude : k ≥ 1, less than the number of parties.
    margin : V; the sigmoid's series is accurate for |margin| ≤ V. None: a rule that uses only public numbers chooses V for each
        model. V affects the bias of training, never privacy.
    """

    dealer: str = SEPARATE
    collude: int = 1
    margin: float | None = None

    def __post_init__(self) -> None:
        if self.dealer not in DEALERS:
            raise SpecificationError(
                f"secure: dealer must be 'separate' or 'coordinator', not {self.dealer!r}: a party as the dealer could "
                "remove every mask"
            )
        if not isinstance(self.collude, int) or isinstance(self.collude, bool) or self.collude < 1:
            raise SpecificationError(f"secure: collude must be a whole number of at least 1, not {self.collude!r}")
        require_positive("secure: margin", self.margin, optional=True)

    def describe(self) -> str:
        """Return a short text that states the threat model."""
        dealer = "at the coordinator" if self.dealer == COORDINATOR else "separate"
        return f"dealer {dealer}, up to {self.collude} part{'ies' if self.collude > 1 else 'y'} may pool"
