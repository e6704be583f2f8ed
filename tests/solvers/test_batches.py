"""Batches and joint clips: samples, contribution of a record, charge of a pass, and refusals."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vfl
from coordinator.charging.charger import Charger
from coordinator.executor import Executor
from coordinator.states.linear_predictors import LinearPredictors
from parties.storage.dense import Columns
from tests.parties.alone import party_over
from tests.solvers import setting
from vfl.base.types import Adjacency
from vfl.errors import JobFileError, PrivacyError, SpecificationError
from vfl.job.file import decode
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.planning import plan as make_plan
from vfl.planning import problem_of
from vfl.privacy.accountants import PldAccountant
from vfl.privacy.calibration import scaled_to_budget
from vfl.privacy.events import Gaussian, PoissonSubsampledGaussian, ReleaseKey
from vfl.privacy.geometry import Clip
from vfl.privacy.noise import CryptographicNoise, SeededNoise
from vfl.queries import Fold, Piece, Query, Records, Sample, kinds
from vfl.solvers import joint

SOLVERS = {"SGD": vfl.solvers.SGD, "SVRG": vfl.solvers.SVRG, "SCD": vfl.solvers.SCD}
BY_SOLVER = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)


@dataclass(frozen=True)
class Weights:
    """A loss with a given derivative: the worst possible loss."""

    r: float

    name: ClassVar[str] = "given"
    kernel: ClassVar[str] = ""

    def derivative(self, v: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.full(len(v), self.r)


def contribution(x: np.ndarray, r: float, cap: float, storage: str) -> tuple[list[int], Clip]:
    """Return one record's contribution to the joint sum, in grid units, through margins and two parties."""
    problem = problem_of(setting.job(vfl.solvers.GD()), 1)
    dtype = np.dtype(storage)
    whole = problem.layout.whole()
    rows = {q: np.asfortranarray(x[None, block.coordinates].astype(dtype)) for q, block in whole.items()}
    actors = {
        q: party_over(q, Columns(X, setting.PARTITION.columns(q)), SeededNoise(0), exact=(Query,))
        for q, X in rows.items()
    }
    margins = LinearPredictors(np.ones(1))
    execute = Executor(InProcessTransport(actors), margins, Charger(None, exact=(Query,)))
    execute(joint.record_norms(problem))
    clip = Clip(cap, 4)
    weighting = joint.ClippedDerivative(Weights(r), cap)  # type: ignore[arg-type]
    with patch.dict(kinds._families, {"loss": {}}):
        kinds.register("loss", "given", Weights, r=kinds.RELEASED_NUMBER)
        released, _ = execute(joint.backward(problem, weighting, clip, None))
    return [int(Fraction(float(u)) / Fraction(clip.grid)) for part in released for u in part], clip


WILD = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(-3, 3),
    st.sampled_from([0.0, 1e-160, 3e-154, 1e154, 1e-308, math.nan, math.inf, 1.0 / 3.0]),
)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # wild values do not fit in float32
@settings(max_examples=150, deadline=None)
@given(
    x=st.lists(WILD, min_size=4, max_size=4),
    r=WILD,
    cap=st.sampled_from([1e-3, 0.7, 5.0]),
    storage=st.sampled_from(["float64", "float32"]),
)
def test_no_record_adds_more_than_half_the_sensitivity(x: list[float], r: float, cap: float, storage: str) -> None:
    q, clip = contribution(np.array(x), r, cap, storage)
    assert sum(k * k for k in q) * Fraction(clip.grid) ** 2 <= (Fraction(clip.sensitivity) / 2) ** 2


def test_the_clip_is_joint_and_tight() -> None:
    q, clip = contribution(np.array([1.0, -1.0, 0.5, 1.0]), -100.0, 0.7, "float64")
    assert math.sqrt(sum(k * k for k in q)) * clip.grid == pytest.approx(0.7, rel=1e-5)


def test_a_sample_has_its_rate_and_is_secret() -> None:
    noise, n, rate = CryptographicNoise(), 400_000, 0.25
    (first,), (second,) = (Sample(rate).drawn((n,), noise, ReleaseKey(0))[1] for _ in range(2))
    assert set(np.unique(first)) == {0.0, 1.0}
    deviation = math.sqrt(rate * (1 - rate) / n)
    assert abs(first.mean() - rate) < 5 * deviation
    assert abs((first * second).mean() - rate**2) < 5 * deviation
    assert [list(piece) for piece in Sample(1.0).drawn((3,), noise, ReleaseKey(0))[1]] == [[1.0, 1.0, 1.0]]
    assert Sample(rate).events() == ()


def test_words_are_compared_exactly() -> None:
    words = SeededNoise(1).stream(ReleaseKey(3)).words(1000)
    rate = (int(words[7]) >> 24) / 2**40  # the word at the rate, or just above it
    (drawn,) = Sample(rate).drawn((1000,), SeededNoise(1), ReleaseKey(3))[1]
    assert [bool(d) for d in drawn] == [Fraction(int(w), 2**64) < Fraction(rate) for w in words]
    pieces = Sample(rate).drawn((300, 0, 700), SeededNoise(1), ReleaseKey(3))[1]
    assert np.concatenate(list(pieces)).tobytes() == drawn.tobytes()


@pytest.mark.parametrize("rate", [0.0, -0.5, 1.5, 2.0**-65, math.nan])
def test_rates_finer_than_a_word_are_refused(rate: float) -> None:
    with pytest.raises(PrivacyError, match="sampling rate"):
        Sample(rate)


def test_folds_contain_every_record_once() -> None:
    masks = [Fold(k, 7, (3, 0)).members(100) for k in range(7)]
    np.testing.assert_array_equal(sum(masks), np.ones(100))
    assert {int(mask.sum()) for mask in masks} == {14, 15}
    assert (Fold(0, 7, (3, 1)).members(100) != masks[0]).any()


@pytest.mark.parametrize("number", [-1, 7, 8])
@pytest.mark.parametrize("kind", [Fold, Piece])
def test_a_pass_ends_with_its_last_fold(kind: type[Fold], number: int) -> None:
    """A further fold would follow the last one without a charge, and contain records a second time."""
    with pytest.raises(PrivacyError, match="batches 0 to 6"):
        kind(number, 7, (3, 0))


def folded(number: int, of: int = 3, seed: int = 0, sigma: float = 2.0) -> Any:
    problem = problem_of(setting.job(vfl.solvers.GD()), setting.N)
    event = Gaussian(Adjacency.REPLACE_ONE, 1.0, sigma, 4)
    return joint.backward(
        problem, joint.ClippedDerivative(problem.loss, 0.4), Clip(0.4, 4), event, Fold(number, of, (seed, 0))
    )


class Account:
    """A reservation that refuses nothing, and a charger that charges to it."""

    def __init__(self, *, private: bool = True) -> None:
        self.charger = Charger(self, noise=CryptographicNoise() if private else SeededNoise(1))  # type: ignore[arg-type]
        self.asked = 0

    def charge(self, items: Any) -> None: ...

    def charged(self, query: Query) -> int:
        """Return the number of charges for the next query."""
        self.asked += 1
        return len(self.charger.charge(query, self.asked).charges)


def test_a_pass_is_charged_once() -> None:
    book = Account()
    assert [book.charged(folded(k)) for k in range(3)] == [1, 0, 0]


@pytest.mark.parametrize(
    "second",
    [folded(0 + 2), folded(1, seed=1), folded(1, of=4), folded(1, sigma=1.0)],
    ids=["skips", "pass", "of", "σ"],
)
def test_an_unpaid_fold_is_refused(second: Any) -> None:
    book = Account()
    book.charged(folded(0))
    with pytest.raises(PrivacyError, match="not charged"):
        book.charged(second)
    with pytest.raises(PrivacyError, match="not charged"):
        Account().charged(folded(1))


def test_a_fold_is_not_released_twice_for_one_charge() -> None:
    book = Account()
    book.charged(folded(0))
    book.charged(folded(1))
    with pytest.raises(PrivacyError, match="not charged"):
        book.charged(folded(1))


def test_a_resumed_pass_is_charged_again_unless_noise_repeats_itself() -> None:
    for private, charges in ((True, 1), (False, 0)):
        book = Account(private=private)
        book.charger.replayed(folded(0), 0)
        assert book.charged(folded(1)) == charges
        assert book.charged(folded(2)) == 0


def test_margins_restrict_a_fold_to_its_members() -> None:
    query = folded(1)
    margins = LinearPredictors(np.ones(30))
    margins.absorb("norms", [np.ones(30)])
    query = replace(query, weighting=joint.ClippedDerivative(Weights(1.0), 0.4))
    weights = margins.records(query).weights
    np.testing.assert_array_equal(weights != 0.0, query.fold.members(30) > 0)


def test_a_party_restricts_a_fold_to_its_members() -> None:
    """It does so for any weights, because its book counts a pass once."""
    n, own = 30, setting.PARTITION.parties[0]
    names = setting.PARTITION.columns(own)
    party = party_over(own, Columns(np.ones((n, len(names)), order="F"), names), CryptographicNoise(), exact=(Query,))
    sums = []
    for number in range(3):
        query = replace(folded(number), clip=Clip(math.inf, 4), event=None).shares()[own]
        weights = np.where(query.batch.members(n) > 0.0, 2.0, 1000.0)
        weights[np.flatnonzero(query.batch.members(n) == 0.0)[0]] = math.nan
        sums.append(party.answer(query, Records(weights=weights), ReleaseKey(number)).released[0])
    np.testing.assert_array_equal(sums, np.full((3, len(names)), 2.0 * n / 3))


@BY_SOLVER
def test_the_budget_is_used_and_not_exceeded(solver: Any) -> None:
    for sampling in ("poisson", "disjoint"):
        plan = make_plan(setting.job(solver(sampling=sampling, batch_size=50, passes=3), epsilon=2.0), setting.N)
        assert 1.99 < plan.epsilon <= 2.0
        assert plan.committed == (sampling == "poisson")
        made, outcome = setting.drive(plan.job)
        assert outcome.statement.epsilon <= 2.0
        charged = [event for record in made for event in record.events]
        assert sorted(map(repr, charged)) == sorted(repr(e) for e, count in plan.releases for _ in range(count))
        assert len([record for record in made if record.parties]) == plan.messages


def test_sampling_needs_less_noise() -> None:
    base = PoissonSubsampledGaussian(Adjacency.REPLACE_ONE, 2.0, 2.0, 0.05)
    ((sampled, _),) = scaled_to_budget(((base, 100),), 1.0, 1e-6)
    ((plain, _),) = scaled_to_budget(((Gaussian(Adjacency.REPLACE_ONE, 2.0, 2.0, 1), 100),), 1.0, 1e-6)
    assert sampled.sigma < 0.2 * plain.sigma
    accountant = PldAccountant(Adjacency.REPLACE_ONE)
    accountant.compose(sampled, 100)
    assert 0.998 < accountant.epsilon(1e-6) <= 1.0


@BY_SOLVER
@pytest.mark.parametrize("sampling", ["poisson", "disjoint"])
def test_a_resumed_run_ends_in_the_same_model_to_the_bit(solver: Any, sampling: str) -> None:
    spec = setting.job(solver(sampling=sampling, batch_size=100, passes=3), epsilon=2.0)
    made, outcome = setting.drive(spec)
    for length in (1, 3, 4, 6, len(made) - 2):
        again, resumed = setting.drive(spec, setting.log_of(made, length))
        assert resumed.w.tobytes() == outcome.w.tobytes(), length
        assert len(again) == len(made) - length


@BY_SOLVER
def test_a_ledger_refuses_secret_samples(solver: Any, tmp_path: Any) -> None:
    for sampling in ("poisson", "disjoint"):
        spec = setting.job(solver(sampling=sampling, passes=1, batch_size=100), epsilon=2.0)
        output = tmp_path / f"{solver.__name__}-{sampling}"
        if sampling == "poisson":
            with pytest.raises(PrivacyError, match=r"guarantee of secret sampling.*sampling='disjoint'"):
                vfl.train(spec, setting.table("logistic"), at="inprocess", output=output)
        else:
            assert vfl.train(spec, setting.table("logistic"), at="inprocess", output=output).certificate.epsilon <= 2.0


def test_the_certificate_states_its_scope() -> None:
    spec = setting.job(vfl.solvers.SGD(passes=1, batch_size=100), epsilon=2.0)
    result = vfl.train(spec, setting.table("logistic"), at="inprocess")
    assert "participants see the batches" in result.certificate.scope
    assert any(
        "not for the participants" in sentence
        for sentence in make_plan(spec, setting.N).solver.explain(problem_of(spec, setting.N))
    )


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import vfl.privacy.pld

    def absent() -> None:
        raise PrivacyError("accounting for mixes and sampling needs dp-accounting 0.6: pip install 'vfl[accounting]'")

    monkeypatch.setattr(vfl.privacy.pld, "_library", absent)
    with pytest.raises(PrivacyError, match="pip install"):
        make_plan(setting.job(vfl.solvers.SGD(passes=3, batch_size=77), epsilon=1.7), setting.N)
    make_plan(setting.job(vfl.solvers.SGD(passes=3, batch_size=77, sampling="disjoint"), epsilon=1.7), setting.N)


@BY_SOLVER
@pytest.mark.parametrize(
    ("sampling", "said"), [("shuffled", "not Poisson"), ("fixed", "depend on each other"), ("x", "not known")]
)
def test_unsupported_samplings_are_refused(solver: Any, sampling: str, said: str) -> None:
    with pytest.raises(SpecificationError, match=said):
        solver(sampling=sampling)


@BY_SOLVER
@pytest.mark.parametrize("bad", [{"batch_size": 0}, {"passes": 1.5}, {"clip": 0.0}, {"iterate": "best"}])
def test_bad_options(solver: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(SpecificationError, match=f"{solver.__name__}: "):
        solver(**bad)


@BY_SOLVER
def test_blocks_are_refused(solver: Any) -> None:
    blocks = {"bank": [["a0"], ["a1", "a2"]], "telco": [["b0"]]}
    partition = vfl.FeaturePartition({"bank": ["a0", "a1", "a2"], "telco": ["b0"]}, label=("telco", "y"), blocks=blocks)
    spec = vfl.Job(partition=partition, privacy=None, bounds=setting.BOUNDS, penalty=vfl.L2(0.1), solver=solver())
    with pytest.raises(SpecificationError, match=f"{solver.__name__} moves all coordinates at once and has no blocks"):
        make_plan(spec, setting.N)
    plain = setting.job(solver()).to_dict()
    plain["solver"]["block_size"] = 3
    with pytest.raises(JobFileError, match=r"unknown key 'block_size' in \[solver\]"):
        decode(plain)
    with pytest.raises(vfl.VflError, match="has no option 'block_size'"):
        solver(block_size=3)


@BY_SOLVER
def test_an_infinite_clip_is_refused(solver: Any) -> None:
    with pytest.raises(PrivacyError, match="bounds no record's influence"):
        make_plan(setting.job(solver(clip=math.inf), epsilon=1.0), setting.N)
