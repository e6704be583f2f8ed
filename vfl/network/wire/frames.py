"""Calls and answers as frames: a head, then the bytes that the head announces.

Guarantee. A receiver learns all sizes from the head, and compares them with its current limits before it allocates memory.
The receiver accepts no byte beyond these sizes.

    sending     frames(call, plain, vectors)       → bytes of each frame, one after another
    receiving   parsed(way, data), Incoming(head, content, limits, held), feed(...) until complete, then plain and vectors
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from vfl.network.wire.federation_pb2 import FromParty, Head, ToParty, Vector
from vfl.network.wire.values import MOST_VALUES, WireError, parse, read_varint, serialise, varint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from vfl.queries.kinds import Plain

    Buffer = np.ndarray | bytes | bytearray | memoryview

PROTOCOL = 1
PIECE = 1 << 20
"""Largest content of a sent frame in bytes; a receiver accepts 4 MiB. With small frames, both ends work at the same time."""
LARGEST_FRAME = (1 << 22) + (1 << 16)
"""Largest frame in bytes that a receiver accepts: 4 MiB of content, plus the rest of a head."""
MOST_VECTORS = 16
SLOWEST = 1 << 16
"""Rate of the slowest supported link, in bytes per second. Time limits of messages take this rate into account."""
CONSTANTS = ("labels", "limits")
"""Names of vectors that a receiver keeps for later calls."""
DTYPES = {"float64": "<f8", "float32": "<f4", "int64": "<i8", "bytes": "u1"}

Way = TypeVar("Way", FromParty, ToParty)

ALIGNMENT = 8
"""Bytes per entry of a vector. A bytes object's content starts at a multiple of 8, so an aligned vector needs no copy."""

_PIECE_FIELD, _INLINE_FIELD, _PAD_FIELD, _HEAD_FIELD, _CALL_FIELD = 3, 15, 14, 2, 1


@dataclass(frozen=True, slots=True)
class Constant:
    """A vector that a run sends to a party only once. held : True if the receiver has the vector already."""

    vector: Any
    digest: bytes
    held: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an incoming message.

    body : largest number of bytes of the body. vectors : {name: largest number of bytes}. values : largest number of values in
        the body; None to derive it from `body`, so that parsing takes at most five times `body` bytes of memory, plus 4 MiB.
    """

    body: int
    vectors: Mapping[str, int] = field(default_factory=dict)
    values: int | None = None

    @property
    def most_values(self) -> int:
        """Return the largest number of values in the body."""
        return MOST_VALUES + self.body // 16 if self.values is None else self.values


def parsed(way: type[Way], data: bytes) -> tuple[Way, memoryview]:
    """Return the frame without its content, and a view of the content. Raises WireError."""
    frame = way()
    cut = _content(data)
    try:
        if cut is None:
            frame.ParseFromString(data)
        else:
            inner: Any = frame.head if cut.number == _HEAD_FIELD else frame.piece
            inner.SetInParent()
            inner.ParseFromString(data[cut.before : cut.start])
    except (DecodeError, ValueError):
        raise WireError("received a frame that is not in the wire format") from None
    kind = frame.WhichOneof("frame")
    if kind is None:
        raise WireError("received a frame that this version of vfl does not know")
    if cut is not None:
        return frame, memoryview(data)[cut.content :]
    content = {"head": "inline", "piece": "data"}.get(kind)
    return frame, memoryview(b"" if content is None else getattr(getattr(frame, kind), content))


class _Cut(NamedTuple):
    """Kind of a frame, and positions in it: start of the fields, their end, and start of the content at the frame's end."""

    number: int
    before: int
    start: int
    content: int


def _content(data: bytes) -> _Cut | None:
    """Find the content at the end of a frame that `frames` has written. Return None for any other encoding."""
    try:
        key, at = read_varint(data, 0)
        number = key >> 3
        if key not in (_HEAD_FIELD << 3 | 2, _PIECE_FIELD << 3 | 2):
            return None
        size, before = read_varint(data, at)
        if before + size != len(data):
            return None
        at = before
        while at < len(data):
            start = at
            key, at = read_varint(data, at)
            size, at = read_varint(data, at)  # a number, or the length of the following bytes
            if key == _INLINE_FIELD << 3 | 2:
                return _Cut(number, before, start, at) if at + size == len(data) else None
            if key & 7 == 2:
                at += size
            elif key & 7:
                return None
    except IndexError:
        return None
    return None


def frames(call: int, plain: Plain, vectors: Mapping[str, Buffer | Constant] | None = None) -> Iterator[bytes]:
    """Return the frames of a call or an answer, as an iterator. Vectors are read only while they are sent.

    Raises WireError at once for a message that cannot be sent, so that the stream never fails because of a message.
    """
    return _frames(call, serialise(plain), vectors or {})


def _frames(call: int, body: bytes, vectors: Mapping[str, Buffer | Constant]) -> Iterator[bytes]:
    head = Head(call=call, body=len(body))
    content: list[memoryview] = [memoryview(body)]
    for name, given in vectors.items():
        digest, held, vector = b"", False, given
        if isinstance(given, Constant):
            vector, digest, held = given.vector, given.digest, given.held
        raw = _raw(vector)
        head.vectors.append(Vector(name=name, size=raw.nbytes, digest=digest, held=held))
        if not held:
            content.append(raw)
    pieces = _cut(content)
    yield _wrapped(_HEAD_FIELD, _INLINE_FIELD, head.SerializeToString(), next(pieces, []), aligned=len(body))
    named = _key(_CALL_FIELD, 0) + varint(call)
    for piece in pieces:
        yield _wrapped(_PIECE_FIELD, _INLINE_FIELD, named, piece)


def _raw(vector: Any) -> memoryview:
    if isinstance(vector, np.ndarray):
        vector = np.ascontiguousarray(vector, vector.dtype.newbyteorder("<"))
        return memoryview(vector.reshape(-1).view(np.uint8))
    return memoryview(vector)


def _cut(content: list[memoryview]) -> Iterator[list[memoryview]]:
    """Yield lists of parts, each list with PIECE bytes in total except the last. At least one list is yielded."""
    piece: list[memoryview] = []
    room = PIECE
    for part in content:
        start = 0
        while start < part.nbytes:
            taken = part[start : start + room]
            piece.append(taken)
            start, room = start + taken.nbytes, room - taken.nbytes
            if not room:
                yield piece
                piece, room = [], PIECE
    if piece:
        yield piece


def _wrapped(frame: int, content: int, before: bytes, parts: list[memoryview], aligned: int | None = None) -> bytes:
    """Return a frame whose message ends with a bytes field. The content is copied once; protobuf's class would copy it twice.

    aligned : position in the content to place at a multiple of ALIGNMENT bytes within the frame; None for no padding.
    """
    size = sum(part.nbytes for part in parts)
    ending = _key(content, 2) + varint(size) if size else b""
    for pad in range(ALIGNMENT):
        padding = b"" if aligned is None else _key(_PAD_FIELD, 2) + bytes([pad]) + bytes(pad)
        inner = before + padding + ending
        start = _key(frame, 2) + varint(len(inner) + size) + inner
        if aligned is None or (len(start) + aligned) % ALIGNMENT == 0:
            break
    return b"".join([start, *parts])


def _key(number: int, kind: int) -> bytes:
    return varint(number << 3 | kind)


class IncomingCall:
    """A call or an answer that is being received. The call is assembled from frames.

    content : bytes of content that came with the head. held : {name: (digest, vector)} of kept constants; new ones are added.
    due : function from the body to the size limit of each vector. The body comes first, so that an unexpected vector is
        refused before memory is allocated for it. None to use the vectors' limits in `limits`.

    Raises WireError for a head beyond the limits.
    """

    def __init__(
        self,
        head: Head,
        content: memoryview,
        limits: Limits,
        held: dict[str, tuple[bytes, Any]],
        due: Callable[[Plain], Mapping[str, int]] | None = None,
    ) -> None:
        self.call = head.call
        self._held = held
        self._due = due
        self._most_values = limits.most_values
        if head.body > limits.body:
            raise WireError(f"a message of {head.body} bytes exceeds the limit of {limits.body}")
        if len(head.vectors) > MOST_VECTORS:
            raise WireError(f"received a message with more than {MOST_VECTORS} vectors")
        _check_within(head.vectors, limits.vectors)
        self.vectors: dict[str, Any] = {vector.name: self._known(vector) for vector in head.vectors if vector.held}
        self._vectors = list(head.vectors)
        self.size = head.body + sum(vector.size for vector in head.vectors if not vector.held)
        self._digests: dict[str, bytes] = {}
        self._plain: Plain | None = None
        self._waiting: list[memoryview] = []
        if content.nbytes == self.size:
            self._body: memoryview | bytearray = content[: head.body]
            self._begin_vectors(content[head.body :])
            return
        self._body = bytearray(head.body)
        self._waiting = [memoryview(self._body)] if head.body else []
        if not head.body:
            self._begin_vectors()
        self.feed(content)

    def _begin_vectors(self, content: memoryview | None = None) -> None:
        """Start to receive vectors, after the body. content : the vectors, not copied if aligned; None if they still come."""
        announced, self._vectors = self._vectors, []
        if self._due is not None and announced:
            _check_within(announced, self._due(self.plain))
        start = 0
        for vector in announced:
            if vector.held:
                continue
            made: Any
            if content is None:
                made = np.empty(vector.size, np.uint8)
                if vector.size:
                    self._waiting.append(memoryview(made))
            else:
                view = np.frombuffer(content[start : start + vector.size], np.uint8)
                made = view if view.ctypes.data % ALIGNMENT == 0 else view.copy()
                start += vector.size
            self.vectors[vector.name] = made
            if vector.digest:
                self._digests[vector.name] = vector.digest
        if self.complete:
            self._hold()

    def _known(self, vector: Vector) -> Any:
        known = self._held.get(vector.name)
        if known is None or known[0] != vector.digest or known[1].nbytes != vector.size:
            raise WireError("received a message that names a constant not held here")
        return known[1]

    @property
    def complete(self) -> bool:
        """Return True once all bytes have arrived."""
        return not self._waiting

    @property
    def plain(self) -> Plain:
        """Return the body of the message as nested tuples of text and numbers."""
        if self._plain is None:
            self._plain = parse(self._body, self._most_values)
        return self._plain

    def feed(self, data: memoryview) -> None:
        """Add more bytes of the content. Raises WireError for more bytes than were announced."""
        start = 0
        while start < data.nbytes:
            if not self._waiting:
                raise WireError("received a message longer than announced")
            room = self._waiting[0]
            size = min(room.nbytes, data.nbytes - start)
            room[:size] = data[start : start + size]
            start += size
            if size < room.nbytes:
                self._waiting[0] = room[size:]
                continue
            del self._waiting[0]
            if self._vectors and not self._waiting:
                self._begin_vectors()
        if self.complete:
            self._hold()

    def _hold(self) -> None:
        for name, digest in self._digests.items():
            self._held[name] = (digest, self.vectors[name])
        self._digests = {}


def _check_within(announced: Iterable[Vector], most: Mapping[str, int]) -> None:
    """Raise WireError for a vector that is unexpected, too large, or repeated."""
    seen: set[str] = set()
    for vector in announced:
        name = vector.name
        if name not in most or name in seen or (name not in CONSTANTS and (vector.digest or vector.held)):
            raise WireError("received a message with an unexpected vector")
        if vector.size > most[name]:
            raise WireError(f"received a vector of {vector.size} bytes, of at most {most[name]}")
        seen.add(name)


def as_vector(raw: Any, kind: str = "float64") -> Any:
    """Return the bytes of a vector as a read-only array. Raises WireError if the bytes end within an entry."""
    dtype = np.dtype(DTYPES[kind])
    if raw.nbytes % dtype.itemsize:
        raise WireError("received a vector that ends within an entry")
    array = raw.view(dtype)
    array.flags.writeable = False
    return array
