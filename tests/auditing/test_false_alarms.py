"""A hundred audits of correct jobs: false alarms are no more frequent than the confidence allows."""

from __future__ import annotations

import pytest
from scipy.stats import binom

import vfl
from tests.auditing.test_solvers import JOBS

AUDITS, RUNS, CONFIDENCE = 100, 60, 0.95
NOT_SAMPLED = [name for name in JOBS if "secret" not in name]


def false_alarms(audits: int) -> list[str]:
    """Return the jobs that failed among so many audits, which take the jobs in turn."""
    taken = [NOT_SAMPLED[k % len(NOT_SAMPLED)] for k in range(audits)]
    return [name for name in taken if not vfl.audit(JOBS[name], 40, runs=RUNS, confidence=CONFIDENCE).passed]


@pytest.mark.slow
def test_a_hundred_correct_audits() -> None:
    found = false_alarms(AUDITS)
    assert binom.sf(len(found) - 1, AUDITS, 1.0 - CONFIDENCE) > 1e-3, found
