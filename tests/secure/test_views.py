"""Views: all that each participant receives is uniform, whatever the data; variants broken on purpose are found out.

A test takes everything that a participant received, and the differences between successive arrays of a request, which show a
mask that was used twice. The bytes of both are compared with the uniform distribution, and their words with the margins.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import chi2

from tests.secure import session as sessions
from tests.secure.session import COORDINATOR, DEALER, Session, model, session
from vfl.kernels import ring as kernels
from vfl.privacy.events import ReleaseKey
from vfl.privacy.noise import SeededNoise
from vfl.secure import noise
from vfl.secure.member import Dealer, Member
from vfl.secure.requests import Opening
from vfl.secure.ring import decoded
from vfl.secure.roles import Roles
from vfl.secure.streams import Stream, Streams

N, P = 1500, 2
NOISE = 2**47
"""More than any noise of these sessions, with deviations below 2^43.5 steps; a uniform word is below it once in 2^16."""
LEVEL = 1e-6
"""Probability with which a participant's whole view fails although it is uniform."""


def p_value(array: np.ndarray) -> float:
    """Return the p-value of the χ² test that the bytes of an array are uniform."""
    counts = np.bincount(np.frombuffer(np.ascontiguousarray(array).tobytes(), dtype=np.uint8), minlength=256)
    expected = counts.sum() / 256
    return float(chi2.sf(((counts - expected) ** 2).sum() / expected, 255))


def suspicions(view: list[tuple[str, str, np.ndarray]], v: np.ndarray) -> list[str]:
    """Return the requests of a view that are not uniform, that repeat a mask, or that are correlated with the margins."""
    arrays: dict[tuple[str, str], list[np.ndarray]] = {}
    for request, sender, array in view:
        arrays.setdefault((request, sender), []).append(array)
    found, tests = [], 3 * sum(map(len, arrays.values())) + 2 * len(arrays)
    for name, received in arrays.items():
        same = [array for array in received if array.shape == received[0].shape]
        differences = [second - first for first, second in itertools.pairwise(same)]
        for kind, group in (("uniform", received), ("repeated", differences)):
            if group and p_value(np.concatenate([array.ravel() for array in group])) < LEVEL / tests:
                found.append(f"{kind}: {name[0]} from {name[1]}")
        for array in received:
            if array.shape == v.shape and v.std() > 0:
                correlation = np.corrcoef(array.astype(np.float64), v)[0, 1]
                if abs(correlation) > 5.5 / np.sqrt(len(v)):
                    found.append(f"correlated: {name[0]} from {name[1]}")
    return found


def data(kind: str, parties: tuple[str, ...]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(5)
    if kind == "zero":
        return {party: np.zeros((N, P), order="F") for party in parties}, np.zeros(N, dtype=bool)
    if kind == "extreme":
        return {party: np.full((N, P), 3.0, order="F") for party in parties}, np.ones(N, dtype=bool)
    return {party: np.asfortranarray(rng.uniform(-3, 3, (N, P))) for party in parties}, rng.random(N) < 0.5


def whole(
    kind: str, m: int, k: int, versions: int = 3, openings: int = 30, **more: object
) -> tuple[Session, np.ndarray]:
    """Run a session with several versions and openings of every party's block; return it with the last margins."""
    parties = tuple(f"party-{i}" for i in range(m))
    X, y = data(kind, parties)
    run = Session(Roles(parties, parties[0], k), X, y, **more)
    number = 0
    for owner in parties:
        run.set_up(owner, 0, P)
    for seed in range(versions):
        w = model(run, seed, 0.5)
        version = run.share(w)
        for owner in parties:
            run.residuals(version, owner)
            for _ in range(openings):
                number += 1
                run.open(version, owner, 0, P, number)
    return run, sum(run.X[party] @ own for party, own in w.items())


@pytest.mark.parametrize("kind", ["zero", "extreme", "random"])
@pytest.mark.parametrize(("m", "k"), [(2, 1), (3, 1), (3, 2)])
def test_every_view_is_uniform_whatever_the_data_are(kind, m, k):
    run, v = whole(kind, m, k)
    assert not run.views[DEALER], "the dealer receives nothing"
    received = {who: {request for request, _, _ in view} for who, view in run.views.items()}
    assert received[COORDINATOR] == {"opening"}
    for party in run.roles.parties:
        opened = {"opened masks", "opened rows"} if party == run.roles.label else set()
        assert received[party] <= {"set-up", "angles", "Fourier terms", "residual", "sum"} | opened
    for view in run.views.values():
        assert suspicions(view, v) == []


def test_views_of_two_data_sets_have_one_distribution():
    """Compare byte counts of both runs with one another, participant by participant."""
    runs = [whole(kind, 2, 1)[0] for kind in ("zero", "random")]
    for who in runs[0].views:
        counts = [
            np.bincount(
                np.frombuffer(b"".join(array.tobytes() for _, _, array in run.views[who]), np.uint8), minlength=256
            )
            for run in runs
        ]
        joint = (counts[0] + counts[1]) / 2
        assert chi2.sf((((counts[0] - joint) ** 2 + (counts[1] - joint) ** 2) / joint).sum(), 255) > LEVEL


# What the coordinator and the dealer know together


def unmasked(run: Session, version, owner: str, holder: str, number: int) -> np.ndarray:
    """Return what coordinator and dealer compute of one party's words: less the dealt words, and U put back on.

    What is left is Qᵀb + e at a holder, b known to the dealer, and a share of zero where there is one.
    """
    opening = Opening(owner, 0, P, version, ReleaseKey(number))
    words = run.words(opening)[holder]
    streams = run.deals._streams
    dealt = Streams._key(streams, holder, ("sum", *opening.name))
    b = run.deals._masks[version][owner]
    U = streams.again(owner, *opening.block).words(P, len(run.y))
    return words - Stream(dealt).words(P) + kernels.products(U, b)


def candidates(run: Session, left: np.ndarray, b: np.ndarray, owner: str) -> list[bool]:
    """Return for the true columns, and for columns that differ by 1 in one entry, whether they explain what is left."""
    found = []
    for change in (0, 1):
        Q = run.columns[owner].rows.astype(np.int64)
        Q[0, 0] += change
        found.append(bool((abs(decoded(left - kernels.products(Q.view(np.uint64), b))) < NOISE).all()))
    return found


def test_coordinator_and_dealer_together_learn_no_column():
    run = session(2, 1, n=N, p=P)
    owner, holder = run.roles.parties
    run.set_up(owner, 0, P)
    version = run.share(model(run))
    run.residuals(version, owner)
    for number in range(1, 60):
        left = unmasked(run, version, owner, holder, number)
        assert not any(candidates(run, left, run.deals._masks[version][owner], owner))


class WithoutZeroShares(Member):
    """Broken: the words of an opening carry no share of zero, so that only the dealer's words hide them."""

    def contribution(self, opening, deviations):
        words = super().contribution(opening, deviations)
        for other in self._roles.parties:
            if other != self.name:
                mask = Stream(self._streams._key(other, ("zero", *opening.name))).words(opening.size)
                words = words - mask if self.name < other else words + mask
        return words


def test_without_zero_shares_coordinator_and_dealer_recognise_one_entry_of_a_column():
    run = session(2, 1, n=N, p=P, member=WithoutZeroShares)
    owner, holder = run.roles.parties
    run.set_up(owner, 0, P)
    version = run.share(model(run))
    run.residuals(version, owner)
    left = unmasked(run, version, owner, holder, 1)
    assert candidates(run, left, run.deals._masks[version][owner], owner) == [True, False]


# Broken on purpose


class OneMask(Streams):
    """Broken: ρ is the same for all versions."""

    def once(self, other, *name):
        return Stream(self._key(other, ("angles",))) if name[0] == "angles" else super().once(other, *name)


class NoDealtMask(Streams):
    """Broken: the dealer's words of an opening are not shared, z is left out."""

    def once(self, other, *name):
        return _Zeros() if name[0] == "sum" else super().once(other, *name)


class NoShares(Streams):
    """Broken: the Fourier terms are not shared, so that one holder has them whole."""

    def once(self, other, *name):
        return _Zeros() if name[0] == "Fourier terms" else super().once(other, *name)


class NoResidualMask(Streams):
    """Broken: b is left out, and an owner receives a holder's share itself."""

    def once(self, other, *name):
        return _Zeros() if name[0] == "residual" else super().once(other, *name)


class _Zeros:
    def words(self, *shape):
        return np.zeros(shape, dtype=np.uint64)

    def fill(self, out):
        out[...] = 0
        return out


def broken(monkeypatch, streams: type[Streams], kind: str = "random") -> list[str]:
    monkeypatch.setattr(sessions, "Streams", streams)
    run, v = whole(kind, 2, 1, versions=3, openings=20)
    return [found for view in run.views.values() for found in suspicions(view, v)]


def test_a_mask_of_angles_that_is_used_twice_is_found(monkeypatch):
    found = broken(monkeypatch, OneMask)
    assert any(text.startswith("repeated: angles") for text in found)


def test_terms_that_are_not_shared_are_found(monkeypatch):
    assert any(text.startswith("uniform: Fourier terms") for text in broken(monkeypatch, NoShares))


def test_an_unmasked_share_of_residuals_completes_the_owners(monkeypatch):
    """The words alone are uniform, being a share; with the owner's own share they are the residuals."""
    for streams, readable in ((NoResidualMask, True), (Streams, False)):
        monkeypatch.setattr(sessions, "Streams", streams)
        run = session(2, 1, n=N, p=P)
        owner = run.roles.parties[0]
        version = run.share(model(run))
        run.residuals(version, owner)
        received = next(array for request, _, array in run.views[owner] if request == "residual")
        seen = decoded(run.members[owner].share(version) + received)
        assert bool((abs(seen) <= run.R).all()) is readable


def test_the_dealers_words_without_their_mask_confirm_residuals(monkeypatch):
    """With z left out, an owner that guesses the residuals sees its guess confirmed by Uᵀb."""
    for streams, readable in ((NoDealtMask, True), (Streams, False)):
        monkeypatch.setattr(sessions, "Streams", streams)
        run = session(2, 1, n=N, p=P)
        owner, _ = run.roles.parties
        run.set_up(owner, 0, P)
        version = run.share(model(run))
        run.residuals(version, owner)
        run.open(version, owner, 0, P, 1)
        received, dealt = (
            next(array for request, _, array in run.views[owner] if request == wanted) for wanted in ("residual", "sum")
        )
        guess = run.clear_residuals(version).view(np.uint64)
        b = run.members[owner].share(version) + received - guess
        b = np.uint64(0) - b
        U = run.members[owner]._streams.again(DEALER, "block", 0, owner, 0, P).words(P, N)
        assert bool((abs(decoded(dealt - kernels.products(U, b))) < NOISE).all()) is readable


def test_masked_columns_sent_to_the_dealer_are_readable_there():
    run = session(2, 1, n=N, p=P)
    owner = run.roles.parties[0]
    masked = run.members[owner].masked_columns(0, P)
    U = run.deals._streams.again(owner, "block", 0, owner, 0, P).words(P, N)
    assert (decoded(masked + U) == run.columns[owner].rows).all()
    assert p_value(masked) > LEVEL


class SilentDealer(Dealer):
    """Broken: it adds no noise, as a dealer that pools with nobody could without being caught."""

    def sum(self, opening, deviations):
        return super().sum(opening, deviations._replace(dealer=1e-3))


def test_a_dealer_without_noise_is_not_caught():
    """The model is semi-honest (docs/secure.md): the sum opens, and lacks the dealer's noise alone."""
    run = session(2, 1, n=N, p=P, dealer=SilentDealer)
    owner = run.roles.parties[0]
    run.set_up(owner, 0, P)
    version = run.share(model(run))
    run.residuals(version, owner)
    clear = run.columns[owner].rows.astype(np.int64) @ run.clear_residuals(version)
    dealers = noise.drawn(SeededNoise(run.seed), ReleaseKey(1), DEALER, run.deviations(owner).dealer, P)
    assert dealers.all()
    assert (run.open(version, owner, 0, P, 1) == clear + run.noises(owner, P, 1) - dealers).all()
