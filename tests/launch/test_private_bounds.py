"""Private bounds: their sensitivity, the ranges that they find, and their cost."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from vfl.base.types import Adjacency
from vfl.errors import BudgetExceeded, PrivacyError, SpecificationError
from vfl.privacy import magnitudes
from vfl.privacy.events import Gaussian
from vfl.privacy.ledger import SqliteLedger
from vfl.solvers.releases.bins import ColumnRanges

if TYPE_CHECKING:
    from pathlib import Path

N = 4000
PARTITION = vfl.FeaturePartition({"bank": ["income", "age"], "telco": ["calls"]}, label=("bank", "y"))
DRAFT = vfl.Job(partition=PARTITION, privacy=None, scaling="none", bounds={"age": (18, 100)})
VALUES = (0.0, -0.0, 1.0, -1.0, 0.75, 3.0, 1e-300, -1e-300, 2.0**40, 1e300, -1e300, math.inf, -math.inf, math.nan)


def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    calls = rng.poisson(20, N).astype(float)
    calls[0] = 1e9  # one record must not show
    income = rng.lognormal(10, 0.5, N)
    return {"income": income, "age": rng.uniform(18, 99, N), "calls": calls, "y": rng.integers(0, 2, N)}


def buy(data: Any = None, draft: vfl.Job = DRAFT, **options: Any) -> Any:
    return vfl.releases.private_bounds(draft, data or table(), **({"epsilon": 2.0, "at": "inprocess"} | options))


def test_replacing_a_record_moves_the_histograms_by_their_sensitivity() -> None:
    others = np.array([1.0, -5.0, 0.0])
    sums = [magnitudes.histogram(np.append(others, x)) for x in VALUES]
    assert all(counts.shape == (magnitudes.CELLS,) and counts.sum() == 4 for counts in sums)
    moves = [math.sqrt(int(((a - b) ** 2).sum())) for a, b in itertools.product(sums, sums)]
    assert max(moves) <= magnitudes.sensitivity(1) < math.sqrt(2) * (1 + 1e-15)
    assert magnitudes.sensitivity(3) >= math.sqrt(6)


@pytest.mark.parametrize("x", [1.0, 0.99, 1.01, 2.0, -2.0, -3.5, 1e-9, 2.0**-40, -(2.0**39), 0.0])
def test_a_value_lies_within_the_edges_of_its_cell(x: float) -> None:
    (cell,) = magnitudes.histogram(np.array([x])).nonzero()[0]
    low, high = magnitudes.edges(int(cell))
    assert low <= x <= high
    assert high <= 2 * low or low <= 2 * high or low == high == 0.0 or 0.0 in (low, high)


def test_it_finds_the_range_of_most_records() -> None:
    data = table()
    found = buy(data)
    assert found.bounds.keys() == {"income", "calls"}
    assert found.bounds["calls"][1] in (32.0, 64.0)  # one outlier decides nothing
    for name, (low, high) in found.bounds.items():
        assert ((data[name] >= low) & (data[name] <= high)).mean() > 0.95
    assert found.unknown == ()
    assert 1.99 < found.epsilon <= 2.0
    job = replace(DRAFT, bounds=DRAFT.bounds | dict(found.bounds), scaling="bounds", privacy=vfl.Privacy(epsilon=1.0))
    assert vfl.train(job, data, at="inprocess").certificate.private


def test_signs_and_zeros() -> None:
    data = table() | {"income": -table()["income"], "calls": np.zeros(N)}
    found = buy(data)
    low, high = found.bounds["income"]
    assert low < -(2.0**14) <= high < 0
    assert found.unknown == ("calls",)


def test_too_little_budget_finds_nothing_rather_than_noise() -> None:
    found = buy(epsilon=1e-3)
    assert found.bounds == {}
    assert found.unknown == ("income", "calls")
    assert found.least > N


def test_it_is_charged_to_the_data_set(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "l.db")
    ledger.set_cap("d", epsilon=2.0, delta=1e-6)
    draft = replace(DRAFT, dataset="d")
    buy(draft=draft, ledger=tmp_path / "l.db", epsilon=1.9, delta=1e-6)
    (balance,) = ledger.show()
    assert 1.89 < balance.spent <= 1.9
    with pytest.raises(BudgetExceeded):
        buy(draft=draft, ledger=tmp_path / "l.db", epsilon=1.0, delta=1e-6)


@pytest.mark.slow
def test_transports_agree(local_ray: Any) -> None:
    """tests/launch/test_aligned_releases.py releases on Ray in every run of the suite."""
    here, there = (buy(noise=vfl.SeededNoise(3), at=at) for at in ("inprocess", "ray"))
    assert here == there
    assert here.scope.startswith("NOT PRIVATE: the noise is seeded")


def test_noise_for_fewer_columns_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator may be wrong: a party computes the noise that its own histograms need."""
    event = Gaussian(Adjacency.REPLACE_ONE, 1.0, 1e3, 1)
    monkeypatch.setattr(ColumnRanges, "_event", lambda *_: event)
    with pytest.raises(PrivacyError, match="does not cover"):
        buy()


WRONG = {
    "no feature": ({"columns": ["incme"]}, "'incme' is no numeric feature without a declared range"),
    "declared": ({"columns": ["age"]}, "'age' is no numeric feature without a declared range"),
    "twice": ({"columns": ["calls", "calls"]}, "each once"),
    "nothing": ({"columns": []}, "each once"),
    "site": ({"at": "rey"}, "unknown site at='rey'"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_errors_name_the_remedy(case: Any) -> None:
    options, said = case
    with pytest.raises(SpecificationError, match=said):
        buy(**options)
