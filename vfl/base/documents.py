"""Documents from others: reading with limits, and tables of TOML as dataclasses.

Guarantee. Reading ends for every path and every content. Only a regular file is opened, never a pipe or a device, and no more
bytes than a limit are read. A returned value has at most DEPTH levels and no duplicate keys, and its whole numbers have at
most DIGITS digits.

A file that cannot be read raises OSError, whose `strerror` gives the reason. A refused text raises ValueError.

Reader of TOML documents that people write. The reader builds dataclasses from tables; errors name the wrong line or key.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, BinaryIO

from vfl.base.arguments import check_options
from vfl.errors import SpecificationError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LARGEST = 1 << 30
"""Largest size, in bytes, of a file that is read whole. LARGEST_TOML is smaller: parsing TOML takes a second per megabyte."""
LARGEST_TOML = 1 << 25
DEPTH = 64
DIGITS = 40


def is_format(stated: Any, number: int) -> bool:
    """Return True if a document states this format number. The values `true` and 1.0 are not 1."""
    return type(stated) is int and stated == number


@contextmanager
def opened(path: str | os.PathLike[str], *, follow: bool = True) -> Iterator[BinaryIO]:
    """Open a regular file for reading. follow : False refuses a path whose last component is a symbolic link."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except ValueError:  # a null character
        raise OSError(errno.EINVAL, "this is not the name of a file") from None
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed here") from None
        raise
    with os.fdopen(descriptor, "rb") as file:
        if stat.S_ISDIR(mode := os.fstat(descriptor).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        yield file


def read_bytes(path: str | os.PathLike[str], largest: int = LARGEST, *, follow: bool = True) -> bytes:
    """Return the content of a regular file of at most `largest` bytes. follow : as for `opened`."""
    with opened(path, follow=follow) as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise OSError(errno.EFBIG, f"the file is larger than {largest} bytes")
    return content


def read_key(path: Path, what: str, remedy: str, largest: int, harm: str = "") -> tuple[bytes, os.stat_result]:
    """Return the content, at most largest + 1 bytes, and the status of a file of keys. Raises SpecificationError.

    what : kind of the file in errors. remedy : remedy if the file is missing. harm : what others could do with this secret key;
        a file that others may use is then refused. '' for a public file.
    """
    try:
        with opened(path) as file:
            content, status = file.read(largest + 1), os.fstat(file.fileno())
    except FileNotFoundError:
        raise SpecificationError(f"there is no {what} at {str(path)!r}: {remedy}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SpecificationError(f"cannot read the {what} {str(path)!r}: {why}") from error
    if harm and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SpecificationError(
            f"the {what} {str(path)!r} can be used by others (mode {stat.S_IMODE(status.st_mode):04o}), who could {harm}. If "
            f"that may have happened, make a new one; otherwise run: chmod 600 {path}"
        )
    return content, status


def read_json(path: str | os.PathLike[str], largest: int = LARGEST, *, follow: bool = True) -> Any:
    """Return the value in a JSON file. Arguments as for `read_bytes`."""
    return parse_json(read_bytes(path, largest, follow=follow))


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Bytes are decoded as UTF-8."""
    try:
        value = json.loads(
            text if isinstance(text, str) else text.decode(), parse_int=_whole, object_pairs_hook=_without_repeats
        )
    except RecursionError:
        raise _too_deep() from None
    _check(value)
    return value


_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_DEEP_KEY = re.compile(rf"(?<![\w.-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{DEPTH},}}", re.ASCII)
"""Pattern of a dotted key with more than DEPTH parts, which tomllib parses in time quadratic in the number of parts."""


def parse_toml(text: str | bytes) -> dict[str, Any]:
    """Return the table of a TOML text. Bytes are decoded as UTF-8."""
    if len(text) > LARGEST_TOML:
        raise ValueError(f"the text is larger than {LARGEST_TOML} bytes")
    text = text if isinstance(text, str) else text.decode()
    if _DEEP_KEY.search(text):
        raise _too_deep()
    try:
        value = tomllib.loads(text)
    except RecursionError:
        raise _too_deep() from None
    _check(value)
    return value


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"it holds a whole number of more than {DIGITS} digits")
    return int(digits)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("it holds a table with the same key twice")
    return table


def _check(value: Any) -> None:
    """Check depth and numbers. The check does not recurse, since long dotted keys of TOML give deep tables."""
    level, depth = [value], 0
    while level:
        if depth > DEPTH:
            raise _too_deep()
        inner = []
        for one in level:
            for item in one.values() if isinstance(one, dict) else one if isinstance(one, list) else (one,):
                if isinstance(item, dict | list):
                    inner.append(item)
                elif type(item) is int and abs(item) >= 10**DIGITS:
                    raise ValueError(f"it holds a whole number of more than {DIGITS} digits")
        level, depth = inner, depth + 1


def _too_deep() -> ValueError:
    return ValueError(f"its tables and lists are more than {DEPTH} levels deep")


LINE = 200
"""Largest number of characters that an error shows of a wrong line."""

FORMS: Mapping[str, tuple[Any, str]] = {
    "str": (str, "text"),
    "Path": (str, "text"),
    "bool": (bool, "true or false"),
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "tuple[str, ...]": ((list, tuple), "a list of text"),
    "Mapping[str, float]": (Mapping, "a table of numbers"),
    "Mapping[str, str]": (Mapping, "a table of text"),
    "Mapping[str, Path]": (Mapping, "a table of paths"),
    "Read": (str, "the path of a certificate"),
}
"""For each annotation of a field: types of the value in TOML, and their name. Other annotations are not checked."""


def read_toml(
    path: Path,
    kind: str,
    *,
    number: int | None = None,
    remedy: str = "",
    name: str = "",
    error: type[SpecificationError] = SpecificationError,
    largest: int = LARGEST_TOML,
    follow: bool = True,
    shows: bool = False,
) -> dict[str, Any]:
    """Return the content of a TOML file. kind : name of this kind of file in errors, such as 'job file'.

    number : the file has to state format = NUMBER, which is left out of the content.
    remedy : end of the error for a missing file. largest, follow : as for vfl.base.documents.
    name : name of the file in errors, instead of its path, which may reveal more than the reader of the error should know.
    error : class of the error if the file is missing, cannot be read, is not TOML, or has another format.
    shows : True shows the line that is not TOML. Use False for errors that leave a party, since the file may hold its data.
    """
    where = f"{kind} {(name or str(path))!r}"
    try:
        text = read_bytes(path, largest, follow=follow).decode()
        plain = parse_toml(text)
    except FileNotFoundError:
        raise error(f"there is no {where}{remedy}") from None
    except (OSError, UnicodeDecodeError) as failed:
        why = failed.strerror if isinstance(failed, OSError) else "it is not text in UTF-8"
        raise error(f"cannot read {where}: {why}") from None
    except ValueError as failed:
        raise error(f"{where} is not valid TOML: {failed}{_line(text, failed) if shows else ''}") from failed
    if number is not None and not is_format(plain.pop("format", None), number):
        raise error(f"{where} needs format = {number}, which this vfl reads")
    return plain


def _line(text: str, error: ValueError) -> str:
    """Return a clause that shows the line named by the error, else the last line; '' for an error about the whole text."""
    if not isinstance(error, tomllib.TOMLDecodeError):
        return ""
    lines = text.split("\n")
    found = re.search(r"line (\d+)", str(error))
    number = min(int(found[1]) if found else len(lines), len(lines))
    return f"; line {number} is: {lines[number - 1].strip()[:LINE]}"


def built(
    kind: Any,
    plain: Any,
    where: str,
    error: type[SpecificationError] = SpecificationError,
    **parts: Any,
) -> Any:
    """Return kind(**plain) for a dataclass; lists of text become tuples.

    where : beginning of a key's name in errors. error : class of the error for a key that is unknown, missing or of a wrong
        type. The checks of the fields (vfl.base.arguments.option) raise their own errors.
    parts : {field: dataclass} of the fields that are tables themselves.
    """
    if not isinstance(plain, Mapping):
        raise error(f"{where.rstrip('.: ')} must be a table, not {plain!r}")
    known = {f.name: f for f in fields(kind) if f.init}
    for key in plain:
        if key not in known:
            raise error(f"{where}{key} is unknown{nearest(key, known)}; known: {', '.join(known)}")
    for key, f in known.items():
        if f.default is f.default_factory is MISSING and key not in plain:
            raise error(f"{where}{key} is missing")
    check_types(kind, plain, where, error)
    values = {key: tuple(value) if known[key].type in _LISTS else value for key, value in plain.items()}
    nested = {key: built(part, plain[key], f"{where}{key}.", error) for key, part in parts.items() if key in plain}
    made = kind(**values | nested)
    check_options(made, where)
    return made


_LISTS = ("tuple[str, ...]", "tuple[str, ...] | None")


def check_types(kind: Any, plain: Mapping[str, Any], where: str, error: type[SpecificationError]) -> None:
    """Check values against the annotations of a dataclass's fields, for annotations that TOML can express."""
    for f in fields(kind):
        spelt = [name for name in str(f.type).split(" | ") if name != "None"]
        if f.name not in plain or any(name not in FORMS for name in spelt):
            continue
        if not any(_is(plain[f.name], name) for name in spelt):
            said = " or ".join(FORMS[name][1] for name in spelt)
            raise error(f"{where}{f.name} must be {said}, not {plain[f.name]!r}")


def _is(value: Any, name: str) -> bool:
    types, _ = FORMS[name]
    if not isinstance(value, types) or (isinstance(value, bool) and name != "bool"):
        return False
    if isinstance(value, Mapping):
        return all(_is(item, name[len("Mapping[str, ") : -1]) for item in value.values())
    return not isinstance(value, list | tuple) or all(isinstance(item, str) for item in value)
