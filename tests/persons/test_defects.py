"""Deliberate defects in the weights of rows: the harness reports each of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

import vfl
from coordinator.states.linear_predictors import LinearPredictors
from parties.rows import PersonRows, Rows
from tests.neighbours.setting import job
from tests.persons.test_neighbours import EVALUATION, JOBS, PAIRS, PERSON, N, compared
from vfl.base.persons import UNITS, Persons
from vfl.queries import HELD_POSITIONS, Select

if TYPE_CHECKING:
    import pytest

GD: Any = vfl.solvers.GD(passes=3)
FAIR: Any = vfl.Fairness(group="g", bound=False, threshold_per_group=True)


def loud(k: int, chosen: int) -> Any:
    """Return persons of one row each, at the ends of all bounds in turn; the chosen person has k rows."""
    person = np.repeat(np.arange(N), np.where(np.arange(N) == chosen, k, 1))
    ends = np.where(np.arange(N) % 2, 1.0, -1.0)
    bank = {"id": np.arange(N), "a": np.ones(N), "b": np.ones(N)}
    return {"bank": bank, "telco": {"id": person, "c": np.ones(person.size), "y": (ends[person] > 0) * 1}}, person


def complaints(asked: vfl.Job, pair: str = "one to most, turned") -> tuple[str, ...]:
    chosen = PERSON if asked.split is None else int(np.argmax(asked.split.held_out(N)))
    data = (loud(1, chosen), loud(4, chosen)) if pair == "loud" else PAIRS[pair](asked.loss)
    if asked.fairness is not None:
        for tables, person in data:
            tables["telco"]["g"] = person % 2
    return compared(asked, data).complaints


def test_units_that_add_up_to_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Persons.of.__func__  # type: ignore[attr-defined]

    def per_row(cls: Any, *given: Any) -> Any:
        made = true(cls, *given)
        return replace(made, units=np.full_like(made.units, UNITS))

    assert complaints(job(GD)) == ()
    monkeypatch.setattr(Persons, "of", classmethod(per_row))
    assert any("path mu^2" in said for said in complaints(job(GD)))


def test_a_row_that_is_counted_for_the_next_person(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Persons.of.__func__  # type: ignore[attr-defined]

    def by_position(cls: Any, person: Any, count: int, rule: Any) -> Any:
        return true(cls, np.sort(np.arange(len(person)) % count), count, rule)

    monkeypatch.setattr(Persons, "of", classmethod(by_position))
    assert any("are stored otherwise" in said for said in complaints(job(GD)))


def test_a_hold_out_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_rows(self: Persons, kept: Any) -> Persons:
        rows = np.resize(kept, self.units.size)
        own = self.taken(rows)
        _, person = np.unique(own.person, return_inverse=True)
        return replace(own, count=int(person.max()) + 1, person=person)

    asked = job(vfl.SkGD(passes=2), evaluation=EVALUATION)
    assert complaints(asked) == ()
    monkeypatch.setattr(Persons, "among", by_rows)
    assert complaints(asked)


def test_a_batch_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def within(self: Rows, fold: Any, r: Any) -> Any:
        return r if fold is None else r * fold.members(r.size)

    asked = job(vfl.solvers.SGD(sampling="disjoint", batch_size=4, passes=3))
    assert complaints(asked, "loud") == ()
    monkeypatch.setattr(Rows, "within", within)
    true = LinearPredictors.records

    def records(self: LinearPredictors, query: Any) -> Any:
        with mock.patch.object(Persons, "expand", lambda persons, v, K=1: np.resize(v, persons.units.size)):
            return true(self, query)

    monkeypatch.setattr(LinearPredictors, "records", records)
    assert any("path mu^2" in said for said in complaints(asked, "loud"))


def test_a_fold_without_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Persons, "fold", lambda self, v: np.bincount(self.person, v, minlength=self.count))
    assert any("path mu^2" in said for said in complaints(job(vfl.solvers.GD(passes=3, clip=0.3))))


def test_a_statistic_that_counts_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = job(GD, evaluation=vfl.Evaluation(holdout=None, class_balance=0.1))
    assert complaints(asked, "most to fewer") == ()
    monkeypatch.setattr(Persons, "total", lambda self, sums, *vectors: UNITS * sums(*vectors))
    assert complaints(asked, "most to fewer")


def test_scores_in_units(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Select.answer

    def undivided(self: Select, at: Any, *given: Any) -> Any:
        units, at.units = at.units, 1
        answer = true(self, at, *given)
        at.units = units
        return answer

    asked = job(vfl.solvers.GCD(rounds=4))
    assert complaints(asked) == ()
    monkeypatch.setattr(Select, "answer", undivided)
    assert complaints(asked)


def test_halves_of_held_out_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    true = LinearPredictors._of_held_out

    def by_rows(self: LinearPredictors, name: str) -> Any:
        found = true(self, name)
        return np.arange(float(found.size)) if name == HELD_POSITIONS else found

    fair = JOBS["fairness"]()
    asked = replace(fair, evaluation=vfl.Evaluation(holdout=0.7, fairness=FAIR))
    assert complaints(asked, "loud") == ()
    monkeypatch.setattr(LinearPredictors, "_of_held_out", by_rows)
    assert complaints(asked, "loud")


def test_a_sum_that_is_not_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unweighed(self: PersonRows, query: Any, records: Any) -> Any:
        made = [[UNITS * own for own in rows.sums(query, cut)] for _, rows, cut in self._cut(query, records)]
        return [sum(own) for own in zip(*made, strict=True)]

    monkeypatch.setattr(PersonRows, "sums", unweighed)
    for asked in (job(GD), job(vfl.SkGD(passes=2, clip="record")), job(GD, privacy={"smoothness": "private"})):
        assert any("path mu^2" in said for said in complaints(asked))
