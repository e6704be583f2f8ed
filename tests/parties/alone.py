"""A party over columns in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parties.party import Party
from parties.rows import Rows
from vfl.network.shards import LocalGroup

if TYPE_CHECKING:
    from parties.storage.classes import Storage
    from vfl.privacy.noise import NoiseSource
    from vfl.queries import Query


def party_over(
    name: str,
    columns: Storage,
    noise: NoiseSource,
    labels: Any = None,
    *,
    exact: tuple[type[Query], ...] = (),
    **options: Any,
) -> Party:
    """Return a party without a book, which answers queries for products of columns. options : of its `Rows`."""
    rows = Rows(name, columns, labels, **options)
    return Party(name, LocalGroup([rows]), [rows.facts()], noise, exact=exact, products=True)
