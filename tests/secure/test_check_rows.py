"""Spare rows: a dealer that deals wrong Fourier terms is caught, and opened rows mask no record."""

from __future__ import annotations

from math import comb
from typing import Any

import numpy as np
import pytest

from tests.coordinator.shares import Watched, job, outcome, table
from tests.secure.session import Session, model, session
from vfl.errors import PrivacyError
from vfl.secure.check_rows import CHECK_ROWS, RowCollector, chosen_rows
from vfl.secure.member import Dealer
from vfl.secure.requests import Commitment, Contribution, Version

COIN = b"c" * 32


def versions(count: int) -> list[Version]:
    return [Version(f"{k:032x}", 2) for k in range(count)]


@pytest.mark.parametrize("n", [1, 5, 128, 5000])
def test_opened_rows_mask_no_record(n: int) -> None:
    for version in versions(5):
        chosen = chosen_rows(COIN, version, n)
        assert len(np.unique(chosen.opened)) == CHECK_ROWS
        assert 0 <= chosen.opened.min() <= chosen.opened.max() < n + CHECK_ROWS
        masking = chosen.masking(np.arange(n + CHECK_ROWS, dtype=np.uint16))
        assert len(set(masking)) == n
        assert not set(masking) & set(chosen.opened)


def test_the_choice_follows_the_coin_and_the_version() -> None:
    one, two = versions(2)
    known = chosen_rows(COIN, one, 5000).opened
    assert (known == chosen_rows(COIN, one, 5000).opened).all()
    for other in (chosen_rows(COIN, two, 5000), chosen_rows(b"d" * 32, one, 5000)):
        assert len(np.intersect1d(known, other.opened)) < 20
    assert (chosen_rows(None, one, 5000).opened == np.arange(5000, 5000 + CHECK_ROWS)).all()


@pytest.mark.parametrize("step", [1, 100, 4096, 10_000])
def test_kept_rows_are_those_of_the_whole(step: int) -> None:
    rows = np.arange(2 * (5000 + CHECK_ROWS), dtype=np.uint64).reshape(-1, 2)
    chosen = chosen_rows(COIN, versions(1)[0], 5000)
    kept = RowCollector(chosen, 2)
    for start in range(0, len(rows), step):
        kept.take(start, rows[start : start + step])
    assert (kept.at(chosen.opened) == rows[chosen.opened]).all()
    assert (kept.at(chosen.to) == rows[chosen.to]).all()


@pytest.mark.parametrize("wrong", [1, 50, 500])
def test_the_chance_to_escape_is_that_of_a_sample_without_replacement(wrong: int) -> None:
    n, tries = 5000, 400
    total = n + CHECK_ROWS
    exact = comb(total - wrong, CHECK_ROWS) / comb(total, CHECK_ROWS)
    assert exact <= (1 - wrong / total) ** CHECK_ROWS
    bad = np.random.default_rng(0).choice(total, wrong, replace=False)
    escaped = sum(not np.isin(chosen_rows(COIN, version, n).opened, bad).any() for version in versions(tries)) / tries
    assert escaped == pytest.approx(exact, abs=4 * (exact * (1 - exact) / tries) ** 0.5 + 1e-3)


class Lying(Dealer):
    """A dealer whose words are wrong by 1 in every row of a slice."""

    where = slice(0, None)

    def fourier_terms(self, version: Version, records: int = 4096) -> Any:
        """Yield rows, some of them wrong."""
        done = 0
        wrong = np.zeros(self.n_rows, dtype=bool)
        wrong[self.where] = True
        for part in super().fourier_terms(version, records):
            part[wrong[done : done + len(part)], 0] += np.uint64(1)
            done += len(part)
            yield part


class LyingAboutRecords(Lying):
    """It is right in the rows behind the records."""

    where = slice(0, 500)


class LyingAboutOne(Lying):
    where = slice(7, 8)


@pytest.mark.parametrize("dealer", [Lying, LyingAboutRecords])
@pytest.mark.parametrize(("m", "k"), [(2, 1), (3, 1), (3, 2)])
def test_a_lying_dealer_is_caught(dealer: type[Dealer], m: int, k: int) -> None:
    run = session(m, k, n=500, dealer=dealer)
    with pytest.raises(PrivacyError, match="the dealer sent wrong"):
        run.share(model(run))


def test_without_a_coin_a_dealer_that_knows_the_opened_rows_escapes() -> None:
    """Broken on purpose: it lies about every record, and not about the rows that are opened."""
    run = session(2, 1, n=500, dealer=LyingAboutRecords, coin=None)
    run.share(model(run))


def test_one_wrong_row_of_many_escapes_as_a_rule() -> None:
    """The check is a sample, as docs/secure.md states."""
    run = session(2, 1, n=20_000, dealer=LyingAboutOne)
    run.share(model(run))


def test_the_label_party_contributes_to_nothing_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    run = session(2, 1, n=100)
    monkeypatch.setattr(Session, "check", lambda self, version: None)
    owner = run.roles.parties[1]
    run.set_up(owner, 0, 3)
    version = run.share(model(run))
    run.residuals(version, owner)
    with pytest.raises(PrivacyError, match=r"before.*shares were checked"):
        run.open(version, owner, 0, 3, 1)


def test_a_run_with_a_lying_dealer_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parties.dealing.Dealer", Lying)
    transport = Watched(job(3), table())
    with pytest.raises(PrivacyError, match="the dealer sent wrong"):
        outcome(transport)
    assert not [reply for reply in transport.replies if isinstance(reply, Commitment | Contribution)]
