"""TOML files that users write: jobs and files of candidates."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

from vfl.documents import LARGEST_TOML, parse_toml, read_bytes
from vfl.errors import JobFileError

if TYPE_CHECKING:
    from pathlib import Path

LINE = 200
"""Largest number of characters of a wrong line that an error shows."""


def read_toml(path: Path, kind: str, *, follow: bool = True) -> dict[str, Any]:
    """Return the content of a file. kind : its name in errors, such as 'job file'. follow : as for vfl.documents.

    Raises JobFileError if the file is missing, cannot be read, or is not TOML; for invalid TOML it shows the line.
    """
    try:
        text = read_bytes(path, LARGEST_TOML, follow=follow).decode()
        return parse_toml(text)
    except FileNotFoundError:
        raise JobFileError(f"there is no {kind} {str(path)!r}") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise JobFileError(f"cannot read {kind} {str(path)!r}: {why}") from error
    except ValueError as error:
        raise JobFileError(f"{str(path)!r} is not valid TOML: {error}{_line(text, error)}") from error


def _line(text: str, error: ValueError) -> str:
    """Return a clause that shows the line named by the error, or the last line; '' for an error about the whole text."""
    if not isinstance(error, tomllib.TOMLDecodeError):
        return ""
    lines = text.split("\n")
    found = re.search(r"line (\d+)", str(error))
    number = min(int(found[1]) if found else len(lines), len(lines))
    return f"; line {number} is: {lines[number - 1].strip()[:LINE]}"
