"""Aggregates of rows whose data differ in one person: in all rows of one id, and in their number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vfl
from tests.neighbours.harness import compare
from vfl.base.features.aggregate import AGGREGATES
from vfl.columns import Aggregate

N, PERSON = 12, 3


def tables(amounts: list[float], days: list[int]) -> dict[str, dict[str, Any]]:
    """Return the parties' tables. amounts, days : rows of one person at the telco; all others have two rows."""
    rng = np.random.default_rng(0)
    ids = np.array([f"p{k:02}" for k in range(N)])
    bank = {"id": ids, "a": rng.uniform(-1, 1, N), "y": np.arange(N) % 2}
    others = np.repeat(np.delete(ids, PERSON), 2)
    telco = {
        "id": np.concatenate([others[:6], [ids[PERSON]] * len(amounts), others[6:]]),
        "amount": np.insert(rng.uniform(-1, 1, len(others)), [6] * len(amounts), amounts),
        "day": np.datetime64("2026-01-01") + np.insert(np.arange(len(others)), [6] * len(days), days),
    }
    return {"bank": bank, "telco": telco}


@pytest.mark.parametrize("how", AGGREGATES)
@pytest.mark.parametrize("solver", [vfl.SkGD(passes=2), vfl.solvers.GD()], ids=lambda solver: solver.name)
def test_all_rows_of_an_id_are_one_record(how: str, solver: Any) -> None:
    job = vfl.Job(
        partition=vfl.FeaturePartition({"bank": ["a"], "telco": ["c"]}, label=("bank", "y")),
        bounds={"a": (-1.0, 1.0)},
        columns={"c": Aggregate("amount", how, by="day" if how == "last" else None, bounds=(-1.0, 1.0), fill=0.0)},
        penalty=vfl.L2(0.1),
        id="id",
        solver=solver,
        privacy=vfl.Privacy(epsilon=2.0, delta=1e-6),
    )
    few, many = tables([-1e9], [0]), tables([1e9, 1e9, np.inf, 1e9, np.nan], [3, 9, 99, 1, 2])
    found = compare(job, few, many)
    assert found.raised == (None, None)
    assert found.complaints == ()
