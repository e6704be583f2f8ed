"""Bytes that participants send one another in a run on secret shares, and their time, from public numbers alone.

Guarantee. A run without lost messages sends at most these bytes of encrypted messages, commitments and shares. If two
consecutive models are equal, their residuals are shared only once, and the run sends fewer bytes. Requests are not counted.

The time bounds the computations of all participants, one after another, on idle cores as fast as those of a server of 2024. The
rates with a dealer are at least 1.5 times the largest that were measured on runs of 2,000 to 10^6 records with 4 to 21 columns.
Without a dealer, the rate is 1.08 times that of products of 20 columns of 2,000 records, and 1.5 times those of long runs.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING

from vfl.crypto.encryption import TAG, encrypted_size
from vfl.secure.check_rows import CHECK_ROWS
from vfl.secure.homomorphic import PIECE, PUBLIC_PIECE, blocks_of
from vfl.secure.sigmoid import MOMENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.secure.roles import Roles

WORD, ANGLE = 8, 2
MOST_TERMS = 16
"""Largest number K of terms in a Fourier series of the sigmoid."""
COMMITMENT = 64
"""Bytes of a commitment together with the random bytes that open the commitment."""


@dataclass(frozen=True, slots=True)
class Models:
    """Public numbers of a run of logistic regression on secret shares.

    count : T, the number of versions of the model at which residuals are shared.
    opened : {party: number of versions of the model at which sums over the party's columns are opened (revealed)}.
    queries : number of requests that open sums. sums : Σs, the coordinates of all opened sums.
    """

    count: int
    opened: Mapping[str, int]
    queries: int
    sums: int


SECONDS_A_BYTE, SECONDS_A_MODEL, SECONDS_A_PRODUCT = 6e-9, 6e-3, 1e-8
"""Time with a dealer: per byte sent, per model and party, and per record and pair of columns in products of columns."""
SECONDS_AN_ENCRYPTED_BYTE = 5e-8
"""Time per byte sent without a dealer."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes sent in a run, by kind of message. seconds : bound on the time of all participants' computations."""

    session: int
    setup: int
    angles: int
    fourier_terms: int
    checks: int
    residuals: int
    openings: int
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """Return the bytes of all messages."""
        return sum(astuple(self)[:-1])

    def lasting(self, roles: Roles, models: int, products: int) -> Cost:
        """Return the cost with its time. products : number of records times squared number of columns in products."""
        if not roles.dealt:
            return replace(self, seconds=SECONDS_AN_ENCRYPTED_BYTE * self.total)
        steps = SECONDS_A_MODEL * models * len(roles.parties) + SECONDS_A_PRODUCT * products
        return replace(self, seconds=SECONDS_A_BYTE * self.total + steps)

    def then(self, other: Cost, *, again: bool = False) -> Cost:
        """Return the cost of this release and another. Bytes of a shared session count once. again : True for two sessions."""
        summed = Cost(*(own + more for own, more in zip(astuple(self), astuple(other), strict=True)))
        return summed if again else replace(summed, session=self.session)


def logistic(roles: Roles, n_records: int, widths: Mapping[str, int], terms: int, models: Models) -> Cost:
    """Return the cost of a logistic run. widths : {party: number of masked columns}. terms : K of every model."""
    if not roles.dealt:
        return encrypted_logistic(roles, n_records, widths, terms, models)
    m, h, n, label = len(roles.parties), len(roles.holders), n_records, roles.label
    masks, rows = ANGLE * CHECK_ROWS, 2 * WORD * terms * CHECK_ROWS
    checks = sum(encrypted_size(masks + rows * (party in roles.holders)) for party in roles.parties if party != label)
    receivers = {party: len(roles.receivers(party)) for party in roles.parties}
    return Cost(
        session=m * encrypted_size(WORD) + (m - 1) * encrypted_size(32),
        setup=sum(receivers[party] * encrypted_size(WORD * n * width) for party, width in widths.items()),
        angles=models.count * h * (m - 1) * encrypted_size(ANGLE * n),
        fourier_terms=models.count * encrypted_size(2 * WORD * terms * (n + CHECK_ROWS)),
        checks=models.count * checks,
        residuals=encrypted_size(WORD * n) * sum(receivers[party] * count for party, count in models.opened.items()),
        openings=WORD * models.sums * (m + 1)
        + models.queries * m * COMMITMENT
        + TAG
        * max(models.queries, sum(models.opened.values())),  # tags of the dealer's encrypted messages, one per owner
    ).lasting(roles, models.count, 0)


def moments(roles: Roles, n_records: int, queries: int, sums: int) -> Cost:
    """Return the cost of measuring n held-out records, in a session of its own. queries, sums : as in `Models`."""
    if roles.dealt:
        return logistic(roles, n_records, {}, MOMENTS, Models(1, {}, queries, sums))
    terms = encrypted_size(PUBLIC_PIECE + PIECE * blocks_of(n_records) * 2 * MOMENTS)
    openings = encrypted_size(PIECE * 2 * MOMENTS) + 2 * (queries * COMMITMENT + WORD * sums)
    return Cost(0, 0, 0, terms, 0, 0, openings).lasting(roles, 1, 0)


def encrypted_logistic(roles: Roles, n_records: int, widths: Mapping[str, int], terms: int, models: Models) -> Cost:
    """Return the cost of a logistic run without a dealer, with the arguments of `logistic`."""
    block = PIECE * blocks_of(n_records)
    return Cost(
        session=0,
        setup=encrypted_size(PUBLIC_PIECE + block * widths[roles.key_owner]),
        angles=models.count * encrypted_size(block),
        fourier_terms=models.count * encrypted_size(2 * terms * block),
        checks=0,
        residuals=models.count * encrypted_size(block),
        openings=encrypted_size(PIECE * models.sums) + models.queries * (TAG + 2 * COMMITMENT) + 2 * WORD * models.sums,
    ).lasting(roles, models.count, 0)


def encrypted_gram(roles: Roles, n_records: int, widths: Mapping[str, int]) -> Cost:
    """Return the cost of a release of the products of all columns without a dealer, with the arguments of `gram`."""
    a, b = widths[roles.label], widths[roles.key_owner]
    setup = encrypted_size(PUBLIC_PIECE + PIECE * blocks_of(n_records) * b)
    openings = encrypted_size(PIECE * a * b) + WORD * (2 * a * b + a * a + b * b) + 2 * COMMITMENT
    return Cost(0, setup, 0, 0, 0, 0, openings).lasting(roles, 1, 0)


def gram(roles: Roles, n_records: int, widths: Mapping[str, int]) -> Cost:
    """Return the cost of a release of the products of all columns, including the label."""
    if not roles.dealt:
        return encrypted_gram(roles, n_records, widths)
    m, parties = len(roles.parties), roles.parties
    dealt = [widths[later] * sum(widths[first] for first in parties[:place]) for place, later in enumerate(parties)]
    elements = 2 * sum(dealt) + sum(width * width for width in widths.values())
    return Cost(
        session=m * encrypted_size(WORD),
        setup=(m - 1) * sum(encrypted_size(WORD * n_records * width) for width in widths.values()),
        angles=0,
        fourier_terms=0,
        checks=0,
        residuals=0,
        openings=sum(encrypted_size(WORD * size) for size in dealt[1:]) + WORD * elements + m * COMMITMENT,
    ).lasting(roles, 1, n_records * sum(widths.values()) ** 2)


def largest_message(roles: Roles, sizes: tuple[int, int], widths: Mapping[str, int]) -> int:
    """Return the bytes of the largest encrypted message of a run.

    sizes : numbers of training records and of held-out ones. widths : as in `logistic`, with labels.
    """
    (n_records, n_held_out), terms = sizes, MOST_TERMS
    if roles.dealt:
        entries = (n_records + CHECK_ROWS) * max(*widths.values(), 2 * terms)
        return encrypted_size(WORD * max(entries, bool(n_held_out) * (n_held_out + CHECK_ROWS) * 2 * MOMENTS))
    a, b = widths[roles.label], widths[roles.key_owner]
    measured = bool(n_held_out) * blocks_of(n_held_out) * 2 * MOMENTS
    return encrypted_size(PUBLIC_PIECE + PIECE * max(blocks_of(n_records) * max(b, 2 * terms), a * b, a + b, measured))
