"""Hold-outs of two parties without a dealer: measures against those in the clear, bytes, losses, and lies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vfl
from coordinator.rounds import Lost, Round
from tests.coordinator.shares import Watched, outcome
from tests.coordinator.test_measures_on_shares import DATA, LostWhileMeasuring, N, clear, measured
from tests.secure.test_cost import sent
from tests.secure.test_measures import area
from vfl.errors import FederationError, PrivacyError
from vfl.planning import plan
from vfl.privacy.events import ReleaseKey
from vfl.secure import requests
from vfl.secure.roles import DEALER

ALONE = vfl.federation.Secure(dealer=None, margin=4.0)


def alone(**options: Any) -> vfl.Job:
    return measured(**{"trust": ALONE, "solver": vfl.SkGD(block_size=4, passes=1)} | options)


@pytest.fixture(scope="module")
def whole() -> Any:
    transport = Watched(alone(), DATA)
    return outcome(transport)[0], transport


def test_without_noise_they_are_those_of_the_clear_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vfl.secure.noise.drawn", lambda noise, key, who, s, size: np.zeros(size, np.int64))
    spec = alone(privacy=vfl.Privacy(epsilon=100.0, noise=vfl.SeededNoise(3)))
    found, _ = outcome(Watched(spec, DATA))
    v, y = clear(spec, found.w)
    own = found.findings["held out"].measures
    lost = np.minimum(np.log1p(np.exp(np.where(y, -v, v))), 4 * np.log(2)).mean()
    assert own["auc"].value == pytest.approx(area(v, y), abs=0.004)
    assert own["loss"].value == pytest.approx(lost, abs=0.004)
    assert own["accuracy"].value == pytest.approx(((v > 0) == y).mean(), abs=0.01)


def test_the_noise_is_that_of_both_parties(whole: Any) -> None:
    (own,) = plan(alone(), N).evaluations
    moments, event = own.opened[1]
    assert whole[0].findings["held out"].histogram.sigma == pytest.approx(np.sqrt(2) * moments.deviation(event.sigma))


def test_nobody_deals_and_a_plan_bounds_the_bytes(whole: Any) -> None:
    _, transport = whole
    assert DEALER not in {to for to, _ in transport.requests}
    total, stated = sum(sent(transport).values()), plan(alone(), N).n_bytes
    assert 0.9 * stated < total <= stated


@pytest.mark.parametrize(
    ("lost", "who", "answered"),
    [
        (requests.Begin, "q1", False),
        (requests.MaskMoments, "q0", True),
        (requests.MaskMoments, "q1", False),
        (requests.TakeMoments, "q0", True),
        (requests.ContributeMoments, "q0", True),
        (requests.ContributeMoments, "q1", False),
        (requests.Disclose, "q1", True),
    ],
)
def test_a_loss_at_every_request(whole: Any, lost: type, who: str, answered: bool) -> None:
    transport = LostWhileMeasuring(alone(), DATA, answered=answered)
    transport.held_back = (lost, who)
    found, events = outcome(transport)
    assert len([event for event in events if isinstance(event, Lost)]) == 1
    assert found.findings["held out"].to_dict() == whole[0].findings["held out"].to_dict()


def test_kill_and_resume(whole: Any, tmp_path: Any) -> None:
    """The first release is read from the log, and the second is made once."""

    class Killed(Exception):
        pass

    def watch(event: object) -> None:
        if isinstance(event, Round) and event.kind == "SharedTally":
            raise Killed

    with pytest.raises(Killed):
        vfl.train(alone(), DATA, at="inprocess", output=tmp_path / "run", watch=watch)
    again = vfl.resume(tmp_path / "run", DATA, at="inprocess")
    assert again.findings["held out"].to_dict() == whole[0].findings["held out"].to_dict()


def version(**changes: Any) -> Any:
    return lambda own: replace(own, version=replace(own.version, **changes))


def words(transport: Watched, lies: dict[str, Any]) -> np.ndarray:
    """Return the sum of both parties' words for one more release in the open session.

    lies : {party: change of the request to it}.
    """
    asked = next(r for _, r in reversed(transport.requests) if isinstance(r, requests.ContributeMoments))
    elements = []
    for name, party in transport.holders.items():
        request = lies.get(name, lambda own: own)(replace(asked, number=0, key=ReleaseKey(700 + transport.lied)))
        party._holder.request(request, [])
        contribution, _ = party._holder.request(requests.Disclose(asked.session), [])
        elements.append(np.frombuffer(contribution.elements, dtype="<u8"))
    transport.lied += 1
    ring = plan(transport.spec, N).sharing.roles.ring
    shortest = min(map(len, elements))
    return ring.decoded(ring.added([own[:shortest] for own in elements]))


class TestLies:
    """Requests of a coordinator that lies, in a session that is still open."""

    @pytest.fixture(autouse=True)
    def _counted(self, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        if not hasattr(whole[1], "lied"):
            whole[1].lied = 0
        for party in whole[1].holders.values():  # a release beyond the plan, as if it was planned
            reservation = party._holder.charges._reservation
            monkeypatch.setattr(reservation, "charge", lambda items: None)

    @pytest.mark.parametrize("to", ["q0", "q1"])
    @pytest.mark.parametrize(
        "lie",
        [
            lambda own: replace(own, number=1),
            lambda own: replace(own, key=replace(own.key, attempt=7)),
            lambda own: replace(own, key=replace(own.key, round=5)),
            lambda own: replace(own, key=replace(own.key, part=1)),
        ],
        ids=["number", "attempt", "round", "part"],
    )
    def test_words_for_different_releases_do_not_cancel(self, whole: Any, to: str, lie: Any) -> None:
        """If they did, the sum would hold the moments times the difference of two public matrices, without noise."""
        largest = plan(alone(), N).sharing.measuring.largest(0, plan(alone(), N).sharing.measuring.bits(0))
        assert (abs(words(whole[1], {})) <= largest).all()
        assert (abs(words(whole[1], {to: lie})) > largest).any()

    @pytest.mark.parametrize("to", ["q0", "q1"])
    @pytest.mark.parametrize(
        "lie",
        [
            lambda own: replace(own, number=-1),
            lambda own: replace(own, number=2),
            lambda own: replace(own, key=ReleaseKey(-1)),
            version(attempt=1),
            version(model="other"),
            version(place=99),
            version(held_out=False),
        ],
        ids=["no number", "number", "key", "attempt", "model", "place", "training"],
    )
    def test_a_release_that_is_not_planned(self, whole: Any, to: str, lie: Any) -> None:
        with pytest.raises((PrivacyError, FederationError, vfl.errors.ConsentRefused)):
            words(whole[1], {to: lie})

    def test_no_request_is_answered_twice_or_in_a_session_of_another_kind(self, whole: Any) -> None:
        transport = whole[1]
        for kind, to in ((requests.MaskMoments, "q0"), (requests.MaskMoments, "q1"), (requests.TakeMoments, "q0")):
            asked = next(r for who, r in reversed(transport.requests) if isinstance(r, kind) and who == to)
            holder = transport.holders[to]._holder
            with pytest.raises((PrivacyError, FederationError)):
                holder.request(asked, [b""] * holder.takes(asked))
            with pytest.raises(FederationError):
                transport.holders["q1"]._holder.request(requests.TakeMoments(asked.session, asked.version), [])
        session = next(r.session for _, r in reversed(transport.requests))
        for to, asked in transport.requests:
            if isinstance(asked, requests.SUMS):
                holder = transport.holders[to]._holder
                lie = replace(asked, session=session)
                with pytest.raises((PrivacyError, FederationError), match=r"does not answer|encrypted message|series"):
                    holder.request(lie, [b""] * holder.takes(lie))
