"""Messages that a coordinator could send to learn more on shares than was charged: each contributor refuses them by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import vfl
from coordinator.transport import NOTHING, PendingCall
from parties.dealing import DealerService
from tests.coordinator.shares import N, Watched, job, outcome, table
from vfl.errors import FederationError, PartyLost, PrivacyError, VflError
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.network.messages import Done
from vfl.secure import requests
from vfl.secure.requests import openings
from vfl.secure.roles import DEALER
from vfl.secure.sigmoid import SERIES

if TYPE_CHECKING:
    from vfl.queries import Backward

PRIVACY = vfl.Privacy(epsilon=8.0)


@pytest.fixture(scope="module", params=["pass", "gradient"])
def run(request: Any) -> Watched:
    """Return the transport of a run with private noise; its participants keep their last session."""
    solver = vfl.SkGD(block_size=2, passes=2) if request.param == "pass" else vfl.solvers.GD(passes=2)
    transport = Watched(job(3, 1, privacy=PRIVACY, solver=solver), table())
    outcome(transport)
    return transport


def last(run: Watched, kind: type) -> Any:
    """Return the last request of a kind, with its receiver."""
    return next((to, request) for to, request in reversed(run.requests) if isinstance(request, kind))


def louder(query: Backward, factor: float) -> Backward:
    """Return the query with its noise times a factor, in the charge of its pass too."""
    event = replace(query.event, sigma=query.event.sigma * factor)
    if query.capped is None:
        return replace(query, event=event)
    paid = query.capped.paid
    charged = replace(paid.event, sigma=paid.event.sigma * factor)
    new = replace(paid, key=replace(paid.key, round=paid.key.round + 50), event=charged)
    return replace(query, event=event, capped=replace(query.capped, paid=new))


def asked_again(run: Watched, request: requests.Contribute, **changes: Any) -> None:
    """Ask a party, which owns no block of the query if there is one, once more."""
    owners = requests.owners_of(request.query)
    holder = next((run.holders[to] for to in run.holders if to not in owners), run.holders["q0"])._holder
    request = replace(request, fresh=(), **changes)
    holder._contribution(request, holder._member, holder._session, {})


@pytest.mark.parametrize("factor", [1e-3, 0.99])
def test_noise_below_every_planned_release_is_refused(run: Watched, factor: float) -> None:
    """Each contributor compares σ/Δ with its own plan, so that no message lowers a deviation."""
    _, request = last(run, requests.Contribute)
    least = run.holders["q0"]._holder.sharing.multiplier
    lowered = louder(request.query, factor * least * request.query.event.sensitivity / request.query.event.sigma)
    with pytest.raises(PrivacyError, match="less noise than any release"):
        asked_again(run, request, query=lowered)
    _, deal = last(run, requests.DealSum)
    with pytest.raises(PrivacyError, match="less noise than any release"):
        InProcessTransport.post(run, DEALER, replace(deal, query=lowered))


def test_the_same_opening_is_not_made_twice(run: Watched) -> None:
    """Equal masks under other noise, or equal noise under other masks, would average away or show a difference."""
    _, request = last(run, requests.Contribute)
    opening = openings(request.query, request.key, request.setup, request.version)[0]
    holder = next(party._holder for name, party in run.holders.items() if name != opening.owner)
    deviations = holder.sharing.deviations(opening.owner, request.query.clip.cap, request.query.event.sigma)
    with pytest.raises(PrivacyError, match="asked for twice"):
        holder._member.contribution(opening, deviations)
    if request.query.capped is not None:  # the charge of a pass pays for a coordinate once, under any key
        with pytest.raises(PrivacyError, match="twice in one pass"):
            asked_again(run, request, key=replace(request.key, attempt=9))
    _, deal = last(run, requests.DealSum)
    with pytest.raises(PrivacyError, match="asked for twice"):
        InProcessTransport.post(run, DEALER, deal)


def test_another_cap_set_up_or_series_is_refused(run: Watched) -> None:
    _, request = last(run, requests.Contribute)
    wider = replace(request.query, clip=replace(request.query.clip, cap=2.0 * request.query.clip.cap))
    for changes in (
        {"query": wider},
        {"setup": request.setup + 1},
        {"version": replace(request.version, place=len(SERIES))},
        {"version": replace(request.version, place=-1)},
        {"query": replace(request.query, event=None)},
    ):
        with pytest.raises(PrivacyError):
            asked_again(run, request, **changes)


def test_a_pass_claims_the_rounding_of_all_columns(run: Watched) -> None:
    """A record cap over nobody would let a pass claim the sensitivity of one block."""
    _, request = last(run, requests.Contribute)
    query = request.query
    if query.capped is None:  # its charge pays for the sum alone
        return
    clip = replace(query.clip, dimension=query.blocks[0].size)
    event = replace(query.event, sensitivity=clip.sensitivity)
    paid = replace(query.capped.paid, key=replace(query.capped.paid.key, round=99), event=event)
    with pytest.raises(PrivacyError):
        asked_again(
            run, request, query=replace(query, clip=clip, event=event, capped=replace(query.capped, paid=paid, rows={}))
        )


def test_a_request_of_another_session_is_refused(run: Watched) -> None:
    for kind in (
        requests.Contribute,
        requests.MaskAngles,
        requests.ShareResidual,
        requests.DealSum,
        requests.DealTerms,
    ):
        to, request = last(run, kind)
        with pytest.raises(FederationError, match="a session that has ended"):
            InProcessTransport.post(run, to, replace(request, session="another"))


def test_a_version_is_masked_once(run: Watched) -> None:
    """A second model under the masks of the first would show the difference of two margins."""
    to, request = last(run, requests.MaskAngles)
    with pytest.raises(PrivacyError, match="asked for twice"):
        InProcessTransport.post(run, to, replace(request, w=request.w + 1.0))


def test_a_set_up_is_masked_once(run: Watched) -> None:
    """Masked columns of two scales under one mask would show their difference to the holders."""
    to, request = last(run, requests.SetUp)
    with pytest.raises(PrivacyError, match="new set-up number"):
        InProcessTransport.post(run, to, replace(request, cap=2.0 * request.cap))


def test_a_dealer_that_was_restarted_is_lost() -> None:
    """So that a run begins a new session, as after any loss, and does not end."""
    with pytest.raises(PartyLost, match="restarted"):
        DealerService(job(privacy=PRIVACY)).request(requests.DealTerms("session", None), ())  # type: ignore[arg-type]  # not read


@pytest.mark.parametrize("stated", [None, 1, -1])
def test_a_dealer_deals_only_for_the_number_of_records_that_the_parties_state(stated: int | None) -> None:
    """With a larger n, its noise would be smaller than planned; it would also allocate memory for each record."""
    run = Watched(job(privacy=PRIVACY, solver=vfl.SkGD(block_size=4, passes=1)), table())
    post = run.post

    def lying(to: str, request: Any, vectors: Any = NOTHING, due: Any = NOTHING, **options: Any) -> PendingCall:
        if to == DEALER and isinstance(request, requests.Begin) and stated is not None:
            request = replace(request, n_records=request.n_records + stated)
        if isinstance(request, requests.StateRecords | requests.CheckRecords) and stated is None:
            return PendingCall(to, (Done(), {}), dict.fromkeys(due, b""))
        return post(to, request, vectors, due, **options)

    run.post = lying  # type: ignore[method-assign]
    with pytest.raises(VflError, match=f"states {N}" if stated else "before the parties have stated"):
        outcome(run)
    assert not any(isinstance(request, requests.Contribute) for _, request in run.requests)
