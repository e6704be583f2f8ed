"""A party's part of training: it loads its columns, then answers every query for its own share of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from parties.services.service import Service
from vfl.errors import PartyLost
from vfl.network.messages import Done, Load, Multiply, Notice, SendLabels
from vfl.network.shards import Each
from vfl.queries import Records
from vfl.secure.requests import Request, given_ciphertexts, named_ciphertexts

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from parties.alignment.index import Index
    from parties.party import Party
    from parties.services.aligning import AlignmentService
    from parties.services.service import Sent

RECORDS = ("weights", "margins", "labels", "limits")
"""Names of the vectors in `Records`."""


class PartyService(Service):
    """Service of a party. party : None before its columns are loaded."""

    def __init__(self, party: Party | None) -> None:
        self.party = party

    def answer(self, message: Any, vectors: Mapping[str, Any]) -> Sent:
        """Return the reply to this party's share of a query, or to another message of a run."""
        if (party := self.party) is None:
            raise self.undue(message)
        match message:
            case (query, key):
                # The vectors of all shards are sent under one name, as a list with one item per shard.
                over = "records" in vectors
                records: Any = (
                    Each(vectors["records"]) if over else Records(**{k: vectors[k] for k in vectors if k in RECORDS})
                )
                reply = party.answer(query, records, key)
                if reply.vector is None:
                    return reply, {}
                return replace(reply, vector=None), {"vector": reply.vector}
            case Load():
                return party.greet(), {}
            case SendLabels():
                return Done(), {"labels": party.labels()}
            case Notice():
                return party.hear(message), {}
        if isinstance(message, Request):
            reply_to_request, ciphertexts = party.request(message, given_ciphertexts(vectors))
            return reply_to_request, named_ciphertexts(ciphertexts)
        raise self.undue(message)


class TrainingService(PartyService):
    """Service of one party in one run: align the records if the job has ids, load the aligned rows, then train on them.

    name : name of the party. load : function that returns the loaded party, called for every `Load`. Its argument is the
        function `settled`, which returns the index with the aligned rows.
    """

    def __init__(
        self, name: str, aligning: AlignmentService, load: Callable[[Callable[[], Index | None]], Party]
    ) -> None:
        super().__init__(None)
        self._name, self._load = name, load
        self.aligning = aligning

    def answer(self, message: object, vectors: Mapping[str, Any]) -> Sent:
        """Return the answer to a message of the alignment or of the training."""
        if isinstance(message, Load):
            self.party = self._load(self.aligning.settled)
        if self.party is not None:
            return super().answer(message, vectors)
        if isinstance(message, tuple | SendLabels | Notice | Request):
            raise PartyLost(f"{self._name!r} was restarted and has not loaded its data again", self._name)
        return self.aligning.answer(message, vectors)

    def stream(self, message: object, vectors: Mapping[str, Any]) -> Generator[int, None, Sent]:
        """Answer a long message of the alignment: yield the progress, then return what `answer` would return."""
        if isinstance(message, Multiply) and self.party is None:
            return (yield from self.aligning.stream(message, vectors))
        return self.answer(message, vectors)

    def close(self) -> None:
        """End the processes of an alignment."""
        self.aligning.close()
