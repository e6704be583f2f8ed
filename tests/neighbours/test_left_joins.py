"""Left joins whose data differ in one person: in its presence at another party, or in its cells there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from tests.neighbours.harness import compare, train_in_memory

if TYPE_CHECKING:
    from pathlib import Path

N, RECORD = 12, 3
SKGD = vfl.SkGD(passes=2)


def tables(*, present: bool, low: bool = False) -> dict[str, dict[str, Any]]:
    """Return the parties' tables. The telco has half of the ids, and one that the bank lacks."""
    rng = np.random.default_rng(0)
    ids = np.array([f"p{k:02}" for k in range(N)])
    bank = {"id": ids, "a": rng.uniform(-1, 1, N), "y": np.arange(N) % 2}
    here = np.arange(N) % 2 == 0
    here[RECORD] = present
    c = rng.uniform(-1, 1, N)
    c[RECORD] = -1.0 if low else 1.0
    telco = {"id": np.append(ids[here], "q"), "c": np.append(c[here], 0.3)}
    return {"bank": bank, "telco": telco}


def job(solver: Any = SKGD, **options: Any) -> vfl.Job:
    given: dict[str, Any] = {
        "partition": vfl.FeaturePartition({"bank": ["a"], "telco": ["c"]}, label=("bank", "y")),
        "bounds": {"a": (-1.0, 1.0), "c": (-1.0, 1.0)},
        "columns": {"c": vfl.Numeric(fill=-1.0)},
        "penalty": vfl.L2(0.1),
        "id": vfl.columns.Id("id", join="left"),
        "solver": solver,
        "privacy": vfl.Privacy(epsilon=2.0, delta=1e-6),
    }
    return vfl.Job(**given | options)


def everything(spec: vfl.Job, source: Any, folder: Path) -> None:
    """Align, train, and write all that others may see: plan, certificate, model, report."""
    print(vfl.align(spec, source, at=vfl.InProcess(num_cpus=1)))
    print(vfl.plan(spec, n_records=N).explain())
    train_in_memory(spec, source, folder)


@pytest.mark.parametrize("presence", [True, False])
@pytest.mark.parametrize(
    "solver",
    [
        SKGD,
        vfl.solvers.GD(),
        vfl.solvers.SGD(sampling="disjoint", batch_size=4, passes=1),
        vfl.solvers.GCD(rounds=3),
        vfl.solvers.OutputPerturbation(constant=False),
    ],
    ids=lambda solver: solver.name,
)
def test_presence_is_a_cell_of_the_record(solver: Any, presence: bool) -> None:
    """Files, prints, errors and the plan are equal; sums before noise differ by no more than what was charged."""
    worlds = tables(present=True), tables(present=not presence, low=not presence)
    found = compare(job(solver), *worlds, run=everything)
    assert found.raised == (None, None)
    assert found.complaints == ()
    assert found.path > 0.0


@pytest.mark.parametrize(
    "options",
    [
        {"evaluation": vfl.Evaluation(holdout=0.4)},
        {"columns": {"c": vfl.columns.Curve(fill=-1.0)}},
        {"columns": {"c": vfl.columns.Binned((0.0,), missing="indicator")}, "bounds": {"a": (-1, 1)}},
    ],
)
def test_measures_and_curves_count_presence_once(options: dict[str, Any]) -> None:
    worlds = tables(present=True), tables(present=False)
    found = compare(job(**options), *worlds, run=everything)
    assert found.complaints == ()
    assert found.path > 0.0


def test_presence_that_decides_the_records_is_found() -> None:
    """A planted defect: an inner join of the same data, where absence removes the record."""
    worlds = tables(present=True), tables(present=False)
    assert compare(job(id="id"), *worlds, run=everything).complaints != ()
