"""An attacker who knows all records but one guesses which of two records was used.

A run is made in one world, on data A or on data B, and records each released sum with its value before noise. Then the
run is repeated in both worlds with its releases given, so that the schedule takes the same path, and records the sums
that it would have released. From these the attacker has the exact likelihood ratio of the whole transcript. No test is
more powerful (Neyman–Pearson), whatever the solver did with its inputs.

A guess of A by the ratio is wrong with probability (1 − TV)/2, where TV is the total variation between the worlds. The
charges claim TV ≤ δ(0). So too few wrong guesses refute the claim, by a binomial test that assumes nothing.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from scipy.special import logsumexp

import parties.party
from coordinator.coordinator import Coordinator
from parties.storage.dense import Columns
from tests.parties.alone import party_over
from tests.solvers.setting import PARTITION
from vfl.job.flags import exact_queries
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.privacy.accountants import PldAccountant
from vfl.privacy.events import PoissonSubsampledGaussian
from vfl.privacy.noise import SeededNoise
from vfl.queries import Sample
from vfl.solvers import output_perturbation

if TYPE_CHECKING:
    import vfl
    from vfl.privacy.events import Event, ReleaseKey

World = tuple[np.ndarray, np.ndarray]
"""X (n, 4) over the two parties, and y (n,)."""


@dataclass(frozen=True, eq=False)
class Scene:
    """A job and two worlds that differ in record 0. `weaken` divides the noise that is drawn, but not the charges."""

    spec: vfl.Job
    worlds: tuple[World, World]
    weaken: float = 1.0


@dataclass(eq=False)
class Tape:
    """One run in one world: releases, the sums behind them, and the scores behind selections, by key."""

    released: dict[ReleaseKey, np.ndarray] = field(default_factory=dict)
    sums: dict[ReleaseKey, np.ndarray] = field(default_factory=dict)
    events: dict[ReleaseKey, Event] = field(default_factory=dict)
    chosen: dict[ReleaseKey, Any] = field(default_factory=dict)
    logits: dict[ReleaseKey, np.ndarray] = field(default_factory=dict)
    samples: dict[ReleaseKey, np.ndarray] = field(default_factory=dict)


def play(scene: Scene, world: World, seed: int, given: Tape | None = None, drawn: float = 1.0) -> Tape:
    """Run in that world. With `given`, repeat its releases and samples, with record 0 in all samples or in none."""
    tape, (X, y) = Tape(), world
    true_release, true_best, true_sample = parties.party.release, parties.party.noisy_best, Sample.drawn

    def release(sums: Any, grid: float, event: Any, noise: Any, key: Any, sensitivity: float) -> Any:
        if event is None:
            return true_release(sums, grid, event, noise, key, sensitivity)
        tape.sums[key], tape.events[key] = sums * grid, event
        weaker = replace(event, sigma=event.sigma / scene.weaken)
        tape.released[key] = (
            true_release(sums, grid, weaker, noise, key, sensitivity) if given is None else given.released[key].copy()
        )
        return tape.released[key]

    def noisy_best(scores: Any, sensitivity: float, event: Any, noise: Any, key: Any) -> Any:
        tape.logits[key] = np.asarray(scores) * event.epsilon / (2.0 * sensitivity)
        best = true_best(scores, sensitivity, event, noise, key) if given is None else given.chosen[key]
        tape.chosen[key] = best
        return best

    def sample(query: Any, counts: tuple[int, ...], noise: Any, key: Any) -> Any:
        if given is None:
            (tape.samples[key],) = true_sample(query, counts, noise, key)[1]
            return (), [tape.samples[key]]
        return (), [np.r_[drawn, given.samples[key][1:]]]

    actors, start = {}, 0
    for party in PARTITION.parties:
        names = PARTITION.columns(party)
        block = np.asfortranarray(X[:, start : start + len(names)])
        actors[party] = party_over(party, Columns(block, names), SeededNoise(seed), y, exact=exact_queries(scene.spec))
        start += len(names)
    assert scene.spec.privacy is not None
    spec = replace(scene.spec, privacy=replace(scene.spec.privacy, noise=SeededNoise(seed)))
    with (
        mock.patch.object(parties.party, "release", release),
        mock.patch.object(output_perturbation, "release", release),
        mock.patch.object(parties.party, "noisy_best", noisy_best),
        mock.patch.object(Sample, "drawn", sample),
    ):
        for _ in Coordinator(InProcessTransport(actors)).stream(spec):
            pass
    return tape


def log_likelihood(made: Tape, world: Tape, without: Tape | None = None) -> float:
    """Return the log-density of the transcript in a world, up to terms common to all worlds.

    without : the same if record 0 is never drawn; None where nothing is sampled.
    """

    def density(tape: Tape, keys: list[ReleaseKey]) -> float:
        sums = [(made.released[key], tape.sums[key], tape.events[key]) for key in keys]
        return sum(float(u @ m - 0.5 * m @ m) / event.sigma**2 for u, m, event in sums)  # type: ignore[attr-defined]

    total = 0.0
    rounds: dict[int, list[ReleaseKey]] = {}
    for key in made.released:
        rounds.setdefault(key.round, []).append(key)
    for keys in rounds.values():
        event = world.events[keys[0]]
        if without is None or not isinstance(event, PoissonSubsampledGaussian):
            total += density(world, keys)
        else:
            absent, present = density(without, keys), density(world, keys)
            total += float(np.logaddexp(math.log1p(-event.rate) + absent, math.log(event.rate) + present))
    for number in {key.round for key in made.chosen}:
        keys = [key for key in made.chosen if key.round == number]
        winner = max(keys, key=lambda key: made.chosen[key])
        lane = made.chosen[winner].coordinate
        total += float(world.logits[winner][lane] - logsumexp(np.concatenate([world.logits[key] for key in keys])))
    return total


def wrong_guesses(scene: Scene, runs: int) -> int:
    """Return the number of wrong guesses in so many runs, half of them in either world."""
    wrong = 0
    for seed in range(runs):
        made = play(scene, scene.worlds[seed % 2], seed)
        without = play(scene, scene.worlds[0], seed, made, 0.0) if made.samples else None
        first, second = (
            log_likelihood(made, made if k == seed % 2 and without is None else play(scene, world, seed, made), without)
            for k, world in enumerate(scene.worlds)
        )
        wrong += (first > second) == bool(seed % 2)
    return wrong


@functools.cache
def least_rate(releases: tuple[tuple[Event, int], ...]) -> float:
    """Return the least share of wrong guesses that the charges promise."""
    accountant = PldAccountant()
    accountant.compose_all(releases)
    return 0.5 * (1.0 - accountant.delta(1e-9))
