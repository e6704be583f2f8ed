"""The opened integers equal the clear sum plus the noise of every contributor, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.secure.session import model, session
from vfl.errors import FederationError, PrivacyError
from vfl.privacy.events import ReleaseKey
from vfl.secure import ring, sigmoid
from vfl.secure.member import CHUNK, PANEL
from vfl.secure.requests import Opening, opened

EVERY = [(m, k) for m in (2, 3, 5) for k in range(1, m)]


@pytest.mark.parametrize(("m", "k"), EVERY)
def test_an_opened_sum_is_the_clear_one_plus_all_noise(m, k):
    run = session(m, k, n=300)
    w = model(run, size=0.1)
    version = run.share(w)
    r = run.clear_residuals(version)
    assert abs(r).max() <= run.R
    for number, (owner, columns) in enumerate(run.columns.items()):
        run.residuals(version, owner)
        for start, stop in ((0, 2), (2, 3)):
            run.set_up(owner, start, stop)
            clear = columns.rows[start:stop].astype(np.int64) @ r
            found = run.open(version, owner, start, stop, 10 * number + start)
            assert (found == clear + run.noises(owner, stop - start, 10 * number + start)).all()


@pytest.mark.parametrize(("m", "k"), EVERY)
def test_residuals_are_those_of_the_clear_margins_within_the_bound(m, k):
    run = session(m, k, n=300)
    w = model(run, size=0.1)
    version = run.share(w)
    margins = sum(run.X[party] @ own for party, own in w.items())
    assert abs(margins).max() < 8
    exact = 1.0 / (1.0 + np.exp(-margins)) - run.y
    spread = sum(3.0 * abs(own).sum() for own in w.values())
    bound = sigmoid.error(sigmoid.SERIES[version.place], m, spread)
    assert abs(run.clear_residuals(version) * 2.0**-26 - exact).max() <= bound


def test_an_opening_short_of_one_party_is_refused_and_its_words_are_no_sum():
    run = session(3, 1)
    owner = run.roles.parties[2]
    run.set_up(owner, 0, 3)
    version = run.share(model(run))
    run.residuals(version, owner)
    opening = Opening(owner, 0, 3, version, ReleaseKey(1))
    words = run.words(opening)
    words.pop("party-1")
    with pytest.raises(FederationError, match="for a sum are missing"):
        opened(run.roles, opening, words, ring.RANGE)


def test_a_dealer_expands_masks_of_more_records_than_a_panel():
    run = session(2, 1, n=PANEL + CHUNK + 7, p=1)
    owner = "party-1"
    run.set_up(owner, 0, 1)
    version = run.share(model(run))
    run.residuals(version, owner)
    clear = run.columns[owner].rows.astype(np.int64) @ run.clear_residuals(version)
    assert (run.open(version, owner, 0, 1, 1) == clear + run.noises(owner, 1, 1)).all()


def test_a_repeated_request_is_refused():
    run = session()
    w = model(run)
    version = run.share(w)
    with pytest.raises(PrivacyError, match="asked for twice"):
        run.members["party-0"].masked_angles(version, w["party-0"], None)
    with pytest.raises(PrivacyError, match="asked for twice"):
        next(run.deals.fourier_terms(version))
    run.set_up("party-0", 0, 3)
    with pytest.raises(PrivacyError, match="asked for twice"):
        run.set_up("party-0", 0, 3)
    with pytest.raises(PrivacyError, match="new set-up number"):
        run.members["party-0"].set_up(0, run.columns["party-0"])
    run.share(w, attempt=1)
