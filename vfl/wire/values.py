"""Plain values as bytes and back.

Guarantee. `parse` builds tuples, text, truth values, numbers, bytes and None, and nothing else. It raises WireError for any
other input, and its memory is bounded by a multiple of the input's length. vfl.kinds then builds registered kinds from the
plain values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from vfl.errors import FederationError
from vfl.wire.federation_pb2 import Value, Values

if TYPE_CHECKING:
    from vfl.messages.kinds import Plain

DEEPEST = 24
"""Levels of tuples in one another; the deepest message has ten."""
LARGEST_WHOLE = 512
"""Bytes of a whole number. A noisy score without noise has up to 2,200 bits."""

_SMALL = range(-(1 << 63), 1 << 63)


class WireError(FederationError):
    """Bytes that came are no message of this protocol, or not the one that was due; the session ends."""


def serialise(plain: Plain) -> bytes:
    """Return a plain tuple as bytes. Raises WireError for a value that is not plain."""
    data: bytes = _value(plain, 0).SerializeToString()
    return data


def parse(data: bytes | bytearray | memoryview) -> Plain:
    """Return the plain tuple in the bytes. Raises WireError."""
    value = Value()
    try:
        value.ParseFromString(bytes(data))
    except (DecodeError, ValueError):  # ValueError: text that is not UTF-8
        raise WireError("a message came that is not in the format of the wire") from None
    plain = _plain(value, 0)
    if type(plain) is not tuple:
        raise WireError("a message came that is not in the format of the wire")
    return plain


def _value(plain: Any, depth: int) -> Value:
    kind = type(plain)
    if kind is tuple:
        if depth >= DEEPEST:
            raise WireError(f"a message is nested in more than {DEEPEST} levels")
        return Value(tuple=Values(items=[_value(item, depth + 1) for item in plain]))
    if kind is bytes:
        return Value(octets=plain)
    if kind is float:
        return Value(number=plain)
    if kind is int:
        return Value(whole=plain) if plain in _SMALL else Value(large=_large(plain))
    if kind is str:
        return Value(text=plain)
    if kind is bool:
        return Value(flag=plain)
    if plain is None:
        return Value()
    raise WireError(f"a {kind.__name__} is not plain and cannot travel")


def _large(number: int) -> bytes:
    size = number.bit_length() // 8 + 1
    if size > LARGEST_WHOLE:
        raise WireError(f"a whole number of more than {LARGEST_WHOLE} bytes cannot travel")
    return number.to_bytes(size, "big", signed=True)


def _plain(value: Value, depth: int) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "tuple":
        if depth >= DEEPEST:
            raise WireError(f"a message came that is nested in more than {DEEPEST} levels")
        return tuple([_plain(item, depth + 1) for item in value.tuple.items])
    if kind is None:
        return None
    if kind == "large":
        data = value.large
        number = int.from_bytes(data, "big", signed=True)
        if len(data) > LARGEST_WHOLE or number in _SMALL or _large(number) != data:
            raise WireError("a whole number came that is too long, or longer than needed")
        return number
    return getattr(value, kind)
