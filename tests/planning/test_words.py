"""The outline of a plan is free of formulas; the whole plan has them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import vfl
from vfl.planning import plan

PARTITION = vfl.FeaturePartition({"bank": ["income", "age"], "telco": ["calls"]}, label=("bank", "default"))
JOB = vfl.Job(
    name="credit",
    partition=PARTITION,
    bounds={"income": (0, 2e5), "age": (18, 100), "calls": (0, 500)},
    loss="logistic",
    penalty=vfl.L2(1e-4),
    privacy=vfl.Privacy(epsilon=1.0),
)
FORMULAS = ("κ", "μ", "√", "Σ", "‖", "L_{", "γ", "sigma", "Gaussian (")


@pytest.mark.parametrize(
    "solver",
    [None, vfl.SkGD(), vfl.solvers.GCD(), vfl.solvers.NoisyGram(), vfl.solvers.OutputPerturbation(), vfl.solvers.CD()],
)
@pytest.mark.parametrize("holdout", [None, 0.2])
def test_the_outline_has_no_formula(solver: object, holdout: float | None) -> None:
    job = replace(JOB, evaluation=vfl.Evaluation(holdout=holdout), **{} if solver is None else {"solver": solver})
    if isinstance(solver, vfl.solvers.NoisyGram):
        job = replace(job, loss="squared", bounds={**JOB.bounds, "default": (0, 1)})
    made = plan(job, 20_000)
    said, whole = str(made), made.explain()
    assert not [formula for formula in FORMULAS if formula in said]
    assert "Σ" in whole
    assert "Gaussian (" in whole or "BoundedRange (" in whole
    assert made._repr_html_().count("<tr>") == len(said.splitlines()) - 1


def test_a_plan_of_a_run_on_shares_bounds_the_time_of_computing() -> None:
    """A run of 98 s was once planned at 3 s: the model of costs in trusted runs does not fit."""
    said = str(plan(replace(JOB, trust="secure"), 20_000))
    (cost,) = [line for line in said.splitlines() if line.startswith("  cost ")]
    assert "s of computing by all participants" in cost
    assert "on an idle machine" in str(plan(JOB, 20_000))


def test_the_outline_names_model_sizes_and_penalty() -> None:
    said = str(plan(JOB, 20_000)).splitlines()
    assert said[0].startswith("plan of job 'credit'")
    assert "  penalty    L2, strength 0.0001" in said
    assert said[1].startswith("  privacy    ε = 1 at δ = 2.5e-09 for every record (replace one)")
    assert "advice" not in str(plan(JOB, 20_000))  # the job's solver is the one that is expected to win


def test_another_solver_is_advised_in_words() -> None:
    said = str(plan(replace(JOB, solver=vfl.solvers.OutputPerturbation()), 20_000))
    assert re.search("advice .*solver = SkGD", said)


def test_without_privacy_nothing_is_released() -> None:
    said = str(plan(replace(JOB, privacy=None), 20_000))
    assert "  privacy    NONE" in said
    assert "releases" not in said


def test_amounts_get_neither_a_forecast_nor_advice_which_nobody_measured_on_them() -> None:
    job = replace(JOB, loss=vfl.losses.Gamma(low=-2, high=3), bounds={**JOB.bounds, "default": (0.1, 20)})
    made = plan(replace(job, solver=vfl.solvers.OutputPerturbation(), penalty=vfl.L2(0.1)), 20_000)
    for said in (str(made), made.explain(), str(plan(job, 20_000))):
        assert "  advice" not in said


@pytest.mark.parametrize("solver", [vfl.solvers.GCD(), vfl.solvers.SCD()])
def test_a_private_plan_says_which_solvers_do_not_find_the_mean_of_counts(solver: object) -> None:
    job = replace(JOB, loss="poisson", solver=solver, bounds={**JOB.bounds, "default": (0, 9)})
    assert "solver = SkGD" in str(plan(job, 20_000))
    assert "solver = SkGD" not in str(plan(replace(job, solver=vfl.SkGD()), 20_000))
