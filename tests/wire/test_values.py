"""Plain values travel unchanged; anything else is refused, whatever the bytes."""

from __future__ import annotations

import math
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfl.network.wire.federation_pb2 import Value, Values
from vfl.network.wire.values import DEEPEST, MOST_VALUES, WireError, parse, serialise, varint

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 2100), 1 << 2100),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
)
PLAIN = st.recursive(SCALARS, lambda inner: st.lists(inner).map(tuple), max_leaves=30).map(lambda value: (value,))


@settings(deadline=None)
@given(PLAIN)
def test_plain_values_travel_unchanged(plain) -> None:
    back = parse(serialise(plain))
    assert back == plain
    assert repr(back) == repr(plain)  # True is not 1, -0.0 is not 0.0


def generated(plain) -> Value:
    """Return the value as the generated class holds it."""
    kind = type(plain)
    if kind is tuple:
        return Value(tuple=Values(items=[generated(item) for item in plain]))
    if kind is int and not -(1 << 63) <= plain < 1 << 63:
        return Value(large=plain.to_bytes(plain.bit_length() // 8 + 1, "big", signed=True))
    field = {bytes: "octets", float: "number", int: "whole", str: "text", bool: "flag"}.get(kind)
    return Value() if field is None else Value(**{field: plain})


@settings(deadline=None)
@given(PLAIN)
def test_the_bytes_are_those_of_the_definitions(plain) -> None:
    """They are put together by hand, and are what the generated class writes."""
    assert serialise(plain) == generated(plain).SerializeToString()


def test_nan_travels() -> None:
    (back,) = parse(serialise((math.nan,)))
    assert math.isnan(back)


@pytest.mark.parametrize(
    "value",
    [[1], {"a": 1}, object(), 1j, bytearray(b"x"), 1 << 4200, "\ud800"],
    ids=["list", "dict", "object", "complex", "bytearray", "too large", "surrogate"],
)
def test_other_values_do_not_travel(value) -> None:
    with pytest.raises(WireError):
        serialise((value,))


class TestNumbers:
    """The number of values is limited before any is built: one of two bytes takes up to 70 bytes of memory."""

    @pytest.mark.parametrize("item", [None, (), True, 7, "a", b"", (None,)], ids=repr)
    def test_as_many_as_allowed_and_no_more(self, item) -> None:
        each = 2 if item == (None,) else 1
        data = serialise((item,) * 1000)
        assert parse(data, 1000 * each) == (item,) * 1000
        with pytest.raises(WireError, match=f"more than {1000 * each - 1} values"):
            parse(data, 1000 * each - 1)

    def test_a_body_of_16_mebibytes_is_refused_without_building_it(self) -> None:
        content = b"\x0a\x00" * (1 << 23)
        data = b"\x32" + varint(len(content)) + content
        with pytest.raises(WireError, match=f"more than {MOST_VALUES} values"):
            parse(data)

    @pytest.mark.parametrize("key", [b"\x8a\x00", b"\x8a\x80\x00", b"\x8a\x80\x80\x80\x10"])
    def test_keys_spelt_longer_than_needed_are_counted(self, key) -> None:
        content = (key + b"\x00") * 1000
        with pytest.raises(WireError):
            parse(b"\x32" + varint(len(content)) + content, 500)

    def test_content_that_looks_like_keys_is_not_counted(self) -> None:
        plain = ("\n" * 5000, b"\x0a\x8a" * 5000, (10.0,))
        assert parse(serialise(plain), 10) == plain

    @pytest.mark.parametrize("cut", [1, 3, 2001])
    def test_a_message_that_is_cut_off_is_refused(self, cut) -> None:
        with pytest.raises(WireError):
            parse(serialise((None,) * 1000)[:-cut], 10)


def nested(depth: int) -> Value:
    value = Value(whole=1)
    for _ in range(depth):
        value = Value(tuple=Values(items=[value]))
    return value


def test_deep_messages_are_refused() -> None:
    parse(nested(DEEPEST).SerializeToString())
    for depth in (DEEPEST + 1, 49, 5000):
        data = b""
        for _ in range(depth):  # by hand: the library refuses to write what it would not read
            data = _field(6, _field(1, data))
        with pytest.raises(WireError):
            parse(data)


def _field(number: int, data: bytes) -> bytes:
    size, out = len(data), bytearray([number << 3 | 2])
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(out + bytes([size]) + data)


@pytest.mark.parametrize("large", [b"", b"\x01", b"\x00" * 20, b"\x7f" * 513], ids=len)
def test_whole_numbers_have_one_spelling(large) -> None:
    with pytest.raises(WireError):
        parse(Value(tuple=Values(items=[Value(large=large)])).SerializeToString())


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_plain(data) -> None:
    _refused_or_plain(data)


def _refused_or_plain(data: bytes) -> bool:
    try:
        plain = parse(data)
    except WireError:
        return False
    assert _is_plain(plain)
    return True


def _is_plain(value) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str, bytes)


def test_mutated_messages_are_refused_or_plain() -> None:
    fuzz(3000)


def fuzz(count: int, seed: int = 0) -> dict[str, int]:
    """Parse mutated and random bytes; return how many were plain and how many were refused."""
    rng = random.Random(seed)  # noqa: S311 - a test
    sample = (1, "backward", ("norm", 1.0, 3), (("bank", b"\x00" * 64),), None, True, -5, 1 << 80, ((),), "é")
    good = serialise(sample)
    counts = {"plain": 0, "refused": 0}
    for _ in range(count):
        if rng.random() < 0.2:
            data = rng.randbytes(rng.randrange(120))
        else:
            mutated = bytearray(good)
            for _ in range(rng.randrange(1, 6)):
                at = rng.randrange(len(mutated))
                match rng.randrange(4):
                    case 0:
                        mutated[at] = rng.randrange(256)
                    case 1:
                        del mutated[at : at + rng.randrange(1, 8)]
                    case 2:
                        mutated[at:at] = rng.randbytes(rng.randrange(1, 8))
                    case 3:
                        mutated[at:at] = mutated[rng.randrange(len(mutated)) :][:20]
                if not mutated:
                    break
            data = bytes(mutated)
        counts["plain" if _refused_or_plain(data) else "refused"] += 1
    return counts


if __name__ == "__main__":
    print(fuzz(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
