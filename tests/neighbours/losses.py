"""An in-process transport that loses parties on purpose, and revives them with their data read again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vfl.errors import PartyLost
from vfl.launch.sites.inprocess import InProcessTransport

if TYPE_CHECKING:
    from tests.neighbours.tape import Tape
    from vfl.network.messages import Greeting
    from vfl.privacy.events import ReleaseKey


@dataclass(frozen=True)
class Loss:
    """The loss of a party during one query.

    round : number of the query. moment : 'before' or 'after' the party's answer. times : number of losses in a row.
    """

    party: str
    round: int
    moment: str = "after"
    times: int = 1


class Losing(InProcessTransport):
    """Loses parties as specified."""

    def __init__(self, losses: tuple[Loss, ...], tape: Tape, parties: dict[str, Any]) -> None:
        super().__init__(parties)
        self._losses, self._tape = losses, tape
        self._attempts: dict[int, int] = {}

    def ask(self, shares: Any, records: Any, key: ReleaseKey) -> Any:
        attempt = self._attempts[key.round] = self._attempts.get(key.round, -1) + 1
        lost = [x for x in self._losses if x.round == key.round and x.party in shares and attempt < x.times]
        for loss in lost:
            if loss.moment == "after":
                super().ask(shares, records, key)
            raise PartyLost(f"{loss.party!r} died", loss.party)
        return super().ask(shares, records, key)

    def revive(self, party: str, seconds: float) -> Greeting:
        self._parties[party] = self._tape.reload(party)
        return self._parties[party].greet()
