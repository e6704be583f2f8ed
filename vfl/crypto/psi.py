"""Private set intersection over X25519: each party learns which of its records all other parties also have.

Guarantee: no participant learns an identifier that it does not have. Assumptions: decisional Diffie–Hellman on Curve25519 and
on its twist; SHA-512 is a random oracle; participants follow the protocol and do not pool what they see.

| who | sees | hence learns |
|---|---|---|
| party | the others' blinded sets; which of the party's own ids all have | the size of every set; the intersection |
| coordinator | all sets, blinded by all parties | the size of every set and of the intersection of any of the sets (with |
| | | more than two parties also of each pair); which rows are joined; never an id |

A left join takes the whole set of one party, the base, in the order of its blinded points, so the order does not depend on the
sets of others. A party learns the size of the base and which of its own ids are in it. A party cannot hash the ids that it
lacks, so no hash shows that all parties place an id at one position: the coordinator and every party that blinds a set vouch
for it. Otherwise a person could count as two records.

The method is that of Meadows (IEEE S&P 1986) and of Huberman, Franklin and Hogg (EC 1999), for any number of parties. Each
party hashes its ids to points H(id), multiplies the points by a secret scalar and sorts them. The set then passes along a ring
of all other parties, and each of them multiplies the points by its own secret. Since a(bP) = b(aP), equal ids become equal
points. The coordinator compares the points.

    parties       owning(ids), all parties at once; then blinding(points, owner) for each step of ring(parties)
    coordinator   intersect(sets) -> positions for each party
    parties       rows(positions) -> rows of the party, in one order common to all parties

Limits:

- A party can put any identifiers into its set. The party learns which of them all parties have, once per salt.
- A party that pools its view with the coordinator learns which of its ids each of the other parties has.
- A blinded point reveals one bit of H(id): whether it lies on the curve or on its twist. H takes 255 bits of SHA-512(salt, id)
  as Montgomery u. X25519 accepts every u; half of them lie on the curve, half on its twist, and blinding does not change that.
  The points reveal nothing else: the groups' orders are a large prime times 8 and times 4, and scalars that are multiples of 8
  (clamped) remove these factors. The order of a set is hidden. A participant that knows the salt therefore sees only how many
  ids of a set hash to the twist. With probability ½ this number distinguishes two guesses of a whole set, which matters for
  sets of a few ids. A map onto the curve only would prevent this. Such a map costs one modular exponentiation per id: in
  Python, four times the cost of blinding the id.
- A point of small order would make different ids equal, so such a point is refused. A hash is one with probability 2⁻²⁵⁰.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import os
import secrets
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from vfl.base.writing import append, create_file, replace_file
from vfl.crypto.buckets import LARGE, Buckets, scratch
from vfl.crypto.identifiers import digest_of, repeated
from vfl.errors import DataError, FederationError, OutputError, SpecificationError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from vfl.base.types import Integers

Points: TypeAlias = npt.NDArray[np.uint8]
"""Array (n, 32) of u-coordinates, one row per point."""

SIZE = 32
PIECE = 4096
"""Number of points per chunk, about 25 ms on one core; progress is reported per chunk."""

FEW = 1024
"""Smallest number of points for which vfl.kernels.curve is loaded. Loading takes longer than 1,024 multiplications."""

ROWS = 1 << 16
"""Number of positions that are converted to rows at once."""

OPERATION_SECONDS, HANDLING_SECONDS = 12e-6, 3e-6
"""Rough costs of one multiplication with AVX2 (5 µs with AVX-512 IFMA), and of hashing, sorting and comparing one id."""

_DOMAIN = b"vfl private set intersection, version 1"


def new_salt() -> bytes:
    """Return a salt for one job, 32 bytes. All participants know it; ids blinded under different salts do not match."""
    return secrets.token_bytes(SIZE)


def ring(parties: Sequence[str]) -> tuple[dict[str, str], ...]:
    """Return the steps of the ring, each as {party that blinds: owner of the set that it blinds}. All parties work at once.

    After the last step, parties[k - 1] holds the set of parties[k] and sends this set to the coordinator. No party ever holds
    two fully blinded sets, so no party can compare two such sets.
    """
    if len(set(parties)) < len(parties) or not parties:
        raise SpecificationError("an alignment needs at least one party, and parties of different names")
    m = len(parties)
    return tuple({parties[k]: parties[k - step] for k in range(m)} for step in range(1, m))


def seconds(n_per_party: Sequence[int], cores: int) -> float:
    """Return the expected seconds of an alignment: m·Σ n_k multiplications on `cores` cores that m parties share."""
    return sum(n_per_party) * (len(n_per_party) * OPERATION_SECONDS + HANDLING_SECONDS) / cores


def hash_to_points(ids: Sequence[bytes], salt: bytes) -> Points:
    """Return points H(id) for normalised ids, (n, 32): 255 bits of SHA-512(domain, salt, id). Never send them unblinded.

    Raises SpecificationError for a salt that is not 32 bytes.
    """
    if len(salt) != SIZE:
        raise SpecificationError(f"the salt of an alignment must be {SIZE} bytes; make one with new_salt()")
    prefix, sha512 = _DOMAIN + salt, hashlib.sha512
    digests = b"".join([sha512(prefix + identifier).digest() for identifier in ids])
    points = np.frombuffer(digests, np.uint8).reshape(-1, 2 * SIZE)[:, :SIZE].copy()
    points[:, -1] &= 0x7F  # X25519 ignores this bit; equal points must have equal bytes
    return points


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Set of n points that is computed chunk by chunk, to save memory.

    piece : function from two positions to the points between them, as bytes. digest : identifies the set among all sets
        that are multiplied by one secret.
    """

    n: int
    piece: Callable[[int, int], bytes]
    digest: str

    def all(self, first: int) -> Iterator[bytes]:
        """Yield the points from position `first` on, PIECE points at a time."""
        return (self.piece(start, min(start + PIECE, self.n)) for start in range(first, self.n, PIECE))


class Blinder:
    """One party's side of one alignment. It blinds every id that it returns with a secret, and never returns the secret.

    party : name of the owner.
    salt : salt of the job, 32 bytes.
    cores : number of cores to use, one thread each.
    folder : a private folder of the owner, which keeps the secret and the finished points until `discard`. The alignment can
        then continue after its process has ended. None: the alignment can continue only while this object exists.

    After an interruption, repeat the call: it continues with the first missing points.
    """

    def __init__(self, party: str, salt: bytes, *, cores: int = 1, folder: Path | None = None) -> None:
        if cores < 1:
            raise SpecificationError(f"cores must be at least 1, not {cores!r}")
        self.party, self._salt, self._folder = party, salt, folder
        self._multiplier = _Multiplier(self._secret(), cores)
        self._done: dict[str, tuple[Points, int]] = {}
        self._asked: dict[str, bytes] = {}
        self._order: Integers | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Blinder holds a secret and cannot be pickled; make it where it is used")

    def owning(self, ids: Sequence[bytes]) -> Generator[tuple[int, int], None, Points]:
        """Return the party's own set, blinded and sorted. The order of the set reveals nothing about the order of the rows.

        Yields (finished points, all points) after every PIECE points.

        ids : (n,) normalised and distinct (vfl.crypto.identifiers).
        """
        if not ids or repeated(ids):
            raise DataError(f"party {self.party!r}: an alignment needs distinct ids; normalise them first")
        salt = self._salt
        digest = digest_of(ids, b"own" + salt).hex()
        hashed = _Pieces(len(ids), lambda start, stop: hash_to_points(ids[start:stop], salt).tobytes(), digest)
        points = yield from self._multiply(hashed, self.party)
        self._order, ordered = _sorted(points, self._folder)
        return ordered

    def blinding(self, points: Points, owner: str) -> Generator[tuple[int, int], None, Points]:
        """Return another party's set, blinded once more, in its order. Yields progress as `owning` does.

        points : (n, 32) uint8, as received.
        owner : owner of the set. A second, different set of the same owner is refused, since it would test further ids.
        """
        if owner == self.party:
            raise FederationError(f"party {self.party!r} was asked to blind its own set again; check the ring's steps")
        points = _checked(points, owner)
        digest = hashlib.sha256(points.data)
        if not self._first_or_same(owner, digest.digest()):
            raise FederationError(
                f"party {self.party!r} was asked to blind a second set of {owner!r}; start again with a new salt"
            )
        given = _Pieces(len(points), lambda start, stop: points[start:stop].tobytes(), digest.hexdigest())
        return (yield from self._multiply(given, owner))

    def rows(self, positions: Integers, *, count: int | None = None, lacks: bool = False) -> Integers:
        """Return the rows of the joined ids, in the order common to all parties; −1 for an id that this party lacks.

        positions : (k,) int64, from the coordinator. count : number of ids in a left join; None for an inner join.
        lacks : True if this party may lack ids, as all parties but the base of a left join. Position −1 stands for such an id.

        Raises DataError if there are no positions, and FederationError for positions that no join can have.
        """
        if self._order is None:
            raise FederationError(f"party {self.party!r} was sent positions before it sent its set")
        positions = np.asarray(positions, np.int64)
        if positions.size == 0:
            raise DataError(
                f"party {self.party!r}: no id is common to all parties; check that all id columns mean the same "
                "and are written alike (case, leading zeros, prefixes)"
            )
        if count is not None and positions.size != count:
            raise FederationError(f"party {self.party!r} was sent another number of positions than the base has ids")
        rows, seen = (
            scratch(positions.shape, np.int64, self._folder),
            scratch(self._order.shape, np.bool_, self._folder),
        )
        seen[:] = False
        for start in range(0, len(positions), ROWS):
            piece = positions[start : start + ROWS]
            own = piece[piece >= 0]
            if (
                piece.min() < -lacks
                or piece.max() >= self._order.size
                or seen[own].any()
                or np.unique(own).size < own.size
            ):
                raise FederationError(f"party {self.party!r} was sent positions that are not in its set, or one twice")
            seen[own] = True
            rows[start : start + len(piece)] = np.where(piece < 0, -1, self._order[piece])
        return rows

    def discard(self) -> None:
        """Delete the files of this alignment from `folder`, including the secret. Do not use this object afterwards."""
        self._done.clear()
        for path in () if self._folder is None else self._folder.glob(self._path("*").name):
            path.unlink()

    def _multiply(self, points: _Pieces, owner: str) -> Generator[tuple[int, int], None, Points]:
        n, key = points.n, points.digest
        path = None if self._folder is None else self._path(f"-{key[:32]}.points")
        products, done = self._stored(path, points) if path else self._done.get(key) or (self._scratch(n), 0)
        try:
            with contextlib.closing(self._multiplier.map(points.all(done))) as results:
                for result in results:
                    with self._keeping(), (path or Path(os.devnull)).open("ab", 0) as file:
                        append(file.fileno(), result)
                    stop = done + len(result) // SIZE
                    products[done:stop] = np.frombuffer(result, np.uint8).reshape(-1, SIZE)
                    done = stop
                    if path is None:
                        self._done[key] = products, done
                    yield done, n
        except _SmallOrderError:
            raise FederationError(
                f"the set of {owner!r} holds a point of small order, which no id has; party {self.party!r} "
                f"refuses it: {owner!r} or the connection to it is faulty"
            ) from None
        self._done.pop(key, None)  # free the memory: from here on the caller keeps the result
        return products

    def _scratch(self, n: int) -> Points:
        return scratch((n, SIZE), np.uint8, self._folder)

    def _stored(self, path: Path, points: _Pieces) -> tuple[Points, int]:
        """Return an array for the products, and the number of products in it that an earlier call stored.

        A sample of them is recomputed, to check that the stored products belong to this secret and these points.
        """
        products, n = self._scratch(points.n), 0
        if path.exists():
            n = min(path.stat().st_size // SIZE, points.n)
            if n:
                products[:n] = np.memmap(path, np.uint8, "r", shape=(n, SIZE))
        # After a power failure a file may end in zeros, so compute a sample of its points again and compare.
        sample = sorted({n - 1, *(secrets.randbelow(n) for _ in range(32))} if n else [])
        found = products[sample].tobytes()
        if b"".join(self._multiplier.map([b"".join(points.piece(k, k + 1) for k in sample)])) != found:
            n = 0
        with self._keeping():
            path.touch(mode=0o600)
            os.truncate(path, SIZE * n)
        return products, n

    def _first_or_same(self, owner: str, digest: bytes) -> bool:
        """Return False if this secret has blinded a different set of this owner. The record exists as long as the secret."""
        if self._folder is None:
            return self._asked.setdefault(owner, digest) == digest
        path = self._path(f"-{hashlib.sha256(owner.encode()).hexdigest()[:32]}.asked")
        with self._keeping():
            if not path.exists():
                replace_file(path, [digest])
            return path.read_bytes() == digest

    def _path(self, name: str) -> Path:
        label = hashlib.sha256(_DOMAIN + self._salt + self.party.encode()).hexdigest()[:16]
        return Path() if self._folder is None else self._folder / f"alignment-{label}{name}"

    def _secret(self) -> bytes:
        """Return the secret scalar: a new secret, or the secret that an interrupted process stored in `folder`."""
        path, secret = self._path(".secret"), secrets.token_bytes(SIZE)
        if self._folder is None:
            return secret
        with self._keeping():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not path.exists():
                create_file(path, secret)
            secret = path.read_bytes()
        if len(secret) != SIZE:
            raise OutputError(f"party {self.party!r}: the alignment's secret is damaged; empty the folder, start again")
        return secret

    @contextlib.contextmanager
    def _keeping(self) -> Generator[None, None, None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"party {self.party!r} cannot keep the state of its alignment in its folder: {error.strerror}; "
                "choose a folder that it alone can write, with room for 32 bytes per id of every party"
            ) from None


def intersect(sets: Mapping[str, Points], base: str | None = None) -> dict[str, Integers]:
    """Return {party: (k,) positions of the common points in its set}. Entry i is the same point for every party.

    The common order is the order of the fully blinded points, which is random to every participant.

    sets : {party: (n, 32) uint8, blinded by every party}. Raises FederationError for a set with a point twice.
    base : party of which all points are taken, with position −1 in sets that lack the point; None for the common points.
    """
    checked = {party: _checked(points, party) for party, points in sets.items()}
    if is_large(list(map(len, checked.values()))):
        return joined({party: Buckets(points) for party, points in checked.items()}, base)
    return _intersect(checked, base)


def is_large(sizes: Sequence[int]) -> bool:
    """Return True if sets of these sizes are joined in buckets on disk."""
    return sum(sizes) >= LARGE


def bucketed(points: Points, owner: str) -> Buckets:
    """Return a fully blinded set in buckets on disk, for `joined`. Raises FederationError like `intersect`."""
    return Buckets(_checked(points, owner))


def joined(sets: Mapping[str, Buckets], base: str | None = None) -> dict[str, Integers]:
    """Return the result of `intersect` for sets in buckets, joined bucket by bucket.

    Keeps a few buckets in memory, each about 1/64 of the sets. Buckets and positions of large sets are on disk.
    """
    most, count = min(map(len, sets.values())) if base is None else len(sets[base]), 0
    found = {party: scratch((most,), np.int64) for party in sets}
    for parts in zip(*sets.values(), strict=True):
        bucket = dict(zip(sets, parts, strict=True))
        common = _intersect({party: points for party, (points, _) in bucket.items()}, base)
        before, count = count, count + len(next(iter(common.values())))
        for party, (_, positions) in bucket.items():
            found[party][before:count] = np.append(positions, -1)[common[party]]  # −1 is the last entry
    return {party: own[:count] for party, own in found.items()}


def _intersect(sets: Mapping[str, Points], base: str | None) -> dict[str, Integers]:
    names, sizes = list(sets), [len(points) for points in sets.values()]
    points = np.concatenate(list(sets.values()))
    order = _sorting(points)
    words = points.view(np.uint64)[order]
    new = np.ones(len(words), dtype=bool)
    new[1:] = (words[1:] != words[:-1]).any(axis=1)
    # The sort is stable, so equal points of one party stand next to each other.
    owner = np.repeat(np.arange(len(names)), sizes)[order]
    twice = ~new[1:] & (owner[1:] == owner[:-1])
    if twice.any():
        name = names[int(owner[1:][twice][0])]
        raise FederationError(f"the set of {name!r} holds a point twice; its ids have to be distinct, and blinded once")
    positions = np.full((len(names), int(new.sum())), -1)
    positions[owner, np.cumsum(new) - 1] = order - np.cumsum([0, *sizes])[owner]
    kept = (positions >= 0).all(axis=0) if base is None else positions[names.index(base)] >= 0
    return {name: own[kept] for name, own in zip(names, positions, strict=True)}


def _checked(points: Points, owner: str) -> Points:
    points = np.asarray(points)
    if points.dtype != np.uint8 or points.ndim != 2 or points.shape[1] != SIZE or not len(points):
        raise FederationError(f"the set of {owner!r} is not an array of points; install one version of vfl everywhere")
    return np.ascontiguousarray(points)


def _sorted(points: Points, folder: Path | None) -> tuple[Integers, Points]:
    """Return the positions that sort the points, (n,), and the sorted points. Large sets are sorted in buckets on disk."""
    if len(points) < LARGE:
        order = _sorting(points)
        return order, points[order]
    order, ordered, at = scratch((len(points),), np.int64, folder), scratch(points.shape, np.uint8, folder), 0
    for own, positions in Buckets(points, folder):
        inner = _sorting(own)
        order[at : at + len(own)], ordered[at : at + len(own)] = positions[inner], own[inner]
        at += len(own)
    return order, ordered


def _sorting(points: Points) -> Integers:
    """Return the positions that sort the points as big-endian numbers, (n,) int64; the sort is stable."""
    words = np.ascontiguousarray(points).view(">u8").astype(np.uint64)
    order = np.argsort(words[:, 0], kind="stable")
    first, rest = words[order, 0], words[order, 1:]
    # Different points agree in 64 bits with probability below n²/2⁶⁴, or in an attack. If any do, sort by all four words.
    if ((first[1:] == first[:-1]) & (rest[1:] != rest[:-1]).any(axis=1)).any():
        order = np.lexsort(words.T[::-1])
    return order.astype(np.int64, copy=False)


class _SmallOrderError(Exception):
    """A product of the secret and a point was zero, so the point has small order."""


class _Multiplier:
    """Multiplication of points by one secret on several cores."""

    def __init__(self, secret: bytes, cores: int) -> None:
        self._secret, self._cores = secret, cores

    def map(self, pieces: Iterable[bytes]) -> Generator[bytes, None, None]:
        """Yield the products of each chunk of points, in order. Raises _SmallOrderError."""
        if self._cores == 1:
            yield from map(self._products, pieces)
            return
        pieces, threads = iter(pieces), ThreadPoolExecutor(self._cores)
        try:
            # Each thread has one more chunk of points waiting in its queue.
            asked = deque(threads.submit(self._products, piece) for piece in itertools.islice(pieces, 2 * self._cores))
            while asked:
                yield asked.popleft().result()
                asked.extend(threads.submit(self._products, piece) for piece in itertools.islice(pieces, 1))
        finally:
            threads.shutdown(cancel_futures=True)

    def _products(self, piece: bytes) -> bytes:
        """Return the 32-byte products of the 32-byte points in a chunk."""
        points = np.frombuffer(piece, np.uint8).reshape(-1, SIZE)
        multiply = None if len(points) < FEW else importlib.import_module("vfl.kernels.curve").multiply
        products = _one_by_one(self._secret, points) if multiply is None else multiply(self._secret, points)
        if not products.any(axis=1).all():
            raise _SmallOrderError
        return products.tobytes()


def _one_by_one(secret: bytes, points: Points) -> Points:
    """Return the products of the points, computed by `cryptography`, which holds the interpreter's lock."""
    key = X25519PrivateKey.from_private_bytes(secret)
    try:
        found = b"".join(key.exchange(X25519PublicKey.from_public_bytes(point.tobytes())) for point in points)
    except ValueError:  # `cryptography` refuses a product of zero (RFC 7748, section 6.1)
        raise _SmallOrderError from None
    return np.frombuffer(found, np.uint8).reshape(-1, SIZE)
