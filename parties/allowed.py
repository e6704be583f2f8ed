"""Sources that an owner allows: files by path, tables in memory as "memory", and addresses part by part.

An address is opened with the credentials of the party's process: PGPASSWORD, ~/.pgpass, keys of an object store, a role of the
node. The host in the address receives these credentials. An address is therefore opened only if the owner listed it where the
party runs. The list is `sources` in the policy that the owner set ($VFL_POLICY, vfl join --policy), or the environment variable
$VFL_SOURCES, with blanks between addresses:

    VFL_SOURCES='postgresql://reader@db.example/bank s3://bucket/bank/*?region=eu-central-1'

A policy that the job names may come from the author of the job. Such a policy can restrict sources, but cannot allow an
address. DuckDB files are local, so they count as files; a policy lists them by their address.

In a pattern of an address, "*" stands for any text within the user, the host, the path or the value of a parameter. Every
parameter of an address must be listed, since a parameter may name another host (endpoint_override, host). A pattern without
`table` allows all tables. A query is listed as written, or as `query=*`; in $VFL_SOURCES, write a blank in a query as %20.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, unquote

from parties.alignment.index import file_of
from parties.sources.plugins import SEPARATOR, address_of, is_address, shown
from vfl.errors import ConsentRefused

VARIABLE = "VFL_SOURCES"
MEMORY = "memory"
LOCAL = "duckdb"
_DATABASES = (LOCAL, "postgresql", "postgres")
_READ = ("table", "query")
_PLAIN = re.compile(r"(?P<user>[\w.+~-]*@)?(?P<host>[\w.:\[\]-]*)(?P<path>(/[^#\\\s\x00-\x1f]*)?)")
"""Form of user, host and path that all programs split in the same way. libpq, for example, reads 'db,evil' as two hosts."""


def name_of(source: Any) -> str:
    """Return the absolute path of a file, the text of an address, or 'memory' for every other source."""
    return address_of(source) or file_of(source) or MEMORY


def matches(name: str, pattern: str, folder: Path) -> bool:
    """Return True if the pattern matches a source.

    name : result of `name_of`. folder : folder in which relative paths start.
    """
    if is_address(name) or SEPARATOR in pattern:
        return is_address(name) and is_address(pattern) and _Address.read(pattern, folder).lists(_Address.read(name))
    if MEMORY in (name, pattern):
        return fnmatchcase(name, pattern)
    path = Path(name).resolve()  # so that no link or '..' leads to an unlisted file
    return fnmatchcase(str(path), str(folder.resolve() / pattern))


def require_listed(party: str, name: str, patterns: tuple[str, ...] = (), folder: Path | None = None) -> None:
    """Raise ConsentRefused for an address that is listed neither in `patterns` nor in $VFL_SOURCES."""
    if not is_address(name) or name.startswith(LOCAL + SEPARATOR):
        return
    listed = (*patterns, *os.environ.get(VARIABLE, "").split())
    if not any(matches(name, pattern, folder or Path()) for pattern in listed):
        raise ConsentRefused(
            f"party {party!r} refuses the source {shown(name)!r}: the source would be opened with this machine's "
            f"credentials, and its owner has not listed it. If you own and trust the source, list it in {VARIABLE} on "
            f"this machine, as in {VARIABLE}='postgresql://reader@db.example/bank', or in `sources` of the policy that "
            "$VFL_POLICY names"
        )


@dataclass(frozen=True, slots=True)
class _Address:
    scheme: str
    place: str
    parameters: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, text: str, folder: Path | None = None) -> Self:
        """Split an address into scheme, place and parameters. folder : start of a relative DuckDB path in a pattern."""
        scheme, _, rest = text.partition(SEPARATOR)
        place, _, given = rest.partition("?")
        if scheme == LOCAL:  # in a pattern, resolve only the folder, since '*' is not a name
            place = str(Path(place).resolve() if folder is None else folder.resolve() / place)
        return cls(scheme, place, tuple(parse_qsl(given.replace("+", "%2B"), keep_blank_values=True)))

    def lists(self, named: _Address) -> bool:
        """Return True if this pattern matches the address `named`."""
        return self.scheme == named.scheme and self._places(named.place) and self._lists(named.parameters)

    def _places(self, place: str) -> bool:
        if self.scheme == LOCAL:
            return fnmatchcase(place, self.place)
        if place == self.place:
            return True
        named, own = _PLAIN.fullmatch(place), re.fullmatch(r"(?P<user>[^@/]*@)?(?P<host>[^/]*)(?P<path>.*)", self.place)
        if named is None or own is None or {".", ".."} & set(unquote(named["path"]).split("/")):
            return False
        return all(_fits(named[part] or "", own[part] or "") for part in ("user", "host", "path"))

    def _lists(self, named: tuple[tuple[str, str], ...]) -> bool:
        read = [(name, value) for name, value in self.parameters if name in _READ]
        if self.scheme in _DATABASES and not read:
            read = [("table", "*")]
        others = [(name, value) for name, value in self.parameters if name not in _READ]
        known = all(any(_same(pair, own) for own in (*read, *others)) for pair in named)
        return known and all(any(_same(pair, own) for pair in named) for own in others)


def _same(pair: tuple[str, str], pattern: tuple[str, str]) -> bool:
    (name, value), (own, listed) = pair, pattern
    if name == "query":  # '*' within a query is not a wild card
        return own == name and listed in ("*", value)
    return own == name and _fits(value, listed)


def _fits(text: str, pattern: str) -> bool:
    return text == pattern or fnmatchcase(text, pattern)
