"""The cost model counts the bytes that the participants of a session receive."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.secure.session import model, session
from vfl.secure import cost, sigmoid


@pytest.mark.parametrize(("m", "k"), [(2, 1), (3, 1), (5, 3)])
def test_bytes_by_leg_are_those_that_were_received(m, k):
    n, p, versions = 40, 3, 2
    run = session(m, k, n=n, p=p)
    number = 0
    for owner in run.roles.parties:
        run.set_up(owner, 0, p)
    for seed in range(versions):
        version = run.share(model(run, seed))
        for owner in run.roles.parties:
            run.residuals(version, owner)
            number += 1
            run.open(version, owner, 0, p, number)
    received: Counter[str] = Counter()
    for view in run.views.values():
        for leg, _, array in view:
            received[leg] += array.nbytes
    terms = sigmoid.SERIES[2].terms
    found = cost.logistic(
        run.roles,
        n,
        dict.fromkeys(run.roles.parties, p),
        terms,
        dict.fromkeys(run.roles.parties, versions),
        number * p,
    )
    assert found.setup == received["set-up"]
    assert found.angles == received["angles"]
    assert found.waves == received["waves"]
    assert found.checks == received["opened masks"] + received["opened rows"]
    assert found.residuals == received["residual"]
    assert found.openings == received["opening"] + received["sum"]
    assert found.total == sum(received.values())


def test_products_cost_their_masked_columns_and_three_words_per_entry():
    found = cost.gram(session(3, 1).roles, 100, {"party-0": 2, "party-1": 3, "party-2": 1})
    assert found.setup == 8 * 100 * 6 * 2
    assert found.openings == 8 * (3 * (2 * 3 + 2 * 1 + 3 * 1) + 4 + 9 + 1)


def test_seconds_follow_the_slowest_rate():
    roles = session(2, 1).roles
    found = cost.logistic(roles, 10**6, {"party-0": 10, "party-1": 10}, 6, {"party-0": 100, "party-1": 100}, 2000)
    slow = cost.seconds(found, cost.Speeds(link=1.25e7), 10**6, 6, 100, 2000)
    assert slow == pytest.approx(found.total / 1.25e7, rel=0.05)
    fast = cost.seconds(found, cost.Speeds(link=1e15), 10**6, 6, 100, 2000)
    assert fast == pytest.approx(100 * 96e6 / 3e9 + 2.0, rel=1e-4)
