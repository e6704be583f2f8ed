"""Reader of TOML documents that people write. It builds dataclasses from tables; errors name the wrong line or key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from vfl.arguments import check_options
from vfl.documents import LARGEST_TOML, is_format, parse_toml, read_bytes
from vfl.errors import SpecificationError, nearest

if TYPE_CHECKING:
    from pathlib import Path

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
    remedy : end of the error for a missing file. largest, follow : as for vfl.documents.
    name : name of the file in errors, instead of its path, which may tell more than the reader of the error should know.
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
        type. The checks of the fields (vfl.arguments.option) have their own.
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
