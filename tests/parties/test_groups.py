"""Codes of group columns: each from its own cell and the declaration, refused as a feature's cell would be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp

import vfl
from parties.loading import load
from parties.sources.opening import open_source
from parties.storage.cells import contents_of
from parties.storage.labels import GroupReader
from vfl.base.schema import Schema
from vfl.errors import DataError

SEX = vfl.Categorical(("f", "m"))


def codes(cells: Any, declared: Any) -> list[int]:
    schema = Schema({"sex": declared})
    source = open_source({"sex": cells}, contents_of(schema, (), None, ("sex",)), party="bank")
    reader = GroupReader(schema, ("sex",), source.origin, source.at_most)
    count = 0
    for batch in source.batches(["sex"], 2):
        reader.add(batch, slice(count, count + batch.num_rows))
        count += batch.num_rows
    return reader.codes(count)["sex"].tolist()


@pytest.mark.parametrize(
    ("cells", "declared", "expected"),
    [
        (["f", "m", "m"], SEX, [0, 1, 1]),
        (["f", None, "m"], vfl.Categorical(("f", "m"), fill="m"), [0, 1, 1]),
        (["f", None, "m"], vfl.Categorical(("f", "m"), missing="indicator"), [0, 2, 1]),
        (["f", "x", "m"], vfl.Categorical(("f", "m"), unknown="zero"), [0, 2, 1]),
        ([1, 2.0, "1.0"], vfl.Categorical((1, 2)), [0, 1, 0]),
        ([True, False, 1], vfl.Boolean(), [1, 0, 1]),
        (["true", "false"], vfl.Boolean(), [1, 0]),
        ([True, None], vfl.Boolean(fill=True), [1, 1]),
        ([True, None, False], vfl.Boolean(missing="indicator"), [1, 2, 0]),
        (pa.array(["m", "f", "m"]).dictionary_encode(), SEX, [1, 0, 1]),
    ],
)
def test_codes_follow_the_declaration(cells: Any, declared: Any, expected: list[int]) -> None:
    assert codes(cells, declared) == expected


@pytest.mark.parametrize(
    ("cells", "declared", "said"),
    [
        (["f", "x"], SEX, "a category that is not declared"),
        (["f", None], SEX, "missing values"),
        ([True, None], vfl.Boolean(), "missing values"),
        ([True, 2], vfl.Boolean(), "declared boolean"),
        (pa.array([["f"], ["m"]]), SEX, "not categories"),
    ],
)
def test_a_cell_that_does_not_fit_is_its_owners_error(cells: Any, declared: Any, said: str) -> None:
    with pytest.raises(DataError, match=said) as refused:
        codes(cells, declared)
    assert "party 'bank'" in str(refused.value)
    assert "'x'" not in str(refused.value)


def job(**options: Any) -> vfl.Job:
    partition = vfl.FeaturePartition({"bank": ["a", "sex"], "telco": ["b"]}, label=("telco", "y"))
    fixed: dict[str, Any] = {
        "partition": partition,
        "columns": {"sex": vfl.Boolean()},
        "bounds": {"a": (-1, 1), "b": (-1, 1)},
        "privacy": vfl.Privacy(epsilon=1.0),
        "evaluation": vfl.Evaluation(holdout=0.5, fairness=vfl.Fairness(group="sex")),
    }
    return vfl.Job(**(fixed | options))


def test_a_party_keeps_the_codes_of_its_held_out_records_alone() -> None:
    spec, sex = job(), np.array([0, 1, 1, 0, 1, 0, 0, 1])
    party = load(spec.for_party("bank"), {"a": np.linspace(-1, 1, 8), "sex": sex})
    assert party.rows.groups["sex"].tolist() == sex[spec.split.held_out(8)].tolist()
    telco = load(spec.for_party("telco"), {"b": np.zeros(8), "y": sex})
    assert not telco.rows.groups


def test_an_array_without_names_holds_groups_after_the_label() -> None:
    partition = vfl.FeaturePartition({"bank": ["a"]}, label=("bank", "y"), groups={"bank": ["sex"]})
    assert partition.wanted("bank") == ("a", "y", "sex")
    spec = job(partition=partition, bounds={"a": (-1, 1)})
    rows = np.column_stack([np.linspace(-1, 1, 8), np.arange(8) % 2, np.arange(8) // 4])
    party = load(spec.for_party("bank"), rows)
    assert party.rows.groups["sex"].tolist() == (np.arange(8) // 4)[spec.split.held_out(8)].tolist()
    assert party.labels().tolist() == (2.0 * (np.arange(8) % 2) - 1.0).tolist()


def test_a_sparse_matrix_holds_no_groups() -> None:
    matrix = sp.csr_matrix(np.column_stack([np.linspace(-1, 1, 8), np.arange(8) % 2]))
    with pytest.raises(DataError, match=r"'sex'.*give .*dense table"):
        load(job(partition=job().partition.changed(sparse=["bank"])).for_party("bank"), matrix)
