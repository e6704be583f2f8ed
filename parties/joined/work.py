"""Work that an owner has agreed to: the calls that may follow an offer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from vfl.errors import FederationError
from vfl.messages.joining import Done
from vfl.wire.frames import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from vfl.messages import BookHeads, Notice, Query
    from vfl.messages.joining import Offer
    from vfl.privacy.events import ReleaseKey

    Sent = tuple[object, Mapping[str, Any]]

BODY_BYTES = 1 << 20


class Work:
    """Work of one offer; it survives a broken stream. Calls that it does not define are refused.

    offer : as accepted. coordinator : the process that made the offer. reported : time of the last report of the cost.
    """

    def __init__(self, offer: Offer) -> None:
        self.offer, self.coordinator = offer, b""
        self.reported = 0.0
        self._began = time.monotonic()

    @property
    def limits(self) -> Limits:
        """Return the size limits of the next call."""
        return Limits(BODY_BYTES)

    def takes(self, message: object) -> Iterable[str]:
        """Return the names of the vectors that a call takes; for a query, of its records."""
        del message
        return ()

    def accepted(self) -> Sent:
        """Return the answer to the offer; the same again after a stream broke."""
        return Done(), {}

    def hear(self, notice: Notice) -> BookHeads:
        """Pass a notice to the owner's book."""
        raise self.undue(notice)

    def answer(self, query: Query, vectors: Mapping[str, Any], key: ReleaseKey) -> Sent:
        """Return the reply to a share of a query."""
        raise self.undue(query)

    def other(self, message: object, vectors: Mapping[str, Any], progress: Callable[[int], None]) -> Sent:
        """Return the answer to another call."""
        raise self.undue(message)

    def summary(self) -> dict[str, Any]:
        """Return facts for the owner: seconds, releases, their ε, records, and the ε left in the book."""
        seconds = time.monotonic() - self._began
        return {"seconds": seconds, "releases": 0, "epsilon": None, "records": None, "left": None}

    def reserved(self) -> float | None:
        """Return ε that the owner's book has set aside for this; None without a book."""
        return None

    def close(self) -> None:
        """End processes and close files."""

    def undue(self, message: object) -> FederationError:
        """Return the refusal of a call that does not belong to this work."""
        return FederationError(f"a {type(message).__name__} came; it does not belong to work to {self.offer.purpose}")
