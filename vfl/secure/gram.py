"""Products of two parties' columns on secret shares: the cross blocks of a Gram matrix, each revealed once, with noise.

Guarantee. A product between two parties' columns is revealed with noise. At least the charged noise stays unknown to the
dealer. It also stays unknown to parties that pool what they saw, unless both owners are among these parties. Messages are
uniform for everyone who lacks the seeds of two participants. Each party computes the block of its own columns locally and adds
noise to it.

    Q_aᵀQ_b  =  Q_aᵀD_b [at a]  +  D_aᵀU_b [at b]  +  U_aᵀU_b [dealt],       D = Q − U

    columns     owner → every other party    `masked_columns`     →  `take_columns`    (p_o, n) uint64, once
    product     dealer → b                   `GramDealer.product` →  `take_product`    (p_a, p_b) uint64 per pair
    opening     a, b → coordinator           `cross`              →  `opened_cross`    (p_a, p_b) uint64 per pair
                party → coordinator          `own`                                     (p, p) int64 per party

Party a precedes party b in `Roles.parties`. Let u_i be the concatenation of c_q 2^−FX Q_i over all parties q. Its norm is at
most C, since Σ c_q² ≤ C². A label counts as a column of its party. Replacing a record therefore moves Σ u_i u_iᵀ by at most
√2·C² in Frobenius norm. Contributions are integers, so rounding adds nothing to this bound. An off-diagonal entry counts twice
in the Frobenius norm, so its noise is σ/√2, as in vfl.solvers.noisy_gram.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vfl.errors import FederationError, PrivacyError
from vfl.kernels import ring as kernels
from vfl.secure import noise as distributed
from vfl.secure.ring import LARGEST_DEVIATION, WORDS, Ring, decoded, encoded, largest_sum, shared_cap, within
from vfl.secure.roles import DEALER
from vfl.secure.streams import zero_share

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from vfl.base.types import Integers, Vector
    from vfl.kernels.ring import Elements
    from vfl.privacy.events import ReleaseKey
    from vfl.privacy.noise import NoiseSource
    from vfl.secure.roles import Roles
    from vfl.secure.streams import Streams

LARGEST_BITS = 21
SMALLEST_BITS = 8
MASKS = ("gram", 0)
"""First part of the names of the streams that mask columns."""


class GramBits(NamedTuple):
    """FX, the bits of a column in units of its party's cap: 8 to 21. With 21 bits a column still fits in int32."""

    columns: int

    @property
    def limit(self) -> int:
        """Return 4^FX, the largest ‖Q_i‖² of a party's integer row."""
        return 1 << (2 * self.columns)

    def step(self, first: float, second: float) -> Fraction:
        """Return g_ab = c_a·c_b·4^−FX, exactly: the value of one integer step in a product of columns of parties a and b."""
        return Fraction(first) * Fraction(second) / self.limit


def gram_bits(n_records: int, deviation: Fraction | float, ring: Ring = WORDS) -> GramBits:
    """Return the number of bits to which columns are rounded; PrivacyError if the number is below 8.

    deviation : max over parties a, b of σ/(c_a·c_b). FX is the largest number ≤ 21 with n·4^FX + 3·2^52 < `ring.range` and
        4^FX·σ/(c_a·c_b) ≤ 2^48.
    """
    ratio = Fraction(deviation)
    for columns in range(LARGEST_BITS, SMALLEST_BITS - 1, -1):
        square = 1 << (2 * columns)
        if largest_sum(n_records, square, 3 * LARGEST_DEVIATION) < ring.range and ratio * square <= LARGEST_DEVIATION:
            return GramBits(columns)
    raise PrivacyError(
        f"trust='secure': with {n_records} records and this noise, a column's integers keep fewer than {SMALLEST_BITS} "
        "bits: raise the budget"
    )


def gram_caps(cap: float, squares: Mapping[str, float]) -> dict[str, float]:
    """Return c_q for every party, c_q² ∝ squares_q, with Σ_q c_q² ≤ C² in exact arithmetic.

    cap : C. squares : {party: weight > 0}, public; for instance ΣB_j² over the party's columns, plus t²B² for the label.
    """
    return shared_cap(cap, cap, 1, squares)


def gram_rows(
    X: npt.NDArray[np.float64], centre: Vector, scale: Vector, cap: float, bits: GramBits
) -> npt.NDArray[np.int32]:
    """Return a party's scaled columns as integers, (p, n) int32. Column i of the result holds Q_i, the integers of record i.

    For any X, (n, p), ‖Q_i‖² ≤ 4^FX holds exactly.

    scale : (p,), as in scale ∘ (x − centre). cap : c_q of `gram_caps`.
    """
    columns = np.asarray(X.T)
    rows = np.empty(columns.shape, dtype=np.int32)
    factors = np.asarray(scale, np.float64) * (2.0**bits.columns / cap)
    kernels.capped_rows(columns, centre, factors, bits.limit, rows)
    return rows


@dataclass(frozen=True, slots=True)
class Pair:
    """Block of products between the columns of two parties, or among the columns of one party.

    first, second : names of the two parties, in the order of `Roles.parties`; equal for a block within one party.
    key : ledger key of the release. sigma : σ of the event. step : g_ab, the value of one step of an integer entry.
    dealt : True if the dealer adds noise, too.
    """

    first: str
    second: str
    key: ReleaseKey
    sigma: float
    step: Fraction
    dealt: bool = True

    @property
    def name(self) -> tuple[str | int, ...]:
        """Return the name of this pair, as part of the name of a stream."""
        return ("gram", self.first, self.second, self.key.round, self.key.part, self.key.attempt)

    def contributor(self, name: str) -> str:
        """Return a contributor's name in this pair's noise stream.

        Streams thus differ between pairs, also with seeded noise.
        """
        return f"{name}, {self.first} × {self.second}"

    def deviation(self) -> float:
        """Return the standard deviation, in steps, of one contributor's noise in an off-diagonal entry.

        With a dealer, three contributors add σ/2 each. Any two of them supply the noise σ/√2 that such an entry needs. Without
        a dealer, each of the two owners adds σ/√2.
        """
        if self.dealt:
            found = distributed.deviations(self.sigma / 2.0, self.step, 1, 1).party
        else:
            found = distributed.deviations(self.sigma, self.step, 2, 1).party
        if found < distributed.LEAST_STEPS * math.sqrt(3):
            raise PrivacyError(
                f"trust='secure': the noise of {found:.3g} rounding steps is too small for products of columns"
            )
        return found


class GramMember:
    """One party's part in the protocol for products.

    roles : public roles. name : name of this party. streams : streams of this session. noise : source of this party's noise.
    rows : (p, n) int32, from `gram_rows`, including the label at the label party.
    """

    def __init__(
        self, roles: Roles, name: str, streams: Streams, noise: NoiseSource, rows: npt.NDArray[np.int32]
    ) -> None:
        self._roles, self.name, self._streams, self._noise, self._rows = roles, name, streams, noise, rows
        self._masked: dict[str, Elements] = {}
        self._products: dict[Pair, Elements] = {}
        self._released: set[Pair] = set()

    def masked_columns(self) -> Elements:
        """Return D = Q − U, (p, n) uint64, for every other party."""
        self._streams.reserve(DEALER, *MASKS, self.name)
        masked = self._mask()
        np.subtract(self._rows.astype(np.int64).view(np.uint64), masked, out=masked)
        return masked

    def take_columns(self, owner: str, elements: Elements) -> None:
        """Take another party's masked columns."""
        if elements.dtype != np.uint64 or elements.ndim != 2 or elements.shape[1] != self._rows.shape[1]:
            raise FederationError(f"the masked columns of {owner!r} do not have one row per record")
        self._masked[owner] = elements

    def take_product(self, pair: Pair, elements: Elements) -> None:
        """Take the dealer's share of the products of two parties' columns, (p_a, p_b) uint64, as the second of the two."""
        self._products[pair] = elements

    def cross(self, pair: Pair) -> Elements:
        """Return this party's share of a block between two parties, (p_a, p_b) uint64. The caller charges the release first."""
        first = self.name == pair.first
        other = pair.second if first else pair.first
        if other not in self._masked or pair.first == pair.second or self.name not in (pair.first, pair.second):
            raise FederationError(f"party {self.name!r} has not received the masked columns of {other!r}")
        masked = self._masked[other]
        if first:
            total = kernels.cross_products(self._rows, masked)
            total += self._streams.once(DEALER, "product", *pair.name).words(*total.shape)
        else:
            if pair not in self._products:
                raise FederationError("the dealer's message for a block of products is missing")
            total = kernels.cross_products(masked, self._mask())
            total += self._products.pop(pair)
        total += zero_share(self._streams, self.name, (pair.first, pair.second), pair.name, total.size).reshape(
            total.shape
        )
        drawn = distributed.drawn(self._noise, pair.key, pair.contributor(self.name), pair.deviation(), total.size)
        return total + encoded(drawn).reshape(total.shape)

    def own(self, pair: Pair) -> Integers:
        """Return the products of this party's own columns with noise, (p, p) int64, symmetric, in steps, once.

        The caller charges the release first. A second request for the same release is refused, because its receiver could
        average the two noises.
        """
        if pair in self._released or pair.first != self.name:
            raise PrivacyError(f"party {self.name!r} was asked for products that are not its own, or for its own twice")
        self._released.add(pair)
        return own_products(self._rows, pair, self._noise)

    def _mask(self) -> Elements:
        return self._streams.again(DEALER, *MASKS, self.name).words(*self._rows.shape)


def own_products(rows: npt.NDArray[np.int32], pair: Pair, noise: NoiseSource) -> Integers:
    """Return the products of one party's columns with noise, (p, p) int64, symmetric, in steps. rows : (p, n).

    The noise has deviation σ on the diagonal and σ/√2 off the diagonal.
    """
    if pair.first != pair.second:
        raise PrivacyError("products of one party's own columns were asked for with another party's")
    p = len(rows)
    exact = np.zeros((p, p), dtype=np.int64)
    for j in range(p):
        column = rows[j : j + 1].astype(np.int64).view(np.uint64)
        exact[j:, j] = decoded(kernels.cross_products(rows[j:], column))[:, 0]
    lower = np.tril_indices(p, -1)
    off = distributed.deviations(pair.sigma, pair.step, 2, 1).party
    on = distributed.deviations(pair.sigma, pair.step, 1, 1).party
    exact[lower] += distributed.drawn(noise, pair.key, f"{pair.first}, products", off, len(lower[0]))
    exact[np.diag_indices(p)] += distributed.drawn(noise, pair.key, f"{pair.first}, squares", on, p)
    released: Integers = np.tril(exact) + np.tril(exact, -1).T
    return released


class GramDealer:
    """The dealer's part in the protocol for products. The dealer receives only public facts.

    widths : {party: p, the number of its columns}.
    """

    def __init__(
        self, roles: Roles, streams: Streams, noise: NoiseSource, n_records: int, widths: Mapping[str, int]
    ) -> None:
        self._roles, self._streams, self._noise = roles, streams, noise
        self._n, self._widths = n_records, dict(widths)

    def product(self, pair: Pair) -> Elements:
        """Return U_aᵀU_b plus the dealer's noise minus the first party's share: (p_a, p_b) uint64, uniform for b."""
        first, second = (
            self._streams.again(party, *MASKS, party).words(self._widths[party], self._n)
            for party in (pair.first, pair.second)
        )
        total = kernels.cross_products(first, second)
        drawn = distributed.drawn(self._noise, pair.key, pair.contributor(DEALER), pair.deviation(), total.size)
        total += encoded(drawn).reshape(total.shape)
        return total - self._streams.once(pair.first, "product", *pair.name).words(*total.shape)


def opened_cross(first: Elements, second: Elements, largest: int, ring: Ring = WORDS) -> Integers:
    """Return the noised products of two parties' columns, (p_a, p_b) int64, in steps g_ab.

    first, second : the two parties' shares, from `cross`. largest : `largest_sum` of an entry; PrivacyError if an entry is
        larger in magnitude.
    """
    if first.shape != second.shape or first.dtype != np.uint64 or second.dtype != np.uint64:
        raise FederationError("the two parties' messages for a block of products have different shapes")
    return within(ring.decoded(ring.added([first, second])), largest)
