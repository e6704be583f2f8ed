"""Adding of noise. No other module adds noise to sums of data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import PrivacyError
from vfl.privacy.rounded_gaussian import rounded_gaussian

if TYPE_CHECKING:
    from vfl.base.types import Integers, Vector
    from vfl.privacy.events import Gaussian, PoissonSubsampledGaussian, ReleaseKey
    from vfl.privacy.noise import NoiseSource


def release(
    sums: Integers | Vector,
    grid: float,
    event: Gaussian | PoissonSubsampledGaussian | None,
    noise: NoiseSource,
    key: ReleaseKey,
    sensitivity: float,
) -> Vector:
    """Release exact integer sums: if `grid` times the sums has sensitivity Δ, the output is Δ/σ-GDP under replace-one.

    The noise is N(0, σ²), rounded exactly to the grid. Since rint(q + x) = q + rint(x) for integer q, the output is
    post-processing of the continuous Gaussian mechanism (docs/mathematics.md, "The block release"). With event=None no noise
    is added. Executor and party allow event=None only for the queries that a job declares.

    sums : (s,) int64, in multiples of `grid`. Under an event, float64 sums raise PrivacyError, since they have no sensitivity.
    sensitivity : Δ of these sums alone, from the code that computed them. The event may state a larger Δ if the sums are part
        of a joint release. An event with a smaller Δ raises PrivacyError. Returns (s,) float64, grid·(sums + noise).
    """
    if event is None:
        return np.asarray(sums * grid, dtype=np.float64)
    if sums.dtype != np.int64:
        raise PrivacyError("only exact integer sums can be released under an event: clip them to a grid")
    if not event.sensitivity >= sensitivity:
        raise PrivacyError(
            f"noise for a sensitivity of {event.sensitivity!r} does not cover sums of sensitivity {sensitivity!r}"
        )
    noisy = sums + rounded_gaussian(noise.stream(key), event.sigma / grid, sums.size)
    return np.asarray(noisy * grid, dtype=np.float64)
