"""Conversion of plain values (nested tuples of text and numbers) to bytes and back.

Guarantee. `parse` builds only tuples, text, truth values, numbers, bytes and None, and raises WireError for any other input.
The reader counts the values before it builds any value. Its memory is therefore bounded by the length of the input and the
number of values that the caller allows. vfl.network.kinds then builds objects of registered kinds from the plain values.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from vfl.errors import FederationError
from vfl.network.wire.federation_pb2 import Value

if TYPE_CHECKING:
    from vfl.queries.kinds import Plain

DEEPEST = 24
"""Largest depth of nested tuples. The deepest message of this version has ten levels."""
LARGEST_WHOLE = 512
"""Largest number of bytes of an integer. The exact score of a selection has up to 2,200 bits."""

MOST_VALUES = 1 << 16
"""Default for the largest number of values in a message. A value of two bytes can take up to 70 bytes of memory."""

_ITEM, _LONG_ITEM = b"\x0a", b"\x8a"
"""First byte of the key that precedes a value in a tuple, and first byte of this key in a longer encoding."""
_TUPLE = 0x32
_SMALL = range(-(1 << 63), 1 << 63)
_DOUBLE = struct.Struct("<d").pack
_BYTES = tuple(bytes([value]) for value in range(0x80))


class WireError(FederationError):
    """Received bytes are not a message of this protocol, or not the expected message. The session ends."""


def serialise(plain: Plain) -> bytes:
    """Return a tuple of plain values as bytes. Raises WireError for a value of any other type than those of `parse`."""
    return _serialised(plain, 0)


def parse(data: bytes | bytearray | memoryview, most: int = MOST_VALUES) -> Plain:
    """Return the tuple that the bytes encode. Raises WireError for invalid bytes, and for more than `most` values."""
    value, whole = Value(), bytes(data)
    # Each value has a key, which starts with one of these bytes. Counting these bytes is fast, and is enough for most messages.
    if whole.count(_ITEM) + whole.count(_LONG_ITEM) > most:
        _require_few(whole, most)
    try:
        value.ParseFromString(whole)
    except (DecodeError, ValueError):  # ValueError: text that is not UTF-8
        raise WireError("received a message that is not in the wire format") from None
    plain = _plain(value, 0)
    if type(plain) is not tuple:
        raise WireError("received a message that is not in the wire format")
    return plain


def _require_few(data: bytes, most: int) -> None:
    """Raise WireError for more than `most` values. A message that is not in the wire format is refused later, by the parser."""
    found, at = 0, 0
    ends, tuples = [len(data)], [False]  # for each open message: its end, and True if it is a `Values`
    try:
        while ends:
            if at >= ends[-1]:
                ends.pop()
                tuples.pop()
                continue
            key, at = read_varint(data, at)
            key &= 0xFFFFFFFF
            kind = key & 7
            if kind == 2:
                size, at = read_varint(data, at)
                if key == (_ITEM[0] if tuples[-1] else _TUPLE):
                    found += tuples[-1]
                    if found > most or len(ends) > 2 * DEEPEST:
                        raise WireError(f"received a message with more than {most} values, or nested too deeply")
                    ends.append(min(at + size, len(data)))
                    tuples.append(not tuples[-1])
                else:
                    at += size
            elif kind == 0:
                _, at = read_varint(data, at)
            elif kind in (1, 5):
                at += 8 if kind == 1 else 4
            else:
                raise WireError("received a message that is not in the wire format")
    except IndexError:
        return


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint, and the position after it. Raises IndexError for a varint that is cut short or too long."""
    number = 0
    for shift in range(0, 63, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise IndexError


def _serialised(plain: Any, depth: int) -> bytes:
    """Return the serialised `Value`. The bytes equal those of the generated class, but are made five times as fast."""
    kind = type(plain)
    if kind is tuple:
        if depth >= DEEPEST:
            raise WireError(f"a message is nested in more than {DEEPEST} levels")
        items: list[bytes] = []
        for item in plain:
            part = _serialised(item, depth + 1)
            items += (b"\x0a", varint(len(part)), part)
        return _field(b"\x32", b"".join(items))
    if kind is bytes:
        return _field(b"\x2a", plain)
    if kind is float:
        return b"\x19" + _DOUBLE(plain)
    if kind is int:
        if plain not in _SMALL:
            return _field(b"\x3a", _large(plain))
        return b"\x10" + varint(plain << 1 if plain >= 0 else (-plain << 1) - 1)
    if kind is str:
        try:
            return _field(b"\x22", plain.encode())
        except UnicodeEncodeError:
            raise WireError("a text that is not valid Unicode cannot be sent") from None
    if kind is bool:
        return b"\x08\x01" if plain else b"\x08\x00"
    if plain is None:
        return b""
    raise WireError(f"a {kind.__name__} cannot be sent: only tuples, text, numbers, bytes and None can")


def _field(key: bytes, content: bytes) -> bytes:
    return key + varint(len(content)) + content


def varint(number: int) -> bytes:
    """Return a nonnegative integer in protobuf's variable-length form."""
    if number < 0x80:
        return _BYTES[number]
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _large(number: int) -> bytes:
    size = number.bit_length() // 8 + 1
    if size > LARGEST_WHOLE:
        raise WireError(f"a whole number of more than {LARGEST_WHOLE} bytes cannot be sent")
    return number.to_bytes(size, "big", signed=True)


def _plain(value: Value, depth: int) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "tuple":
        if depth >= DEEPEST:
            raise WireError(f"received a message nested in more than {DEEPEST} levels")
        return tuple([_plain(item, depth + 1) for item in value.tuple.items])
    if kind is None:
        return None
    if kind == "large":
        data = value.large
        number = int.from_bytes(data, "big", signed=True)
        if len(data) > LARGEST_WHOLE or number in _SMALL or _large(number) != data:
            raise WireError("received an integer that is too long, or longer than needed")
        return number
    return getattr(value, kind)
