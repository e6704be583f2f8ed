"""Interface of a participant under every transport: messages and vectors in, a message and vectors out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vfl.errors import FederationError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    Sent = tuple[object, Mapping[str, Any]]
    """A message, and {name: vector} of the vectors that travel with the message."""


class Service:
    """Base of participants' services. A service asks no policy, has no identity, encrypts nothing, and raises errors unchanged.

    A message of an unknown kind or out of order raises FederationError and changes nothing.
    """

    def answer(self, message: object, vectors: Mapping[str, Any]) -> Sent:
        """Return the reply to a message, with its vectors.

        message : of a registered kind (vfl.network.kinds); for a query, the tuple (query, key of its release). vectors :
            arrays by name.
        """
        del vectors
        raise self.undue(message)

    def stream(self, message: object, vectors: Mapping[str, Any]) -> Generator[int, None, Sent]:
        """Answer a long message: yield the progress, then return what `answer` would return."""
        yield from ()
        return self.answer(message, vectors)

    def close(self) -> None:
        """End processes and close files."""

    def undue(self, message: object) -> FederationError:
        """Return the error for a message that does not belong to this service."""
        return FederationError(f"received a {type(message).__name__}, which does not belong to this job")
