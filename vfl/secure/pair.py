"""The two parties of a run on secret shares without a dealer: shares of residuals and of sums by homomorphic encryption.

Guarantee. The multiplier, which holds the label, sees encryptions and its own masks. The key owner sees uniform integers modulo
t. Each share of an opened sum is uniform by itself. Only the sum of both shares carries information. This sum has the noise of
both parties, and the noise of one of them suffices. The proof is in docs/mathematics.md, "Two parties without a dealer".

    set-up      key owner → multiplier    Enc(Q_b)                               `encrypted_columns`  →  `take_columns`
    terms       key owner → multiplier    Enc(C_f(ρ), S_f(ρ)), f = 1..K          `encrypted_terms`    →  `multiplied_terms`
    residual    multiplier → key owner    Σ_f P_f·C_f − Q_f·S_f, masked          `multiplied_terms`   →  `take_residual`
    share       key owner → multiplier    Enc([r]_b)                             `encrypted_share`    →  `take_share`
    moments     multiplier → key owner    Σ_i e^(ifθ_i), masked              `PairMoments.multiplied` → `take_moments`
    sums        multiplier → key owner    Q_a·[r]_b and Q_b·[r]_a, masked        `multiplied_sums`    →  `take_sums`
    opening     party → coordinator       own part + share + noise               `contribution`       →  `opened`

The multiplier's angle replaces the public angle δ. Minus the key owner's angle replaces the dealer's mask ρ. Residuals are
therefore the same integers, with the same bound R, as in vfl.secure.sigmoid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.errors import FederationError, PrivacyError
from vfl.kernels import ring as kernels
from vfl.secure import noise as distributed
from vfl.secure import sigmoid
from vfl.secure.columns import OwnAngles
from vfl.secure.gram import own_products
from vfl.secure.homomorphic import PUBLIC_PIECE, KeyOwner, Multiplier, uniform
from vfl.secure.ring import PRIME, RESIDUAL_BITS, added, modular

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from vfl.base.types import Integers, Vector
    from vfl.kernels.ring import Angles, Columns, Elements, Shorts
    from vfl.privacy.noise import NoiseSource
    from vfl.secure.columns import OwnColumns
    from vfl.secure.gram import Pair
    from vfl.secure.homomorphic import Ciphertexts, Rows
    from vfl.secure.measures import Measuring
    from vfl.secure.noise import Deviations
    from vfl.secure.requests import ContributeMoments, Opening, Version
    from vfl.secure.roles import Roles
    from vfl.secure.streams import Streams

HALF = np.uint64(30)
EARLY = "a message of a run without a dealer arrived before those on which it depends"


class PairKeys:
    """One party's key in one session: the key owner's secret key, or the multiplier's copy of the public key.

    A name is used once per session, so a mask never hides two numbers with the same name.
    """

    def __init__(self, roles: Roles, name: str) -> None:
        self._owner = KeyOwner() if name == roles.key_owner else None
        self._multiplier: Multiplier | None = None
        self._used: set[object] = set()

    @property
    def owner(self) -> KeyOwner:
        """The secret key; FederationError at the multiplier."""
        if self._owner is None:
            raise FederationError("the party with the label has no key of homomorphic encryption")
        return self._owner

    @property
    def multiplier(self) -> Multiplier:
        """The public key; FederationError at the key owner, and before the key has arrived."""
        if self._multiplier is None:
            raise FederationError(EARLY)
        return self._multiplier

    def once(self, name: object) -> None:
        """Mark a name as used. Raises PrivacyError if it was used before."""
        if name in self._used:
            raise PrivacyError("a request would have the same number masked twice: repeat it with a new attempt number")
        self._used.add(name)

    def sent(self, rows: Rows) -> bytes:
        """Return the public key and the encrypted rows, for the multiplier."""
        return self.owner.public_key + b"".join(self.owner.encrypted(rows))

    def taken(self, message: memoryview, width: int) -> Iterator[list[Any]]:
        """Take the public key, unless it is known, and return the encrypted rows that follow it. width : number of rows."""
        if self._owner is not None:
            raise FederationError("the key owner received encrypted columns")
        if self._multiplier is None:
            self._multiplier = Multiplier(message[:PUBLIC_PIECE])
        return self._multiplier.taken(message[PUBLIC_PIECE:], width)


class PairMember:
    """One party's part in training by sums.

    roles : public roles. name : name of this party. keys : its key of the session. noise : source of this party's noise.
    n_records : n. labels : (n,) True for y = 1; None at the key owner.
    """

    def __init__(
        self,
        roles: Roles,
        name: str,
        keys: PairKeys,
        noise: NoiseSource,
        n_records: int,
        labels: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        if (labels is None) == (name == roles.label):
            raise FederationError("only the label party may hold labels")
        self._roles, self.name, self._keys, self._noise, self._n = roles, name, keys, noise, n_records
        half = np.int64(1 << (RESIDUAL_BITS - 1))
        self._halves = None if labels is None else modular(np.where(labels, -half, half))
        self._setup = -1
        self._columns: OwnColumns | None = None
        self._angles: OwnAngles | None = None
        self._others: tuple[int, Ciphertexts] | None = None
        self._share: tuple[Version, Elements] | None = None
        self._shared: tuple[Version, Ciphertexts] | None = None
        self._sums: dict[Opening, Elements] = {}

    def set_up(self, number: int, columns: OwnColumns) -> None:
        """Take this party's columns, for one choice of cap, centres and scales. number : above those of earlier set-ups."""
        if number <= self._setup or columns.rows.shape[1] != self._n:
            raise PrivacyError("columns need a new set-up number, and one row per record of the run")
        self._setup, self._columns, self._angles = number, columns, OwnAngles(columns)

    # The key owner

    def encrypted_columns(self) -> bytes:
        """Return the key owner's public key and encrypted columns, for the multiplier."""
        return self._keys.sent(self._own().rows)

    def encrypted_terms(self, version: Version, w: Vector, clamp: float | None) -> bytes:
        """Return the key owner's encrypted Fourier terms at its part of the margins, (2K, n), for the multiplier."""
        self._keys.once(version)
        angles = -self._angles_at(version, w, clamp)
        rows = sigmoid.fourier_terms(version.terms)[angles].T
        return b"".join(self._keys.owner.encrypted(np.ascontiguousarray(rows)))

    def take_residual(self, version: Version, replies: memoryview) -> None:
        """Take the key owner's share of the residuals."""
        self._share = version, self._keys.owner.records(replies, self._n)

    def encrypted_share(self, version: Version) -> bytes:
        """Return the key owner's encrypted share of the residuals, for the multiplier."""
        return b"".join(self._keys.owner.encrypted(self._share_at(version)[None]))

    def take_sums(self, openings: Sequence[Opening], replies: memoryview) -> None:
        """Take the key owner's shares of products, one per column of the openings."""
        self._take(openings, self._keys.owner.sums(replies))

    # The multiplier

    def take_columns(self, setup: int, width: int, message: memoryview) -> None:
        """Take the key owner's encrypted columns. width : their number."""
        self._others = setup, list(self._keys.taken(message, width))

    def multiplied_terms(self, version: Version, w: Vector, clamp: float | None, message: memoryview) -> bytes:
        """Return masked products of both parties' Fourier terms, for the key owner; keep the multiplier's share."""
        if self._halves is None:
            raise FederationError(EARLY)
        self._keys.once(version)
        rows = sigmoid.responses(version.place)[self._angles_at(version, w, clamp)].T
        multiplier = self._keys.multiplier
        replies, share = multiplier.records(multiplier.taken(message, len(rows)), np.ascontiguousarray(rows))
        self._share = version, added([share, self._halves])
        return replies

    def take_share(self, version: Version, message: memoryview) -> None:
        """Take the key owner's encrypted share of the residuals."""
        self._shared = version, list(self._keys.multiplier.taken(message, 1))

    def multiplied_sums(self, openings: Sequence[Opening]) -> bytes:
        """Return masked products of columns and shares of residuals, for the key owner; keep the multiplier's shares."""
        multiplier, replies, shares = self._keys.multiplier, [], []
        for opening in openings:
            self._keys.once(opening)
            share = self._share_at(opening.version)
            rows: Rows = share[None]
            if opening.owner == self.name:
                if self._shared is None or self._shared[0] != opening.version:
                    raise FederationError(EARLY)
                blocks, rows = self._shared[1], self._columns_of(opening)
                outputs = [[(j, 0)] for j in range(opening.size)]
            else:
                if self._others is None or self._others[0] != opening.setup:
                    raise FederationError(EARLY)
                blocks = self._others[1]
                outputs = [[(0, j)] for j in range(opening.start, opening.stop)]
            reply, found = multiplier.sums(blocks, rows, outputs)
            replies.append(reply)
            shares.append(found)
        self._take(openings, np.concatenate(shares))
        return b"".join(replies)

    # Both

    def contribution(self, opening: Opening, deviations: Deviations) -> Elements:
        """Return this party's share of a noised sum, (s,) integers modulo t: its own part, its share of products, its noise.

        The caller charges the release first. A second contribution to one sum is refused.
        """
        if opening not in self._sums or opening.setup != self._setup:
            raise FederationError(EARLY)
        drawn = distributed.drawn(self._noise, opening.key, self.name, deviations.party, opening.size)
        parts = [self._sums.pop(opening), modular(drawn)]
        if opening.owner == self.name:
            parts.append(_products(self._columns_of(opening), self._share_at(opening.version)))
        return added(parts)

    def _take(self, openings: Sequence[Opening], shares: Elements) -> None:
        sizes = [opening.size for opening in openings]
        if len(shares) != sum(sizes):
            raise FederationError("the shares of sums do not fit the columns")
        parts = np.split(shares, np.cumsum(sizes)[:-1])
        self._sums = dict(zip(openings, parts, strict=True))

    def _angles_at(self, version: Version, w: Vector, clamp: float | None) -> Angles:
        if self._angles is None:
            raise FederationError(EARLY)
        return self._angles.at(w, version.period, clamp)

    def _share_at(self, version: Version) -> Elements:
        if self._share is None or self._share[0] != version:
            raise FederationError(EARLY)
        return self._share[1]

    def _columns_of(self, opening: Opening) -> Shorts:
        return self._own().rows[opening.start : opening.stop]

    def _own(self) -> OwnColumns:
        if self._columns is None:
            raise FederationError(EARLY)
        return self._columns


class PairMoments:
    """One party's part in measuring held-out records (vfl.secure.measures); arguments as for `PairMember`.

    δ is the multiplier's angle, which contains the label. ρ is minus the key owner's angle. A reply is a sum over the records,
    so the parties share moments and no number of a single record.

    streams : streams shared with the other party, for shares of zero. A stream's name holds all facts of a
        release. The shares of zero of two parties that were asked for different releases therefore do not cancel.
    """

    def __init__(
        self,
        roles: Roles,
        name: str,
        keys: PairKeys,
        streams: Streams,
        noise: NoiseSource,
        labels: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        self._roles, self.name, self._keys, self._streams, self._noise = roles, name, keys, streams, noise
        self._shifts = None if labels is None else sigmoid.class_angles(labels)
        self._share: tuple[Version, Elements] | None = None

    def encrypted_terms(self, version: Version, columns: OwnColumns, w: Vector, clamp: float | None) -> bytes:
        """Return the key owner's public key and encrypted Fourier terms, (2K, n), for the multiplier."""
        self._keys.once(("terms", version))
        angles = -OwnAngles(columns).at(w, version.period, clamp)
        return self._keys.sent(np.ascontiguousarray(sigmoid.fourier_terms(version.terms)[angles].T))

    def multiplied(
        self, version: Version, columns: OwnColumns, w: Vector, clamp: float | None, message: memoryview
    ) -> bytes:
        """Return masked moments for the key owner, and keep the multiplier's share."""
        if self._shifts is None:
            raise FederationError(EARLY)
        self._keys.once(("replies", version))
        angles = OwnAngles(columns).at(w, version.period, clamp) + self._shifts
        rows, K = sigmoid.fourier_terms(version.terms)[angles].T, version.terms
        # e^(if(δ − ρ)): cos fδ C_f + sin fδ S_f, and sin fδ C_f − cos fδ S_f.
        rows = np.concatenate([rows, -rows[::2]])
        outputs = [
            own
            for f in range(K)
            for own in ([(2 * f, 2 * f), (2 * f + 1, 2 * f + 1)], [(2 * f + 1, 2 * f), (2 * K + f, 2 * f + 1)])
        ]
        blocks = self._keys.taken(message, 2 * K)
        replies, share = self._keys.multiplier.sums(blocks, np.ascontiguousarray(rows), outputs)
        self._share = version, share
        return replies

    def take_moments(self, version: Version, replies: memoryview) -> None:
        """Take the key owner's share of the moments."""
        self._keys.once(("shares", version))
        self._share = version, self._keys.owner.sums(replies)

    def measured(self, measure: ContributeMoments, measuring: Measuring) -> Elements:
        """Return this party's share of a release, (d,) integers modulo t: its part, its noise and its share of zero, once.

        The caller charges the release first.
        """
        if self._share is None or self._share[0] != measure.version:
            raise FederationError(EARLY)
        release = measuring.release(measure.number, measure.version.place)
        size, deviation = len(release.matrix), measuring.deviations(measure.number, release.bits).party
        (other,) = (party for party in self._roles.parties if party != self.name)
        zero = uniform(self._streams.once(other, "zero", *measure.name), size)
        if self._shifts is None:
            zero = np.where(zero == 0, zero, np.uint64(PRIME) - zero)
        drawn = distributed.drawn(self._noise, measure.key, self.name, deviation, size)
        return added([_products(release.matrix.astype(np.int32), self._share[1]), modular(drawn), zero])


class PairGram:
    """One party's part in a release of all products of columns. rows : (p, n) int32, from `gram_rows`, with the label."""

    def __init__(self, roles: Roles, name: str, keys: PairKeys, rows: npt.NDArray[np.int32]) -> None:
        keys.once("products")  # products with two choices of rows would have more than the charged sensitivity
        self._roles, self.name, self._keys, self._rows = roles, name, keys, rows
        self._share: Elements | None = None

    def encrypted_columns(self) -> bytes:
        """Return the key owner's public key and encrypted columns, for the multiplier."""
        return self._keys.sent(self._rows)

    def multiplied(self, width: int, message: memoryview) -> bytes:
        """Return masked products of all columns of both parties, for the key owner; keep the multiplier's shares.

        width : p_b, the number of the key owner's columns.
        """
        self._keys.once("replies of products")
        blocks = self._keys.taken(message, width)
        outputs = [[(j, k)] for j in range(len(self._rows)) for k in range(width)]
        replies, shares = self._keys.multiplier.sums(blocks, self._rows, outputs)
        self._share = shares.reshape(len(self._rows), width)
        return replies

    def take_products(self, replies: memoryview) -> None:
        """Take the key owner's shares of the products."""
        self._keys.once("shares of products")
        self._share = self._keys.owner.sums(replies).reshape(-1, len(self._rows))

    def opened(self, cross: Pair, own: Pair, noise: NoiseSource) -> tuple[Elements, Integers]:
        """Return this party's shares of all products with noise, once; the caller charges the release first.

        These are its share of the products with the other party, (p_first, p_second) integers modulo t, and the products of its
        own columns, (p, p) int64. cross, own : the two blocks.
        """
        share, self._share = self._share, None
        if share is None or {cross.first, cross.second} != set(self._roles.parties) or own.first != self.name:
            raise FederationError(EARLY)
        share = share if cross.first == self._roles.label else share.T
        drawn = distributed.drawn(noise, cross.key, cross.contributor(self.name), cross.deviation(), share.size)
        return added([share, modular(drawn).reshape(share.shape)]), own_products(self._rows, own, noise)


def _products(rows: Columns, elements: Elements) -> Elements:
    """Return Σ_i rows[j, i]·elements[i] modulo t, (s,). Each half of 30 bits gives exact sums below 2^63."""
    low, high = elements & ((np.uint64(1) << HALF) - np.uint64(1)), elements >> HALF
    first, second = (kernels.products(rows, half).view(np.int64) for half in (low, high))
    return np.array([(int(a) + (int(b) << 30)) % PRIME for a, b in zip(first, second, strict=True)], dtype=np.uint64)
