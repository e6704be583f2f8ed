"""Accountants compute the cost of privacy events. An event without a known cost raises PrivacyError; no event counts as zero.

| accountant | events | tight |
|---|---|---|
| GaussianAccountant | Gaussian | exact |
| ZCdpAccountant | Gaussian, Laplace, BoundedRange, Selection | upper bound |
| SelectionAccountant | Selection, Gaussian | one selection per record: within 1 % of ε |
| PldAccountant | Gaussian, Laplace, BoundedRange, PoissonSubsampledGaussian | up to discretisation |

An accountant states the cost of a list of events that was fixed beforehand. If earlier releases decide about later
events, a the privacy account of a run keeps the sum of μ² or ρ below a cap fixed beforehand. *The cap* is then
the guarantee (vfl.privacy.ledger.composition). If released values decide when a run stops, the ε spent until then is not a
guarantee.

The parts of a public split are disjoint, so only the most expensive part of each split counts (vfl.base.holdout).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeAlias

from vfl.base.types import Adjacency
from vfl.privacy import gaussian_dp, private_selection, spending, zcdp
from vfl.privacy.events import Event, Gaussian, Selection, bare
from vfl.privacy.pld import PldAccountant as PldAccountant
from vfl.privacy.spending import Accountant as Accountant
from vfl.privacy.zcdp import epsilon_of_rho as epsilon_of_rho
from vfl.privacy.zcdp import rho_of as rho_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from fractions import Fraction

Plan: TypeAlias = "Iterable[Event | tuple[Event, int]]"


class _Adding(Accountant):
    """Accountant that adds one cost per event, in units of 2⁻²⁵⁶, rounded up. The sum is never too small, in any order."""

    _cost: ClassVar[staticmethod[[Event], Fraction]]

    def _require_known(self, event: Event) -> None:
        spending.units(event, self._cost)

    @property
    def _units(self) -> int:
        total = spending.Total()
        for event, count in self._counts.items():
            total.add(event, spending.units(event, self._cost) * count)
        return total.units


class GaussianAccountant(_Adding):
    """Accountant of Gaussian events: together they are μ-GDP with μ² = Σ (Δ/σ)², exactly (Dong, Roth, Su 2022, Cor. 3.3)."""

    _cost = staticmethod(spending.mu_squared)

    @property
    def mu(self) -> float:
        """μ of all recorded events together, rounded up."""
        return spending.root_above(self._units)

    def epsilon(self, delta: float) -> float:
        """Return the smallest ε at δ, rounded up; 0 without events. Raises PrivacyError unless 0 < δ < 1."""
        return gaussian_dp.epsilon_of(self.mu, delta)

    def delta(self, epsilon: float) -> float:
        """Return the smallest δ at ε ≥ 0, rounded up; 0 without events."""
        return gaussian_dp.delta_of(epsilon, self.mu)


class ZCdpAccountant(_Adding):
    """Accountant by ρ-zCDP: events together have the sum ρ of Gaussian μ²/2, Laplace ε²/2 and bounded range ε²/8.

    `epsilon` and `delta` use the best order (Canonne, Kamath, Steinke 2020). For Gaussian events alone, `GaussianAccountant`
    is tighter.
    """

    _cost = staticmethod(spending.rho)

    @property
    def rho(self) -> float:
        """ρ of all recorded events together, rounded up."""
        return spending.float_above(self._units)

    def epsilon(self, delta: float) -> float:
        """Return the ε of the best order at δ, rounded up; 0 without events. Raises PrivacyError unless 0 < δ < 1."""
        return epsilon_of_rho(self.rho, delta)

    def delta(self, epsilon: float) -> float:
        """Return the δ of the best order at ε ≥ 0, rounded up; 0 without events."""
        return zcdp.delta_of_rho(epsilon, self.rho)


class SelectionAccountant(spending.AccountantOfViews):
    """Accountant of selections and Gaussian events: together they are (ε, δ)-DP, if the plan is fixed beforehand.

    If a selection is the only event on a record, the curve of that selection gives ε and δ (vfl.privacy.private_selection).
    Otherwise the μ² of all events add up, where a dominating Gaussian event stands for each selection. Of the parts of a
    public split of the records, only the most expensive part counts.
    """

    def _require_known(self, event: Event) -> None:
        if type(bare(event)) not in (Gaussian, Selection):
            raise spending.unknown(
                event, "accounting of selections", "choose_accountant finds one that covers the plan"
            )

    def _epsilon_of(self, view: Mapping[Event, int], delta: float) -> float:
        if (one := _only_selection(view)) is not None:
            return private_selection.epsilon_of(one.mu, delta, one.candidates, one.concentration)
        return gaussian_dp.epsilon_of(_gaussian_mu(view), delta)

    def _delta_of(self, view: Mapping[Event, int], epsilon: float) -> float:
        if (one := _only_selection(view)) is not None:
            return private_selection.delta_of(epsilon, one.mu, one.candidates, one.concentration)
        return gaussian_dp.delta_of(epsilon, _gaussian_mu(view))


def _only_selection(view: Mapping[Event, int]) -> Selection | None:
    ((only, count), *others) = view.items()
    return only if isinstance(only, Selection) and count == 1 and not others else None


def _gaussian_mu(view: Mapping[Event, int]) -> float:
    """Return μ of all events together, rounded up, with a dominating Gaussian event for each selection."""
    return spending.root_above(sum(spending.units(event, _gaussian_mu_squared) * n for event, n in view.items()))


def _gaussian_mu_squared(event: Event) -> Fraction:
    return spending.dominating_mu_squared(event) if isinstance(event, Selection) else spending.mu_squared(event)


def choose_accountant(plan: Plan, *, committed: bool = False) -> Accountant:
    """Return an empty accountant for a plan, of the tightest type that is valid. `compose_all` adds the plan to the accountant.

    plan : events, or (event, count) pairs. Gaussian events alone get GaussianAccountant. Gaussian events with selections get
        SelectionAccountant. Any other mix gets ZCdpAccountant.
    committed : True if plan and noise are fixed before the first release. PldAccountant then replaces ZCdpAccountant.

    Raises PrivacyError for mixed adjacencies, for an event that no accountant knows, and for sampled
    events in a plan that is not fixed beforehand.
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
