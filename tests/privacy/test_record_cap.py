"""The record cap: a pass over disjoint blocks is one release, in exact integers, in likelihood ratios and in the books."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import vfl
from coordinator.charging.budget import Earlier
from coordinator.charging.charger import Charger
from coordinator.executor import Executor
from coordinator.states.linear_predictors import LinearPredictors
from parties.storage.dense import Columns
from tests.faults import test_lost_parties as faults
from tests.faults.test_lost_parties import SKIP, WAIT, Lossy, charged, drive, policies
from tests.parties.alone import party_over
from vfl.base.losses import loss_of
from vfl.base.problem import Block
from vfl.base.types import Adjacency
from vfl.errors import BudgetExceeded, PrivacyError, SpecificationError
from vfl.kernels import dense
from vfl.kernels.dense import LOGISTIC, SQUARED, WEIGHTS
from vfl.kernels.geometry import Geometry, capped, record_limits
from vfl.launch.run import checkpoint
from vfl.planning import plan as make_plan
from vfl.planning.certificate.verification import events_of
from vfl.privacy.events import Gaussian, PoissonSubsampledGaussian, ReleaseKey
from vfl.privacy.geometry import Clip
from vfl.privacy.ledger import SqliteLedger
from vfl.privacy.noise import CryptographicNoise, SeededNoise
from vfl.queries import Backward, Descend, Paid, Query, RecordCap, RecordNorms, Records, Step
from vfl.queries.protocol import Derivative
from vfl.queries.rules import ProxStep

if TYPE_CHECKING:
    from parties.party import Party

anything = st.one_of(
    st.floats(),
    st.floats(-2, 2),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e308, -1e308, 1e-308, 5e-324, math.nan, math.inf, -math.inf]),
)


def pass_of(
    z: np.ndarray, centre: np.ndarray, scale: np.ndarray, C: float, residuals: list[float], cuts: list[int]
) -> Any:
    """Return what one record adds to every coordinate in a pass, in steps of the grid; residuals differ by block."""
    X, p = np.asfortranarray(z[None, :]), z.size
    clip = Clip(C, p)
    limits = record_limits(dense.record_norms(X, centre, scale), C)
    sums = []
    for (a, b), r in zip(zip([0, *cuts], [*cuts, p], strict=True), residuals, strict=False):
        at = Geometry(centre[a:b], scale[a:b], clip.cap, clip.grid)
        v = np.array([r])
        sums.append(dense.capped_step(X[:, :0], v[:0], 0.0, v, WEIGHTS, np.asfortranarray(X[:, a:b]), at, limits))
    return np.concatenate(sums), clip


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    """A record and its replacement: mass in one, √p or all coordinates, opposite, of disjoint support, or anything."""
    p = draw(st.integers(1, 9))
    sizes = {"one": 1, "root": math.isqrt(p), "all": p}
    support = sizes[draw(st.sampled_from(sorted(sizes)))]
    z = np.zeros(p)
    z[:support] = draw(
        st.lists(st.floats(-1e3, 1e3) | st.sampled_from([1.0, 3.0, 4.0]), min_size=support, max_size=support)
    )
    other = draw(st.sampled_from(["opposite", "disjoint", "any", "the same"]))
    z2 = {"opposite": -z, "disjoint": z[::-1] * (np.arange(p) >= support), "the same": z}.get(other)
    if z2 is None:
        z, z2 = (np.array(draw(st.lists(anything, min_size=p, max_size=p))) for _ in range(2))
    cuts = sorted(draw(st.sets(st.integers(1, p - 1)))) if p > 1 else []
    given_ = st.lists(st.sampled_from([1e300, -1e300, 1e6, -1e6]) | anything, min_size=p, max_size=p)
    return {
        "z": (z, z2),
        "cuts": cuts,
        "residuals": (draw(given_), draw(given_)),
        "scale": np.array(draw(st.lists(st.floats(0.1, 10) | st.floats(1e-290, 1e290), min_size=p, max_size=p))),
        "centre": np.array(draw(st.lists(st.sampled_from([0.0, 1e3]) | st.floats(-1, 1), min_size=p, max_size=p))),
        "C": draw(st.floats(1e-6, 1e6) | st.sampled_from([1.0, 5.0, 1 - 2**-53])),
    }


@settings(max_examples=150, deadline=None)
@given(case=records())
def test_a_whole_pass_moves_by_the_sensitivity_of_one_release(case: dict[str, Any]) -> None:
    """Hold for any residual per block, in exact integers, with the sum over the blocks of squared moves."""
    at = case["centre"], case["scale"], case["C"]
    (one, clip), (other, _) = (
        pass_of(z, *at, r, case["cuts"]) for z, r in zip(case["z"], case["residuals"], strict=True)
    )
    moved = sum((int(a) - int(b)) ** 2 for a, b in zip(one, other, strict=True))
    assert moved <= (Fraction(clip.sensitivity) / Fraction(clip.grid)) ** 2


def test_the_bound_is_reached_and_a_cap_per_block_breaks_it() -> None:
    z, zeros, ones = np.ones(9), np.zeros(9), np.ones(9)
    cuts = list(range(1, 9))
    (one, clip), (other, _) = (pass_of(s * z, zeros, ones, 1.0, [1e6] * 9, cuts) for s in (1.0, -1.0))
    reached = math.sqrt(float(((one - other) ** 2).sum())) * clip.grid
    assert 0.99999 < reached / clip.sensitivity <= 1.0
    alone = [
        dense.singles(
            np.asfortranarray(s * z[None, :]), *(np.array([1e6]),) * 2, WEIGHTS, Geometry(zeros, ones, 1.0, clip.grid)
        )
        for s in (1, -1)
    ]
    assert math.sqrt(float(((alone[0] - alone[1]) ** 2).sum())) * clip.grid > 2.9 * clip.sensitivity


def test_norms_are_of_the_products_that_are_summed() -> None:
    """A far centre, a scale whose square underflows, and a difference that a formula of x² would lose."""
    X = np.asfortranarray([[0.0, 1e150, 1e8 + 1.0]])
    centre, scale = np.array([1000.0, 0.0, 1e8]), np.array([1.0, 1e-165, 1.0])
    found = dense.record_norms(X, centre, scale)
    assert found[0] == pytest.approx(1e6 + 1e-30 + 1.0, rel=1e-15)
    assert dense.record_norms(np.float32([[3.0]]), np.ones(1), np.ones(1)).dtype == np.float64


def capped_arguments(v: np.ndarray, y: np.ndarray, loss: int, X: np.ndarray, at: Geometry, limits: np.ndarray) -> Any:
    """Return the last arguments of `capped_step`, as a party gives them: squared loss by its residuals."""
    if loss == SQUARED:
        v, loss = v - y, WEIGHTS
    return v.copy(), loss, X, at, dense.bounds_of(limits, y, loss)


class TestLogistic:
    """The cap of logistic loss biases no intercept, and stays the derivative of a convex function."""

    v = np.linspace(-30, 30, 2001)

    @pytest.mark.parametrize("limit", [1e-3, 0.2, 0.5, 0.7, 2.0])
    def test_mean_zero_and_monotone_and_within(self, limit: float) -> None:
        π = 1.0 / (1.0 + np.exp(-self.v))
        limits = np.full(self.v.size, limit)
        r = {
            y: capped(loss_of("logistic").derivative(self.v, np.full(self.v.size, y)), limits, "logistic")
            for y in (1.0, -1.0)
        }
        np.testing.assert_allclose(π * r[1.0] + (1 - π) * r[-1.0], 0.0, atol=1e-12)
        for each in r.values():
            assert (np.diff(each) >= -1e-15).all()
            assert (abs(each) <= limits).all()

    @pytest.mark.parametrize("loss", [LOGISTIC, SQUARED])
    def test_kernel_and_array_agree(self, loss: int) -> None:
        rng = np.random.default_rng(0)
        n = 1003
        X, v = np.asfortranarray(rng.normal(size=(n, 3))), 3 * rng.normal(size=n)
        y, limits = np.sign(rng.normal(size=n)), rng.uniform(0, 1.5, n)
        at = Geometry(np.full(3, 0.1), np.full(3, 2.0), 8.0, 2.0**-17)
        name = {LOGISTIC: "logistic", SQUARED: "squared"}[loss]
        ρ = capped(loss_of(name).derivative(v, y), limits, name)
        expected = (2.0 * (X - 0.1) * ρ[:, None]).sum(axis=0)
        none, zero = X[:, :0], np.zeros(0)
        ours = dense.capped_step(none, zero, 0.0, *capped_arguments(v, y, loss, X, at, limits)) * at.grid
        np.testing.assert_allclose(ours, expected, atol=n * at.grid)

    def test_the_kernel_refuses_squared_loss_and_unknown_codes(self) -> None:
        X, one = np.ones((1, 1), order="F"), np.ones(1)
        for code in (SQUARED, 7):
            with pytest.raises(SpecificationError, match="no capped kernel"):
                dense.capped_step(X, one, 0.0, one.copy(), code, X, Geometry(one, one, 1.0, 2.0**-20), one)

    @pytest.mark.parametrize("loss", [LOGISTIC, SQUARED])
    def test_no_margin_and_no_limit_gets_past_the_bound(self, loss: int) -> None:
        """One record at a time and many at once; NaN counts as 0."""
        edges = [0.0, 5e-324, 1e-300, 0.3, 0.5, 1.0, 36.0, 708.0, 709.8, 745.0, 1e300, math.inf, math.nan]
        limits = np.array([0.0, 5e-324, 1e-300, 0.3, 0.5, 1 - 2**-53, 1.0, 1e140, math.inf])
        v, y, k = (a.ravel() for a in np.meshgrid([*edges, *(-e for e in edges)], [1.0, -1.0], limits))
        X, one, zero = np.ones((1, 1), order="F"), np.ones(1), np.zeros(1)
        at, empty = Geometry(zero, one, 1.0, 2.0**-20), np.zeros(0)
        each = np.array(
            [
                dense.capped_step(X[:, :0], empty, 0.0, *capped_arguments(v[[i]], y[[i]], loss, X, at, k[[i]]))[0]
                for i in np.flatnonzero(k <= 1.0)
            ]
        )
        few = k <= 1.0
        assert (abs(each) <= np.rint(k[few] * 2.0**20)).all()
        assert (each[np.isnan(v[few])] == 0).all()
        many = np.asfortranarray(np.ones((few.sum(), 1)))
        together = dense.capped_step(many[:, :0], empty, 0.0, *capped_arguments(v[few], y[few], loss, many, at, k[few]))
        assert together[0] == each.sum()


# ---- one party ----

P = 4
ROW = Block(0, "a", 0, P, 0)
ROWS = ROW, np.zeros(P), np.ones(P)
C = 1.0


def cap_of(z: float, number: int = 0, scale: np.ndarray | None = None) -> RecordCap:
    clip = Clip(C, P)
    event = Gaussian(Adjacency.REPLACE_ONE, clip.sensitivity, z * clip.sensitivity, P)
    rows = {"a": (ROW, np.zeros(P), np.ones(P) if scale is None else scale)}
    return RecordCap(C, rows, ((event, 99),), Paid(ReleaseKey(number), event))


def visit(
    whole: RecordCap, blocks: list[int], *, recomputes: bool = True, z: float | None = None, **changed: Any
) -> Descend:
    """Return a visit of single coordinates; z : of the noise that the steps carry, if not that of the charge."""
    clip, event = Clip(C, P), whole.paid.event
    event = event if z is None else replace(event, sigma=z * event.sensitivity)
    steps = tuple(Step(Block(j, "a", j, j + 1, 0), np.zeros(1), np.ones(1), clip, Still(), event) for j in blocks)
    return Descend(
        Derivative(loss_of("squared")), {"a": steps}, {"a": np.zeros(P)}, recomputes, capped=replace(whole, **changed)
    )


@dataclass(frozen=True)
class Still:
    """A rule that does not move."""

    def __call__(self, w: np.ndarray, u: np.ndarray) -> np.ndarray:
        return 0.0 * u


def party_of(X: np.ndarray, noise: Any) -> Party:
    return party_over("a", Columns(np.asfortranarray(X), tuple(f"x{j}" for j in range(P))), noise, exact=(Query,))


def shown(n: int, limits: np.ndarray, residual: float = 1e6) -> Records:
    return Records(weights=np.full(n, residual), margins=np.full(n, residual), labels=np.zeros(n), limits=limits)


@pytest.mark.parametrize("recomputes", [True, False])
def test_a_party_holds_records_to_its_own_norms_whatever_it_is_given(recomputes: bool) -> None:
    """Limits and residuals of a coordinator that is wrong by any factor."""
    X = np.array([[3.0, 0.0, 4.0, 0.0]])
    query = visit(cap_of(1e-9), [0, 1, 2, 3], recomputes=recomputes)
    u = np.concatenate(party_of(X, SeededNoise(0)).answer(query, shown(1, np.full(1, 1e9)), ReleaseKey(0)).released)
    assert np.linalg.norm(u) == pytest.approx(C, abs=1e-5)


@pytest.mark.parametrize("limit", [-1e9, -math.inf, math.nan, math.inf])
def test_limits_that_are_none_raise_no_cap(limit: float) -> None:
    X = np.array([[3.0, 0.0, 4.0, 0.0]])
    query = visit(cap_of(1e-9), [0, 1, 2, 3])
    u = np.concatenate(party_of(X, SeededNoise(0)).answer(query, shown(1, np.full(1, limit)), ReleaseKey(0)).released)
    assert np.linalg.norm(u) <= C + 1e-5


def test_a_party_refuses_a_cap_over_some_of_its_columns_only() -> None:
    """Norms of a column of zeros would let the others contribute without limit."""
    X, at = np.array([[3.0, 0.0, 4.0, 0.0]] * 2), (shown(2, np.full(2, 1e9)), ReleaseKey(0))
    party, whole = party_of(X, CryptographicNoise()), cap_of(1.0)
    for row in (Block(0, "a", 1, 2, 0), Block(0, "a", 1, 5, 0), Block(0, "a", 0, 1, 0)):
        with pytest.raises(PrivacyError, match=r"not over all|not its own"):
            party.answer(visit(whole, [0], rows={"a": (row, np.zeros(P), np.ones(P))}), *at)
    with pytest.raises(PrivacyError, match="not over all"):
        party.answer(visit(whole, [0], rows={"a": (Block(0, "a", 0, 1, 0), np.zeros(1), np.ones(1))}), *at)


def test_a_column_under_another_offset_is_the_same_column() -> None:
    party, at = party_of(np.ones((2, P)), CryptographicNoise()), (shown(2, np.full(2, 0.5)), ReleaseKey(0))
    query = visit(cap_of(1.0), [0])
    party.answer(query, *at)
    moved = {"a": tuple(replace(step, block=replace(step.block, offset=50)) for step in query.steps["a"])}
    with pytest.raises(PrivacyError, match="a coordinate twice in one pass"):
        party.answer(replace(query, steps=moved), *at)


def test_a_block_may_not_claim_the_sensitivity_of_its_own_columns() -> None:
    """Δ of one column leaves out the rounding of the others, so that a pass of many would have too little noise."""
    whole, alone = cap_of(1.0), Clip(C, 1)
    event = replace(whole.paid.event, sensitivity=alone.sensitivity, sigma=alone.sensitivity)
    query = visit(whole, [0])
    steps = {"a": tuple(replace(step, event=event) for step in query.steps["a"])}
    with pytest.raises(PrivacyError, match="a smaller sensitivity"):
        party_of(np.ones((2, P)), CryptographicNoise()).answer(
            replace(query, steps=steps), shown(2, np.full(2, 0.5)), ReleaseKey(0)
        )


def test_a_party_refuses_what_a_charge_does_not_pay_for() -> None:
    X, at = np.ones((2, P)), (shown(2, np.full(2, 0.5)), ReleaseKey(3))
    party = party_of(X, CryptographicNoise())
    party.answer(visit(cap_of(1.0), [0, 1]), *at)
    party.answer(visit(cap_of(1.0), [3]), *at)
    with pytest.raises(PrivacyError, match="a coordinate twice in one pass"):
        party.answer(visit(cap_of(1.0), [2, 1]), *at)
    party.answer(visit(cap_of(1.0, number=9), [2, 1]), *at)
    with pytest.raises(PrivacyError, match="less noise"):
        party.answer(visit(cap_of(1.0, number=10), [0], z=0.99), *at)
    with pytest.raises(PrivacyError, match="a scale different"):
        party.answer(visit(cap_of(1.0, number=11, scale=np.full(P, 2.0)), [0]), *at)
    with pytest.raises(PrivacyError, match="not charged"):
        party.answer(visit(cap_of(1.0, number=12), [0], paid=None), *at)
    with pytest.raises(PrivacyError, match="a cap or grid different"):
        party.answer(visit(cap_of(1.0, number=13), [0], cap=2.0), *at)


ENOUGH = 1.0 + 2.0**-50


@pytest.mark.parametrize("end", ["party", "coordinator"])
def test_a_charge_covers_a_coordinate_several_times_with_as_much_more_noise(end: str) -> None:
    """m releases of a coordinate cost as much as one if each has √m times the noise, in one query under a charge alone."""
    at = shown(2, np.full(2, 0.5)), ReleaseKey(3)
    party, charger = party_of(np.ones((2, P)), CryptographicNoise()), asking(CryptographicNoise(), cap_of(1.0))[0]

    def ask(blocks: list[int], z: float, number: int) -> None:
        if end == "party":
            party.answer(visit(cap_of(1.0, number), blocks, z=z), *at)
        else:
            charger.charge(replace(visit(cap_of(1.0), blocks, z=z), capped=replace(cap_of(1.0), paid=None)), number)

    for m in (2, 3, 4, 5, 7):
        ask([0, 1] * m, math.sqrt(m) * ENOUGH, 10 + m)
        ask([2] * m + [3], math.sqrt(m) * ENOUGH, 20 + m)
        for blocks, z in (
            ([0, 1] * m, math.sqrt(m) * (1.0 - 1e-9)),
            ([0] * m + [1], 1.0),
            ([2] * (m + 1), math.sqrt(m)),
        ):
            with pytest.raises(PrivacyError, match="less noise"):
                ask(blocks, z, 30 + m)
    if end == "party":
        with pytest.raises(PrivacyError, match="a coordinate twice in one pass"):
            ask([0, 2], 9.0, 12)


class Unlimited:
    """A reservation that refuses nothing."""

    def charge(self, items: Any) -> None: ...


def asking(noise: Any, cap: RecordCap, **options: Any) -> tuple[Charger, Any]:
    """Return a charger, and a function that returns the number of charges for some blocks and the key that pays for them."""
    charger = Charger(Unlimited(), noise=noise, **options)  # type: ignore[arg-type]

    def asked(blocks: list[int], number: int) -> tuple[int, ReleaseKey]:
        made = charger.charge(replace(visit(cap_of(1.0), blocks), capped=cap), number)
        return len(made.charges), made.query.capped.paid.key  # type: ignore[union-attr]

    return charger, asked


def test_the_executor_charges_a_pass_once_and_a_repeat_with_the_next() -> None:
    cap = replace(cap_of(1.0), paid=None)
    charger, asked = asking(CryptographicNoise(), cap, earlier=Earlier(0, {12: 1}))
    assert asked([0, 1], 5) == (1, ReleaseKey(5))
    assert asked([2], 6) == (0, ReleaseKey(5))
    charger.lost()
    assert asked([2], 6) == (1, ReleaseKey(6, attempt=1))
    assert asked([3], 7) == (0, ReleaseKey(6, attempt=1))
    assert asked([0, 1], 8) == (0, ReleaseKey(6, attempt=1))
    assert asked([2, 3], 9) == (1, ReleaseKey(9))
    with pytest.raises(PrivacyError, match="less noise"):
        asked([0, 0], 10)
    charger.replayed(replace(visit(cap_of(1.0), [0]), capped=cap), 11)
    assert asked([1], 12) == (1, ReleaseKey(12))  # a resumed run trusts no charge of another process


def test_another_cap_or_scale_is_another_charge() -> None:
    """The rounding of two caps would not share one bound, and a record may have its mass elsewhere in another scale."""
    for changed in ({"cap": C}, {"rows": {"a": (ROW, np.zeros(P), np.full(P, 2.0))}}):
        cap = replace(cap_of(1.0), paid=None)
        charger, _ = asking(CryptographicNoise(), cap)
        for number, each in enumerate((cap, replace(cap, **changed))):
            query = visit(cap_of(1.0), [number])
            clip = Clip(each.cap, P)
            steps = {"a": tuple(replace(step, clip=clip) for step in query.steps["a"])}
            made = charger.charge(replace(query, steps=steps, capped=each), number)
            assert [key for key, _ in made.charges] == [ReleaseKey(number)]
            assert made.query.capped.paid.key == ReleaseKey(number)
    party, at = party_of(np.ones((2, P)), CryptographicNoise()), (shown(2, np.full(2, 0.5)), ReleaseKey(0))
    party.answer(visit(cap_of(1.0), [0]), *at)
    smaller = Clip(C / 2, P)
    event = smaller.event(1.0)
    query = visit(cap_of(1.0), [1], cap=C / 2)
    steps = {"a": tuple(replace(step, clip=smaller, event=event) for step in query.steps["a"])}
    with pytest.raises(PrivacyError, match="within a pass"):
        party.answer(replace(query, steps=steps), *at)


def test_a_lost_query_of_another_kind_undoes_no_charge() -> None:
    """Seeded noise repeats what was lost to the bit, and nothing else."""
    charger, asked = asking(SeededNoise(1), replace(cap_of(1.0), paid=None))
    assert asked([0, 1], 0)[0] == 1
    charger.charge(Query(), 1)
    charger.lost()  # of a query that charges nothing
    assert asked([2], 2)[0] == 0
    charger.lost()
    assert asked([2], 2)[0] == 0
    assert asked([0], 3)[0] == 1


def test_a_refused_charge_pays_for_nothing() -> None:
    class Empty:
        asked = 0

        def charge(self, charges: object) -> None:
            self.asked += 1
            raise BudgetExceeded("nothing is left")

    account, cap = Empty(), replace(cap_of(1.0), paid=None)
    executor = Executor(
        None, LinearPredictors(np.zeros(2)), Charger(account, noise=CryptographicNoise())
    )  # no party may be reached
    still = ProxStep(np.zeros(1), np.zeros(1), vfl.penalties.NoPenalty())
    for blocks in ([0, 1], [2, 3]):
        query = visit(cap_of(1.0), blocks)
        steps = {"a": tuple(replace(step, rule=still) for step in query.steps["a"])}
        with pytest.raises(BudgetExceeded):
            executor(replace(query, steps=steps, capped=cap))
    assert account.asked == 2


def test_a_coordinator_sends_no_noise_under_a_cap_that_it_does_not_charge() -> None:
    """A query of a pass is charged at its prices or paid for already, and a sum is charged as the step of a visit."""

    class Account:
        charged: tuple[Any, ...] = ()

        def charge(self, charges: Any) -> None:
            self.charged += charges

    account, paid = Account(), cap_of(1.0)
    executor = Executor(
        None, LinearPredictors(np.zeros(2)), Charger(account, noise=CryptographicNoise())
    )  # no party may be reached
    clip, event = Clip(C, P), paid.paid.event
    sampled = PoissonSubsampledGaussian(event.adjacency, event.sensitivity, event.sigma, 1.0)
    step = visit(paid, [0]).ordered()[0]
    for noise in (event, sampled):
        for cap in (paid, replace(paid, paid=None), replace(paid, paid=None, prices=())):
            with pytest.raises(PrivacyError):
                executor(
                    Backward(Derivative(loss_of("squared")), (ROW,), (ROWS[1],), (ROWS[2],), clip, noise, capped=cap)
                )
        steps = {"a": (step, replace(step, event=None))}
        for changed in ({"capped": replace(paid, paid=None, prices=())}, {"steps": steps}):
            with pytest.raises(PrivacyError):
                executor(replace(visit(paid, [0, 1]), **changed))
    assert account.charged == ()


# ---- the audit ----


def total_variation(
    noise: float, replacement: np.ndarray, record: np.ndarray, runs: int = 400, *, turns: int = 1
) -> float:
    """Return a lower estimate of the distance of two neighbours' passes from the best test of half of the runs.

    turns : number of releases of every coordinate, with √turns times the noise.
    """
    blocks, z = list(range(P)) * turns, noise * math.sqrt(turns) * ENOUGH
    X = np.zeros((3, P))
    means, ratios = [], []
    for row in (record, replacement):
        X[0] = row
        exact = visit(cap_of(1e-9), blocks, z=1e-8)
        found = party_of(X, SeededNoise(1)).answer(exact, shown(3, record_limits((X**2).sum(axis=1), C)), ReleaseKey(0))
        means.append(np.concatenate(found.released))
    σ = z * Clip(C, P).sensitivity
    for k, row in enumerate((record, replacement)):
        X[0] = row
        party, limits = party_of(X, SeededNoise(7 + k)), record_limits((X**2).sum(axis=1), C)
        u = np.array(
            [
                np.concatenate(
                    party.answer(visit(cap_of(noise, t), blocks, z=z), shown(3, limits), ReleaseKey(t)).released
                )
                for t in range(runs)
            ]
        )
        ratios.append(((u - means[1]) ** 2 - (u - means[0]) ** 2).sum(axis=1) / (2 * σ**2))
    return float((ratios[0] > 0).mean() - (ratios[1] > 0).mean())


@pytest.mark.parametrize(
    ("support", "other"), [(1, "opposite"), (2, "opposite"), (P, "opposite"), (1, "disjoint"), (2, "disjoint")]
)
def test_likelihood_ratios_of_whole_passes_stay_within_the_claim(support: int, other: str) -> None:
    """μ = 1/z = 2. A pass whose noise is smaller by √2 is found out where the bound is reached."""
    record = np.where(np.arange(P) < support, 1.0, 0.0)
    replacement = -record if other == "opposite" else record[::-1]
    claim = 2 * norm.cdf(1.0) - 1
    for turns in (1, 3):
        found = total_variation(0.5, replacement, record, turns=turns)
        assert found <= claim + 0.1
        if other == "opposite":
            assert found >= claim - 0.1
    if other == "opposite":
        assert total_variation(0.5 / math.sqrt(2), replacement, record) > claim + 0.1


# ---- whole runs ----


def job(solver: Any, *, noise: str = "true", epsilon: float = 1.0, **changes: Any) -> vfl.Job:
    from tests.faults.test_lost_parties import job as base

    return replace(base(noise=noise, solver=solver), **changes)


def test_a_plan_counts_passes_and_reserve_passes() -> None:
    spec = job(vfl.SkGD(clip="record", passes=10, details=vfl.solvers.Details(reserve_passes=2, early_share=0.15)))
    moments, balance, early, rest = make_plan(spec, 400).releases
    assert (moments[1], balance[1], early[1], rest[1]) == (1, 1, 3, 9)
    assert early[0].sigma > rest[0].sigma
    assert early[0].dimension == rest[0].dimension == 8
    assert make_plan(spec, 400).epsilon <= 1.0


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("message", ["party", "consecutive", "block"])
def test_a_run_charges_one_event_a_pass(message: str, parallel: int) -> None:
    solver = vfl.SkGD(
        clip="record",
        details=vfl.solvers.Details(
            outer_rounds=2, inner_rounds=19, message=message, parallel=parallel, early_share=0.0
        ),
    )
    transport = Lossy(job(solver), times=0)
    events, outcome = drive(transport, WAIT)
    assert charged(events) == outcome.statement.releases == 2 + 5  # 38 draws of 8 coordinates
    assert outcome.statement.epsilon <= 1.0


def test_a_run_charges_one_event_for_all_passes_of_a_message() -> None:
    """12 passes in rounds of 4 take 3 charges and 3 messages per party. A lost answer takes the charge of another round."""
    for reserve_passes, lost in ((0, 0), (0, 1), (1, 1)):
        spec = job(
            vfl.SkGD(
                clip="record",
                passes=12,
                details=vfl.solvers.Details(local_passes=4, reserve_passes=reserve_passes),
            )
        )
        events, outcome = drive(Lossy(spec, times=lost, at=7, moment="after"), WAIT)
        visits = [r for r in events if getattr(r, "kind", "") == "Descend"]
        assert lost or len(visits) == len(spec.partition.parties) * 3
        assert (sum(len(r.released) for r in visits) == 12 * 8) == (reserve_passes >= lost)
        assert charged(events) == outcome.statement.releases == 2 + 3 + reserve_passes
        assert outcome.statement.epsilon <= 1.0


def test_a_lost_answer_charges_the_next_pass() -> None:
    """A reserve pays for it; without one the last pass is not made."""
    made = {}
    for reserve_passes in (0, 1):
        spec = job(vfl.SkGD(clip="record", passes=6, details=vfl.solvers.Details(reserve_passes=reserve_passes)))
        events, outcome = drive(Lossy(spec, at=7, moment="after"), WAIT)
        made[reserve_passes] = sum(len(r.released) for r in events if getattr(r, "kind", "") == "Descend")
        assert outcome.statement.epsilon <= 1.0
        assert charged(events) == outcome.statement.releases == 2 + 6 + reserve_passes
    assert made[0] < made[1] == 6 * 8


@pytest.mark.parametrize("noise", ["seeded", "true"])
@pytest.mark.parametrize("books", [False, True], ids=["", "with books"])
def test_lost_and_back(tmp_path: Any, noise: str, books: bool) -> None:
    spec = job(
        vfl.SkGD(clip="record", passes=6, details=vfl.solvers.Details(reserve_passes=1, early_share=0.15)), noise=noise
    )
    whole = drive(Lossy(spec, times=0), WAIT)[1]
    _, outcome = drive(Lossy(spec, at=6, moment="after", policies=policies(tmp_path) if books else None), WAIT)
    if noise == "seeded":
        assert outcome.w.tobytes() == whole.w.tobytes()
    assert outcome.statement.epsilon <= 1.0
    for party in spec.partition.parties if books else ():
        (kept,) = SqliteLedger(tmp_path / f"{party}.ledger").show()
        assert [run.status for run in kept.runs] == ["settled"]


@pytest.mark.parametrize("noise", ["seeded", "true"])
@pytest.mark.parametrize("at", [1, 2, 7])
def test_left_out(noise: str, at: int) -> None:
    """Over the norms, the first visit, and in the middle."""
    _, outcome = drive(Lossy(job(vfl.SkGD(clip="record", passes=6), noise=noise), at=at, returns=False), SKIP)
    assert outcome.left == ("shop",)
    assert outcome.statement.epsilon <= 1.0


@pytest.mark.parametrize("noise", ["seeded", "true"])
@pytest.mark.parametrize("at", [3, 9])
def test_skipped_then_cut_off_then_resumed(tmp_path: Any, noise: str, at: int) -> None:
    """Norms are asked anew without the party, in the first process and in the one that goes on."""
    ledgered, spec = (
        faults.TestLedger(),
        job(
            vfl.SkGD(clip="record", passes=8, details=vfl.solvers.Details(reserve_passes=2, early_share=0.15)),
            noise=noise,
        ),
    )
    found = {}
    for name, stop in (("whole", 10**9), ("cut", 14)):
        (tmp_path / name).mkdir()
        found[name] = ledgered.begin(tmp_path / name, Lossy(spec, at=at, returns=False), SKIP, stop)
    again = Lossy(spec, times=0)
    again.gone.add("shop")
    found["cut"] = ledgered.go_on(tmp_path / "cut", again, SKIP)
    for name, outcome in found.items():
        assert outcome.left == ("shop",)
        assert outcome.statement.epsilon <= 1.0
        assert len(ledgered.charges(tmp_path / name)) == outcome.statement.releases
    if noise == "seeded":
        np.testing.assert_array_equal(found["cut"].w, found["whole"].w)


@pytest.mark.parametrize("noise", ["seeded", "true"])
@pytest.mark.parametrize(("stop", "repeated"), [(3, 0), (6, 0), (8, 1), (13, 1)])
def test_cut_off_and_resumed(tmp_path: Any, noise: str, stop: int, repeated: int) -> None:
    """A resumed run charges a new pass for the blocks that are left of one that was begun; at the end of one there are none."""
    ledgered, spec = (
        faults.TestLedger(),
        job(
            vfl.SkGD(clip="record", passes=6, details=vfl.solvers.Details(reserve_passes=1, early_share=0.15)),
            noise=noise,
        ),
    )
    (tmp_path / "run").mkdir()
    assert ledgered.begin(tmp_path / "run", Lossy(spec, times=0), WAIT, stop) is None
    before = ledgered.charges(tmp_path / "run")
    outcome = ledgered.go_on(tmp_path / "run", Lossy(spec, times=0), WAIT)
    after = ledgered.charges(tmp_path / "run")
    assert set(before) <= set(after)
    assert len(after) == len(set(after)) == outcome.statement.releases
    assert outcome.statement.epsilon <= 1.0
    if noise == "seeded":
        assert outcome.w.tobytes() == drive(Lossy(spec, times=0), WAIT)[1].w.tobytes()
    assert len(after) == 2 + 6 + (repeated if noise == "true" else 0)
    if noise == "true":
        assert_prices_are_those_of_the_plan(spec, tmp_path / "run", made=6 + repeated)


def assert_prices_are_those_of_the_plan(spec: vfl.Job, folder: Any, made: int) -> None:
    """The passes of early rounds stay cheap in a resumed run: the charges are the plan's, without its last."""
    (early, cheap), (rest, _) = make_plan(spec, faults.N).releases[-2:]
    charges = Counter(events_of(folder / checkpoint.LEDGER, "run").values())
    assert (charges[early], charges[rest]) == (cheap, made - cheap)


class Cut(Lossy):
    """Ends the process at a query, after the charge and before or after the answer."""

    def ask(self, shares: Any, records: Any, key: ReleaseKey) -> Any:
        if len(self.asked) == self.at:
            if self.moment == "after":
                self.inner.ask(shares, records, key)
            raise KeyboardInterrupt
        return super().ask(shares, records, key)


@pytest.mark.parametrize(("at", "passes_lost"), [(2, 0), (3, 1), (5, 1), (8, 1)])
def test_cut_off_between_charge_and_log_then_resumed(tmp_path: Any, at: int, passes_lost: int) -> None:
    """Charges without an answer count: the resumed run knows which of the plan's charges are left."""
    ledgered, spec = (
        faults.TestLedger(),
        job(vfl.SkGD(clip="record", passes=6, details=vfl.solvers.Details(reserve_passes=1, early_share=0.15))),
    )
    (tmp_path / "run").mkdir()
    with pytest.raises(KeyboardInterrupt):
        ledgered.begin(tmp_path / "run", Cut(spec, at=at, moment="after", times=0), WAIT)
    outcome = ledgered.go_on(tmp_path / "run", Lossy(spec, times=0), WAIT)
    assert len(ledgered.charges(tmp_path / "run")) == outcome.statement.releases == 2 + 6 + passes_lost
    assert_prices_are_those_of_the_plan(spec, tmp_path / "run", made=6 + passes_lost)


def test_a_book_charges_a_pass_whole_and_once(tmp_path: Any) -> None:
    spec = job(vfl.SkGD(clip="record", passes=6))
    drive(Lossy(spec, times=0, policies=policies(tmp_path)), WAIT)
    for party in spec.partition.parties:
        (kept,) = SqliteLedger(tmp_path / f"{party}.ledger").show()
        assert [run.releases for run in kept.runs] == [1 + 6 + 1]  # moments, passes, and what the coordinator released


def test_sampling_with_replacement_is_refused() -> None:
    for options in ({"sampling": "uniform"}, {"sampling": "nice", "tau": 2}, {"sampling": "importance"}):
        with pytest.raises(SpecificationError, match="clip='record' needs a sampling"):
            vfl.SkGD().changed(clip="record", **options)
    with pytest.raises(SpecificationError, match=r"reserve_passes.*clip='record'"):
        vfl.SkGD(clip=1.0, details=vfl.solvers.Details(reserve_passes=2))


def test_without_privacy_a_wide_cap_changes_nothing() -> None:
    free, wide = (
        drive(Lossy(job(solver, noise="none"), times=0), WAIT)[1].w
        for solver in (
            vfl.SkGD(passes=60),
            vfl.SkGD(clip="record", passes=60, details=vfl.solvers.Details(record_clip=3.0)),
        )
    )
    np.testing.assert_allclose(free, wide, atol=1e-5)


def test_norms_reach_margins_alone() -> None:
    query = RecordNorms({"a": (ROW, np.zeros(P), np.ones(P))})
    assert query.target == "norms"
    assert query.sizes() == ()
    assert query.events() == ()
