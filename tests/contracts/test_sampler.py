"""Contract of every registered sampler: blocks are drawn as often as its docstring says."""

from __future__ import annotations

import itertools
import math
import pickle
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from vfl.base.problem import Block
from vfl.errors import SpecificationError
from vfl.queries.samplers import (
    SAMPLERS,
    Cyclic,
    Full,
    Importance,
    Nice,
    Shuffled,
    Uniform,
    grouped_by_owner,
    sampler_of,
)

OWNERS = ("bank", "bank", "telco", "hospital", "bank")
SIZES = (2, 1, 3, 2, 1)
M = np.array([1.0, 4.0, 2.0, 0.5, 0.5, 0.25, 3.0, 1.0, 0.5])
LARGEST = np.array([4.0, 2.0, 0.5, 3.0, 0.5])


def _blocks(owners=OWNERS, sizes=SIZES):
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return tuple(
        Block(index, party, 0, size, int(offset))
        for index, (party, size, offset) in enumerate(zip(owners, sizes, starts[:-1], strict=True))
    )


BLOCKS = _blocks()
B = len(BLOCKS)

# Claims of each: the share of draws that contain a block, and the number of draws per pass.
CLAIMS = {
    Shuffled(): (np.full(B, 1 / B), B),
    Cyclic(): (np.full(B, 1 / B), B),
    Uniform(): (np.full(B, 1 / B), B),
    Importance(): (LARGEST / LARGEST.sum(), B),
    Nice(1): (np.full(B, 1 / B), B),
    Nice(2): (np.full(B, 2 / B), 3),
    Nice(9): (np.ones(B), 1),
    Full(): (np.ones(B), 1),
}
EACH = pytest.mark.parametrize("sampler", CLAIMS, ids=repr)
ALPHA = 1e-4


def _passes(sampler, n_passes, seed=5):
    rng = np.random.default_rng(seed)
    return [sampler.draws(BLOCKS, M, rng) for _ in range(n_passes)]


def test_every_registered_sampler_is_covered():
    assert {type(sampler) for sampler in CLAIMS} == set(SAMPLERS.values())
    assert all(SAMPLERS[sampler.name] is type(sampler) for sampler in CLAIMS)


@EACH
def test_a_pass_consists_of_valid_draws(sampler):
    _, length = CLAIMS[sampler]
    for draws in _passes(sampler, 50):
        assert len(draws) == length
        for draw in draws:
            assert isinstance(draw, tuple)
            assert all(type(b) is int and 0 <= b < B for b in draw)
            assert len(set(draw)) == len(draw) == sampler.width(B)


@EACH
def test_blocks_are_included_as_often_as_claimed(sampler):
    claimed, length = CLAIMS[sampler]
    n_passes = 6000 // length
    seen = np.zeros(B)
    for draws in _passes(sampler, n_passes):
        for draw in draws:
            seen[list(draw)] += 1
    n = n_passes * length
    spread = np.sqrt(n * claimed * (1 - claimed))
    assert (abs(seen - n * claimed) <= 4.5 * spread + 1e-9).all(), (seen / n, claimed)


@pytest.mark.parametrize("sampler", [Shuffled(), Cyclic()], ids=repr)
def test_without_replacement_each_block_is_drawn_once_per_pass(sampler):
    assert all(sorted(draws) == [(b,) for b in range(B)] for draws in _passes(sampler, 200))


def test_shuffled_orders_are_all_equally_likely_and_fresh():
    rng = np.random.default_rng(7)
    seen = Counter(tuple(Shuffled().draws(BLOCKS[:3], M, rng)) for _ in range(3000))
    assert set(seen) == {tuple((b,) for b in order) for order in itertools.permutations(range(3))}
    assert chisquare(list(seen.values())).pvalue > ALPHA


def test_cyclic_keeps_the_order_of_the_partition():
    assert _passes(Cyclic(), 2) == [[(b,) for b in range(B)]] * 2


@pytest.mark.parametrize("sampler", [Uniform(), Importance()], ids=repr)
def test_successive_draws_are_independent(sampler):
    claimed, _ = CLAIMS[sampler]
    pairs = np.zeros((B, B))
    for draws in _passes(sampler, 3000):
        pairs[draws[0][0], draws[1][0]] += 1
    expected = 3000 * np.outer(claimed, claimed)
    assert chisquare(pairs.ravel(), expected.ravel()).pvalue > ALPHA


def test_nice_subsets_are_all_equally_likely():
    seen = Counter(draw for draws in _passes(Nice(2), 1000) for draw in draws)
    assert set(seen) == set(itertools.combinations(range(B), 2))
    assert chisquare(list(seen.values())).pvalue > ALPHA


@EACH
def test_width_is_the_largest_draw(sampler):
    rng = np.random.default_rng(3)
    for n in range(1, B + 1):
        assert sampler.width(n) == max(len(draw) for draw in sampler.draws(BLOCKS[:n], M, rng))


@EACH
def test_only_the_generator_decides(sampler):
    assert _passes(sampler, 20) == _passes(sampler, 20)
    assert pickle.loads(pickle.dumps(sampler)) == sampler  # noqa: S301  # our own
    before = M.copy()
    _passes(sampler, 1)
    np.testing.assert_array_equal(M, before)


@EACH
def test_another_seed_gives_another_order_if_there_are_several(sampler):
    fixed = isinstance(sampler, Cyclic | Full) or sampler == Nice(9)
    assert (_passes(sampler, 20, seed=1) == _passes(sampler, 20, seed=2)) is fixed


def test_importance_depends_on_ratios_only():
    rng = np.random.default_rng(2)
    scaled = [Importance().draws(BLOCKS, 1e-200 * M, rng) for _ in range(20)]
    assert scaled == _passes(Importance(), 20, seed=2)


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_are_found_by_name(name):
    tau = 2 if name == "nice" else None
    assert type(sampler_of(name, tau)) is SAMPLERS[name]


@pytest.mark.parametrize(
    ("name", "tau", "said"),
    [
        ("shufled", None, "did you mean 'shuffled'"),
        ("random", None, "known: .*cyclic"),
        ("nice", None, "needs tau"),
        ("full", 2, "no other sampling takes it"),
        ("nice", 0, "at least 1"),
        ("nice", -3, "at least 1"),
        ("nice", 2.5, "tau"),
        ("nice", math.nan, "tau"),
    ],
)
def test_an_invalid_sampling_is_refused(name, tau, said):
    with pytest.raises(SpecificationError, match=said):
        sampler_of(name, tau)


@pytest.mark.parametrize("sampler", [s for s in CLAIMS if s.width(B) == 1], ids=repr)
def test_grouping_makes_one_visit_per_owner_and_keeps_the_order_within(sampler):
    for draws in _passes(sampler, 100):
        grouped = grouped_by_owner(draws, BLOCKS)
        owners = [BLOCKS[draw[0]].party for draw in grouped]
        assert Counter(grouped) == Counter(draws)
        in_order = list(dict.fromkeys(block.party for block in BLOCKS))
        assert [owner for owner, _ in itertools.groupby(owners)] == [owner for owner in in_order if owner in owners]
        for owner in set(owners):
            mine = [draw for draw in draws if BLOCKS[draw[0]].party == owner]
            assert [draw for draw in grouped if BLOCKS[draw[0]].party == owner] == mine


def test_grouping_an_empty_pass_is_empty():
    assert grouped_by_owner([], BLOCKS) == []
