"""`vfl.audit`: correct jobs pass, and the attack and the checks find noise that is too small."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import parties.party
import vfl

if TYPE_CHECKING:
    import pytest

PARTITION = vfl.FeaturePartition({"bank": ["a0", "a1", "a2"], "telco": ["b0"]}, label=("telco", "y"))
BOUNDS = dict.fromkeys(PARTITION.features, (-1.0, 1.0))
SURE = 1.0 - 1e-4
"""Confidence in tests of correct jobs: one in ten thousand fails."""


def job(solver: Any = None, **options: Any) -> vfl.Job:
    """Return a job of μ about 0.9, so that three canaries are enough."""
    privacy = vfl.Privacy(epsilon=4.0, delta=1e-5, **options.pop("privacy", {}))
    given = {"partition": PARTITION, "bounds": BOUNDS, "privacy": privacy, "solver": solver or vfl.GD(passes=4)}
    return vfl.Job(**given | options)


def weaker_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw noise of σ/√2."""
    true = parties.party.release

    def release(sums: Any, grid: float, event: Any, *rest: Any) -> Any:
        return true(sums, grid, event and replace(event, sigma=event.sigma / math.sqrt(2.0)), *rest)

    monkeypatch.setattr(parties.party, "release", release)


def test_a_correct_job_passes_and_the_bound_is_below_its_claim() -> None:
    audit = vfl.audit(job(), 40, runs=60, confidence=SURE)
    assert audit.passed
    assert 0.0 <= audit.lower <= audit.claim <= 4.0
    assert audit.reach > 0.9
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
