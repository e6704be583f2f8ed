"""Changes of a cap after releases: marked in the chain, flagged in statements, refused when the mark is missing."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.privacy.test_ledger_damage import forge
from vfl.base.types import Adjacency
from vfl.errors import BudgetError, LedgerError
from vfl.privacy.events import Gaussian, ReleaseKey
from vfl.privacy.ledger import DatasetBudget, SqliteLedger

if TYPE_CHECKING:
    from pathlib import Path

DELTA = 1e-9
EVENT = Gaussian(Adjacency.REPLACE_ONE, 1e-3, 1.0, 1)


@pytest.fixture
def ledger(tmp_path: Path) -> SqliteLedger:
    """A cap of ε = 1; nothing is released yet."""
    made = SqliteLedger(tmp_path / "account.db")
    made.set_cap("credit", epsilon=1.0, delta=DELTA)
    return made


def run(ledger: SqliteLedger, name: str, releases: int):
    """Reserve and charge; returns the open reservation."""
    reservation = DatasetBudget(ledger, "credit").reserve([(EVENT, max(releases, 1))], job="j", run=name)
    if releases:
        reservation.charge([(ReleaseKey(k), EVENT) for k in range(releases)])
    return reservation


def bodies(ledger: SqliteLedger) -> list[dict]:
    return [entry["body"] for entry in json.loads(ledger.export())["entries"] if entry["kind"] == "cap"]


def test_a_change_before_the_first_release_is_no_revision(ledger):
    run(ledger, "never", 0).refund()
    ledger.set_cap("credit", epsilon=2.0, delta=DELTA)
    assert [body["revises"] for body in bodies(ledger)] == [None, None]
    assert ledger.show()[0].revisions == ()
    assert run(ledger, "a", 1).settle().flags == ()


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_a_change_after_a_release_is_marked_and_told_in_every_later_statement(ledger, epsilon):
    before = run(ledger, "before", 2)
    early = before.settle()
    ongoing = run(ledger, "ongoing", 1)
    ledger.set_cap("credit", epsilon=epsilon, delta=DELTA)
    assert bodies(ledger)[1]["revises"] == {"releases": 3, "epsilon": (1.0).hex(), "delta": DELTA.hex()}
    sentence = str(ledger.show()[0].revisions[0])
    assert re.search(r"3 releases \(entry 8\), from ε = 1 at δ = 1e-09 to", sentence)
    assert "no longer limits" in sentence
    assert ongoing.settle().flags == run(ledger, "later", 1).settle().flags == (sentence,)
    # A run that ended before says what held then, also when it is asked again.
    assert DatasetBudget(ledger, "credit").resume("before", job="j").settle() == early
    assert (early.flags, "ε = 1 at" in early.scope) == ((), True)
    # Nothing of it rests on what this process remembers.
    assert [str(r) for r in SqliteLedger(ledger.path, readonly=True).show()[0].revisions] == [sentence]


def test_a_cap_that_stays_as_it_is_is_no_revision(ledger):
    run(ledger, "a", 1).settle()
    ledger.set_cap("credit", epsilon=1.0, delta=DELTA)
    assert bodies(ledger)[1]["revises"] is None
    assert ledger.show()[0].revisions == ()


def test_every_change_counts_and_another_data_set_does_not(ledger):
    ledger.set_cap("other", epsilon=1.0, delta=DELTA)
    run(ledger, "a", 1).settle()
    ledger.set_cap("other", epsilon=2.0, delta=DELTA)
    for epsilon in (2.0, 1.0, 3.0):
        ledger.set_cap("credit", epsilon=epsilon, delta=DELTA)
    credit, other = ledger.show()
    assert [(r.epsilon_before, r.epsilon) for r in credit.revisions] == [(1.0, 2.0), (2.0, 1.0), (1.0, 3.0)]
    assert other.revisions == ()
    assert len(run(ledger, "b", 1).settle().flags) == 3


@pytest.mark.parametrize("releases", [0, 1])
def test_another_delta_must_be_confirmed(ledger, releases):
    run(ledger, "a", releases)
    with pytest.raises(BudgetError, match=r"--yes; change_delta=True"):
        ledger.set_cap("credit", epsilon=1.0, delta=1e-6)
    assert ledger.show()[0].delta == DELTA
    ledger.set_cap("credit", epsilon=1.0, delta=1e-6, change_delta=True)
    assert ledger.show()[0].delta == 1e-6
    assert len(ledger.show()[0].revisions) == releases


@pytest.mark.parametrize("mark", [None, {"releases": 2, "epsilon": (1.0).hex(), "delta": DELTA.hex()}])
def test_a_cap_that_hides_or_misstates_the_change_damages_the_chain(ledger, mark):
    run(ledger, "a", 1).settle()
    forge(ledger, "cap", "", bodies(ledger)[0] | cap_of(2.0) | {"revises": mark}, (None, None, None))
    with pytest.raises(LedgerError, match="hides a change of the cap"):
        SqliteLedger(ledger.path).verify()


def test_a_cap_of_an_earlier_vfl_has_no_mark_and_is_found_out_all_the_same(ledger):
    run(ledger, "a", 1).settle()
    body = bodies(ledger)[0] | cap_of(2.0)
    del body["revises"]
    forge(ledger, "cap", "", body, (None, None, None))
    (revision,) = SqliteLedger(ledger.path).show()[0].revisions
    assert (revision.epsilon_before, revision.epsilon) == (1.0, 2.0)


def cap_of(epsilon: float) -> dict:
    """The fields of a cap that another ε changes; the capacity of ε = 1 is less than it allows, which is in order."""
    return {"epsilon": epsilon.hex(), "accounting": "gdp"}
