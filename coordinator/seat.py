"""Handles of parties that share one worker process of a simulation, used like the handles of actors of their own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class _Method:
    """One method of one party, called in the process that it shares."""

    process: Any
    party: str
    name: str
    chosen: Any = None

    def remote(self, *arguments: Any) -> Any:
        """Call the method; return what Ray returns."""
        return (self.chosen or self.process.call).remote(self.party, self.name, *arguments)

    def options(self, **options: Any) -> _Method:
        """Return the method with Ray's options; only generators stream their returns."""
        method = self.process.stream if options.get("num_returns") == "streaming" else self.process.call
        return replace(self, chosen=method.options(**options))


@dataclass(frozen=True, slots=True)
class Seat:
    """One party's place in a process of several (parties.actor.Shared).

    number : of the process, by which parties know that they are lost together.
    """

    process: Any = field(repr=False)
    number: int
    party: str

    def __getattr__(self, name: str) -> _Method:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Method(self.process, self.party, name)


def process_of(actor: Any) -> Any:
    """Return the handle of the process in which a party runs: its own actor, or the one that it shares."""
    return actor.process if isinstance(actor, Seat) else actor


def together(actors: Mapping[str, Any], party: str) -> tuple[str, ...]:
    """Return the parties that are lost with this one, itself first."""
    own = actors[party]
    if not isinstance(own, Seat):
        return (party,)
    others = (name for name, actor in actors.items() if isinstance(actor, Seat) and actor.number == own.number)
    return (party, *(name for name in others if name != party))
