"""Models of persons with several rows are the minimisers of the mean over persons of their rows' weighted losses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from scipy.optimize import minimize

import vfl
from coordinator.rounds import Round
from coordinator.transport import Traffic
from tests.persons.setting import BOUNDS, aligned_by_hand, job, tables
from vfl.base.persons import UNITS
from vfl.errors import PrivacyError, SpecificationError
from vfl.planning import Plan

K = np.random.default_rng(1).integers(1, 7, 60)
SOLVERS: dict[str, Any] = {
    "GD": vfl.solvers.GD(passes=300),
    "SkGD": vfl.SkGD(passes=100),
    "CD": vfl.solvers.CD(passes=100),
    "GCD": vfl.solvers.GCD(rounds=400),
    "SVRG": vfl.solvers.SVRG(passes=200),
}
BLOCK = vfl.solvers.Details(message="block")
"""The messages that a run with several rows per person sends in any case."""


def train(asked: vfl.Job, data: Any, person: Any) -> vfl.Result:
    with aligned_by_hand(person, int(person.max()) + 1):
        return vfl.train(asked, data, at=vfl.InProcess(num_cpus=1))


def weights_of(k: Any) -> Any:
    """Return the exact weight of each row, the first rows of a person first."""
    return np.concatenate([[(UNITS // n + (r < UNITS % n)) / UNITS for r in range(n)] for n in k])


def minimiser(data: Any, person: Any, u: Any, λ: float = 0.05) -> Any:
    bank, telco = data["bank"], data["telco"]
    X = np.column_stack([bank["a"][person], bank["b"][person], telco["c"], telco["d"], np.ones(len(person))])
    sign = 2 * telco["y"] - 1

    def objective(w: Any) -> Any:
        v = sign * (X @ w)
        value = (u * np.logaddexp(0, -v)).sum() / (person.max() + 1) + λ / 2 * (w[:4] ** 2).sum()
        slope = X.T @ (-u * sign / (1 + np.exp(v))) / (person.max() + 1)
        return value, slope + λ * np.append(w[:4], 0.0)

    return minimize(objective, np.zeros(5), jac=True, method="BFGS", options={"gtol": 1e-11}).x


def coefficients(result: vfl.Result) -> Any:
    return np.array(list(result.original.values()))


@pytest.mark.parametrize("name", SOLVERS)
def test_models_without_noise(name: str) -> None:
    data, person = tables(K)
    found = coefficients(train(job(SOLVERS[name]), data, person))
    assert found == pytest.approx(minimiser(data, person, weights_of(K)), abs=1e-6)


def test_rows_in_any_order() -> None:
    """Rows of a person need not stand together, and their order changes no weight by more than one unit."""
    data, person = tables(np.full(40, 4))  # 4 divides UNITS
    shuffled = np.random.default_rng(0).permutation(person.size)
    moved = data | {"telco": {name: column[shuffled] for name, column in data["telco"].items()}}
    one, other = (train(job(SOLVERS["GD"]), *each) for each in ((data, person), (moved, person[shuffled])))
    assert coefficients(one) == pytest.approx(coefficients(other), abs=1e-12)


@pytest.mark.parametrize(
    "solver",
    [
        vfl.SkGD(passes=3, details=BLOCK),
        vfl.SkGD(passes=3, clip="record", details=BLOCK),
        vfl.solvers.GD(passes=5),
        vfl.solvers.GCD(rounds=5),
        vfl.solvers.SGD(batch_size=10, passes=2, sampling="disjoint"),
        vfl.solvers.SVRG(batch_size=10, passes=1, sampling="disjoint"),
        vfl.solvers.OutputPerturbation(constant=False),
    ],
    ids=lambda solver: solver.name,
)
def test_one_row_per_person_is_the_ordinary_run(solver: Any) -> None:
    """With the same seeded noise, releases agree to the rounding of noise on the finer grid of persons."""
    data, person = tables(np.ones(60, int))
    privacy = vfl.Privacy(epsilon=5.0, delta=1e-6, noise=vfl.SeededNoise(7))
    evaluation = vfl.Evaluation(holdout=0.3)
    asked = job(solver, privacy=privacy, evaluation=evaluation)
    plain = replace(asked, id=None)
    several, one = train(asked, data, person), vfl.train(plain, data, at=vfl.InProcess(num_cpus=1))
    assert coefficients(several) == pytest.approx(coefficients(one), abs=1e-4)
    assert several.certificate.epsilon == one.certificate.epsilon


def test_measures_are_means_over_persons() -> None:
    data, person = tables(K)
    asked = job(vfl.solvers.GD(passes=300), evaluation=vfl.Evaluation(holdout=0.3))
    result = train(asked, data, person)
    held = asked.split.held_out(len(K))  # type: ignore[union-attr]  # it has a hold-out
    w, telco, bank = result.original, data["telco"], data["bank"]
    v = w["a"] * bank["a"][person] + w["b"] * bank["b"][person] + w["c"] * telco["c"] + w["d"] * telco["d"]
    losses = np.logaddexp(0, -(2 * telco["y"] - 1) * (v + w["(intercept)"]))
    of_persons = np.bincount(person, weights_of(K) * losses)
    measured = result.findings["held out"]
    assert measured.n_records == held.sum()
    assert measured.measures["loss"].value == pytest.approx(of_persons[held].mean(), abs=1e-9)
    right = np.bincount(person, weights_of(K) * ((v + w["(intercept)"] > 0) == telco["y"]))
    assert measured.measures["accuracy"].value == pytest.approx(right[held].mean(), abs=1e-9)
    alone = train(replace(asked, evaluation=None), *_only(data, person, ~held))
    assert coefficients(alone) == pytest.approx(coefficients(result), abs=1e-9)


def _only(data: Any, person: Any, persons: Any) -> Any:
    """Return the tables of some persons, renumbered."""
    bank = {name: column[persons] for name, column in data["bank"].items()}
    telco = {name: column[persons[person]] for name, column in data["telco"].items()}
    return {"bank": bank, "telco": telco}, (np.cumsum(persons) - 1)[person[persons[person]]]


def test_classes_and_weights() -> None:
    """Rows of persons weigh as records of the same weights in a job on a table of all rows."""
    data, person = tables(K)
    bank, telco, n = data["bank"], data["telco"], person.size
    s, u = np.random.default_rng(0).uniform(0, 2, n), weights_of(K)
    telco |= {"y": np.random.default_rng(1).integers(0, 3, n), "s": s}
    columns = {"bank": ["a", "b"], "telco": ["c", "d"]}
    options: Any = {
        "partition": vfl.FeaturePartition(columns, label=("telco", "y"), weight="s"),
        "loss": "multinomial",
        "classes": (0, 1, 2),
        "bounds": BOUNDS | {"s": (0, 2)},
    }
    several = train(job(vfl.solvers.GD(passes=400), **options), data, person)
    whole = {name: column[person] for name, column in bank.items()}, telco | {"s": s * u}
    plain = job(vfl.solvers.GD(passes=400), **options | {"id": None, "penalty": vfl.L2(0.05 * len(K) / n)})
    alike = vfl.train(plain, dict(zip(columns, whole, strict=True)), at=vfl.InProcess(num_cpus=1))
    assert coefficients(several) == pytest.approx(coefficients(alike), abs=1e-5)


def test_standard_errors_from_subsamples_of_persons() -> None:
    data, person = tables(np.tile(K, 12))
    privacy = vfl.Privacy(epsilon=40.0)
    several = train(
        job(vfl.SkGD(passes=2), privacy=privacy, intervals="subsamples", penalty=vfl.L2(0.001)), data, person
    )
    assert len(several.summary().rows) == 5


def test_a_run_makes_the_planned_rounds_and_its_vectors_have_public_sizes() -> None:
    """Vectors of the label party have N·most_rows entries, whatever rows there are."""
    moved = []
    for k in (K, np.ones(60, int)):
        seen: list[Any] = []
        sizes = []
        true = Traffic.count

        def count(self: Traffic, records: Any, replies: Any, true: Any = true, sizes: Any = sizes) -> None:
            before = self.n_bytes
            true(self, records, replies)
            sizes.append(self.n_bytes - before)

        data, person = tables(k)
        asked = job(vfl.SkGD(passes=3), privacy=vfl.Privacy(epsilon=2.0, noise=vfl.SeededNoise(1)))
        with mock.patch.object(Traffic, "count", count), aligned_by_hand(person, 60):
            vfl.train(asked, data, at=vfl.InProcess(num_cpus=1), watch=seen.append)
        (plan,) = (event for event in seen if isinstance(event, Plan))
        assert sum(isinstance(event, Round) for event in seen) == plan.messages
        assert sum(sizes) <= plan.n_bytes
        moved.append(sizes)
    assert moved[0] == moved[1]


def test_plans_speak_of_persons_and_advise_what_the_job_can_do() -> None:
    options: Any = {"loss": "squared", "bounds": BOUNDS | {"y": (-3, 3)}, "privacy": vfl.Privacy(epsilon=1.0)}
    said = str(vfl.plan(job(**options), 1500))
    assert "for every person with at most 6 rows" in said
    assert "joint" not in said
    assert "NoisyGram" not in said
    faint = job(privacy=vfl.Privacy(epsilon=1e-4))
    assert vfl.plan(replace(faint, id=None), 200).releases
    with pytest.raises(PrivacyError, match="epsilon is too small"):  # on the finer grid
        vfl.plan(faint, 200)
    data, person = tables(K)
    exact = train(job(vfl.solvers.GD(passes=3), penalty=vfl.penalties.NoPenalty()), data, person)
    with pytest.raises(SpecificationError, match="most_rows"):
        exact.infer(data)
