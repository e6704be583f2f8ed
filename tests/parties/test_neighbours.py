"""One record's cell changes nothing about another record: its stored columns stay equal to the bit, in every container.

A cell may be refused. Then the refusal depends on that cell and on the declarations, not on the other records.
"""

from __future__ import annotations

import csv
import datetime as dt
import gzip
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import vfl
from parties.loading import load
from vfl.errors import DataError
from vfl.launch.sources import sources_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PARTITION = vfl.FeaturePartition({"bank": ["a"], "court": ["b"]}, label=("court", "y"))

# A declaration of column "a", and cells that satisfy it.
DECLARED: dict[str, tuple[Any, list[Any]]] = {
    "numeric": (vfl.Numeric(bounds=(-2, 3)), [1, 2.5, -1, 0]),
    "numeric, filled": (vfl.Numeric(bounds=(-2, 3), fill=1), [1, None, -1, 2]),
    "numeric, indicator": (vfl.Numeric(bounds=(1, 3), missing="indicator"), [1, 3, None, 2]),
    "decimal": (vfl.Numeric(bounds=(-2, 3)), [Decimal("0.1"), Decimal("0.7"), Decimal("-1.3"), Decimal(2)]),
    "boolean": (vfl.Boolean(), [True, False, 1, "true"]),
    "boolean, filled": (vfl.Boolean(fill=True), [True, None, 0, False]),
    "text": (vfl.Categorical(["01", "02", "2A"], unknown="zero"), ["01", "02", "1", "01"]),
    "text, refused": (vfl.Categorical(["01", "02", "2A"]), ["01", "02", "02", "01"]),
    "text, indicator": (vfl.Categorical(["01", "02"], unknown="zero", missing="indicator"), ["01", None, "02", "01"]),
    "integers": (vfl.Categorical([1, 2, 3], unknown="zero"), [1, 2, "1", Decimal("3.0")]),
    "large integers": (vfl.Categorical([1, 2**53 + 2], unknown="zero"), [1, 2**53 + 2, 2**53, 1]),
    "floats": (vfl.Categorical([0.5, 1.5], fill=0.5), [0.5, 1.5, None, "1.50"]),
    "truths": (vfl.Categorical([True, False], unknown="zero"), [True, False, "true", np.True_]),
}

numbers = st.one_of(
    st.integers(),
    st.sampled_from([2**53 + 1, 2**64]),
    st.integers(310, 5000).map(lambda digits: 10**digits),
    st.floats(),
    st.floats(width=32).map(np.float32),
    st.integers(-128, 127).map(np.int8),
    st.integers(0, 2**64 - 1).map(np.uint64),
    st.decimals(),
    st.sampled_from([Decimal("1E+1000000"), Decimal("1e-30"), Decimal("sNaN"), Decimal("-0.0"), Decimal("1.000")]),
    st.fractions(),
    st.booleans(),
    st.booleans().map(np.bool_),
)
texts = st.one_of(
    st.text(max_size=6),
    st.text(st.characters(categories=["Cs", "Nd", "Lu"]), max_size=4),
    st.sampled_from(["2A", "02", "01 ", " 1", "1.0", "1e0", "1,000", "nan", "inf", "TRUE", "-0", "٣", '"', "NA", "\0"]),
)
odd = st.one_of(
    st.none(),
    numbers,
    texts,
    st.binary(max_size=4),
    st.dates(),
    st.datetimes(timezones=st.sampled_from([None, dt.UTC])),
    st.sampled_from([pd.NaT, pd.NA, np.datetime64("NaT"), np.datetime64("2020-01-01"), pd.Timestamp("2020")]),
    st.sampled_from([[1, 2], {}, (), 1j, object, np.zeros(2), bytearray(b"01"), pa.scalar("01"), np.str_("02")]),
)


def objects(cells):
    array = np.empty(len(cells), dtype=object)
    for k, cell in enumerate(cells):
        array[k] = cell
    return array


def structured(cells):
    array = np.empty(len(cells), dtype=[("a", object)])
    array["a"] = objects(cells)
    return array


CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": lambda cells: {"a": cells},
    "tuple": lambda cells: {"a": tuple(cells)},
    "object array": lambda cells: {"a": objects(cells)},
    "array of objects": lambda cells: objects(cells).reshape(-1, 1),
    "structured array": structured,
    "pandas": lambda cells: pd.DataFrame({"a": pd.Series(objects(cells), dtype=object)}),
    "pandas series": lambda cells: {"a": pd.Series(objects(cells), dtype=object)},
    "polars": lambda cells: pl.DataFrame({"a": pl.Series(list(cells), dtype=pl.Object)}),
    "function": lambda cells: lambda: {"a": cells},
}


def job(declared, **options):
    return vfl.Job(
        partition=PARTITION, privacy=None, columns={"a": declared, "b": vfl.Numeric(bounds=(0, 1))}, **options
    )


def stored(spec, source):
    """Return the values that the bank stores of its records, or the text of its refusal."""
    try:
        return load(spec.for_party("bank"), source).rows.columns.array
    except DataError as error:
        return str(error)


def assert_alone(spec, container, cells, odd_cell, at=1):
    """Replace one record's cell; the others keep their bits, and a refusal is the same among other records."""
    before, after = stored(spec, container(cells)), stored(spec, container([*cells[:at], odd_cell, *cells[at + 1 :]]))
    assert isinstance(before, np.ndarray)
    if isinstance(after, str):
        assert stored(spec, container([odd_cell, *cells[-1:]])) == after
    else:
        others = np.arange(len(cells)) != at
        assert before[others].tobytes() == after[others].tobytes()
        np.testing.assert_array_equal(after[at], stored(spec, container([odd_cell]))[0])


@pytest.mark.parametrize("container", CONTAINERS)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(sorted(DECLARED)), cell=odd)
@example(kind="text", cell="2A")
@example(kind="integers", cell=Decimal("2.5"))
@example(kind="integers", cell="SECRET")
@example(kind="decimal", cell=Decimal("0.12345678901234567"))
@example(kind="large integers", cell=0.5)
def test_one_odd_cell_changes_no_other_record(container, kind, cell):
    declared, cells = DECLARED[kind]
    assert_alone(job(declared), CONTAINERS[container], cells, cell)


@pytest.mark.parametrize("container", ["list", "pandas", "polars"])
@settings(deadline=None, max_examples=40)
@given(kind=st.sampled_from(sorted(DECLARED)), cell=odd)
def test_one_odd_cell_changes_no_other_record_in_one_table_of_all_parties(container, kind, cell):
    declared, cells = DECLARED[kind]
    spec = job(declared)

    def part(cells):
        whole = {"a": objects(cells), "b": np.ones(len(cells)), "y": np.arange(len(cells)) % 2}
        if container == "list":
            return whole
        if container == "pandas":
            return pd.DataFrame(whole | {"a": pd.Series(whole["a"], dtype=object)})
        return pl.DataFrame(whole | {"a": pl.Series(list(cells), dtype=pl.Object)})

    def of_table(cells):
        return lambda: sources_of(spec, part(cells))["bank"]

    assert_alone(spec, of_table, cells, cell)


def in_csv(folder: Path, *, zipped: bool = False) -> Callable[[list[Any]], str]:
    def write(cells: list[Any]) -> str:
        opened = gzip.open if zipped else open
        path = folder / ("d.csv.gz" if zipped else "d.csv")
        with opened(path, "wt", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["a", "b", "y"])
            rows.writerows(["NA" if cell is None else cell, 1, k % 2] for k, cell in enumerate(cells))
        return str(path)

    return write


written = st.one_of(
    numbers.filter(lambda number: abs_digits(number) < 4000), st.text(st.characters(codec="utf-8"), max_size=8)
)


def abs_digits(number):
    return number.bit_length() // 3 if isinstance(number, int) else 0


@pytest.mark.parametrize("zipped", [False, True])
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(sorted(DECLARED)), cell=written)
@example(kind="text", cell="2A")
@example(kind="text", cell='x"\n01,1,0\n"')
@example(kind="text", cell="a\r\nb")
def test_one_odd_cell_changes_no_other_record_in_a_text_file(zipped, kind, cell, tmp_path):
    declared, cells = DECLARED[kind]
    assert_alone(job(declared), in_csv(tmp_path, zipped=zipped), cells, cell)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(sorted(DECLARED)), cell=written)
@example(kind="text", cell="2A")
@example(kind="text", cell="x")
def test_one_odd_cell_changes_no_other_record_in_one_file_of_all_parties(kind, cell, tmp_path):
    declared, cells = DECLARED[kind]
    spec, write = job(declared), in_csv(tmp_path)
    assert_alone(spec, lambda cells: lambda: sources_of(spec, write(cells))["bank"], cells, cell)


FRAMES: dict[str, Callable[[list[Any]], Any]] = {
    "pandas": lambda cells: pd.DataFrame({"a": cells}),
    "polars": lambda cells: pl.DataFrame({"a": cells}, strict=False),
    "arrow": lambda cells: pa.table({"a": pa.array(cells)}),
    "array": lambda cells: np.array(cells, dtype=float).reshape(-1, 1),
}


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize(
    ("declared", "cells", "cell"),
    [
        (vfl.Categorical([1, 2, 3], unknown="zero", missing="indicator"), [1, 2, 3, 1], None),
        (vfl.Categorical([1, 2, 3], unknown="zero"), [1, 2, 3, 1], 2.5),
        (vfl.Categorical([1, 2**53 + 2], unknown="zero", missing="indicator"), [1, 2**53 + 2, 2**53 + 1, 1], None),
        (vfl.Numeric(bounds=(-1, 9), fill=0), [1, 2, 3, 1], None),
        (vfl.Numeric(bounds=(-1, 9)), [1, 2, 3, 1], 0.1),
        (vfl.Boolean(fill=False), [True, True, False, True], None),
    ],
)
def test_a_type_inferred_from_the_cells_changes_no_other_record(frame, declared, cells, cell):
    """pandas turns integers into floats if one is missing; equal numbers mean the same in either type."""
    assert_alone(job(declared), FRAMES[frame], cells, cell)


@pytest.mark.parametrize("frame", ["pandas", "polars", "arrow"])
@pytest.mark.parametrize(
    ("declared", "cells"),
    [
        (vfl.Categorical([1, 2], unknown="zero"), [Decimal(1), Decimal(2), Decimal(2)]),
        (vfl.Numeric(bounds=(-2, 3)), [Decimal("0.1"), Decimal(2), Decimal("0.7"), Decimal("-1.3")]),
    ],
)
def test_the_common_scale_of_decimals_changes_no_other_record(frame, declared, cells):
    assert_alone(job(declared), FRAMES[frame], cells, Decimal("2.12345678901"))


def test_a_category_is_identified_by_its_value():
    alike = [1, 1.0, True * 1, np.int8(1), np.float32(1), Decimal("1.00"), Fraction(2, 2), "1"]
    assert {vfl.base.columns.canonical_category(value) for value in alike} == {"1"}
    assert vfl.base.columns.canonical_category("01") == "01"
    assert vfl.base.columns.canonical_category("1.0") == "1.0"
    assert vfl.base.columns.canonical_category(2**53 + 1) == vfl.base.columns.canonical_category(float(2**53))
    assert (
        vfl.base.columns.canonical_category(Decimal("1E+1000000"))
        == vfl.base.columns.canonical_category(10**5000)
        == "inf"
    )


@settings(deadline=None, max_examples=60)
@given(cell=odd, classes=st.sampled_from([None, ("01", "2A"), (1, 2), (0.5, 1.5), (True, False), (("a", "b"), "c")]))
def test_one_odd_label_changes_no_other_label(cell, classes):
    spec = job(vfl.Numeric(bounds=(0, 1)), classes=classes)
    negative, positive = classes or (0, 1)
    known = [negative[0] if isinstance(negative, tuple) else negative, positive] * 2
    task = spec.for_party("court")

    def labels(cells):
        try:
            return load(task, {"b": np.ones(len(cells)), "y": cells}).labels()
        except DataError as error:
            return str(error)

    before, after = labels(known), labels([*known[:3], cell])
    assert before.tolist() == [-1.0, 1.0, -1.0, 1.0]
    if isinstance(after, str):
        assert labels([cell, *known[:1]]) == after
    else:
        assert before[:3].tobytes() == after[:3].tobytes()


@settings(deadline=None, max_examples=60)
@given(cell=odd)
def test_one_odd_id_changes_no_other_id(cell):
    from parties.alignment.reading import open_for, read_ids

    for known in ([1, 2, 3], ["01", "2", "x"]):
        task = job(vfl.Numeric(bounds=(0, 1)), id="who").for_party("bank")

        def ids(cells, task=task):
            try:
                return read_ids(task, open_for(task, {"a": np.ones(len(cells)), "who": cells}, ids=True))[0]
            except DataError:
                return None

        after = ids([*known, cell])
        assert after is None or after[:3] == ids(known)
