"""Messages that a coordinator could send to learn more on shares than was charged: each contributor refuses them by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import vfl
from coordinator.transport import NOTHING, Posted
from parties.dealing import Dealing
from tests.coordinator.shares import N, Watched, job, outcome, table
from vfl.errors import FederationError, PartyLost, PrivacyError, VflError
from vfl.launch.engines.inprocess import InProcessTransport
from vfl.messages.joining import Done
from vfl.secure import legs
from vfl.secure.legs import openings
from vfl.secure.roles import DEALER
from vfl.secure.sigmoid import SERIES

if TYPE_CHECKING:
    from vfl.messages import Backward

PRIVACY = vfl.Privacy(epsilon=8.0)


@pytest.fixture(scope="module", params=["pass", "gradient"])
def run(request: Any) -> Watched:
    """Return the transport of a run with private noise; its participants keep their last session."""
    solver = vfl.SkGD(block_size=2, passes=2) if request.param == "pass" else vfl.GD(passes=2)
    transport = Watched(job(3, 1, privacy=PRIVACY, solver=solver), table())
    outcome(transport)
    return transport


def last(run: Watched, kind: type) -> Any:
    """Return the last leg of a kind, with its receiver."""
    return next((to, leg) for to, leg in reversed(run.legs) if isinstance(leg, kind))


def louder(query: Backward, factor: float) -> Backward:
    """Return the query with its noise times a factor, in the charge of its pass too."""
    event = replace(query.event, sigma=query.event.sigma * factor)
    if query.capped is None:
        return replace(query, event=event)
    paid = query.capped.paid
    charged = replace(paid.event, sigma=paid.event.sigma * factor)
    new = replace(paid, key=replace(paid.key, round=paid.key.round + 50), event=charged)
    return replace(query, event=event, capped=replace(query.capped, paid=new))


def asked_again(run: Watched, leg: legs.Contribute, **changes: Any) -> None:
    """Ask a party, which owns no block of the query if there is one, once more."""
    owners = legs.owners_of(leg.query)
    holder = next((run.holders[to] for to in run.holders if to not in owners), run.holders["q0"])._holder
    leg = replace(leg, fresh=(), **changes)
    holder._contribution(leg, holder._member, holder._session, {})


@pytest.mark.parametrize("factor", [1e-3, 0.99])
def test_noise_below_every_planned_release_is_refused(run: Watched, factor: float) -> None:
    """Each contributor compares σ/Δ with its own plan, so that no message lowers a deviation."""
    _, leg = last(run, legs.Contribute)
    least = run.holders["q0"]._holder.sharing.multiplier
    lowered = louder(leg.query, factor * least * leg.query.event.sensitivity / leg.query.event.sigma)
    with pytest.raises(PrivacyError, match="less noise than any release"):
        asked_again(run, leg, query=lowered)
    _, deal = last(run, legs.DealSum)
    with pytest.raises(PrivacyError, match="less noise than any release"):
        InProcessTransport.post(run, DEALER, replace(deal, query=lowered))


def test_the_same_opening_is_not_made_twice(run: Watched) -> None:
    """Equal masks under other noise, or equal noise under other masks, would average away or show a difference."""
    _, leg = last(run, legs.Contribute)
    opening = openings(leg.query, leg.key, leg.setup, leg.version)[0]
    holder = next(party._holder for name, party in run.holders.items() if name != opening.owner)
    deviations = holder.sharing.deviations(opening.owner, leg.query.clip.cap, leg.query.event.sigma)
    with pytest.raises(PrivacyError, match="asked for twice"):
        holder._member.contribution(opening, deviations)
    if leg.query.capped is not None:  # the charge of a pass pays for a coordinate once, under any key
        with pytest.raises(PrivacyError, match="twice in one pass"):
            asked_again(run, leg, key=replace(leg.key, attempt=9))
    _, deal = last(run, legs.DealSum)
    with pytest.raises(PrivacyError, match="asked for twice"):
        InProcessTransport.post(run, DEALER, deal)


def test_another_cap_set_up_or_series_is_refused(run: Watched) -> None:
    _, leg = last(run, legs.Contribute)
    wider = replace(leg.query, clip=replace(leg.query.clip, cap=2.0 * leg.query.clip.cap))
    for changes in (
        {"query": wider},
        {"setup": leg.setup + 1},
        {"version": replace(leg.version, place=len(SERIES))},
        {"version": replace(leg.version, place=-1)},
        {"query": replace(leg.query, event=None)},
    ):
        with pytest.raises(PrivacyError):
            asked_again(run, leg, **changes)


def test_a_leg_of_another_session_is_refused(run: Watched) -> None:
    for kind in (legs.Contribute, legs.MaskAngles, legs.ShareResidual, legs.DealSum, legs.DealWaves):
        to, leg = last(run, kind)
        with pytest.raises(FederationError, match="a session that has ended"):
            InProcessTransport.post(run, to, replace(leg, session="another"))


def test_a_version_is_masked_once(run: Watched) -> None:
    """A second model under the masks of the first would show the difference of two margins."""
    to, leg = last(run, legs.MaskAngles)
    with pytest.raises(PrivacyError, match="asked for twice"):
        InProcessTransport.post(run, to, replace(leg, w=leg.w + 1.0))


def test_a_set_up_is_masked_once(run: Watched) -> None:
    """Masked columns of two scales under one mask would show their difference to the holders."""
    to, leg = last(run, legs.SetUp)
    with pytest.raises(PrivacyError, match="new set-up number"):
        InProcessTransport.post(run, to, replace(leg, cap=2.0 * leg.cap))


def test_a_dealer_that_was_restarted_is_lost() -> None:
    """So that a run begins a new session, as after any loss, and does not end."""
    with pytest.raises(PartyLost, match="restarted"):
        Dealing(job(privacy=PRIVACY)).leg(legs.DealWaves("session", None), ())  # type: ignore[arg-type]  # not read


@pytest.mark.parametrize("stated", [None, 1, -1])
def test_a_dealer_deals_only_for_the_number_of_records_that_the_parties_state(stated: int | None) -> None:
    """With a larger n, its noise would be smaller than planned; it would also allocate memory for each record."""
    run = Watched(job(privacy=PRIVACY, solver=vfl.SkGD(block_size=4, passes=1)), table())
    post = run.post

    def lying(to: str, leg: Any, vectors: Any = NOTHING, due: Any = NOTHING, **options: Any) -> Posted:
        if to == DEALER and isinstance(leg, legs.Begin) and stated is not None:
            leg = replace(leg, n_records=leg.n_records + stated)
        if isinstance(leg, legs.StateRecords | legs.CheckRecords) and stated is None:
            return Posted(to, (Done(), {}), dict.fromkeys(due, b""))
        return post(to, leg, vectors, due, **options)

    run.post = lying  # type: ignore[method-assign]
    with pytest.raises(VflError, match=f"states {N}" if stated else "before the parties have stated"):
        outcome(run)
    assert not any(isinstance(leg, legs.Contribute) for _, leg in run.legs)
