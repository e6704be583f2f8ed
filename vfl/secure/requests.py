"""Requests of the coordinator to the participants of a run on secret shares. Requests are public, except for encrypted parts.

A request names a computation. Participants send each other ring elements (integers modulo 2^64) in ciphertexts, which neither
the coordinator nor the object store can read. A holder is a party with a share of the residuals; an opening reveals a sum with
noise. Only roles decide which ciphertexts a participant sends and takes. A request cannot change them.

Every party commits to its share of an opened sum before any party discloses a share, so no party can choose its share after
seeing those of others. A sum that is too large for the data and the noise is not released.

| request | to | takes, from | sends, to |
|---|---|---|---|
| Meet | all | | its key of a new session (reply) |
| Begin | all | the keys of all others, in the request | |
| StateRecords | every party | | its number of records, to the dealer |
| CheckRecords | the dealer | the numbers of records, from all parties | |
| Toss | the label party | | the session's coin, to all other parties |
| TakeToss | every other party | the coin, from the label party | |
| SetUp | every party | | masked columns, to the other holders |
| TakeColumns | every holder | masked columns, from their owner | |
| MaskAngles | every party | | masked angles, to the other holders |
| DealTerms | the dealer | | shares of Fourier terms, to `Roles.supplied` |
| OpenRows | every party | a holder: masked angles of all others; shares of terms | opened rows, to the label party |
| CheckRows | the label party | opened rows, from all other parties | |
| ShareResidual | every holder | | masked residuals, to the owners |
| DealSum | the dealer | | its part of the sums, to the owners |
| Contribute | every party | masked residuals and the dealer's part, at an owner | a commitment to its share (reply) |
| Disclose | every party, once all have committed | | its share of the sum (reply) |

Without a dealer, a is the label party (the multiplier) and b the other party (the key owner). The requests are the same,
without those to the dealer, StateRecords, Toss, TakeToss, OpenRows and CheckRows. Ring elements are integers modulo a prime.

| request | to | takes, from | sends, to |
|---|---|---|---|
| SetUp | both | | b: its public key and encrypted columns, to a |
| TakeColumns | a | encrypted columns, from b | |
| MaskAngles | b, then a | a: encrypted Fourier terms, from b | b: encrypted Fourier terms, to a; a: masked products, to b |
| ShareResidual | b | masked products, from a | its encrypted share of the residuals, to a |
| Contribute | a, then b | a: encrypted share, from b; b: masked products, from a | a: masked products, to b |
| MaskProducts | both | | b: its public key and encrypted columns, to a |
| TakeProducts | a | encrypted columns, from b | masked products, to b |
| ContributeProducts | both | b: masked products, from a | |

With a dealer, one release of all products of columns uses these requests. They replace all requests from SetUp on (squared
loss), or precede SetUp (joint steps):

| request | to | takes, from | sends, to |
|---|---|---|---|
| MaskProducts | every party | | masked columns, to all other parties |
| TakeProducts | every party | masked columns, from their owner | |
| DealProducts | the dealer | | its part of a product, to that owner which is later in `Roles.parties` |
| ContributeProducts | every party | the dealer's part | a commitment to its shares (reply) |
| Disclose | every party, once all have committed | | its shares of the products; its own block with noise (reply) |

Measures of held-out records have a session of their own, which begins as above, up to TakeToss (vfl.secure.measures):

| request | to | takes, from | sends, to |
|---|---|---|---|
| MaskMoments | every party | | masked angles, which include the label, to the other holders |
| DealTerms, OpenRows, CheckRows | as above | | |
| ContributeMoments | the dealer | | its noise of a release, to the label party |
| ContributeMoments | every party | the dealer's noise, at the label party | a commitment to its shares of the numbers (reply) |
| Disclose | every party, once all have committed | | its shares of the numbers (reply) |

Without a dealer, MaskMoments goes to b first: b sends its public key and encrypted Fourier terms to a. MaskMoments then goes to
a: a sends masked sums of products to b. b takes these sums on TakeMoments.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from vfl.errors import FederationError, PrivacyError
from vfl.privacy.events import Gaussian
from vfl.secure.ring import within
from vfl.secure.roles import DEALER
from vfl.secure.sigmoid import MOMENTS, SERIES, period_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from vfl.base.types import Integers, Vector
    from vfl.crypto.encryption import EncryptionKey
    from vfl.kernels.ring import Elements
    from vfl.privacy.events import ReleaseKey
    from vfl.queries import Backward
    from vfl.queries.parts import Knots, Scaled
    from vfl.secure.roles import Roles

    Ciphertext: TypeAlias = bytes | bytearray | npt.NDArray[np.uint8]
    Rows: TypeAlias = Mapping[str, Scaled]


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the model, at which residuals are computed as secret shares.

    model : `digest_of` the whole model. place : index of the Fourier series in vfl.secure.sigmoid.SERIES; for held-out records,
        the place of V.
    attempt : 0, plus one for each repetition with new masks. held_out : True for the moments of held-out records.
    """

    model: str
    place: int
    attempt: int = 0
    held_out: bool = False

    @property
    def terms(self) -> int:
        """Return K, the number of Fourier terms."""
        return MOMENTS if self.held_out else SERIES[self.place].terms

    @property
    def period(self) -> float:
        """Return the period of the Fourier series, in units of the linear predictor."""
        return period_at(self.place) if self.held_out else SERIES[self.place].period

    @property
    def name(self) -> tuple[str | int, ...]:
        """Return the part of a stream's name that stands for this version of the model."""
        return ("held out" if self.held_out else "version", self.model, self.place, self.attempt)


@dataclass(frozen=True, slots=True)
class Opening:
    """Name of one sum that is revealed with noise: Σ_i Q_ij r_i for each column j in a block of one owner.

    owner : party with the columns. start, stop : range of the block's columns. version : version of the model, for the
        residuals.
    key : ledger key of the release, new in every attempt. setup : number of the columns' set-up, that is, of one choice of cap,
        centres and scales. sigma : σ of the release, in which all contributors agree: with another σ the shares of zero differ.
    """

    owner: str
    start: int
    stop: int
    version: Version
    key: ReleaseKey
    setup: int = 0
    sigma: float = 0.0

    @property
    def size(self) -> int:
        """Return s, the number of columns in the block."""
        return self.stop - self.start

    @property
    def block(self) -> tuple[str | int, ...]:
        """Return the part of a stream's name that stands for the block of columns, scaled as in `setup`."""
        return ("block", self.setup, self.owner, self.start, self.stop)

    @property
    def name(self) -> tuple[str | int, ...]:
        """Return the part of a stream's name that stands for this sum."""
        key = self.key
        return ("opening", *self.block, *self.version.name, key.round, key.part, key.attempt, self.sigma.hex())


def digest_of(w: Mapping[str, Vector], others: Iterable[str] = ()) -> str:
    """Return a digest of a model. w : {party: w_q}. others : further public facts on which the residuals depend."""
    hashed = hashlib.sha256(b"vfl model on shares, version 1")
    for party in sorted(w):
        values = np.ascontiguousarray(w[party], dtype="<f8").tobytes()
        hashed.update(b"%d|%d|" % (len(party.encode()), len(values)) + party.encode() + values)
    for other in others:
        hashed.update(b"%d|" % len(other.encode()) + other.encode())
    return hashed.hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Request:
    """Base of all requests. session : name of the session, new for each run and for each attempt at a run."""

    session: str


class Meet(Request):
    """Start a new session with new keys, and forget the session before."""


@dataclass(frozen=True, slots=True)
class Begin(Request):
    """Take the keys of all other participants.

    n_records : n, held-out records included. keys : {participant: its key}. knots : as in `vfl.queries.Query`, for the session.
    held_out : True for a session on the held-out records, which measures the model; False for training.
    """

    n_records: int
    keys: Mapping[str, EncryptionKey]
    knots: Knots | None = None
    held_out: bool = False


class StateRecords(Request):
    """State the party's number of records to the dealer."""


class CheckRecords(Request):
    """Compare the parties' numbers of records with the number in `Begin`. The dealer deals nothing before this check."""


@dataclass(frozen=True, slots=True)
class SetUp(Request):
    """Cap and round the party's own columns, and mask them for the parties that hold shares of the residuals.

    number : number of this request in the session. cap : C. rows : {party: (block of all its columns, centres, scales)}.
    blocks : {party: ((start, stop), ...)}, the blocks of columns whose sums will be opened.
    """

    number: int
    cap: float
    rows: Rows
    blocks: Mapping[str, tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True)
class TakeColumns(Request):
    """Take the masked columns of a party."""

    owner: str


@dataclass(frozen=True, slots=True)
class MaskAngles(Request):
    """Mask the party's part of the margins, in angles: fractions of a period of the sigmoid's Fourier series.

    w : (p,) the party's coefficients on centred columns. clamp : bound on the magnitude of the party's part, None for no bound.
    """

    version: Version
    w: Vector
    clamp: float | None


@dataclass(frozen=True, slots=True)
class DealTerms(Request):
    """Deal the shares of the Fourier terms for one version of the model."""

    version: Version


@dataclass(frozen=True, slots=True)
class ShareResidual(Request):
    """Mask a party's share of the residuals for the owners of columns. owners : parties that receive the masked share."""

    version: Version
    owners: tuple[str, ...]


class Toss(Request):
    """Draw the session's coin. These random bytes choose the rows of Fourier terms that are opened to check the dealer."""


class TakeToss(Request):
    """Take the coin (random bytes) that the label party drew for the session."""


@dataclass(frozen=True, slots=True)
class OpenRows(Request):
    """Compute the party's share of the residuals, then disclose the check rows, which mask no record, to the label party."""

    version: Version


@dataclass(frozen=True, slots=True)
class CheckRows(Request):
    """Check the dealer's opened rows for one version of the model. Before this check, the label party adds to no sum."""

    version: Version


@dataclass(frozen=True, slots=True)
class DealSum(Request):
    """Send the dealer's part of the sums of a query, with the dealer's noise, to the owners of the columns."""

    version: Version
    setup: int
    query: Backward
    key: ReleaseKey


@dataclass(frozen=True, slots=True)
class Contribute(Request):
    """Charge the query's release to the owner's log, then return a commitment to the party's shares of the query's sums.

    fresh : owners of columns that receive masked residuals with this request.
    """

    version: Version
    setup: int
    query: Backward
    key: ReleaseKey
    fresh: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MaskProducts(Request):
    """Cap and round the party's own columns, including the label if the release includes it, and mask them for all others.

    rows : {party: (block of all its columns, centres, scales)}.
    """

    rows: Rows


@dataclass(frozen=True, slots=True)
class TakeProducts(Request):
    """Take the masked columns of another party. width : number of that party's columns, including a label."""

    owner: str
    width: int


@dataclass(frozen=True, slots=True)
class DealProducts(Request):
    """Send the dealer's part of all products between two parties, with the dealer's noise. key : ledger key of the release."""

    key: ReleaseKey


@dataclass(frozen=True, slots=True)
class ContributeProducts(Request):
    """Charge the release of all products to the owner's log, then return a commitment to the party's shares of the products.

    The commitment covers the products with every other party, and the block of the party's own columns.

    The party takes the charge from its own plan, which may differ from the coordinator's in the last bits.

    key : key of the release.
    """

    key: ReleaseKey


@dataclass(frozen=True, slots=True)
class MaskMoments(Request):
    """Mask the party's part of the angles of the held-out records. The label party's part includes the label.

    w, clamp : as in `MaskAngles`. centre : (p,) centres of the party's columns.
    """

    version: Version
    w: Vector
    centre: Vector
    clamp: float | None


@dataclass(frozen=True, slots=True)
class TakeMoments(Request):
    """Take the key owner's shares of the moments, in a run without a dealer."""

    version: Version


@dataclass(frozen=True, slots=True)
class ContributeMoments(Request):
    """Charge a release of measures to the owner's log, then return a commitment to the party's shares of its numbers.

    Participants take statistic and charge from their own plans. The dealer sends its noise to the label party.

    number : place of the release in the plan. key : key of the release, new in every attempt.
    """

    version: Version
    number: int
    key: ReleaseKey

    @property
    def name(self) -> tuple[str | int, ...]:
        """Return the part of a stream's name that stands for this release."""
        return ("measure", self.number, *self.version.name, self.key.round, self.key.part, self.key.attempt)


class Disclose(Request):
    """Disclose the committed shares of a sum, once. The coordinator sends this request after all parties have committed."""


@dataclass(frozen=True, slots=True)
class Commitment:
    """A party's commitment to its share of a noised sum (`committed`). digest : 32 bytes."""

    digest: bytes


@dataclass(frozen=True, slots=True)
class Contribution:
    """One party's shares of noised sums, little-endian uint64, block after block.

    Any m − 1 of the m parties' shares are jointly uniform. nonce : 32 random bytes that the commitment includes.
    """

    elements: bytes
    nonce: bytes


TO_DEALER = (Meet, Begin, CheckRecords, DealTerms, DealSum, DealProducts, ContributeMoments)
"""Types of requests that the dealer answers."""


NOISED = Contribute | ContributeProducts | ContributeMoments | DealSum | DealProducts
"""Types of requests with which a participant adds noise to a release."""
MEASURES = (MaskMoments, TakeMoments, ContributeMoments)
"""Types of requests of a session that measures held-out records alone."""
SUMS = (
    *(SetUp, TakeColumns, MaskAngles, ShareResidual, DealSum, Contribute),
    *(MaskProducts, TakeProducts, DealProducts, ContributeProducts),
)
"""Types of requests of a session of training alone."""


def committed(party: str, session: str, contribution: Contribution) -> Commitment:
    """Return a party's commitment to its share: SHA-256 of its name, the session, 32 fresh random bytes and the share.

    The commitment hides the share, since nobody guesses the random bytes. The party cannot disclose a different share later,
    since SHA-256 resists collisions.
    """
    hashed = hashlib.sha256(b"vfl words on shares, version 1")
    for part in (party.encode(), session.encode(), contribution.nonce, contribution.elements):
        hashed.update(b"%d|" % len(part) + part)
    return Commitment(hashed.digest())


def disclosed(party: str, session: str, commitment: object, contribution: object) -> Elements:
    """Return the share that a party disclosed. Raises PrivacyError if the party had committed to a different share."""
    if not isinstance(contribution, Contribution) or not isinstance(commitment, Commitment):
        raise FederationError(f"{party!r} sent an unexpected reply while a noised sum was being revealed")
    if committed(party, session, contribution) != commitment:
        raise PrivacyError(
            f"party {party!r} disclosed a share that it had not committed to, so the sum was not released (its privacy "
            "cost remains charged). Ask the party's owner which software it runs"
        )
    if len(contribution.elements) % 8:
        raise FederationError(f"party {party!r} disclosed a share that does not consist of whole 64-bit integers")
    return np.frombuffer(contribution.elements, dtype="<u8").astype(np.uint64, copy=False)


def opened(roles: Roles, opening: Opening, elements: Mapping[str, Elements], largest: int) -> Integers:
    """Return the noised sum in steps, (s,) int64: a release.

    One step is worth g_q = Bits.step(c_q). Any m − 1 of the m parties' shares are jointly uniform.

    elements : {party: its share, from `Member.contribution`}.
    largest : bound on honest sums (`largest_sum`); PrivacyError if a sum is larger in magnitude.
    """
    if set(elements) != set(roles.parties):
        missing = sorted(set(roles.parties) - set(elements))
        raise FederationError(
            f"the messages of {missing} for a sum are missing. The sum was not released; its privacy cost remains charged"
        )
    if any(own.shape != (opening.size,) or own.dtype != np.uint64 for own in elements.values()):
        raise FederationError("a party's message for a sum has a different length from its block")
    ring = roles.ring
    return within(ring.decoded(ring.added(list(elements.values()))), largest)


def ciphertext_names(count: int) -> list[str]:
    """Return names for `count` encrypted messages, in order. A call carries each ciphertext as a vector with such a name."""
    return [f"ciphertext {place}" for place in range(count)]


def named_ciphertexts(ciphertexts: Sequence[Any]) -> dict[str, Any]:
    """Return {name: encrypted message}, the mapping to send. `given_ciphertexts` reads the mapping at the receiver."""
    return dict(zip(ciphertext_names(len(ciphertexts)), ciphertexts, strict=True))


def given_ciphertexts(vectors: Mapping[str, Any]) -> list[Any]:
    """Return the ciphertexts of a call, in order. Raises FederationError for a name that is not from `ciphertext_names`."""
    names = ciphertext_names(len(vectors))
    if set(vectors) != set(names):
        raise FederationError("a request carried vectors that are not encrypted messages")
    return [vectors[name] for name in names]


def receivers(request: Request, name: str, roles: Roles) -> tuple[str, ...]:
    """Return the participants to which `name` sends encrypted messages with this request, in the order of the ciphertexts."""
    if not roles.dealt:
        owns, other = name == roles.key_owner, tuple(party for party in roles.parties if party != name)
        sends = (SetUp, MaskProducts, ShareResidual) if owns else (TakeProducts, Contribute)
        return other if isinstance(request, (*sends, MaskAngles, MaskMoments)) else ()
    match request:
        case SetUp() | MaskAngles() | MaskMoments():
            return roles.receivers(name)
        case StateRecords():
            return (DEALER,)
        case DealTerms():
            return (roles.supplied,)
        case ShareResidual():
            return tuple(owner for owner in request.owners if owner != name)
        case DealSum():
            return owners_of(request.query)
        case ContributeMoments() if name == DEALER:
            return (roles.label,)
        case OpenRows():
            return () if name == roles.label else (roles.label,)
        case Toss() | MaskProducts():
            return tuple(party for party in roles.parties if party != name)
        case DealProducts():
            return roles.parties[1:]
        case _:
            return ()


def senders(request: Request, name: str, roles: Roles) -> tuple[str, ...]:
    """Return the participants whose encrypted messages `name` receives with this request, in the order of the ciphertexts."""
    if not roles.dealt:
        owns, other = name == roles.key_owner, tuple(party for party in roles.parties if party != name)
        takes = (
            (ShareResidual, Contribute, ContributeProducts, TakeMoments)
            if owns
            else (TakeColumns, MaskAngles, TakeProducts, MaskMoments)
        )
        fresh = not owns and isinstance(request, Contribute) and bool(request.fresh)
        return other if fresh or isinstance(request, takes) else ()
    match request:
        case TakeColumns() | TakeProducts():
            return (request.owner,)
        case CheckRecords():
            return roles.parties
        case TakeToss():
            return (roles.label,)
        case CheckRows():
            return tuple(party for party in roles.parties if party != name)
        case ContributeProducts() if name != roles.parties[0]:
            return (DEALER,)
        case ContributeMoments() if name == roles.label:
            return (DEALER,)
        case OpenRows() if name in roles.holders:
            others = tuple(party for party in roles.parties if party != name)
            return (*others, DEALER) if name == roles.supplied else others
        case Contribute() if name in owners_of(request.query):
            return (*(roles.receivers(name) if name in request.fresh else ()), DEALER)
        case _:
            return ()


def owners_of(query: Backward) -> tuple[str, ...]:
    """Return the owners of a query's blocks, each once."""
    return tuple(dict.fromkeys(block.party for block in query.blocks))


def openings(query: Backward, key: ReleaseKey, setup: int, version: Version) -> list[Opening]:
    """Return the names of the noised sums that a query reveals, one per block. Each has its own ledger key."""
    sigma = query.event.sigma if isinstance(query.event, Gaussian) else 0.0
    return [
        Opening(block.party, block.start, block.stop, version, replace(key, part=query.part + k), setup, sigma)
        for k, block in enumerate(query.blocks)
    ]
