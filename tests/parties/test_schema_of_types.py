"""Cells whose type no declaration can hold are refused at their owner, at every door: training, prediction, measuring."""

from __future__ import annotations

import datetime as dt
import gzip
import logging
import re
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import vfl
from vfl.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

N = 120
RNG = np.random.default_rng(0)
X = RNG.integers(0, 2, N)
Y = (RNG.random(N) < 0.3 + 0.4 * X).astype(int)
Z = RNG.uniform(0, 1, N)
WORDS = np.array(["no", "yes"])[X]


def job(declared: Any, **options: Any) -> vfl.Job:
    partition = vfl.FeaturePartition({"a": ["x"], "b": ["z"]}, label=("a", "y"))
    given: dict[str, Any] = {
        "columns": {"x": declared},
        "bounds": {"z": (0, 1)},
        "privacy": None,
        "penalty": vfl.L2(1e-3),
    }
    return vfl.Job(partition=partition, **(given | options))


def data(cells: Any) -> dict[str, Any]:
    return {"a": pa.table({"x": cells, "y": Y}), "b": pa.table({"z": Z})}


YES = vfl.Categorical(["no", "yes"], unknown="zero")
OTHER_TYPES = {
    "truth values": pa.array(X == 1),
    "whole numbers": pa.array(X),
    "decimals": pa.array([Decimal(int(x)) for x in X]),
    "encoded truth values": pa.array(X == 1).dictionary_encode(),
    "dates": pa.array([dt.date(2026, 1, 1 + int(x)) for x in X]),
    "times": pa.array([dt.datetime(2026, 1, 1 + int(x)) for x in X]),  # noqa: DTZ001
}


@pytest.fixture(scope="module")
def result() -> vfl.Result:
    return vfl.train(job(YES), data(WORDS))


@pytest.mark.parametrize("cells", OTHER_TYPES.values(), ids=OTHER_TYPES)
def test_a_column_of_another_type_than_its_categories_is_refused_at_every_door(
    result: vfl.Result, cells: pa.Array, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="none of its declared categories"):
        vfl.train(job(YES), data(cells))
    with pytest.raises(DataError, match="none of its declared categories"):
        vfl.predict(result, data(cells))
    with pytest.raises(DataError, match="none of its declared categories"):
        vfl.evaluate(result, data(cells))
    with pytest.raises(DataError, match="none of its declared categories or classes"):
        vfl.train(job(YES, classes=("no", "yes")), {"a": pa.table({"x": WORDS, "y": cells}), "b": pa.table({"z": Z})})
    pq.write_table(pa.table({"x": cells, "y": Y}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="none of its declared categories"):
        vfl.train(job(YES), {"a": str(tmp_path / "a.parquet"), "b": pa.table({"z": Z})}, at="inprocess")


@pytest.mark.parametrize(
    ("cells", "declared"),
    [
        (pa.array(X == 1), vfl.Categorical([False, True])),
        (pa.array(X == 1), vfl.Categorical(["false", "true", "unknown"])),
        (pa.array(X), vfl.Categorical(["0", "1", "other"])),
        (pa.array(X.astype(float)), vfl.Categorical([0, 1])),
        (pa.array([str(x) for x in X]), vfl.Categorical([0, 1])),
        (pa.array([dt.date(2026, 1, 1 + int(x)) for x in X]), vfl.Categorical(["2026-01-01", "2026-01-02"])),
    ],
    ids=["truth", "truth as text", "number as text", "float", "text as number", "dates as text"],
)
def test_a_type_in_which_a_category_can_be_written_is_read(cells: pa.Array, declared: Any, result: vfl.Result) -> None:
    found = vfl.train(job(declared), data(cells))
    assert np.allclose(found.coef_[:2], result.coef_[:2], atol=1e-6)


def test_the_owner_reads_that_no_cell_is_a_declared_category(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "vfl.parties"):
        vfl.train(job(YES), data(WORDS))
        assert "declared category" not in caplog.text
        vfl.train(job(YES), data(np.char.upper(WORDS)))
    assert "column 'x': no cell" in caplog.text


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("w", -1.0, "weight 'w' holds values below 0"),
        ("e", 0.0, "not above 0"),
        ("e", -2.0, "not above 0"),
        ("c", -1.0, "label 'c'"),
    ],
)
def test_negative_counts_weights_and_exposures_are_refused_or_named_in_the_log_of_their_owner(
    column: str, value: float, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In a private run, an error would reveal one record's value to everybody, so the owner alone reads of it."""
    table = {
        "x": RNG.uniform(0, 1, N),
        "z": Z,
        "c": RNG.poisson(1.0, N).astype(float),
        "w": np.ones(N),
        "e": np.ones(N),
    }
    spec = vfl.Job(
        partition=vfl.FeaturePartition({"a": ["x"], "b": ["z"]}, label=("a", "c"), weight="w", exposure="e"),
        bounds={"x": (0, 1), "z": (0, 1), "c": (0, 9), "w": (0, 2), "e": (0.5, 2)},
        loss="poisson",
        privacy=None,
    )
    private = replace(spec, privacy=vfl.Privacy(epsilon=1.0, delta=1e-6))
    vfl.train(spec, pd.DataFrame(table))
    vfl.train(private, pd.DataFrame(table))
    assert "clamped" not in caplog.text
    table[column][3] = value
    with pytest.raises(DataError, match=message):
        vfl.train(spec, pd.DataFrame(table))
    with caplog.at_level(logging.WARNING, "vfl.parties"):
        vfl.train(private, pd.DataFrame(table))
    assert re.search(f"{message}.*clamped", caplog.text)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.tsv"])
@pytest.mark.parametrize("first", ["x", "y"])
def test_a_byte_order_mark_before_a_quoted_header_is_no_part_of_a_name(tmp_path: Path, name: str, first: str) -> None:
    sep, columns = "\t" if name.endswith("tsv") else ",", {"x": WORDS, "y": Y}
    columns = {first: columns[first], **columns}
    lines = [
        sep.join(f'"{c}"' for c in columns),
        *(sep.join(map(str, row)) for row in zip(*columns.values(), strict=True)),
    ]
    content = "\n".join(lines).encode("utf-8-sig")
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    from_file = vfl.train(job(YES), {"a": str(tmp_path / name), "b": pa.table({"z": Z})}, at="inprocess")
    assert np.array_equal(from_file.coef_, vfl.train(job(YES), data(WORDS)).coef_)
