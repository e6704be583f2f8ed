"""Registered kinds of objects. Messages, and functions in messages, are sent as a name and plain parameters, never as code.

A kind is a frozen dataclass with a name in a family: the penalty 'l1', the clip 'norm', the query 'backward'. Its plain
form is the tuple (name, parameter, ...), with the parameters in the order of the class's fields:

    L1(0.1)                    ⇄  ("l1", 0.1)
    Derivative(Logistic())     ⇄  ("derivative", ("logistic",))

Plain forms contain only tuples, str, bool, int, float, bytes and None; vectors are bytes of little-endian float64. The receiver
builds the object from the kinds that are registered in its own process. An unknown name, a wrong type or number of parameters,
and NaN where it is not allowed raise PrivacyError, before anything is computed. `vfl.network.kinds` shows a table of all kinds.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import operator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from vfl.errors import PrivacyError, VflError, nearest

if TYPE_CHECKING:
    import enum
    from collections.abc import Callable, Collection, Hashable, Mapping

Plain: TypeAlias = tuple[Any, ...]
"""The plain form of an object, a tuple: the name of its kind, then its parameters."""

GROUP = "vfl.kinds"
"""Group of entry points by which other packages register kinds. Each entry point names a function without arguments."""

SMALL = frozenset({"loss", "penalty", "clip", "weighting", "event", "batch"})
"""Families with few, small objects. Their plain forms (tuples) are cached: a run sends the same objects in every message."""


class Parameter(NamedTuple):
    """One parameter of a kind. text : description of the values that are sent. encode, decode : conversion to them and back."""

    text: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def exactly(kind: type) -> Callable[[Any], Any]:
    """Return a decoder that accepts only values of exactly this type."""

    def decode(plain: Any) -> Any:
        if type(plain) is not kind:
            raise PrivacyError(f"a {kind.__name__} is needed, not {type(plain).__name__}")
        return plain

    return decode


_items = exactly(tuple)


def _number(plain: Any) -> float:
    if type(plain) is not float or plain != plain:
        raise PrivacyError("a number that is not NaN is needed")
    return plain


def _bytes(vector: Any) -> bytes:
    array = np.asarray(vector, dtype="<f8")
    if array.ndim != 1:
        raise PrivacyError("a vector is needed")
    return array.tobytes()


def _released(plain: Any) -> Any:
    if type(plain) is not bytes or len(plain) % 8:
        raise PrivacyError("a vector of float64 is needed")
    return np.frombuffer(plain, dtype="<f8")


def _vector(plain: Any) -> Any:
    vector = _released(plain)
    if not np.isfinite(vector).all():
        raise PrivacyError("a vector of finite numbers is needed")
    return vector


NUMBER = Parameter("number", float, _number)
RELEASED_NUMBER = Parameter("number, may be NaN", float, exactly(float))
WHOLE = Parameter("whole number", operator.index, exactly(int))
FLAG = Parameter("true or false", bool, exactly(bool))
TEXT = Parameter("text", str, exactly(str))
VECTOR = Parameter("vector of finite numbers", _bytes, _vector)
RELEASED = Parameter("vector, may hold NaN", _bytes, _released)


def optional(of: Parameter) -> Parameter:
    """Return a parameter that takes None, or any value that the parameter `of` takes."""
    return Parameter(
        f"{of.text}, or none",
        lambda value: None if value is None else of.encode(value),
        lambda plain: None if plain is None else of.decode(plain),
    )


def sequence(of: Parameter) -> Parameter:
    """Return a parameter that takes a tuple of any length, of values that the parameter `of` takes."""
    return Parameter(
        f"sequence: {of.text}",
        lambda values: tuple([of.encode(value) for value in values]),
        lambda plain: tuple([of.decode(item) for item in _items(plain)]),
    )


def _decoded_parts(parts: Collection[Parameter], plain: Any) -> list[Any]:
    if len(_items(plain)) != len(parts):
        raise PrivacyError(f"{len(parts)} values are needed, not {len(plain)}")
    return [part.decode(item) for part, item in zip(parts, plain, strict=True)]


def record(build: Callable[..., Any], **parts: Parameter) -> Parameter:
    """Return a parameter whose value is an object with the attributes `parts`; by default, all fields of a dataclass."""
    if not parts:
        parts = dict(_described(build, {}))  # type: ignore[arg-type]  # a dataclass
    return Parameter(
        "(" + ", ".join(f"{name}: {part.text}" for name, part in parts.items()) + ")",
        lambda value: tuple([part.encode(getattr(value, name)) for name, part in parts.items()]),
        lambda plain: build(*_decoded_parts(parts.values(), plain)),
    )


def mapping(of: Parameter) -> Parameter:
    """Return a parameter whose value is a dictionary from party names to values of the parameter `of`, in order."""

    def decode(plain: Any) -> Any:
        found = {}
        for pair in _items(plain):
            if type(pair) is not tuple or len(pair) != 2 or type(pair[0]) is not str or pair[0] in found:
                raise PrivacyError("pairs of different names and values are needed")
            found[pair[0]] = of.decode(pair[1])
        return found

    return Parameter(
        f"by party: {of.text}", lambda value: tuple([(name, of.encode(own)) for name, own in value.items()]), decode
    )


def row(*parts: Parameter) -> Parameter:
    """Return a parameter whose value is a tuple with one value for each of `parts`."""
    return Parameter(
        "(" + "; ".join(part.text for part in parts) + ")",
        lambda value: tuple([part.encode(item) for part, item in zip(parts, value, strict=True)]),
        lambda plain: tuple(_decoded_parts(parts, plain)),
    )


def choice(of: type[enum.Enum]) -> Parameter:
    """Return a parameter whose value is a member of an enumeration, sent as the member's name in lower case."""
    members = {member.name.lower(): member for member in of}

    def decode(plain: Any) -> Any:
        if type(plain) is not str or plain not in members:
            raise PrivacyError(f"one of {', '.join(members)} is needed")
        return members[plain]

    return Parameter("one of " + ", ".join(members), lambda value: value.name.lower(), decode)


def kind(family: str) -> Parameter:
    """Return a parameter whose value is an object of any kind in the family."""
    return Parameter(f"{family} kind", lambda value: encode(family, value), lambda plain: decode(family, plain))


_PARAMETERS: dict[str, Parameter] = {
    "float": NUMBER,
    "int": WHOLE,
    "bool": FLAG,
    "str": TEXT,
    "Vector": VECTOR,
    "ndarray": VECTOR,
    "np.ndarray": VECTOR,
    "Loss": kind("loss"),
    "Penalty": kind("penalty"),
    "Clip": kind("clip"),
    "Knots | None": optional(mapping(sequence(sequence(NUMBER)))),
}
"""Annotation of a field → parameter, for kinds that are registered without explicit parameters."""
_WRAPPED = (("", " | None", optional), ("tuple[", ", ...]", sequence), ("Mapping[str, ", "]", mapping))


def declare(**parameters: Parameter) -> None:
    """Declare parameters for annotations, for kinds and records that are registered later."""
    _PARAMETERS.update(parameters)


def parameter_of(annotation: str) -> Parameter | None:
    """Return the parameter for an annotation: a known X, or 'X | None', 'tuple[X, ...]', 'Mapping[str, X]' of a known X."""
    if annotation in _PARAMETERS:
        return _PARAMETERS[annotation]
    for start, end, wrap in _WRAPPED:
        if annotation.startswith(start) and annotation.endswith(end):
            of = parameter_of(annotation[len(start) : len(annotation) - len(end)])
            return None if of is None else wrap(of)
    return None


_families: dict[str, dict[str, type]] = {}
_closed: set[str] = set()
_parameters: dict[type, tuple[tuple[str, Parameter], ...]] = {}
_loaded = False


def family(name: str, table: dict[str, type]) -> None:
    """Declare a table {name: class} as the kinds of a family. Classes that are added to the table later also count."""
    _families[name] = table


def register(family: str, name: str, cls: type, **parameters: Parameter) -> None:
    """Register a frozen dataclass as the kind `name` of a family, in this process.

    parameters : {field: parameter}, for fields whose annotation does not determine the parameter (`parameter_of`).

    Raises PrivacyError if another class has this name, if the family is closed, or if a field cannot be converted.
    """
    if family in _closed:
        raise PrivacyError(
            f"no package can register a {family} kind: a party answers the queries of vfl alone, whose releases are proved"
        )
    described = _described(cls, parameters)
    table = _families.setdefault(family, {})
    if table.setdefault(name, cls) is not cls:
        raise PrivacyError(
            f"the {family} kind {name!r} is registered as {table[name].__qualname__}: choose another name"
        )
    _parameters[cls] = described


def close(family: str) -> None:
    """Refuse further kinds of a family."""
    _closed.add(family)


def registered() -> Mapping[str, Mapping[str, tuple[tuple[str, str], ...]]]:
    """Return {family: {name: ((parameter, description of its values), ...)}} of all kinds known in this process."""
    return {
        family: {name: tuple((field, of.text) for field, of in _fields(cls)) for name, cls in sorted(table.items())}
        for family, table in sorted(_families.items())
    }


def vectors_of(value: Any) -> list[Any]:
    """Return the vectors among the parameters of an object of a kind."""
    return [getattr(value, field) for field, of in _fields(type(value)) if of is VECTOR]


def encode(family: str, value: Any) -> tuple[Any, ...]:
    """Return an object of a registered class as nested tuples (its plain form). Raises PrivacyError for any other object."""
    return _encoded_small(family, value) if family in SMALL else _encoded(family, value)


def decode(family: str, plain: Any) -> Any:
    """Return the object that nested tuples (its plain form) describe, built from the kinds registered in this process.

    Raises PrivacyError for an unknown kind, and for parameters that do not match the kind.
    """
    if type(plain) is not tuple or not plain or type(plain[0]) is not str:
        raise PrivacyError(f"a {family} kind is a name with its parameters, not {type(plain).__name__}")
    try:
        return _decoded_small(family, plain, repr(plain)) if family in SMALL else _decoded(family, plain)
    except TypeError as error:  # an unhashable or incomparable parameter
        raise PrivacyError(f"the {family} kind {plain[0]!r} came with a parameter of a wrong type") from error


def _described(cls: type, given: Mapping[str, Parameter]) -> tuple[tuple[str, Parameter], ...]:
    if not dataclasses.is_dataclass(cls):
        raise PrivacyError(
            f"{cls.__qualname__} is not a dataclass, so its parameters are unknown: make it a frozen one"
        )
    described = []
    for field in sorted(dataclasses.fields(cls), key=lambda field: field.kw_only is True):  # keyword-only fields last
        if not field.init:
            continue
        annotation = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
        parameter = given.get(field.name) or parameter_of(annotation)
        if parameter is None:
            raise PrivacyError(
                f"{cls.__qualname__}.{field.name} of type {annotation} has no plain form: name its parameter in register(...)"
            )
        described.append((field.name, parameter))
    return tuple(described)


def _fields(cls: type) -> tuple[tuple[str, Parameter], ...]:
    if cls not in _parameters:
        _parameters[cls] = _described(cls, {})
    return _parameters[cls]


def _load_others() -> None:
    """Make the installed packages register their kinds, once per process."""
    global _loaded  # noqa: PLW0603 - the registry is one per process
    if not _loaded:
        _loaded = True
        for entry in importlib.metadata.entry_points(group=GROUP):
            entry.load()()


@lru_cache(maxsize=1024)
def name_of(family: str, cls: Hashable) -> str:
    """Return the name under which a class is registered. Raises PrivacyError if the class is not registered."""
    for attempt in range(2):
        found = next((name for name, known in _families.get(family, {}).items() if known is cls), None)
        if found is not None:
            return found
        if not attempt:
            _load_others()
    called = getattr(cls, "__qualname__", cls)
    raise PrivacyError(
        f"{called} is not a registered {family} kind, so no party can build it: register it at both ends, by an entry point of "
        f"the group {GROUP!r}"
    )


def _class_of(family: str, name: str) -> type:
    table = _families.get(family, {})
    if name not in table:
        _load_others()
    if name not in table:
        raise PrivacyError(
            f"unknown {family} kind {name!r}{nearest(name, table)}: install the package that registers it, under the entry "
            f"points {GROUP!r}"
        )
    return table[name]


def _encoded(family: str, value: Any) -> tuple[Any, ...]:
    cls = type(value)
    name = name_of(family, cls)  # type: ignore[arg-type]  # a class can be hashed
    try:
        return (name, *[of.encode(getattr(value, field)) for field, of in _fields(cls)])
    except VflError:
        raise
    except (TypeError, ValueError) as error:
        raise PrivacyError(f"the {family} kind {name!r} has a parameter without a plain form: {error}") from error


def _decoded(family: str, plain: tuple[Any, ...]) -> Any:
    name, given = plain[0], plain[1:]
    cls = _class_of(family, name)
    fields = _fields(cls)
    if len(given) != len(fields):
        raise PrivacyError(f"the {family} kind {name!r} takes {len(fields)} parameters, not {len(given)}")
    values: dict[str, Any] = {}
    try:
        for (field, of), one in zip(fields, given, strict=True):
            values[field] = of.decode(one)
        return cls(**values)
    except (VflError, ValueError) as error:
        at = fields[len(values)][0] if len(values) < len(fields) else ""
        raise PrivacyError(f"the {family} kind {name!r} is refused{f', {at}' * bool(at)}: {error}") from error


_encoded_small = lru_cache(maxsize=1024)(_encoded)


@lru_cache(maxsize=1024)
def _decoded_small(family: str, plain: tuple[Any, ...], _text: str) -> Any:
    """Cache the result of `_decoded`. _text : repr of `plain`. Unlike ==, it distinguishes 1, 1.0 and True."""
    return _decoded(family, plain)
