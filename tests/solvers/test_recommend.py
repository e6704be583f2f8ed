"""Recommendations: functions of public facts that change where papers and simulations say that the winner changes."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import pytest

import vfl
from tests.benchmarks import recommended
from vfl.job import file as jobfile
from vfl.planning import plan
from vfl.planning.public_problem import problem_of
from vfl.solvers import SOLVERS
from vfl.solvers.rules.recommend import Recommendation, recommendation


def job(p: int = 8, **options: object) -> vfl.Job:
    columns = [f"x{j}" for j in range(p)]
    given = {
        "partition": vfl.FeaturePartition({"a": columns[: p // 2], "b": columns[p // 2 :]}, label=("b", "y")),
        "bounds": dict.fromkeys(columns, (-1.0, 1.0)) | {"y": (-3.0, 3.0)},
        "privacy": vfl.Privacy(epsilon=1.0),
        "loss": "squared",
    }
    if options.get("loss") in ("logistic", "hinge"):
        given["bounds"].pop("y")
    return vfl.Job(**(given | options))


def recommended_for(spec: vfl.Job, n: int) -> Recommendation:
    return recommendation(problem_of(spec, n))


@pytest.mark.parametrize(
    ("spec", "n", "winner"),
    [
        (job(p=8), 20_000, "SkGD"),
        (job(p=8), 200_000, "SkGD"),  # measured at 30,000 records, ε = 10: NoisyGram 2.2e-4, SkGD 2e-6
        (job(p=8, loss="logistic"), 200_000, "SkGD"),
        (job(p=1000, penalty=vfl.L1(0.1)), 1000, "GCD"),  # thesis D.4, square: 0.35 against 0.75
        (job(p=100, loss="logistic", penalty=vfl.ElasticNet(1e-2)), 1000, "GCD"),
        # GCD leaves less on a sparse signal (log2: 0.216 against 0.53) and more on a dense one (1.14 times, simulated).
        (job(p=100, loss="logistic", penalty=vfl.L2(1e-3)), 1000, "SkGD"),
        (job(p=8, loss="hinge", penalty=vfl.L2(1e-2)), 20_000, "SGD"),
        (job(p=8, loss="hinge"), 20_000, "SGD"),
        (job(p=8, privacy=None), 20_000, "SkGD"),
    ],
    ids=["ridge", "large n", "logistic", "sparse", "elastic net", "many columns", "svm", "hinge alone", "no noise"],
)
def test_the_winner(spec: vfl.Job, n: int, winner: str) -> None:
    found = recommended_for(spec, n)
    assert found.solver == winner
    assert found.solver in SOLVERS
    assert found.left is None or 0 <= found.left <= 1
    if winner != "SGD":  # the price of secret sampling needs an extra
        plan(replace(spec, solver=SOLVERS[winner]()), n)


def test_reasons_are_quantities_of_the_papers() -> None:
    said = plan(job(loss="logistic", penalty=vfl.L2(0.1)), 10_000).explain()
    for quantity in ("√p·L_{M⁻¹}/(nμ) = ", "noise ", "steps and bias "):
        assert quantity in said
    assert "nμ/ln p = " in plan(job(p=100, loss="logistic", penalty=vfl.L1(0.1)), 1000).explain()


def test_the_plan_states_the_recommendation() -> None:
    assert "  advice     SkGD is expected to do best" in plan(job(), 200_000).explain()
    assert "advice" not in plan(job(privacy=None), 200_000).explain()


def test_more_records_never_hurt() -> None:
    errors = [recommended_for(job(), n).left for n in (10, 100, 10**4, 10**6)]
    assert errors == sorted(errors, reverse=True)


# (job, n, {solver: share of the loss that it left untuned}). Figures of NoisyGram, SGD and GCD are from docs/benchmarks.md.
# SkGD's on the first three problems are from a simulation of its record cap outside of the project; those on California
# are from docs/benchmarks.md, with a cap per coordinate. On the last two problems SkGD was not measured at this budget,
# and 1.0 is the share that the constant model leaves: the rows only test that a greedy solver may win there.
MEASURED = [
    (job(p=8, privacy=vfl.Privacy(epsilon=0.1)), 24_000, {"SkGD": 0.0168 / 3.97, "NoisyGram": 0.2094 / 3.672}),
    (job(p=8), 24_000, {"SkGD": 6.95e-4 / 3.97, "NoisyGram": 0.01337 / 3.672}),
    (job(p=8, privacy=vfl.Privacy(epsilon=10.0)), 24_000, {"SkGD": 2.7e-4 / 3.97, "NoisyGram": 2.25e-4 / 3.672}),
    (
        job(p=8, privacy=vfl.Privacy(epsilon=0.1)),
        16_512,
        {"SkGD": 0.05509 / 10.48, "NoisyGram": 0.5999 / 10.48, "SGD": 0.04},
    ),
    (job(p=8), 16_512, {"SkGD": 0.008095 / 10.48, "NoisyGram": 0.05816 / 10.48, "SGD": 0.04}),
    (
        job(p=8, privacy=vfl.Privacy(epsilon=10.0)),
        16_512,
        {"SkGD": 6.46e-4 / 10.48, "NoisyGram": 0.01255 / 10.48, "SGD": 0.04},
    ),
    (job(p=1000, penalty=vfl.L1(30.0), intercept=False), 1000, {"SkGD": 1.0, "GCD": 0.6318 / 0.7551}),
    (job(p=100, loss="logistic", penalty=vfl.L2(1e-3), intercept=False), 1000, {"SkGD": 1.0, "GCD": 0.4991 / 0.6294}),
]


@pytest.mark.parametrize(("spec", "n", "left"), MEASURED)
def test_the_winner_is_not_behind_the_default_on_a_measured_row(spec: vfl.Job, n: int, left: dict[str, float]) -> None:
    winner = recommended_for(spec, n).solver
    assert left[winner] <= left["SkGD"]


RECORDED = json.loads(recommended.RECORD.read_text(encoding="utf-8"))
"""Untuned errors on the rows of the benchmarks, with their jobs (tests/benchmarks/recommended.py)."""


@pytest.mark.parametrize("name", RECORDED)
def test_no_solver_that_was_measured_behind_the_default_is_named(name: str) -> None:
    row = RECORDED[name]
    winner = recommended_for(jobfile.decode(tomllib.loads(row["job"])), row["n"]).solver
    assert row["errors"][winner] <= row["errors"]["SkGD"]


def test_the_record_has_rows_that_another_solver_wins() -> None:
    """Without them the test above would hold for a rule that always names the default."""
    behind = [name for name, row in RECORDED.items() if min(row["errors"], key=row["errors"].get) != "SkGD"]
    assert behind
    assert len(RECORDED) >= 10


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_run_that_is_expected_to_learn_nothing_leaves_the_whole_loss(loss: str) -> None:
    ours = recommended_for(job(loss=loss), 30)
    assert (ours.solver, ours.left) == ("SkGD", 1.0)
