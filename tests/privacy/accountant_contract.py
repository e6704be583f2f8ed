"""Contract of every accountant; test_accounting runs this suite on all of them.

A subclass named Test… sets `make` and `events`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pytest

from vfl.base.types import Adjacency
from vfl.errors import PrivacyError
from vfl.privacy.accountants import GaussianAccountant
from vfl.privacy.events import Event, Gaussian

if TYPE_CHECKING:
    from collections.abc import Callable

    from vfl.privacy.accountants import Accountant

REPLACE = Adjacency.REPLACE_ONE
DELTAS = (1e-3, 1e-6, 1e-9)


@dataclass(frozen=True, slots=True)
class Mystery(Event):
    """An event that no accountant knows."""


@dataclass(frozen=True, slots=True)
class LouderGaussian(Gaussian):
    """A subclass may have a different meaning from its parent, so accountants must not accept it as the parent."""


class AccountantContract:
    make: ClassVar[Callable[[], Accountant]]
    events: ClassVar[tuple[Event, ...]]

    def test_no_event_is_zero(self):
        accountant = self.make()
        assert [accountant.epsilon(δ) for δ in DELTAS] == [0.0] * 3
        assert accountant.delta(0.0) == 0.0
        assert accountant.delta(1.0) == 0.0

    def test_every_event_costs_something(self):
        for event in self.events:
            assert self.make().compose(event).epsilon(1e-9) > 0
            assert self.make().compose(event).delta(1e-3) > 0

    def test_count_zero_changes_nothing(self):
        for event in self.events:
            assert self.make().compose(event, 0).epsilon(1e-9) == 0.0

    def test_count_n_equals_n_composes(self):
        for event in self.events:
            at_once, singly = self.make().compose(event, 7), self.make()
            for _ in range(7):
                singly.compose(event)
            assert [at_once.epsilon(δ) for δ in DELTAS] == [singly.epsilon(δ) for δ in DELTAS]
            assert at_once.delta(0.5) == singly.delta(0.5)

    def test_count_n_is_more_than_one(self):
        for event in self.events:
            one, many = self.make().compose(event), self.make().compose(event, 50)
            assert many.epsilon(1e-6) > 1.5 * one.epsilon(1e-6)

    def test_order_does_not_matter(self):
        forward, backward = self.make(), self.make()
        for event in self.events:
            forward.compose(event, 3)
        for event in reversed(self.events):
            backward.compose(event, 3)
        assert forward.epsilon(1e-6) == pytest.approx(backward.epsilon(1e-6), rel=1e-9)

    def test_each_event_adds_to_the_others(self):
        accountant, before = self.make(), 0.0
        for event in self.events:
            accountant.compose(event, 20)
            assert accountant.epsilon(1e-6) > before
            before = accountant.epsilon(1e-6)

    def test_answering_does_not_end_recording(self):
        for event in self.events:
            accountant = self.make().compose(event, 10)
            accountant.epsilon(1e-6)
            accountant.compose(event, 10)
            assert accountant.epsilon(1e-6) == self.make().compose(event, 20).epsilon(1e-6)

    def test_check_records_nothing(self):
        accountant = self.make()
        for event in self.events:
            accountant.check(event, 1000)
        assert accountant.epsilon(1e-9) == 0.0

    @pytest.mark.parametrize("event", [Mystery(REPLACE), LouderGaussian(REPLACE, 1.0, 1.0, 1)], ids=["new", "subclass"])
    @pytest.mark.parametrize("method", ["check", "compose"])
    def test_unknown_event_raises_and_is_named(self, event, method):
        accountant = self.make().compose(self.events[0])
        before = accountant.epsilon(1e-6)
        with pytest.raises(PrivacyError, match=type(event).__name__):
            getattr(accountant, method)(event)
        assert accountant.epsilon(1e-6) == before

    def test_an_object_that_is_not_an_event_raises(self):
        with pytest.raises(PrivacyError, match="float"):
            self.make().compose(1.0)

    def test_other_adjacency_raises(self):
        for event in self.events:
            with pytest.raises(PrivacyError, match="add-or-remove"):
                self.make().compose(dataclasses.replace(event, adjacency="add-or-remove"))

    @pytest.mark.parametrize("count", [-1, 1.5, "2", None])
    def test_bad_count_raises(self, count):
        with pytest.raises(PrivacyError, match="count"):
            self.make().compose(self.events[0], count)

    @pytest.mark.parametrize("delta", [0.0, 1.0, -1e-9, float("nan")])
    def test_bad_delta_raises(self, delta):
        with pytest.raises(PrivacyError, match="delta"):
            self.make().epsilon(delta)

    @pytest.mark.parametrize("epsilon", [-1.0, float("inf"), float("nan")])
    def test_bad_epsilon_raises(self, epsilon):
        with pytest.raises(PrivacyError, match="epsilon"):
            self.make().delta(epsilon)

    def test_epsilon_and_delta_are_inverse(self):
        accountant = self.make()
        for event in self.events:
            accountant.compose(event, 10)
        for δ in DELTAS:
            assert accountant.delta(accountant.epsilon(δ)) == pytest.approx(δ, rel=1e-4)

    def test_smaller_delta_costs_more(self):
        for event in self.events:
            accountant = self.make().compose(event, 10)
            assert accountant.epsilon(1e-9) > accountant.epsilon(1e-6) > accountant.epsilon(1e-3)

    @pytest.mark.parametrize("count", [1, 40])
    def test_gaussian_is_never_below_the_exact_value(self, count):
        event = Gaussian(REPLACE, 0.3, 2.0, 5)
        for δ in DELTAS:
            assert self.make().compose(event, count).epsilon(δ) >= GaussianAccountant().compose(event, count).epsilon(δ)
