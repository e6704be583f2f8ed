"""Threat model of a job on secret shares, and roles in its run: holders of residual shares, dealer or key owner."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vfl.base.arguments import check_options, explained, one_of, option, require_positive, whole
from vfl.errors import SpecificationError
from vfl.secure.ring import MODULAR, WORDS, Ring

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    dealt : True if a dealer takes part. Without a dealer there are two parties, and products of their columns are computed
        under homomorphic encryption (vfl.secure.homomorphic).
    """

    parties: tuple[str, ...]
    label: str
    collude: int = 1
    dealt: bool = True

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
        if not self.dealt and m > 2:
            raise SpecificationError(
                f"trust='secure' without a dealer multiplies the vectors of two parties, and the partition has {m}: use "
                "dealer='separate' or dealer='coordinator'"
            )

    @property
    def ring(self) -> Ring:
        """Return the ring of the shares."""
        return WORDS if self.dealt else MODULAR

    @property
    def key_owner(self) -> str:
        """Return the party with the secret key of a run without a dealer: the party without the label."""
        (owner,) = (party for party in self.parties if party != self.label)
        return owner

    @property
    def contributors(self) -> tuple[str, ...]:
        """Return the participants that add noise to an opened sum: all parties, and the dealer, if there is one."""
        return (*self.parties, *((DEALER,) if self.dealt else ()))

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
        """Return the factor by which the noise of an opened sum exceeds σ: √(1 + k/m); √(m/(m − k)) without a dealer."""
        m, k = len(self.parties), self.collude
        return math.sqrt(1.0 + k / m if self.dealt else m / (m - k))

    @property
    def price_of_products(self) -> float:
        """Return the noise of a product of two parties' columns, divided by the charged noise of variance σ²/2.

        Both owners and the dealer add σ²/4 each. Without a dealer, both owners add σ²/2 each.
        """
        return math.sqrt(1.5 if self.dealt else 2.0)


SEPARATE, COORDINATOR, NONE = "separate", "coordinator", "none"
DEALERS = (SEPARATE, COORDINATOR, NONE)
DEALING = {
    SEPARATE: "a separate dealer",
    COORDINATOR: "a dealer at the coordinator",
    NONE: "homomorphic encryption between the two parties in place of a dealer",
}
"""{`Secure.dealer`: words for the source of shares of products}."""
ENCRYPTION = {"scheme": "BFV", "assumption": "RLWE", "bits": 192, "statistical_bits": 53}
"""Certified facts about the encryption in place of a dealer (vfl.secure.homomorphic). The assumption is that ring
learning with errors is hard, with at least `bits` bits of security. All replies of a session hide the products to a statistical
distance of 2^−statistical_bits.
"""


def dealing(stated: Mapping[str, Any]) -> str:
    """Return words for a run's dealer, or for the encryption in its place. stated : `trust` of a certificate."""
    words = DEALING[stated["dealer"]]
    if own := stated.get("encryption"):
        made = own["library"] or "a library that is not installed here"
        words += f" ({own['scheme']} by {made}; {own['assumption']}, at least {own['bits']} bits)"
    return words


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class Secure:
    """Threat model of trust='secure'. The threat model is public and part of the job's digest, so owners consent to it.

    Guarantee against semi-honest participants. Up to `collude` parties may pool all that they saw, with or without the
    coordinator. About the columns of the remaining parties they learn only the opened sums, which have noise. Their view is
    computationally (ε, δ)-differentially private, with the ε and δ of the job. Neighbouring data agree on the pooling parties'
    own columns. The same holds for the dealer, with or without the coordinator. More than `collude` parties can learn
    residuals. The dealer together with one party can learn columns and residuals.

    dealer : 'separate': a further participant, without columns, is the dealer. 'coordinator': the coordinator is the dealer,
        and no party may run the coordinator. None or 'none': two parties alone, by homomorphic encryption; needs vfl[he].
    collude : k ≥ 1, less than the number of parties.
    margin : V; the sigmoid's series is accurate for |margin| ≤ V. None: a rule that uses only public numbers chooses V for each
        model. V affects the bias of training, never privacy.
    """

    dealer: str | None = option(
        one_of(
            DEALERS, "must be 'separate', 'coordinator' or 'none', since a party as the dealer could remove every mask"
        ),
        SEPARATE,
    )
    collude: int = option(whole(), 1)
    margin: float | None = option(require_positive, None)

    def __post_init__(self) -> None:
        if self.dealer is None:
            object.__setattr__(self, "dealer", NONE)
        check_options(self, "trust: ")

    @property
    def dealt(self) -> bool:
        """Return True if a dealer takes part."""
        return self.dealer != NONE

    def roles(self, parties: tuple[str, ...], label: str) -> Roles:
        """Return the roles of a run of these parties."""
        return Roles(parties, label, self.collude, self.dealt)

    def describe(self) -> str:
        """Return a short text that states the threat model."""
        return f"{DEALING[str(self.dealer)]}, up to {self.collude} part{'ies' if self.collude > 1 else 'y'} may pool"
