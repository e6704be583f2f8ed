"""Audits of jobs with several rows per person: data sets differ in persons with one row and with most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from parties.rows import PersonRows
from tests.persons.setting import job
from vfl.base.persons import UNITS

if TYPE_CHECKING:
    from vfl.apps.auditing.audit import Audit

SOLVERS = {
    "SkGD": vfl.SkGD(passes=2),
    "GCD": vfl.solvers.GCD(rounds=3),
    "poisson": vfl.solvers.SGD(batch_size=10, passes=1, sampling="poisson"),
}


def audited(solver: Any, runs: int | None = 6, **options: Any) -> Audit:
    return vfl.audit(
        job(solver, privacy=vfl.Privacy(epsilon=2.0, delta=1e-5), **options), 40, runs=runs, confidence=0.999
    )


@pytest.mark.parametrize("name", SOLVERS)
def test_a_correct_job_passes(name: str) -> None:
    assert audited(SOLVERS[name]).passed


def test_held_out_persons_are_audited() -> None:
    assert audited(SOLVERS["SkGD"], evaluation=vfl.Evaluation(holdout=0.4)).passed


def test_rows_that_are_not_weighed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unweighed(self: PersonRows, query: Any, records: Any) -> Any:
        made = [[UNITS * own for own in rows.sums(query, cut)] for _, rows, cut in self._cut(query, records)]
        return [np.add.reduce(own) for own in zip(*made, strict=True)]

    monkeypatch.setattr(PersonRows, "sums", unweighed)
    assert not audited(vfl.solvers.GD(passes=2), runs=None).passed
