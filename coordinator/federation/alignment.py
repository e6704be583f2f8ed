"""Transport of an alignment in a federation: sets pass through the coordinator sealed from party to party.

The coordinator reads what it reads in every engine: sets that all parties have blinded. It learns the lengths of the others.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.federation.link import SENTENCE
from coordinator.federation.transport import expected, sized, together
from vfl.alignment import IdsGreeting, Indexed
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
from vfl.security.psi import SIZE
from vfl.security.sealing import sealed_size
from vfl.wire.frames import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from coordinator.federation.gathering import Gathering
    from coordinator.federation.link import Answer, Link
    from vfl.security.psi import Points
    from vfl.types import Integers

MOST_IDS = 1 << 28
READ_SECONDS = 3600.0
COPIES = 2
"""Copies of every party's set that the coordinator holds at once: as received, and while they are compared."""


class FederationAlignment:
    """Transport of blinded sets between the parties of a federation. Sets are named by the party that holds them.

    timeout : seconds that a party may take for one answer.
    """

    def __init__(self, gathering: Gathering, parties: tuple[str, ...], timeout: float) -> None:
        self._gathering, self._parties, self._timeout = gathering, parties, timeout
        self._sizes: dict[str, int] = {}

    def introduce(self, *, salted: bool = True) -> None:
        """Hand the parties' keys for sealed texts to one another, and the salt that the first party chooses, sealed."""
        calls = {name: self._calling(name, Introduce()) for name in self._parties}
        keys = together(calls, lambda name, answer: expected(answer.wait(self._timeout)[0], SealingKey, name))
        self._all({name: Introduced(keys) for name in self._parties})
        if not salted:
            return
        maker, *others = self._parties
        sealed = expected(self._link(maker).call(MakeSalt()).wait(self._timeout)[0], Sealed, maker)
        if sealed.texts.keys() != set(others):
            raise FederationError(f"party {maker!r} did not seal the salt for all parties")
        self._all({name: TakeSalt(maker, sealed.texts[name]) for name in others})

    def greet(self) -> dict[str, IdsGreeting]:
        """Have all parties read their ids; return their greetings about them."""
        calls = {name: self._calling(name, ReadIds()) for name in self._parties}
        greetings = together(calls, lambda name, answer: expected(answer.wait(READ_SECONDS)[0], IdsGreeting, name))
        self._sizes = {name: greeting.n_ids for name, greeting in greetings.items()}
        for name, size in self._sizes.items():
            if not 0 < size <= MOST_IDS:
                raise FederationError(f"party {name!r} reported an impossible number of ids")
        needed, here = COPIES * SIZE * sum(self._sizes.values()), memory_here()
        if needed > here:
            raise FederationError(
                f"the coordinator has {here / 1e9:.3g} GB of memory, and the sets of ids that the parties announce take "
                f"{needed / 1e9:.3g} GB: align on a larger machine"
            )
        return greetings

    def begin(self, pending: str | None) -> None:
        """Have all parties begin."""
        self._all(dict.fromkeys(self._parties, BeginAligning(pending, self._sizes)))

    def multiply(
        self, step: Mapping[str, str], sets: Mapping[str, Any]
    ) -> Generator[tuple[str, int], None, dict[str, Any]]:
        """Have all parties multiply at the same time; a set that is returned is the name of the party that holds it."""
        sealed = self._sent({owner: (sets[owner], party) for party, owner in step.items() if owner != party})
        done: dict[str, int] = {}
        ended: list[Future[dict[str, Done]]] = []
        calls = {
            party: self._calling(
                party,
                Multiply(owner, sets.get(owner, party)),
                vectors={"points": sealed[owner]} if owner != party else {},
                progress=lambda count, party=party: done.update({party: count}),
                steps=self._sizes[owner],
            )
            for party, owner in step.items()
        }
        with ThreadPoolExecutor(1) as waiting:
            ended.append(waiting.submit(together, calls, self._done))
            while not ended[0].done():
                wait(ended, timeout=0.1)
                for party in list(done):
                    yield party, done.pop(party)
        ended[0].result()
        return {owner: party for party, owner in step.items()}

    def fetch(self, sets: Mapping[str, Any]) -> dict[str, Points]:
        """Return the points of the sets."""
        found = self._sent({owner: (holder, "") for owner, holder in sets.items()})
        return {owner: points.reshape(-1, SIZE) for owner, points in found.items()}

    def conclude(self, positions: Mapping[str, Integers]) -> dict[str, Indexed]:
        """Tell every party the positions of its common records."""
        calls = {
            name: self._calling(name, Conclude(), vectors={"positions": np.asarray(own, np.int64)})
            for name, own in positions.items()
        }
        return together(calls, lambda name, answer: expected(answer.wait(self._timeout)[0], Indexed, name))

    def _sent(self, asked: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
        """Return {owner: its set}, from the party that holds it: sealed for a party, or unsealed for ''."""
        size = {owner: SIZE * self._sizes[owner] for owner in asked}
        due = {owner: sealed_size(size[owner]) if to else size[owner] for owner, (_, to) in asked.items()}
        calls = {
            owner: self._calling(holder, SendSet(owner, to), limits=Limits(SENTENCE, {"points": due[owner]}))
            for owner, (holder, to) in asked.items()
        }

        def received(owner: str, answer: Answer) -> Any:
            message, vectors = answer.wait(self._timeout)
            holder = asked[owner][0]
            expected(message, Done, holder)
            return sized(vectors, "points", due[owner], holder, "bytes")

        return together(calls, received)

    def _all(self, calls: Mapping[str, object]) -> None:
        together({name: self._calling(name, message) for name, message in calls.items()}, self._done)

    def _done(self, party: str, answer: Answer) -> Done:
        return expected(answer.wait(self._timeout)[0], Done, party)

    def _calling(self, party: str, message: object, **options: Any) -> Callable[[], Answer]:
        return lambda: self._link(party).call(message, **options)

    def _link(self, party: str) -> Link:
        return self._gathering.link(party, 0.0)
