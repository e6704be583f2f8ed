"""Public facts of one run on shares, which every participant derives from the job and n by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vfl.secure.ring import RESIDUAL_BITS, caps
from vfl.secure.roles import DEALER
from vfl.secure.sigmoid import chosen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.secure.noise import Deviations
    from vfl.secure.ring import Bits
    from vfl.secure.roles import Roles
    from vfl.secure.specification import Secure


@dataclass(frozen=True, slots=True)
class Sharing:
    """Roles, bits and caps of a run of logistic regression on shares.

    bits : of an opened sum. residual : R, the bound on an integer residual over all series that the run may use,
        which are at `places`.
    squares : {party: its share of the squared cap}. fine : whether the series has more terms, for less bias.
    bias : bound on the bias of a sum over the standard deviation that is charged, at margins up to V. It is of the order of
        the largest |x̃|, so that a run is far from it.
    versions : number of models at which residuals are shared. n_bytes : that travel, of the dealer's waves `n_dealt`.
    """

    secure: Secure
    roles: Roles
    bits: Bits
    residual: int
    places: frozenset[int]
    squares: Mapping[str, float]
    fine: bool
    bias: float
    versions: int
    n_bytes: int
    n_dealt: int

    @property
    def contributors(self) -> tuple[str, ...]:
        """Return the participants that add noise to an opened sum."""
        return (*self.roles.parties, DEALER)

    @property
    def largest(self) -> float:
        """Return r_max."""
        return self.residual / 2.0**RESIDUAL_BITS

    def caps(self, cap: float) -> dict[str, float]:
        """Return {party: c_q}, the caps of rows under a joint cap C."""
        return caps(cap, self.residual, self.squares)

    def deviations(self, party: str, cap: float, sigma: float) -> Deviations:
        """Return the contributors' deviations of a sum over a party's columns, in its steps. cap : C. sigma : of the event."""
        from vfl.secure.noise import deviations  # loads the code that draws noise

        step = self.bits.step(self.caps(cap)[party])
        return deviations(sigma, step, len(self.roles.parties), self.roles.collude)

    def place(self, needed: float) -> int:
        """Return the place of the series for margins of this magnitude; a given margin of the job goes before it."""
        return chosen(self.secure.margin or needed, fine=self.fine)

    def stated(self) -> dict[str, Any]:
        """Return the certificate's statement of the threat model."""
        return {
            "mode": "secure",
            "participants": "semi-honest",
            "dealer": self.secure.dealer,
            "collude": self.roles.collude,
            "holders": list(self.roles.holders),
            "contributors": list(self.contributors),
            "price": self.roles.price,
            "bits": self.bits.total,
        }
