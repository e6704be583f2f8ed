"""The secret draw has the probabilities that the theorem assumes."""

from __future__ import annotations

import math
import random

import pytest

from vfl.apps.tuning.sealed import chosen


def draws(losses, concentration, n, seed=0):
    source = random.Random(seed)  # noqa: S311  # a repeatable draw for a test
    counts = [0] * len(losses)
    for _ in range(n):
        counts[chosen(losses, concentration, source.randbytes)] += 1
    return [count / n for count in counts]


@pytest.mark.parametrize("a", [1, 4])
def test_the_winner_has_the_probabilities_of_the_theorem(a):
    """Candidate i of rank r wins with E[P(1 − P)^r]; nobody is included with E[(1 − P)^m], and then the first wins."""
    m, n = 4, 20_000
    found = draws([0.3, 0.1, 0.4, 0.2], a, n)

    def beta(x, y):
        return math.gamma(x) * math.gamma(y) / math.gamma(x + y)

    ranked = [a * beta(a + 1, r + 1) for r in range(m)]
    expected = [ranked[2] + a * beta(a, m + 1), ranked[0], ranked[3], ranked[1]]
    assert sum(expected) == pytest.approx(1.0)
    assert found == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(n))


def test_equal_losses_win_equally_often():
    losses = [0.5, 0.5, 0.5]
    found = draws(losses, 4, 6_000)
    nobody = math.gamma(4) * 4 * math.gamma(4) / math.gamma(8)
    assert found == pytest.approx([(1 - nobody) / 3 + nobody, *[(1 - nobody) / 3] * 2], abs=0.03)


def test_with_nobody_included_the_first_candidate_wins():
    low, high = bytes(32), b"\xff" * 32
    answers = iter([low, high, high, high, *[low] * 3])
    assert chosen([3.0, 1.0, 2.0], 1, lambda _: next(answers)) == 0


def test_a_candidate_that_failed_loses_against_every_other():
    answers = iter([b"\xff" * 32, *[bytes(32)] * 6])
    assert chosen([math.inf, 5.0, math.inf], 1, lambda _: next(answers)) == 1
