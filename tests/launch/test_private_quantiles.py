"""Private quantiles: the grid is counted as its sensitivity allows, and quantiles come near the exact ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from vfl.base.features.curve import edges_of, histogram
from vfl.errors import BudgetExceeded, SpecificationError
from vfl.privacy.ledger import SqliteLedger
from vfl.solvers.releases.knots import CELLS, quantiles_of, shortened

if TYPE_CHECKING:
    from pathlib import Path

N = 4000
PARTITION = vfl.FeaturePartition({"bank": ["income", "age"], "telco": ["age", "tariff"]}, label=("bank", "y"))
COLUMNS = {"tariff": vfl.Categorical(("S", "M"))}
BOUNDS = {"income": (0, 200_000), "bank.age": (18, 100), "telco.age": (0, 10)}
DRAFT = vfl.Job(partition=PARTITION, privacy=None, bounds=BOUNDS, columns=COLUMNS)


def parts() -> dict[str, dict[str, Any]]:
    rng = np.random.default_rng(1)
    bank = {"income": rng.lognormal(10, 0.5, N), "age": rng.uniform(18, 99, N), "y": rng.integers(0, 2, N)}
    return {"bank": bank, "telco": {"age": rng.exponential(2, N), "tariff": rng.choice(["S", "M"], N)}}


def buy(data: Any = None, draft: vfl.Job = DRAFT, **options: Any) -> Any:
    return vfl.releases.private_quantiles(draft, data or parts(), **({"epsilon": 1.0, "at": "inprocess"} | options))


@pytest.mark.parametrize("bounds", [(-3.0, 5.0), (0.0, 1e5), (18.0, 90.0), (-2.0, -1.0), (-1e300, 1e300)])
def test_every_cell_counts_its_own_values(bounds: tuple[float, float]) -> None:
    edges = edges_of(bounds, 160)
    assert len(edges) == 161
    assert (edges[0], edges[-1]) == bounds
    assert (np.diff(edges) >= 0).all()
    middles = edges[:-1] / 2 + edges[1:] / 2
    wide = np.diff(edges) > 0
    assert wide.sum() > 150
    assert (histogram(middles[wide], edges)[wide] == 1).all()
    assert histogram(np.array([-math.inf, *bounds, math.inf, math.nan]), edges)[[0, -1]].tolist() == [2, 2]


def test_quantiles_are_near_the_exact_ones() -> None:
    data = parts()
    found = buy(data)
    assert list(found.edges) == ["income", "bank.age", "telco.age"]
    held = {"income": data["bank"]["income"], "bank.age": data["bank"]["age"], "telco.age": data["telco"]["age"]}
    for column, edges in found.edges.items():
        assert list(edges) == sorted(edges)
        shares = [(held[column] < edge).mean() for edge in edges]
        assert shares == pytest.approx([0.2, 0.4, 0.6, 0.8], abs=4 * found.rank_error + 0.02)
    assert found.rank_error < 0.05
    assert found.resolution["telco.age"] == pytest.approx(10 / 120)
    assert 0.99 < found.epsilon <= 1.0
    vfl.columns.Binned(found.edges["income"])


def test_without_noise_they_are_exact_up_to_the_grid() -> None:
    values = parts()["bank"]["income"]
    edges = np.linspace(0, 200_000, CELLS[0] + 1)
    counts = np.histogram(values, edges)[0]
    exact = np.quantile(values, [0.25, 0.5, 0.75])
    assert quantiles_of(counts.astype(float), edges, [0.25, 0.5, 0.75]) == pytest.approx(exact, abs=200_000 / CELLS[0])
    assert quantiles_of(np.zeros(CELLS[0]), edges, [0.5]) == ()
    assert quantiles_of(np.full(CELLS[0], -1.0), edges, [0.5]) == ()


def test_missing_cells_are_not_counted() -> None:
    data = parts()
    data["bank"]["age"] = np.where(np.arange(N) % 2 == 0, np.nan, data["bank"]["age"])
    declared = COLUMNS | {"bank.age": vfl.Numeric(missing="indicator")}
    found = buy(data, replace(DRAFT, columns=declared), columns=["bank.age"], quantiles=[0.5], epsilon=4.0)
    assert found.edges["bank.age"] == pytest.approx((58.5,), abs=6)


def test_it_is_charged_to_the_data_set(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "l.db")
    ledger.set_cap("d", epsilon=2.0, delta=1e-6)
    draft = replace(DRAFT, dataset="d")
    buy(draft=draft, ledger=tmp_path / "l.db", epsilon=1.9, delta=1e-6)
    (balance,) = ledger.show()
    assert 1.89 < balance.spent <= 1.9
    with pytest.raises(BudgetExceeded):
        buy(draft=draft, ledger=tmp_path / "l.db", epsilon=1.0, delta=1e-6)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no number": ({"columns": ["tariff"]}, "'tariff' is no number with declared bounds"),
    "no feature": ({"columns": ["incme"]}, "'incme' is no number with declared bounds (did you mean 'income'?)"),
    "twice": ({"columns": ["income", "income"]}, "each once"),
    "nothing": ({"columns": []}, "each once"),
    "a share of 1": ({"quantiles": [0.5, 1.0]}, "quantiles are ascending shares between 0 and 1"),
    "no share": ({"quantiles": []}, "quantiles are ascending shares between 0 and 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_refused_before_anything_is_read(case: str) -> None:
    options, said = WRONG[case]
    with pytest.raises(SpecificationError) as caught:
        buy({"bank": "none.csv", "telco": "none.csv"}, **options)
    assert said in str(caught.value)


def test_edges_have_few_digits() -> None:
    assert shortened((1.2345678, 1.2345679, 7.0, 16.0), (0.0, 16.0)) == (1.23457, 7.0)
    for edges in buy().edges.values():
        assert all(len(repr(edge)) <= 8 for edge in edges)


def test_a_value_of_many_records_gives_the_ends_of_its_cell() -> None:
    edges = edges_of((0.0, 1e5), 160)
    amounts = np.concatenate([np.zeros(900), np.full(100, 5000.0)])
    (knot,) = shortened(quantiles_of(histogram(amounts, edges).astype(float), edges, [0.2, 0.4, 0.6, 0.8]), (0.0, 1e5))
    assert 0.0 < knot < 0.01
