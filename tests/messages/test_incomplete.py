"""Queries whose author left something out: a party refuses them before it draws noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest

from parties.storage.dense import Columns
from tests.parties.alone import party_over
from vfl.base.types import Adjacency
from vfl.errors import PrivacyError
from vfl.privacy.events import Gaussian, ReleaseKey
from vfl.privacy.magnitudes import CELLS
from vfl.privacy.noise import SeededNoise
from vfl.queries import QUERIES, Ranges, Records
from vfl.queries.query import Sum

if TYPE_CHECKING:
    from collections.abc import Mapping

EVENT = Gaussian(Adjacency.REPLACE_ONE, 2.0, 1.0, 2)


@dataclass(frozen=True, slots=True, eq=False)
class Positive(Sum):
    """Numbers of records with a positive cell. `addresses` and `answer` are those of every sum."""

    columns: Mapping[str, tuple[int, ...]]
    event: Gaussian | None = EVENT
    part: int = 0

    def sizes(self) -> tuple[int, ...]:
        return tuple(map(len, self.columns.values()))

    def required(self) -> float:
        return math.sqrt(2.0)

    def exact(self, rows: Any, records: Records) -> list[Any]:
        return [np.array([np.count_nonzero(rows.columns.column(j) > 0.0) for j in self.columns[rows.party]])]


class PerRecord(Positive):
    """One number per record in place of one per column."""

    def exact(self, rows: Any, records: Records) -> list[Any]:
        return [(rows.columns.column(0) > 0.0).astype(np.int64)]


class Square(Positive):
    """A matrix with as many rows as there are columns."""

    def exact(self, rows: Any, records: Records) -> list[Any]:
        return [np.ones((2, 2), dtype=np.int64)]


class Twice(Positive):
    """Two sums in place of one."""

    def exact(self, rows: Any, records: Records) -> list[Any]:
        return Positive.exact(self, rows, records) * 2


class Unsized(Positive):
    """No lengths."""

    def sizes(self) -> tuple[int, ...]:
        return Sum.sizes(self)


class Unbounded(Positive):
    """No sensitivity."""

    def required(self) -> float:
        return Sum.required(self)


def answer(query: Sum) -> Any:
    drawn = []

    class Noted(SeededNoise):
        def stream(self, key: ReleaseKey, who: str = "") -> Any:
            drawn.append(key)
            return SeededNoise.stream(self, key, who)

    columns = Columns(np.asfortranarray([[1.0, -1.0], [1.0, 1.0], [0.0, 1.0]]), ("a", "b"))
    try:
        with mock.patch.dict(QUERIES, {"positive": type(query)}):
            return party_over("bank", columns, Noted(3)).answer(query, Records(), ReleaseKey(0)).released
    except PrivacyError:
        assert not drawn
        raise


def test_a_whole_query_is_answered() -> None:
    (released,) = answer(Positive({"bank": (0, 1)}))
    assert abs(released - 2.0).max() < 8.0


@pytest.mark.parametrize("kind", [PerRecord, Square, Twice, Unsized, Unbounded])
def test_a_query_that_leaves_something_out_is_refused(kind: type[Positive]) -> None:
    with pytest.raises(PrivacyError):
        answer(kind({"bank": (0, 1)}))


def test_with_several_classes_positions_are_of_stored_columns() -> None:
    """A party has K coordinates per column, and its columns end before its coordinates do."""
    columns = Columns(np.ones((3, 2), order="F"), ("a", "b"))
    party = party_over("bank", columns, SeededNoise(3), n_outputs=3)
    with pytest.raises(PrivacyError, match="not its own"):
        party.answer(Ranges({"bank": (0, 2)}, CELLS, EVENT), Records(), ReleaseKey(0))


@pytest.mark.parametrize("columns", [(), (0, 2), (-1, 1), (0, np.int64(2))])
def test_positions_are_checked_without_any_line_of_the_query(columns: tuple[int, ...]) -> None:
    with pytest.raises(PrivacyError, match="not its own"):
        answer(Positive({"bank": columns}))
    with pytest.raises(PrivacyError, match="not its own"):
        answer(replace(Positive({"bank": (0, 1)}), columns={"telco": (0, 1)}))
