"""Guarantees of every account, tested on both kinds; then those of the durable account."""

from __future__ import annotations

import json
import pickle
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from vfl.base.types import Adjacency
from vfl.errors import BudgetError, BudgetExceeded, LedgerError, PrivacyError, SpecificationError
from vfl.privacy import gaussian_dp, zcdp
from vfl.privacy.accountants import GaussianAccountant, ZCdpAccountant
from vfl.privacy.calibration import noise_multiplier
from vfl.privacy.events import BoundedRange, Event, Gaussian, Laplace, PoissonSubsampledGaussian, ReleaseKey
from vfl.privacy.ledger import Accounting, DatasetBudget, FitBudget, PrivacyBudget, Reservation, SqliteLedger
from vfl.privacy.ledger.codec import decode, encode
from vfl.privacy.ledger.composition import cost, epsilon_of

if TYPE_CHECKING:
    from collections.abc import Callable

R1 = Adjacency.REPLACE_ONE
EPSILON, DELTA = 1.0, 1e-9
MU = gaussian_dp.mu_of(EPSILON, DELTA)


def gaussian(mu: float) -> Gaussian:
    return Gaussian(R1, mu, 1.0, 3)


def calibrated(releases: int, sensitivity: float = 3.7) -> Gaussian:
    return Gaussian(R1, sensitivity, noise_multiplier(MU, releases) * sensitivity, 4)


@pytest.fixture
def ledger(tmp_path) -> SqliteLedger:
    account = SqliteLedger(tmp_path / "account.sqlite")
    account.set_cap("credit", epsilon=EPSILON, delta=DELTA)
    return account


@pytest.fixture(params=["fit", "ledger"])
def make(request, tmp_path) -> Callable[[], PrivacyBudget]:
    made = iter(range(1000))

    def build() -> PrivacyBudget:
        if request.param == "fit":
            return FitBudget(EPSILON, DELTA)
        ledger = SqliteLedger(tmp_path / f"{next(made)}.sqlite")
        ledger.set_cap("credit", epsilon=EPSILON, delta=DELTA)
        return DatasetBudget(ledger, "credit")

    return build


def test_both_satisfy_the_protocol(make):
    account = make()
    assert isinstance(account, PrivacyBudget)
    assert isinstance(account.reserve([(calibrated(5), 5)], job="j", run="r"), Reservation)


@pytest.mark.parametrize("releases", [1, 7, 400, 8000])
def test_a_calibrated_plan_fits_and_one_release_more_does_not(make, releases):
    event = calibrated(releases)
    assert make().preview([(event, releases)]).fits
    assert not make().preview([(event, releases + 1)]).fits
    reservation = make().reserve([(event, releases)], job="j", run="r")
    reservation.charge([(ReleaseKey(i), event) for i in range(releases)])
    with pytest.raises(BudgetExceeded, match="reserved for it"):
        reservation.charge([(ReleaseKey(releases), event)])
    statement = reservation.settle()
    assert statement.releases == releases
    assert EPSILON * (1 - 1e-9) < statement.epsilon <= EPSILON


def test_a_refusal_states_spent_requested_and_left_budget_and_a_remedy(make):
    with pytest.raises(BudgetExceeded, match=r"ε = 1 (is left|at δ).*(raise|lower)"):
        make().reserve([(gaussian(MU * 1.01), 1)], job="j", run="r")


def test_nothing_of_a_refused_batch_is_charged(make):
    reservation = make().reserve([(calibrated(4), 4)], job="j", run="r")
    with pytest.raises(BudgetExceeded):
        reservation.charge([(ReleaseKey(i), calibrated(4)) for i in range(5)])
    assert reservation.charged() == frozenset()
    reservation.charge([(ReleaseKey(i), calibrated(4)) for i in range(4)])


def test_a_key_is_charged_once_for_one_event(make):
    reservation = make().reserve([(calibrated(2), 2)], job="j", run="r")
    for _ in range(5):
        reservation.charge([(ReleaseKey(0), calibrated(2)), (ReleaseKey(0), calibrated(2))])
    with pytest.raises(LedgerError, match="another event"):
        reservation.charge([(ReleaseKey(0), calibrated(3))])
    reservation.charge([(ReleaseKey(0, 0, 1), calibrated(2))])
    assert reservation.settle().releases == 2


def test_unknown_events_and_foreign_adjacencies_are_refused(make):
    class Mystery(Event):
        __slots__ = ()

    class Louder(Gaussian):
        __slots__ = ()

    reservation = make().reserve([(calibrated(2), 2)], job="j", run="r")
    for event in (Mystery(R1), Louder(R1, 1e-3, 1.0, 1)):
        with pytest.raises(PrivacyError, match=type(event).__name__):
            make().reserve([(event, 1)], job="j", run="r")
        with pytest.raises(PrivacyError, match=type(event).__name__):
            reservation.charge([(ReleaseKey(0), event)])
    with pytest.raises(PrivacyError, match="adjacency"):
        reservation.charge([(ReleaseKey(0), Gaussian("add-or-remove-one", 1e-3, 1.0, 1))])
    assert reservation.settle().spent == 0


@pytest.mark.parametrize("plan", [[], [(gaussian(1e-3), 0)], [(gaussian(1e-3), 1.5)]])
def test_bad_plans(make, plan):
    with pytest.raises(PrivacyError, match="plan"):
        make().reserve(plan, job="j", run="r")


def test_refunds_are_possible_only_before_the_first_charge(make):
    reservation = make().reserve([(calibrated(2), 2)], job="j", run="r")
    reservation.charge([(ReleaseKey(0), calibrated(2))])
    with pytest.raises(BudgetError, match="settle"):
        reservation.refund()
    untouched = make().reserve([(calibrated(2), 2)], job="j", run="r")
    untouched.refund()
    with pytest.raises(BudgetError, match="closed"):
        untouched.charge([(ReleaseKey(0), calibrated(2))])


def test_a_data_dependent_stop_states_the_whole_reservation(make):
    reservation = make().reserve([(calibrated(100), 100)], job="j", run="r")
    reservation.charge([(ReleaseKey(0), calibrated(100))])
    statement = reservation.settle(stopped_early=True)
    assert statement.stopped_early
    assert statement.spent < 0.2 < statement.epsilon == statement.reserved <= EPSILON
    assert reservation.settle() == statement
    with pytest.raises(BudgetError, match="closed"):
        reservation.charge([(ReleaseKey(1), calibrated(100))])


def test_mixes_are_added_up_as_zcdp(make):
    plan = [(BoundedRange(R1, 0.01), 50), (gaussian(0.005), 50), (Laplace(R1, 1.0, 100.0), 1)]
    accountant = ZCdpAccountant()
    for event, count in plan:
        accountant.compose(event, count)
    preview = make().preview(plan)
    assert (preview.accounting, preview.asked) == ("zcdp", accountant.epsilon(DELTA))


def test_the_book_of_a_fit_covers_this_fit_only_and_says_so():
    account = FitBudget(EPSILON, DELTA)
    reservation = account.reserve([(calibrated(2), 2)], job="j", run="r")
    with pytest.raises(BudgetError, match="use another"):
        account.reserve([(gaussian(1e-6), 1)], job="j", run="s")
    assert not account.preview([(gaussian(1e-6), 1)]).fits
    assert "this one fit only" in reservation.settle().scope
    with pytest.raises(PrivacyError):
        FitBudget(-1.0, DELTA)


def test_the_book_of_a_fit_accepts_plans_with_secret_sampling():
    pytest.importorskip("dp_accounting")
    sampled = PoissonSubsampledGaussian(R1, 2.0, 4.0, 0.01)
    account = FitBudget(EPSILON, DELTA)
    reservation = account.reserve([(sampled, 3)], job="j", run="r")
    reservation.charge([(ReleaseKey(i), sampled) for i in range(3)])
    with pytest.raises(BudgetExceeded, match="committed plan"):
        reservation.charge([(ReleaseKey(3), sampled)])
    statement = reservation.settle()
    assert statement.accounting == "pld"
    assert 0 < statement.epsilon == statement.reserved <= EPSILON


def test_costs_equal_those_of_the_accountants():
    event = Gaussian(R1, 0.3, 7.0, 2)
    assert epsilon_of(Accounting.GDP, cost(event, Accounting.GDP), 1e-6) == GaussianAccountant().compose(event).epsilon(
        1e-6
    )
    for kind in (event, BoundedRange(R1, 0.7), Laplace(R1, 0.7, 1.0)):
        found = epsilon_of(Accounting.ZCDP, cost(kind, Accounting.ZCDP), 1e-6)
        assert found == ZCdpAccountant().compose(kind).epsilon(1e-6)
    sampled = PoissonSubsampledGaussian(R1, 0.3, 7.0, 0.01)
    assert [cost(sampled, way) for way in Accounting] == [cost(event, way) for way in Accounting]


@pytest.mark.parametrize("epsilon", [1e-4, 0.01, 0.3, 1.0, 4.0, 12.0])
def test_pure_and_bounded_range_events_are_dominated_by_their_gaussian_pair(epsilon):
    α = np.linspace(1e-9, 1 - 1e-9, 20_001)

    def mu(event: Event) -> float:
        return float(Fraction(cost(event, Accounting.GDP), 1 << 256)) ** 0.5

    pure = np.maximum(np.maximum(1 - np.exp(epsilon) * α, np.exp(-epsilon) * (1 - α)), 0)
    assert np.all(ndtr(-ndtri(α) - mu(Laplace(R1, epsilon, 1.0))) <= pure + 1e-13)
    t = np.linspace(0, epsilon, 1001)[1:-1]
    p = (np.exp(epsilon) - np.exp(t)) / np.expm1(epsilon)
    needed = ndtri(p) - ndtri(p * np.exp(-t))
    assert np.all(needed <= mu(BoundedRange(R1, epsilon)) * (1 + 1e-9))
    if epsilon <= 0.3:  # and the bound is not wasteful
        assert needed.max() > 0.99 * mu(BoundedRange(R1, epsilon))


numbers = st.floats(min_value=1e-300, max_value=1e300, allow_nan=False)
events = st.one_of(
    st.builds(Gaussian, st.just(R1), numbers, numbers, st.integers(1, 10**9)),
    st.builds(BoundedRange, st.just(R1), numbers),
    st.builds(Laplace, st.just(R1), numbers, numbers),
    st.builds(PoissonSubsampledGaussian, st.just(R1), numbers, numbers, st.floats(1e-12, 1.0)),
)


@given(events)
def test_the_codec_restores_every_event_to_the_bit(event):
    again = decode(encode(event))
    assert again == event
    assert type(again) is type(event)
    assert encode(again) == encode(event)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"type":"quantum"}',
        '{"type":["gaussian"]}',
        '{"type":"gaussian"}',
        encode(gaussian(0.1)).replace("replace-one", "add-one"),
        encode(gaussian(0.1)).replace('"dimension":3', '"dimension":true'),
        encode(gaussian(0.1)).replace('"dimension":3', '"dimension":0'),
        encode(gaussian(0.1)).replace('"sigma":"0x1', '"sigma":"0x1p99999'),
        encode(gaussian(0.1)).replace("p+0", "p+99999"),
        encode(gaussian(0.1)).replace('"sigma":"0x1', '"sigma":"-0x1'),
        encode(gaussian(0.1)).replace('"sigma":"0x1.0000000000000p+0"', '"sigma":1.0'),
        encode(gaussian(0.1)).replace('"dimension":3', '"dimension":3,"scale":"0x1p0"'),
    ],
)
def test_an_object_that_is_not_an_event_raises(text):
    with pytest.raises(LedgerError, match="ledger"):
        decode(text)


def test_jobs_share_the_cap_and_settling_frees_the_rest(ledger):
    account = DatasetBudget(ledger, "credit")
    half = calibrated(2)
    first = account.reserve([(half, 1)], job="a", run="1")
    second = account.reserve([(half, 1)], job="b", run="2")
    with pytest.raises(BudgetExceeded, match=r"ε = 1 of its ε = 1 .*vfl ledger cap"):
        account.reserve([(gaussian(1e-6), 1)], job="c", run="3")
    first.charge([(ReleaseKey(0), half)])
    first.settle()
    second.refund()
    third = account.reserve([(half, 1)], job="c", run="3")
    third.charge([(ReleaseKey(0), half)])
    statement = third.settle()
    assert (statement.entries, statement.head) == (ledger.head().seq, ledger.head().hash)
    (balance,) = ledger.show()
    assert [run.status for run in balance.runs] == ["settled", "refunded", "settled"]
    assert 0.999 < balance.spent == balance.committed <= 1
    assert balance.left < 1e-6


def test_charges_after_restart_and_resume(ledger):
    event = calibrated(10)
    old = DatasetBudget(ledger, "credit").reserve([(event, 10)], job="a", run="1")
    old.charge([(ReleaseKey(i), event) for i in range(4)])
    head = ledger.head()
    account = DatasetBudget(SqliteLedger(ledger.path), "credit")
    with pytest.raises(BudgetError, match="another job"):
        account.resume("1", job="b")
    with pytest.raises(BudgetError, match="resume"):
        account.reserve([(event, 10)], job="a", run="1")
    with pytest.raises(BudgetError, match="began with"):
        account.resume("2", job="a")
    new = account.resume("1", job="a", head=head)
    assert new.charged() == {ReleaseKey(i) for i in range(4)}
    with pytest.raises(BudgetError, match="resumed by another"):
        old.charge([(ReleaseKey(5), event)])
    with pytest.raises(BudgetError, match="resumed by another"):
        old.settle()
    new.charge([(ReleaseKey(3, 0, 1), event), *((ReleaseKey(i), event) for i in range(4, 9))])
    with pytest.raises(BudgetExceeded):
        new.charge([(ReleaseKey(9), event)])
    statement = new.settle()
    again = account.resume("1", job="a")
    assert again.settle() == statement
    with pytest.raises(BudgetError, match="closed"):
        again.charge([(ReleaseKey(9), event)])


def test_an_open_reservation_counts_in_full_in_every_process(ledger):
    DatasetBudget(ledger, "credit").reserve([(calibrated(1), 1)], job="a", run="1")
    (balance,) = SqliteLedger(ledger.path).show()
    assert balance.spent == 0
    assert balance.committed > 0.999
    assert not DatasetBudget(SqliteLedger(ledger.path), "credit").preview([(gaussian(1e-6), 1)]).fits


def test_caps_are_changed_by_entries_and_never_below_the_spent_budget(ledger):
    DatasetBudget(ledger, "credit").reserve([(calibrated(1), 1)], job="a", run="1")
    with pytest.raises(BudgetError, match=r"cannot be ε = 0\.5"):
        ledger.set_cap("credit", epsilon=0.5, delta=DELTA)
    ledger.set_cap("credit", epsilon=2.0, delta=DELTA)
    assert DatasetBudget(ledger, "credit").preview([(calibrated(1), 1)]).fits
    assert [e["kind"] for e in json.loads(ledger.export())["entries"]] == ["cap", "reserve", "cap"]


def test_one_name_has_one_adjacency_and_one_accounting(ledger):
    with pytest.raises(BudgetError, match="a data set has only one"):
        ledger.set_cap("credit", epsilon=1.0, delta=DELTA, adjacency="add-or-remove-one")
    ledger.set_cap("credit", epsilon=1.0, delta=DELTA, accounting=Accounting.ZCDP)
    account = DatasetBudget(ledger, "credit")
    with pytest.raises(PrivacyError, match="adjacency"):
        account.reserve([(Gaussian("add-or-remove-one", 0.001, 1.0, 1), 1)], job="a", run="1")
    account.reserve([(gaussian(0.001), 1)], job="a", run="1")
    with pytest.raises(BudgetError, match="void the guarantee"):
        ledger.set_cap("credit", epsilon=1.0, delta=DELTA, accounting=Accounting.GDP)
    assert ledger.show()[0].accounting == "zcdp"
    assert account.preview([(gaussian(1e-6), 1)]).left < zcdp.epsilon_of_rho(zcdp.rho_of(1.0, DELTA), DELTA)


def test_a_data_set_counts_records_or_persons(ledger):
    """A person with several rows bears the sum of the costs of the person's records, which no ledger knows."""
    records, persons = (DatasetBudget(ledger, "credit", unit) for unit in ("record", "person"))
    reservation = records.reserve([(gaussian(1e-3), 1)], job="a", run="1")
    with pytest.raises(BudgetError, match="counts each record, and this job protects each person"):
        persons.reserve([(gaussian(1e-3), 1)], job="b", run="2")
    reservation.settle()
    with pytest.raises(BudgetError, match="counts each record"):
        persons.reserve([(gaussian(1e-3), 1)], job="b", run="2")
    records.reserve([(gaussian(1e-3), 1)], job="a", run="3")


def test_a_gaussian_scope_admits_selections_through_their_gaussian_pair(ledger):
    account = DatasetBudget(ledger, "credit")
    account.reserve([(gaussian(MU / 2), 1)], job="a", run="1")
    selection = account.reserve([(BoundedRange(R1, 0.01), 10)], job="b", run="2")
    selection.charge([(ReleaseKey(0), BoundedRange(R1, 0.01))])
    assert selection.settle().accounting == "gdp"


def test_a_data_set_without_a_cap_may_not_be_spent_on(ledger):
    with pytest.raises(BudgetError, match="vfl ledger cap"):
        DatasetBudget(ledger, "credti").reserve([(gaussian(1e-3), 1)], job="a", run="1")
    for name in ("", "a\nb"):
        with pytest.raises(SpecificationError, match="printable"):
            ledger.set_cap(name, epsilon=1.0, delta=DELTA)
    with pytest.raises(PrivacyError, match="epsilon"):
        ledger.set_cap("other", epsilon=float("nan"), delta=DELTA)


def test_replay_under_another_accountant(ledger):
    account = DatasetBudget(ledger, "credit")
    for run in "12":
        reservation = account.reserve([(calibrated(10), 5)], job="a", run=run)
        reservation.charge([(ReleaseKey(i), calibrated(10)) for i in range(5)])
    exact = ledger.replay("credit", GaussianAccountant())
    assert exact.epsilon(DELTA) == ledger.show()[0].spent
    assert ledger.replay("credit", ZCdpAccountant()).epsilon(DELTA) > exact.epsilon(DELTA)


def test_reservations_are_pickled_as_a_path(ledger):
    event = calibrated(3)
    reservation = pickle.loads(pickle.dumps(DatasetBudget(ledger, "credit").reserve([(event, 3)], job="a", run="1")))  # noqa: S301
    reservation.charge([(ReleaseKey(0), event)])
    assert DatasetBudget(ledger, "credit").resume("1", job="a").charged() == {ReleaseKey(0)}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["reserve", "charge", "charge", "settle", "stop", "refund", "reopen"]), st.integers(0, 3)
        ),
        max_size=25,
    )
)
def test_the_spent_budget_never_decreases_and_stays_under_the_cap(tmp_path_factory, steps):
    ledger = SqliteLedger(tmp_path_factory.mktemp("account") / "b.sqlite")
    ledger.set_cap("credit", epsilon=EPSILON, delta=DELTA)
    event, held, spent, keys = calibrated(7), {}, 0, iter(range(1000))
    for step, which in steps:
        run = str(which)
        try:
            if step == "reserve":
                held[run] = DatasetBudget(ledger, "credit").reserve([(event, which + 1)], job="a", run=run)
            elif step == "reopen":
                ledger = SqliteLedger(ledger.path)
                held = {name: DatasetBudget(ledger, "credit").resume(name, job="a") for name in held}
            elif run in held:
                calls = {
                    "charge": lambda r: r.charge([(ReleaseKey(next(keys)), event)]),
                    "settle": lambda r: r.settle(),
                    "stop": lambda r: r.settle(stopped_early=True),
                    "refund": lambda r: r.refund(),
                }
                calls[step](held[run])
        except BudgetError:
            pass
        with ledger.read() as state:
            scope = state.scope("credit")
            assert spent <= scope.spent <= scope.committed <= scope.capacity[Accounting.GDP]
            spent = scope.spent
    ledger.verify()
    with ledger.read() as state:
        assert state.scope("credit").spent == spent
