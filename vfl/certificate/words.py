"""Certificate in words: a short form with symbols, and two sentences for readers without mathematics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vfl.certificate.document import Certificate

_LARGEST = 700.0
"""Largest ε for which the factor e^ε is printed."""
_RAREST = 1e-15
WHOLE = (
    "ε counts every planned release, made or not: earlier releases could decide how many were made, and only the ε of all "
    "of them holds then"
)
UNPROTECTED = (
    "Anyone who has the model may learn about single records from it, and this certificate must not be cited as "
    "protection of anyone's data."
)
_SHOWN = 16
"""Number of digits of a key to show. `vfl verify` compares and prints all digits."""


def described(certificate: Certificate) -> str:
    """Return the guarantee, its scope, its flags and its signer, one per line."""
    lines = ["NOT PRIVATE: trained without noise"]
    if math.isfinite(certificate.epsilon):
        guarantee = (
            f"(ε = {certificate.epsilon:.4g}, δ = {certificate.delta:.3g})-differentially private for every record"
        )
        said = f"{guarantee} ({certificate.adjacency})"
        stated = said if certificate.private else f"NOT PRIVATE (the accounting alone would give: {said})"
        lines = [stated, certificate.scope]
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
            + (
                "; every party held masked columns of all others, to open products"
                if "products" in certificate.trust
                else ""
            )
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


def sentences(certificate: Certificate) -> tuple[str, str]:
    """Return the guarantee and its limits, in two sentences without mathematics.

    Verify the certificate before you print the sentences. They restate differential privacy: the probability of any
    conclusion changes by at most a factor e^ε, plus δ (Dwork & Roth 2014, Def. 2.4).
    """
    if not certificate.private:
        reason = certificate.flags[0] if certificate.flags else "no flag states the reason"
        return f"This model carries no privacy guarantee: {reason.removeprefix('NOT PRIVATE: ')}.", UNPROTECTED
    δ = certificate.delta
    chance = f"1 in {math.floor(1.0 / δ * (1.0 + 1e-12)):,}" if δ > _RAREST else "less than 1 in 10^15"
    holds = (
        "Whatever anyone concludes from this model, replacing the data of any one record (one row over all parties, with "
        "its label) by any other data changes the probability of that conclusion by at most a factor of "
        f"{_factor(certificate.epsilon)}, plus a chance of {chance} (ε = {certificate.epsilon:.4g}, δ = {δ:.3g})."
    )
    between = (
        "during training it protects the participants' data from one another within the threat model that it states"
        if certificate.trust
        else "it does not protect the participants' data from one another during training"
    )
    alone = "alone (every other use of the same records adds to it)"
    total = f"(the ledger of the data set {certificate.dataset!r} limits the total of all trainings charged to it)"
    return holds, (
        "This holds against everyone who sees the model or this certificate, for this one training "
        f"{total if certificate.dataset else alone}; {between}, and it relies on all participants running this software "
        "unchanged."
    )


def _factor(epsilon: float) -> str:
    """Return e^ε to four digits, rounded up, since rounding down would overstate the guarantee."""
    if epsilon > _LARGEST:
        return "more than 10^300, which guarantees nothing in practice"
    value = math.exp(epsilon)
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / unit * (1.0 - 1e-12)) * unit:.10g}"
