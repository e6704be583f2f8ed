"""Reaction of a run to the loss of a party: wait for the party, continue without it, or end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.states.state import StateLost
from vfl.errors import PartyLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.transport import Transport
    from vfl.job.site import Faults
    from vfl.messages import Greeting

LOSSES_A_QUERY = 3
"""Largest number of losses during one query after which the query is repeated. Each attempt is charged."""


class Recovery:
    """Applies the job's policy for lost parties.

    welcome : called with a returning party and its greeting, before any query; it raises an error if the greeting differs.
    keep : label party, which also holds the intercept. No run can continue without it.
    given_up : the parties without which the run continues, in the order of their loss.
    """

    def __init__(
        self, transport: Transport, faults: Faults, welcome: Callable[[str, Greeting], None], *, keep: str
    ) -> None:
        self._transport = transport
        self._faults = faults
        self._welcome = welcome
        self._keep = keep
        self.given_up: list[str] = []

    def restored(self, lost: PartyLost, losses: int) -> bool:
        """Return True if the party is back and the query can be repeated; False to continue without the party.

        A party that was given up is never restored, even if it shares a process with a party that is restored.

        losses : number of failed attempts at the query. Raises PartyLost if the run must end; it can be resumed later.
        """
        policy, party = self._faults.on_party_lost, lost.party
        if isinstance(lost, StateLost) and policy != "abort" and losses <= LOSSES_A_QUERY:
            return True  # the next attempt waits for the state, and rebuilds it
        if not party or policy == "abort":
            raise lost
        why = f"came back {losses - 1} times and was lost again over the same query"
        if losses <= LOSSES_A_QUERY:
            try:
                # Restore all remaining parties of a lost process at once, so that the loss costs one attempt.
                remaining = [name for name in self._transport.together(party) if name not in self.given_up]
                back = {name: self._transport.revive(name, self._faults.wait_seconds) for name in remaining}
            except PartyLost as still:
                why = f"did not come back within {self._faults.wait_seconds:g} s ({still})"
            else:
                for name, greeting in back.items():
                    self._welcome(name, greeting)
                return True
        if policy == "skip" and party != self._keep:
            self.given_up.append(party)
            return False
        raise PartyLost(
            f"party {party!r} was lost and {why}; once it runs again, continue with: vfl resume", party
        ) from lost
