"""Sealing of the vectors that parties of different organisations send to one another through the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.errors import FederationError
from vfl.messages import joining
from vfl.security.psi import new_salt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parties.services.aligning import AlignmentService
    from vfl.security.sealing import Sealer


class Sealing:
    """One party's side of the key exchange with the other parties, for one offer of a job.

    The party also makes the salt of the alignment or receives it from another party. The coordinator never learns the salt.

    sealer : the party's sealer. parties : all participating parties. certificates : {party: certificate}, to check keys.
    aligning : alignment service that uses the salt.
    """

    def __init__(
        self,
        party: str,
        sealer: Sealer,
        parties: tuple[str, ...],
        certificates: Mapping[str, bytes],
        aligning: AlignmentService,
    ) -> None:
        self._party, self._sealer, self._parties = party, sealer, parties
        self._certificates, self._aligning = certificates, aligning

    def exchanged(self, message: object) -> object | None:
        """Return the answer to a message about keys or the salt; None for all other messages."""
        others = [name for name in self._parties if name != self._party]
        match message:
            case joining.Introduce():
                return joining.SealingKey(self._sealer.key, self._sealer.signature)
            case joining.Introduced():
                if message.keys.keys() != set(self._parties):
                    raise FederationError(f"party {self._party!r} was not given the keys of all parties")
                for name in others:
                    if name not in self._certificates:
                        raise FederationError(f"{name!r} is not a party of this federation")
                    given = message.keys[name]
                    self._sealer.meet(name, given.key, given.signature, self._certificates[name])
                return joining.Done()
            case joining.MakeSalt():
                self._aligning.salt = new_salt()
                return joining.Sealed({name: self._sealer.seal(name, "salt", self._aligning.salt) for name in others})
            case joining.TakeSalt():
                self._aligning.salt = bytes(self._sealer.open(message.maker, "salt", message.text))
                return joining.Done()
        return None

    def opened(self, message: object, vectors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the vectors of a message. A vector that another party sealed for this party is unsealed."""
        match message:
            case joining.Multiply() if message.owner != self._party:
                name, sender, label = "points", message.holder, f"set of {message.owner}"
            case joining.TakeMargins():
                name, sender, label = "margins", message.sender, "margins"
            case _:
                return vectors
        if name not in vectors:
            return vectors
        return {name: np.frombuffer(self._sealer.open(sender, label, vectors[name]), np.uint8)}

    def sealed(self, message: object, vectors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the vectors of an answer. A vector for another party is sealed."""
        match message:
            case joining.SendSet() if message.to:
                name, label = "points", f"set of {message.owner}"
            case joining.SendMargins():
                name, label = "margins", "margins"
            case _:
                return vectors
        plain = np.ascontiguousarray(vectors[name]).reshape(-1).view(np.uint8)
        return {name: self._sealer.seal(message.to, label, plain.data)}
