"""The histogram of residuals: its sensitivity, its charge, and the cap that is chosen from it."""

from __future__ import annotations

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
from tests.faults.test_lost_parties import WAIT, Lossy, charged, drive
from tests.neighbours.harness import compare
from tests.neighbours.setting import job as neighbours_job
from tests.neighbours.setting import turned
from tests.privacy.test_record_cap import job as lossy_job
from tests.solvers.test_defaults import job
from vfl.errors import SpecificationError
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.planning import plan
from vfl.privacy.spending import mu_squared
from vfl.solvers.releases.residuals import CAPS, ResidualCounts, chosen

N, SIGMA = 50_000, 30.0


def cap(r: np.ndarray, *, signal: float = 300.0, width: float = math.inf, seed: int = 0) -> float:
    counts = ResidualCounts(1.0)(np.zeros(r.size), r) * ResidualCounts.grid
    assert counts.sum() == r.size
    noisy = counts + np.random.default_rng(seed).normal(scale=SIGMA, size=counts.size)
    return chosen(noisy, SIGMA, N, 20, signal, width)


def test_the_cap_follows_the_size_of_residuals_and_the_noise() -> None:
    r = np.random.default_rng(1).normal(size=N)
    assert cap(0.1 * r) < cap(0.5 * r) <= cap(1.5 * r)
    assert cap(0.5 * r, signal=50.0) < cap(0.5 * r, signal=3000.0)
    assert max(cap(0.1 * r, seed=seed) for seed in range(50)) < 1.0  # noise in far bins widens no cap to 5


def test_skewed_residuals_get_a_wider_cap() -> None:
    rng = np.random.default_rng(2)
    assert cap(0.5 * (rng.exponential(size=N) - 1)) > 2 * cap(0.5 * rng.normal(size=N))


def test_no_cap_is_wider_than_huber_loss_and_pure_noise_is_no_failure() -> None:
    r = np.random.default_rng(3).exponential(size=N) - 1
    assert cap(r, width=1.0, signal=1e4) <= 1.0
    for noisy in (np.zeros(ResidualCounts.dimension), np.full(ResidualCounts.dimension, -1e9)):
        assert chosen(noisy, 1e9, 10, 5, 1.0, math.inf) in CAPS


def test_an_adversarial_record_moves_the_counts_by_the_sensitivity_at_most() -> None:
    """For every unit that a coordinator may name, whatever margin and label the record has."""
    extremes = (0.0, -0.1, math.nan, math.inf, -math.inf, 1e308, -1e-320)
    for unit in (1e-300, 0.7, 1e300):
        counts = ResidualCounts(unit)
        with np.errstate(all="ignore"):
            sums = [counts(np.array([0.3, v]), np.array([1.0, y])) for v in extremes for y in extremes]
        moves = [math.sqrt(float(((a - b) ** 2).sum())) * counts.grid for a in sums for b in sums]
        assert max(moves) <= counts.sensitivity < 1.0000001 * math.sqrt(2.0)


@pytest.mark.parametrize("unit", [0.0, -1.0, math.nan, math.inf])
def test_a_unit_that_counts_nothing_is_refused(unit: float) -> None:
    with pytest.raises(ValueError, match="positive unit"):
        ResidualCounts(unit)


def test_its_rule_is_for_loss_and_signal_alone() -> None:
    for loss, epsilon, given in (("squared", 10.0, {}), ("squared", 0.1, {}), ("logistic", 10.0, {})):
        share = plan(job(loss, epsilon=epsilon, solver=vfl.SkGD(), **given), 30_000).solver.decided.residual_share
        assert bool(share) == (loss == "squared" and epsilon == 10.0)
    for solver in (
        vfl.solvers.CD(),
        vfl.SkGD(details=vfl.solvers.Details(record_clip=1.0)),
        vfl.SkGD(details=vfl.solvers.Details(iterate="last")),
        vfl.SkGD(passes=2),
    ):
        assert plan(job("squared", epsilon=10.0, solver=solver), 30_000).solver.decided.residual_share == 0.0


def test_losses_and_runs_that_it_does_not_fit_are_refused() -> None:
    asked = vfl.SkGD(details=vfl.solvers.Details(residual_share=0.1))
    for spec in (
        job(solver=asked),
        job("squared", solver=replace(asked, passes=2)),
        job("squared", solver=asked, intercept=False),
    ):
        with pytest.raises(SpecificationError, match="residual_share"):
            plan(spec, 30_000)
    with pytest.raises(SpecificationError, match="only with clip='record'"):
        vfl.SkGD(clip="coordinate", details=vfl.solvers.Details(residual_share=0.1))
    secure = on_shares(p=4, solver=vfl.SkGD(passes=4, details=vfl.solvers.Details(residual_share=0.1)))
    with pytest.raises(SpecificationError, match="residual_share"):
        vfl.plan(secure, 100_000)


def run(
    table: pa.Table, bounds: dict[str, tuple[float, float]], loss: str, share: float | None
) -> tuple[list[str], Any, float]:
    """Return the kinds of queries, the outcome, and the error of a run at ε = 3 with this share."""
    names = [name for name in table.column_names if name != "y"]
    spec = vfl.Job(
        partition=vfl.FeaturePartition({"p": names[:2], "q": names[2:]}, label=("q", "y")),
        loss=loss,
        penalty=vfl.L2(1e-6),
        bounds=bounds,
        privacy=vfl.Privacy(epsilon=3.0, noise=vfl.SeededNoise(1)),
        solver=vfl.SkGD().changed(residual_share=share),
    )
    parties = {name: load(spec.for_party(name), source) for name, source in sources_of(spec, table).items()}
    *events, outcome = Coordinator(InProcessTransport(parties)).stream(spec)
    made = plan(spec, table.num_rows)
    kinds = [event.kind for event in events if isinstance(event, Round)]
    assert len(kinds) == made.messages
    assert outcome.statement.releases == sum(count for _, count in made.releases)
    assert outcome.statement.epsilon <= 3.0
    assert ("histogram of residuals" in " ".join(made.solver.explain(made.problem))) == (share is None)
    spent = sum(mu_squared(event) * count for event, count in made.releases)
    assert spent == pytest.approx(made.problem.mu**2, rel=1e-3)
    return kinds, outcome, Case("", spec, table).error_of(outcome.w)


@pytest.mark.parametrize("kind", ["a good fit", "a good fit, huber", "amounts"])
def test_a_run_releases_it_once_between_passes_and_errs_less(kind: str) -> None:
    """Where residuals are a fiftieth of the labels' spread, and where they are skewed and grow with the prediction."""
    rng, names = np.random.default_rng(4), list("abcd")
    X = np.clip(rng.normal(size=(10_000, 4)), -4, 4)
    signal = X @ [1.0, -1.0, 0.5, 0.5]
    if kind == "amounts":
        y, high = np.minimum(np.exp(0.6 * signal) * rng.lognormal(-0.32, 0.8, len(X)), 40.0), 40.0
    else:
        y, high = np.clip(signal + 0.03 * rng.normal(size=len(X)), -12, 12), 12.0
    bounds = dict.fromkeys(names, (-4.0, 4.0)) | {"y": (0.0 if kind == "amounts" else -high, high)}
    table = pa.table(dict(zip(names, X.T, strict=True)) | {"y": y})
    loss = "huber" if kind.endswith("huber") else "squared"
    (kinds, _, with_it), (plain, _, without) = (run(table, bounds, loss, share) for share in (None, 0.0))
    assert kinds.count("Tally") == plain.count("Tally") + 1
    last = len(kinds) - 1 - kinds[::-1].index("Tally")
    assert "Descend" in kinds[:last]
    assert "Descend" in kinds[last:]
    if loss == "squared":  # the width of Huber loss differs from run to run
        assert with_it < 0.7 * without


def test_neighbours_differ_by_what_is_charged() -> None:
    table, neighbour = turned()
    solver = vfl.SkGD(clip="record", passes=6, details=vfl.solvers.Details(residual_share=0.2))
    spec = neighbours_job(solver, "squared")
    assert compare(spec, table, neighbour).complaints == ()


@pytest.mark.parametrize("noise", ["seeded", "true"])
def test_a_lost_party_is_waited_for(noise: str) -> None:
    solver = vfl.SkGD(clip="record", passes=6, details=vfl.solvers.Details(reserve_passes=1, residual_share=0.2))
    spec = replace(lossy_job(solver, noise=noise), loss="squared")
    spec = replace(spec, bounds=dict(spec.bounds) | {spec.partition.label[1]: (0.0, 1.0)})
    whole = drive(Lossy(spec, times=0), WAIT)[1]
    for at in (2, 6):
        rounds, outcome = drive(Lossy(spec, at=at), WAIT)
        assert outcome.statement.epsilon <= 1.0
        if noise == "true":
            assert charged(rounds) == outcome.statement.releases
        else:
            assert outcome.w.tobytes() == whole.w.tobytes()
