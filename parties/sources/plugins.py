"""Sources that other packages provide, for data that vfl itself cannot read. The packages are installed on the party's node.

A package names a function in its entry points of the group "vfl.sources":

    [project.entry-points."vfl.sources"]
    warehouse = "acme_vfl:open_address"

The address "warehouse://sales/customers" then calls this function in the party's process with "sales/customers". The function
returns any source that `parties.sources.opening.open_source` accepts: a path, a table, an array, a sparse matrix, or a function
that returns one.
"""

from __future__ import annotations

import importlib.metadata
import logging
from typing import TYPE_CHECKING, Any

from vfl.base.csv import Csv
from vfl.errors import VflError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from parties.sources.base import Origin

GROUP = "vfl.sources"
SEPARATOR = "://"

log = logging.getLogger("vfl.parties")


def is_address(spec: Any) -> bool:
    """Return True for text of the form NAME://ADDRESS."""
    return isinstance(spec, str) and spec.partition(SEPARATOR)[0].isidentifier() and SEPARATOR in spec


def address_of(spec: Any) -> str:
    """Return the address of a source; '' for a source that is no address."""
    address = spec.path if isinstance(spec, Csv) else spec
    return address if is_address(address) else ""


def is_built_in(spec: Any, schemes: Collection[str]) -> bool:
    """Return True for an address of one of these schemes, unless an installed package provides its source."""
    scheme = scheme_of(address_of(spec))
    return scheme in schemes and not installed(scheme)


def scheme_of(address: str) -> str:
    """Return NAME of NAME://ADDRESS."""
    return address.partition(SEPARATOR)[0]


def shown(address: str) -> str:
    """Return an address without user, password and parameters, for errors that other parties see."""
    scheme, _, rest = address.partition(SEPARATOR)
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}{SEPARATOR}{host.rpartition('@')[2]}{slash}{path}"


def installed(name: str) -> bool:
    """Return True if a package provides a source of that name. Such a source overrides vfl's own source of that name."""
    return bool(importlib.metadata.entry_points(group=GROUP, name=name))


def fetch(spec: str, origin: Origin) -> Any:
    """Return the data that an installed source returns for the address. Raises DataError."""
    name, _, address = spec.partition(SEPARATOR)
    found = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise origin.error(
            f"there is no source {name!r} where the party runs{nearest(name, found)}; installed: {known}: install the "
            f"package that has it in its entry points {GROUP!r}"
        )
    return called(lambda: found[name].load()(address), origin)


def called(function: Callable[[], Any], origin: Origin) -> Any:
    """Return function(). Raises DataError if it fails; only the local log has the original message, which may quote cells."""
    try:
        return function()
    except (VflError, MemoryError):
        raise
    except Exception as error:
        log.exception("%s: its own code failed", origin.place)
        kind = type(error).__name__
    raise origin.error(f"the function that opens it failed with {kind}: its log, where the party runs, says why")
