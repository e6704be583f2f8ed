"""Events on the parts of a public split: among the parts of one split the most expensive counts, and splits add up."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from vfl.base import holdout
from vfl.base.holdout import Split
from vfl.base.types import Adjacency
from vfl.errors import BudgetExceeded, LedgerError, PrivacyError
from vfl.privacy import accountants
from vfl.privacy.events import BoundedRange, Event, Gaussian, OnPart, PoissonSubsampledGaussian, ReleaseKey, on_part
from vfl.privacy.gaussian_dp import epsilon_of, mu_of
from vfl.privacy.ledger import Accounting, DatasetBudget, FitBudget, SqliteLedger
from vfl.privacy.ledger.codec import decode, encode
from vfl.privacy.ledger.composition import plan_cost
from vfl.privacy.spending import UNIT_BITS, views

if TYPE_CHECKING:
    from pathlib import Path

DELTA = 1e-6
R = Adjacency.REPLACE_ONE
FIRST = [18, 27, 29, 37, 39, 44, 52]


def gaussian(mu: float) -> Gaussian:
    """A release that is μ-GDP."""
    return Gaussian(R, mu, 1.0, 3)


def on(part: str, event: Event | float, split: str = "s") -> OnPart:
    return OnPart(R, gaussian(event) if isinstance(event, float) else event, split, part)


# Plans as lists of (event, count), each with the list that its worst record sees.
COSTS: dict[str, tuple[list[tuple[Event, int]], list[tuple[Event, int]]]] = {
    "the dearer part": ([(on("a", 0.5), 4), (on("b", 0.75), 1)], [(gaussian(0.5), 4)]),
    "the other one": ([(on("a", 0.5), 1), (on("b", 0.75), 1)], [(gaussian(0.75), 1)]),
    "and what is on all records": (
        [(on("a", 0.5), 1), (on("b", 0.75), 1), (gaussian(0.25), 2)],
        [(gaussian(0.75), 1), (gaussian(0.25), 2)],
    ),
    "splits add up": ([(on("a", 0.5), 1), (on("a", 0.5, "t"), 1)], [(gaussian(0.5), 2)]),
    "three parts": ([(on(p, m), 1) for p, m in (("a", 0.25), ("b", 0.5), ("c", 0.125))], [(gaussian(0.5), 1)]),
}


@pytest.mark.parametrize("case", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("way", list(Accounting))
def test_a_plan_costs_the_cost_of_its_worst_record(way: Accounting, case: Any) -> None:
    plan, seen = case
    assert plan_cost(plan, way) == plan_cost(seen, way)


@pytest.mark.parametrize("case", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("kind", ["GaussianAccountant", "ZCdpAccountant", "PldAccountant"])
def test_every_accountant_gives_the_same(kind: str, case: Any) -> None:
    parted, plain = (getattr(accountants, kind)() for _ in range(2))
    for accountant, events in ((parted, case[0]), (plain, case[1])):
        accountant.compose_all(events)
    assert parted.epsilon(DELTA) == plain.epsilon(DELTA) > 0
    assert parted.delta(1.0) == plain.delta(1.0)


def test_secret_samples_on_one_part_are_amplified_on_that_part_only() -> None:
    """Costs of parts have no common order in a mix: find the worst view by trying all of them."""
    sampled = PoissonSubsampledGaussian(R, 2.0, 1.0, 0.01)
    accountant, alone = accountants.PldAccountant(), accountants.PldAccountant()
    accountant.compose(on("training", sampled), 20).compose(on("held out", 0.1))
    alone.compose(sampled, 20)
    assert accountant.epsilon(1e-5) == alone.epsilon(1e-5) > epsilon_of(0.1, 1e-5)


def test_views_contain_every_choice_of_parts() -> None:
    counts = {on("a", 0.5): 2, on("b", 0.5): 1, on("a", 0.25, "t"): 1, on("b", 1.0, "t"): 1, gaussian(0.5): 1}
    found = views(counts)
    assert sorted(sum(view.values()) for view in found) == [3, 3, 4, 4]
    assert all(type(event) is Gaussian for view in found for event in view)
    assert views({gaussian(1.0): 3}) == ({gaussian(1.0): 3},)


def test_equal_splits_do_not_multiply_the_views() -> None:
    """Of 2³⁰ choices, 31 differ in the number of times that a record is held out."""
    counts = {on(part, mu, str(k)): 1 for k in range(30) for part, mu in (("a", 0.5), ("b", 0.25))}
    assert len(views(counts)) == 31


def test_a_plan_of_gaussians_on_parts_is_accounted_exactly() -> None:
    mu = mu_of(1.0, DELTA)
    plan = [(on("a", mu / 2), 4), (on("b", mu), 1)]
    accountant = accountants.choose_accountant(plan)
    assert isinstance(accountant, accountants.GaussianAccountant)
    accountant.compose_all(plan)
    assert accountant.epsilon(DELTA) == pytest.approx(1.0, rel=1e-12)
    assert type(accountants.choose_accountant([on("a", BoundedRange(R, 0.1))])) is accountants.ZCdpAccountant


REFUSED = {
    "a part of a part": lambda: OnPart(R, on("a", 0.5), "t", "b"),
    "another adjacency": lambda: OnPart("add-remove", gaussian(0.5), "s", "a"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_invalid_parts_are_refused(make: Any) -> None:
    with pytest.raises(PrivacyError, match="OnPart event"):
        make()


def test_without_a_split_an_event_is_itself() -> None:
    assert on_part(gaussian(0.5), None, "training") is not None
    assert on_part(gaussian(0.5), None, "training") == gaussian(0.5)
    assert on_part(gaussian(0.5), "s", "training") == on("training", 0.5)


@pytest.mark.parametrize("event", [on("held out", 0.1), on("a", BoundedRange(R, 0.3)), on("ε", 1 / 3, "σ")])
def test_the_ledger_restores_it_to_the_bit(event: OnPart) -> None:
    assert decode(encode(event)) == event


@pytest.mark.parametrize(
    "text",
    [
        '{"adjacency":"replace-one","event":{"type":"novel"},"part":"a","split":"s","type":"on-part"}',
        '{"adjacency":"replace-one","event":3,"part":"a","split":"s","type":"on-part"}',
        encode(on("a", 0.5)).replace('"part":"a"', '"part":1'),
    ],
)
def test_a_damaged_one_is_refused(text: str) -> None:
    with pytest.raises(LedgerError):
        decode(text)


class TestBooks:
    """A run reserves and is charged its most expensive part; each part has a filter of its own under the same cap."""

    def plan(self, mu: float) -> list[tuple[Event, int]]:
        return [(on("training", mu / 2), 4), (on("held out", mu), 1)]

    def charge_all(self, reservation: Any, mu: float) -> None:
        reservation.charge([(ReleaseKey(k), on("training", mu / 2)) for k in range(4)])
        reservation.charge([(ReleaseKey(4), on("held out", mu))])

    def test_a_fit(self) -> None:
        mu = mu_of(1.0, DELTA) * (1 - 1e-12)
        reservation = FitBudget(1.0, DELTA).reserve(self.plan(mu), job="j", run="r")
        self.charge_all(reservation, mu)
        with pytest.raises(BudgetExceeded):
            reservation.charge([(ReleaseKey(5), on("held out", 1e-3))])
        with pytest.raises(BudgetExceeded):
            reservation.charge([(ReleaseKey(6), gaussian(1e-3))])
        statement = reservation.settle()
        assert statement.epsilon == pytest.approx(1.0, rel=1e-9)
        assert statement.releases == 5

    def test_a_ledger_adds_up_runs_with_any_splits(self, tmp_path: Path) -> None:
        """Another run may hold out other records under the same name, so its parts are different ones."""
        mu = mu_of(1.0, DELTA) / 2 * (1 - 1e-12)
        ledger = SqliteLedger(tmp_path / "l.db")
        ledger.set_cap("d", epsilon=1.0, delta=DELTA)
        for run, dearer, cheaper in (("one", "a", "b"), ("two", "b", "a"), ("three", "a", "b"), ("four", "b", "a")):
            plan = [(on(dearer, mu), 1), (on(cheaper, mu / 2), 1)]
            reservation = DatasetBudget(ledger, "d").reserve(plan, job="j", run=run)
            reservation.charge([(ReleaseKey(k), event) for k, (event, _) in enumerate(plan)])
            reservation.settle()
        with pytest.raises(BudgetExceeded):
            DatasetBudget(ledger, "d").reserve([(on("held out", mu), 1)], job="j", run="five")
        (balance,) = ledger.show()
        assert balance.spent == pytest.approx(1.0, rel=1e-9)
        replayed = ledger.replay("d", accountants.GaussianAccountant())
        assert replayed.epsilon(DELTA) == pytest.approx(balance.spent, rel=1e-9)
        ledger.verify()

    def test_a_part_cannot_use_the_budget_of_the_other(self, tmp_path: Path) -> None:
        ledger = SqliteLedger(tmp_path / "l.db")
        ledger.set_cap("d", epsilon=4.0, delta=DELTA)
        reservation = DatasetBudget(ledger, "d").reserve([(on("a", 0.5), 1), (on("b", 0.25), 1)], job="j", run="r")
        reservation.charge(
            [(ReleaseKey(0), on("b", 0.25)), (ReleaseKey(1), on("b", 0.25)), (ReleaseKey(2), on("b", 0.25))]
        )
        reservation.charge([(ReleaseKey(3), on("a", 0.5))])
        with pytest.raises(BudgetExceeded):
            reservation.charge([(ReleaseKey(4), on("a", 0.25))])


class TestSplit:
    def test_it_is_public_and_repeats(self) -> None:
        """The first words, which other versions and machines must draw too."""
        found = Split("job", 0.25).held_out(24)
        assert "".join("01"[int(x)] for x in found) == "".join(
            "01"[int(x)] for x in Split("job", 0.25).held_out(1000)[:24]
        )
        assert found.tolist() != Split("another", 0.25).held_out(24).tolist()

    @pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.99])
    def test_the_share_is_the_requested_one(self, share: float) -> None:
        n = 100_000
        trained, held_out = Split("x", share).sizes(n)
        assert trained + held_out == n
        assert abs(held_out - n * share) < 5 * math.sqrt(n * share * (1 - share))

    @pytest.mark.parametrize("salt", ["", "job", '["age"]', "é" * 40])
    def test_the_first_records_are_compared_word_by_word(self, salt: str) -> None:
        """The definition, written again: nobody's held-out records change."""
        n, ends = 300_000, [0, 1, 24, 262_144, 262_145, 300_000]
        words = np.frombuffer(hashlib.shake_256(f"vfl holdout {salt}".encode()).digest(8 * n), dtype="<u8")
        for share in (0.001, 0.2, 0.5, 0.99):
            expected, split = words < np.uint64(int(share * 2.0**64)), Split(salt, share)
            assert (split.held_out(n) == expected).all()
            assert (split.held_out(n, 262_000) == expected[262_000:]).all()
            assert split.counts(ends) == [int(expected[:end].sum()) for end in ends]

    @pytest.mark.parametrize("share", [0.0001, 0.2, 0.37, 0.99])
    def test_later_records_are_counted_at_once(self, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(holdout, "HEAD", 1000)
        split, n = Split("job", share), 1000 + 5 * holdout.STRATUM + 77
        apart = split.held_out(n)
        for start in (0, 999, 1000, 1001, 6000, 1000 + holdout.STRATUM, n):
            assert (split.held_out(n, start) == apart[start:]).all()
            assert (split.held_out(start) == apart[:start]).all()
        ends = [0, 500, 1000, 1001, 5000, 1000 + 2 * holdout.STRATUM, n]
        assert split.counts(ends) == [int(apart[:end].sum()) for end in ends]
        assert abs(apart[1000 : 1000 + 5 * holdout.STRATUM].sum() - 5 * holdout.STRATUM * share) <= 1
        first, second = (apart[1000 + k * holdout.STRATUM :][: holdout.STRATUM] for k in (0, 1))
        assert share < 0.001 or (first != second).any()

    def test_the_sizes_of_any_number_of_records_are_known_at_once(self) -> None:
        trained, held_out = Split("x", 0.2).sizes(10**15)
        assert trained + held_out == 10**15
        assert abs(held_out - 2 * 10**14) < 10**4

    def test_larger_shares_contain_the_smaller_ones(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for head in (holdout.HEAD, 100):
            monkeypatch.setattr(holdout, "HEAD", head)
            assert (Split("x", 0.2).held_out(500) <= Split("x", 0.4).held_out(500)).all()

    def test_different_splits_have_different_names(self) -> None:
        """A record may be trained on in one split and held out in the other."""
        same_beginning = '[["income", "age", '
        splits = [Split(same_beginning + end, share) for end in ("a", "b") for share in (0.2, 0.5)]
        assert len({split.name for split in splits}) == len(splits)
        assert Split("x", 0.5).name == Split("x", 0.5).name

    def test_a_part_without_records_is_refused(self) -> None:
        from vfl.errors import SpecificationError

        with pytest.raises(SpecificationError, match=r"holdout=0\.001 of 5 records"):
            Split("x", 0.001).sizes(5)


def test_units_are_exact() -> None:
    assert plan_cost([(on("a", 0.5), 1)], Accounting.GDP) == Fraction(1, 4) * (1 << UNIT_BITS)
