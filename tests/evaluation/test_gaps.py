"""Gaps between groups from noisy counts: values, errors, intervals, and how often these hold."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from vfl.measures.distance import ERROR
from vfl.measures.fairness import Notion, Table, gap, noiseless, notions_of, shift
from vfl.measures.specification import NOTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

ALL = notions_of(NOTIONS)
DRAWS = 300


def population(seed: int = 0, groups: int = 2, near: float = 0.1) -> np.ndarray:
    """Return probabilities (groups, label, prediction, near) of a population whose groups differ."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(groups, 8.0))
    cells = np.zeros((groups, 2, 2, 2))
    for group in range(groups):
        positive, right = rng.uniform(0.25, 0.6), rng.uniform(0.7, 0.9, 2)
        for label, hit, close in itertools.product((0, 1), (0, 1), (0, 1)):
            of_label = positive if label else 1 - positive
            of_hit = right[label] if hit == label else 1 - right[label]
            cells[group, label, hit, close] = shares[group] * of_label * of_hit * (near if close else 1 - near)
    return cells


def exact(cells: np.ndarray, notion: Notion, group: int) -> float:
    """Return F_g of a population from its definition, P(A | B, g) − P(A | B)."""
    cells = cells.sum(axis=3) if cells.ndim == 4 else cells
    inside, looked_at = cells * notion.counted, cells * notion.looked_at
    return float(inside[group].sum() / looked_at[group].sum() - inside.sum() / looked_at.sum())


def tables(cells: np.ndarray, n: int, sigma: float, draws: int, seed: int) -> Iterator[Table]:
    rng = np.random.default_rng(seed)
    for counts in rng.multinomial(n, cells.ravel(), size=draws):
        noisy = (counts + sigma * rng.normal(size=counts.size)).reshape(cells.shape)
        yield Table(noisy, np.ones(cells.shape), sigma)


def other_model(cells: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the population as another model predicts it, which differs on near records only: some of them, or all."""
    moved = cells.copy()
    for group, label in itertools.product(range(len(cells)), (0, 1)):
        flipped = cells[group, label, :, 1] * rng.choice([0.0, 0.3, 1.0], 2)
        moved[group, label, :, 1] += flipped[::-1] - flipped
    return moved


def test_the_notions_are_those_of_the_literature() -> None:
    """On counts: true positive rate, both rates of correct predictions, rate of positive predictions, accuracy."""
    counts = np.array([[[40.0, 10.0], [5.0, 45.0]], [[60.0, 20.0], [15.0, 55.0]]])
    table = Table(counts, np.ones(counts.shape), 0.0)
    found = {notion.name: gap(table, notion, 0).value for notion in ALL}
    assert found == pytest.approx(
        {
            "opportunity": 45 / 50 - 100 / 120,
            "odds (negative)": 40 / 50 - 100 / 130,
            "parity": 55 / 100 - 130 / 250,
            "accuracy": 85 / 100 - 200 / 250,
        }
    )
    assert [notion.name for notion in notions_of(["odds"])] == ["odds (negative)", "odds (positive)"]
    for notion in ALL:  # (1 − π)(r_g − r_rest), which the thesis sums up
        own, rest = (table.total(0, notion.looked_at, rest=r).value for r in (False, True))
        r_own, r_rest = (
            table.total(0, notion.counted, rest=r).value / b for r, b in zip((False, True), (own, rest), strict=True)
        )
        assert found[notion.name] == pytest.approx(rest / (own + rest) * (r_own - r_rest))


@pytest.mark.parametrize(("groups", "sigma"), [(2, 0.0), (2, 8.0), (4, 8.0)])
def test_the_errors_cover_noise_and_sampling(groups: int, sigma: float) -> None:
    """Intervals of 1.96 errors hold in 95 % of draws."""
    cells, held, made = population(groups, groups), 0, 0
    for table in tables(cells, 4000, sigma, DRAWS, seed=groups):
        for notion, group in itertools.product(ALL, range(groups)):
            found = gap(table, notion, group)
            assert found is not None
            held += abs(found.value - exact(cells, notion, group)) <= 1.96 * found.error
            made += 1
    assert 0.93 < held / made < 0.975


def test_gaps_are_unbiased() -> None:
    cells = population(3)
    for notion in ALL:
        found = [gap(table, notion, 0) for table in tables(cells, 4000, 8.0, DRAWS, seed=9)]
        errors = [estimate.value - exact(cells, notion, 0) for estimate in found if estimate is not None]
        assert len(errors) == DRAWS
        assert abs(np.mean(errors)) < 4 * np.std(errors) / math.sqrt(DRAWS)


@pytest.mark.parametrize(("sigma", "near"), [(0.0, 0.02), (0.0, 0.2), (8.0, 0.02), (8.0, 0.2)])
def test_intervals_of_the_model_without_noise_hold(sigma: float, near: float) -> None:
    """For models that differ on any of the near records. The distance takes half of ζ, so they fail in ζ/2 at most."""
    cells, rng = population(1, near=near), np.random.default_rng(4)
    others = [cells, *(other_model(cells, rng) for _ in range(5))]
    values = np.array([[exact(other, notion, 0) for notion in ALL] for other in others])
    failed = np.zeros((2, *values.shape))
    for table in tables(cells, 4000, sigma, DRAWS, seed=2):
        about, change = (np.array([interval(table, notion, 0) for notion in ALL]) for interval in (noiseless, shift))
        failed[0] += (values < about[:, 0]) | (values > about[:, 1])
        failed[1] += (values - values[0] < change[:, 0]) | (values - values[0] > change[:, 1])
    assert (failed / DRAWS <= ERROR / 2).all()


def test_the_intervals_are_no_wider_than_their_reasons() -> None:
    """With many records and little noise the shift is what flipping all near records of one kind gives."""
    cells = population(5, near=0.1)
    table = Table(cells * 1e10, np.ones(cells.shape), 1.0)
    for notion in ALL:
        low, high = shift(table, notion, 0)
        values = []
        for flips in itertools.product((0.0, 1.0), repeat=8):
            moved = cells.copy()
            for (group, label, side), share in zip(itertools.product((0, 1), repeat=3), flips, strict=True):
                amount = share * cells[group, label, side, 1]
                moved[group, label, side, 1] -= amount
                moved[group, label, 1 - side, 1] += amount
            values.append(exact(moved, notion, 0))
        now = exact(cells, notion, 0)
        assert low == pytest.approx(min(values) - now, rel=2e-3)
        assert high == pytest.approx(max(values) - now, rel=2e-3)
        assert noiseless(table, notion, 0) == pytest.approx((min(values), max(values)), abs=1e-4)


def test_no_near_records_leave_sampling_and_noise_alone() -> None:
    cells = population(5, near=0.0)
    for n, sigma in ((4000, 0.0), (4000, 8.0), (400_000, 8.0)):
        table = next(tables(cells, n, sigma, 1, seed=0))
        low, high = shift(table, ALL[0], 0)
        assert -100 * (1 + sigma) / n < low < 0 < high < 100 * (1 + sigma) / n


def test_groups_below_their_noise_are_left_out() -> None:
    counts = np.full((2, 2, 2), 400.0)
    counts[0, 1] = [10.0, 14.0]
    table = Table(counts, np.ones(counts.shape), 8.0)
    assert gap(table, ALL[0], 0) is None
    assert gap(table, ALL[0], 1) is None  # nobody is left to compare it with
    assert gap(table, ALL[1], 0) is not None
    assert gap(Table(np.zeros((2, 2, 2)), np.ones((2, 2, 2)), 0.0), ALL[0], 0) is None


def test_no_noise_makes_gaps_fail() -> None:
    """A crash after a release would reveal something of it."""
    rng = np.random.default_rng(5)
    for _ in range(300):
        sigma, shape = float(10 ** rng.uniform(-2, 3)), (int(rng.integers(2, 5)), 2, 2, 2)
        counts = rng.integers(0, 30, shape) * (rng.random(shape) < 0.6) + sigma * rng.normal(size=shape)
        table = Table(counts, np.ones(shape), sigma)
        for notion in ALL:
            found = gap(table, notion, 0)
            assert found is None or (math.isfinite(found.value) and found.error > 0)
            for low, high in (noiseless(table, notion, 0), shift(table, notion, 0)):
                assert -2 <= low <= high <= 2
