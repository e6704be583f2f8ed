"""Predictions over parties, from split models and from plain scikit-learn pipelines all agree with the result."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import weakref
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

import vfl
from parties import loading
from parties.loading import load_range
from parties.prediction import ModelPart, NewRows, permitted
from parties.services.aligning import AlignmentService
from parties.services.predicting import PredictionService
from vfl.base.columns import Boolean, Categorical, Numeric
from vfl.base.losses import Logistic, loss_of
from vfl.crypto.alignment import IndexRules
from vfl.crypto.psi import new_salt
from vfl.errors import ConsentRefused, DataError, FederationError, OutputError, SpecificationError, VflError
from vfl.measures import Findings
from vfl.measures.estimates import ALL, score_of
from vfl.network.messages import (
    AddUp,
    Applied,
    Apply,
    BeginAligning,
    Conclude,
    Measure,
    Multiply,
    ReadIds,
    TakeLinearPredictors,
)
from vfl.network.shards import LocalGroup
from vfl.queries.statistics import Outcomes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vfl.launch.run.result import Result

N = 60
COLUMNS = {
    "age": Numeric((18, 90), missing="indicator"),
    "job": Categorical(("clerk", "smith"), missing="indicator"),
    "grade": Categorical((3, 1, 2), unknown="zero", fill=2),
    "city": Categorical(("Bern", "Basel"), fill="Bern"),
    "member": Boolean(fill=False),
    "calls": Numeric((0, 50), fill=5),
}
OWNED = {"bank": ["age", "job", "member"], "telco": ["grade", "city", "calls"]}


def table() -> pd.DataFrame:
    """Return records with missing cells, values beyond bounds and an undeclared category."""
    rng = np.random.default_rng(7)
    frame = pd.DataFrame(
        {
            "customer": [f"c,{k}" for k in range(N)],
            "age": rng.uniform(0, 120, N),
            "job": rng.choice(["clerk", "smith"], N).astype(object),
            "member": rng.integers(0, 2, N).astype(bool),
            "grade": rng.integers(1, 5, N).astype(float),
            "city": rng.choice(["Bern", "Basel"], N).astype(object),
            "calls": rng.uniform(-5, 70, N),
            "default": rng.integers(0, 2, N),
        }
    )
    for column, rows in {"age": [1, 5], "job": [2, 5], "grade": [3], "city": [4], "calls": [6]}.items():
        frame.loc[rows, column] = np.nan
    return frame


def split(frame: pd.DataFrame, *, shuffled: bool = True) -> dict[str, pd.DataFrame]:
    """Return each party's part, in an order of its own and without a few records."""
    own = {party: frame[["customer", *columns]] for party, columns in OWNED.items()}
    return {p: part.sample(frac=0.9, random_state=k) if shuffled else part for k, (p, part) in enumerate(own.items())}


def labelled() -> dict[str, pd.DataFrame]:
    """Return each party's part, as `split` does, with the labels of the label party."""
    data = split(table())
    return data | {"bank": data["bank"].assign(default=table()["default"])}


def labels() -> pd.DataFrame:
    return table()[["customer", *OWNED["bank"], "default"]]


def allowing(folder: Path, *, records: int, labels: str = "false") -> Path:
    """Write the bank's policy, which allows any model and so many records a day."""
    path = folder / "bank.toml"
    total = "[total]\nepsilon = 1.0\ndelta = 1e-6\n"
    path.write_text(f'format = 1\n{total}[prediction]\nmodels = ["*"]\nrecords = {records}\nlabels = {labels}\n')
    return path


def trained(loss: str = "logistic", **options: Any) -> Result:
    partition = vfl.FeaturePartition(OWNED, ("bank", "default"))
    given = {"columns": COLUMNS, "id": "customer", "penalty": vfl.L2(0.01), "bounds": {"default": (0, 3)}} | options
    if vfl.Job(partition=partition, privacy=None, loss=loss, **given).classification:
        given.pop("bounds")
    job = vfl.Job(partition=partition, privacy=None, loss=loss, solver=vfl.SkGD(passes=3), **given)
    data = split(table(), shuffled=False)
    data["bank"] = data["bank"].assign(default=table()["default"])
    return vfl.train(job, data, at=vfl.InProcess(num_cpus=1))


@pytest.fixture(scope="module")
def result() -> Result:
    return trained()


@pytest.fixture(scope="module")
def expected(result: Result) -> pd.Series:
    """Return the margins of the common records, in the order of the label party's rows."""
    data, whole = split(table()), pd.Series(result.decision_function(table()), index=table()["customer"])
    return whole[[c for c in data["bank"].customer if c in set(data["telco"].customer)]]


def test_common_records_are_predicted_with_their_ids(result: Result, expected: pd.Series) -> None:
    found = vfl.predict(result, split(table()))
    assert (found.id_column, list(found.ids or ())) == ("customer", list(expected.index))
    assert found.scores.tobytes() == expected.to_numpy().tobytes()
    assert found.labels.tolist() == (expected.to_numpy() > 0).astype(int).tolist()
    one = vfl.predict(result, table())
    assert (list(one.ids or ()), one.scores.tobytes()) == (
        table()["customer"].tolist(),
        result.decision_function(table()).tobytes(),
    )
    without = {party: part.drop(columns="customer") for party, part in split(table(), shuffled=False).items()}
    plain = vfl.predict(result, without)
    assert plain.ids is None
    assert plain.scores.tobytes() == one.scores.tobytes()


def test_predictions_are_a_frame_with_probabilities_and_hide_ids(result: Result, expected: pd.Series) -> None:
    found = vfl.predict(result, split(table()))
    frame = found.to_pandas()
    assert list(frame.columns) == ["label", "probability", "score"]
    with pytest.raises(AttributeError, match=r"now Predictions\.scores"):
        _ = found.margins
    assert (frame.index.name, list(frame.index)) == ("customer", list(expected.index))
    assert np.allclose(frame["probability"], 1 / (1 + np.exp(-expected.to_numpy())))
    both = result.predict_proba(table())
    assert both.shape == (len(table()), 2)
    assert np.allclose(both.sum(axis=1), 1.0)
    assert np.array_equal(both[:, 1] > 0.5, result.decision_function(table()) > 0)
    left = {party: len(part) - len(expected) for party, part in split(table()).items()}
    assert found.unmatched == left
    rows = "".join(f", {n} ids of {party} unmatched" for party, n in left.items())
    assert repr(found).startswith(f"Predictions for {len(expected)} records, joined by 'customer'{rows} ")
    assert vfl.predict(result, table()).unmatched == {}


@pytest.mark.parametrize("shards", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_each_party_predicts_on_ray_from_its_own_part(
    local_ray: Any, result: Result, expected: pd.Series, tmp_path: Path, shards: int
) -> None:
    data: dict[str, Any] = {}
    for party, part in split(table()).items():
        data[party] = str(tmp_path / f"{party}.parquet")
        part.to_parquet(data[party])
    parts = result.save_parts(tmp_path / "parts")
    found = vfl.predict(parts, data, at=vfl.Ray(shards=shards, pin="always", num_cpus=1))
    assert list(found.ids or ()) == list(expected.index)
    assert found.unmatched == {party: len(part) - len(expected) for party, part in split(table()).items()}
    assert found.scores.tobytes() == expected.to_numpy().tobytes()


@pytest.mark.slow
def test_an_error_at_its_owner_passes_through_ray_unchanged(local_ray: Any, result: Result) -> None:
    """A refusal of a policy does so too, in tests/parties/test_consent.py."""
    data = split(table())
    data["telco"] = data["telco"].assign(calls="many")
    with pytest.raises(DataError, match=r"'telco'.*'calls' holds text"):
        vfl.predict(result, data, at=vfl.Ray(num_cpus=1))


@pytest.mark.parametrize("shards", [2, 7])
def test_shards_give_the_same_predictions(result: Result, expected: pd.Series, tmp_path: Path, shards: int) -> None:
    here = vfl.InProcess(shards=shards)
    data = split(table())
    data["telco"].to_parquet(tmp_path / "telco.parquet", row_group_size=11)
    found = vfl.predict(result, {**data, "telco": tmp_path / "telco.parquet"}, at=here)
    assert (found.id_column, list(found.ids or ())) == ("customer", list(expected.index))
    assert found.scores.tobytes() == expected.to_numpy().tobytes()
    assert found.unmatched == {party: len(part) - len(expected) for party, part in data.items()}
    whole = result.decision_function(table())
    assert vfl.predict(result, table(), at=here).scores.tobytes() == whole.tobytes()


def test_a_party_keeps_the_columns_of_one_shard(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref[Any]] = []

    def read(*arguments: Any) -> Any:
        assert not any(columns() is not None for columns in held)
        columns, labels = load_range(*arguments)
        assert columns.n_records == N // 4
        held.append(weakref.ref(columns.array))
        return columns, labels

    monkeypatch.setattr(loading, "load_range", read)
    found = result.part("bank").scores(table(), shards=4)
    monkeypatch.undo()
    assert len(held) == 4
    assert found.tobytes() == result.part("bank").scores(table()).tobytes()


def test_shards_measure_the_same(result: Result) -> None:
    for data in (labelled(), table()):
        whole = vfl.evaluate(result, data)
        assert vfl.evaluate(result, data, at=vfl.InProcess(shards=7)) == whole
    with pytest.raises(SpecificationError, match="at must be"):
        vfl.evaluate(result, labelled(), at=2)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 2])
def test_ray_measures_the_same(local_ray: Any, result: Result, shards: int) -> None:
    there = vfl.evaluate(result, labelled(), at=vfl.Ray(shards=shards, num_cpus=1))
    assert there == vfl.evaluate(result, labelled())


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 2])
def test_ray_counts_records_once(local_ray: Any, result: Result, tmp_path: Path, shards: int) -> None:
    plain: dict[str, Any] = {}
    for party, part in split(table(), shuffled=False).items():
        plain[party] = str(tmp_path / f"{party}.parquet")
        part.drop(columns="customer").to_parquet(plain[party], row_group_size=11)
    plain["bank"] = vfl.Source(plain["bank"], allowing(tmp_path, records=N + 1))
    found = vfl.predict(result, plain, at=vfl.Ray(shards=shards))
    assert found.ids is None
    assert found.scores.tobytes() == result.decision_function(table()).tobytes()
    with pytest.raises(ConsentRefused, match="left today of the 61"):
        vfl.predict(result, plain, at=vfl.Ray(shards=shards))


def alone(
    result: Result, policy: str, *, shards: int = 1, measured: bool = False, source: Any = None, **more: Any
) -> PredictionService:
    """Return the work of the aggregating party. more : options of its alignment."""
    part, source = result.part("bank"), labels() if source is None else source
    task = part.job.for_party("bank").features
    return PredictionService(
        part,
        source,
        parties=part.job.partition.parties,
        permission=permitted(part, source, policy, labels=measured),
        measured=measured,
        aligning=AlignmentService(task, source, IndexRules(), **{"parties": (), **more}),
        rows=LocalGroup([NewRows(part, labelled=measured) for _ in range(shards)]),
    )


@pytest.mark.parametrize("shards", [1, 4])
def test_a_party_counts_all_shards_before_margins_leave(result: Result, tmp_path: Path, shards: int) -> None:
    """The records of all shards are counted once; the shards' sums are those of all records."""
    made, counted = [], Outcomes(Logistic(), 1.0, (1, 1))
    for allowed in (N, N - 1):
        policy = str(allowing(tmp_path, records=allowed, labels="true"))
        for measured in (False, True):
            (tmp_path / "bank.predictions").unlink(missing_ok=True)
            own = alone(result, policy, shards=shards, measured=measured)
            with pytest.raises(ConsentRefused, match="left today") if allowed < N else nullcontext():
                assert own.answer(Apply(), {}) == (Applied(N), {})
                own.answer(TakeLinearPredictors("telco"), {"margins": np.zeros(N)})
            made.append(own)
    for refused in made[2:]:
        with pytest.raises(FederationError, match=r"asked to (add|measure)"):
            refused.answer(AddUp() if refused is made[2] else Measure(counted), {})
    whole = result.part("bank").scores(labels())
    _, added = made[0].answer(AddUp(), {})
    assert added["ids"] == table()["customer"].tolist()
    assert added["margins"].tobytes() == (whole + result.part("bank").intercept).tobytes()
    _, sums = made[1].answer(Measure(counted), {})
    expected = counted(added["margins"], 2.0 * table()["default"].to_numpy() - 1.0)
    assert (sums["sum"] / counted.grid).tolist() == expected.tolist()


def test_aligned_records_are_counted_before_a_cell_of_them_is_read(result: Result, tmp_path: Path) -> None:
    """Other parties choose the common records by their ids, so an error about their cells would tell them of one record."""
    refused = labels()
    refused.loc[0, "job"] = "pilot"
    for source, problem in ((refused, "a category that is not declared"), (labels(), "left today")):
        policy = str(allowing(tmp_path, records=N))
        own = alone(result, policy, source=source, parties=("bank",), salt=new_salt())
        for message in (ReadIds(), BeginAligning(None, {"bank": N})):
            own.answer(message, {})
        assert len(list(own.stream(Multiply("bank", "bank"), {}))) <= N
        own.answer(Conclude(), {"positions": np.arange(N)})
        with pytest.raises(VflError, match=problem):
            own.answer(Apply(), {})


def test_unaligned_rows_must_have_equal_numbers(result: Result) -> None:
    without = {party: part.drop(columns="customer") for party, part in split(table()).items()}
    with pytest.raises(DataError, match=r"'telco'.*different number of records"):
        vfl.predict(result, {**without, "telco": without["telco"][:-1]})


def test_a_part_holds_its_own_coefficients_and_gives_the_same_answers(
    result: Result, expected: pd.Series, tmp_path: Path
) -> None:
    parts = result.save_parts(tmp_path / "parts")
    whole = json.loads(parts["telco"].read_text(encoding="utf-8"))
    assert list(whole["w"]) == ["grade=3", "grade=1", "grade=2", "city=Bern", "city=Basel", "calls"]
    assert vfl.predict(parts, split(table())).scores.tobytes() == expected.to_numpy().tobytes()
    read = ModelPart.read(parts["telco"])
    source = split(table())["telco"]
    assert read.scores(source).tobytes() == result.part("telco").scores(source).tobytes()


def _other(result: Result) -> Result:
    return replace(result, w=result.w + 1.0)


WRONG: dict[str, tuple[dict[str, str], type[VflError], str]] = {
    "one is lacking": ({"bank": "bank"}, SpecificationError, "the same parties as its parts"),
    "swapped": (
        {"bank": "telco", "telco": "bank"},
        OutputError,
        "party 'bank' was given the model part of 'telco'",
    ),
    "of another model": (
        {"bank": "bank", "telco": "other"},
        OutputError,
        "the parts of parties 'bank' and 'telco' belong to different models: export both again",
    ),
    "damaged": ({"bank": "bank", "telco": "damaged"}, OutputError, "damaged' is damaged: 'model'"),
    "no part": ({"bank": "bank", "telco": "none"}, OutputError, "is not a part of a model of format 1"),
    "no number": ({"bank": "bank", "telco": "true"}, OutputError, "is not a part of a model of format 1"),
    "absent": ({"bank": "bank", "telco": "absent"}, OutputError, "cannot read the part of a model"),
}


@pytest.mark.parametrize("case", WRONG)
def test_parts_of_different_models_are_refused(case: str, result: Result, tmp_path: Path) -> None:
    named, kind, message = WRONG[case]
    files = result.save_parts(tmp_path / "parts")
    files["other"] = _other(result).save_parts(tmp_path / "other")["telco"]
    whole = files["telco"].read_text("utf-8")
    texts = {
        "damaged": whole.replace('"model"', '"no"'),
        "none": "{}",
        "true": whole.replace('"format": 1', '"format": true', 1),
    }
    for name, text in texts.items():
        files[name] = tmp_path / name
        files[name].write_text(text, encoding="utf-8")
    files["absent"] = tmp_path / "absent"
    with pytest.raises(kind, match=message):
        vfl.predict({party: files[name] for party, name in named.items()}, split(table()))


def test_a_missing_party_is_named(result: Result, tmp_path: Path) -> None:
    parts = result.save_parts(tmp_path / "parts")
    with pytest.raises(SpecificationError, match=r"'telco'.*no part of it"):
        vfl.predict({"bank": parts["bank"]}, {"bank": split(table())["bank"]})


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        ("logistic", {}),
        ("logistic", {"classes": (1, 0)}),
        ("smoothed_hinge", {"scaling": "bounds"}),
        ("squared", {"intercept": False}),
        ("poisson", {}),
        ("gamma", {}),
        ("tweedie", {}),
        ("huber", {}),
    ],
)
def test_a_plain_pipeline_agrees(loss: str, options: dict[str, Any]) -> None:
    result = trained(loss, **options)
    plain = pickle.loads(pickle.dumps(result.to_sklearn()))  # noqa: S301 - our own
    frame = table().drop(columns="default").sample(frac=1.0, random_state=1)
    margins = result.decision_function(frame)
    if result.job.classification:
        np.testing.assert_allclose(plain.decision_function(frame), margins, rtol=1e-9, atol=1e-12)
        assert plain.predict(frame).tolist() == result.predict(frame).tolist()
    else:
        np.testing.assert_allclose(plain.predict(frame), result.predict(frame), rtol=1e-9, atol=1e-12)
        result.w[:] *= 1e3  # means beyond the reach of the loss
        np.testing.assert_allclose(result.to_sklearn().predict(frame), result.predict(frame), rtol=1e-9)
    assert np.abs(margins).max() > 0.01


def test_a_plain_pipeline_refuses_the_inputs_that_the_result_refuses(result: Result) -> None:
    frame = table()
    frame.loc[0, "job"] = "priest"
    with pytest.raises(DataError, match="not declared"):
        result.decision_function(frame)
    with pytest.raises(ValueError, match="NaN"):
        result.to_sklearn().predict(frame)


def test_a_plain_pipeline_needs_no_vfl(result: Result, tmp_path: Path) -> None:
    path, frame = tmp_path / "plain.pickle", tmp_path / "frame.pickle"
    path.write_bytes(pickle.dumps(result.to_sklearn()))
    table().to_pickle(frame)
    code = (
        "import pickle, sys; sys.modules['vfl'] = None; import pandas\n"
        f"model = pickle.load(open({str(path)!r}, 'rb'))\n"
        f"print(model.predict_proba(pandas.read_pickle({str(frame)!r}))[:, 1].sum())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    probabilities = 1 / (1 + np.exp(-result.decision_function(table())))
    assert float(done.stdout) == pytest.approx(probabilities.sum())


def odd_cells() -> pd.DataFrame:
    """Return a frame as pandas reads it from CSV: codes as integers, gaps as floats, truth values, and blanks."""
    text = "region,code,level,flag,yes,x,y\n" + "".join(
        f"{1 + k % 3},{'' if k % 7 == 0 else k % 2},{' low' if k % 2 else 'high '},{'TRUE' if k % 3 else 'FALSE'},"
        f"{'true' if k % 4 else 'false'},{'' if k % 11 == 0 else k % 5},{(k * k) % 2}\n"
        for k in range(60)
    )
    return pd.read_csv(io.StringIO(text))


FORMS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "as read": lambda frame: frame,
    "best dtypes": lambda frame: frame.convert_dtypes(),
    "text": lambda frame: frame.astype(dict.fromkeys(("region", "level", "yes"), str)),
    "objects": lambda frame: frame.astype(object).where(frame.notna(), None),
    "objects with NA": lambda frame: frame.astype(object).where(frame.notna(), pd.NA),
    "categories": lambda frame: frame.astype(dict.fromkeys(("region", "code", "level"), "category")),
    "small integers": lambda frame: frame.astype({"region": "int8", "x": "float32"}),
    "floats": lambda frame: frame.astype({"region": float}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spelt", ["text", "numbers"])
def test_a_plain_pipeline_takes_the_frames_that_the_result_takes(form: str, spelt: str) -> None:
    names = ["region", "code", "level", "flag", "yes", "x"]
    codes: Any = (("1", "2", "3"), ("0", "1")) if spelt == "text" else ((1, 2, 3), (0, 1))
    spec = vfl.Job(
        partition=vfl.FeaturePartition({"a": names[:3], "b": names[3:]}, label=("a", "y")),
        bounds={"x": (0.0, 4.0)},
        columns={
            "x": vfl.Numeric(fill=1.0),
            "region": vfl.Categorical(codes[0]),
            "code": vfl.Categorical(codes[1], missing="indicator"),
            "level": vfl.Categorical(("low", "high")),
            "flag": vfl.Categorical(("true", "false")),
            "yes": vfl.Boolean(),
        },
        privacy=None,
        solver=vfl.SkGD(passes=4),
    )
    frame = odd_cells()
    result = vfl.train(spec, frame, at="inprocess")
    given = FORMS[form](frame)[names]
    expected = result.predict_proba(given)
    assert np.ptp(expected[:, 1]) > 0.0
    np.testing.assert_allclose(result.to_sklearn().predict_proba(given), expected, atol=1e-9)


@pytest.mark.parametrize(("loss", "threshold"), [("logistic", 0.3), ("smoothed_hinge", -0.2)])
def test_a_threshold_decides_the_class_and_travels_with_every_part(loss: str, threshold: float, tmp_path: Path) -> None:
    own = trained(loss)
    found = Findings({}, 9, "", thresholds={ALL: score_of(threshold, loss_of(loss))})
    chosen = replace(own, findings={"held out": found})
    assert (own.threshold, chosen.threshold) == (0.5 if loss == "logistic" else 0.0, pytest.approx(threshold))
    v = own.decision_function(table())
    above = v > score_of(threshold, loss_of(loss))
    assert set(above) == {True, False}
    assert (above != (v > 0)).any()
    parts = chosen.save_parts(tmp_path / "parts")
    data = split(table(), shuffled=False)
    for labels in (
        chosen.predict(table()),
        own.predict(table(), threshold=threshold),
        vfl.predict(chosen, table()).labels,
        vfl.predict(chosen, data).labels,
        vfl.predict(parts, data).labels,
        vfl.predict(own, data, threshold=threshold).labels,
    ):
        assert labels.tolist() == above.astype(int).tolist()
    plain = pickle.loads(pickle.dumps(chosen.to_sklearn()))  # noqa: S301 - our own bytes
    assert plain.predict(table()).tolist() == above.astype(int).tolist()
    assert np.allclose(plain.decision_function(table()), v, atol=1e-9)
    assert vfl.predict(parts, data, threshold=own.threshold).labels.tolist() == (v > 0).astype(int).tolist()
    (tmp_path / "parts" / "bank.part.json").write_text(own.part("bank").to_json())
    with pytest.raises(OutputError, match="different models"):
        vfl.predict(parts, data)


@pytest.mark.parametrize(
    ("loss", "threshold", "why"),
    [("logistic", 1.0, "between 0 and 1"), ("smoothed_hinge", float("nan"), "finite"), ("squared", 0.5, "two classes")],
)
def test_a_threshold_outside_its_scale_is_refused_before_data_are_read(loss: str, threshold: float, why: str) -> None:
    own = trained(loss)
    for refused in (own.predict, lambda data, **given: vfl.predict(own, data, **given)):
        with pytest.raises(SpecificationError, match=why):
            refused("no-such-file.csv", threshold=threshold)
