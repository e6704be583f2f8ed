"""Bytes between coordinator and parties."""

from __future__ import annotations

import numpy as np

from coordinator.transport import Traffic
from vfl.queries import Records, Reply

N = 50


def replied(seconds: float) -> Reply:
    return Reply((), np.zeros(N), None, seconds)


def test_constants_count_once() -> None:
    """Labels and limits count once per party and value, and again for a party that was started anew."""
    traffic, labels = Traffic(), np.ones(N)
    records = Records(margins=np.zeros(N), labels=labels, limits=np.ones(2 * N))
    both = {"bank": replied(1.0), "telco": replied(3.0)}
    traffic.count(records, both)
    assert traffic.n_bytes == 8 * N * (2 * 2 + 2 * 3)
    traffic.count(records, both)
    assert traffic.n_bytes == 8 * N * (4 * 2 + 2 * 3)
    assert traffic.party_seconds == 6.0
    traffic.forget("bank")
    traffic.count(records, {"bank": replied(0.0)})
    assert traffic.n_bytes == 8 * N * (5 * 2 + 3 * 3)
    traffic.count(Records(labels=labels.copy()), {"bank": replied(0.0)})
    assert traffic.n_bytes == 8 * N * (5 * 2 + 3 * 3 + 2)


def test_small_constants_travel_inline() -> None:
    """Labels and limits that travel with every query count every time."""
    traffic, records = Traffic(inline=8 * N), Records(labels=np.ones(N), limits=np.ones(2 * N))
    for _ in range(3):
        traffic.count(records, {"bank": Reply((), None, None, 0.0)})
    assert traffic.n_bytes == 8 * N * (3 * 1 + 2)
