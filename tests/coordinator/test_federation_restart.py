"""A party that is started again between two calls is lost: its new process knows nothing of the run."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.federation.transport import FederationTransport
from vfl.errors import PartyLost
from vfl.network.messages import Greeting


class Stream:
    """A party's stream, which answers every call with a greeting."""

    version = "1"

    def __init__(self, process: bytes) -> None:
        self.process = process

    def call(self, *_: object, **__: object) -> Stream:
        return self

    def wait(self, seconds: float) -> tuple[Greeting, dict[str, Any]]:
        return Greeting("1", 3), {}


class Streams:
    """The streams of a federation, of which tests replace one."""

    def __init__(self) -> None:
        self.open = {"bank": Stream(b"first"), "telco": Stream(b"other")}

    def connected(self) -> dict[str, Stream]:
        return dict(self.open)

    def link(self, party: str, seconds: float) -> Stream:
        return self.open[party]


def test_a_party_that_was_started_again_is_lost_until_the_run_is_offered_to_it() -> None:
    streams, offered = Streams(), list[Any]()
    transport = FederationTransport(
        streams,  # type: ignore[arg-type]
        ("bank", "telco"),
        offer=offered.append,
        parts=lambda n: (n, 0),
        timeout=1.0,
        load_seconds=1.0,
    )
    transport.greet()
    streams.open["bank"] = Stream(b"second")
    with pytest.raises(PartyLost, match=r"'bank'.*started again") as lost:
        transport.greet()
    assert lost.value.party == "bank"
    assert offered == []
    assert transport.revive("bank", 1.0) == Greeting("1", 3)
    assert [stream.process for stream in offered] == [b"second"]
    transport.greet()
