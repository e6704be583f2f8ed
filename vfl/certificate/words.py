"""Certificate in words, for people who train models and for readers without that background."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

_LARGEST = 700.0
"""ε above which the factor e^ε is not printed."""
_RAREST = 1e-15
WHOLE = (
    "ε counts every planned release, made or not: earlier releases could decide how many were made, and only the ε of all "
    "of them holds then"
)
_SHOWN = 16
"""Number of digits of a key that are shown; vfl verify compares and prints all."""


class Signed(Protocol):
    """Signer and time of a signature."""

    @property
    def public_key(self) -> str:
        """Key of the signer, in hexadecimal."""
        ...

    @property
    def signed(self) -> str:
        """Time of signing, in UTC."""
        ...


class Stated(Protocol):
    """The fields of a certificate that are put into words."""

    @property
    def private(self) -> bool:
        """False when the certificate gives no guarantee."""
        ...

    @property
    def epsilon(self) -> float:
        """ε of the guarantee; inf when there is none."""
        ...

    @property
    def delta(self) -> float:
        """δ of the guarantee."""
        ...

    @property
    def adjacency(self) -> str:
        """Relation between the two data sets that the guarantee compares."""
        ...

    @property
    def basis(self) -> str:
        """Releases from which ε is computed: 'charged', 'reserved' or 'none'."""
        ...

    @property
    def scope(self) -> str:
        """Other uses of the same data that the guarantee covers or leaves out."""
        ...

    @property
    def flags(self) -> tuple[str, ...]:
        """Data-dependent values that were not charged, a sentence each."""
        ...

    @property
    def dataset(self) -> str:
        """Name of the data set in its ledger; '' for a budget of this one fit."""
        ...

    @property
    def federation(self) -> Mapping[str, str]:
        """Name and digest of the federation of the run, and the dealer of training on shares; {} for none."""
        ...

    @property
    def start(self) -> str:
        """SHA-256 of the released model that training started from; '' for none."""
        ...

    @property
    def selection(self) -> Mapping[str, Any]:
        """Candidates, winner and score of a private choice; {} for a run."""
        ...

    @property
    def trust(self) -> Mapping[str, Any]:
        """Threat model of training on shares; {} for other runs."""
        ...

    @property
    def signature(self) -> Signed | None:
        """None until the certificate is signed."""
        ...


def described(certificate: Stated) -> str:
    """Return the guarantee in one sentence with symbols, its scope, its flags and its signer, a line each."""
    if math.isfinite(certificate.epsilon):
        said = (
            f"(ε = {certificate.epsilon:.4g}, δ = {certificate.delta:.3g})-differentially private for every record "
            f"({certificate.adjacency})"
        )
        lines = [
            said if certificate.private else f"NOT PRIVATE (the accounting alone would give: {said})",
            certificate.scope,
        ]
    else:
        lines = ["NOT PRIVATE: trained without noise"]
    if certificate.basis == "reserved":
        lines.append(WHOLE)
    if certificate.selection:
        chosen = certificate.selection
        lines.append(
            f"ε covers the choice among {len(chosen['candidates'])} candidates by {chosen['score']}; {chosen['withheld']}"
        )
    if certificate.trust:
        many = certificate.trust["collude"]
        lines.append(
            f"trained on shares among semi-honest participants: up to {many} part{'ies' if many > 1 else 'y'} may pool what "
            f"they saw, dealer {certificate.trust['dealer']}; sums were opened with {certificate.trust['price']:.3g} times the "
            "noise charged to ε"
        )
    if certificate.federation:
        dealer = certificate.federation.get("dealer", "")
        lines.append(
            f"trained across the organisations of federation {certificate.federation['name']!r}, digest "
            f"{certificate.federation['digest'][:_SHOWN]}…" + (f"; {dealer!r} dealt" if dealer else "")
        )
    if certificate.start:
        lines.append(
            f"training started from the released model {certificate.start[:_SHOWN]}…, whose own certificate covers the records "
            "that it was trained on"
        )
    lines += [f"flag: {flag}" for flag in certificate.flags]
    if certificate.signature is not None:
        lines.append(f"signed {certificate.signature.signed} with key {certificate.signature.public_key[:_SHOWN]}…")
    return "\n".join(lines)


def sentences(certificate: Stated) -> tuple[str, str]:
    """Return the guarantee and its limits, in two sentences without mathematics.

    Verify the certificate before printing them. They restate differential privacy: the probability of any conclusion
    changes by at most a factor e^ε, plus δ (Dwork & Roth 2014, Def. 2.4).
    """
    if not certificate.private:
        reason = certificate.flags[0] if certificate.flags else "no flag states the reason"
        holds = f"This model carries no privacy guarantee: {reason.removeprefix('NOT PRIVATE: ')}."
        leaves = (
            "Anyone who has the model may learn about single records from it, and this certificate must not be cited as "
            "protection of anyone's data."
        )
        return holds, leaves
    holds = (
        "Whatever anyone concludes from this model, replacing the data of any one record (one row over all parties, with "
        "its label) by any other data changes the probability of that conclusion by at most a factor of "
        f"{_factor(certificate.epsilon)}, plus a chance of {_chance(certificate.delta)} "
        f"(ε = {certificate.epsilon:.4g}, δ = {certificate.delta:.3g})."
    )
    between = (
        "during training it protects the participants' data from one another within the threat model that it states"
        if certificate.trust
        else "it does not protect the participants' data from one another during training"
    )
    leaves = (
        f"This holds against everyone who sees the model or this certificate, for {_extent(certificate)}; {between}, and it "
        "relies on all participants running this software unchanged."
    )
    return holds, leaves


def _extent(certificate: Stated) -> str:
    if certificate.dataset:
        return (
            "this one training (the ledger of the data set "
            f"{certificate.dataset!r} limits the total of all trainings charged to it)"
        )
    return "this one training alone (every other use of the same records adds to it)"


def _factor(epsilon: float) -> str:
    """Return e^ε to four digits, rounded up, since rounding down would overstate the guarantee."""
    if epsilon > _LARGEST:
        return "more than 10^300, which guarantees nothing in practice"
    value = math.exp(epsilon)
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / unit * (1.0 - 1e-12)) * unit:.10g}"


def _chance(delta: float) -> str:
    return f"1 in {math.floor(1.0 / delta * (1.0 + 1e-12)):,}" if delta > _RAREST else "less than 1 in 10^15"
