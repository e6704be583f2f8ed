"""Accountants: the cost of privacy events. An event without a known cost raises UnknownEvent; nothing counts as zero.

| accountant | events | tight | under adaptive choices |
|---|---|---|---|
| GaussianAccountant | Gaussian | exact | GdpFilter |
| ZCdpAccountant | Gaussian, Laplace, BoundedRange, Selection | upper bound | ZCdpFilter |
| SelectionAccountant | Selection, Gaussian | one selection per record: within 1 % of ε | no: plans fixed beforehand |
| PldAccountant | these, and PoissonSubsampledGaussian | up to discretisation | no: plans fixed beforehand |

An accountant states the cost of a list of events that was fixed beforehand. If earlier releases decide about later
events, keep the sum below a cap fixed beforehand; then *the cap* is the guarantee. Such an accountant is a filter
(Smith & Thakurta 2022, arXiv 2210.17520, for μ²; Whitehouse et al. 2023, arXiv 2203.05481, for zCDP). Neither is an
odometer: if released values decide when a run stops, the ε spent until then is not a guarantee. A certificate states
the cap after such a stop.

Of the parts of a public split, only the most expensive one counts, since no record is in two parts (vfl.holdout).

`compose` is check, then record: an event that is refused leaves the accountant as it was.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

from vfl.errors import BudgetExceeded
from vfl.privacy import gaussian_dp, private_selection, spending, zcdp
from vfl.privacy.events import Event, Gaussian, Selection, bare
from vfl.privacy.pld import PldAccountant
from vfl.privacy.zcdp import epsilon_of_rho, rho_of
from vfl.types import Adjacency

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "Accountant",
    "GaussianAccountant",
    "GdpFilter",
    "PldAccountant",
    "SelectionAccountant",
    "ZCdpAccountant",
    "ZCdpFilter",
    "choose_accountant",
    "epsilon_of_rho",
    "rho_of",
]

Plan: TypeAlias = "Iterable[Event | tuple[Event, int]]"


class Accountant(Protocol):
    """The cost of a list of events under one adjacency."""

    adjacency: Adjacency

    def check(self, event: Event, count: int = 1) -> None:
        """Raise UnknownEvent or PrivacyError unless `count` such events can be accounted for. Records nothing."""

    def compose(self, event: Event, count: int = 1) -> Self:
        """Check, then record `count` such events. Returns self."""

    def epsilon(self, delta: float) -> float:
        """Return an ε, rounded up, such that all recorded events together are (ε, δ)-DP; 0 for none."""

    def delta(self, epsilon: float) -> float:
        """Return a δ, rounded up, such that all recorded events together are (ε, δ)-DP; 0 for none."""


class GaussianAccountant:
    """The recorded Gaussian events together are μ-GDP with μ² = Σ (Δ/σ)², exactly (Dong, Roth, Su 2022, Cor. 3.3).

    Sums are integers of 2⁻²⁵⁶, each event rounded up, so they neither under-count nor depend on order.
    Not an odometer: see the module and `GdpFilter`.
    """

    def __init__(self, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> None:
        self.adjacency = adjacency
        self._total = spending.Total()

    def check(self, event: Event, count: int = 1) -> None:
        """Raise UnknownEvent for anything but a Gaussian event, PrivacyError for another adjacency or a bad count."""
        self.cost(event, count)

    def compose(self, event: Event, count: int = 1) -> Self:
        """Check, then record `count` such events. Returns self."""
        self._total.add(event, self.cost(event, count))
        return self

    def cost(self, event: Event, count: int = 1) -> int:
        """Return the increase of μ² by `count` such events, in units of 2⁻²⁵⁶, rounded up. Errors as in `check`."""
        count = spending.require_event(event, count, self.adjacency)
        return spending.units(event, spending.mu_squared) * count

    @property
    def spent(self) -> int:
        """μ² so far, in units of 2⁻²⁵⁶."""
        return self._total.units

    @property
    def mu(self) -> float:
        """μ of all recorded events together, rounded up."""
        return spending.root_above(self._total.units)

    def epsilon(self, delta: float) -> float:
        """Return the smallest ε at δ, rounded up; 0 for no event. Raises PrivacyError unless 0 < δ < 1."""
        return gaussian_dp.epsilon_of(self.mu, delta)

    def delta(self, epsilon: float) -> float:
        """Return the smallest δ at ε ≥ 0, rounded up; 0 for no event."""
        return gaussian_dp.delta_of(epsilon, self.mu)


class ZCdpAccountant:
    """The recorded events together are ρ-zCDP with ρ = Σ of: Gaussian μ²/2, Laplace ε²/2, bounded range ε²/8.

    ε(δ) is that of the best order (Canonne, Kamath, Steinke 2020). For Gaussian events alone it is looser than
    `GaussianAccountant`, whose sums it uses. Not an odometer: see the module and `ZCdpFilter`.
    """

    def __init__(self, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> None:
        self.adjacency = adjacency
        self._total = spending.Total()

    def check(self, event: Event, count: int = 1) -> None:
        """Raise UnknownEvent for an event without a ρ, PrivacyError for another adjacency or a bad count."""
        self.cost(event, count)

    def compose(self, event: Event, count: int = 1) -> Self:
        """Check, then record `count` such events. Returns self."""
        self._total.add(event, self.cost(event, count))
        return self

    def cost(self, event: Event, count: int = 1) -> int:
        """Return the increase of ρ by `count` such events, in units of 2⁻²⁵⁶, rounded up. Errors as in `check`."""
        count = spending.require_event(event, count, self.adjacency)
        return spending.units(event, spending.rho) * count

    @property
    def spent(self) -> int:
        """ρ so far, in units of 2⁻²⁵⁶."""
        return self._total.units

    @property
    def rho(self) -> float:
        """ρ of all recorded events together, rounded up."""
        return spending.float_above(self._total.units)

    def epsilon(self, delta: float) -> float:
        """Return the ε of the best order at δ, rounded up; 0 for no event. Raises PrivacyError unless 0 < δ < 1."""
        return epsilon_of_rho(self.rho, delta)

    def delta(self, epsilon: float) -> float:
        """Return the δ of the best order at ε ≥ 0, rounded up; 0 for no event."""
        return zcdp.delta_of_rho(epsilon, self.rho)


class SelectionAccountant:
    """The recorded selections and Gaussian events together are (ε, δ)-DP for a plan that is fixed beforehand.

    A record that one selection alone concerns gets the curve of vfl.privacy.private_selection. For other records μ² adds up,
    with a Gaussian event that dominates each selection. Of the parts of a public split, the most expensive one counts.
    """

    def __init__(self, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> None:
        self.adjacency = adjacency
        self._counts: dict[Event, int] = {}

    def check(self, event: Event, count: int = 1) -> None:
        """Raise UnknownEvent for other events, PrivacyError for another adjacency or a bad count."""
        spending.require_event(event, count, self.adjacency)
        if type(bare(event)) not in (Gaussian, Selection):
            raise spending.unknown(
                event, "accounting of selections", "choose_accountant finds one that covers the plan"
            )

    def compose(self, event: Event, count: int = 1) -> Self:
        """Check, then record `count` such events. Returns self."""
        self.check(event, count)
        if count:
            self._counts[event] = self._counts.get(event, 0) + int(count)
        return self

    def epsilon(self, delta: float) -> float:
        """Return an ε at δ, rounded up; 0 for no event. Raises PrivacyError unless 0 < δ < 1."""
        gaussian_dp.require_delta(delta)
        return max(
            private_selection.epsilon_of(one.mu, delta, one.candidates, one.concentration)
            if one is not None
            else gaussian_dp.epsilon_of(mu, delta)
            for one, mu in self._views()
        )

    def delta(self, epsilon: float) -> float:
        """Return a δ at ε ≥ 0, rounded up; 0 for no event."""
        return max(
            private_selection.delta_of(epsilon, one.mu, one.candidates, one.concentration)
            if one is not None
            else gaussian_dp.delta_of(epsilon, mu)
            for one, mu in self._views()
        )

    def _views(self) -> Iterator[tuple[Selection | None, float]]:
        """Yield, for each view of a record, the selection if it is all that concerns it, else μ of all events together."""
        for view in spending.views(self._counts):
            ((only, count), *others) = view.items() or ((None, 0),)
            if isinstance(only, Selection) and count == 1 and not others:
                yield only, 0.0
            else:
                units = sum(spending.units(event, _gaussian_mu_squared) * count for event, count in view.items())
                yield None, spending.root_above(units)


def _gaussian_mu_squared(event: Event) -> Fraction:
    return spending.dominating_mu_squared(event) if isinstance(event, Selection) else spending.mu_squared(event)


class _Filter:
    """Admit adaptively chosen events while their sum stays within a cap fixed beforehand. The guarantee is the cap."""

    def __init__(self, accountant: GaussianAccountant | ZCdpAccountant, cap: Fraction) -> None:
        self._accountant = accountant
        self._cap = spending.floor_units(cap)

    def admits(self, event: Event, count: int = 1) -> bool:
        """Return True if `count` such events still fit. Raises as the accountant's `check` does."""
        return self._accountant.spent + self._accountant.cost(event, count) <= self._cap

    def spend(self, event: Event, count: int = 1) -> Self:
        """Record `count` such events, or raise BudgetExceeded and record nothing. Returns self."""
        if not self.admits(event, count):
            raise BudgetExceeded(
                f"{count} events of type {type(event).__name__} exceed the budget left under the cap: "
                "use more noise or fewer releases, or ask for a larger budget beforehand"
            )
        self._accountant.compose(event, count)
        return self


class GdpFilter(_Filter):
    """Gaussian events chosen adaptively are together μ_cap-GDP while Σ (Δ/σ)² ≤ μ_cap² (Smith & Thakurta 2022).

    mu_cap : μ ≥ 0, from `mu_of(epsilon, delta)`. `epsilon` and `delta` state the cap, whatever was spent of it.
    """

    def __init__(self, mu_cap: float, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> None:
        self.mu_cap = gaussian_dp.require_mu(mu_cap)
        super().__init__(GaussianAccountant(adjacency), Fraction(mu_cap) ** 2)

    def epsilon(self, delta: float) -> float:
        """Return the ε of the cap at δ, rounded up."""
        return gaussian_dp.epsilon_of(self.mu_cap, delta)

    def delta(self, epsilon: float) -> float:
        """Return the δ of the cap at ε, rounded up."""
        return gaussian_dp.delta_of(epsilon, self.mu_cap)


class ZCdpFilter(_Filter):
    """Events chosen adaptively are together ρ_cap-zCDP while Σ ρ ≤ ρ_cap (Whitehouse et al. 2023).

    rho_cap : ρ ≥ 0, from `rho_of(epsilon, delta)`. `epsilon` and `delta` state the cap, whatever was spent of it.
    """

    def __init__(self, rho_cap: float, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> None:
        self.rho_cap = zcdp.require_rho(rho_cap)
        super().__init__(ZCdpAccountant(adjacency), Fraction(rho_cap))

    def epsilon(self, delta: float) -> float:
        """Return the ε of the cap at δ, rounded up."""
        return epsilon_of_rho(self.rho_cap, delta)

    def delta(self, epsilon: float) -> float:
        """Return the δ of the cap at ε, rounded up."""
        return zcdp.delta_of_rho(epsilon, self.rho_cap)


def choose_accountant(plan: Plan, *, committed: bool = False) -> Accountant:
    """Return the tightest valid accountant for a plan. It is empty: `compose` the events into it.

    plan : events, or (event, count) pairs. Gaussian events alone are accounted exactly, those and selections by the curve of
        a selection, and any other mix by zCDP.
    committed : True when plan and noise are fixed before the first release; then a mix is accounted by its privacy loss
        distribution.

    Raises PrivacyError for mixed adjacencies. Raises UnknownEvent for an event that no accountant knows, and for sampled
    events in a plan that is not committed to.
    """
    events = [item if isinstance(item, tuple) else (item, 1) for item in plan]
    adjacency = events[0][0].adjacency if events and isinstance(events[0][0], Event) else Adjacency.REPLACE_ONE
    kinds = {type(bare(event)) for event, _ in events}
    accountant: Accountant
    if kinds <= {Gaussian}:
        accountant = GaussianAccountant(adjacency)
    elif kinds <= {Gaussian, Selection}:
        accountant = SelectionAccountant(adjacency)
    elif committed:
        accountant = PldAccountant(adjacency)
    else:
        accountant = ZCdpAccountant(adjacency)
    for event, count in events:
        accountant.check(event, count)
    return accountant
