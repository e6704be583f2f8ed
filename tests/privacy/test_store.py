"""Errors in a transaction of a durable file: those of SQLite become refusals, those of the caller are raised as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from parties.joined.work import AnsweredKeys
from vfl.base.store import Store
from vfl.errors import LedgerError, PrivacyError
from vfl.privacy.events import ReleaseKey

if TYPE_CHECKING:
    from pathlib import Path

TABLES = {"seen": "CREATE TABLE seen (name TEXT)"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "seen.db", TABLES, LedgerError)
    made.create()
    return made


@pytest.mark.parametrize("error", [IndexError, OverflowError, UnicodeError, FileNotFoundError, KeyError])
def test_an_error_of_the_caller_is_not_called_damage_and_keeps_nothing(store: Store, error: type[Exception]) -> None:
    with pytest.raises(error, match="of the caller"), store.transaction() as file:  # noqa: PT012
        file.execute("INSERT INTO seen VALUES ('one')")
        raise error("of the caller")
    with store.transaction() as file:
        assert file.execute("SELECT count(*) FROM seen").fetchone() == (0,)


def test_numbers_of_a_key_that_no_file_can_store_are_refused_in_a_sentence(tmp_path: Path) -> None:
    """A coordinator chooses them. SQLite stores 64 bits, and its error would name neither cause nor remedy."""
    answered = AnsweredKeys(tmp_path / "bank.answered", "bank", "run")
    for take in (lambda: ReleaseKey(1 << 63), lambda: answered.take(ReleaseKey(0), 1 << 70)):
        with pytest.raises(PrivacyError, match="more than 64 bits"):
            take()
    answered.take(ReleaseKey(0), 0)


def test_an_error_of_sqlite_is_a_refusal(store: Store) -> None:
    with pytest.raises(LedgerError, match="SQLite refused"), store.transaction() as file:
        file.execute("SELECT * FROM nothing")


def test_a_file_that_goes_away_is_a_refusal(store: Store) -> None:
    with store.transaction():
        pass
    store.path.unlink()
    with pytest.raises(LedgerError, match="cannot be opened"), store.transaction():
        pass
