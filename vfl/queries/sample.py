"""Query `Sample`: a secret Poisson sample of the records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import PrivacyError
from vfl.queries.query import Draw

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vfl.base.types import Vector
    from vfl.privacy.events import ReleaseKey
    from vfl.privacy.noise import NoiseSource


@dataclass(frozen=True, slots=True, eq=False)
class Sample(Draw):
    """A secret Poisson sample. `LinearPredictors` keeps the sample as 'batch', (n,) of 0 and 1. Nothing is released.

    Every record is drawn independently with probability exactly `rate`: its 64-bit word is compared with rate·2⁶⁴. A replay
    draws a new sample, which is as secret as the old one. Releases from the old sample are not affected.

    rate : in (0, 1], a multiple of 2⁻⁶⁴.
    """

    rate: float

    def __post_init__(self) -> None:
        if not (0.0 < self.rate <= 1.0 and (self.rate * 2.0**64).is_integer()):
            raise PrivacyError(f"a sampling rate is in (0, 1] and a multiple of 2^-64, not {self.rate!r}")

    @property
    def target(self) -> str:
        """Return the name under which the coordinator's `LinearPredictors` keeps the sample."""
        return "batch"

    @property
    def draws(self) -> float:
        """Return the rate of the sample."""
        return self.rate

    def drawn(
        self, counts: tuple[int, ...], noise: NoiseSource, key: ReleaseKey
    ) -> tuple[tuple[Vector, ...], Iterable[Vector]]:
        """Draw the sample from one keystream, shard by shard. The sample is equal for any number of shards."""
        if self.rate == 1.0:
            return (), map(np.ones, counts)
        stream, most = noise.stream(key), np.uint64(int(self.rate * 2.0**64))
        return (), ((stream.words(count) < most).astype(np.float64) for count in counts)
