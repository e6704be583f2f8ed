"""Forms in which owners hold a table: files, frames, arrays and mappings, for one simulated table or one per party."""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

import vfl
from tests.neighbours.setting import PARTITION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Table = Mapping[str, Any]
    Form = Callable[[Table, Path], Any]


def parts(table: Table) -> dict[str, dict[str, Any]]:
    """Return {party: {column: cells}}; every party has the id column "id" if the table has one."""
    ids = {"id": table["id"]} if "id" in table else {}
    return {q: ids | {name: table[name] for name in PARTITION.wanted(q)} for q in PARTITION.parties}


def each(form: Form) -> Form:
    """Return the form in which every party holds its own columns in the given form."""

    def given(table: Table, folder: Path) -> dict[str, Any]:
        made = {}
        for party, columns in parts(table).items():
            (folder / party).mkdir()
            made[party] = form(columns, folder / party)
        return made

    return given


def csv_file(table: Table, folder: Path) -> str:
    path = folder / "table.csv"
    with path.open("w", newline="", encoding="utf-8", errors="surrogatepass") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    return str(path)


def european_csv_file(table: Table, folder: Path) -> vfl.Csv:
    """Write cells as they are; those that are numbers with a point get a comma, in groups of three digits."""
    path = folder / "table.csv"
    with path.open("w", newline="", encoding="cp1252", errors="replace") as file:
        writer = csv.writer(file, delimiter=";", quotechar="'")
        writer.writerow(table)
        writer.writerows([_european(cell) for cell in row] for row in zip(*table.values(), strict=True))
    return vfl.Csv(
        str(path), delimiter=";", decimal=",", thousands=".", encoding="cp1252", quote="'", missing=("", "?")
    )


def _european(cell: Any) -> Any:
    return f"{cell:,}".translate(str.maketrans(",.", ".,")) if type(cell) in (int, float) else cell


def unquoted_csv_file(table: Table, folder: Path) -> vfl.Csv:
    path = folder / "table.csv"
    rows = [list(table), *zip(*table.values(), strict=True)]
    text = "\n".join("|".join(re.sub(r"[|\r\n]", " ", str(cell)) for cell in row) for row in rows)
    path.write_text(text, encoding="utf-16", errors="replace")
    return vfl.Csv(str(path), delimiter="|", decimal=",", encoding="utf-16", quote="", dates="%Y-%m-%d")


def lists(table: Table, folder: Path) -> dict[str, Any]:
    return {name: list(cells) for name, cells in table.items()}


def objects(table: Table, folder: Path) -> dict[str, np.ndarray]:
    made = {}
    for name, cells in table.items():
        made[name] = np.empty(len(cells), dtype=object)
        for k, cell in enumerate(cells):
            made[name][k] = cell
    return made


def pandas_objects(table: Table, folder: Path) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(cells, dtype=object) for name, cells in objects(table, folder).items()})


def polars_objects(table: Table, folder: Path) -> pl.DataFrame:
    return pl.DataFrame({name: pl.Series(name, list(cells), dtype=pl.Object) for name, cells in table.items()})


def function(table: Table, folder: Path) -> Callable[[], Any]:
    return lambda: lists(table, folder)


def arrow(table: Table, folder: Path) -> pa.Table:
    return pa.table(dict(table))


def arrow_reader(table: Table, folder: Path) -> pa.RecordBatchReader:
    return arrow(table, folder).to_reader(max_chunksize=2)


def feather(table: Table, folder: Path) -> str:
    pyarrow.feather.write_feather(arrow(table, folder), str(folder / "table.arrow"), compression="uncompressed")
    return str(folder / "table.arrow")


def parquet(table: Table, folder: Path) -> str:
    pyarrow.parquet.write_table(arrow(table, folder), str(folder / "table.parquet"), row_group_size=2)
    return str(folder / "table.parquet")


def duckdb_file(table: Table, folder: Path) -> str:
    with pytest.importorskip("duckdb").connect(str(folder / "table.duckdb")) as connection:
        connection.register("given", arrow(table, folder))
        connection.execute("CREATE TABLE whole AS SELECT * FROM given")
    return f"duckdb://{folder / 'table.duckdb'}?table=whole"


def held_by_duckdb(*columns: pa.Array) -> bool:
    """Return True if DuckDB has types for these columns, and can store their cells."""
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        try:
            for cells in columns:
                connection.register("given", pa.table({"cells": cells}))
                connection.execute("CREATE OR REPLACE TABLE whole AS SELECT * FROM given")
        except duckdb.Error:
            return False
    return True


def polars(table: Table, folder: Path) -> Any:
    return pl.from_arrow(arrow(table, folder))


def pandas_arrow(table: Table, folder: Path) -> Any:
    return arrow(table, folder).to_pandas(types_mapper=pd.ArrowDtype)


def npz(table: Table, folder: Path) -> str:
    np.savez(folder / "table.npz", **table)
    return str(folder / "table.npz")


UNTYPED: dict[str, Form] = {
    "one CSV file": csv_file,
    "CSV files": each(csv_file),
    "one European CSV file": european_csv_file,
    "European CSV files": each(european_csv_file),
    "CSV files in UTF-16 without quotes": each(unquoted_csv_file),
    "one table of lists": lists,
    "lists": each(lists),
    "arrays of objects": each(objects),
    "pandas frames of objects": each(pandas_objects),
    "one pandas frame of objects": pandas_objects,
    "Polars frames of objects": each(polars_objects),
    "functions": each(function),
}
"""Forms that hold any cell, and whose columns have no type."""

TYPED: dict[str, Form] = {
    "one Arrow table": arrow,
    "Arrow tables": each(arrow),
    "Arrow readers": each(arrow_reader),
    "Feather files": each(feather),
    "Parquet files": each(parquet),
    "DuckDB files": each(duckdb_file),
    "Polars frames": each(polars),
    "pandas frames of Arrow columns": each(pandas_arrow),
}
"""Forms that fix the type of a column, of Arrow arrays."""
