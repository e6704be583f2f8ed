"""Shares of products of two parties' private integer vectors, by homomorphic encryption (BFV) with TenSEAL's binding of SEAL.

Guarantee. The key owner encrypts its vectors. The multiplier learns nothing about them, if the ring learning with errors
problem is hard (192 bits). The multiplier returns sums of products with its own vectors. The key owner learns from a
reply only uniform integers modulo t: the multiplier adds a uniform mask in every slot, a fresh encryption of zero, and uniform
noise that floods the noise of the products, to a distance of at most 2^−53 for all replies of a session. This needs ciphertexts
that the key owner formed as `KeyOwner.encrypted` does.

    key owner → multiplier     Enc(b_1), Enc(b_2), ...                one seeded ciphertext per row and block of N records
    multiplier → key owner     Σ a_j·Enc(b_l) + Enc(0) + flood + m    one ciphertext per output, m a fresh mask
    shares                     −m at the multiplier, the decrypted reply at the key owner; modulo t they add up to Σ a_j·b_l

Bounds (docs/mathematics.md, "Two parties without a dealer"). A fresh encryption has noise of at most 21 per coefficient and a
rounding of ½. A plaintext has ‖p‖₁ ≤ N·t/2, and an output has at most MOST_PRODUCTS products. Their noise is below 2^86. The
flood is uniform in [−2^169, 2^169), so each coefficient is within 2^−84 of one that does not depend on the products. Decryption
is exact up to noise of q/(2t) > 2^174. A session returns at most MOST_REPLIES replies of N coefficients.

Brakerski (2012); Fan & Vercauteren (2012); homomorphicencryption.org standard (2018), table 1; noise flooding: Gentry (2009).
"""

from __future__ import annotations

import os
import struct
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.errors import FederationError, PrivacyError, SpecificationError
from vfl.secure.ring import PRIME, modular
from vfl.secure.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from vfl.kernels.ring import Elements

    Rows = npt.NDArray[np.signedinteger[Any]] | Elements
    Ciphertexts = list[list[Any]]
    """Ciphertexts in NTT form, by block of records, then by row."""

SLOTS = 16384
"""N, the degree of the polynomials and the number of records per ciphertext."""
PRIME_BITS = (59, 59, 59, 59, 50)
"""Bits of the primes of the coefficient modulus. The last prime is for keys. At this N, a modulus of at most 305 bits has
192 bits of security; this one has 286.
"""
KEPT_PRIMES = 2
"""Number of primes that a reply keeps."""
FLOOD_BITS = 170
"""Bits of the uniform noise of a reply, sign included; a multiple of 5."""
MOST_PRODUCTS = 256
MOST_REPLIES = 1 << 17
"""Largest number of replies of a session. This many use up the stream of masks."""
PIECE = 526_336
"""Bytes of an encoded ciphertext, seeded or reduced to two primes: 2·N words of 8 bytes, and room for headers."""
PUBLIC_PIECE = 1_313_000
"""Bytes of an encoded public key: 10·N words of 8 bytes, and room for headers."""
MALFORMED = "a message does not hold a ciphertext or a key of this scheme"
EXTRA = "trust='secure' without a dealer needs TenSEAL on Linux: pip install 'vfl[he]'"


def require_library() -> str:
    """Return the library's name and version. Raises SpecificationError if homomorphic encryption is not installed."""
    try:
        import tenseal.sealapi  # noqa: F401
    except ImportError:
        raise SpecificationError(EXTRA) from None
    if not hasattr(os, "memfd_create"):
        raise SpecificationError(EXTRA)
    return library()


def library() -> str:
    """Return the library's name and version, such as 'TenSEAL 0.3.18'; '' if it is not installed."""
    try:
        return f"TenSEAL {version('tenseal')}"
    except PackageNotFoundError:
        return ""


def blocks_of(n_records: int) -> int:
    """Return ⌈n/N⌉, the number of ciphertexts per vector of n entries."""
    return -(-n_records // SLOTS)


@lru_cache(maxsize=1)
def _context() -> Any:
    """Return SEAL's context, which checks that the parameters have 192 bits of security."""
    require_library()
    import tenseal.sealapi as seal

    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.BFV)
    parameters.set_poly_modulus_degree(SLOTS)
    parameters.set_coeff_modulus(seal.CoeffModulus.Create(SLOTS, list(PRIME_BITS)))
    parameters.set_plain_modulus(seal.Modulus(PRIME))
    context = seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.TC192)
    if context.parameters_error_name() != "success":
        raise PrivacyError(
            f"the parameters of homomorphic encryption are refused: {context.parameters_error_message()}"
        )
    return context


class _File:
    """A file in memory, since SEAL reads and writes only files."""

    def __init__(self) -> None:
        self._number = os.memfd_create("ciphertext")
        self.path = f"/proc/self/fd/{self._number}"

    def saved(self, thing: Any, size: int) -> bytes:
        """Return an object of SEAL, serialised and padded to `size` bytes."""
        thing.save(self.path)
        written = os.pread(self._number, size, 0)
        if len(written) > size - 4 or os.fstat(self._number).st_size != len(written):
            raise PrivacyError(f"a ciphertext has more than {size - 4} bytes")
        return struct.pack("<I", len(written)) + written.ljust(size - 4, b"\0")

    def loaded(self, thing: Any, padded: memoryview) -> Any:
        """Read an object of SEAL from what `saved` returned. SEAL checks that the object fits the context."""
        (size,) = struct.unpack("<I", padded[:4])
        if size > len(padded) - 4:
            raise FederationError(MALFORMED)
        return self.read(thing, padded[4 : 4 + size])

    def read(self, thing: Any, *parts: bytes | memoryview) -> Any:
        """Read an object of SEAL from serialised bytes; FederationError if SEAL refuses them."""
        os.ftruncate(self._number, 0)
        at = 0
        for part in parts:
            at += os.pwrite(self._number, part, at)
        try:
            thing.load(_context(), self.path)
        except (RuntimeError, ValueError, OSError) as error:
            raise FederationError(MALFORMED) from error
        return thing

    def __del__(self) -> None:
        os.close(self._number)


class _Encoder:
    """Encodes rows of integers as plaintexts, N records at a time."""

    def __init__(self) -> None:
        import tenseal.sealapi as seal

        self._seal, self._encoder = seal, seal.BatchEncoder(_context())

    def plain(self, values: npt.NDArray[Any]) -> Any:
        """Return the plaintext of at most N integers; the other slots are 0."""
        plain = self._seal.Plaintext()
        self._encoder.encode(modular(values).tolist(), plain)
        return plain

    def integers(self, plain: Any) -> Elements:
        """Return the N integers modulo t of a plaintext, uint64."""
        return np.array(self._encoder.decode_uint64(plain), dtype=np.uint64)


class KeyOwner:
    """The party with the secret key, in one session. The secret key never leaves this object."""

    def __init__(self) -> None:
        self._file, self._encoder = _File(), _Encoder()
        seal = self._encoder._seal
        keys, public = seal.KeyGenerator(_context()), seal.PublicKey()
        keys.create_public_key(public)
        self.public_key = self._file.saved(public, PUBLIC_PIECE)
        self._encryptor, self._decryptor = (
            seal.Encryptor(_context(), public),
            seal.Decryptor(_context(), keys.secret_key()),
        )
        self._encryptor.set_secret_key(keys.secret_key())

    def __reduce__(self) -> Any:
        raise TypeError("a KeyOwner holds a secret key and cannot be pickled")

    def encrypted(self, rows: Rows) -> Iterator[bytes]:
        """Yield PIECE bytes per fresh ciphertext, the rows of one block of N records after another. rows : (k, n) integers."""
        for start in range(0, rows.shape[1], SLOTS):
            for row in rows:
                plain = self._encoder.plain(row[start : start + SLOTS])
                yield self._file.saved(self._encryptor.encrypt_symmetric(plain), PIECE)

    def decrypted(self, replies: memoryview) -> Iterator[Elements]:
        """Yield the (N,) integers modulo t of each reply: the key owner's shares, uniform by themselves."""
        seal = self._encoder._seal
        for start in range(0, len(replies), PIECE):
            ciphertext, plain = self._file.loaded(seal.Ciphertext(), replies[start : start + PIECE]), seal.Plaintext()
            if (
                ciphertext.size() != 2
                or ciphertext.is_ntt_form()
                or not self._decryptor.invariant_noise_budget(ciphertext)
            ):
                raise FederationError("a reply is not a sum of products that can be decrypted")
            self._decryptor.decrypt(ciphertext, plain)
            yield self._encoder.integers(plain)

    def records(self, replies: memoryview, n_records: int) -> Elements:
        """Return this party's share of each record's product, (n,) uint64."""
        found = np.concatenate(list(self.decrypted(replies)))
        return found[:n_records]

    def sums(self, replies: memoryview) -> Elements:
        """Return this party's share of each sum over the records, (outputs,) uint64."""
        return np.array([_total(own) for own in self.decrypted(replies)], dtype=np.uint64)


class Multiplier:
    """The party that multiplies encrypted rows by its own, in one session. public_key : `KeyOwner.public_key`."""

    def __init__(self, public_key: memoryview) -> None:
        self._file, self._encoder = _File(), _Encoder()
        seal = self._seal = self._encoder._seal
        self._evaluator = seal.Evaluator(_context())
        self._encryptor = seal.Encryptor(_context(), self._file.loaded(seal.PublicKey(), public_key))
        self._random, self._left = Stream(os.urandom(32)), MOST_REPLIES
        self._flood_header = self._header()

    def __reduce__(self) -> Any:
        raise TypeError("a Multiplier draws masks and cannot be pickled")

    def taken(self, message: memoryview, rows: int) -> Iterator[list[Any]]:
        """Yield the ciphertexts of each block of records, one per row, in NTT form. message : from `KeyOwner.encrypted`."""
        for start in range(0, len(message), PIECE * rows):
            block = []
            for at in range(start, start + PIECE * rows, PIECE):
                ciphertext = self._file.loaded(self._seal.Ciphertext(), message[at : at + PIECE])
                if (
                    ciphertext.size() != 2
                    or ciphertext.is_ntt_form()
                    or ciphertext.parms_id() != _context().first_parms_id()
                ):
                    raise FederationError("an encrypted vector is not a fresh ciphertext")
                self._evaluator.transform_to_ntt_inplace(ciphertext)
                block.append(ciphertext)
            yield block

    def records(self, blocks: Iterator[list[Any]], rows: Rows) -> tuple[bytes, Elements]:
        """Return replies for Σ_k rows[k, i]·b_k[i] at each record i, and this party's shares, (n,) uint64. rows : (k, n)."""
        replies, shares = [], []
        for number, block in enumerate(blocks):
            total = None
            for ciphertext, row in zip(block, rows, strict=True):
                plain = self._plain(row[number * SLOTS : (number + 1) * SLOTS])
                total = self._added(total, ciphertext, plain)
            reply, mask = self._reply(total)
            replies.append(reply)
            shares.append(mask)
        return b"".join(replies), np.concatenate(shares)[: rows.shape[1]]

    def sums(
        self, blocks: Iterator[list[Any]] | Ciphertexts, rows: Rows, outputs: Sequence[Sequence[tuple[int, int]]]
    ) -> tuple[bytes, Elements]:
        """Return replies for Σ_i Σ rows[j, i]·b_l[i] over the pairs (j, l) of each output, and this party's shares, (outputs,).

        rows : (k, n) of this party. outputs : for each sum its products, as (j, l).
        """
        totals: list[Any] = [None] * len(outputs)
        for number, block in enumerate(blocks):
            plain = [self._plain(row[number * SLOTS : (number + 1) * SLOTS]) for row in rows]
            for place, products in enumerate(outputs):
                for j, k in products:
                    totals[place] = self._added(totals[place], block[k], plain[j])
        found = [self._reply(total) for total in totals]
        return b"".join(reply for reply, _ in found), np.array([_total(mask) for _, mask in found], dtype=np.uint64)

    def _plain(self, values: npt.NDArray[Any]) -> tuple[Any, bool]:
        """Return a plaintext in NTT form, and True if all values are 0. Ones then replace them: SEAL refuses zeros."""
        zero = not values.any()
        plain = self._encoder.plain(np.ones_like(values) if zero else values)
        self._evaluator.transform_to_ntt_inplace(plain, _context().first_parms_id())
        return plain, zero

    def _added(self, total: Any, ciphertext: Any, factor: tuple[Any, bool]) -> Any:
        """Return (sum, number of its products) after one more product. One with zeros is computed alike, and left out."""
        plain, zero = factor
        product = self._seal.Ciphertext()
        self._evaluator.multiply_plain(ciphertext, plain, product)
        if zero:
            return total
        if total is None:
            return product, 1
        if total[1] == MOST_PRODUCTS:
            raise PrivacyError(f"a sum has more than {MOST_PRODUCTS} products, whose noise the flood would not hide")
        self._evaluator.add_inplace(total[0], product)
        return total[0], total[1] + 1

    def _reply(self, total: Any) -> tuple[bytes, Elements]:
        """Return a reply, and this party's share: minus a fresh uniform mask of every slot."""
        if not self._left:
            raise PrivacyError(f"a session returns at most {MOST_REPLIES} replies: start the run again")
        self._left -= 1
        reply = self._seal.Ciphertext()
        self._encryptor.encrypt_zero(reply)
        if total is not None:
            self._evaluator.transform_from_ntt_inplace(total[0])
            self._evaluator.add_inplace(reply, total[0])
        self._evaluator.add_inplace(reply, self._flood())
        mask = uniform(self._random, SLOTS)
        self._evaluator.add_plain_inplace(reply, self._encoder.plain(mask))
        for _ in range(len(PRIME_BITS) - 1 - KEPT_PRIMES):
            self._evaluator.mod_switch_to_next_inplace(reply)
        return self._file.saved(reply, PIECE), np.where(mask == 0, mask, np.uint64(PRIME) - mask)

    def _flood(self) -> Any:
        """Return a ciphertext (f, 0), f uniform in [−2^169, 2^169) per coefficient.

        SEAL has no access to coefficients, so the ciphertext is read from a file of known layout.
        """
        primes, words = _primes()[:, None], self._random.words(3, SLOTS)
        residues = np.zeros((len(primes), SLOTS), dtype=np.uint64)
        for bit in range(0, FLOOD_BITS, 5):  # digits of 5 bits, since 2^5 times a residue is below 2^64
            digit = words[bit // 60] >> np.uint64(bit % 60) & np.uint64(31)
            residues = ((residues << np.uint64(5)) + digit) % primes
        lowest = np.array([(1 << (FLOOD_BITS - 1)) % int(prime) for prime in _primes()], dtype=np.uint64)[:, None]
        residues = (residues + primes - lowest) % primes
        zeros = np.zeros_like(residues)
        return self._file.read(self._seal.Ciphertext(), self._flood_header, residues.tobytes(), zeros.tobytes())

    def _header(self) -> bytes:
        """Return the beginning of an uncompressed ciphertext of zero noise: SEAL's header, parameters, and number of words."""
        example = self._seal.Ciphertext()
        self._encryptor.encrypt_zero(example)
        words = 2 * SLOTS * (len(PRIME_BITS) - 1)
        start = (
            bytes.fromhex("5ea1") + self._file.saved(example, 2 * PIECE)[6:9]
        )  # magic number, size of a header, version
        inner = start + struct.pack("<BHQQ", 0, 0, 24 + 8 * words, words)
        body = struct.pack("<4Q?QQQdQ", *example.parms_id(), False, 2, SLOTS, len(PRIME_BITS) - 1, 1.0, 1) + inner
        return start + struct.pack("<BHQ", 0, 0, 16 + len(body) + 8 * words) + body


@lru_cache(maxsize=1)
def _primes() -> Elements:
    """Return the primes of the coefficient modulus of ciphertexts, (4,) uint64."""
    data = _context().first_context_data().parms()
    return np.array([prime.value() for prime in data.coeff_modulus()], dtype=np.uint64)


def uniform(stream: Stream, count: int) -> Elements:
    """Return uniform integers modulo t, (count,) uint64, by rejection from a stream of words."""
    found = stream.words(count) & np.uint64((1 << 60) - 1)
    while (high := found >= np.uint64(PRIME)).any():
        found[high] = stream.words(int(high.sum())) & np.uint64((1 << 60) - 1)
    return found


def _total(elements: Elements) -> int:
    """Return the sum modulo t. elements : at most 2^32 integers modulo t."""
    low, high = elements & np.uint64(0xFFFFFFFF), elements >> np.uint64(32)
    return (int(low.sum()) + (int(high.sum()) << 32)) % PRIME
