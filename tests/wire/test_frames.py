"""Calls travel in frames whose sizes are checked before memory is taken."""

from __future__ import annotations

import random
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfl.network.wire import frames as module
from vfl.network.wire.federation_pb2 import FromParty, Head, Piece, ToParty, Vector
from vfl.network.wire.frames import LARGEST_FRAME, PIECE, Constant, IncomingCall, Limits, as_vector, frames, parsed
from vfl.network.wire.values import WireError

LIMITS = Limits(1 << 20, dict.fromkeys(("a", "b", "labels", "limits"), 1 << 26))


def received(sent, way=ToParty, limits=LIMITS, held=None) -> IncomingCall:
    first, *rest = sent
    frame, content = parsed(way, first)
    incoming = IncomingCall(frame.head, content, limits, {} if held is None else held)
    for data in rest:
        assert not incoming.complete
        frame, content = parsed(way, data)
        assert frame.WhichOneof("frame") == "piece"
        incoming.feed(content)
    return incoming


@settings(deadline=None, max_examples=200)
@given(
    st.integers(1, 1 << 40),
    st.lists(st.integers(0, 40), max_size=2),
    st.binary(max_size=300),
    st.integers(1, 50),
)
def test_calls_arrive_as_they_were_sent(call, sizes, body, piece) -> None:
    vectors = {
        name: np.random.default_rng(k).normal(size=n) for k, (name, n) in enumerate(zip("ab", sizes, strict=False))
    }
    before = module.PIECE
    module.PIECE = piece
    try:
        for way in (ToParty, FromParty):
            incoming = received(list(frames(call, (1, body), vectors)), way)
            assert incoming.complete
            assert incoming.call == call
            assert incoming.plain == (1, body)
            assert {k: as_vector(v).tobytes() for k, v in incoming.vectors.items()} == {
                k: v.tobytes() for k, v in vectors.items()
            }
    finally:
        module.PIECE = before


def test_the_frames_are_those_of_the_definitions() -> None:
    """They are put together by hand, and are what the generated classes write and read."""
    first, second = frames(7, (b"x" * PIECE,), {"a": np.arange(3.0)})
    head = ToParty.FromString(first).head
    piece = ToParty.FromString(second).piece
    assert (head.call, [v.name for v in head.vectors], len(head.inline)) == (7, ["a"], PIECE)
    assert ToParty(head=head).SerializeToString() == first
    assert ToParty(piece=piece).SerializeToString() == second
    assert max(map(len, (first, second))) < LARGEST_FRAME
    for data in (first, second):
        frame, content = parsed(ToParty, data)
        other = ToParty.FromString(data)
        kind = other.WhichOneof("frame")
        assert kind == frame.WhichOneof("frame")
        assert bytes(content) == (other.head.inline if kind == "head" else other.piece.data)
    assert set(head.pad) <= {0}
    # Another order of the fields is read too.
    odd = b"\x1a" + bytes([5]) + b"\x7a\x01z\x08\x07"
    frame, content = parsed(ToParty, odd)
    assert (frame.piece.call, bytes(content)) == (7, b"z")


@settings(deadline=None)
@given(st.binary(max_size=20), st.integers(1, 9))
def test_small_vectors_are_not_copied(body, n) -> None:
    (data,) = frames(1, (body,), {"a": np.arange(float(n)), "b": np.arange(3.0)})
    frame, content = parsed(ToParty, data)
    incoming = IncomingCall(frame.head, content, LIMITS, {})
    for name, size in (("a", n), ("b", 3)):
        vector = as_vector(incoming.vectors[name])
        assert np.shares_memory(vector, np.frombuffer(data, np.uint8))
        assert vector.ctypes.data % 8 == 0
        np.testing.assert_array_equal(vector, np.arange(float(size)))


def test_constants_travel_once() -> None:
    held: dict = {}
    vector = np.arange(5.0)
    first = received(list(frames(1, (1,), {"labels": Constant(vector, b"d" * 32)})), held=held)
    again = list(frames(2, (1,), {"labels": Constant(vector, b"d" * 32, held=True)}))
    assert sum(map(len, again)) < 100
    second = received(again, held=held)
    assert second.complete
    assert second.vectors["labels"] is first.vectors["labels"]
    for head in (
        Head(call=3, body=1, vectors=[Vector(name="labels", size=40, digest=b"e" * 32, held=True)]),
        Head(call=3, body=1, vectors=[Vector(name="labels", size=48, digest=b"d" * 32, held=True)]),
        Head(call=3, body=1, vectors=[Vector(name="limits", size=40, digest=b"d" * 32, held=True)]),
    ):
        with pytest.raises(WireError, match="not held here"):
            IncomingCall(head, memoryview(b""), LIMITS, held)


@pytest.mark.parametrize(
    "head",
    [
        Head(call=1, body=(1 << 20) + 1),
        Head(call=1, body=1 << 60),
        Head(call=1, body=1, vectors=[Vector(name="a", size=(1 << 26) + 1)]),
        Head(call=1, body=1, vectors=[Vector(name="c", size=1)]),
        Head(call=1, body=1, vectors=[Vector(name="a", size=1), Vector(name="a", size=1)]),
        Head(call=1, body=1, vectors=[Vector(name="a", size=1 << 25)] * 17),
    ],
    ids=str,
)
def test_sizes_are_checked_before_memory_is_taken(head) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            IncomingCall(head, memoryview(b""), LIMITS, {})
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_no_byte_beyond_what_was_announced() -> None:
    incoming = IncomingCall(Head(call=1, body=3), memoryview(b"ab"), LIMITS, {})
    with pytest.raises(WireError, match="longer than announced"):
        incoming.feed(memoryview(b"cd"))
    with pytest.raises(WireError, match="longer than announced"):
        IncomingCall(Head(call=1), memoryview(b"x"), LIMITS, {})


def test_vectors_are_read_only_and_whole() -> None:
    raw = np.zeros(16, np.uint8)
    with pytest.raises(ValueError, match="read-only"):
        as_vector(raw)[0] = 1.0
    with pytest.raises(WireError, match="within an entry"):
        as_vector(np.zeros(9, np.uint8))


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_random_bytes_are_a_frame_or_are_refused(data) -> None:
    _tried(data)


def _tried(data: bytes) -> bool:
    """Return whether the bytes are a frame. Both readers agree on it."""
    for way in (ToParty, FromParty):
        try:
            frame, content = parsed(way, data)
        except WireError:
            continue
        kind = frame.WhichOneof("frame")
        if kind == "head":
            try:
                incoming = IncomingCall(frame.head, content, Limits(256, {"a": 256}), {})
            except WireError:
                return False
            if incoming.complete:
                try:
                    incoming.plain  # noqa: B018
                except WireError:
                    return False
        return kind is not None
    return False


def test_mutated_frames_are_frames_or_are_refused() -> None:
    fuzz(3000)


def fuzz(count: int, seed: int = 0) -> dict[str, int]:
    """Read mutated and random bytes as frames; return how many were frames and how many were refused."""
    rng = random.Random(seed)  # noqa: S311 - a test
    sent = list(frames(300, (1, "backward", b"\x00" * 40, (None, 2.5)), {"a": np.arange(9.0)}))
    sent.append(ToParty(piece=Piece(call=3, data=b"abc")).SerializeToString())
    counts = {"frames": 0, "refused": 0}
    for _ in range(count):
        data = bytearray(rng.choice(sent))
        for _ in range(rng.randrange(1, 5)):
            at = rng.randrange(len(data) or 1)
            match rng.randrange(3):
                case 0 if data:
                    data[at] = rng.randrange(256)
                case 1:
                    del data[at : at + rng.randrange(1, 6)]
                case _:
                    data[at:at] = rng.randbytes(rng.randrange(1, 6))
        counts["frames" if _tried(bytes(data)) else "refused"] += 1
    return counts


if __name__ == "__main__":
    print(fuzz(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
