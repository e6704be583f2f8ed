"""Audit of the release of curvature and residuals' variance, from which standard errors follow."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

import parties.party
import vfl
from tests.auditing.test_audit import SURE, job
from tests.auditing.test_defects import findings
from vfl.solvers.releases import products
from vfl.solvers.rules import intervals


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch) -> vfl.Job:
    """Return a job with intervals, which are allowed for 40 records here."""
    for name in ("LEAST", "SETTLED"):
        monkeypatch.setattr(intervals, name, 0.0)
    return job(vfl.SkGD(passes=2), penalty=vfl.penalties.NoPenalty(), intervals=0.5)


def test_products_lose_no_more_than_is_claimed(spec: vfl.Job) -> None:
    audit = vfl.audit(spec, 40, runs=12, confidence=SURE)
    assert audit.passed, str(audit)
    assert audit.lower <= audit.claim


def test_a_sensitivity_of_products_that_is_too_small_is_found(spec: vfl.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    true = products.ProductClip.sensitivity.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(products.ProductClip, "sensitivity", property(lambda clip: true(clip) / 8.0))
    assert "shifts" in findings(vfl.audit(spec, 40, runs=12, confidence=SURE))


def test_products_with_too_little_noise_are_found(spec: vfl.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    true, sensitivity = parties.party.release, products.ProductClip(1.0, 15).sensitivity

    def release(sums: Any, grid: float, event: Any, *rest: Any) -> Any:
        weaker = event is not None and event.sensitivity == pytest.approx(sensitivity)
        return true(sums, grid, replace(event, sigma=event.sigma / math.sqrt(2.0)) if weaker else event, *rest)

    monkeypatch.setattr(parties.party, "release", release)
    assert "noise" in findings(vfl.audit(spec, 40, runs=40, confidence=0.999))
