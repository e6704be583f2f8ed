"""The constant model alone: where noise outweighs what a solver can learn, its charge, and its loss."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import vfl
from tests.solvers import setting
from tests.solvers.test_start import FEATURES, N, job, table
from vfl.base.losses import Huber
from vfl.errors import SpecificationError
from vfl.planning import plan, problem_of

KINDS: dict[str, tuple[Any, Any]] = {
    "NoisyGram": (vfl.solvers.NoisyGram, "squared"),
    "OutputPerturbation": (vfl.solvers.OutputPerturbation, "logistic"),
    "OutputPerturbation, Huber": (vfl.solvers.OutputPerturbation, "huber"),
}


def spec(kind: str, *, epsilon: float = 0.1, seed: int = 1, **options: Any) -> vfl.Job:
    """μn/p is 0.9 at ε = 0.1, for 30 columns."""
    solver, loss = KINDS[kind]
    made = job(solver(**options), "squared" if loss == "huber" else loss, epsilon=epsilon, seed=seed)
    return replace(made, loss=Huber(width=1.0), penalty=vfl.L2(0.01)) if loss == "huber" else made


def data(kind: str) -> tuple[np.ndarray, np.ndarray]:
    loss = KINDS[kind][1]
    return table("squared" if loss == "huber" else loss)


@pytest.mark.parametrize("kind", KINDS)
def test_where_noise_outweighs_a_run_ends_near_the_constant_model(kind: str) -> None:
    """Trained anyway, OutputPerturbation leaves over 100 times the loss, and NoisyGram 1.2 times."""
    X, y = data(kind)
    columns = pa.table(dict(zip(FEATURES, X.T, strict=True)) | {"y": y})
    problem = problem_of(spec(kind), N)
    labels = 2.0 * y - 1.0 if problem.loss.classification else y
    constant = min(float(problem.loss.value(np.full(N, b), labels).mean()) for b in np.linspace(-4, 4, 161))
    found = []
    for seed in (1, 2, 3, 4):
        w = vfl.train(spec(kind, seed=seed), columns, at="inprocess").w
        assert not w[:-1].any()
        found.append(float(problem.loss.value(np.full(N, w[-1]), labels).mean()))
    assert np.mean(found) < 1.2 * constant


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_charges_one_statistic_of_the_labels_with_the_whole_budget(kind: str) -> None:
    planned = plan(spec(kind), N)
    ((event, count),) = planned.releases
    assert planned.solver.name == KINDS[kind][0].name
    assert (count, event.dimension, planned.messages) == (1, 1, 1)
    assert event.sensitivity / event.sigma == pytest.approx(planned.problem.mu, rel=1e-6)
    assert planned.epsilon <= 0.1
    said = planned.explain()
    assert re.search("the constant model alone.* 0.89", said)
    assert "fewer columns, more records" in said.lower()


@pytest.mark.parametrize(
    ("solver", "loss"),
    [(vfl.solvers.NoisyGram(constant=True), "squared"), (vfl.solvers.OutputPerturbation(constant=True), "logistic")],
)
def test_messages_and_charges_are_as_planned(solver: Any, loss: str) -> None:
    asked = setting.job(solver, loss=loss, epsilon=1.0, intercept=True, penalty=vfl.L2(0.1))
    planned = plan(asked, setting.N)
    made, outcome = setting.drive(asked)
    assert [event for record in made for event in record.events] == [event for event, _ in planned.releases]
    assert [record.kind for record in made if record.events] == ["Tally"]
    assert not [record for record in made if record.parties]
    assert outcome.statement.epsilon <= 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_the_option_forces_either_way(kind: str) -> None:
    assert plan(spec(kind), N).solver.constant is True
    assert plan(spec(kind, constant=False), N).solver.constant is False
    clear = spec(kind, epsilon=30.0)
    assert plan(clear, 10 * N).solver.constant is False
    forced = plan(replace(clear, solver=replace(clear.solver, constant=True)), 10 * N)
    assert "constant=True" in forced.explain()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("NoisyGram", {"clip": 1.0, "label_scale": 1.0}),
        ("OutputPerturbation", {"tolerance": 1e-2}),
    ],
)
def test_other_options_that_are_given_decide_that_it_trains(kind: str, options: dict[str, float]) -> None:
    assert plan(spec(kind, **options), N).solver.constant is False


@pytest.mark.parametrize("kind", KINDS)
def test_without_privacy_or_an_intercept_it_trains(kind: str) -> None:
    for changed in ({"privacy": None}, {"intercept": False}):
        assert plan(replace(spec(kind), **changed), N).solver.constant is False
        with pytest.raises(SpecificationError, match="leave constant out"):
            plan(replace(spec(kind, constant=True), **changed), N)


def test_a_penalised_intercept_is_shrunk() -> None:
    """An L2 penalty of λ leaves L/(L + λ) of it, L = 1 for Huber loss."""
    kind = "OutputPerturbation, Huber"
    X, y = data(kind)
    columns = pa.table(dict(zip(FEATURES, X.T, strict=True)) | {"y": y})
    weak, strong = (
        vfl.train(replace(spec(kind), penalty=vfl.L2(strength)), columns, at="inprocess").w[-1]
        for strength in (1e-6, 1.0)
    )
    assert strong == pytest.approx(weak / 2.0, rel=1e-5)


def test_owners_books_accept_it(tmp_path: Any) -> None:
    kind = "OutputPerturbation"
    X, y = data(kind)
    columns = pa.table(dict(zip(FEATURES, X.T, strict=True)) | {"y": y})
    policies = {}
    for party in ("a", "b"):
        policies[party] = tmp_path / f"{party}.toml"
        policies[party].write_text(
            'format = 1\njobs = ["*"]\nallow_non_private = true\n[total]\nepsilon = 0.1\ndelta = 1e-5\n',
            encoding="utf-8",
        )
    result = vfl.train(spec(kind), vfl.Source(columns, policy=policies), at="inprocess", output=tmp_path / "run")
    assert result.certificate.releases == 1
    assert "statistic of the labels" in result.certificate.geometry


@pytest.mark.parametrize("solver", [vfl.solvers.NoisyGram, vfl.solvers.OutputPerturbation])
def test_the_option_is_a_flag(solver: Any) -> None:
    with pytest.raises(SpecificationError, match=r"constant must be.*not 1"):
        solver(constant=1)
