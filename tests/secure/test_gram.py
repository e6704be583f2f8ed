"""Products of columns of several parties, opened with noise."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.secure.session import exchanged
from vfl.errors import FederationError, PrivacyError
from vfl.privacy.events import ReleaseKey
from vfl.privacy.noise import SeededNoise
from vfl.secure import gram, noise, ring
from vfl.secure.roles import DEALER, Roles

N, P, CAP, SIGMA = 400, 3, 2.0, 40.0


def products(m: int):
    """Return the members, the dealer, their rows, the bits and the caps of a run of m parties."""
    rng = np.random.default_rng(m)
    roles = Roles(tuple(f"party-{i}" for i in range(m)), "party-0", m - 1)
    streams = exchanged(roles)
    caps = gram.gram_caps(CAP, {party: 1.0 + i for i, party in enumerate(roles.parties)})
    bits = gram.gram_bits(N, max(SIGMA / (a * b) for a in caps.values() for b in caps.values()))
    rows = {
        party: gram.gram_rows(np.asfortranarray(rng.normal(size=(N, P))), np.zeros(P), np.ones(P), caps[party], bits)
        for party in roles.parties
    }
    members = {
        party: gram.GramMember(roles, party, streams[party], SeededNoise(3), rows[party]) for party in roles.parties
    }
    dealer = gram.GramDealer(roles, streams[DEALER], SeededNoise(3), N, dict.fromkeys(roles.parties, P))
    for party, member in members.items():
        words = member.masked_columns()
        for other in roles.parties:
            if other != party:
                members[other].take_columns(party, words)
    return roles, members, dealer, rows, bits, caps


@pytest.mark.parametrize("m", [2, 3, 5])
def test_every_block_is_the_clear_one_plus_all_noise(m):
    roles, members, dealer, rows, bits, caps = products(m)
    number = 0
    for i, a in enumerate(roles.parties):
        own = gram.Pair(a, a, ReleaseKey(1, number), SIGMA, bits.step(caps[a], caps[a]))
        clear = rows[a].astype(np.int64) @ rows[a].astype(np.int64).T
        found = members[a].own(own)
        assert (found == found.T).all()
        assert 0 < abs(found - clear).max() < 10 * SIGMA / own.step
        for b in roles.parties[i + 1 :]:
            number += 1
            pair = gram.Pair(a, b, ReleaseKey(2, number), SIGMA, bits.step(caps[a], caps[b]))
            members[b].take_product(pair, dealer.product(pair))
            largest = ring.largest_sum(N, bits.limit, 3 * pair.deviation())
            found = gram.opened_cross(members[a].cross(pair), members[b].cross(pair), largest)
            drawn = sum(
                noise.drawn(SeededNoise(3), pair.key, pair.contributor(who), pair.deviation(), P * P)
                for who in (a, b, DEALER)
            ).reshape(P, P)
            assert (found == rows[a].astype(np.int64) @ rows[b].astype(np.int64).T + drawn).all()


def test_any_two_of_the_three_contributors_leave_the_variance_that_is_charged():
    pair = gram.Pair("a", "b", ReleaseKey(1), SIGMA, Fraction(1, 1 << 20))
    steps = Fraction(SIGMA) / pair.step
    assert 2 * Fraction(pair.deviation()) ** 2 >= steps**2 / 2
    assert 3 * pair.deviation() ** 2 == pytest.approx(1.5 * float(steps) ** 2 / 2, rel=1e-12)


@given(st.floats(0.1, 1e6), st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=5), st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_rows_of_all_parties_have_at_most_the_norm_of_the_cap(cap, squares, seed):
    caps = gram.gram_caps(cap, {str(i): square for i, square in enumerate(squares)})
    assert sum(Fraction(own) ** 2 for own in caps.values()) <= Fraction(cap) ** 2
    bits = gram.GramBits(12)
    X = np.random.default_rng(seed).standard_cauchy(size=(20, 4)) * cap
    for own in caps.values():
        rows = gram.gram_rows(X, np.zeros(4), np.ones(4), own, bits).astype(object)
        assert (rows * rows).sum(axis=0).max() <= bits.limit


@given(st.integers(1, 10**12), st.floats(1e-3, 1e12))
@settings(max_examples=80, deadline=None)
def test_bits_are_the_most_that_decode(n, ratio):
    def fits(bits: int) -> bool:
        return n * 4**bits + 3 * 2**52 < 2**59 and Fraction(ratio) * 4**bits <= 2**48

    try:
        found = gram.gram_bits(n, ratio).columns
    except PrivacyError:
        assert not fits(8)
        return
    assert fits(found)
    assert found == 21 or not fits(found + 1)


def test_the_largest_product_decodes():
    n = 1000
    bits = gram.gram_bits(n, 1.0)
    assert n * bits.limit + 3 * 2**52 < 2**59
    assert math.isqrt(bits.limit) <= np.iinfo(np.int32).max


def test_words_of_a_pair_are_used_once():
    _, members, dealer, _, bits, caps = products(2)
    pair = gram.Pair("party-0", "party-1", ReleaseKey(1), SIGMA, bits.step(*caps.values()))
    members["party-0"].cross(pair)
    dealer.product(pair)
    with pytest.raises(FederationError, match="is missing"):
        members["party-1"].cross(pair)
    for again in (
        lambda: members["party-0"].cross(pair),
        lambda: dealer.product(pair),
        members["party-0"].masked_columns,
    ):
        with pytest.raises(PrivacyError, match="asked for twice"):
            again()


def test_own_products_are_released_once_per_key():
    _, members, _, _, bits, caps = products(2)
    step = bits.step(caps["party-0"], caps["party-0"])
    pair = gram.Pair("party-0", "party-0", ReleaseKey(1), SIGMA, step)
    members["party-0"].own(pair)
    for who in ("party-0", "party-1"):
        with pytest.raises(PrivacyError, match="not its own"):
            members[who].own(pair)
