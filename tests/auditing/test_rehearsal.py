"""A shadow has the exact sums of its data set: without noise, they are what the run releases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import parties.party
from coordinator import executor
from tests.auditing.test_solvers import JOBS
from vfl.apps.auditing.canaries import candidates, tables
from vfl.apps.auditing.rehearsal import Rehearsal, world_of
from vfl.planning import plan
from vfl.solvers import output_perturbation

SAMPLED = [name for name in JOBS if "secret" in name]


def rehearsal(name: str, n: int = 40) -> Rehearsal:
    spec = JOBS[name]
    held_out = np.zeros(n, dtype=bool) if spec.split is None else spec.split.held_out(n)
    canaries = np.flatnonzero(~held_out)[:2]
    first, second = tables(spec, next(candidates(len(spec.partition.features))), canaries, n, None)
    return Rehearsal(plan(spec, n), (world_of(spec, second), world_of(spec, first)), canaries)


@pytest.mark.parametrize("name", [name for name in JOBS if name not in SAMPLED and name != "GCD"])
def test_without_noise_a_run_releases_the_sums_of_its_shadow(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def release(sums: Any, grid: float, *rest: Any) -> Any:
        return np.asarray(sums * grid, dtype=np.float64)

    for module in (parties.party, executor, output_perturbation):
        monkeypatch.setattr(module, "release", release)
    run = rehearsal(name).run(1)
    assert run.releases
    for release_ in run.releases:
        assert release_.value == pytest.approx(release_.true, abs=1e-5 * (1.0 + abs(release_.true).max()))
        assert np.array_equal(release_.true, release_.exact[1])


def test_both_data_sets_are_told_the_same_history() -> None:
    first, second = (rehearsal("GD").run(side) for side in (0, 1))
    assert [r.name for r in first.releases] == [r.name for r in second.releases]
    assert any(not np.array_equal(*release.exact) for release in first.releases)
    assert all(release.paid for release in first.releases)


def test_secret_batches_are_noted_with_their_rate() -> None:
    run = rehearsal("SCD, secret batches").run(0)
    assert {rate for _, rate in run.batches} == {0.25}
    assert run.releases[0].absent is None  # the constant model, released from all records
    assert all(release.absent is not None for release in run.releases[1:])
