"""Encrypt texts and vectors that one party sends to another through the coordinator, which cannot read, change or replay them.

Guarantee. Each party makes a fresh X25519 key per run. The party signs this key with the key of its identity, and the
federation file pins identities. Without identities (on one cluster), the process that forwards the X25519 keys can replace
them. `open` returns only texts that the named party encrypted for this party, in this run, under this label, in the order of
encryption. The receiver raises FederationError for all other texts. The coordinator learns the lengths of texts.

    key of a direction   HKDF-SHA256(X25519(own, other's), info = context, sender, receiver, both public keys)
    each piece           AES-256-GCM, nonce = (number of the text, number of the piece), bound to its label and length

RFC 7748, RFC 5869, NIST SP 800-38D. A party accepts one key per other party in a run, and the nonces of a direction count up,
so no nonce is used twice under one key. The signed context names the run. A key that was signed for one run is therefore
refused in every other run.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import GCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from vfl.errors import FederationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PIECE = 3840 << 7
"""Number of bytes that are encrypted as one piece. A piece fits the second-level cache. It holds whole records of the dealer's
random integers (vfl.secure), for any number of Fourier terms."""
TAG = 16
_DOMAIN = b"vfl encrypted, version 2"


class Encryptor:
    """One party's end of all encrypted texts in one run. An encryptor holds secrets and cannot be pickled.

    party : name of this party. context : names of the federation and the run.
    key_pem : private key of the party's identity; None where participants have no identities (one process or one Ray cluster).
    """

    def __init__(self, party: str, key_pem: bytes | None, context: tuple[str, ...]) -> None:
        self._party, self._context = party, _joined(_DOMAIN, *(part.encode() for part in context))
        self._secret = X25519PrivateKey.generate()
        self.key = self._secret.public_key().public_bytes_raw()
        self.signature = b""
        self._anonymous = key_pem is None
        if key_pem is not None:
            identity = load_pem_private_key(key_pem, password=None)
            if not isinstance(identity, ec.EllipticCurvePrivateKey):
                raise FederationError(f"the identity of {party!r} has a key that cannot sign")
            self.signature = identity.sign(self._signed(party, self.key), ec.ECDSA(hashes.SHA256()))
        self._met: dict[str, bytes] = {}
        self._seeds: dict[str, bytes] = {}
        self._ways: dict[tuple[str, str], tuple[bytes, int]] = {}

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Encryptor holds secrets and cannot be pickled")

    def meet(self, other: str, key: bytes, signature: bytes = b"", certificate_pem: bytes | None = None) -> None:
        """Take another party's key. Raises FederationError unless the identity in the certificate has signed the key.

        certificate_pem : certificate of the other party; None only if this party has no identity either. A repeated key changes
            nothing, so no nonce is used again. A second, different key of a party is refused.
        """
        from cryptography.x509 import load_pem_x509_certificate  # slow to import; only federations need it

        if other in self._met:
            if self._met[other] != key:
                raise FederationError(f"{self._party!r} was sent two keys for encrypted texts of {other!r} in one run")
            return
        public = None if certificate_pem is None else load_pem_x509_certificate(certificate_pem).public_key()
        signed, shared = self._anonymous or isinstance(public, ec.EllipticCurvePublicKey), b""
        try:
            if isinstance(public, ec.EllipticCurvePublicKey):
                public.verify(signature, self._signed(other, key), ec.ECDSA(hashes.SHA256()))
            if signed:
                shared = self._secret.exchange(X25519PublicKey.from_public_bytes(key))
        except (InvalidSignature, ValueError):  # ValueError: a point of small order, or another length
            signed = False
        if not signed:
            raise FederationError(
                f"the encryption key that came for {other!r} is not signed by the identity of {other!r}: the coordinator or "
                "the connection to it is faulty"
            ) from None
        self._met[other] = key
        for sender, receiver, first, second in (
            (self._party, other, self.key, key),
            (other, self._party, key, self.key),
        ):
            info = _joined(self._context, sender.encode(), receiver.encode(), first, second)
            derived = HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(shared)
            self._ways[sender, receiver] = (derived, 0)
        ends = sorted(((self._party.encode(), self.key), (other.encode(), key)))
        info = _joined(b"seed", self._context, *ends[0], *ends[1])
        self._seeds[other] = HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(shared)

    def seeds(self) -> dict[str, bytes]:
        """Return {other: shared seed, 32 bytes} for all parties that this party has met."""
        return dict(self._seeds)

    def encrypt(self, to: str, label: str, data: bytes | memoryview) -> bytes:
        """Return the data encrypted for party `to`."""
        data = memoryview(data).cast("B")
        pieces = (data[start : start + PIECE] for start in range(0, max(len(data), 1), PIECE))
        return bytes(self.encrypt_pieces(to, label, pieces, len(data)))

    def encrypt_pieces(
        self, to: str, label: str, pieces: Iterable[memoryview], size: int, out: bytearray | None = None
    ) -> bytearray:
        """Return `size` bytes of data encrypted for party `to`.

        pieces : PIECE bytes each, the last one may be shorter. Pieces are read one after another, so they may share one buffer.
        out : buffer of `encrypted_size(size)` bytes, which is overwritten and returned; None for a new buffer.
        """
        key, number = self._next(self._party, to)
        encrypted = bytearray(encrypted_size(size)) if out is None else out
        target, at, bound = memoryview(encrypted), 0, _bound(label, size)
        for place, piece in enumerate(pieces):
            if at == len(encrypted) or len(piece) != min(PIECE, size - place * PIECE):
                raise FederationError("a text to be encrypted came in pieces of wrong lengths")
            cipher = Cipher(AES256(key), GCM(_nonce(number, place))).encryptor()
            cipher.authenticate_additional_data(bound)
            end = at + cipher.update_into(piece, target[at : at + len(piece)])
            cipher.finalize()
            at = end + TAG
            target[end:at] = cipher.tag
        if at != len(encrypted):
            raise FederationError("a text to be encrypted lacks pieces")
        return encrypted

    def open(self, sender: str, label: str, encrypted: bytes | memoryview) -> bytearray:
        """Return the data that `sender` encrypted for this party under this label. Raises FederationError for other text."""
        size = memoryview(encrypted).nbytes
        opened = bytearray(max(size - TAG * max(-(-size // (PIECE + TAG)), 1), 0))
        for _ in self.open_pieces(sender, label, encrypted, memoryview(opened)):
            pass
        return opened

    def open_pieces(
        self, sender: str, label: str, encrypted: bytes | memoryview, out: memoryview | None = None
    ) -> Iterator[memoryview]:
        """Yield, in pieces, the data that `sender` encrypted for this party under this label. Every piece is verified first.

        A later piece may still raise FederationError, so publish nothing before the end.
        out : buffer as long as the text, which receives all pieces; None to overwrite each piece with the next.
        """
        key, number = self._next(sender, self._party)  # drawn here, so that numbers follow the order of calls
        return self._opened(sender, label, memoryview(encrypted).cast("B"), key, number, out)

    def _opened(
        self, sender: str, label: str, encrypted: memoryview, key: bytes, number: int, out: memoryview | None
    ) -> Iterator[memoryview]:
        count = max(-(-len(encrypted) // (PIECE + TAG)), 1)
        size = len(encrypted) - TAG * count
        bound, buffer = _bound(label, size), memoryview(bytearray(max(min(PIECE, size), 0)))
        for place in range(count):
            part = encrypted[place * (PIECE + TAG) : (place + 1) * (PIECE + TAG)]
            length = len(part) - TAG
            try:
                cipher = Cipher(AES256(key), GCM(_nonce(number, place), bytes(part[length:]))).decryptor()
                cipher.authenticate_additional_data(bound)
                found = buffer[:length] if out is None else out[place * PIECE : place * PIECE + length]
                cipher.update_into(part[:length], found)
                cipher.finalize()
            except (InvalidTag, ValueError):  # ValueError: a text too short for its tag, or for `out`
                raise FederationError(
                    f"a text that came for {self._party!r} is not what {sender!r} encrypted for it: the coordinator or the "
                    "connection to it is faulty"
                ) from None
            yield found

    def _next(self, sender: str, receiver: str) -> tuple[bytes, int]:
        if (sender, receiver) not in self._ways:
            raise FederationError(f"{sender!r} and {receiver!r} have no key for encrypted texts")
        key, number = self._ways[sender, receiver]
        self._ways[sender, receiver] = (key, number + 1)
        return key, number

    def _signed(self, party: str, key: bytes) -> bytes:
        return _joined(self._context, b"key", party.encode(), key)


def encrypted_size(size: int) -> int:
    """Return the length of an encrypted text of `size` bytes."""
    return size + TAG * max(-(-size // PIECE), 1)


def _nonce(number: int, piece: int) -> bytes:
    return struct.pack(">QI", number, piece)


def _bound(label: str, size: int) -> bytes:
    return _joined(label.encode(), struct.pack(">q", size))


def _joined(*parts: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


@dataclass(frozen=True, slots=True)
class EncryptionKey:
    """A party's public key in one run. Others use it to encrypt vectors for this party that pass through the coordinator.

    key : X25519, 32 bytes. signature : by the party's identity, as in vfl.crypto.encryption.
    """

    key: bytes
    signature: bytes
