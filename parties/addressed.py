"""Check that a query concerns only columns of the party that receives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfl.errors import PrivacyError
from vfl.messages import Backward, Columns, Counts, Descend, Forward, Moments, Ranges, RecordNorms, Select
from vfl.messages.query import by_party

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfl.messages import Block, Query


def check_addressed(query: Query, party: str, n_coordinates: int) -> None:
    """Raise PrivacyError for a query that concerns another party, or columns that this party does not have."""
    for name, block in _blocks(query):
        if name != party or block.party != party or not 0 <= block.start <= block.stop <= n_coordinates:
            raise PrivacyError(f"party {party!r} was asked about columns that are not its own")
    capped = query.capped if isinstance(query, Descend | Backward) else None
    given = [getattr(query, name).keys() for name in by_party(query) if getattr(query, name) is not None]
    fits = not given or (given[0] == {party} and all(names <= {party} for names in given))
    fits = fits and (capped is None or party in capped.rows)
    if fits and isinstance(query, Moments):
        fits = 0 <= query.widths[party] <= n_coordinates
    elif fits and isinstance(query, Ranges | Counts):
        fits = bool(query.columns[party]) and all(0 <= j < n_coordinates for j in query.columns[party])
    elif fits and isinstance(query, Descend):
        fits = party in query.start and len(query.start[party]) <= n_coordinates
        fits = fits and (query.replayed is None or tuple(map(len, query.replayed)) == query.sizes())
    if not fits:
        raise PrivacyError(f"party {party!r} was asked about columns that are not its own")


def _blocks(query: Query) -> Iterator[tuple[str, Block]]:
    """Yield every block of a query, with the party that the query names for it."""
    capped = query.capped if isinstance(query, Descend | Backward) else None
    if capped is not None:
        yield from ((name, block) for name, (block, _, _) in capped.rows.items())
    match query:
        case Backward():
            yield from ((block.party, block) for block in query.blocks)
        case Descend():
            yield from ((name, step.block) for name, steps in query.steps.items() for step in steps)
        case Forward() | Select():
            yield from ((name, block) for name, (block, _) in query.coordinates.items())
        case RecordNorms() | Columns():
            yield from ((name, block) for name, (block, _, _) in query.rows.items())
