"""Checks of the noise: silent on independent standard normal residuals, and loud on others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vfl.apps.auditing.rehearsal import Release, Transcript
from vfl.apps.auditing.residuals import Check, checks_of
from vfl.base.types import Adjacency
from vfl.privacy.events import BoundedRange, Gaussian, PoissonSubsampledGaussian

ONE = Adjacency.REPLACE_ONE
EVENT = Gaussian(ONE, 1.0, 2.0, 3)
PAID = 5.0**0.5 * 0.5


def runs_of(noise: np.ndarray, shift: float = 1.0, grid: float | None = None) -> list[Transcript]:
    """Return a run per row of (runs, releases, 3) noise in units of σ; each release moves by `shift` of its Δ."""
    s0, s1 = np.zeros(3), np.array([shift, 0.0, 0.0])
    steps = None if grid is None else np.full(3, grid)
    return [
        Transcript(
            tuple(
                Release(f"release {k}", "bank", EVENT, s0 + EVENT.sigma * e, (s0, s1), s0, grid=steps)
                for k, e in enumerate(run)
            )
        )
        for run in noise
    ]


def failed(runs: list[Transcript], paid: float = PAID) -> set[str]:
    return {check.name for check in checks_of(runs, size=1, paid=paid, level=1e-3) if not check.passed}


@pytest.fixture
def noise() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(40, 5, 3))


def test_standard_noise_passes(noise: np.ndarray) -> None:
    assert failed(runs_of(noise)) == set()


def test_false_alarms_keep_their_level() -> None:
    draws = np.random.default_rng(2)
    alarms = sum(
        any(not check.passed for check in checks_of(runs_of(draws.normal(size=(8, 3, 3))), size=1, paid=9.0, level=0.2))
        for _ in range(300)
    )
    assert alarms <= 0.2 * 300


@pytest.mark.parametrize(("runs", "releases"), [(10, 1), (15, 1), (12, 4)])
def test_false_alarms_keep_their_level_for_few_runs_on_a_coarse_grid(runs: int, releases: int) -> None:
    """σ = 2 steps of the grid: roundings of short vectors are often parallel. Of 200 audits at .05, at most 20 alarm."""
    draws, alarms = np.random.default_rng(4), 0
    for _ in range(200):
        coarse = np.rint(EVENT.sigma * draws.normal(size=(runs, releases, 3))) / EVENT.sigma
        found = checks_of(runs_of(coarse, grid=1.0), size=1, paid=9.0, level=0.05)
        alarms += any(not check.passed for check in found)
    assert alarms <= 20


@pytest.mark.parametrize("step", [2.0, 8.0])
def test_noise_that_mostly_rounds_to_nothing_is_no_alarm(step: float) -> None:
    """The public grid is as large as σ, or four times: most differences are 0."""
    draws, alarms = np.random.default_rng(5), 0
    for _ in range(100):
        coarse = step * np.rint(EVENT.sigma * draws.normal(size=(3, 2, 3)) / step) / EVENT.sigma
        found = checks_of(runs_of(coarse, grid=step), size=1, paid=9.0, level=0.05)
        alarms += any(not check.passed for check in found)
    assert alarms <= 12


@pytest.mark.parametrize("step", [4.0, 8.0])
def test_noise_on_a_coarser_grid_than_the_public_one_fails(noise: np.ndarray, step: float) -> None:
    coarse = step * np.rint(EVENT.sigma * noise / step) / EVENT.sigma
    assert "noise" in failed(runs_of(coarse, grid=2.0**-20))


def test_repeated_noise_on_a_coarse_grid_fails(noise: np.ndarray) -> None:
    coarse = np.rint(EVENT.sigma * noise) / EVENT.sigma
    assert failed(runs_of(coarse, grid=1.0)) == set()
    coarse[:, 1] = coarse[:, 4]
    assert "repeats" in failed(runs_of(coarse, grid=1.0))


def test_little_and_much_noise_fail(noise: np.ndarray) -> None:
    for factor in (0.5**0.5, 2.0**0.5):
        assert "noise" in failed(runs_of(factor * noise))


def test_one_release_without_noise_fails(noise: np.ndarray) -> None:
    noise[:, 3] = 0.0
    said = next(check for check in checks_of(runs_of(noise), size=1, paid=PAID, level=1e-3) if check.name == "noise")
    assert not said.passed
    assert "release 3" in said.said


def test_repeated_noise_fails(noise: np.ndarray) -> None:
    within, across, constant = noise.copy(), noise.copy(), noise.copy()
    within[:, 1] = within[:, 4]
    across[7] = across[30]
    constant[:] = constant[0]
    for repeated in (within, across, constant):
        assert "repeats" in failed(runs_of(repeated))


def test_a_release_that_moves_too_far_is_named(noise: np.ndarray) -> None:
    shifts = checks_of(runs_of(noise, 1.001), size=1, paid=9.0, level=1e-3)[1]
    assert not shifts.passed
    assert "1.0010 of its sensitivity (release 0" in shifts.said
    assert "shifts" in failed(runs_of(noise), paid=0.9 * PAID)  # each alone is within its Δ, and all together are not


def test_an_unpaid_release_fails(noise: np.ndarray) -> None:
    first, *others = runs_of(noise)
    unpaid = Transcript((replace(first.releases[0], paid=False), *first.releases[1:]))
    assert failed([unpaid, *others]) == {"charges"}


def test_an_exact_release_that_moves_fails(noise: np.ndarray) -> None:
    first, *others = runs_of(noise)
    bare = Transcript((replace(first.releases[0], event=None), *first.releases[1:]))
    assert "shifts" in failed([bare, *others])


def choices(temperature: float) -> list[Transcript]:
    """Return runs of selections among four scores, by softmax(temperature·scores)."""
    draws, event = np.random.default_rng(3), BoundedRange(ONE, 1.0)
    scores = np.array([0.0, 1.0, 2.0, 3.0])
    p = np.exp(temperature * scores) / np.exp(temperature * scores).sum()
    winners = draws.choice(4, size=(50, 6), p=p)
    return [
        Transcript(
            tuple(Release("", "", event, np.array([float(w)]), (scores, scores), scores, selection=True) for w in run)
        )
        for run in winners
    ]


@pytest.mark.parametrize(("temperature", "loud"), [(1.0, False), (2.0, True), (0.5, True)])
def test_selections_follow_their_scores(temperature: float, loud: bool) -> None:
    assert ("selections" in failed(choices(temperature), paid=9.0)) is loud


def sampled(*, reuse: bool = False, rate: float = 0.2) -> list[Transcript]:
    """Return runs of six secret batches of 30 records."""
    draws, event = np.random.default_rng(4), PoissonSubsampledGaussian(ONE, 1.0, 2.0, 0.2)
    made = []
    for _ in range(20):
        batches = [(draws.random(30) < rate).astype(float) for _ in range(6)]
        if reuse:
            batches[3] = batches[2]
        zero = np.zeros(1)
        release = Release("", "", event, 2.0 * draws.normal(size=1), (zero, zero), zero, zero)
        made.append(Transcript((release,), tuple((batch, 0.2) for batch in batches)))
    return made


def test_secret_batches_have_their_rate_and_are_not_reused() -> None:
    assert failed(sampled(), paid=9.0) == set()
    assert failed(sampled(rate=0.3), paid=9.0) == {"batches"}


def test_one_reused_batch_per_run_is_found() -> None:
    (check,) = (c for c in checks_of(sampled(reuse=True), size=1, paid=9.0, level=1e-3) if c.name == "batches")
    assert isinstance(check, Check)
    assert not check.passed
