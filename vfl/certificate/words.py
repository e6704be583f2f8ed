"""A certificate in words: for people who train models, and for those who never will."""

from __future__ import annotations

import math
from typing import Protocol

_LARGEST = 700.0
"""ε beyond which e^ε is no number that means anything to anybody."""
_RAREST = 1e-15
WHOLE = (
    "ε counts every release that was planned, made or not: how many were made could follow from earlier ones, and only the "
    "ε of all holds whatever was seen"
)
_SHOWN = 16
"""Digits of a key that people compare at a glance; vfl verify compares and prints all."""


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
            said if certificate.private else f"NOT PRIVATE (the accounting, had it been: {said})",
            certificate.scope,
        ]
    else:
        lines = ["NOT PRIVATE: trained without noise"]
    if certificate.basis == "reserved":
        lines.append(WHOLE)
    lines += [f"flag: {flag}" for flag in certificate.flags]
    if certificate.signature is not None:
        lines.append(f"signed {certificate.signature.signed} with key {certificate.signature.public_key[:_SHOWN]}…")
    return "\n".join(lines)


def sentences(certificate: Stated) -> tuple[str, str]:
    """Return the guarantee in two sentences that need no mathematics: what holds, and what that leaves open.

    Whoever prints them has verified the certificate. Differential privacy in these words: the probability of any
    conclusion changes by at most a factor e^ε, plus δ (Dwork & Roth 2014, Def. 2.4).
    """
    if not certificate.private:
        reason = certificate.flags[0] if certificate.flags else "nothing says why"
        holds = f"This model carries no privacy guarantee: {reason.removeprefix('NOT PRIVATE: ')}."
        leaves = (
            "Whoever has the model may learn from it about single records, and this certificate may not be cited as "
            "protection of anybody's data."
        )
        return holds, leaves
    holds = (
        "Whatever anybody concludes from this model, replacing the data of any one record (one row over all parties, with "
        "its label) by any other data changes the probability of that conclusion at most by a factor of "
        f"{_factor(certificate.epsilon)}, plus a chance of {_chance(certificate.delta)} "
        f"(ε = {certificate.epsilon:.4g}, δ = {certificate.delta:.3g})."
    )
    leaves = (
        f"This holds for {_extent(certificate)}, and against everybody who sees the model or this certificate; it does not "
        "protect the participants' data from one another while they train, and it rests on their having run this software "
        "unchanged."
    )
    return holds, leaves


def _extent(certificate: Stated) -> str:
    if certificate.dataset:
        return (
            "this one training (what all trainings on these records come to is limited by the ledger of the data set "
            f"{certificate.dataset!r}, as far as they are charged to it)"
        )
    return "this one training alone, so that every other use of the same records adds to it"


def _factor(epsilon: float) -> str:
    """Return e^ε to four digits, rounded up: a promise may not be rounded down."""
    if epsilon > _LARGEST:
        return "more than 10^300, which is to say that nothing is promised"
    value = math.exp(epsilon)
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / unit * (1.0 - 1e-12)) * unit:.10g}"


def _chance(delta: float) -> str:
    return f"1 in {math.floor(1.0 / delta * (1.0 + 1e-12)):,}" if delta > _RAREST else "less than 1 in 10^15"
