"""Exact cost of one event as μ² or ρ, and sums of costs as integers, which are only rounded up."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Self

from vfl.base.types import Adjacency
from vfl.errors import PrivacyError
from vfl.privacy.events import BoundedRange, Event, Gaussian, Laplace, OnPart, Selection, bare
from vfl.privacy.gaussian_dp import require_delta, require_epsilon
from vfl.privacy.private_selection import dominating_mu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

UNIT_BITS: Final = 256
"""One unit is 2⁻²⁵⁶ of μ² or ρ, so that costs are integers and add up without rounding, in any order."""


def mu_squared(event: Event) -> Fraction:
    """Return (Δ/σ)², exactly. A Gaussian release is Δ/σ-GDP, which is tight (Dong, Roth, Su 2022, Thm. 2.7; Cor. 3.3).

    Raises PrivacyError for an event of any other type.
    """
    event = bare(event)
    if type(event) is Gaussian:  # a subclass could have another cost
        return (Fraction(event.sensitivity) / Fraction(event.sigma)) ** 2
    raise unknown(event, "exact Gaussian accounting", "choose_accountant finds one that covers the whole plan")


def dominating_mu_squared(event: Selection) -> Fraction:
    """Return μ′² of a Gaussian release that dominates a selection. The selection is then μ′-GDP (`dominating_mu`)."""
    steps, of = dominating_mu(event.mu, event.candidates, event.concentration)
    return (Fraction(event.mu) * steps / of) ** 2


def rho(event: Event) -> Fraction:
    """Return ρ such that the release is ρ-zCDP: Gaussian μ²/2, Laplace ε²/2, bounded range ε²/8, selection μ′²/2.

    Bun & Steinke 2016, Prop. 1.6 and 1.4; Cesar & Rogers 2021. Raises PrivacyError for an event of any other type.
    """
    event = bare(event)
    kind = type(event)
    if isinstance(event, Selection) and kind is Selection:
        return dominating_mu_squared(event) / 2
    if kind is Gaussian:
        return mu_squared(event) / 2
    if isinstance(event, Laplace) and kind is Laplace:
        return (Fraction(event.sensitivity) / Fraction(event.scale)) ** 2 / 2
    if isinstance(event, BoundedRange) and kind is BoundedRange:
        return Fraction(event.epsilon) ** 2 / 8
    raise unknown(
        event,
        "zCDP accounting",
        "amplification by sampling holds for a plan committed to beforehand (PldAccountant, or committed=True); "
        "without it, charge Gaussian(Δ, σ), which dominates the sampled release",
    )


def unknown(event: Event, way: str, remedy: str) -> PrivacyError:
    """Return the error for an event that this accounting does not support."""
    return PrivacyError(f"{way} does not support events of type {type(event).__name__}: {remedy}")


def require_adjacency(event: Event, adjacency: Adjacency) -> None:
    """Raise PrivacyError unless the event has this adjacency."""
    if event.adjacency != adjacency:
        raise PrivacyError(
            f"costs are added up under {adjacency} adjacency, and this event is under {event.adjacency}: restate its "
            f"sensitivity for {adjacency}"
        )


class Accountant(ABC):
    """Cost of a list of events under one adjacency.

    `compose` checks an event, then records it. A refused event does not change the accountant.
    """

    def __init__(self, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> None:
        self.adjacency = adjacency
        self._counts: dict[Event, int] = {}

    def check(self, event: Event, count: int = 1) -> None:
        """Raise PrivacyError for an event without a known cost, for another adjacency, and for a bad count."""
        if not isinstance(event, Event):
            raise PrivacyError(f"expected an event of vfl.privacy.events, not a {type(event).__name__}")
        require_adjacency(event, self.adjacency)
        try:
            count = operator.index(count)
        except TypeError:
            raise PrivacyError(f"count must be a whole number, not {count!r}") from None
        if count < 0:
            raise PrivacyError(f"count must be at least 0, not {count!r}: a release cannot be taken back")
        self._require_known(event)

    def compose(self, event: Event, count: int = 1) -> Self:
        """Check and then record `count` such events. Returns self."""
        self.check(event, count)
        if count:
            self._counts[event] = self._counts.get(event, 0) + int(count)
        return self

    def compose_all(self, plan: Iterable[tuple[Event, int]]) -> Self:
        """Compose (event, count) pairs, one after another. Returns self."""
        for event, count in plan:
            self.compose(event, count)
        return self

    @abstractmethod
    def _require_known(self, event: Event) -> None: ...

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """Return an ε, rounded up, such that all recorded events together are (ε, δ)-DP; 0 without events."""

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """Return a δ, rounded up, such that all recorded events together are (ε, δ)-DP; 0 without events."""


class AccountantOfViews(Accountant):
    """Accountant for events on parts of a public split. The cost is that of the record with the costliest events (`views`)."""

    def epsilon(self, delta: float) -> float:
        """Return an ε at δ, rounded up; 0 without events. Raises PrivacyError unless 0 < δ < 1."""
        require_delta(delta)
        return max((self._epsilon_of(view, delta) for view in views(self._counts) if view), default=0.0)

    def delta(self, epsilon: float) -> float:
        """Return a δ at ε ≥ 0, rounded up; 0 without events."""
        require_epsilon(epsilon, zero=True)
        return max((self._delta_of(view, epsilon) for view in views(self._counts) if view), default=0.0)

    @abstractmethod
    def _epsilon_of(self, view: Mapping[Event, int], delta: float) -> float: ...

    @abstractmethod
    def _delta_of(self, view: Mapping[Event, int], epsilon: float) -> float: ...


@lru_cache(maxsize=8192)
def units(event: Event, spending: Callable[[Event], Fraction]) -> int:
    """Return the cost of one event in units, rounded up."""
    cost = spending(event)
    return -((-cost.numerator << UNIT_BITS) // cost.denominator)


@dataclass(slots=True)
class Total:
    """Largest total cost for one record: all releases on the whole data, and the most expensive part of each split.

    whole : units of events on all records. parts : units of events on one part, by (split, part).
    """

    whole: int = 0
    parts: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, event: Event, amount: int) -> None:
        """Count `amount` units for an event."""
        if isinstance(event, OnPart):
            self.parts[event.split, event.part] = self.parts.get((event.split, event.part), 0) + amount
        else:
            self.whole += amount

    def copy(self) -> Total:
        """Return an independent copy of the total."""
        return Total(self.whole, dict(self.parts) if self.parts else {})

    @property
    def units(self) -> int:
        """Largest total cost for one record, in units."""
        if not self.parts:
            return self.whole
        dearest: dict[str, int] = {}
        for (split, _), amount in self.parts.items():
            dearest[split] = max(dearest.get(split, 0), amount)
        return self.whole + sum(dearest.values())


def views(counts: Mapping[Event, int]) -> tuple[dict[Event, int], ...]:
    """Return the distinct multisets of bare events that one record can enter: one part is chosen in every split."""
    whole: Counter[Event] = Counter()
    splits: dict[str, dict[str, Counter[Event]]] = {}
    for event, count in counts.items():
        own = (
            splits.setdefault(event.split, {}).setdefault(event.part, Counter()) if isinstance(event, OnPart) else whole
        )
        own[bare(event)] += count
    found = [whole]
    for parts in splits.values():
        # Keep equal views once, so that many identical splits do not multiply the number of views.
        seen = {frozenset(view.items()): view for before in found for own in parts.values() for view in (before + own,)}
        found = list(seen.values())
    return tuple(map(dict, found))


def floor_units(value: Fraction) -> int:
    """Return the largest whole number of units that does not exceed the value."""
    return (value.numerator << UNIT_BITS) // value.denominator


def float_above(total: int) -> float:
    """Return the smallest double that is at least `total` units."""
    return _above(total, UNIT_BITS)


def root_above(total: int) -> float:
    """Return a double that is at least the square root of `total` units, and at most one ulp above the root."""
    return _above(math.isqrt(total - 1) + 1, UNIT_BITS // 2) if total else 0.0


def _above(numerator: int, bits: int) -> float:
    exact = Fraction(numerator, 1 << bits)
    try:
        value = float(exact)
    except OverflowError:
        raise PrivacyError("the events add up to more than can be computed: use more noise or fewer releases") from None
    return value if Fraction(value) >= exact else math.nextafter(value, math.inf)
