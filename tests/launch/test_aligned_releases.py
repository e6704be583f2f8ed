"""Releases align by ids as a training does: they release what they would release on the common records alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

import vfl
from vfl.errors import ConsentRefused, DataError, LedgerError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

N = 500
PARTITION = vfl.FeaturePartition({"bank": ["age"], "telco": ["calls", "tariff"]}, label=("bank", "y"))
COLUMNS: dict[str, Any] = {"age": vfl.columns.Binned((30.0, 50.0)), "tariff": vfl.Categorical(("S", "M"))}
IDS = {"bank": "customer", "telco": "subscriber"}
JOB = vfl.Job(partition=PARTITION, bounds={"calls": (0, 100)}, columns=COLUMNS, privacy=vfl.Privacy(epsilon=1.0))
WIDE = replace(JOB, bounds={}, privacy=None, scaling="none")
TERMS: dict[str, Any] = {"epsilon": 5.0, "delta": 1e-6, "noise": vfl.SeededNoise(3), "at": "inprocess"}
BUY: dict[str, Callable[..., Any]] = {
    "bounds": lambda data, **o: vfl.releases.private_bounds(
        replace(WIDE, **_ids(o)), data, columns=["calls"], **TERMS | o
    ),
    "quantiles": lambda data, **o: vfl.releases.private_quantiles(replace(JOB, **_ids(o)), data, **TERMS | o),
    "woe": lambda data, **o: vfl.releases.woe(replace(JOB, **_ids(o)), data, **TERMS | o),
}


def _ids(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options.pop(name) for name in ("id", "dataset") if name in options}


def common() -> dict[str, pd.DataFrame]:
    """Return the records that both parties hold, in one order."""
    rng = np.random.default_rng(1)
    age = rng.uniform(18, 80, N)
    y = (rng.random(N) < np.where(age > 50, 0.9, 0.1)).astype(int)
    names = [f"c{i}" for i in range(N)]
    bank = pd.DataFrame({"customer": names, "age": age, "y": y})
    telco = {"subscriber": names, "calls": rng.uniform(0, 100, N), "tariff": np.where(y == 1, "S", "M")}
    return {"bank": bank, "telco": pd.DataFrame(telco)}


def held() -> dict[str, pd.DataFrame]:
    """Return the same records among others, in an order of each party's own. The others would show in every count."""
    bank, telco = common().values()
    more = pd.DataFrame({"customer": [f"b{i}" for i in range(90)], "age": 20.0, "y": 1})
    others = pd.DataFrame({"subscriber": [f"t{i}" for i in range(70)], "calls": 1e6, "tariff": "M"})
    return {
        "bank": pd.concat([bank, more]).sample(frac=1, random_state=1),
        "telco": pd.concat([telco, others]).sample(frac=1, random_state=2),
    }


@pytest.mark.parametrize("what", BUY)
def test_they_count_the_records_that_all_parties_hold(what: str) -> None:
    assert BUY[what](held(), id=IDS) == BUY[what](common())


def test_one_table_is_aligned_with_itself() -> None:
    whole = common()["bank"].merge(common()["telco"], left_on="customer", right_on="subscriber").sample(frac=1)
    assert BUY["woe"](whole, id=IDS) == BUY["woe"](common())


def test_ray_buys_the_same(local_ray: Any) -> None:
    assert BUY["woe"](held(), id=IDS, at="ray") == BUY["woe"](common())


def test_rows_that_differ_are_refused_without_ids() -> None:
    with pytest.raises(DataError, match="records"):
        BUY["quantiles"](held())


def test_a_missing_ledger_is_refused_before_the_files_are_opened(tmp_path: Path) -> None:
    absent = {"bank": "absent.csv", "telco": "absent.csv"}
    with pytest.raises(LedgerError, match="its data owner creates one with"):
        BUY["quantiles"](absent, id=IDS, dataset="d", ledger=tmp_path / "none.db", noise=None)


def test_an_owner_is_asked_before_the_alignment(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        'format = 1\njobs = ["another"]\n[job]\nepsilon = 1.0\ndelta = 1e-6\n[total]\nepsilon = 1.0\ndelta = 1e-6\n'
    )
    with pytest.raises(ConsentRefused, match="'job-quantiles'"):
        BUY["quantiles"]({"bank": vfl.Source("absent.csv", policy), "telco": "absent.csv"}, id=IDS)
