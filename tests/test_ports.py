"""Ports of tests: each is given once, and worker processes have disjoint ones."""

from __future__ import annotations

from tests.ports import FIRST, LAST, candidate, free_port


def test_ports_are_given_once() -> None:
    given = [free_port() for _ in range(20)]
    assert len(set(given)) == 20
    assert all(FIRST <= port < LAST for port in given)


def test_workers_have_disjoint_ports() -> None:
    ports = [{candidate(k, worker, 3) for k in range(20_000)} for worker in range(3)]
    assert sum(map(len, ports)) == len(set.union(*ports)) == LAST - FIRST
