"""Aggregates at an owner with several rows per id: equal to those of pandas, clamped afterwards, and refused where unclear."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

import vfl
from vfl.columns import Aggregate
from vfl.errors import DataError, SpecificationError
from vfl.job import file as jobfile

if TYPE_CHECKING:
    from pathlib import Path

PEOPLE = 60


def tables(seed: int = 0) -> dict[str, pd.DataFrame]:
    """Return customers of a bank, and payments of the same customers at a telco, from 1 to 6 each, some cells missing."""
    rng = np.random.default_rng(seed)
    ids = np.array([f"c{k:03}" for k in range(PEOPLE)])
    of = np.concatenate([ids, rng.choice(ids, 3 * PEOPLE)])
    rng.shuffle(of)
    amount = rng.lognormal(3, 1, of.size)
    amount[rng.random(of.size) < 0.2] = np.nan
    when = pd.Series(pd.to_datetime("2026-01-01") + pd.to_timedelta(rng.integers(0, 300, of.size), unit="D")).astype(
        str
    )
    when[rng.random(of.size) < 0.2] = None
    region = (pd.Series(of).str[1:].astype(int) % 3).to_numpy()
    payments = pd.DataFrame({"customer": of, "amount": amount, "when": when, "region": region})
    customers = pd.DataFrame(
        {"customer": ids, "age": rng.uniform(18, 80, PEOPLE), "default": rng.integers(0, 2, PEOPLE)}
    )
    return {"bank": customers.sample(frac=1, random_state=seed), "telco": payments}


MADE = {
    "spent": Aggregate("amount", "sum", bounds=(0, 300), fill=0),
    "typical": Aggregate("amount", "mean", bounds=(0, 100), fill=0),
    "payments": Aggregate("amount", "count", bounds=(0, 4)),
    "least": Aggregate("amount", "min", bounds=(5, 50), fill=5),
    "most": Aggregate("amount", "max", bounds=(5, 200), fill=5),
    "latest": Aggregate("amount", "last", by="when", bounds=(0, 200), missing="indicator"),
}


def job(**options: Any) -> vfl.Job:
    columns = options.pop("columns", MADE)
    given: dict[str, Any] = {
        "partition": vfl.FeaturePartition({"bank": ["age"], "telco": [*columns, "region"]}, label=("bank", "default")),
        "id": "customer",
        "bounds": {"age": (18, 80), "region": (0, 2)},
        "columns": columns,
        "penalty": vfl.L2(1e-2),
        "privacy": None,
        "solver": vfl.solvers.GD(passes=50),
    }
    return vfl.Job(**given | options)


def by_hand(payments: pd.DataFrame) -> pd.DataFrame:
    """Return the same numbers by pandas, one row per id."""
    groups = payments.groupby("customer", sort=False)
    timed = payments.dropna(subset=["when"]).sort_values("when", kind="stable").groupby("customer")
    return pd.DataFrame(
        {
            "spent": groups.amount.sum(min_count=1),
            "typical": groups.amount.mean(),
            "payments": groups.amount.count(),
            "least": groups.amount.min(),
            "most": groups.amount.max(),
            "latest": timed.amount.last(),
            "region": groups.region.first(),
        }
    ).reset_index()


def train(spec: vfl.Job, data: Any, **options: Any) -> vfl.Result:
    return vfl.train(spec, data, **{"at": vfl.InProcess(num_cpus=1)} | options)


def test_a_model_of_aggregates_is_that_of_columns_made_by_hand(tmp_path: Path) -> None:
    data = tables()
    plain = {
        column: vfl.columns.Numeric(own.bounds, fill=own.fill, missing=own.missing) for column, own in MADE.items()
    }
    expected = train(job(columns=plain), data | {"telco": by_hand(data["telco"])})
    found = train(job(), data)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-9)
    assert found.certificate.n_records == PEOPLE
    paths = {party: tmp_path / f"{party}.csv" for party in data}
    for party, frame in data.items():
        frame.to_csv(paths[party], index=False)
    read = train(job(), paths, at=vfl.InProcess(shards=2))
    np.testing.assert_allclose(read.coef_, found.coef_, rtol=1e-9)
    predicted, wanted = vfl.predict(found, data), vfl.predict(expected, data | {"telco": by_hand(data["telco"])})
    assert predicted.ids == wanted.ids
    np.testing.assert_allclose(predicted.numbers("probability")["probability"], wanted.probabilities)


def test_any_number_of_rows_stays_within_the_bounds() -> None:
    """Ids may have many rows, and their sum is clamped, not their rows."""
    data = tables()
    more = pd.concat([data["telco"], *[data["telco"][data["telco"].customer == "c007"].assign(amount=1e6)] * 50])
    spec = job(columns={"spent": MADE["spent"]})
    limited = data["telco"].copy()
    limited.loc[limited.customer == "c007", "amount"] = 300.0
    found = train(spec, data | {"telco": more})
    np.testing.assert_allclose(found.coef_, train(spec, data | {"telco": limited}).coef_, rtol=1e-9)


def test_ids_are_grouped_in_normal_form() -> None:
    data = tables()
    written = data["telco"].copy()
    written["customer"] = [own.upper() if k % 2 else f" {own}" for k, own in enumerate(written.customer)]
    spec = job(id=vfl.columns.Id("customer", normalise=("casefold",)))
    found = train(spec, data | {"telco": written})
    np.testing.assert_allclose(found.coef_, train(spec, data).coef_, rtol=1e-9)


def test_unclear_rows_are_errors_at_their_owner() -> None:
    data = tables()
    varying = data["telco"].assign(region=np.arange(len(data["telco"])) % 3)
    with pytest.raises(DataError, match=r"party 'telco'.*column 'region' has several values for one id") as error:
        train(job(), data | {"telco": varying})
    assert "c0" not in str(error.value)
    with pytest.raises(DataError, match="column 'when' holds text that is not a date"):
        train(job(), data | {"telco": data["telco"].assign(when="soon")})
    columns = {"spent": Aggregate("amount", "sum", bounds=(0, 300))}
    with pytest.raises(DataError, match="missing values"):
        train(job(columns=columns), data | {"telco": data["telco"].assign(amount=np.nan)})
    with pytest.raises(DataError, match="an id is missing"):
        train(job(), data | {"telco": data["telco"].assign(customer=None)})
    with pytest.raises(SpecificationError, match="give each party its own source"):
        train(job(), data["bank"])


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Aggregate("amount", "median"), "how"),
        (lambda: Aggregate("amount", "last"), "needs `by`"),
        (lambda: Aggregate("amount", "sum", by="when"), "needs `by`"),
        (lambda: Aggregate("", "sum"), "name of a column"),
        (lambda: Aggregate("amount", "sum", bounds=(3, 1)), "bounds"),
        (lambda: job(id=None), "declare id, too"),
        (
            lambda: vfl.Job(
                partition=vfl.FeaturePartition({"bank": ["twice"]}, label=("bank", "default")),
                id="customer",
                columns={"twice": Aggregate("default", "sum", bounds=(0, 2))},
                privacy=None,
            ),
            "made of the label",
        ),
    ],
)
def test_declarations_that_are_none(made: Any, message: str) -> None:
    with pytest.raises(SpecificationError, match=message):
        made()


def test_job_files_and_policies_know_aggregates(tmp_path: Path) -> None:
    jobfile.write(job(), tmp_path / "job.toml")
    again, _ = jobfile.read(tmp_path / "job.toml")
    assert again == job()
    assert set(job().wanted("telco")) == {"amount", "when", "region", "customer"}


def test_exports_read_the_aggregates_of_a_record() -> None:
    """A pipeline and a query take the aggregates under their own names, since one record no longer has several rows."""
    data = tables()
    found = train(job(), data)
    predicted = vfl.predict(found, data)
    scores = pd.Series(predicted.scores, predicted.ids)
    wide = by_hand(data["telco"]).merge(data["bank"], on="customer").set_index("customer").loc[list(scores.index)]
    renamed = wide.rename(columns={column: own.result for column, own in MADE.items()})
    np.testing.assert_allclose(found.to_sklearn().decision_function(renamed), scores, rtol=1e-9)
    assert '"sum(amount)"' in found.to_sql()


@pytest.mark.parametrize("how", ["sum", "mean", "min", "max"])
def test_infinite_cells_end_no_private_run(how: str) -> None:
    """Cells of opposite infinite values would have no sum, so a missing one would end the run for all to see."""
    data = tables()
    amount = data["telco"].amount.fillna(1.0).to_numpy().copy()
    of_one = np.flatnonzero(data["telco"].customer == data["telco"].customer.iloc[0])
    amount[of_one[0]], amount[of_one[-1]] = np.inf, -np.inf
    private = vfl.Privacy(epsilon=1.0, delta=1e-3, noise=vfl.SeededNoise(1))
    spec = job(columns={"spent": Aggregate("amount", how, bounds=(0, 300))}, privacy=private)
    train(spec, data | {"telco": data["telco"].assign(amount=amount)})


def test_a_bad_cell_is_not_taken_for_a_missing_id_column() -> None:
    data = tables()
    found = train(job(), data)
    with pytest.raises(DataError, match="column 'when' holds text that is not a date"):
        vfl.predict(found, data | {"telco": data["telco"].assign(when="soon")})
