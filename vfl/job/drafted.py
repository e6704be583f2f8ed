"""Declarations that a drafted job file still lacks. For each, the draft has a marked comment with a value from the records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vfl.base.documents import parse_json, parse_toml

MARK = "read off the records: NOT PRIVATE unless publicly known"
_LEFT = re.compile(rf"""# (?P<key>[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*") = .*{re.escape(MARK)}""")


def left_in(text: str) -> dict[str, list[str]]:
    """Return {table: keys} of the marked comments whose keys the file does not declare yet; '' stands for the top level."""
    try:
        plain = parse_toml(text)
    except ValueError:
        return {}
    left: dict[str, list[str]] = {}
    table = ""
    for line in text.splitlines():
        if line.startswith("["):
            table = line[: line.rindex("]") + 1] if "]" in line else ""
        found = _LEFT.fullmatch(line.rstrip())
        if found is None:
            continue
        key = parse_json(found["key"]) if found["key"].startswith('"') else found["key"]
        if key not in _at(plain, table):
            left.setdefault(table, []).append(found["key"])
    return left


def _at(plain: Mapping[str, Any], header: str) -> Mapping[str, Any]:
    """Return the table under a header such as '[columns."a b"]'."""
    path = parse_toml(header) if header else {}
    here: Any = plain
    while path:
        (name, path), *_ = path.items()
        here = here.get(name, {}) if isinstance(here, Mapping) else {}
    return here if isinstance(here, Mapping) else {}
