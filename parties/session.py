"""Keys of one participant in one session of a run on secret shares.

With these keys, the participant encrypts messages, and derives one stream of random numbers with each other participant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.crypto.encryption import PIECE, EncryptionKey, Encryptor, encrypted_size
from vfl.errors import FederationError, PrivacyError
from vfl.privacy.events import ReleaseKey
from vfl.secure.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from vfl.privacy.noise import NoiseSource
    from vfl.secure.requests import Ciphertext

SHARED = ReleaseKey(-1)
"""Key under which seeded masks are drawn. No release uses this key."""
RECORDS = "records"
"""Label of the encrypted text in which a party states its number of records to the dealer."""


class Credentials:
    """A participant's identity across organisations. Without an identity, the keys of a session are unsigned.

    context : name of the federation. key_pem : private key in PEM. certificates : {participant: certificate}.
    """

    def __init__(
        self,
        context: tuple[str, ...] = (),
        key_pem: bytes | None = None,
        certificates: Mapping[str, bytes] | None = None,
    ) -> None:
        self.context, self.key_pem, self.certificates = context, key_pem, certificates or {}

    def __reduce__(self) -> Any:
        raise TypeError("Credentials hold a secret and cannot be pickled")


class Session:
    """Keys of one session. After each loss of a participant, a new session with new keys starts, so no mask is used again.

    name : name of the participant. session : name of the session.
    """

    def __init__(self, name: str, session: str, own: Credentials) -> None:
        self.name, self.session, self._own = name, session, own
        self._encryptor = Encryptor(name, own.key_pem, (*own.context, session))
        self.key = EncryptionKey(self._encryptor.key, self._encryptor.signature)
        self._begun = False

    def begin(self, keys: Mapping[str, EncryptionKey], others: Sequence[str], noise: NoiseSource) -> Streams:
        """Exchange keys with all other participants, and return the streams that this participant shares with them.

        A session begins once. A second call raises PrivacyError, since new streams from the same keys would not know which
        masks were used. Seeded noise is for tests and not private. Under such noise, the masks are seeded, too: the rounding of
        residuals depends on the masks, and a repeated run shall return the same bits.
        """
        if self._begun:
            raise PrivacyError(f"{self.name!r} received the keys of one session twice, which would repeat its masks")
        self._begun = True
        if missing := sorted(set(others) - set(keys)):
            raise FederationError(
                f"{self.name!r} was given no key of {', '.join(map(repr, missing))} for shared streams"
            )
        for other in others:
            certificate = None if self._own.key_pem is None else self._own.certificates[other]
            self._encryptor.meet(other, keys[other].key, keys[other].signature, certificate)
        if noise.private:
            return Streams(self.session, self._encryptor.seeds())
        pairs = {other: " ".join(sorted((self.name, other))) for other in others}
        seeds = {other: noise.stream(SHARED, f"shares {pair}").words(4).tobytes() for other, pair in pairs.items()}
        return Streams("seeded", seeds)

    def encrypt(self, to: str, label: str, words: npt.NDArray[Any]) -> bytearray:
        """Return integers modulo 2^64, encrypted for the participant `to`."""
        data = _plain(words)
        pieces = (data[start : start + PIECE] for start in range(0, max(len(data), 1), PIECE))
        return self._encryptor.encrypt_pieces(to, f"{self.name} {label}", pieces, len(data))

    def encrypt_parts(
        self, to: str, label: str, parts: Iterable[npt.NDArray[Any]], size: int, out: bytearray | None = None
    ) -> bytearray:
        """Return integers modulo 2^64, encrypted for the participant `to`. No array holds all of them at once.

        parts : arrays of PIECE bytes, the last one may be shorter. size : total bytes. out : see `Encryptor.encrypt_pieces`.
        """
        return self._encryptor.encrypt_pieces(to, f"{self.name} {label}", map(_plain, parts), size, out)

    def open(self, sender: str, label: str, ciphertext: Ciphertext, kind: Any, *shape: int) -> npt.NDArray[Any]:
        """Return integers that `sender` encrypted for this participant, in this shape. Raises FederationError otherwise."""
        words = np.empty(shape, dtype=np.dtype(kind).newbyteorder("<"))
        self._fits(sender, ciphertext, words.nbytes)
        for _ in self._encryptor.open_pieces(sender, f"{sender} {label}", _view(ciphertext), _plain(words)):
            pass
        return words.astype(kind, copy=False)

    def open_parts(
        self, sender: str, label: str, ciphertext: Ciphertext, kind: Any, n: int, width: int
    ) -> Iterator[npt.NDArray[Any]]:
        """Yield the (n, width) integers modulo 2^64 that `sender` encrypted for this participant, some rows at a time.

        Each part overwrites the rows of the part before it, and may raise FederationError. PIECE is a multiple of a row's
        bytes.
        """
        kind = np.dtype(kind)
        self._fits(sender, ciphertext, n * width * kind.itemsize)
        for piece in self._encryptor.open_pieces(sender, f"{sender} {label}", _view(ciphertext)):
            yield np.frombuffer(piece, dtype=kind.newbyteorder("<")).astype(kind, copy=False).reshape(-1, width)

    def _fits(self, sender: str, ciphertext: Ciphertext, size: int) -> None:
        if len(ciphertext) != encrypted_size(size):
            raise FederationError(
                f"{sender!r} sent {self.name!r} an encrypted message of {len(ciphertext)} bytes, not {encrypted_size(size)}"
            )


def _plain(words: npt.NDArray[Any]) -> memoryview:
    """Return integers as little-endian bytes. Integers that are little-endian already are not copied."""
    plain = np.ascontiguousarray(words).astype(words.dtype.newbyteorder("<"), copy=False)
    return plain.reshape(-1).view(np.uint8).data


def _view(ciphertext: Ciphertext) -> memoryview:
    return ciphertext.data if isinstance(ciphertext, np.ndarray) else memoryview(ciphertext)
