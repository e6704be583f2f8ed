"""An audit of opened sums: coalitions take off the noise that they know, and guess which of two neighbours was summed."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy.stats import norm

from tests.secure.session import Session, model, session
from vfl.apps.auditing.bounds import shown
from vfl.privacy.events import ReleaseKey
from vfl.privacy.noise import SeededNoise
from vfl.secure import noise
from vfl.secure.roles import DEALER

if TYPE_CHECKING:
    from collections.abc import Iterable

P, OPENINGS, LEVEL = 200, 50, 1e-6
"""Columns, openings of all of them, and the probability that a bound on the rate of right guesses is wrong."""


def opened_noise(m: int, k: int) -> tuple[Session, str, np.ndarray]:
    """Return a session, an owner, and the noise of its opened sums, (OPENINGS, P) in steps: opened minus clear integers."""
    run = session(m, k, n=20, p=P, z=1.0)
    version, owner = run.share(model(run, size=0.01)), run.roles.parties[-1]
    run.residuals(version, owner)
    run.set_up(owner, 0, P)
    clear = run.columns[owner].rows.astype(np.int64) @ run.clear_residuals(version)
    return run, owner, np.array([run.open(version, owner, 0, P, number) - clear for number in range(OPENINGS)])


def rate(run: Session, owner: str, found: np.ndarray, known: Iterable[str]) -> float:
    """Return a bound that the rate of right guesses exceeds, of an opponent that knows some contributors' noise.

    Half of the sums are of a neighbour, whose record moves the coordinate by the whole sensitivity 2C.
    """
    deviations, left = run.deviations(owner), found.copy()
    for who in known:
        own = deviations.dealer if who == DEALER else deviations.party
        drawn = [noise.drawn(SeededNoise(run.seed), ReleaseKey(i), who, own, P) for i in range(OPENINGS)]
        left -= np.array(drawn)
    shift = 2.0 * run.cap / float(run.bits.step(run.caps[owner]))
    neighbour = np.arange(OPENINGS) % 2 == 1
    seen = left + np.where(neighbour, shift, 0.0)[:, None]
    right = int(((seen > shift / 2.0) == neighbour[:, None]).sum())
    return shown(right, found.size, LEVEL)


@pytest.mark.parametrize(("m", "k"), [(2, 1), (3, 1), (3, 2)])
def test_no_coalition_guesses_better_than_what_is_charged(m: int, k: int) -> None:
    run, owner, found = opened_noise(m, k)
    most = norm.cdf(2.0 * run.cap / run.sigma / 2.0)
    coalitions = [*itertools.combinations(run.roles.parties, k), (DEALER,)]
    for coalition in coalitions:
        assert rate(run, owner, found, coalition) <= most
    # The audit has the power to find less noise: all contributors but one, or k parties whose dealer adds none.
    everybody = (*run.roles.parties, DEALER)
    assert rate(run, owner, found, everybody[1:]) > most
    assert rate(run, owner, found, (*run.roles.parties[:k], DEALER)) > most
    assert math.isclose(most, norm.cdf(0.5))
