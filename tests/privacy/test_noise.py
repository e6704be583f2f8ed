"""Noise sources, keystreams, and the exact rounding of a Gaussian, compared with mpmath and with Φ."""

from __future__ import annotations

import copy
import hashlib
import math
import pickle
import subprocess
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import chi2

from vfl.errors import PrivacyError, SpecificationError
from vfl.privacy import rounded_gaussian as module
from vfl.privacy.events import ReleaseKey
from vfl.privacy.keystream import WORDS_PER_KEY, Keystream
from vfl.privacy.noise import CryptographicNoise, NoiseSource, SeededNoise
from vfl.privacy.rounded_gaussian import LARGEST_SCALE, NDTRI_ERROR, Side, rounded_gaussian, side_of

KEY = ReleaseKey(round=3, part=1)
SCALES = [1e-3, 0.7, 1.0, 37.25, 2.0**26, 3.0e9, 2.0**45]


class Recorded:
    """A stream of given words. It refuses to give more than it has, and counts the words left."""

    def __init__(self, words):
        self.left = np.asarray(words, dtype=np.uint64)

    def words(self, count):
        assert count <= len(self.left)
        taken, self.left = self.left[:count], self.left[count:]
        return taken


@pytest.fixture
def precise():
    with mpmath.workprec(400):
        yield


def upper_tail(t):
    return mpmath.erfc(mpmath.mpf(t) / mpmath.sqrt(2)) / 2


def quantile(q):
    """Q⁻¹(q) for 0 < q <= 1/2 at 400 bits, by Newton's method on erfc; ndtri gives only the starting point."""
    z = mpmath.mpf(-float(ndtri(float(q))))
    for _ in range(6):
        step = (upper_tail(z) - q) * mpmath.sqrt(2 * mpmath.pi) * mpmath.exp(z * z / 2)
        z += step
        if abs(step) < mpmath.mpf(2) ** -200:
            break
    return z


def reference(words, scale, size):
    """Return the `size` draws that the definition gives, from mpmath alone, and the number of words used."""
    words = [int(word) for word in words]
    used, results = size, []
    for word in words[:size]:
        tail, bits = word & (2**63 - 1), 63
        while True:
            if tail:
                ends = (quantile(mpmath.mpf(k) / mpmath.mpf(2) ** (bits + 1)) * scale for k in (tail, tail + 1))
                high, low = (int(mpmath.floor(end + 0.5)) for end in ends)
                if high == low:
                    break
            tail, bits, used = tail << 64 | words[used], bits + 64, used + 1
        results.append(-low if word >> 63 else low)
    return results, used


def printed_by(script):
    """Run in a fresh interpreter, which has no threads that a fork would break and no imported modules."""
    root = Path(module.__file__).parents[2]
    return subprocess.check_output([sys.executable, "-c", script], text=True, cwd=root).splitlines()


def boundary_word(n, scale):
    """Return the 63 bits whose interval contains the boundary between n and n + 1."""
    return int(mpmath.floor(upper_tail((mpmath.mpf(n) + 0.5) / scale) * mpmath.mpf(2) ** 64))


# Exactness


def test_ndtri_stays_within_half_of_the_assumed_bound(precise):
    random = np.random.default_rng(0)
    q = np.concatenate(
        [
            random.random(1500) / 2,
            2.0 ** -(1 + 64 * random.random(1500)),  # evenly over all magnitudes of 63 bits
            2.0 ** -(64 + 300 * random.random(500)),  # lanes that take further words
            0.5 - 2.0 ** -(1 + 52 * random.random(1500)),
            math.exp(-2) * (1 + 1e-2 * random.standard_normal(1500)),  # where the formula changes
            (np.arange(1, 200) + 0.5) * 2.0**-64,
        ]
    )
    q = q[(q > 0) & (q < 0.5)]
    errors = []
    for tail, approximate in zip(q.tolist(), (-ndtri(q)).tolist(), strict=True):
        z = mpmath.mpf(approximate)
        # One Newton step; its error is of the order of the squared error before it.
        error = (upper_tail(z) - mpmath.mpf(tail)) * mpmath.sqrt(2 * mpmath.pi) * mpmath.exp(z * z / 2)
        errors.append(float(abs(error / (z + error))))
    assert max(errors) < NDTRI_ERROR / 2
    assert ndtri(0.5) == 0


@pytest.mark.parametrize("scale", SCALES)
def test_draws_follow_the_definition(scale, precise):
    words = SeededNoise(5).stream(KEY).words(350)
    expected, used = reference(words, scale, 250)
    stream = Recorded(words)
    assert rounded_gaussian(stream, scale, 250).tolist() == expected
    assert len(words) - len(stream.left) == used


@pytest.mark.parametrize("bound", [2.0**-40, 2.0**-30, 1.0])
@pytest.mark.parametrize("scale", [0.7, 2.0**26, 2.0**45])
def test_a_wider_bound_sends_more_lanes_to_integers_and_changes_no_result(scale, bound, monkeypatch):
    words = SeededNoise(6).stream(KEY).words(3000)
    decided = []
    decide = module.decided

    def counting(*arguments):
        decided.append(arguments)
        return decide(*arguments)

    monkeypatch.setattr(module, "decided", counting)
    usual = rounded_gaussian(Recorded(words), scale, 1000)
    few = len(decided)
    decided.clear()
    monkeypatch.setattr(module, "NDTRI_ERROR", bound)
    assert rounded_gaussian(Recorded(words), scale, 1000).tolist() == usual.tolist()
    assert len(decided) >= (few if bound < 1 else 900)


def test_floating_point_alone_would_be_wrong(precise):
    """This verifies the tests above: at 2^45 some lanes differ in double precision."""
    words = SeededNoise(5).stream(KEY).words(3000)
    q = ((words & np.uint64(2**63 - 1)).astype(float) + 0.5) * 2.0**-64
    naive = np.rint(-ndtri(q) * 2.0**45)
    exact = np.abs(rounded_gaussian(Recorded(words), 2.0**45, 2900))
    wrong = np.flatnonzero(naive[:2900] != exact)
    assert 0 < len(wrong) < 300
    for lane in wrong[:20]:
        assert abs(reference([words[lane], *words[:9]], 2.0**45, 1)[0][0]) == exact[lane]


@pytest.mark.parametrize("scale", [0.7, 1.0, 37.25, 2.0**26, 2.0**45])
def test_lanes_on_a_boundary_take_further_words_in_order_of_lanes(scale, precise):
    steps = sorted({int(scale * z) for z in (0.0, 0.01, 0.5, 1.1, 2.0, 3.0, 4.5, 6.0)})
    tails = [boundary_word(n, scale) for n in steps]
    lanes = [tail | sign << 63 for tail in tails for sign in (0, 1)]
    # The words next to the boundary words are decided by a tiny margin, without further words.
    lanes += [tail + offset for tail in tails for offset in (-1, 1)]
    more = SeededNoise(7).stream(KEY).words(200).tolist()
    expected, used = reference(lanes + more, scale, len(lanes))
    assert used >= len(lanes) + 2 * len(steps)
    stream = Recorded(lanes + more)
    assert rounded_gaussian(stream, scale, len(lanes)).tolist() == expected
    assert len(stream.left) == len(lanes) + len(more) - used


@pytest.mark.parametrize("scale", [1e-300, 0.7, 2.0**26, 2.0**45, LARGEST_SCALE])
@pytest.mark.parametrize("more", [[2**63 + 12345, 9, 8], [1, 2**40 + 3, 77], [0, 0, 3, 2**62 + 1, 5]])
def test_the_unbounded_tail_takes_further_words(scale, more, precise):
    expected, used = reference([2**63, *more, 4, 4], scale, 1)
    stream = Recorded([2**63, *more, 4, 4])
    assert rounded_gaussian(stream, scale, 1).tolist() == expected
    assert len(stream.left) == 1 + len(more) + 2 - used
    assert used >= 2


def test_extreme_words():
    words = [2**63 - 1, 2**64 - 1, 1, 2**63 + 1]
    assert rounded_gaussian(Recorded(words), 1.0, 4).tolist() == [0, 0, 9, -9]


def test_chunks_do_not_change_results(monkeypatch):
    usual = rounded_gaussian(SeededNoise(8).stream(KEY), 2.0**44, 3000)
    monkeypatch.setattr(module, "LANES", 70)
    assert rounded_gaussian(SeededNoise(8).stream(KEY), 2.0**44, 3000).tolist() == usual.tolist()


@pytest.mark.parametrize("guard", [64, 1])
def test_sides_agree_with_mpmath_at_any_first_precision(guard, precise, monkeypatch):
    monkeypatch.setattr("vfl.privacy.rounded_gaussian.GUARD", guard)
    random = np.random.default_rng(3)
    for bits in (1, 2, 7, 63, 127, 191):
        for reach in np.linspace(0, math.sqrt(1.45 * bits), 60):
            denominator = int(random.integers(1, 10**6))
            numerator = int(denominator * reach) + 1
            exact = upper_tail(mpmath.mpf(numerator) / denominator) * mpmath.mpf(2) ** (bits + 1)
            near = int(mpmath.floor(exact))
            for tail in {near - 2, near - 1, near, near + 1, near + 2, int(random.integers(0, 2 ** min(bits, 62)))}:
                if 0 <= tail < 2**bits:
                    expected = Side.ABOVE if tail + 1 < exact else Side.BELOW if tail > exact else Side.OPEN
                    assert side_of(numerator, denominator, tail, bits) is expected


def test_sides_of_extreme_boundaries():
    assert side_of(10**300, 1, 1, 63) is Side.BELOW
    assert side_of(10**300, 1, 0, 63) is Side.OPEN
    assert side_of(1, 10**300, 2**62, 63) is Side.ABOVE
    assert side_of(1, 10**300, 2**63 - 1, 63) is Side.OPEN
    assert side_of(0, 1, 2**63 - 1, 63) is Side.ABOVE  # the one boundary at which Q is exact


# Distribution


def cells_p_value(draws, scale, edges):
    """χ² of the counts between half-integers against Φ."""
    edges = np.asarray(edges)
    counts = np.bincount(np.searchsorted(edges, draws), minlength=len(edges) + 1)
    expected = np.diff(np.concatenate([[0.0], ndtr((edges + 0.5) / scale), [1.0]])) * len(draws)
    assert expected.min() > 5
    return chi2.sf(np.sum((counts - expected) ** 2 / expected), len(edges))


def check_distribution(count, sigma_within):
    draws = rounded_gaussian(SeededNoise(11).stream(KEY), 2.0**26, count)
    z = draws / 2.0**26
    edges = np.rint(ndtri(np.linspace(0, 1, 257)[1:-1]) * 2.0**26)  # cuts only; probabilities come from Φ
    assert cells_p_value(draws, 2.0**26, edges) > 1e-4
    assert abs(z.std() - 1) < sigma_within
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        assert abs(np.mean(z**power) - moment) < 5 * math.sqrt(variance / count)
    assert abs(np.mean(z[1:] * z[:-1])) < 5 / math.sqrt(count)
    for threshold in (3.0, 4.0):
        expected = 2 * ndtr(-threshold) * count
        assert abs(np.count_nonzero(np.abs(z) > threshold) - expected) < 5 * math.sqrt(expected)
    # Low bits of the integers are uniform: the spacing of doubles does not show.
    low = np.bincount(draws & 15, minlength=16)
    assert chi2.sf(np.sum((low - count / 16) ** 2 / (count / 16)), 15) > 1e-4


@pytest.mark.parametrize("scale", [0.3, 0.7, 1.0, 3.3, 1000.0])
def test_cells_have_the_probabilities_of_the_rounded_normal(scale):
    draws = rounded_gaussian(SeededNoise(12).stream(KEY), scale, 1_000_000)
    reach = max(0, int(3.8 * scale - 0.5))
    edges = (
        np.unique(np.linspace(-reach - 1, reach, 300).astype(int)) if scale > 100 else np.arange(-reach - 1, reach + 1)
    )
    assert cells_p_value(draws, scale, edges) > 1e-4


def test_a_million_draws_have_the_moments_and_cells_of_the_normal():
    check_distribution(1_000_000, 0.004)


@pytest.mark.slow
def test_twenty_million_draws_pin_sigma_to_a_thousandth():
    check_distribution(20_000_000, 0.001)


# Bad input


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, -math.inf, LARGEST_SCALE * 1.01])
def test_an_impossible_scale_is_refused(scale):
    with pytest.raises(PrivacyError, match=r"scale must be .*2\^48"):
        rounded_gaussian(SeededNoise(0).stream(KEY), scale, 3)


def test_sizes():
    assert rounded_gaussian(SeededNoise(0).stream(KEY), 1.0, 0).tolist() == []
    assert np.all(rounded_gaussian(SeededNoise(0).stream(KEY), 5e-324, 20_000) == 0)
    with pytest.raises(PrivacyError, match="size must be 0 or more"):
        rounded_gaussian(SeededNoise(0).stream(KEY), 1.0, -1)


# Keystreams and sources


def test_keystream_is_chacha20_of_rfc_8439_from_block_zero():
    """RFC 8439, appendix A.1, test vectors 1 and 2: key and nonce zero, blocks 0 and 1."""
    blocks = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    assert Keystream(bytes(32)).words(16).astype("<u8").tobytes() == blocks


def test_words_continue_the_stream_in_any_portions():
    whole = Keystream(bytes(range(32))).words(60_000)
    stream = Keystream(bytes(range(32)))
    parts = [stream.words(count) for count in (3, 0, 1, 40_000, 5, 19_991)]
    assert whole.dtype == np.uint64
    assert np.array_equal(np.concatenate(parts), whole)
    assert len(np.unique(whole)) == len(whole)


def test_a_stream_ends_before_it_would_repeat(monkeypatch):
    stream = Keystream(bytes(32))
    assert WORDS_PER_KEY * 8 == 256 * 2**30
    for count in (WORDS_PER_KEY + 1, -1):
        with pytest.raises(PrivacyError, match="open another stream"):
            stream.words(count)
    monkeypatch.setattr("vfl.privacy.keystream.WORDS_PER_KEY", 4)
    stream = Keystream(bytes(32))
    stream.words(4)
    with pytest.raises(PrivacyError, match="open another stream"):
        stream.words(1)


def test_a_key_of_another_length_is_refused():
    with pytest.raises(PrivacyError, match=r"32 bytes$"):
        Keystream(b"secret")


def test_only_the_cryptographic_source_is_private():
    sources: list[NoiseSource] = [CryptographicNoise(), SeededNoise(0)]
    assert [source.private for source in sources] == [True, False]


@pytest.mark.true_noise
def test_cryptographic_streams_differ_even_for_one_key():
    source = CryptographicNoise()
    assert len({int(source.stream(KEY).words(1)[0]) for _ in range(200)}) == 200


def test_forked_processes_draw_their_own_noise_and_cannot_continue_a_stream():
    script = """
import os
from vfl.errors import PrivacyError
from vfl.privacy.events import ReleaseKey
from vfl.privacy.noise import CryptographicNoise
source, key = CryptographicNoise(), ReleaseKey(1)
opened = source.stream(key)
for _ in range(2):
    if os.fork() == 0:
        try:
            opened.words(1)
        except PrivacyError as refusal:
            os.write(1, b"refused" if b"fork" in str(refusal).encode() else b"?")
        os.write(1, b" %d\\n" % source.stream(key).words(1)[0])
        os._exit(0)
    os.wait()
os.write(1, b"parent %d\\n" % source.stream(key).words(1)[0])
"""
    lines = [line.split() for line in printed_by(script)]
    assert [line[0] for line in lines] == ["refused", "refused", "parent"]
    assert len({line[1] for line in lines}) == 3


@pytest.mark.parametrize("make", [CryptographicNoise, lambda: Keystream(bytes(32))])
@pytest.mark.parametrize("copying", [pickle.dumps, copy.copy, copy.deepcopy])
def test_sources_of_secret_noise_cannot_be_pickled_or_copied(make, copying):
    with pytest.raises(PrivacyError, match="cannot be pickled or copied"):
        copying(make())


def test_seeded_noise_is_a_specification_that_repeats():
    source = pickle.loads(pickle.dumps(SeededNoise(4)))  # noqa: S301
    assert source == SeededNoise(4)
    assert np.array_equal(source.stream(KEY).words(50), SeededNoise(4).stream(KEY).words(50))


def test_seeded_streams_differ_in_every_part_of_the_name():
    names = [(seed, ReleaseKey(a, b, c)) for seed in (0, 1, 11) for a in (0, 1, 11) for b in (0, 1, 11) for c in (0, 1)]
    firsts = {int(SeededNoise(seed).stream(key).words(1)[0]) for seed, key in names}
    assert len(firsts) == len(names)


def test_seeded_stream_is_as_documented():
    """Written again with hashlib, to detect a change of the encoding, which would change old results."""
    key = hashlib.sha256(b"vfl.SeededNoise.v1|42|7|3|1").digest()
    assert np.array_equal(SeededNoise(42).stream(ReleaseKey(7, 3, 1)).words(9), Keystream(key).words(9))


@pytest.mark.parametrize(("seed", "message"), [(-1, "0 or more"), (1.0, "an int"), (True, "an int"), ("7", "an int")])
def test_an_invalid_seed_is_refused(seed, message):
    with pytest.raises(SpecificationError, match=message):
        SeededNoise(seed)


def test_naming_a_source_imports_nothing_heavy():
    script = """
import sys
import vfl.privacy.noise
vfl.privacy.noise.SeededNoise(0)
print([name for name in ("numpy", "scipy", "cryptography", "numba", "ray") if name in sys.modules])
"""
    assert printed_by(script) == ["[]"]
