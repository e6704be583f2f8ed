"""Check of the threat model in a certificate of training on shares, from the certificate alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vfl.errors import SpecificationError
from vfl.secure.ring import LARGEST_TOTAL, SMALLEST_TOTAL
from vfl.secure.roles import DEALER, Roles
from vfl.secure.sharing import PRICE_OF_PRODUCTS, contributors
from vfl.solvers.on_shares import BY_PRODUCTS, BY_SUMS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.certificate.document import Certificate


def fault_of(certificate: Certificate) -> str:
    """Return a contradiction within the stated threat model, or between it and the stated solver; '' if there is none.

    Price, holders and contributors follow from the parties, the label party and the number that may collude. No file can show
    that participants were semi-honest.
    """
    stated, solver = certificate.trust, certificate.solver["name"]
    holders, names, many = stated["holders"], stated["contributors"], stated["collude"]
    if solver not in (*BY_SUMS, *BY_PRODUCTS):
        return f"it states training on shares, which {solver} does not offer"
    try:
        roles = Roles(tuple(name for name in names if name != DEALER), holders[0], many)
    except SpecificationError as error:
        return f"its roles contradict one another: {error}"
    if tuple(names) != contributors(roles):
        return f"noise was drawn by {_listing(names)}, and has to be drawn by all parties and the dealer"
    by_products = solver in BY_PRODUCTS
    expected = roles.parties if by_products else roles.holders
    if tuple(holders) != expected:
        return f"with collude = {many} the shares are held by {_listing(expected)}, not by {_listing(holders)}"
    price = PRICE_OF_PRODUCTS if by_products else roles.price
    if not math.isclose(stated["price"], price, rel_tol=1e-9):
        return (
            f"with {len(roles.parties)} parties and collude = {many} an opened sum has {price:.4g} times the noise that ε "
            f"counts, not {stated['price']:.4g} times"
        )
    fewest, most = _bits(by_products=by_products)
    if not fewest <= stated["bits"] <= most:
        return f"{stated['bits']} bits are outside the range from {fewest} to {most} of an opened sum"
    return ""


def said_of(certificate: Certificate) -> str:
    """Return the stated threat model in one sentence."""
    stated = certificate.trust
    many, parties = stated["collude"], len(stated["contributors"]) - 1
    return (
        f"up to {many} of {parties} parties may pool what they saw, dealer {stated['dealer']}, {stated['price']:.3g} times the "
        "noise charged to ε; not checked: that participants were semi-honest"
    )


def _bits(*, by_products: bool) -> tuple[int, int]:
    """Return the fewest and the most bits of an opened sum, or of an opened product of columns."""
    if not by_products:
        return SMALLEST_TOTAL, LARGEST_TOTAL
    from vfl.secure.gram import LARGEST_BITS, SMALLEST_BITS  # loads compiled loops

    return 2 * SMALLEST_BITS, 2 * LARGEST_BITS


def _listing(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
