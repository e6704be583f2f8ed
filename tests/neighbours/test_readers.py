"""Cells of one record that could change how another record is read."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import vfl
from tests.neighbours.harness import compare
from tests.neighbours.setting import PARTITION, job, replaced, table

if TYPE_CHECKING:
    from pathlib import Path


def one_csv(columns: Any, folder: Path) -> str:
    """One CSV file of all parties' columns, as a simulation reads it."""
    path = folder / "all.csv"
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def frames(columns: Any, folder: Path) -> dict[str, Any]:
    """A table for each party, whose types Arrow takes from the cells."""
    wanted = {party: PARTITION.wanted(party) for party in PARTITION.parties}
    return {party: {name: list(columns[name]) for name in names} for party, names in wanted.items()}


def categories(*names: str) -> vfl.Job:
    declared = {"a": vfl.Categorical(names, unknown="zero")}
    bounds = {"b": (-1.0, 1.0), "c": (-1.0, 1.0)}
    return job(vfl.SkGD(passes=3), columns=declared, bounds=bounds)


def test_a_category_is_read_alike_whatever_text_another_record_holds() -> None:
    """Two hundred records move together by a path mu^2 of 62 where 0.2 is charged."""
    codes = replaced(table(n=200) | {"a": ["01", "02"] * 100}, a="01")
    found = compare(categories("01", "02", "2A"), codes, replaced(codes, a="2A"), given=one_csv)
    assert found.complaints == ()


def test_a_decimal_is_read_alike_whatever_scale_another_record_has() -> None:
    one, two = Decimal(1), Decimal(2)
    codes = table() | {"a": [one, two] * 6}
    found = compare(categories("1", "2"), codes, replaced(codes, a=Decimal("2.5")), given=frames)
    assert found.complaints == ()
