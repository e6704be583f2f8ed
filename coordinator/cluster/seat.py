"""Handles of parties that share one worker process of a simulation. They are used like handles of Ray actors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class _Method:
    """One method of one party, called in the party's shared process."""

    process: Any
    party: str
    name: str
    chosen: Any = None

    def remote(self, *arguments: Any) -> Any:
        """Call the method, and return Ray's reference or generator."""
        return (self.chosen or self.process.call).remote(self.party, self.name, *arguments)

    def options(self, **options: Any) -> _Method:
        """Return the method with Ray's options. Only a generator method streams its results."""
        method = self.process.stream if options.get("num_returns") == "streaming" else self.process.call
        return replace(self, chosen=method.options(**options))


@dataclass(frozen=True, slots=True)
class Seat:
    """Handle of one party in a process that several parties share (`parties.actor.Shared`).

    number : number of the process. Parties with the same number are lost together.
    """

    process: Any = field(repr=False)
    number: int
    party: str

    def __getattr__(self, name: str) -> _Method:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Method(self.process, self.party, name)


def process_of(actor: Any) -> Any:
    """Return the handle of the process in which a party runs: its own actor, or an actor shared with other parties."""
    return actor.process if isinstance(actor, Seat) else actor


def together(actors: Mapping[str, Any], party: str) -> tuple[str, ...]:
    """Return the parties that are lost together with `party`, which comes first."""
    own = actors[party]
    if not isinstance(own, Seat):
        return (party,)
    others = (name for name, actor in actors.items() if isinstance(actor, Seat) and actor.number == own.number)
    return (party, *(name for name in others if name != party))
