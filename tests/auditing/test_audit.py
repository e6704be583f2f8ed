"""`vfl.audit`: correct jobs pass, and the attack and the checks find noise that is too small."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import parties.party
import vfl

PARTITION = vfl.FeaturePartition({"bank": ["a0", "a1", "a2"], "telco": ["b0"]}, label=("telco", "y"))
BOUNDS = dict.fromkeys(PARTITION.features, (-1.0, 1.0))
SURE = 1.0 - 1e-6
"""Confidence in tests of correct jobs: one in a million fails."""


def job(solver: Any = None, **options: Any) -> vfl.Job:
    """Return a job of μ about 0.9, so that three canaries are enough."""
    privacy = vfl.Privacy(epsilon=4.0, delta=1e-5, **options.pop("privacy", {}))
    given = {"partition": PARTITION, "bounds": BOUNDS, "privacy": privacy, "solver": solver or vfl.solvers.GD(passes=4)}
    return vfl.Job(**given | options)


def weaker_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw noise of σ/√2."""
    true = parties.party.release

    def release(sums: Any, grid: float, event: Any, *rest: Any) -> Any:
        return true(sums, grid, event and replace(event, sigma=event.sigma / math.sqrt(2.0)), *rest)

    monkeypatch.setattr(parties.party, "release", release)


def test_a_correct_job_passes_and_the_bound_is_below_its_claim() -> None:
    audit = vfl.audit(job(), 40, runs=12, confidence=SURE)
    assert audit.passed
    assert 0.0 <= audit.lower <= audit.claim <= 4.0
    assert audit.reach > 0.85  # 0.91 on average of all seeds, give or take 0.01
    assert "PASS" in str(audit)
    assert "nothing is charged" in str(audit)


def test_noise_that_is_too_small_is_found_by_guesses_and_by_residuals(monkeypatch: pytest.MonkeyPatch) -> None:
    weaker_noise(monkeypatch)
    audit = vfl.audit(job(), 40)
    (attack,) = audit.attacks
    assert not audit.passed
    assert not next(check for check in audit.checks if check.name == "noise").passed
    assert attack.right > 0.9 * attack.runs
    assert "FAIL" in str(audit)


def test_what_concerns_real_records_is_taken_off_and_named() -> None:
    audit = vfl.audit(job(id="customer", dataset="credit-2026"), 30, runs=5, confidence=SURE)
    assert audit.passed
    assert "left out   dataset, id" in str(audit)


def test_parties_may_hold_columns_of_one_name() -> None:
    same = vfl.FeaturePartition({"bank": ["age", "a1"], "telco": ["age"]}, label=("telco", "y"))
    spec = job(partition=same, bounds={"*": (-1.0, 1.0)})
    audit = vfl.audit(spec, 30, runs=5, confidence=SURE)
    assert audit.passed, str(audit)
    numbers = np.linspace(-1, 1, 30)
    rows = {"bank": {"age": numbers, "a1": numbers}, "telco": {"age": -numbers, "y": np.arange(30) % 2}}
    assert not vfl.audit(spec, runs=5, confidence=SURE, public_data=rows).simulated


def test_a_feature_that_its_owner_makes_is_refused() -> None:
    bins = {"a0": vfl.columns.Binned((0.0, 0.5))}
    with pytest.raises(vfl.errors.SpecificationError, match="'a0' is made by its owner"):
        vfl.audit(job(columns=bins, bounds=dict.fromkeys(("a1", "a2", "b0"), (-1.0, 1.0))))


def test_multinomial_loss_is_refused() -> None:
    with pytest.raises(vfl.errors.SpecificationError, match=r"multinomial.*two classes"):
        vfl.audit(job(loss="multinomial", classes=("a", "b", "c")))


def test_a_weak_canary_is_warned_of() -> None:
    both = vfl.solvers.SCD(sampling="disjoint", release="both", batch_size=10, passes=1)
    audit = vfl.audit(job(both, penalty=vfl.L2(0.1)), 40, runs=5, confidence=SURE)
    assert audit.reach < 0.9
    assert any("can miss an error" in warning for warning in audit.warnings)


def test_guesses_need_no_more_runs_than_the_warning_says() -> None:
    audit = vfl.audit(job(), 40, runs=5, confidence=SURE)
    needed = audit.attacks[0].needed
    assert needed is not None
    assert any(f"--runs {needed}" in warning for warning in audit.warnings)


def test_fairness_is_audited_with_the_held_out_records() -> None:
    fair = vfl.FeaturePartition(
        {"bank": ["a0", "a1", "a2"], "telco": ["b0"]}, label=("telco", "y"), groups={"bank": ["sex"]}
    )
    spec = job(
        partition=fair,
        columns={"sex": vfl.Categorical(("f", "m"))},
        evaluation=vfl.Evaluation(fairness=vfl.Fairness(group="sex", bound=False), holdout=0.5),
    )
    audit = vfl.audit(spec, 60, runs=8, confidence=SURE)
    assert audit.passed, str(audit)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"privacy": None}, vfl.errors.PrivacyError, "privacy=None: it claims nothing"),
        (
            {"privacy": vfl.Privacy(epsilon=1.0, noise=vfl.SeededNoise(1))},
            vfl.errors.PrivacyError,
            "the job's noise is seeded",
        ),
        (
            {"evaluation": vfl.Evaluation(holdout=None, diagnostics=True)},
            vfl.errors.PrivacyError,
            "NOT PRIVATE as a whole, so there is no ε to audit",
        ),
        (
            {
                "bounds": {},
                "scaling": "none",
                "solver": vfl.SkGD(clip=1.0, passes=1),
                "privacy": vfl.Privacy(epsilon=1.0, smoothness=dict.fromkeys(PARTITION.features, 1.0)),
            },
            vfl.errors.SpecificationError,
            "column 'a0' has no bounds",
        ),
        (
            {"trust": "secure"},
            vfl.errors.SpecificationError,
            "audit the same job with trust='trusted'",
        ),
    ],
)
def test_a_job_without_a_claim_is_refused(options: dict[str, Any], error: type[Exception], words: str) -> None:
    given: dict[str, Any] = {"partition": PARTITION, "bounds": BOUNDS, "privacy": vfl.Privacy(epsilon=1.0)}
    with pytest.raises(error, match=words):
        vfl.audit(vfl.Job(**given | options), 30)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"runs": 0}, "runs"), ({"confidence": 1.0}, "confidence must lie between"), ({"n_records": 0}, "n_records")],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(vfl.errors.SpecificationError, match=words):
        vfl.audit(job(), **options)


@pytest.mark.slow
def test_the_bound_is_sharp() -> None:
    """Tiny steps keep the margins near 0, where each release moves by its whole sensitivity."""
    still = vfl.SkGD(clip=1e-3, step_size=1e-4, block_size=2, passes=2)
    spec = job(still, intercept=False, privacy={"smoothness_share": 0.01})
    audit = vfl.audit(spec, 20, runs=1000)
    assert audit.passed
    assert audit.reach > 0.97
    assert audit.attacks[0].lower_mu is not None
    assert audit.attacks[0].lower_mu > 0.8 * (audit.attacks[0].claim_mu or 0.0)


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize(("role", "loss"), [("weight", "logistic"), ("exposure", "poisson")])
def test_jobs_with_a_factor_of_each_record_are_audited(role: str, loss: str, public: bool) -> None:
    """The canaries have the factors that move a release most, and public records keep their own."""
    factors: dict[str, Any] = {role: "s"}
    bounds = {"*": (-1.0, 1.0), "s": (0.5, 4.0)} | ({"y": (0.0, 9.0)} if loss == "poisson" else {})
    spec = job(vfl.SkGD(passes=1), partition=PARTITION.changed(**factors), bounds=bounds, loss=loss)
    rng = np.random.default_rng(0)
    given = {name: rng.uniform(-1.0, 1.0, 40) for name in PARTITION.features}
    given |= {"s": rng.uniform(0.0, 5.0, 40), "y": rng.integers(0, 2, 40)}
    audit = vfl.audit(spec, 40, runs=10, confidence=SURE, public_data=given if public else None)
    assert audit.passed
    assert audit.reach > 0.5
