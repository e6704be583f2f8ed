"""Products of two parties' vectors under homomorphic encryption: exact shares, and replies that show no multiplier."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy import stats

from vfl.errors import FederationError, PrivacyError, SpecificationError
from vfl.secure import homomorphic
from vfl.secure.homomorphic import PIECE, SLOTS, KeyOwner, Multiplier, uniform
from vfl.secure.ring import MODULAR, PRIME, added

if TYPE_CHECKING:
    from collections.abc import Iterator

seal = pytest.importorskip("tenseal.sealapi")


@pytest.fixture(scope="module")
def keys() -> tuple[KeyOwner, Multiplier]:
    owner = KeyOwner()
    return owner, Multiplier(memoryview(owner.public_key))


def encrypted(owner: KeyOwner, rows: Any) -> memoryview:
    return memoryview(b"".join(owner.encrypted(rows)))


def signed(*shares: Any) -> np.ndarray:
    return MODULAR.decoded(added(shares))


class TestShares:
    @pytest.mark.parametrize("n", [1, SLOTS - 1, SLOTS, SLOTS + 1, 2 * SLOTS + 5])
    def test_products_of_records_are_exact(self, keys: Any, n: int) -> None:
        owner, multiplier = keys
        rng = np.random.default_rng(n)
        theirs, own = (
            rng.integers(-4096, 4097, (3, n)).astype(np.int16),
            rng.integers(-9999, 9999, (3, n)).astype(np.int16),
        )
        own[1] = 0
        replies, share = multiplier.records(multiplier.taken(encrypted(owner, theirs), 3), own)
        other = owner.records(memoryview(replies), n)
        assert (signed(share, other) == (theirs.astype(int) * own).sum(axis=0)).all()

    @pytest.mark.parametrize("entries", ["columns", "shares", "zeros"])
    def test_sums_over_records_are_exact_modulo_t(self, keys: Any, entries: str) -> None:
        owner, multiplier = keys
        rng, n = np.random.default_rng(1), SLOTS + 100
        columns = rng.integers(-(1 << 14), 1 << 14, (2, n)).astype(np.int16)
        theirs: Any = {"columns": columns, "zeros": 0 * columns, "shares": None}[entries]
        if theirs is None:
            theirs = np.array([[PRIME - 1] * n, rng.integers(0, PRIME, n)], dtype=np.uint64)
        outputs = [[(0, 0)], [(1, 1)], [(0, 1), (1, 0)]]
        replies, shares = multiplier.sums(multiplier.taken(encrypted(owner, theirs), 2), columns, outputs)
        found = added([shares, owner.sums(memoryview(replies))])
        wide, other = columns.astype(object), theirs.astype(object)
        expected = [sum((wide[j] * other[k]).sum() for j, k in pairs) % PRIME for pairs in outputs]
        assert found.tolist() == expected

    def test_each_share_is_uniform_by_itself(self, keys: Any) -> None:
        owner, multiplier = keys
        zeros = np.zeros((1, SLOTS), dtype=np.int16)
        replies, share = multiplier.records(multiplier.taken(encrypted(owner, zeros), 1), zeros)
        other = owner.records(memoryview(replies), SLOTS)
        for elements in (share, other):
            assert stats.kstest(elements / PRIME, "uniform").pvalue > 1e-6
        assert (added([share, other]) == 0).all()


def top_level(keys: Any, monkeypatch: pytest.MonkeyPatch, row: Any) -> tuple[Any, Any]:
    """Return a reply before its modulus is reduced, and the share of its mask."""
    owner, multiplier = keys
    monkeypatch.setattr(homomorphic, "KEPT_PRIMES", 4)
    monkeypatch.setattr(homomorphic, "PIECE", 2 * PIECE)
    theirs = np.random.default_rng(2).integers(-4096, 4097, (1, SLOTS)).astype(np.int16)
    replies, share = multiplier.records(multiplier.taken(encrypted(owner, theirs), 1), row)
    return memoryview(replies), (share, theirs[0] * row[0].astype(int))


class TestCircuitPrivacy:
    """The key owner cannot tell two multipliers apart, neither from the noise of a reply nor from its second polynomial."""

    def noise(self, keys: Any, monkeypatch: pytest.MonkeyPatch, row: Any) -> np.ndarray:
        """Return the leading bits of the noise of a reply, (N,). The key owner can do this: it knows the decrypted value."""
        owner, multiplier = keys
        reply, (share, product) = top_level(keys, monkeypatch, row)
        ciphertext, plain = owner._file.loaded(seal.Ciphertext(), reply), seal.Plaintext()
        evaluator = multiplier._evaluator
        evaluator.sub_plain_inplace(ciphertext, owner._encoder.plain((product - share.astype(np.int64)) % PRIME))
        evaluator.multiply_plain_inplace(ciphertext, seal.Plaintext(f"{1 << 47:x}"))
        # The noise times 2^47 t/q: with a noise of 2^169, 40 bits above the point.
        owner._decryptor.decrypt(ciphertext, plain)
        array = plain.dyn_array()
        found = np.array([array.at(k) for k in range(plain.coeff_count())], dtype=np.uint64)
        return MODULAR.decoded(found).astype(float)

    def test_the_noise_of_a_reply(self, keys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        large = np.full((1, SLOTS), 9999, dtype=np.int16) * np.where(np.arange(SLOTS) % 3, 1, -1).astype(np.int16)
        samples = [self.noise(keys, monkeypatch, row) for row in (large, np.zeros_like(large))]
        assert stats.ks_2samp(*samples).pvalue > 1e-6
        for sample in samples:
            assert stats.kstest(sample / abs(sample).max() / 2 + 0.5, "uniform").pvalue > 1e-6
        zero = seal.Ciphertext()
        keys[1]._encryptor.encrypt_zero(zero)
        monkeypatch.setattr(Multiplier, "_flood", lambda _: zero)
        assert not self.noise(keys, monkeypatch, large).any()  # without the flood the noise is that of the product

    def test_the_second_polynomial_of_a_reply(self, keys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """A key owner that guesses the multiplier can compute c₁·p from its ciphertext; a reply agrees nowhere."""
        owner, multiplier = keys
        row = np.arange(SLOTS, dtype=np.int16)[None]
        message = encrypted(owner, row)

        def agree() -> float:
            guess = self.product(multiplier, message, row[0])
            reply, _ = multiplier.records(multiplier.taken(message, 1), row)
            sent = owner._file.loaded(seal.Ciphertext(), memoryview(reply))
            return float(np.mean([a == b for a, b in zip(second(guess), second(sent), strict=True)]))

        assert agree() < 1e-3

        class NoZero:
            def encrypt_zero(self, out: Any) -> None:
                """Give an encryption of zero that hides nothing: noise alone."""
                multiplier._file.read(out, multiplier._flood_header, bytes(8 * 8 * SLOTS))

        monkeypatch.setattr(multiplier, "_encryptor", NoZero())
        assert agree() == 1.0

    @staticmethod
    def product(multiplier: Multiplier, message: memoryview, values: Any) -> Any:
        """Return c·p, reduced to the primes of a reply."""
        ((ciphertext,),) = multiplier.taken(message, 1)
        total = seal.Ciphertext()
        multiplier._evaluator.multiply_plain(ciphertext, multiplier._plain(values)[0], total)
        multiplier._evaluator.transform_from_ntt_inplace(total)
        for _ in range(2):
            multiplier._evaluator.mod_switch_to_next_inplace(total)
        return total


def second(ciphertext: Any) -> list[int]:
    """Return entries of the second polynomial."""
    array = ciphertext.dyn_array()
    half = array.size() // 2
    return [array.at(half + k) for k in range(0, half, 7)]


class TestFlood:
    def test_it_is_uniform_in_its_range(self, keys: Any) -> None:
        """Its residues are those of one integer below 2^169 in magnitude, by the Chinese remainder theorem."""
        multiplier = keys[1]
        flood = multiplier._flood()
        array = flood.dyn_array()
        primes = [int(prime) for prime in homomorphic._primes()]
        modulus = int(np.prod(np.array(primes, dtype=object)))
        found = []
        for k in range(0, SLOTS, 16):
            residues = [array.at(j * SLOTS + k) for j in range(4)]
            whole = (
                sum(r * (modulus // q) * pow(modulus // q, -1, q) for r, q in zip(residues, primes, strict=True))
                % modulus
            )
            found.append(whole - modulus if whole > modulus // 2 else whole)
        assert max(map(abs, found)) <= 1 << 169
        assert stats.kstest([value / 2.0**170 + 0.5 for value in found], "uniform").pvalue > 1e-6

    def test_the_bounds_of_the_proof(self) -> None:
        """Flood over noise is 2^84 per coefficient, and decryption stays exact."""
        modulus = int(np.prod([int(prime) for prime in homomorphic._primes()], dtype=object))
        product = homomorphic.MOST_PRODUCTS * 21.5 * SLOTS * PRIME / 2
        fresh = 21 * (2 * SLOTS + 1)
        assert (product + fresh + 1) * homomorphic.MOST_REPLIES * SLOTS / 2.0**170 < 2.0**-52
        assert product + fresh + 1 + 2**169 < modulus / (2 * PRIME) / 2**5
        assert sum(homomorphic.PRIME_BITS) <= seal.CoeffModulus.MaxBitCount(SLOTS, seal.SEC_LEVEL_TYPE.TC192)

    def test_uniform_elements_are_below_t(self) -> None:
        class High:
            def words(self, count: int, of: Iterator[int] = iter(range(9))) -> np.ndarray:  # noqa: B008
                return np.full(count, [(1 << 60) - 1, PRIME, 5][next(of)], dtype=np.uint64)

        assert uniform(High(), 4).tolist() == [5] * 4  # type: ignore[arg-type]


class TestLies:
    """Messages of the other party that are not what they should be."""

    @pytest.mark.parametrize("change", ["zeros", "noise", "a reply", "a key", "a length"])
    def test_texts_that_are_no_fresh_ciphertexts(self, keys: Any, change: str) -> None:
        owner, multiplier = keys
        row = np.ones((1, 8), dtype=np.int16)
        honest = encrypted(owner, row)
        lies = {
            "zeros": bytes(PIECE),
            "noise": np.random.default_rng(0).bytes(PIECE),
            "a reply": multiplier.records(multiplier.taken(honest, 1), row)[0],
            "a key": owner.public_key[:PIECE],
            "a length": b"\xff\xff\xff\xff" + bytes(honest[4:]),
        }
        with pytest.raises(FederationError):
            list(multiplier.taken(memoryview(lies[change]), 1))

    @pytest.mark.parametrize("change", ["zeros", "noise", "another key's"])
    def test_replies_that_cannot_be_decrypted(self, keys: Any, change: str) -> None:
        owner, other = keys[0], KeyOwner()
        row = np.ones((1, 8), dtype=np.int16)
        made = Multiplier(memoryview(other.public_key))
        theirs = made.records(made.taken(encrypted(other, row), 1), row)[0]
        lies = {"zeros": bytes(PIECE), "noise": np.random.default_rng(0).bytes(PIECE), "another key's": theirs}
        with pytest.raises(FederationError):
            owner.records(memoryview(lies[change]), 8)

    def test_a_session_has_a_last_reply(self, keys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keys[1], "_left", 1)
        row = np.ones((1, 8), dtype=np.int16)
        message = encrypted(keys[0], row)
        keys[1].records(keys[1].taken(message, 1), row)
        with pytest.raises(PrivacyError, match="at most"):
            keys[1].records(keys[1].taken(message, 1), row)

    def test_a_sum_of_too_many_products_is_refused(self, keys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(homomorphic, "MOST_PRODUCTS", 1)
        row = np.ones((2, 8), dtype=np.int16)
        with pytest.raises(PrivacyError, match="more than 1 products"):
            keys[1].records(keys[1].taken(encrypted(keys[0], row), 2), row)


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tenseal.sealapi", None)
    with pytest.raises(SpecificationError, match=r"pip install 'vfl\[he\]'"):
        homomorphic.require_library()
