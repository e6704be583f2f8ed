"""Disjoint public batches of a pass over the records, and pieces of one joint release."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import PrivacyError

if TYPE_CHECKING:
    from vfl.types import Integers, Vector


@dataclass(frozen=True, slots=True)
class Fold:
    """One of `of` disjoint public batches that together contain every record once: a pass makes one release from each.

    A record takes part in one release of a pass, so the pass costs as much as one release (parallel composition: given the
    earlier releases, the release of every other fold is the same function of the other records). The charge of fold 0 pays for
    the whole pass.

    number : 0 … of − 1, in the order of the releases. seed : identifies the pass; public.
    """

    number: int
    of: int
    seed: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.of:
            raise PrivacyError(
                f"a pass has the batches 0 to {self.of - 1}, and batch {self.number} would hold records a second time"
            )

    def members(self, n_records: int) -> Vector:
        """Return (n,) 1 for the records of this fold, else 0."""
        members = np.zeros(n_records)
        members[_order(self.seed, n_records)[self.number :: self.of]] = 1.0
        return members


@lru_cache(maxsize=1)
def _order(seed: tuple[int, ...], n_records: int) -> Integers:
    """Return the order of the records in a pass, (n,): the same for all of its batches."""
    order: Integers = np.random.default_rng(seed).permutation(n_records)
    order.flags.writeable = False
    return order


@dataclass(frozen=True, slots=True)
class Piece(Fold):
    """One of `of` pieces of a single joint release of all records, which is charged as a whole with piece 0.

    All pieces are fixed before the first release, and their noise is independent. So releasing them one after the other
    equals releasing them at once, and their event carries the sensitivity of all pieces together.
    """

    def members(self, n_records: int) -> Vector:
        """Return (n,) 1: every record is in every piece."""
        return np.ones(n_records)
