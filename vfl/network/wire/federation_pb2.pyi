from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FromParty(_message.Message):
    __slots__ = ("hello", "head", "piece", "progress")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    head: Head
    piece: Piece
    progress: Progress
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., head: _Optional[_Union[Head, _Mapping]] = ..., piece: _Optional[_Union[Piece, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class ToParty(_message.Message):
    __slots__ = ("welcome", "head", "piece", "refused")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    head: Head
    piece: Piece
    refused: Refused
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., head: _Optional[_Union[Head, _Mapping]] = ..., piece: _Optional[_Union[Piece, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "version", "federation", "name", "process")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    federation: str
    name: str
    process: bytes
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., federation: _Optional[str] = ..., name: _Optional[str] = ..., process: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "version", "federation", "name", "process")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    federation: str
    name: str
    process: bytes
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., federation: _Optional[str] = ..., name: _Optional[str] = ..., process: _Optional[bytes] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason", "busy")
    REASON_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    reason: str
    busy: bool
    def __init__(self, reason: _Optional[str] = ..., busy: _Optional[bool] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("call", "body", "vectors", "pad", "inline")
    CALL_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    PAD_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    call: int
    body: int
    vectors: _containers.RepeatedCompositeFieldContainer[Vector]
    pad: bytes
    inline: bytes
    def __init__(self, call: _Optional[int] = ..., body: _Optional[int] = ..., vectors: _Optional[_Iterable[_Union[Vector, _Mapping]]] = ..., pad: _Optional[bytes] = ..., inline: _Optional[bytes] = ...) -> None: ...

class Vector(_message.Message):
    __slots__ = ("name", "size", "digest", "held")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    digest: bytes
    held: bool
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., digest: _Optional[bytes] = ..., held: _Optional[bool] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("call", "data")
    CALL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    call: int
    data: bytes
    def __init__(self, call: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("call", "done")
    CALL_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    call: int
    done: int
    def __init__(self, call: _Optional[int] = ..., done: _Optional[int] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("flag", "whole", "number", "text", "octets", "tuple", "large")
    FLAG_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    OCTETS_FIELD_NUMBER: _ClassVar[int]
    TUPLE_FIELD_NUMBER: _ClassVar[int]
    LARGE_FIELD_NUMBER: _ClassVar[int]
    flag: bool
    whole: int
    number: float
    text: str
    octets: bytes
    tuple: Values
    large: bytes
    def __init__(self, flag: _Optional[bool] = ..., whole: _Optional[int] = ..., number: _Optional[float] = ..., text: _Optional[str] = ..., octets: _Optional[bytes] = ..., tuple: _Optional[_Union[Values, _Mapping]] = ..., large: _Optional[bytes] = ...) -> None: ...

class Values(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, items: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...
