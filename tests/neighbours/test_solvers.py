"""Whole runs of every solver on neighbours as far apart as the bounds allow: no path loses more than the charges."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vfl
from tests.neighbours.harness import compare, train, train_in_memory
from tests.neighbours.setting import BOUNDS, ENDS, PARTIES, job, mirrored, replaced, table, turned
from vfl.solvers import SOLVERS
from vfl.solvers.releases import correlations, products
from vfl.solvers.rules import intervals, record_defaults

pytestmark = pytest.mark.usefixtures("encoded")

SAMPLINGS = ("shuffled", "cyclic", "uniform", "importance", "nice", "full")
BATCHES: dict[str, Any] = {"batch_size": 4, "passes": 1}
TRIED: dict[str, Any] = {
    **{
        f"SkGD-{sampling}": vfl.SkGD(
            passes=2,
            block_size=1,
            sampling=sampling,
            details=vfl.solvers.Details(tau=2 if sampling == "nice" else None),
        )
        for sampling in SAMPLINGS
    },
    "SkGD-parallel": vfl.SkGD(passes=2, block_size=1, details=vfl.solvers.Details(parallel=2, message="consecutive")),
    "SkGD-blocks": vfl.SkGD(
        passes=2, block_size=2, details=vfl.solvers.Details(message="block", noise_geometry="isotropic")
    ),
    "SkGD-bounds": vfl.SkGD(passes=2, clip="bounds"),
    "SkGD-record": vfl.SkGD(passes=2, block_size=1, clip="record"),
    "SkGD-record-local": vfl.SkGD(passes=6, details=vfl.solvers.Details(local_passes=3), block_size=1, clip="record"),
    "SkGD-record-parallel": vfl.SkGD(
        passes=2, block_size=1, clip="record", details=vfl.solvers.Details(parallel=2, message="consecutive")
    ),
    "CD": vfl.solvers.CD(passes=2),
    "CD-record": vfl.solvers.CD(passes=2, clip="record"),
    "GCD": vfl.solvers.GCD(rounds=4),
    "GD": vfl.solvers.GD(passes=3),
    "SGD-disjoint": vfl.solvers.SGD(sampling="disjoint", **BATCHES),
    "SVRG-disjoint": vfl.solvers.SVRG(sampling="disjoint", **BATCHES),
    "SCD-disjoint": vfl.solvers.SCD(sampling="disjoint", **BATCHES),
    "SGD-poisson": vfl.solvers.SGD(sampling="poisson", **BATCHES),
    "OutputPerturbation": vfl.solvers.OutputPerturbation(constant=False),
    "NoisyGram": vfl.solvers.NoisyGram(constant=False),
}
DEAR: dict[str, Any] = {
    "SCD-poisson": vfl.solvers.SCD(sampling="poisson", **BATCHES),
    "SVRG-poisson": vfl.solvers.SVRG(sampling="poisson", **BATCHES),
}
"""Their plans take seconds to calibrate."""
WITHIN = 7
"""A seed under which the record is in a secret batch."""


NAMES = [*TRIED, *(pytest.param(name, marks=pytest.mark.slow) for name in DEAR)]


def loss_for(name: str) -> str:
    return "squared" if name == "NoisyGram" else "logistic"


def how(name: str) -> Any:
    return train_in_memory if name.endswith("poisson") else train


def test_every_solver_is_covered() -> None:
    assert {name.partition("-")[0] for name in TRIED} == set(SOLVERS)


@pytest.mark.parametrize("pair", [turned, mirrored])
@pytest.mark.parametrize("name", NAMES)
def test_a_path_loses_no_more_than_the_charges(name: str, pair: Any) -> None:
    found = compare(job((TRIED | DEAR)[name], loss_for(name)), *pair(loss_for(name)), run=how(name), seed=WITHIN)
    assert found.raised == (None, None)
    assert found.complaints == ()
    assert 0 < found.path <= found.charged


def crossed(loss: str = "squared") -> tuple[Any, Any]:
    """Return neighbours whose record lies along two different columns: products move farthest."""
    return replaced(table(loss), a=1.0, b=0.0, c=0.0), replaced(table(loss), a=0.0, b=0.0, c=1.0)


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow intervals for a dozen records, and let every record reach the bound of its products."""
    for name in ("LEAST", "SETTLED"):
        monkeypatch.setattr(intervals, name, 0.0)
    monkeypatch.setattr(products, "LONGER", 1e-3)
    monkeypatch.setattr(products, "AMPLE", math.inf)  # no longer bound
    monkeypatch.setattr(products, "FAINTEST", 1e-9)  # no damped columns
    monkeypatch.setattr(correlations, "LONGER", 1e-3)
    monkeypatch.setattr(correlations, "SHARE", 0.9)  # so that the passes' charge hides nothing
    monkeypatch.setattr(record_defaults, "declines_joint_steps", lambda problem, noise, messages: "")


def with_intervals(loss: str) -> vfl.Job:
    return job(vfl.SkGD(passes=3), loss, penalty=vfl.penalties.NoPenalty(), intervals=0.5)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("pair", [turned, mirrored, crossed])
@pytest.mark.parametrize("loss", ["logistic", "squared", "huber", "poisson", "gamma", "tweedie"])
def test_intervals_lose_no_more_than_the_charges(loss: str, pair: Any) -> None:
    found = compare(with_intervals(loss), *pair(loss), run=train, seed=WITHIN)
    assert found.raised == (None, None)
    assert found.complaints == ()
    assert 0 < found.path <= found.charged


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("pair", [turned, mirrored, crossed])
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_joint_steps_lose_no_more_than_the_charges(loss: str, pair: Any) -> None:
    found = compare(job(vfl.SkGD(passes=3, joint=True), loss), *pair(loss), run=train, seed=WITHIN)
    assert found.raised == (None, None)
    assert found.complaints == ()
    assert 0 < found.path <= found.charged


@pytest.mark.usefixtures("anywhere")
def test_joint_steps_with_half_of_their_sensitivity_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    true: Any = vars(products.ProductClip)["sensitivity"]
    monkeypatch.setattr(products.ProductClip, "sensitivity", property(lambda self: true.fget(self) / 2.0))
    found = compare(job(vfl.SkGD(passes=3, joint=True), "squared"), *crossed(), run=train, seed=WITHIN)
    assert found.complaints


@pytest.mark.usefixtures("anywhere")
def test_intervals_of_weighted_counts_lose_no_more_than_the_charges() -> None:
    """The record changes its exposure and its weight besides its row."""
    partition = vfl.FeaturePartition(PARTIES, label=("telco", "y"), exposure="e", weight="s")
    asked = replace(
        with_intervals("poisson"),
        partition=partition,
        bounds=BOUNDS | {"y": ENDS["poisson"], "e": (0.5, 4.0), "s": (0, 5)},
    )
    many = np.ones(len(table()["a"]))
    pair = [
        replaced(each | {"e": many, "s": many}, e=e, s=s)
        for each, e, s in zip(crossed("poisson"), (0.5, 4.0), (5.0, 4.0), strict=True)
    ]
    found = compare(asked, *pair, run=train, seed=WITHIN)
    assert found.raised == (None, None)
    assert found.complaints == ()
    assert 0 < found.path <= found.charged


@pytest.mark.usefixtures("anywhere")
def test_products_of_damped_rows_are_weighed_by_the_norms_of_these_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that follow from shorter rows than those multiplied are found."""
    true = products.pieces_of
    monkeypatch.setattr(products, "damping", lambda problem, known, event: np.full(problem.layout.n_coordinates, 0.5))

    def undamped(problem: Any, rows: Any, weighting: Any, event: Any) -> Any:
        longer = {q: (block, centre, 2.0 * scale) for q, (block, centre, scale) in rows.items()}
        return true(problem, longer if weighting.damped else rows, weighting, event)

    honest = compare(with_intervals("squared"), *crossed(), run=train, seed=WITHIN)
    assert honest.complaints == ()
    monkeypatch.setattr(products, "pieces_of", undamped)
    assert compare(with_intervals("squared"), *crossed(), run=train, seed=WITHIN).complaints


@pytest.mark.usefixtures("anywhere")
def test_products_whose_records_count_twice_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    true = products.Products.__call__

    def twice(self: Any, *given: Any) -> Any:
        r, kept = true(self, *given)
        return 4.0 * r, kept

    asked = with_intervals("squared")
    honest = compare(asked, *crossed(), run=train, seed=WITHIN)
    monkeypatch.setattr(products.Products, "__call__", twice)
    found = compare(asked, *crossed(), run=train, seed=WITHIN)
    assert found.path > 1.2 * honest.path
    assert found.complaints
