"""Members that deviate: a sum beyond the range ends the run unreleased, and nobody chooses words by those of others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vfl
from coordinator.coordinator import Coordinator
from coordinator.rounds import Round
from parties.dealing import Dealer
from tests.coordinator.shares import Watched, job, outcome, table
from tests.secure import session as sessions
from vfl.errors import FederationError, PrivacyError
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.secure import requests
from vfl.secure.gram import GramMember
from vfl.secure.member import Member

DATA = table()
REGRESSION = {**DATA, "y": DATA["y"] + 0.1 * DATA["x0"]}
RECORD = 7


def squared() -> vfl.Job:
    return job(loss="squared", solver=vfl.solvers.NoisyGram(), bounds={"*": (-2, 2), "y": (-1, 2)})


def holder(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have a holder add 2^49 to the masked residual of one record: opened sums are then 2^49 times the record's row."""
    honest = Member.masked_residual

    def deviating(self: Member, *given: Any) -> Any:
        words = honest(self, *given)
        words[RECORD] += np.uint64(1 << 49)
        return words

    monkeypatch.setattr(Member, "masked_residual", deviating)
    return job(), DATA


def dealer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have the dealer add 2^36 to the Fourier terms of one record, which the check of opened rows misses as a rule."""
    honest = Dealer.fourier_terms

    def deviating(self: Dealer, *given: Any) -> Any:
        for number, part in enumerate(honest(self, *given)):
            if not number:
                part[RECORD, :2] += np.uint64(1 << 36)
            yield part

    monkeypatch.setattr(Dealer, "fourier_terms", deviating)
    return job(privacy=vfl.Privacy(epsilon=8.0, noise=vfl.SeededNoise(1))), DATA


def owner(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have an owner add 2^42 to one masked entry of a column: opened products are then 2^42 times another party's entry."""
    honest = GramMember.masked_columns

    def deviating(self: GramMember, *given: Any) -> Any:
        words = honest(self, *given)
        words[0, RECORD] += np.uint64(1 << 42)
        return words

    monkeypatch.setattr(GramMember, "masked_columns", deviating)
    return squared(), REGRESSION


@pytest.mark.parametrize("deviation", [holder, dealer, owner])
def test_a_sum_that_no_data_and_noise_explain_ends_the_run(deviation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = Watched(*deviation(monkeypatch))
    seen: list[Any] = []
    with pytest.raises(PrivacyError, match=r"out of range.*any party.*dealer"):
        seen.extend(Coordinator(transport).stream(transport.spec))
    assert not [e for e in seen if isinstance(e, Round) and e.kind == "Backward"]


class Last(Watched):
    """Transport in which one party answers last, and moves its words after it has seen those of all others."""

    def post(self, to: str, message: Any, *given: Any, **options: Any) -> Any:
        """Alter the words of q1."""
        posted = super().post(to, message, *given, **options)
        reply = posted.answer[0]
        if to == "q1" and isinstance(reply, requests.Contribution):
            words = np.frombuffer(reply.elements, dtype="<u8") + np.uint64(1)
            posted = replace(posted, answer=(replace(reply, elements=words.tobytes()), *posted.answer[1:]))
        return posted


@pytest.mark.parametrize("made", [(job, DATA), (squared, REGRESSION)])
def test_words_are_those_that_were_committed_to(made: Any) -> None:
    spec, data = made
    with pytest.raises(PrivacyError, match=r"'q1' disclosed.*committed"):
        outcome(Last(spec(), data))


@pytest.mark.parametrize("made", [(job, DATA), (squared, REGRESSION)])
def test_no_words_are_disclosed_before_all_parties_have_committed(made: Any) -> None:
    """Replies of the requests before hold no words, and a party discloses its words once."""
    spec, data = made
    transport = Watched(spec(), data)
    outcome(transport)
    replies = [reply for reply in transport.replies if isinstance(reply, requests.Commitment | requests.Contribution)]
    assert replies
    for at in range(0, len(replies), 4):
        first, second = replies[at : at + 2], replies[at + 2 : at + 4]
        assert all(isinstance(reply, requests.Commitment) and len(reply.digest) == 32 for reply in first)
        assert all(isinstance(reply, requests.Contribution) and len(reply.nonce) == 32 for reply in second)
    assert len({reply.nonce for reply in replies if isinstance(reply, requests.Contribution)}) == len(replies) // 2
    to, request = next(
        (to, request) for to, request in reversed(transport.requests) if isinstance(request, requests.Disclose)
    )
    with pytest.raises(FederationError, match="not committed to"):
        InProcessTransport.post(transport, to, request, (), 0)


def test_a_record_that_counts_for_half_of_all_is_read_and_not_found() -> None:
    """The range admits it, as docs/secure.md states: the opened sum shows the entry to a few parts in n."""
    run = sessions.session(2, 1, n=4000, p=3)
    owner, other = run.roles.parties
    run.set_up(owner, 0, 3)
    version = run.share(sessions.model(run, size=0.01))
    masked, factor = run.members[other].masked_residual(version, owner), len(run.y) * run.R // 2
    masked[RECORD] += np.uint64(factor)
    run.members[owner].take_residual(version, other, masked)
    opening = run.open(version, owner, 0, 3, 1)
    rows = run.columns[owner].rows.astype(np.int64)
    honest = rows @ run.clear_residuals(version)
    read = (opening - honest) / factor
    assert abs(read - rows[:, RECORD]).max() < 5 * 7 * run.z / len(run.y) * 2**run.bits.columns
