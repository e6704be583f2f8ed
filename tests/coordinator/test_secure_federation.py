"""Training on shares across organisations: over gRPC on loopback, the dealer at the coordinator or an organisation."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import vfl
from coordinator.federation.gathering import ConnectedMembers, Link
from coordinator.rounds import Lost
from tests.coordinator.organisations import POLICY, federation
from tests.coordinator.shares import N, job, table
from tests.faults.at_requests import AFTER, BEFORE, at_requests
from vfl.errors import ConsentRefused, FederationError, SpecificationError
from vfl.launch.sites import federation as site
from vfl.launch.sources import sources_of
from vfl.network.federation.events import Allowed, Ended, Released, Requested
from vfl.planning.certificate import verify
from vfl.secure.requests import Request
from vfl.secure.roles import DEALER

if TYPE_CHECKING:
    from collections.abc import Callable


def wait_for(what: Callable[[], object], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "in vain"
        time.sleep(0.01)


wait, admitted = ConnectedMembers.wait, ConnectedMembers._admitted
SHARED = POLICY.replace('["trusted"]', '["secure"]')
AT_COORDINATOR = vfl.federation.Secure(dealer="coordinator")
JOINT: dict[str, Any] = {
    "solver": vfl.SkGD(joint=True, passes=4),
    "privacy": vfl.Privacy(epsilon=45.0, noise=vfl.SeededNoise(3)),
}
SQUARED: dict[str, Any] = {"loss": "squared", "solver": vfl.solvers.NoisyGram(), "bounds": {"*": (-2, 2), "y": (0, 1)}}


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """Two parties whose owners accept training on shares alone, and a dealer."""
    with federation(tmp_path_factory.mktemp("federation"), ("q0", "q1"), dealer="notary") as joined:
        joined.start("notary", None)
        for name, source in sources_of(job(), table()).items():
            joined.start(name, source, policy=joined.policy(name, SHARED))
        yield joined


@pytest.mark.parametrize(
    "options",
    [{}, SQUARED, JOINT, {"evaluation": vfl.Evaluation(holdout=0.4)}],
    ids=["logistic", "squared", "joint steps", "measures"],
)
def test_organisations_send_at_most_twice_what_the_plan_states(
    joined: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dealer is a third organisation: every ciphertext travels to the coordinator and on to its receiver."""
    moved, call = [0], Link.call

    def counting(self: Link, *messages: Any, vectors: Any = None, **rest: Any) -> Any:
        answer = call(self, *messages, vectors=vectors, **rest)
        wait = answer.wait

        def counted(seconds: float) -> Any:
            reply, found = wait(seconds)
            words = [getattr(reply, name, b"") for name in ("elements", "nonce", "digest")]
            with lock:
                moved[0] += sum(map(len, (*vectors.values(), *found.values(), *words)))
            return reply, found

        if isinstance(messages[0], Request):
            answer.wait = counted
        return answer

    lock = threading.Lock()
    monkeypatch.setattr(Link, "call", counting)
    spec = job(trust=vfl.federation.Secure(margin=None if "loss" in options else 8.0), **options)
    vfl.train(spec, at=joined.place)
    stated = vfl.plan(spec, N).n_bytes
    assert 0.9 * 2 * stated <= moved[0] <= 2 * stated


@pytest.mark.parametrize("dealer", ["separate", "coordinator", "none"])
@pytest.mark.parametrize(
    "options",
    [{}, SQUARED, JOINT, {"evaluation": vfl.Evaluation(holdout=0.4)}],
    ids=["logistic", "squared", "joint steps", "measures"],
)
def test_across_organisations_and_in_process_agree_to_the_bit(
    joined: Any, options: dict[str, Any], dealer: str
) -> None:
    spec = job(trust=vfl.federation.Secure(dealer=dealer), **options)
    there, here = vfl.train(spec, at=joined.place), vfl.train(spec, table(), at="inprocess")
    assert (there.w == here.w).all()
    assert there.certificate.trust["dealer"] == dealer
    organisation = {"separate": "notary", "coordinator": "hub"}.get(dealer)
    stated = {"name": "credit", "digest": joined.federation.digest}
    assert there.certificate.federation == (stated | {"dealer": organisation} if organisation else stated)
    assert (f"'{organisation}' dealt" in str(there.certificate)) is (organisation is not None)
    assert check(there.certificate, federation=joined.federation.stated(dealer))
    assert here.certificate.federation == {}
    assert not any("one process" in flag or "one Ray" in flag for flag in there.certificate.flags)
    assert there.certificate.party_ledgers.keys() == {"q0", "q1"}


def check(certificate: Any, **options: Any) -> bool:
    """Return True if the certificate's trust and federation hold."""
    found = {check.name: check.holds for check in verify(certificate, **options).checks}
    return bool(found["trust"] and found["federation"])


def test_a_job_without_a_dealer_asks_the_federations_dealer_for_nothing(joined: Any) -> None:
    before = len(joined.events["notary"])
    vfl.train(job(trust=vfl.federation.Secure(dealer=None)), at=joined.place)
    assert not [event for event in joined.events["notary"][before:] if isinstance(event, Requested | Allowed)]
    request = [event for event in joined.events["q0"] if isinstance(event, Requested)][-1]
    assert request.threats.startswith("homomorphic encryption between the two parties in place of a dealer")


def test_a_coordinator_cannot_add_a_dealer_to_a_job_without_one(joined: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The federation's dealer refuses the job itself, whose digest the owners have accepted."""
    monkeypatch.setattr(site, "dealer_of", lambda spec, federation: "notary")
    with pytest.raises(FederationError, match="'notary' deals only for jobs on shares that name a separate dealer"):
        vfl.train(job(trust=vfl.federation.Secure(dealer=None)), at=joined.place)


def test_fresh_noise_is_booked_by_every_party(joined: Any) -> None:
    spec = job(trust=AT_COORDINATOR, privacy=vfl.Privacy(epsilon=8.0), solver=vfl.SkGD(block_size=4, passes=3))
    before = {party: len(joined.events[party]) for party in ("q0", "q1")}
    found = vfl.train(spec, at=joined.place)
    assert found.certificate.private
    assert found.certificate.flags == ()
    for party, count in before.items():  # its owner's screen shows the cost while the run goes on
        made = [event for event in joined.events[party][count:] if isinstance(event, Released)]
        assert made[0].releases >= 1
        assert made[0].epsilon is not None
        assert 0 < made[0].epsilon <= 8.0


@pytest.mark.parametrize("cut", [("ShareResidual", "q1", BEFORE), ("DealSum", DEALER, AFTER)], ids=["party", "dealer"])
def test_a_stream_that_breaks_at_a_request(
    joined: Any, monkeypatch: pytest.MonkeyPatch, cut: tuple[str, str, str]
) -> None:
    """The stream stays away until the loss is found. tests/faults/test_lost_shares.py kills processes at every request."""
    pending, keys, lost, open_ = [cut], [], [], []
    away: set[str] = set()

    def act(*here: str) -> None:
        if pending and here == pending[0]:
            pending.pop()
            name = "notary" if here[1] == DEALER else here[1]
            away.add(name)
            open_[-1].link(name, 0.0).end("it was cut")

    def watch(event: object) -> None:
        if isinstance(event, Lost):
            lost.append(event)
            away.clear()

    monkeypatch.setattr(
        ConnectedMembers, "_admitted", lambda self, link: link.party not in away and admitted(self, link)
    )
    monkeypatch.setattr(ConnectedMembers, "wait", lambda self, *given: (open_.append(self), wait(self, *given))[1])
    at_requests(act, monkeypatch, keys)
    spec = job()
    there = vfl.train(spec, at=joined.place, watch=watch)
    assert (there.w == vfl.train(spec, table(), at="inprocess").w).all()
    assert [event.party for event in lost] == [cut[1]]
    assert len(keys) == len(set(keys)) == 6  # two sessions of three participants


def test_owners_who_accept_shares_alone_refuse_trusted_mode(joined: Any) -> None:
    with pytest.raises(ConsentRefused, match=r"trust = \[\"secure\"\]|trust"):
        vfl.train(job(trust="trusted"), at=joined.place)


def test_the_dealer_sees_the_request_and_no_policy(joined: Any) -> None:
    vfl.train(job(), at=joined.place)
    request = [event for event in joined.events["notary"] if isinstance(event, Requested)][-1]
    assert (request.columns, request.source, request.threats) == ((), "", "a separate dealer, up to 1 party may pool")
    assert Allowed(run=request.run, policy=False) in joined.events["notary"]
    wait_for(lambda: any(isinstance(e, Ended) and e.run == request.run for e in joined.events["notary"]))
    ended = next(e for e in joined.events["notary"] if isinstance(e, Ended) and e.run == request.run)
    assert (ended.why, ended.records, ended.epsilon, ended.left) == ("", N, None, None)
    assert ended.releases == 12  # three passes over two blocks of each party


def test_a_job_needs_the_dealer_that_it_names(tmp_path: Any) -> None:
    with (
        federation(tmp_path, ("q0", "q1")) as joined,
        pytest.raises(SpecificationError, match=r"'credit' names none.*vfl federation new"),
    ):
        vfl.train(job(), at=joined.place)


def test_a_coordinator_cannot_deal_in_place_of_the_dealer(joined: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parties check the dealer's key against the certificate of the federation's dealer, not the coordinator's."""
    monkeypatch.setattr(site, "dealer_of", lambda spec, federation: None)
    with pytest.raises(FederationError, match=r"not signed by .*'dealer'"):
        vfl.train(job(), at=joined.place)
