"""A party's part of an alignment: it reads its ids and blinds all parties' sets of ids. The coordinator compares the sets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.alignment.participant import Alignment
from parties.services.service import Service
from vfl.alignment import MOST_IDS
from vfl.errors import FederationError
from vfl.messages.joining import BeginAligning, Conclude, Done, Multiply, ReadIds, SendSet
from vfl.security.psi import SIZE

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping

    from parties.alignment.index import Index
    from parties.alignment.reading import ReadIds as Reader
    from parties.services.service import Sent
    from vfl.alignment import Keeping
    from vfl.job.task import PartyTask

COPIES = 3
"""Number of copies of a set that a party holds at once: the sealed set, the opened set and the blinded set."""


class AlignmentService(Service):
    """Alignment of one party's records, or an index from an earlier alignment.

    task : task of the party; it names the id column. source : source in this process. keeping : files that stay on the party's
    disk. parties : names of all participating parties. cores : number of cores that the alignment may use.
    salt : salt of a new alignment, equal for all parties and unknown to the coordinator.
    read : function that reads the ids; None to read the ids into this process.
    """

    def __init__(
        self,
        task: PartyTask,
        source: Any,
        keeping: Keeping,
        *,
        parties: Collection[str],
        salt: bytes = b"",
        cores: int = 1,
        read: Reader | None = None,
    ) -> None:
        self._task, self.source, self._keeping, self._read = task, source, keeping, read
        self._parties, self.salt, self.cores = parties, salt, cores
        self._alignment: Alignment | None = None
        self.sizes: Mapping[str, int] = {}

    def answer(self, message: object, vectors: Mapping[str, Any]) -> Sent:
        """Return the answer to a message of the alignment."""
        own = self._task.party
        match message:
            case ReadIds():
                self.close()
                self._alignment = self._opened(self.salt, self.cores, self._keeping)
                return self._alignment.greet(), {}
            case BeginAligning():
                self._check_sizes(message.sizes)
                self._begun().begin(message.pending)
                self.sizes = message.sizes
                return Done(), {}
            case SendSet():
                if not message.to and message.owner == own and len(self._parties) > 1:
                    raise FederationError(
                        f"party {own!r} does not send its own set in the clear before the others have blinded it"
                    )
                return Done(), {"points": np.ascontiguousarray(self._begun().take(message.owner)).reshape(-1)}
            case Conclude():
                positions = vectors.get("positions")
                if positions is None or positions.nbytes % 8:
                    raise FederationError(f"party {own!r} was sent no positions")
                return self._begun().conclude(np.frombuffer(positions, "<i8")), {}
        raise self.undue(message)

    def stream(self, message: object, vectors: Mapping[str, Any]) -> Generator[int, None, Sent]:
        """Blind a set and yield the number of points done so far. Messages of any other kind are answered at once."""
        if not isinstance(message, Multiply):
            return self.answer(message, vectors)
        points = None
        if message.owner != self._task.party:
            if "points" not in vectors or message.owner not in self.sizes:
                raise FederationError(f"party {self._task.party!r} was sent no set to blind")
            points = np.frombuffer(vectors["points"], np.uint8)  # read-only if the received buffer is
            if points.size != SIZE * self.sizes[message.owner]:
                raise FederationError(f"the set of {message.owner!r} has a different size from the one announced")
            points = points.reshape(-1, SIZE)
        yield from self._begun().multiply(message.owner, points)
        return Done(), {}

    def concluded(self) -> Index:
        """Return the index with the rows that this service has aligned."""
        index = self._begun().settled()
        self.close()
        return index

    def settled(self) -> Index | None:
        """Return the index with the rows to load, after a restart the index that the run kept; None without alignment."""
        if self._task.id is None:
            return None
        if self._alignment is None and self._keeping.run is None:
            raise FederationError(
                f"party {self._task.party!r} was restarted, and a run without an output folder keeps no aligned rows: name "
                "an output folder"
            )
        if self._alignment is None:
            self._alignment = self._opened(b"", 1, replace(self._keeping, resumed=True))
        return self.concluded()

    def close(self) -> None:
        """End the processes of an unfinished alignment. Its saved state stays on disk."""
        if self._alignment is not None:
            self._alignment.close()
            self._alignment = None

    def _opened(self, salt: bytes, cores: int, keeping: Keeping) -> Alignment:
        return Alignment(self._task, self.source, salt=salt, cores=cores, keeping=keeping, read=self._read)

    def _begun(self) -> Alignment:
        if self._alignment is None:
            raise FederationError("a party was asked to align before it read its ids")
        return self._alignment

    def _check_sizes(self, sizes: Mapping[str, int]) -> None:
        """Refuse impossible numbers of ids, and sets that this machine cannot hold, before any memory is taken for them."""
        from vfl.planning.cost import memory_here  # imported here, since training alone does not need it

        own = self._task.party
        if set(sizes) != set(self._parties) or not all(0 < size <= MOST_IDS for size in sizes.values()):
            raise FederationError(f"party {own!r} was sent impossible numbers of ids")
        if sizes[own] != self._begun().greet().n_ids:
            raise FederationError(f"party {own!r} was sent a number of its ids that differs from its own count")
        needed, here = COPIES * SIZE * max(sizes.values()), memory_here()
        if needed > here:
            raise FederationError(
                f"party {own!r} has {here / 1e9:.3g} GB of memory, and a set of {max(sizes.values()):,} ids takes "
                f"{needed / 1e9:.3g} GB: align on a larger machine"
            )
