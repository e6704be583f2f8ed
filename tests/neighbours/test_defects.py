"""Deliberate defects: the harness reports each of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

import parties.party
import vfl
from coordinator.charging.charger import Charger
from parties.party import Party
from parties.rows import Rows
from tests.neighbours.harness import Comparison, compare
from tests.neighbours.setting import RECORD, job, replaced, table, turned
from vfl.launch.run.checkpoint import Checkpoint
from vfl.privacy.geometry import Clip

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def found(solver: Any = None, pair: Any = None) -> Comparison:
    return compare(job(solver or vfl.solvers.GD(passes=3, clip=0.1)), *(pair or turned()))


def blames(comparison: Comparison, *words: str) -> bool:
    return any(all(word in said for word in words) for said in comparison.complaints)


def test_without_a_defect_there_is_no_complaint() -> None:
    assert found().complaints == ()


def test_a_halved_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Clip.sensitivity.fget
    monkeypatch.setattr(Clip, "sensitivity", property(lambda clip: true(clip) / 2))
    comparison = found(vfl.SkGD(passes=2, clip=0.01))
    assert blames(comparison, "path mu^2 is", "is charged")
    assert comparison.path > 1.5 * comparison.charged


def test_a_clip_that_skips_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Rows.sum

    def unclipped(self: Rows, block: Any, centre: Any, scale: Any, clip: Clip, r: Any, *rest: Any) -> Any:
        others, only = r.copy(), r.copy()
        others[RECORD], only[np.arange(len(r)) != RECORD] = 0.0, 0.0
        free = true(self, block, centre, scale, replace(clip, cap=np.inf), only, *rest)
        return true(self, block, centre, scale, clip, others, *rest) + np.rint(free / clip.grid).astype(np.int64)

    monkeypatch.setattr(Rows, "sum", unclipped)
    assert blames(
        found(vfl.SkGD(passes=2, clip=0.05, details=vfl.solvers.Details(message="block"), sampling="full")),
        "path mu^2 is",
        "is charged",
    )


def test_a_cell_that_changes_how_another_record_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from parties.storage import cells

    true = cells.numbers

    def by_the_largest(values: Any, column: str, origin: Any) -> Any:
        read = true(values, column, origin)
        return read / 100 if np.abs(read).max() > 100 else read

    for module in _importing(true):
        monkeypatch.setattr(module, "numbers", by_the_largest)
    comparison = found(pair=(table(), replaced(table(), a=1000.0)))
    assert not comparison.columns_equal
    assert blames(comparison, "are stored otherwise")


def test_a_count_of_clamped_cells_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    from parties.storage import dense

    clamped = [0]
    true, write = dense._Coordinate.scale, Checkpoint._write

    def scale(self: Any, values: Any) -> Any:
        stored = true(self, values)
        clamped[0] += int((stored == self.hi).sum())
        return stored

    def told(self: Checkpoint, entry: dict[str, Any]) -> None:
        write(self, entry | {"clamped": clamped[0]})

    monkeypatch.setattr(dense._Coordinate, "scale", scale)
    monkeypatch.setattr(Checkpoint, "_write", told)
    comparison = found(pair=(replaced(table(), a=0.5), replaced(table(), a=5.0)))
    assert "run/rounds.log" in comparison.differing
    assert blames(comparison, "run/rounds.log differs")


class Forgetful:
    """A reservation that records nothing."""

    def charge(self, items: Any) -> None:
        pass


def test_an_uncharged_release(monkeypatch: pytest.MonkeyPatch) -> None:
    true, asked = Charger.charge, [0]

    def forgetful(self: Charger, query: Any, number: int) -> Any:
        asked[0] += bool(query.events())
        if asked[0] not in (2, 5):  # the second charge of either run
            return true(self, query, number)
        with mock.patch.object(self, "_reservation", Forgetful()):
            return true(self, query, number)

    monkeypatch.setattr(Charger, "charge", forgetful)
    comparison = found()
    assert blames(comparison, "nothing was charged for release")
    assert comparison.path == np.inf


def test_a_release_that_bypasses_the_mechanism(monkeypatch: pytest.MonkeyPatch) -> None:
    """A party's reply holds its exact sums: no noise was requested, and the schedule receives different values."""
    monkeypatch.setattr(parties.party, "release", lambda sums, grid, *rest: sums * grid)
    assert blames(found(), "what the schedule was told differs")


def test_a_sum_released_without_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Party.release

    def bare(self: Party, sums: Any, terms: Any, key: Any) -> Any:
        return true(self, sums, terms._replace(event=None), key)

    monkeypatch.setattr(Party, "release", bare)
    comparison = found()
    assert blames(comparison, "nothing was charged for release")
    assert comparison.path == np.inf


def _importing(function: Callable[..., Any]) -> list[Any]:
    import sys

    ours = [module for name, module in sys.modules.items() if name.startswith(("vfl.", "parties.", "coordinator."))]
    return [module for module in ours if getattr(module, function.__name__, None) is function]
