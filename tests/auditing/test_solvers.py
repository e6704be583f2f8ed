"""A correct job of every solver passes its audit, and the attack comes close to the claim where a canary can."""

from __future__ import annotations

from typing import Any

import pytest

import vfl
from tests.auditing.test_audit import BOUNDS, PARTITION, SURE, job
from vfl.base.losses import SmoothedHinge
from vfl.solvers import SOLVERS

LABELLED = {"bounds": BOUNDS | {"y": (-2.0, 2.0)}, "loss": "squared"}
RIDGE = {"penalty": vfl.L2(0.1)}
MORE = {"evaluation": vfl.Evaluation(holdout=None, class_balance=0.1)}
GROUPED = vfl.FeaturePartition(
    {"bank": ["a0", "a1", "a2"], "telco": ["b0"]},
    label=("telco", "y"),
    blocks={"bank": [["a0", "a2"], ["a1"]], "telco": [["b0"]]},
)
KINDS: dict[str, Any] = {
    "a1": vfl.Boolean(),
    "a2": vfl.Categorical(("red", "green", "blue")),
    "b0": vfl.Numeric(bounds=(0.0, 9.0), missing="indicator"),
}

JOBS: dict[str, vfl.Job] = {
    "SkGD": job(vfl.SkGD()),
    "SkGD, squared loss": job(vfl.SkGD(passes=3), **LABELLED),
    "SkGD, class balance": job(vfl.SkGD(passes=2), **MORE),
    "SkGD, importance": job(vfl.SkGD(sampling="importance", passes=2, clip="coordinate")),
    "SkGD, groups": job(vfl.SkGD(passes=2), partition=GROUPED, penalty=vfl.penalties.GroupLasso(0.1)),
    "SkGD, other kinds of columns": job(vfl.SkGD(passes=2), columns=KINDS, bounds={"a0": (2.0, 3.0)}),
    "SkGD, Poisson loss": job(vfl.SkGD(passes=2), bounds=BOUNDS | {"y": (0.0, 4.0)}, loss="poisson"),
    "SkGD, sparse party": job(vfl.SkGD(passes=2), partition=PARTITION.changed(sparse=["bank"])),
    "CD": job(vfl.solvers.CD(passes=2)),
    "GD": job(vfl.solvers.GD(passes=4)),
    "GCD": job(vfl.solvers.GCD(rounds=4)),
    "SGD, disjoint": job(vfl.solvers.SGD(sampling="disjoint", batch_size=10, passes=2)),
    "SVRG, disjoint": job(vfl.solvers.SVRG(sampling="disjoint", batch_size=10, passes=2)),
    "SCD, disjoint": job(vfl.solvers.SCD(sampling="disjoint", batch_size=10, passes=2), **RIDGE),
    "SCD, α and v": job(vfl.solvers.SCD(sampling="disjoint", release="both", passes=2), **RIDGE),
    "SGD, secret batches": job(vfl.solvers.SGD(sampling="poisson", batch_size=10, passes=2)),
    "SVRG, secret batches": job(vfl.solvers.SVRG(sampling="poisson", batch_size=10, passes=2)),
    "SCD, secret batches": job(vfl.solvers.SCD(sampling="poisson", batch_size=10, passes=2), **RIDGE),
    "OutputPerturbation": job(
        vfl.solvers.OutputPerturbation(constant=False), loss=SmoothedHinge(0.5), penalty=vfl.L2(10.0)
    ),
    "NoisyGram": job(vfl.solvers.NoisyGram(constant=False), **LABELLED),
    "held out": job(vfl.solvers.GD(passes=3), evaluation=vfl.Evaluation(holdout=0.4)),
    "held out, squared loss": job(vfl.solvers.GD(passes=3), evaluation=vfl.Evaluation(holdout=0.4), **LABELLED),
}
DEAR = ("SGD, secret batches", "SVRG, secret batches")
"""Their plans take seconds to calibrate; SCD's samples stand for them in the quick run."""


def test_every_solver_is_covered() -> None:
    assert {type(spec.solver).__name__ for spec in JOBS.values()} == set(SOLVERS)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in DEAR)) for n in JOBS])
def test_a_correct_job_passes(name: str) -> None:
    audit = vfl.audit(JOBS[name], 40, runs=12, confidence=SURE)
    assert audit.passed, str(audit)
    assert [attack.part for attack in audit.attacks] == (["training", "held out"] if JOBS[name].split else ["all"])
    assert audit.lower <= audit.claim
    assert 0.25 < audit.reach <= 1.0 + 1e-9
