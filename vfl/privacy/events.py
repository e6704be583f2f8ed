"""Privacy events: each describes one release by adjacency, sensitivity and noise. Events do not compute ε.

The coordinator charges an event, and the party draws the noise from the same event, so charge and noise cannot differ.
Accountants (vfl.privacy.accountants) compute the cost of events. For an unknown event they raise PrivacyError.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from vfl.base.arguments import check_options, number, option, require_positive, that
from vfl.errors import PrivacyError

if TYPE_CHECKING:
    from vfl.base.types import Adjacency

MOST_CANDIDATES = 64
"""Largest number of candidates, and largest concentration, of a `Selection`."""
LARGEST_SELECTED_MU = 30.0
_POSITIVE = partial(require_positive, error=PrivacyError)


@dataclass(frozen=True, slots=True)
class Event:
    """Base class of events. `adjacency` has no default, because a sensitivity has no meaning without it."""

    adjacency: Adjacency

    def __post_init__(self) -> None:
        """Check each number by itself."""
        check_options(self, f"{type(self).__name__} event: ")


@dataclass(frozen=True, slots=True)
class Gaussian(Event):
    """Vector query of Euclidean sensitivity Δ plus noise N(0, σ² I): exactly Δ/σ-GDP (Dong, Roth, Su 2022, Thm. 2.7).

    sensitivity : Δ > 0, in the units of the noise.
    sigma : standard deviation σ > 0 of the noise on every coordinate.
    dimension : number of coordinates, for information; the guarantee does not depend on it.
    """

    sensitivity: float = option(_POSITIVE)
    sigma: float = option(_POSITIVE)
    dimension: int = option(that(lambda dimension: dimension >= 1, "must be at least 1", PrivacyError))


@dataclass(frozen=True, slots=True)
class BoundedRange(Event):
    """Selection whose privacy loss has range ε: the exponential mechanism (Dong, Durfee, Rogers 2020).

    epsilon : range of the privacy loss. The selection is ε-DP and ε²/8-zCDP (Cesar & Rogers 2021).
    """

    epsilon: float = option(_POSITIVE)


@dataclass(frozen=True, slots=True)
class Laplace(Event):
    """Query of L1 sensitivity Δ plus Laplace noise of the given scale: pure Δ/scale-DP."""

    sensitivity: float = option(_POSITIVE)
    scale: float = option(_POSITIVE)


@dataclass(frozen=True, slots=True)
class PoissonSubsampledGaussian(Event):
    """Gaussian release on a secret Poisson sample of the records: each record is drawn with probability `rate`.

    sensitivity : Δ under replace-one, that is, twice the cap on one record's contribution.

    Accountants use the pair of mixtures for replace-one (vfl.privacy.pld), never a formula for add/remove.
    """

    sensitivity: float = option(_POSITIVE)
    sigma: float = option(_POSITIVE)
    rate: float = option(number(lambda rate: 0 < rate <= 1, "must be in (0, 1]", PrivacyError))


@dataclass(frozen=True, slots=True)
class Selection(Event):
    """Private selection among m candidate runs. Only the best of the runs that are included at random is released.

    Each run's outcome (model and score) is μ-GDP for the records that the event concerns, and the runs are independent given
    the data. Each run is included with probability P. P is secret and drawn once, as the maximum of `a` uniform numbers.
    One charge before the first run covers all m runs. vfl.privacy.private_selection states the guarantee.

    mu : μ of one run, 0 < μ ≤ 30. candidates : m, from 1 to 64. concentration : a, from 1 to 64.
    """

    mu: float
    candidates: int
    concentration: int

    def __post_init__(self) -> None:
        if not 0 < self.mu <= LARGEST_SELECTED_MU:
            raise PrivacyError(f"Selection event: mu must be positive and at most 30, not {self.mu!r}")
        require_selection(self.candidates, self.concentration)


def require_selection(candidates: int, concentration: int) -> None:
    """Raise PrivacyError unless candidates and concentration are whole numbers from 1 to 64."""
    for name, value in (("candidates", candidates), ("concentration", concentration)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_CANDIDATES:
            raise PrivacyError(
                f"private selection: {name} must be a whole number from 1 to {MOST_CANDIDATES}, not {value!r}"
            )


@dataclass(frozen=True, slots=True)
class OnPart(Event):
    """Release computed from the records of one part of a public split, and from values released before.

    The parts of a split are disjoint, so a split costs the maximum over its parts and not their sum, for a record that is
    replaced by one with the same id (proof in vfl.base.holdout).
    The costs of different splits add up.

    event : event of the release for records of the part. split : name of the split. part : name of the part.
    """

    event: Event
    split: str
    part: str

    def __post_init__(self) -> None:
        if isinstance(self.event, OnPart):
            raise PrivacyError("OnPart event: a part of a part cannot be accounted for: name one split")
        if self.event.adjacency != self.adjacency:
            raise PrivacyError("OnPart event: adjacency must equal that of the event on the part")


def on_part(event: Event, split: str | None, part: str) -> Event:
    """Return the event, restricted to one part of a split; without a split, the event itself."""
    return event if split is None else OnPart(event.adjacency, event, split, part)


def of_run(event: Event, run: str) -> Event:
    """Return the event with the run's name added to the name of the split, since each run may split the records differently."""
    return replace(event, split=f"{run}: {event.split}") if isinstance(event, OnPart) else event


def bare(event: Event) -> Event:
    """Return the event inside an OnPart: the event for records of the part. Any other event is returned unchanged."""
    return event.event if type(event) is OnPart else event


@dataclass(frozen=True, slots=True, order=True)
class ReleaseKey:
    """Key of one attempt at one release. The ledger charges a key once, and a seeded noise source draws its noise by the key.

    round : number of the query in the run, from 0.
    part : number of the release within the query, from 0 (one release per block, or one per party of a joint release).
    attempt : number of earlier attempts at this release. Each attempt is a new release, with new noise and a new charge.
    """

    round: int
    part: int = 0
    attempt: int = 0

    def __post_init__(self) -> None:
        if max(map(abs, (self.round, self.part, self.attempt))) >= 1 << 63:
            raise PrivacyError("the key of a release has numbers of more than 64 bits, which no ledger can store")
