"""The guard against slow code fails on what has doubled twice in a row, and on nothing else."""

from __future__ import annotations

import json
import math

import pytest

from tests.benchmarks import guard


def measures(*rounds):
    """Return a measure that gives these ratios, one after the other."""
    given = iter(rounds)
    return (lambda: next(given),)


@pytest.mark.parametrize(
    ("rounds", "failed"),
    [
        ([{"a": 1.0}], {}),
        ([{"a": 1.99}], {}),
        ([{"a": 2.5}, {"a": 1.5}], {}),
        ([{"a": 2.5}, {"a": 2.1}], {"a": 2.1}),
        ([{"a": 9.0, "b": 0.1}, {"a": 8.0, "b": 9.0}], {"a": 8.0}),
        ([{"new": 9.0}], {}),
    ],
)
def test_what_doubles_twice_fails(rounds, failed, capsys):
    assert guard.check(measures(*rounds), {"a": 1.0, "b": 0.1}) == failed


def test_every_ratio_has_a_record(monkeypatch):
    rates = guard.ledger.rates
    monkeypatch.setattr(guard, "TURNS", 1)
    monkeypatch.setattr(guard.ledger, "rates", lambda entries, folder: rates(2, folder))
    recorded = json.loads(guard.RECORD.read_text(encoding="utf-8"))
    assert all(math.isfinite(ratio) and ratio > 0 for ratio in recorded.values())
    quick = {**guard.pass_over_bare(), **guard.charge_over_insert()}
    assert set(quick) < set(recorded)
    assert len(recorded) == 13


def test_slow_code_is_noticed(monkeypatch, capsys):
    fast = guard.ours.gradient
    monkeypatch.setattr(guard, "TURNS", 5)
    found = guard.pass_over_bare()
    monkeypatch.setattr(guard.ours, "gradient", lambda *given: [fast(*given) for _ in range(6)][-1])
    assert guard.doubled(guard.pass_over_bare(), found)
