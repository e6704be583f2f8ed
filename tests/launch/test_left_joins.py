"""Left joins: the label party's records all take part, and presence at another party is a feature like others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import vfl
from parties.sources.opening import open_source
from vfl.base.columns import Known
from vfl.columns import Aggregate, Boolean, Categorical, DateParts, Numeric, Pair
from vfl.errors import ConsentRefused, DataError, SpecificationError
from vfl.job import file as jobfile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said

N = 90
OWNED = {"bank": ["income"], "telco": ["calls", "plan", "since"], "lab": ["dose"]}
COLUMNS = {
    "income": Numeric((-1, 1)),
    "calls": Numeric((0, 50), fill=5),
    "plan": Categorical(("flat", "day"), missing="indicator"),
    "since": DateParts(("month",), fill="2020-01-01"),
    "dose": Numeric((-1, 1), missing="indicator"),
}
KNOWN = ("known at telco", "known at lab")


def people(n: int = N) -> pd.DataFrame:
    """Return all columns, ids and labels."""
    rng = np.random.default_rng(4)
    found = {
        "customer": [f"c{k:03}" for k in range(n)],
        "income": rng.uniform(-1, 1, n),
        "calls": rng.uniform(0, 50, n),
        "plan": rng.choice(["flat", "day"], n),
        "since": [f"20{k:02}-{m:02}-01" for k, m in rng.integers(1, 12, (n, 2))],
        "dose": rng.uniform(-1, 1, n),
    }
    frame = pd.DataFrame(found)
    v = frame["income"] + frame["calls"] / 25 - frame["dose"] + rng.logistic(scale=0.3, size=n) - 1
    return frame.assign(default=(v > 0).astype(int))


def frames(n: int = N, share: float = 0.6) -> dict[str, pd.DataFrame]:
    """Return the parties' tables. Telco and lab lack records of the bank, and have others that it lacks."""
    whole = people(n)
    data = {"bank": whole[["customer", *OWNED["bank"], "default"]].sample(frac=1.0, random_state=0)}
    for seed, party in enumerate(("telco", "lab"), 1):
        own = whole[["customer", *OWNED[party]]]
        more = own[:3].assign(customer=["x1", "x2", "x3"])
        data[party] = pd.concat([more, own.sample(frac=share, random_state=seed)])
    return data


def job(parties: int = 3, **options: Any) -> vfl.Job:
    owned = dict(list(OWNED.items())[:parties])
    given: dict[str, Any] = {
        "partition": vfl.FeaturePartition(owned, label=("bank", "default")),
        "columns": {column: COLUMNS[column] for own in owned.values() for column in own},
        "id": vfl.columns.Id("customer", join="left"),
        "penalty": vfl.L2(1e-2),
        "privacy": None,
        "solver": vfl.SkGD(passes=3),
    }
    return vfl.Job(**given | options)


def train(spec: vfl.Job, data: Any, **options: Any) -> vfl.Result:
    return vfl.train(spec, data, **{"at": vfl.InProcess(num_cpus=1)} | options)


def by_hand(data: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the left join of pandas, with a column of truth values per party."""
    whole = data["bank"]
    for party in ("telco", "lab"):
        whole = whole.merge(data[party].assign(**{f"known at {party}": True}), on="customer", how="left")
    return whole


def plain(spec: vfl.Job) -> vfl.Job:
    """Return the job on one table in which presence is a column like others."""
    columns = {**COLUMNS, **dict.fromkeys(KNOWN, Boolean(fill=False))}
    return replace(spec, id=None, partition=spec.partition, columns=columns)


@pytest.fixture(scope="module")
def data() -> dict[str, pd.DataFrame]:
    return frames()


@pytest.fixture(scope="module")
def result(data: dict[str, pd.DataFrame]) -> vfl.Result:
    return train(job(), data)


def test_each_other_party_has_a_column_of_the_records_that_it_has() -> None:
    spec = job()
    assert spec.partition.columns("telco") == (*OWNED["telco"], KNOWN[0])
    assert spec.partition.columns("lab") == (*OWNED["lab"], KNOWN[1])
    assert spec.partition.columns("bank") == ("income",)
    assert spec.schema[KNOWN[0]].limits == (0.0, 1.0)
    assert KNOWN[0] in spec.wanted("telco")
    assert KNOWN[0] not in spec.made_of("telco")
    assert replace(spec, name="other").partition == spec.partition
    assert replace(spec, id="customer") == job(id="customer")
    assert job(id="customer").partition.columns("telco") == tuple(OWNED["telco"])
    assert spec.digest != job(id="customer").digest


def test_job_files_keep_the_join(tmp_path: Path) -> None:
    jobfile.write(job(), tmp_path / "job.toml")
    again, _ = jobfile.read(tmp_path / "job.toml")
    assert again == job()
    text = (tmp_path / "job.toml").read_text()
    (tmp_path / "job.toml").write_text(text.replace('kind = "known"\nfill = false', 'kind = "known"'))
    assert jobfile.read(tmp_path / "job.toml")[0] == job()
    (tmp_path / "job.toml").write_text(
        text.replace('kind = "known"\nfill = false', 'kind = "numeric"\nbounds = [0, 9]')
    )
    with pytest.raises(SpecificationError, match="adds a column 'known at"):  # others may not declare its limits
        jobfile.read(tmp_path / "job.toml")


def test_blocks_have_presence_as_one_more_block() -> None:
    partition = vfl.FeaturePartition(
        {"bank": ["income"], "lab": ["dose"]}, ("bank", "default"), blocks={"bank": [["income"]], "lab": [["dose"]]}
    )
    columns = {name: COLUMNS[name] for name in ("income", "dose")}
    assert job(partition=partition, columns=columns).partition.canonical_columns("lab") == ("dose", KNOWN[1])


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"calls": Numeric((0, 50))}, "calls"),
        ({"plan": Categorical(("flat", "day"))}, "plan"),
        ({"since": DateParts(("month",))}, "since"),
        ({"dose": Boolean()}, "dose"),
        ({"dose": Pair("dose", "weight"), "weight": Numeric((0, 1))}, "dose"),
    ],
)
def test_a_column_without_a_value_for_absent_records_is_refused(columns: dict[str, Any], named: str) -> None:
    if "weight" in columns:
        columns |= {"dose": Numeric((-1, 1), fill=0), "both": Pair("dose", "weight")}
        named = "weight"
        partition = vfl.FeaturePartition({"bank": ["income"], "lab": ["dose", "both"]}, ("bank", "default"))
        given: dict[str, Any] = {"partition": partition, "columns": {"income": COLUMNS["income"], **columns}}
    else:
        given = {"columns": {**COLUMNS, **columns}}
    with pytest.raises(SpecificationError, match=rf"'{named}'.*may lack a record.*fill"):
        job(**given)
    job(**given, id="customer")  # no error in an inner join
    job(columns={**COLUMNS, "income": Numeric((-1, 1))})  # nor at the label party


def test_aggregates_of_absent_records_are_filled(data: dict[str, pd.DataFrame]) -> None:
    """The lab has several rows per id; its aggregate is the fill for a record without any."""
    lab = pd.concat([data["lab"], data["lab"].assign(dose=0.5)])
    spec = job(columns={**COLUMNS, "dose": Aggregate("dose", "mean", bounds=(-1, 1), fill=0.25)})
    found = vfl.predict(train(spec, {**data, "lab": lab}), {**data, "lab": lab})
    means = data["lab"].assign(dose=(data["lab"]["dose"] + 0.5) / 2)
    plain_one = job(columns={**COLUMNS, "dose": Numeric((-1, 1), fill=0.25)})
    same = vfl.predict(train(plain_one, {**data, "lab": means}), {**data, "lab": means})
    assert found.ids == same.ids
    np.testing.assert_allclose(found.scores, same.scores, atol=0.05)  # alignments order records at random


def test_groups_of_other_parties_say_where_absent_records_belong() -> None:
    partition = vfl.FeaturePartition({"bank": ["income"], "lab": []}, ("bank", "default"), groups={"lab": ["sex"]})
    given = {"partition": partition, "evaluation": vfl.Evaluation(holdout=0.3, fairness=vfl.Fairness(group="sex"))}
    with pytest.raises(SpecificationError, match=r"'sex'.*may lack a record"):
        job(**given, columns={"income": COLUMNS["income"], "sex": Categorical(("f", "m"))})
    spec = job(**given, columns={"income": COLUMNS["income"], "sex": Categorical(("f", "m"), missing="indicator")})
    data = frames()
    sex = data["lab"][["customer"]].assign(sex=[("f", "m")[k % 2] for k in range(len(data["lab"]))])
    found = train(spec, {"bank": data["bank"], "lab": sex}).findings["fairness"]
    assert all(np.isfinite(one.value) for one in found.measures.values())


def test_a_column_of_that_name_is_refused() -> None:
    partition = vfl.FeaturePartition({"bank": [KNOWN[1]], "lab": ["dose"]}, label=("bank", "default"))
    with pytest.raises(SpecificationError, match="adds a column 'known at lab'"):
        job(partition=partition, columns={KNOWN[1]: Numeric((0, 1)), "dose": COLUMNS["dose"]})


def test_the_model_is_that_of_the_table_joined_by_hand(data: dict[str, pd.DataFrame]) -> None:
    """Absence has every pattern: known to both other parties, to either, to none."""
    whole = by_hand(data)
    assert len(whole.groupby([whole[one].isna() for one in KNOWN])) == 4
    spec = job(solver=vfl.solvers.CD(details=vfl.solvers.Details(tol=1e-12)))
    result = train(spec, data)
    other = train(plain(spec), whole.drop(columns="customer"))
    assert result.certificate.n_records == N
    assert result.coordinates == other.coordinates
    np.testing.assert_allclose(result.w, other.w, rtol=1e-5, atol=1e-7)


def test_predictions_and_measures_take_absent_records_alike_everywhere(
    result: vfl.Result, data: dict[str, pd.DataFrame], tmp_path: Path
) -> None:
    found = vfl.predict(result, data)
    assert list(found.ids or ()) == list(data["bank"]["customer"])
    assert found.unmatched == {}
    whole = by_hand(data)
    np.testing.assert_allclose(result.to_sklearn().decision_function(whole), found.scores, rtol=1e-9)
    for shards in (2, 5):
        assert vfl.predict(result, data, at=vfl.InProcess(shards=shards)).scores.tobytes() == found.scores.tobytes()
    measured = vfl.evaluate(result, data)
    assert measured.n_records == N
    assert "with those that another party lacks" in measured.note
    wanted = np.mean((found.scores > 0) == (whole["default"] == 1))
    assert measured.measures["accuracy"].value == pytest.approx(wanted, abs=1e-12)
    assert np.isfinite(result.infer(data).summary().to_frame()["standard_error"]).all()


def test_exports_read_presence_from_a_column(result: vfl.Result, data: dict[str, pd.DataFrame]) -> None:
    duckdb = pytest.importorskip("duckdb")
    whole = by_hand(data)
    duckdb.register("records", whole)
    assert f'"{KNOWN[0]}"' in result.to_sql()
    margins = duckdb.sql(result.to_sql()).df().set_index("customer").loc[whole["customer"], "score"]
    np.testing.assert_allclose(margins, vfl.predict(result, data).scores, rtol=1e-9)


def test_predictions_on_ray_and_from_parts_are_the_same(
    local_ray: Any, result: vfl.Result, data: dict[str, pd.DataFrame], tmp_path: Path
) -> None:
    paths = {party: str(tmp_path / f"{party}.parquet") for party in data}
    for party, frame in data.items():
        frame.to_parquet(paths[party])
    found = vfl.predict(result.save_parts(tmp_path / "parts"), paths, at=vfl.Ray(shards=2, num_cpus=1))
    here = vfl.predict(result, data)
    assert (found.ids, found.scores.tobytes()) == (here.ids, here.scores.tobytes())
    measured = vfl.evaluate(result, paths, at=vfl.Ray(num_cpus=1))
    assert measured.measures["loss"].value == vfl.evaluate(result, data).measures["loss"].value


def test_the_command_tells_no_numbers_of_rows(
    result: vfl.Result, data: dict[str, pd.DataFrame], tmp_path: Path, call: Callable[..., Said]
) -> None:
    given = [f"--data={party}={tmp_path / party}.csv" for party in data]
    for party, frame in data.items():
        frame.to_csv(tmp_path / f"{party}.csv", index=False)
    result.save(tmp_path / "run")
    said = call("predict", str(tmp_path / "run"), *given)
    assert (said.code, said.err) == (0, f"matched {N} records\n")


def test_one_table_of_all_parties_is_refused(result: vfl.Result, data: dict[str, pd.DataFrame]) -> None:
    for use in (lambda table: train(job(), table), lambda table: vfl.predict(result, table)):
        with pytest.raises(SpecificationError, match="give each party its own source"):
            use(by_hand(data))


def test_a_party_without_any_record_trains_and_a_sparse_matrix_is_refused(data: dict[str, pd.DataFrame]) -> None:
    none = {**data, "lab": data["lab"][:3]}
    found = train(job(), none)
    assert found.certificate.n_records == N
    matrix = scipy.sparse.csr_array(data["lab"][["dose"]].to_numpy())
    partition = vfl.FeaturePartition(OWNED, ("bank", "default"), sparse=["lab"])
    spec = job(partition=partition, columns={**COLUMNS, "dose": Numeric((-1, 1), fill=0)})
    with pytest.raises(DataError, match=r"'lab'.*as a left join needs: give a dense table"):
        train(spec, {**data, "lab": (data["lab"]["customer"].to_numpy(), matrix)})
    assert train(spec, data).certificate.n_records == N


def test_an_owner_agrees_to_presence_by_name(data: dict[str, pd.DataFrame], tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    spec = job(privacy=vfl.Privacy(epsilon=1.0, delta=1e-6))

    def policy(columns: list[str]) -> dict[str, Any]:
        path.write_text(
            f"format = 1\njobs = ['{spec.digest}']\ncolumns = {columns}\n[total]\nepsilon = 9.0\ndelta = 1e-3\n"
        )
        return {party: vfl.Source(frame, str(path) if party == "lab" else None) for party, frame in data.items()}

    with pytest.raises(ConsentRefused, match=KNOWN[1]):
        train(spec, policy(["customer", "dose"]))
    assert train(spec, policy(["customer", "dose", KNOWN[1]])).certificate.n_records == N


def test_plan_and_certificate_say_that_absence_is_part_of_a_record(data: dict[str, pd.DataFrame]) -> None:
    spec = job(privacy=vfl.Privacy(epsilon=1.0, delta=1e-6))
    made = train(spec, data).certificate
    assert "absence at a party" in made.geometry
    assert "absence" not in train(job(privacy=spec.privacy, id="customer"), data).certificate.geometry
    assert "who is missing" in made.who_sees_what["party"]
    assert "than the 90 that bank has" in str(vfl.plan(spec, n_records=N))
    assert "than the 90 that all have" in str(vfl.plan(job(id="customer"), n_records=N))


@pytest.mark.slow
def test_an_audit_makes_its_records_present_and_absent() -> None:
    partition = vfl.FeaturePartition({"bank": ["income"], "lab": ["dose"]}, ("bank", "default"))
    columns = {name: COLUMNS[name] for name in ("income", "dose")}
    spec = job(partition=partition, columns=columns, privacy=vfl.Privacy(epsilon=1.0, delta=1e-4))
    assert vfl.audit(spec, n_records=50, runs=20).passed


def test_shares_and_single_parties_take_left_joins_too(data: dict[str, pd.DataFrame]) -> None:
    spec = job(privacy=vfl.Privacy(epsilon=4.0, delta=1e-6), trust="secure")
    assert train(spec, data).certificate.n_records == N
    alone = {"bank": data["bank"]}
    partition = vfl.FeaturePartition({"bank": ["income"]}, ("bank", "default"))
    assert train(job(partition=partition, columns={"income": COLUMNS["income"]}), alone).feature_names == ("income",)


def test_presence_is_no_column_of_the_data() -> None:
    with pytest.raises(DataError, match="no column"):
        open_source({"dose": [1.0]}, [KNOWN[1]], party="lab")
    assert Known().features(KNOWN[1]) == (KNOWN[1],)


def test_a_part_knows_the_margin_of_an_absent_record(result: vfl.Result, data: dict[str, pd.DataFrame]) -> None:
    """Text, dates and numbers alike; the service answers with it where a party lacks an id, or is away."""
    found = vfl.predict(result, data)
    absent = by_hand(data)[KNOWN[0]].isna().to_numpy()
    telco = pd.DataFrame({column: [None] for column in OWNED["telco"]}).astype({"calls": float})
    present = result.part("telco").scores(telco)
    assert result.part("telco").absent() != present  # the same cells of a record that the telco has
    rest = result.part("bank").scores(data["bank"][["customer", "income"]])
    lab = pd.Series(result.part("lab").scores(data["lab"]), data["lab"]["customer"])
    others = rest + lab.reindex(data["bank"]["customer"]).fillna(float(result.part("lab").absent()[0])).to_numpy()
    expected = others + result.intercept_on_scaled + result.part("telco").absent()
    np.testing.assert_allclose(found.scores[absent], expected[absent], rtol=1e-12)


def test_a_party_without_matches_is_told_so_in_its_own_log(caplog: pytest.LogCaptureFixture) -> None:
    """A wrong normalisation looks like absence, which is no error: the owner alone is told."""
    from tests.neighbours.test_left_joins import job as spec
    from tests.neighbours.test_left_joins import tables

    data = tables(present=True)
    with caplog.at_level("WARNING", "vfl.parties"):
        vfl.align(spec(), data, at=vfl.InProcess(num_cpus=1))
        assert "none of its ids" not in caplog.text
        data["telco"]["id"] = np.char.upper(data["telco"]["id"])
        vfl.align(spec(), data, at=vfl.InProcess(num_cpus=1))
    assert "party 'telco': party 'bank' has none of its ids" in caplog.text
