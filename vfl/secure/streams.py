"""Streams of pseudorandom 64-bit words that two participants share, each used once; and shares of zero.

Guarantee. For everyone without its seed, a stream is uniform and independent of every other stream, up to the security of
X25519, HKDF-SHA256 and AES-256. The name of a stream is used once per session, and every session has new keys, so no stream
masks two texts. `Streams` refuses a name that was used before. A `Streams` object refuses to be copied, or used after a fork.

    seed of a pair       vfl.crypto.encryption.Encryptor.seeds, from X25519 and HKDF-SHA256
    key of a stream      HKDF-SHA256(seed, info = name), 32 bytes
    words of a stream    AES-256-GCM(key, nonce 0) of zeros, without a tag: AES-256 of the counters 2, 3, 4, ...

The words are the outputs of AES-256 in counter mode: a key serves one stream, its counters of 32 bits never repeat, and the
stream ends before they wrap. The tag of GCM is never computed to its end or sent, so only these outputs can reach anyone.
GCM is used because libraries compute its counters up to twice as fast as those of plain counter mode.

RFC 5869; NIST SP 800-38A and 800-38D, section 6.5.
"""

from __future__ import annotations

import hmac
import os
import struct
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import GCM

from vfl.errors import FederationError, PrivacyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from vfl.privacy.keystream import Words

SEED_BYTES = 32
_DOMAIN = b"vfl shares, version 2"
"""Beginning of every stream's name. Raise its version number with each change of the words that a name yields."""
_PIECE = 1 << 18
_ZEROS = memoryview(bytes(_PIECE))
_NONCE = GCM(bytes(12))
LARGEST = (1 << 36) - 32
"""Largest number of bytes of a stream: 2^32 − 2 blocks, after which the counters of GCM would repeat."""
_LITTLE_ENDIAN = np.dtype("<u8")

Name = tuple[str | int, ...]


class Stream:
    """One stream of pseudorandom 64-bit words. Use a stream in one thread, and only in the process that opened it."""

    __slots__ = ("_encryptor", "_left", "_process")

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(AES256(key), _NONCE).encryptor()
        self._left = LARGEST
        self._process = os.getpid()

    def fill(self, out: Words) -> Words:
        """Overwrite a contiguous array with the stream's next pseudorandom bytes, and return the array.

        Raises PrivacyError beyond LARGEST bytes.
        """
        if os.getpid() != self._process:
            raise PrivacyError("a stream of masks was opened before a fork: parent and child would use the same mask")
        if out.dtype != _LITTLE_ENDIAN or not out.flags.c_contiguous:
            raise PrivacyError("a stream of masks fills only contiguous arrays of little-endian uint64")
        if not out.size:
            return out
        target = out.data.cast("B")
        if len(target) > self._left:
            raise PrivacyError("a stream of masks ends after 64 GiB: train on fewer records or columns at once")
        self._left -= len(target)
        for start in range(0, len(target), _PIECE):
            part = target[start : start + _PIECE]
            self._encryptor.update_into(_ZEROS[: len(part)], part)
        return out

    def words(self, *shape: int) -> Words:
        """Return the stream's next pseudorandom 64-bit words in a uint64 array of this shape."""
        return self.fill(np.empty(shape, dtype=np.uint64))

    def short(self, count: int) -> npt.NDArray[np.uint16]:
        """Return the next `count` pseudorandom 16-bit numbers, uint16. The rest of the last 64-bit word is discarded."""
        return self.words(-(-count // 4)).view(np.uint16)[:count]

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Stream yields a mask and cannot be pickled or copied")


class Streams:
    """Streams of one participant with every other participant, in one session.

    Guarantee. `once` refuses a name that was used before, so no mask is used twice in a session. A `Streams` object cannot be
    pickled, and a forked process cannot use it.

    run : identifier of the run; part of every name.
    seeds : {participant: seed shared with that participant}, 32 bytes each, new in every session.
    """

    def __init__(self, run: str, seeds: Mapping[str, bytes]) -> None:
        if any(len(seed) != SEED_BYTES for seed in seeds.values()):
            raise PrivacyError(f"a seed of masks must have {SEED_BYTES} bytes")
        self._names, self._seeds = _joined(_DOMAIN, run.encode()), dict(seeds)
        self._used: set[bytes] = set()
        self._process = os.getpid()

    def __reduce__(self) -> NoReturn:
        raise TypeError("Streams hold seeds and cannot be pickled or copied")

    def once(self, other: str, *name: str | int) -> Stream:
        """Return the stream of this name from its beginning. Raises PrivacyError if the name was used before."""
        key = self._key(other, name)
        mark = key[:16]  # the key is pseudorandom: equal marks mean equal names
        if mark in self._used:
            raise PrivacyError(
                f"a stream shared with {other!r} was asked for twice ({'|'.join(map(str, name))}): a mask used twice hides "
                "nothing. Repeat with a new attempt number"
            )
        self._used.add(mark)
        return Stream(key)

    def reserve(self, other: str, *name: str | int) -> None:
        """Mark the mask that `again` returns for this name as used. Raises PrivacyError if the mask was marked before."""
        self.once(other, "again", *name)

    def again(self, other: str, *name: str | int) -> Stream:
        """Return a stream that may be read repeatedly, to remove its mask from one text, but never to mask another text.

        Such streams mask columns. Their names include a number that is new for each scaling of the columns, so one name belongs
        to one text.
        """
        return Stream(self._key(other, ("again", *name)))

    def _key(self, other: str, name: Name) -> bytes:
        if os.getpid() != self._process:
            raise PrivacyError("seeds of masks were exchanged before a fork: parent and child would use the same masks")
        if other not in self._seeds:
            raise FederationError(f"no seed was exchanged with {other!r}")
        # RFC 5869, section 2.3, for one block of SHA-256.
        info = self._names + _joined(*map(_encoded, name))
        return hmac.digest(self._seeds[other], info + b"\x01", "sha256")


def zero_share(streams: Streams, own: str, parties: Iterable[str], name: Name, count: int) -> Words:
    """Return the party's share of zero, (count,) uint64. The shares of all parties add up to 0 modulo 2^64.

    For the dealer, the coordinator and all others without the seeds of two parties, all shares but one are uniform.

    parties : names of all parties, including `own`. Every party calls this function with the same `name`.
    """
    total = np.zeros(count, dtype=np.uint64)
    for other in parties:
        if other == own:
            continue
        words = streams.once(other, "zero", *name).words(count)
        total = total + words if own < other else total - words
    return total


def _encoded(part: str | int) -> bytes:
    return b"i%d" % part if isinstance(part, int) else b"s" + part.encode()


def _joined(*parts: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)
