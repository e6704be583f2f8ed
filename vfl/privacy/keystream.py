"""Keystream of ChaCha20, read as 64-bit words."""

from __future__ import annotations

import os
from typing import NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from vfl.errors import PrivacyError

Words: TypeAlias = npt.NDArray[np.uint64]

KEY_BYTES = 32
# 64-byte blocks under a 32-bit block counter: 256 GiB. After that the stream would repeat.
WORDS_PER_KEY = 2**32 * 64 // 8

_ZEROS = bytes(1 << 17)
# First four bytes: the block counter; the other twelve: the nonce. A key is used for one stream only, so both are 0.
_COUNTER_AND_NONCE = bytes(16)
_LITTLE_ENDIAN = np.dtype("<u8")


class Keystream:
    """Keystream of ChaCha20 (RFC 8439). The words are uniform and independent for anyone without the key.

    key : 32 bytes, used for this stream only.

    A stream belongs to the process that opened it. A stream cannot be pickled or copied, and a forked child cannot read it,
    because two readers of one stream would add the same noise. A stream has no lock: use each stream in one thread.
    """

    __slots__ = ("_encryptor", "_process", "_words_left")

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise PrivacyError(f"Keystream: the key must have {KEY_BYTES} bytes")
        self._encryptor = Cipher(ChaCha20(key, _COUNTER_AND_NONCE), mode=None).encryptor()
        self._process = os.getpid()
        self._words_left = WORDS_PER_KEY

    def words(self, count: int) -> Words:
        """Return the next `count` words, (count,) uint64, the same on every platform. The array may be read-only.

        Raises PrivacyError in a forked process, and after all 2³⁵ words of the key were used.
        """
        if os.getpid() != self._process:
            raise PrivacyError(
                "Keystream: opened before a fork; parent and child would draw the same noise. Open one here"
            )
        if not 0 <= count <= self._words_left:
            raise PrivacyError(
                "Keystream: word count is negative or beyond the 256 GiB of one key; open another stream"
            )
        self._words_left -= count
        size = 8 * count
        if size <= len(_ZEROS):
            return np.frombuffer(self._encryptor.update(_ZEROS[:size]), dtype=_LITTLE_ENDIAN).astype(
                np.uint64, copy=False
            )
        words = np.empty(count, dtype=_LITTLE_ENDIAN)
        target = words.data.cast("B")
        for start in range(0, size, len(_ZEROS)):
            part = target[start : start + len(_ZEROS)]
            self._encryptor.update_into(_ZEROS[: len(part)], part)
        return words.astype(np.uint64, copy=False)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivacyError(
            "a Keystream cannot be pickled or copied: two readers of one stream add the same noise. "
            "Open a stream from a NoiseSource in the process that releases"
        )
