"""Decisions about lost parties, without processes."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.rounds import LOSSES_A_QUERY, Recovery
from vfl.errors import PartyLost
from vfl.job.site import Faults
from vfl.messages import Greeting


class OneProcess:
    """Transport to three parties of one process, which always come back."""

    def __init__(self) -> None:
        self.revived: list[str] = []

    def together(self, party: str) -> tuple[str, ...]:
        return (party, *(name for name in "abc" if name != party))

    def revive(self, party: str, seconds: float) -> Greeting:
        del seconds
        self.revived.append(party)
        return Greeting("1", 0)


def recovery(policy: str) -> tuple[Recovery, OneProcess, list[str]]:
    transport, welcomed = OneProcess(), list[str]()
    faults: Any = Faults(on_party_lost=policy)
    return Recovery(transport, faults, lambda name, _: welcomed.append(name), keep="a"), transport, welcomed  # type: ignore[arg-type]


def test_all_parties_of_a_lost_process_are_restored_at_once() -> None:
    decided, transport, welcomed = recovery("wait")
    assert decided.restored(PartyLost("gone", "b"), 1)
    assert transport.revived == welcomed == ["b", "a", "c"]


def test_a_party_that_was_given_up_stays_out_when_its_process_is_lost_again() -> None:
    decided, transport, welcomed = recovery("skip")
    assert not decided.restored(PartyLost("gone", "b"), LOSSES_A_QUERY + 1)
    assert decided.restored(PartyLost("gone", "c"), 1)
    assert transport.revived == welcomed == ["c", "a"]


def test_the_label_party_is_never_given_up() -> None:
    decided, transport, _ = recovery("skip")
    with pytest.raises(PartyLost, match="vfl resume"):
        decided.restored(PartyLost("gone", "a"), LOSSES_A_QUERY + 1)
    assert transport.revived == []
