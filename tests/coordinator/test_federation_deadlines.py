"""Messages that arrive slowly, or never end: the total time of each is limited, at the coordinator and at a party."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from coordinator.federation import gathering as links
from parties.joined import serving
from tests.coordinator.organisations import Joined, federation
from tests.coordinator.test_federation_abuse import Raw, open_to, raw
from vfl.errors import PartyLost
from vfl.network.kinds import to_plain
from vfl.network.messages import Done, Introduce, Multiply
from vfl.network.wire.federation_pb2 import FromParty, Head, Piece, Progress, ToParty
from vfl.network.wire.frames import PIECE, SLOWEST, frames
from vfl.network.wire.streams import StreamBroken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coordinator.federation.gathering import Answer

LIMIT, PAUSE = 0.5, 0.1
SOON, LONG = 2.5, 5.0
"""Seconds within which a party counts as lost, and for which the other end goes on."""


@pytest.fixture
def joined(tmp_path) -> Iterator[Joined]:
    with federation(tmp_path) as joined:
        yield joined


def slowly(made: Raw, each: Callable[[int, int], Any], head: Callable[[int], Any] | None = None) -> threading.Thread:
    """Answer the next call with one frame per PAUSE; each : (number of the call, count) → frame."""

    def work() -> None:
        call, until = made.next().head.call, time.monotonic() + LONG
        if head is not None:
            made.send(head(call))
        count = 0
        while time.monotonic() < until and not stop.is_set():
            count += 1
            made.send(each(call, count))
            stop.wait(PAUSE)

    stop = threading.Event()
    thread = threading.Thread(target=work)
    thread.stop = stop.set  # type: ignore[attr-defined]
    thread.start()
    return thread


def lost_after(answer: Answer, working: Any) -> float:
    began = time.monotonic()
    try:
        with pytest.raises(PartyLost):
            answer.wait(LIMIT)
        return time.monotonic() - began
    finally:
        working.stop()
        working.join()


SLOW: dict[str, tuple[object, dict[str, Any], Any, Any]] = {
    "progress where none is due": (
        Introduce(),
        {},
        lambda call, k: FromParty(progress=Progress(call=call, done=k)),
        None,
    ),
    "a byte at a time": (
        Introduce(),
        {},
        lambda call, _: FromParty(piece=Piece(call=call, data=b"x")),
        lambda call: FromParty(head=Head(call=call, body=1000)),
    ),
    "progress that does not advance": (
        Multiply("bank", "bank"),
        {"progress": lambda _: None, "steps": 100_000},
        lambda call, _: FromParty(progress=Progress(call=call, done=1)),
        None,
    ),
    "progress by one step": (
        Multiply("bank", "bank"),
        {"progress": lambda _: None, "steps": 100},
        lambda call, k: FromParty(progress=Progress(call=call, done=k)),
        None,
    ),
    "more steps than there are": (
        Multiply("bank", "bank"),
        {"progress": lambda _: None, "steps": 10},
        lambda call, k: FromParty(progress=Progress(call=call, done=100 * k)),
        None,
    ),
}


@pytest.mark.parametrize("case", SLOW)
def test_an_answer_ends_in_time(joined, case: str) -> None:
    message, options, each, head = SLOW[case]
    with open_to(joined) as gathering, raw(joined) as made:
        made.next()
        working = slowly(made, each, head)
        assert lost_after(gathering.link("bank", 0.0).call(message, **options), working) < SOON


def test_progress_that_is_due_restarts_the_limit(joined) -> None:
    with open_to(joined) as gathering, raw(joined) as made:
        made.next()
        seen: list[int] = []
        answer = gathering.link("bank", 0.0).call(Multiply("bank", "bank"), progress=seen.append, steps=10_000)

        def work() -> None:
            call = made.next().head.call
            for k in range(1, 6):
                time.sleep(0.4 * LIMIT)
                made.send(FromParty(progress=Progress(call=call, done=k)))
            made.send(*frames(call, to_plain(Done())))

        working = threading.Thread(target=work)
        working.start()
        assert isinstance(answer.wait(LIMIT)[0], Done)
        working.join()
        assert seen == [1, 2, 3, 4, 5]


def test_bytes_have_time_on_a_slow_link(joined) -> None:
    """The rest of an answer that takes longer than the limit at SLOWEST may come after the limit."""
    size = 3 * PIECE
    with open_to(joined) as gathering, raw(joined) as made:
        made.next()
        limits = links.Limits(links.SENTENCE, {"vector": size})
        answer = gathering.link("bank", 0.0).call(Introduce(), limits=limits)

        def work() -> None:
            first, *rest = frames(made.next().head.call, to_plain(Done()), {"vector": np.zeros(size, np.uint8)})
            made.send(first)
            time.sleep(1.5 * LIMIT)
            made.send(*rest)

        working = threading.Thread(target=work)
        working.start()
        assert answer.wait(LIMIT)[1]["vector"].nbytes == size < 1000 * SLOWEST
        working.join()


def test_a_party_that_reads_nothing_loses_its_stream(joined, monkeypatch) -> None:
    monkeypatch.setattr(links, "SLOWEST", 1 << 40)
    with open_to(joined) as gathering, raw(joined) as made:
        made.next()
        answer = gathering.link("bank", 0.0).call(Introduce(), vectors={"payload": np.zeros(1 << 27, np.uint8)})
        with pytest.raises(PartyLost):
            answer.wait(LIMIT)
        time.sleep(0.5)
        seen: list[ToParty] = []
        with contextlib.suppress(StreamBroken):
            seen.extend(iter(made.next, None))
        assert len(seen) < 100  # of 128


def test_a_call_ends_in_time_at_the_party(joined, monkeypatch) -> None:
    monkeypatch.setattr(serving, "STALL_SECONDS", LIMIT)
    joined.start("bank", {"": None}, longest_pause=60.0)
    with open_to(joined) as gathering:
        link = gathering.link("bank", 20.0)

        def drops() -> Iterator[bytes]:
            yield ToParty(head=Head(call=1, body=1000)).SerializeToString()
            until = time.monotonic() + LONG
            while time.monotonic() < until and not link.ended:
                time.sleep(PAUSE)
                yield ToParty(piece=Piece(call=1, data=b"x")).SerializeToString()

        began = time.monotonic()
        link._out.put(drops())
        while not link.ended and time.monotonic() < began + LONG:
            time.sleep(PAUSE)
        assert time.monotonic() - began < SOON
