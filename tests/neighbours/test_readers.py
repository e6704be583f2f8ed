"""Readers: no cell of one record affects the reading of another record, in any form of a table and any declaration."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import vfl
from tests.neighbours.cells import TYPES, odd, typed
from tests.neighbours.forms import TYPED, UNTYPED, csv_file, each, held_by_duckdb, lists
from tests.neighbours.harness import Comparison, compare, read
from tests.neighbours.setting import job, replaced, table

N = 5
MANY = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
"""The slow profile, which draws other cells in every run."""
DECLARED: dict[str, Any] = {
    "numbers": vfl.Numeric(bounds=(-1.0, 1.0)),
    "numbers, filled": vfl.Numeric(bounds=(-1.0, 1.0), fill=0.5),
    "numbers, indicated": vfl.Numeric(bounds=(-1.0, 1.0), missing="indicator"),
    "boolean": vfl.Boolean(),
    "boolean, filled": vfl.Boolean(fill=True, missing="indicator"),
    "codes": vfl.Categorical(("01", "02", "2A"), unknown="zero"),
    "numbered": vfl.Categorical((1, 2, 3), unknown="zero", missing="indicator"),
    "truths": vfl.Categorical((True, False), unknown="zero", fill=False),
    "refused": vfl.Categorical(("1", "1.0"), unknown="refuse"),
    "numbers, binned": vfl.columns.Binned((-0.5, 0.0, 0.5), missing="indicator"),
    "numbers, splined": vfl.columns.Spline((-1.0, 0.0, 1.0), fill=0.1),
    "numbers, logged": vfl.columns.Log(offset=2.0, bounds=(-1.0, 1.0)),
    "numbers, squared": vfl.columns.Power(2, bounds=(-1.0, 1.0), missing="indicator"),
    "numbers, scaled": vfl.columns.Scaled(0.0, 0.5),
    "numbers, turned": vfl.columns.Cyclic(2.0),
    "numbers, crossed": vfl.columns.Pair("a0", "a1"),
    "codes, ordered": vfl.columns.Ordinal(("01", "02", "2A"), unknown="missing", missing="indicator"),
    "codes, hashed": vfl.columns.Hashed(4, signed=True, missing="indicator"),
    "dates": vfl.columns.DateParts(("month", "days"), cyclic=True, missing="indicator"),
}
ORDINARY: dict[str, tuple[Any, ...]] = {
    "numbers": (0, 1, 0.5, True, Decimal("0.10"), "0.5"),
    "boolean": (True, False, 1, 0, "true", "false"),
    "codes": ("01", "02", "2A", "1", 1, 2.0, " 01"),
    "numbered": (1, 2, 3.0, "1", "1.0", Decimal(1), Decimal("2.0"), True),
    "truths": (True, False, "true", "False", 1, 0),
    "refused": ("1", "1.0", 1, 1.0, Decimal("1.0")),
    "dates": ("2026-01-31", "2025-12-01", dt.date(2026, 1, 31), dt.datetime(2026, 2, 1), np.datetime64("2026-01-01")),  # noqa: DTZ001
}
"""Cells of the other records: each of them is read otherwise by a reader that looks at the whole column."""


def of_job(declared: str, **options: Any) -> vfl.Job:
    bounds = {"b": (-1.0, 1.0), "c": (-1.0, 1.0)}
    made = DECLARED[declared]
    if isinstance(made, vfl.columns.Pair):  # of two columns that are made of the varied one
        bent = vfl.Curve(knots=(0.3,), of="a", bounds=(-1.0, 1.0), missing="indicator")
        made = {"a": made, "a0": vfl.columns.Binned((0.0,), of="a", fill=0.0), "a1": bent}
    columns = made if isinstance(made, dict) else {"a": made}
    return job(vfl.SkGD(passes=3), columns=columns, bounds=bounds, **options)


def columns(cells: list[Any]) -> dict[str, Any]:
    return {name: column.tolist() for name, column in table(n=len(cells)).items()} | {"a": cells}


def says_nothing(found: Comparison, *cells: Any) -> bool:
    """Return True if no refusal shows a cell. A cell like ' no ' occurs in any sentence."""
    texts = [text for cell in cells for text in (str(cell), repr(cell))]
    shown = [text for text in texts if len(text) > 3 and not text.strip().isalpha()]
    return not any(text in said for said in found.raised if said for text in shown)


def test_categories_are_read_independently_of_other_texts() -> None:
    """Otherwise two hundred records would move together by a path μ² of 62, where 0.2 is charged."""
    codes = columns(["01", "02"] * 100)
    found = compare(of_job("codes"), codes, replaced(codes, a="2A"), given=csv_file)
    assert found.complaints == ()


def test_decimals_are_read_independently_of_other_scales() -> None:
    codes = columns([Decimal(1), Decimal(2)] * 6)
    found = compare(of_job("numbered"), codes, replaced(codes, a=Decimal("2.5")), given=each(lists))
    assert found.complaints == ()


def ordinary(declared: str, form: str) -> st.SearchStrategy[list[Any]]:
    """Lists of cells of one kind or of several kinds."""
    cells = ORDINARY[declared.partition(",")[0]]
    alike = [
        st.lists(st.sampled_from([c for c in cells if type(c) is kind]), min_size=N, max_size=N)
        for kind in map(type, cells)
    ]
    return st.one_of(*alike, st.lists(st.sampled_from(cells), min_size=N, max_size=N))


@pytest.mark.parametrize("form", UNTYPED)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_cell_of_any_kind_changes_no_other_record(form: str, data: st.DataObject) -> None:
    declared = data.draw(st.sampled_from(list(DECLARED)))
    whole = columns(data.draw(ordinary(declared, form)))
    first, second = data.draw(odd), data.draw(odd | st.sampled_from(ORDINARY[declared.partition(",")[0]]))
    found = compare(
        of_job(declared), replaced(whole, a=first), replaced(whole, a=second), given=UNTYPED[form], run=read
    )
    assert found.complaints == ()
    assert says_nothing(found, first, second)


@pytest.mark.parametrize("form", TYPED)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_cell_of_a_typed_column_changes_no_other_record(form: str, data: st.DataObject) -> None:
    declared, kind = data.draw(st.sampled_from(list(DECLARED))), data.draw(st.sampled_from(TYPES))
    cells = data.draw(st.lists(typed(kind), min_size=N, max_size=N))
    first, second = data.draw(typed(kind)), data.draw(typed(kind))
    tables = [columns(cells) | {"a": pa.array(replaced({"a": cells}, a=cell)["a"], kind)} for cell in (first, second)]
    if form == "DuckDB files":
        assume(held_by_duckdb(*(made["a"] for made in tables)))
    found = compare(of_job(declared), *tables, given=TYPED[form], run=read)
    assert found.complaints == ()
    assert says_nothing(found, first, second)


@pytest.mark.parametrize("declared", ["numbers", "boolean"])
def test_a_categorical_column_of_polars_is_read_or_refused(declared: str) -> None:
    whole = columns(["1", "2", "1", "2", "1"])
    tables = [whole | {"a": pa.array(replaced(whole, a=cell)["a"]).dictionary_encode()} for cell in ("1", "2")]
    assert compare(of_job(declared), *tables, given=TYPED["Polars frames"], run=read).complaints == ()


@pytest.mark.slow
@pytest.mark.parametrize("form", UNTYPED)
def test_many_cells_of_any_kind(form: str) -> None:
    MANY(given(data=st.data())(test_a_cell_of_any_kind_changes_no_other_record.hypothesis.inner_test))(form=form)


@pytest.mark.slow
@pytest.mark.parametrize("form", TYPED)
def test_many_cells_of_columns_with_a_type(form: str) -> None:
    MANY(given(data=st.data())(test_a_cell_of_a_typed_column_changes_no_other_record.hypothesis.inner_test))(form=form)
