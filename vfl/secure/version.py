"""Names in a run on secret shares, for one version of the model and for one noised sum that is revealed (opened) at it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vfl.privacy.events import ReleaseKey
    from vfl.types import Vector


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the model, at which residuals are computed as secret shares.

    model : `digest_of` the whole model. place : index of the Fourier series in vfl.secure.sigmoid.SERIES.
    attempt : 0, plus one for each repetition with new masks.
    """

    model: str
    place: int
    attempt: int = 0

    @property
    def name(self) -> tuple[str | int, ...]:
        """Return the part of a stream's name that stands for this version of the model."""
        return ("version", self.model, self.place, self.attempt)


@dataclass(frozen=True, slots=True)
class Opening:
    """Name of one sum that is revealed with noise: Σ_i Q_ij r_i for each column j in a block of one owner.

    owner : party with the columns. start, stop : range of the block's columns. version : version of the model, for the
        residuals.
    key : ledger key of the release, new in every attempt. setup : number of the columns' set-up, that is, of one choice of cap,
        centres and scales.
    """

    owner: str
    start: int
    stop: int
    version: Version
    key: ReleaseKey
    setup: int = 0

    @property
    def size(self) -> int:
        """Return s, the number of columns in the block."""
        return self.stop - self.start

    @property
    def block(self) -> tuple[str | int, ...]:
        """Return the name of the block, as part of the name of a stream. The name includes the number of the set-up."""
        return ("block", self.setup, self.owner, self.start, self.stop)

    @property
    def name(self) -> tuple[str | int, ...]:
        """Return the part of a stream's name that stands for this sum."""
        key = self.key
        return ("opening", *self.block, *self.version.name, key.round, key.part, key.attempt)


def digest_of(w: Mapping[str, Vector], others: Iterable[str] = ()) -> str:
    """Return a digest of a model. w : {party: w_q}. others : further public facts on which the residuals depend."""
    hashed = hashlib.sha256(b"vfl model on shares, version 1")
    for party in sorted(w):
        values = np.ascontiguousarray(w[party], dtype="<f8").tobytes()
        hashed.update(b"%d|%d|" % (len(party.encode()), len(values)) + party.encode() + values)
    for other in others:
        hashed.update(b"%d|" % len(other.encode()) + other.encode())
    return hashed.hexdigest()[:32]
