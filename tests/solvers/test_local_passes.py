"""Several passes of a party per message: which runs make them, and what they cost and save."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import vfl
from tests.benchmarks.problems import Case, correlated, private_job
from vfl.errors import SpecificationError, VflError
from vfl.planning import plan

PARTIES = {"a": ["x0", "x1", "x2"], "b": ["x3", "x4", "x5"]}


def job(epsilon: float = 1.0, *, loss: str = "squared", intercept: bool = True, low: float = -4.0, **options):
    bounds = {f"x{k}": (low, 4.0) for k in range(6)} | ({"y": (-9.0, 9.0)} if loss == "squared" else {})
    return private_job(PARTIES, ("b", "y"), bounds, epsilon, loss=loss, intercept=intercept, **options)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("epsilon", [0.03, 0.1, 0.3, 1.0, 3.0])
def test_a_default_run_of_two_parties_takes_few_messages_and_says_why_others_do_not(epsilon, loss):
    for n in (1_000, 8_000, 60_000):
        found = plan(job(epsilon, loss=loss), n)
        long = found.messages > 92
        assert long <= ("rounds of messages, one per pass: above a signal-to-noise ratio" in found.explain())
        assert found.epsilon <= epsilon


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"loss": "logistic", "intercept": False, "low": 0.0}, "nearly parallel across parties"),
        ({"epsilon": 20.0}, "noise is so low"),
        ({"intervals": True}, "one pass per message"),
        ({"intercept": False, "epsilon": 3.0}, "charges every step by itself"),
    ],
)
def test_a_long_run_says_why(options, why):
    changed = {"intervals": options.pop("intervals")} if "intervals" in options else {}
    found = plan(replace(job(**options), **changed), 30_000)
    assert found.messages > 92
    assert why in found.explain()


def test_passes_within_a_party_are_passes():
    """Passes count as such, steps follow from all of them, and 12 of them in rounds of 4 take 3 messages per party."""
    one, four = (
        plan(job(solver=vfl.SkGD(passes=12, details=vfl.solvers.Details(local_passes=k))), 20_000) for k in (1, 4)
    )
    assert one.solver.step_size == four.solver.step_size
    assert one.messages - four.messages == 2 * (12 - 3) + (one.solver.outer_rounds - four.solver.outer_rounds)
    assert one.epsilon == pytest.approx(four.epsilon, rel=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": "uniform"}, {"parallel": 2}, {"message": "block"}, {"message": "consecutive"}, {"iterate": "last"},
        {"joint": True}, {"clip": 1.0}, {"clip": "coordinate"},
    ],
)  # fmt: skip
def test_options_that_do_not_go_with_local_passes_are_refused(options):
    with pytest.raises(VflError, match="local_passes=3"):
        vfl.SkGD().changed(local_passes=3, **options)


def test_on_shares_a_column_is_opened_once_per_pass():
    spec = job(
        trust="secure", loss="logistic", solver=vfl.SkGD(details=vfl.solvers.Details(local_passes=3), joint=False)
    )
    with pytest.raises(SpecificationError, match="leave local_passes out"):
        plan(spec, 2_000)
    assert plan(replace(spec, solver=vfl.SkGD(joint=False, passes=60)), 2_000).solver.local_passes == 1


def test_local_passes_make_up_for_parallel_columns_of_a_party():
    """Columns correlate within parties. Rounds of one pass leave a multiple of the error of as many rounds of five passes."""
    whole = correlated("within parties, squared", 10.0)
    case = Case(whole.name, whole.job, whole.table.slice(0, 8_000))
    few, local = (np.mean(case.errors(range(1, 4), passes=40 * k, local_passes=k, early_share=0.15)) for k in (1, 5))
    assert local < 0.7 * few


def test_outer_rounds_do_not_divide_a_pass():
    """The second part of a divided pass would take a second charge, which no plan has."""
    rounds = 3
    given = vfl.SkGD(passes=20, details=vfl.solvers.Details(local_passes=4, outer_rounds=rounds))
    found = plan(job(solver=given), 20_000).solver
    draws = 4 * 7  # six columns and the intercept
    assert (found.outer_rounds, found.inner_rounds) == (rounds, 2 * draws)
    divided = vfl.SkGD(details=vfl.solvers.Details(local_passes=4, outer_rounds=rounds, inner_rounds=draws + 9))
    with pytest.raises(SpecificationError, match=f"multiple of {draws}"):
        plan(job(solver=divided), 20_000)


def test_a_run_with_outer_rounds_makes_all_of_its_passes():
    given = vfl.SkGD(passes=20, details=vfl.solvers.Details(local_passes=4, outer_rounds=3))
    whole = correlated("within parties, squared", 10.0)
    spec = replace(whole.job, solver=given)
    result = vfl.train(spec, whole.table.slice(0, 2_000), at="inprocess")
    assert result.certificate.epsilon == pytest.approx(plan(spec, 2_000).epsilon)
