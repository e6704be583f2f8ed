"""Exact log-likelihood ratio of a run between two data sets D1 and D0, and how far each release moves between them.

No test between two data sets is more powerful than a threshold on this ratio (Neyman & Pearson 1933). Each release of a run
has a known density given the earlier releases, so the ratio of the whole run is a sum over its releases. With the released
value u and the exact values s1 on D1 and s0 on D0, each release adds

    Gaussian     (‖u − s0‖² − ‖u − s1‖²)/2σ²
    sampled      log[(1 − q) N(u; s, σ²) + q N(u; s1, σ²)] − log[(1 − q) N(u; s, σ²) + q N(u; s0, σ²)],  s without the canary
    selection    log softmax(scores on D1)_winner − log softmax(scores on D0)_winner
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import UnknownEvent
from vfl.privacy.events import BoundedRange, Gaussian, PoissonSubsampledGaussian

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vfl.auditing.rehearsal import Release
    from vfl.privacy.events import Event
    from vfl.types import Vector

CERTAIN = 1e6
"""Log-likelihood ratio of a value that only one of the two data sets can release."""


def log_ratio(releases: Iterable[Release]) -> float:
    """Return the logarithm of (likelihood of the releases on D1) / (likelihood on D0)."""
    return sum(_ratio(release) for release in releases)


def _ratio(release: Release) -> float:
    from scipy.special import logsumexp

    s0, s1 = release.exact
    u, event = release.value, release.event
    if release.selection:
        winner = int(u[0])
        if event is None:
            return CERTAIN * (float(s1[winner] == s1.max()) - float(s0[winner] == s0.max()))
        return float((s1[winner] - logsumexp(s1)) - (s0[winner] - logsumexp(s0)))
    if isinstance(event, PoissonSubsampledGaussian) and release.absent is not None:
        before = _mixed(u, release.absent, s0, event)
        return _mixed(u, release.absent, s1, event) - before
    if event is None:
        return CERTAIN * (float(np.array_equal(u, s1)) - float(np.array_equal(u, s0)))
    return float((s1 - s0) @ (2.0 * u - s0 - s1)) / (2.0 * _gaussian(event).sigma ** 2)


def _mixed(u: Vector, absent: Vector, present: Vector, event: PoissonSubsampledGaussian) -> float:
    """Return log[(1 − q) + q N(u; present)/N(u; absent)], q the sampling rate."""
    log_drawn = float((present - absent) @ (2.0 * u - absent - present)) / (2.0 * event.sigma**2)
    if event.rate == 1.0:
        return log_drawn
    return float(np.logaddexp(math.log1p(-event.rate), math.log(event.rate) + log_drawn))


def moved(release: Release) -> float:
    """Return how far a release moves from D0 to D1: ‖s1 − s0‖/σ; for a selection, half the range of its privacy loss.

    Return inf for a release that moves without noise.
    """
    s0, s1 = release.exact
    if release.selection:
        difference = s1 - s0
        return float(difference.max() - difference.min()) / 2.0 if release.event is not None else math.inf
    shift = float(np.linalg.norm(s1 - s0))
    if release.event is None:
        return math.inf if shift else 0.0
    return shift / _gaussian(release.event).sigma


def allowed(event: Event) -> float:
    """Return the largest move, as `moved` measures it, that one record may cause under this event: Δ/σ or ε/2."""
    return (
        event.epsilon / 2.0
        if isinstance(event, BoundedRange)
        else _gaussian(event).sensitivity / _gaussian(event).sigma
    )


def _gaussian(event: Event) -> Gaussian | PoissonSubsampledGaussian:
    if isinstance(event, Gaussian | PoissonSubsampledGaussian):
        return event
    raise UnknownEvent(
        f"an audit cannot check a {type(event).__name__} event: it audits Gaussian releases and selections"
    )
