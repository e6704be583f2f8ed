"""A joined party's side of an alignment: sets travel sealed from party to party, and the salt is unknown to the coordinator.

The coordinator receives what it receives in every engine: sets that all parties have blinded, to compare them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.alignment.participant import Alignment
from vfl.alignment import Keeping
from vfl.errors import FederationError
from vfl.messages.joining import (
    BeginAligning,
    Conclude,
    Done,
    Introduce,
    Introduced,
    MakeSalt,
    Multiply,
    ReadIds,
    Sealed,
    SealingKey,
    SendSet,
    TakeSalt,
)
from vfl.planning.machine import memory_here
from vfl.security.psi import SIZE, new_salt
from vfl.security.sealing import sealed_size
from vfl.wire.frames import as_vector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from parties.alignment.index import Index
    from parties.consent import Policy
    from parties.session import Credentials
    from vfl.job.task import PartyTask
    from vfl.messages.joining import Offer
    from vfl.security.sealing import Sealer

MOST_IDS = 1 << 28
"""Largest number of ids of one party: 8 GiB of points."""
COPIES = 3
"""Copies of a set that a party holds at once: as sealed, as opened, and blinded."""


@dataclass(frozen=True, slots=True)
class PartySettings:
    """Settings of a party for its work, and its keys for sealed texts.

    policy : the owner's. cores : for alignment and training. indexes : folder for aligned rows; None is that of the user.
    shards : ranges of rows in which a prediction reads the columns, one after another.
    certificates : {party: its certificate}, by which keys for sealed texts are checked. credentials : for a run on shares.
    """

    policy: Policy
    cores: int
    indexes: str | None
    sealer: Sealer
    certificates: Mapping[str, bytes]
    credentials: Credentials | None = None
    shards: int = 1


class Aligning:
    """Alignment of one party's records, or the index that an earlier one left.

    offer : as accepted; names the rows to keep. cores, indexes, certificates : settings of the party (PartySettings).
    """

    def __init__(
        self,
        offer: Offer,
        task: PartyTask,
        source: Any,
        own: PartySettings,
    ) -> None:
        self._offer, self._task, self._source, self._own = offer, task, source, own
        self._keeping = Keeping(own.indexes, offer.keeps or None, offer.resumed, offer.later, offer.last, offer.again)
        self._salt = b""
        self._alignment: Alignment | None = None
        self._sizes: Mapping[str, int] = {}

    @property
    def limits(self) -> Mapping[str, int]:
        """Return the size limit of each incoming vector, in bytes."""
        own, largest = self._sizes.get(self._task.party, 0), max(self._sizes.values(), default=0)
        return {"positions": 8 * own, "points": sealed_size(SIZE * largest)} if self._sizes else {}

    def takes(self, message: object) -> Iterable[str]:
        """Return the names of the vectors that a call takes."""
        match message:
            case Multiply() if message.owner != self._task.party:
                return ("points",)
            case Conclude():
                return ("positions",)
        return ()

    def answer(
        self, message: object, vectors: Mapping[str, Any], progress: Callable[[int], None]
    ) -> tuple[object, Mapping[str, Any]]:
        """Return the answer to a call of the alignment."""
        own = self._task.party
        match message:
            case Introduce():
                return SealingKey(self._own.sealer.key, self._own.sealer.signature), {}
            case Introduced():
                if message.keys.keys() != set(self._offer.parties):
                    raise FederationError(f"party {own!r} was not given the keys of all parties")
                for name, given in message.keys.items():
                    if name != own:
                        self._own.sealer.meet(name, given.key, given.signature, self._certificate(name))
                return Done(), {}
            case MakeSalt():
                self._salt = new_salt()
                others = [name for name in self._offer.parties if name != own]
                return Sealed({name: self._own.sealer.seal(name, "salt", self._salt) for name in others}), {}
            case TakeSalt():
                self._salt = bytes(self._own.sealer.open(message.maker, "salt", message.text))
                return Done(), {}
            case ReadIds():
                if self._alignment is not None:
                    self._alignment.close()
                self._alignment = Alignment(
                    self._task, self._source, salt=self._salt, cores=self._own.cores, keeping=self._keeping
                )
                return self._alignment.greet(), {}
            case BeginAligning():
                if message.sizes.keys() != set(self._offer.parties) or not all(
                    0 < size <= MOST_IDS for size in message.sizes.values()
                ):
                    raise FederationError(f"party {own!r} was sent impossible numbers of ids")
                if message.sizes[own] != self._begun().greet().n_ids:
                    raise FederationError(f"party {own!r} was sent a number of its ids that differs from its own count")
                self._require_memory(max(message.sizes.values()))
                self._begun().begin(message.pending)
                self._sizes = message.sizes
                return Done(), {}
            case Multiply():
                self._multiply(message, vectors, progress)
                return Done(), {}
            case SendSet():
                if not message.to and message.owner == own and len(self._offer.parties) > 1:
                    raise FederationError(
                        f"party {own!r} sends its own set in the clear once the others have blinded it"
                    )
                points = np.ascontiguousarray(self._begun().take(message.owner))
                if not message.to:
                    return Done(), {"points": points}
                label = _label(message.owner)
                return Done(), {"points": self._own.sealer.seal(message.to, label, points.reshape(-1).data)}
            case Conclude():
                if "positions" not in vectors:
                    raise FederationError(f"party {own!r} was sent no positions")
                return self._begun().conclude(as_vector(vectors["positions"], "int64")), {}
        raise FederationError(f"party {own!r} was sent a {type(message).__name__}, which was not expected")

    def concluded(self) -> Index:
        """Return the aligned rows of this work's own alignment."""
        index = self._begun().settled()
        self.close()
        return index

    def settled(self) -> Index | None:
        """Return the aligned rows to load; None for a job that aligns no records."""
        if self._task.id is None:
            return None
        if self._alignment is None and self._keeping.run is None:
            raise FederationError(
                f"party {self._task.party!r} was restarted, and a run without an output folder keeps no aligned rows: name one"
            )
        if self._alignment is None:
            kept = replace(self._keeping, resumed=True)
            self._alignment = Alignment(self._task, self._source, salt=b"", cores=1, keeping=kept)
        index = self._alignment.settled()
        self.close()
        return index

    def close(self) -> None:
        """End the processes of an alignment that is not concluded; what it has saved stays."""
        if self._alignment is not None:
            self._alignment.close()
            self._alignment = None

    def _multiply(self, message: Multiply, vectors: Mapping[str, Any], progress: Callable[[int], None]) -> None:
        points = None
        if message.owner != self._task.party:
            if "points" not in vectors or message.owner not in self._sizes:
                raise FederationError(f"party {self._task.party!r} was sent no set to blind")
            opened = self._own.sealer.open(message.holder, _label(message.owner), vectors["points"])
            if len(opened) != SIZE * self._sizes[message.owner]:
                raise FederationError(f"the set of {message.owner!r} has a different size from the one announced")
            points = np.frombuffer(opened, np.uint8).reshape(-1, SIZE)
        for done in self._begun().multiply(message.owner, points):
            progress(done)

    def _require_memory(self, size: int) -> None:
        """Refuse a stated number of ids whose set this machine cannot hold, before any memory is taken for it."""
        needed, here = COPIES * SIZE * size, memory_here()
        if needed > here:
            raise FederationError(
                f"party {self._task.party!r} has {here / 1e9:.3g} GB of memory, and a set of {size:,} ids takes "
                f"{needed / 1e9:.3g} GB: align on a larger machine"
            )

    def _certificate(self, party: str) -> bytes:
        if party not in self._own.certificates:
            raise FederationError(f"{party!r} is not a party of this federation")
        return self._own.certificates[party]

    def _begun(self) -> Alignment:
        if self._alignment is None:
            raise FederationError("a party was asked to align before it read its ids")
        return self._alignment


def _label(owner: str) -> str:
    return f"set of {owner}"
