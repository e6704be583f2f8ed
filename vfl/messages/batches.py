"""Disjoint public batches of records in a pass, and parts of one release that are sent one after another."""

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
    """One of `of` disjoint public batches that together contain every record once. A pass makes one release per batch.

    A record takes part in only one release of a pass. The pass therefore costs as much as one release (parallel composition:
    given the earlier releases, the release of every other batch is the same function of the other records). The whole pass is
    charged with batch 0.

    number : 0 … of − 1, in the order of the releases. seed : public seed that identifies the pass.
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
        """Return (n,) with 1 for each record of this batch and 0 for all other records."""
        members = np.zeros(n_records)
        members[_order(self.seed, n_records)[self.number :: self.of]] = 1.0
        return members


@lru_cache(maxsize=1)
def _order(seed: tuple[int, ...], n_records: int) -> Integers:
    """Return the order of the records in a pass, (n,). All batches of a pass are cut from this order."""
    order: Integers = np.random.default_rng(seed).permutation(n_records)
    order.flags.writeable = False
    return order


@dataclass(frozen=True, slots=True)
class Piece(Fold):
    """One of `of` parts of a single release from all records. The release is charged as a whole, with part 0.

    All parts are fixed before the first one is released, and their noise is independent. Releasing the parts one after another
    is therefore the same as releasing them at once. The event has the sensitivity of all parts together.
    """

    def members(self, n_records: int) -> Vector:
        """Return (n,) ones, since every part uses every record."""
        return np.ones(n_records)
