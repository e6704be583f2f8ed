"""A coordinator that asks the dealer for what it may not: the dealer refuses in a sentence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import vfl
from parties.joined.desk import DealerDesk
from tests.coordinator.organisations import federation
from tests.coordinator.shares import job
from vfl.crypto.encryption import EncryptionKey
from vfl.network.federation.events import Refused
from vfl.network.kinds import to_plain
from vfl.network.messages import ALIGN, TRAIN, Done, Failure, Finish, Introduce, Load, Offer, Ping, Pong
from vfl.privacy.events import ReleaseKey
from vfl.secure.requests import DealProducts, DealTerms, Meet, TakeColumns, Version

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN = "0" * 32


class Asked:
    """The dealer's desk, asked as a coordinator asks it."""

    def __init__(self, joined: Any) -> None:
        self.events: list[Any] = []
        self.desk = DealerDesk(joined.federation, joined.identities["notary"], on_event=self.events.append)
        self.desk.connected(b"a" * 16)

    def ask(self, *messages: object, **vectors: Any) -> Any:
        """Return the answer to a call."""
        plain = to_plain(messages[0]) if len(messages) == 1 else tuple(map(to_plain, messages))
        return self.desk.answer(plain, vectors, lambda done: None)[0]

    def offer(self, spec: vfl.Job, purpose: str = TRAIN) -> Any:
        """Return the answer to an offer of the job."""
        return self.ask(Offer(purpose, RUN, json.dumps(spec.to_dict()), spec.digest, ("q0", "q1")))


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with federation(tmp_path_factory.mktemp("federation"), ("q0", "q1"), dealer="notary") as joined:
        yield joined


@pytest.fixture
def dealer(joined: Any) -> Asked:
    return Asked(joined)


@pytest.mark.parametrize(
    ("spec", "purpose", "said"),
    [
        (job(trust="trusted"), TRAIN, "'notary' deals only for jobs on shares that name a separate dealer"),
        (job(trust=vfl.federation.Secure(dealer="coordinator")), TRAIN, "'notary' deals only for jobs on shares"),
        (job(trust=vfl.federation.Secure(dealer=None)), TRAIN, "'notary' deals only for jobs on shares"),
        (job(), ALIGN, "the offer is not for this party, or has an unknown purpose"),
    ],
)
def test_offers_that_need_no_dealer(dealer: Asked, spec: vfl.Job, purpose: str, said: str) -> None:
    answer = dealer.offer(spec, purpose)
    assert isinstance(answer, Failure)
    assert said in answer.reason
    assert isinstance(dealer.ask(Meet("s")), Failure)


def test_only_requests_to_a_dealer_are_answered(dealer: Asked) -> None:
    assert dealer.offer(job()) == Done()
    for message in (Load(), Introduce(), TakeColumns("s", "q0")):
        answer = dealer.ask(message)
        assert isinstance(answer, Failure)
        assert "does not belong to this job" in answer.reason
    for message, said in (
        (DealTerms("s", Version("0" * 32, 0)), "the dealer was restarted and has no keys of the session"),
        (DealProducts("s", ReleaseKey(0)), "the dealer was restarted"),
    ):
        assert said in dealer.ask(message).reason
    assert sum(isinstance(event, Refused) for event in dealer.events) == 5


def test_a_ciphertext_is_refused(dealer: Asked) -> None:
    dealer.offer(job())
    answer = dealer.ask(Meet("s"), **{"ciphertext 0": b"encrypted"})
    assert isinstance(answer, Failure)


def test_a_session_is_signed_by_the_dealers_identity(dealer: Asked) -> None:
    dealer.offer(job())
    key = dealer.ask(Meet("s"))
    assert isinstance(key, EncryptionKey)
    assert key.signature
    assert dealer.ask(Meet("s")) != key  # new keys whenever a session is made


def test_a_link_is_checked_and_a_run_ends(dealer: Asked) -> None:
    assert isinstance(dealer.ask(Ping(0.0)), Pong)
    dealer.offer(job())
    assert dealer.desk.in_flight == (RUN,)
    assert dealer.ask(Finish("over")) == Done()
    assert dealer.desk.in_flight == ()
