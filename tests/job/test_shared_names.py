"""Columns of one name at two parties, from the job file to predictions: each party reads its own."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

import vfl
from vfl.errors import PartitionError, SpecificationError
from vfl.job import file as jobfile

if TYPE_CHECKING:
    from pathlib import Path

N = 400
RNG = np.random.default_rng(0)
CITIES = RNG.choice(["a", "b"], (2, N))
BANK = pd.DataFrame(
    {"id": np.arange(N), "age": RNG.uniform(18, 90, N), "city": CITIES[0], "income": RNG.uniform(0, 1, N)}
)
SHOP = pd.DataFrame(
    {"id": np.arange(N), "age": RNG.uniform(0, 10, N), "city": CITIES[1], "sex": RNG.choice(["f", "m"], N)}
)
BANK["y"] = (BANK.age / 72 - SHOP.age / 10 + RNG.normal(0, 0.1, N) > 0).astype(int)
SHOP["y"] = RNG.uniform(0, 1, N)  # a feature with the label's name

PARTITION = vfl.FeaturePartition(
    {"bank": ["age", "city", "income"], "shop": ["age", "city", "y", "group"]},
    label=("bank", "y"),
    groups={"shop": ["sex"]},
)
CATEGORIES = vfl.Categorical(("a", "b"))
PLAIN = {"bank.city": CATEGORIES, "shop.city": CATEGORIES, "group": vfl.columns.Pair("age", "city")}
COLUMNS = PLAIN | {"sex": vfl.Categorical(("f", "m"))}
BOUNDS = {"bank.age": (18, 90), "shop.age": (0, 10), "shop.y": (0, 1), "bank.income": (0, 1)}


def job(**options: Any) -> vfl.Job:
    given = {"partition": PARTITION, "columns": COLUMNS, "bounds": BOUNDS, "penalty": vfl.L2(1e-3), "id": "id"}
    fairness = {"evaluation": vfl.Evaluation(holdout=0.5, fairness=vfl.Fairness(group="shop.sex"))}
    return vfl.Job(**given | {"privacy": vfl.Privacy(epsilon=4.0, delta=1e-6)} | fairness | options)


def without_fairness(**options: Any) -> vfl.Job:
    # Without a tolerance no pass is extrapolated: extrapolation turns the rounding of another row order into 1e-7.
    solver = vfl.SkGD(passes=300, details=vfl.solvers.Details(tol=None))
    none = {"evaluation": None, "privacy": None, "columns": PLAIN, "solver": solver}
    return job(partition=PARTITION.without_groups(), **none | options)


def trained(spec: vfl.Job, data: Any, **options: Any) -> vfl.Result:
    return vfl.train(spec, data, at=vfl.InProcess(num_cpus=1), **options)


@pytest.fixture(scope="module")
def result() -> vfl.Result:
    return trained(without_fairness(), {"bank": BANK, "shop": SHOP.sample(frac=1, random_state=1)})


def test_each_party_reads_its_own_column(result: vfl.Result) -> None:
    coef = dict(zip(result.feature_names, result.coef_, strict=True))
    assert list(coef) == [
        *("bank.age", "bank.city=a", "bank.city=b", "income", "shop.age", "shop.city=a", "shop.city=b", "shop.y"),
        *("group=age:city=a", "group=age:city=b"),
    ]
    assert coef["bank.age"] > 0
    assert coef["shop.age"] < 0
    assert "shop.age" in repr(result)
    assert "bank.age" in result._repr_html_()
    assert (result.predict({"bank": BANK, "shop": SHOP}) == BANK.y).mean() > 0.9


def test_saved_split_and_converted(result: vfl.Result, tmp_path: Path) -> None:
    margins = result.decision_function({"bank": BANK, "shop": SHOP})
    assert (
        vfl.Result.load(result.save(tmp_path / "run")).decision_function({"bank": BANK, "shop": SHOP}) == margins
    ).all()
    parts = result.save_parts(tmp_path / "parts")
    found = vfl.predict(parts, {"bank": BANK, "shop": SHOP}, at="inprocess")
    assert (found.scores == margins[np.array(found.ids)]).all()
    shared = ("age", "city", "y")
    frames = {"bank": BANK, "shop": SHOP.drop(columns="id")}
    renamed = [frame.rename(columns={c: f"{q}.{c}" for c in shared}) for q, frame in frames.items()]
    whole = pd.concat(renamed, axis=1)
    np.testing.assert_allclose(result.to_sklearn().decision_function(whole), margins, atol=1e-9)
    assert (result.decision_function(whole) == margins).all()
    assert (result.decision_function(whole.drop(columns="bank.y")) == margins).all()
    again = trained(without_fairness(), whole)
    np.testing.assert_allclose(again.w, result.w, atol=1e-9)
    with pytest.raises(PartitionError, match=r"'shop\.age' of party 'shop' is not"):
        result.decision_function(whole.drop(columns="shop.age"))


def test_a_private_run_with_groups(tmp_path: Path) -> None:
    spec = job()
    found = trained(spec, {"bank": BANK, "shop": SHOP}, output=tmp_path / "run")
    assert found.certificate.private
    found.verify()
    assert spec.wanted("shop") == ("age", "city", "y", "sex", "id")
    assert pickle.loads(pickle.dumps(spec)) == spec  # noqa: S301


def test_a_job_file_qualifies_names(tmp_path: Path) -> None:
    spec = job()
    jobfile.write(spec, tmp_path / "job.toml")
    text = (tmp_path / "job.toml").read_text(encoding="utf-8")
    assert '"bank.age" = [' in text
    assert '[columns."shop.city"]' in text
    assert jobfile.read(tmp_path / "job.toml")[0] == spec
    assert jobfile.read(tmp_path / "job.toml", ['bounds."shop.age"=[0, 12]'])[0].schema["shop.age"].limits == (
        0.0,
        12.0,
    )


def test_a_column_may_always_be_given_with_its_party() -> None:
    bounds = {column: ends for column, ends in BOUNDS.items() if column != "bank.income"}
    short, long = (job(bounds=bounds | {name: (0, 1)}) for name in ("income", "bank.income"))
    assert short == long
    assert short.digest == long.digest
    with pytest.raises(SpecificationError, match=r"'income'.*declared twice"):
        job(bounds=BOUNDS | {"income": (0, 1)})
    with pytest.raises(PartitionError, match=r"'age'.*'bank' and 'shop'"):
        job(bounds=BOUNDS | {"age": (0, 1)})
    with pytest.raises(SpecificationError, match=r"did you mean 'shop\.age'"):
        job(bounds=BOUNDS | {"shop.agee": (0, 1)})


def test_a_dropped_column_leaves_short_names() -> None:
    bounds = {column: ends for column, ends in BOUNDS.items() if column != "shop.y"}
    dropped = without_fairness(columns=PLAIN | {"shop.y": vfl.Dropped()}, bounds=bounds)
    assert dropped.partition.label_column == "y"
    assert "shop.age" in dropped.partition.features


def test_errors_name_the_party() -> None:
    gaps = SHOP.assign(age=SHOP.age.where(SHOP.index != 5))
    with pytest.raises(vfl.errors.DataError, match=r"missing values: declare columns={'shop\.age': vfl"):
        trained(without_fairness(), {"bank": BANK, "shop": gaps})
