"""Sums of what the record cap cuts: their sensitivity, their charges, and the cap that is chosen by them."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import vfl
from coordinator.coordinator import Coordinator
from coordinator.rounds import Round
from parties.loading import load
from tests.benchmarks.problems import Case
from tests.coordinator.shares import job as on_shares
from tests.faults import test_lost_parties as faults
from tests.faults.test_lost_parties import SKIP, WAIT, Lossy, charged, drive
from tests.privacy.test_record_cap import job as lossy_job
from tests.solvers.test_defaults import job, problem
from vfl.base.losses import Logistic, Squared
from vfl.errors import SpecificationError
from vfl.kernels.geometry import capped, record_limits
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.planning import plan
from vfl.privacy.spending import mu_squared
from vfl.queries import Backward
from vfl.solvers.releases.excess import FACTORS, Excess, chosen, clip_of, excess_events
from vfl.solvers.rules import record_defaults

P, NEVER = 5, 10**9
LOSSES = {"logistic": Logistic(), "squared": Squared()}
MARGINS = (-800.0, -30.0, -3.0, 0.0, 0.7, 30.0, 800.0, math.inf, -math.inf, math.nan)
NORMS = (0.0, 1e-320, 1e-12, 0.3, 1.0, 7.0, 1e8, 1e200, math.inf, math.nan)


def contributions(weighting: Excess, v: Any, y: Any, rows: np.ndarray) -> np.ndarray:
    r, kept = weighting(np.asarray(v, float), np.asarray(y, float), {"norms": (rows**2).sum(axis=1)})
    assert kept == {}
    return r[:, None] * rows


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("narrow", "wide"), [(0.3, 0.48), (0.999999, 1.0), (1e-9, 1e9), (2.0, 5.2)])
def test_no_record_contributes_more_than_1(loss: str, narrow: float, wide: float) -> None:
    """Over margins, labels and norms of all sizes: non-finite ones, and rows whose squares underflow or overflow."""
    given = np.array(list(itertools.product(MARGINS, (-1.0, 1.0, 0.0, -1e6), NORMS)))
    v, y, sizes = given.T
    weighting = Excess(LOSSES[loss], narrow, wide)
    with np.errstate(all="ignore"):
        r, _ = weighting(v, y, {"norms": sizes**2})
    assert np.isfinite(r).all()
    sound = np.isfinite(sizes) & (sizes > 0)
    norms = np.where(sound, sizes, 0.0)
    assert (abs(r) * norms).max() <= 1.0 + P * 2.0**-50
    rng = np.random.default_rng(3)
    rows = rng.standard_t(1.2, (20_000, P))
    c = contributions(weighting, 5 * rng.standard_t(1, 20_000), rng.choice([-1, 1], 20_000), rows)
    assert np.linalg.norm(c, axis=1).max() <= 1.0 + P * 2.0**-50


@pytest.mark.parametrize("loss", LOSSES)
def test_the_sensitivity_is_reached(loss: str) -> None:
    """By a record that both caps cut, and its opposite."""
    z = np.array([3.0, 0.0, -4.0, 12.0, 0.0])
    v, y = [90.0, 90.0], [-1.0, -1.0]
    one, other = contributions(Excess(LOSSES[loss], 2.0, 3.2), v, y, np.array([z, -z]))
    apart = float(np.linalg.norm(one - other))
    assert apart == pytest.approx(2.0, rel=1e-12)
    assert apart <= clip_of(P).sensitivity <= 2.0 * (1.0 + 1e-5)


def test_it_is_the_difference_of_two_caps() -> None:
    rng = np.random.default_rng(4)
    v, y, rows = rng.normal(size=500), rng.choice([-1.0, 1.0], 500), rng.standard_t(2, (500, P))
    norms = (rows**2).sum(axis=1)
    r = Logistic().derivative(v, y)
    wide, narrow = (capped(r, record_limits(norms, cap), "logistic") for cap in (1.6, 1.0))
    found = Excess(Logistic(), 1.0, 1.6)(v, y, {"norms": norms})[0]
    np.testing.assert_allclose(found, (wide - narrow) / 0.6, rtol=1e-9, atol=1e-12)
    assert (found != 0).any()
    assert (found == 0).any()


def test_logistic_loss_cuts_nothing_on_average_where_the_model_is_right() -> None:
    """Its sum is of order √n, and of order n where the probabilities are wrong; the number of cut records is the same."""
    rng = np.random.default_rng(5)
    rows = rng.standard_t(3, (40_000, P))
    v = rows @ np.ones(P) / 4
    y = np.where(rng.random(v.size) < 1 / (1 + np.exp(-v)), 1.0, -1.0)
    right, wrong = (
        np.linalg.norm(contributions(Excess(Logistic(), 0.8, 1.6), w, y, rows).sum(axis=0)) for w in (v, 0.5 * v)
    )
    assert right < 2 * math.sqrt(v.size)
    assert wrong > 5 * right


def test_caps_that_are_no_wider_are_refused() -> None:
    for narrow, wide in ((1.0, 1.0), (2.0, 1.0), (0.0, 1.0), (1.0, math.inf), (math.nan, 1.0)):
        with pytest.raises(ValueError, match="is not wider"):
            Excess(Logistic(), narrow, wide)


class TestChoice:
    sigmas = (400.0, 800.0)
    deviation = 50.0

    def widened(self, seed: int) -> float:
        rng = np.random.default_rng(seed)
        return chosen([σ * rng.standard_normal(20) for σ in self.sigmas], self.sigmas, self.deviation)

    def test_noise_alone_hardly_ever_widens_it(self) -> None:
        found = [self.widened(seed) for seed in range(400)]
        assert np.mean([factor > 1.0 for factor in found]) < 0.03

    @pytest.mark.parametrize("single", [True, False], ids=["one coordinate", "all coordinates"])
    def test_a_clear_bias_widens_it(self, single: bool) -> None:
        shape = np.eye(20)[3] if single else np.ones(20) / math.sqrt(20)
        rng = np.random.default_rng(0)
        for size, factor in ((1_700.0, FACTORS[1]), (17_000.0, FACTORS[2])):
            for _ in range(10):
                sums = [size * shape + 40.0 * rng.standard_normal(20), 80.0 * rng.standard_normal(20)]
                assert chosen(sums, (40.0, 80.0), self.deviation) == factor

    def test_a_bias_below_the_noise_of_a_wider_cap_does_not(self) -> None:
        assert chosen([np.full(20, 100.0), np.zeros(20)], (1.0, 1.0), self.deviation) == 1.0

    def test_one_coordinate(self) -> None:
        assert chosen([np.zeros(1), np.zeros(1)], (1.0, 1.0), 1.0) == 1.0


@pytest.mark.parametrize("mu", [1e-3, 0.7, 40.0])
def test_the_two_events_share_their_budget(mu: float) -> None:
    events = excess_events(mu, P)
    assert len(events) == len(FACTORS) - 1
    assert 0.999 * mu**2 <= sum(mu_squared(event) for event in events) <= mu**2
    assert {event.sensitivity for event in events} == {clip_of(P).sensitivity}
    assert events[0].sigma < events[1].sigma


def test_its_rule_is_for_loss_and_signal_alone() -> None:
    for epsilon, loss in itertools.product((0.1, 1.0, 10.0), ("logistic", "squared")):
        given = problem(loss=loss, epsilon=epsilon)
        clear = record_defaults.signal_to_noise(given) >= record_defaults.WIDENS
        share = plan(job(loss, epsilon=epsilon, solver=vfl.SkGD()), 30_000).solver.decided.excess_share
        assert bool(share) == clear
    for solver in (
        vfl.solvers.CD(),
        vfl.SkGD(details=vfl.solvers.Details(record_clip=1.0)),
        vfl.SkGD(details=vfl.solvers.Details(iterate="last")),
        vfl.SkGD(passes=2),
    ):
        assert plan(job(epsilon=10.0, solver=solver), 30_000).solver.decided.excess_share == 0.0
    for spec in (job("smoothed_hinge", epsilon=10.0), job(epsilon=10.0, intercept=False)):
        assert plan(spec, 30_000).solver.decided.excess_share == 0.0


def test_losses_and_runs_that_it_does_not_fit_are_refused() -> None:
    for spec in (
        job("smoothed_hinge", solver=vfl.SkGD(details=vfl.solvers.Details(excess_share=0.1))),
        job(solver=vfl.SkGD(passes=2, details=vfl.solvers.Details(excess_share=0.1))),
        job(
            solver=vfl.SkGD(clip="record", details=vfl.solvers.Details(excess_share=0.1, record_clip=1.0)), epsilon=None
        ),
    ):
        with pytest.raises(SpecificationError, match="excess_share"):
            plan(spec, 30_000)
    for wrong in (1.0, -0.1):
        with pytest.raises(SpecificationError, match="between 0 and 1"):
            vfl.SkGD(details=vfl.solvers.Details(excess_share=wrong))
    with pytest.raises(SpecificationError, match="only with clip='record'"):
        vfl.SkGD(clip="coordinate", details=vfl.solvers.Details(excess_share=0.1))


def heavy(n: int = 8_000) -> dict[str, np.ndarray]:
    """Columns with heavy tails whose effect on the label levels off, so that a narrow cap is biased."""
    rng = np.random.default_rng(1)
    X = np.clip(np.exp(1.3 * rng.normal(size=(n, 3))), 0.0, 60.0)
    y = np.clip(np.sqrt(X) @ [0.6, -0.6, 0.3] + 0.1 * rng.normal(size=n), -5.0, 5.0)
    return dict(zip("abc", X.T, strict=True)) | {"y": y}


def heavy_job(share: float | None) -> vfl.Job:
    return vfl.Job(
        partition=vfl.FeaturePartition({"p": ["a", "b"], "q": ["c"]}, label=("q", "y")),
        loss="squared",
        penalty=vfl.L2(1e-6),
        bounds=dict.fromkeys("abc", (0.0, 60.0)) | {"y": (-5.0, 5.0)},
        privacy=vfl.Privacy(epsilon=10.0, noise=vfl.SeededNoise(1)),
        solver=vfl.SkGD(passes=60, details=vfl.solvers.Details(excess_share=share)),
    )


def test_a_run_buys_the_sums_once_and_between_passes_and_errs_less() -> None:
    data, errors = pa.table(heavy()), {}
    for share in (None, 0.0):
        spec = heavy_job(share)
        parties = {name: load(spec.for_party(name), source) for name, source in sources_of(spec, data).items()}
        *events, outcome = Coordinator(InProcessTransport(parties)).stream(spec)
        kinds = [event.kind for event in events if isinstance(event, Round)]
        assert len(kinds) == plan(spec, data.num_rows).messages
        assert kinds.count("Backward") == (2 if share is None else 0)
        if share is None:
            first = kinds.index("Backward")
            assert kinds[first + 1] == "Backward"
            assert {"Descend"} <= set(kinds[:first]) & set(kinds[first + 2 :])
        made = plan(spec, data.num_rows)
        assert ("sums of the clipping bias" in " ".join(made.solver.explain(made.problem))) == (share is None)
        assert outcome.statement.releases == sum(count for _, count in made.releases)
        assert outcome.statement.epsilon <= 10.0
        errors[share] = Case("", spec, data).error_of(outcome.w)
    assert errors[None] < 0.7 * errors[0.0]


class LosesSums(Lossy):
    """Loses the party at the first sum of what the cap cuts."""

    def ask(self, shares: Any, records: Any, key: Any) -> Any:
        if any(isinstance(share, Backward) for share in shares.values()) and self.at == NEVER:
            self.at = len(self.asked)
        return super().ask(shares, records, key)


@pytest.mark.parametrize("noise", ["seeded", "true"])
def test_a_lost_sum_is_asked_again_or_charged_again(noise: str) -> None:
    """Seeded noise repeats it; other noise is another release, which the budget of the last pass pays for."""
    spec = lossy_job(
        vfl.SkGD(clip="record", passes=6, details=vfl.solvers.Details(reserve_passes=1, excess_share=0.2)), noise=noise
    )
    whole = drive(Lossy(spec, times=0), WAIT)[1]
    for moment in ("before", "after"):
        lost = LosesSums(spec, at=NEVER, moment=moment)
        rounds, outcome = drive(lost, WAIT)
        assert 0 < lost.at < NEVER
        assert outcome.statement.epsilon <= 1.0
        if noise == "true":
            assert charged(rounds) == outcome.statement.releases
        else:
            assert outcome.w.tobytes() == whole.w.tobytes()


@pytest.mark.parametrize("sum_lost", [True, False], ids=["at a sum", "before"])
def test_nothing_is_released_once_a_party_is_left_out(sum_lost: bool) -> None:
    spec = lossy_job(vfl.SkGD(clip="record", passes=6, details=vfl.solvers.Details(excess_share=0.2)))
    kind, at = (LosesSums, NEVER) if sum_lost else (Lossy, 2)
    rounds, outcome = drive(kind(spec, at=at, returns=False), SKIP)
    assert outcome.left == ("shop",)
    assert outcome.statement.epsilon <= 1.0
    assert "Backward" not in {getattr(event, "kind", "") for event in rounds if getattr(event, "released", ())}


def test_a_run_that_is_cut_off_between_the_sums_goes_on(tmp_path: Any) -> None:
    spec = lossy_job(
        vfl.SkGD(clip="record", passes=6, details=vfl.solvers.Details(reserve_passes=1, excess_share=0.2)),
        noise="seeded",
    )
    found, whole = drive(Lossy(spec, times=0), WAIT)
    made = [event for event in found if isinstance(event, Round)]
    stop = 1 + [event.kind for event in made].index("Backward")
    ledgered = faults.TestLedger()
    (tmp_path / "run").mkdir()
    assert ledgered.begin(tmp_path / "run", Lossy(spec, times=0), WAIT, stop) is None
    outcome = ledgered.go_on(tmp_path / "run", Lossy(spec, times=0), WAIT)
    assert outcome.w.tobytes() == whole.w.tobytes()
    assert len(ledgered.charges(tmp_path / "run")) == outcome.statement.releases == whole.statement.releases


def test_trust_secure_buys_none_and_refuses_a_share() -> None:
    given = on_shares(p=4, solver=vfl.SkGD(passes=4))
    assert vfl.plan(given, 100_000).solver.decided.excess_share == 0.0
    assert vfl.plan(replace(given, trust="trusted"), 100_000).solver.decided.excess_share > 0
    with pytest.raises(SpecificationError, match="excess_share"):
        vfl.plan(replace(given, solver=vfl.SkGD(passes=4, details=vfl.solvers.Details(excess_share=0.1))), 100_000)
