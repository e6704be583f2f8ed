"""Every request of training on shares that a party or the dealer refuses, one lie at a time, within a run.

The coordinator of the run sends one request that differs from the honest one. The run then ends, and no share of a sum is
disclosed after the lie.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from coordinator.coordinator import Coordinator
from coordinator.transport import NOTHING, PendingCall
from tests.coordinator.shares import Watched
from tests.coordinator.shares import job as on_shares
from tests.coordinator.shares import table as of_shares
from tests.parties.test_refusals import capped, event, field, longer, sampled
from vfl.base.losses import Squared
from vfl.errors import FederationError, PrivacyError
from vfl.queries import Fold
from vfl.queries.protocol import Derivative
from vfl.secure import requests
from vfl.secure.roles import DEALER
from vfl.secure.sigmoid import SERIES
from vfl.solvers.releases.products import ProductClip

if TYPE_CHECKING:
    from collections.abc import Callable

N, P = 24, 4
DATA = of_shares(N, P)
PRIVACY = vfl.Privacy(epsilon=8.0)
SUM, PASS, PRODUCTS = "gradient", "pass", "products"
JOBS: dict[str, Any] = {
    SUM: on_shares(p=P, privacy=PRIVACY, solver=vfl.solvers.GD(passes=2)),
    PASS: on_shares(p=P, privacy=PRIVACY, solver=vfl.SkGD(block_size=2, passes=2)),
    PRODUCTS: on_shares(
        p=P, privacy=PRIVACY, loss="squared", solver=vfl.solvers.NoisyGram(), bounds={"*": (-2, 2), "y": (-1, 2)}
    ),
}
WITHOUT_DEALER = ", without a dealer"
JOBS |= {
    name + WITHOUT_DEALER: replace(own, trust=vfl.federation.Secure(dealer=None)) for name, own in list(JOBS.items())
}


class Deviant(Watched):
    """A transport that changes one request, or sends it once more (again)."""

    def __init__(self, name: str, kind: type, to: str, change: Callable[[Any], Any], number: int, again: bool) -> None:
        data = DATA if not name.startswith(PRODUCTS) else {**DATA, "y": DATA["y"] + 0.1 * DATA["x0"]}
        super().__init__(JOBS[name], data)
        self.kind, self.to, self.change, self.number, self.again = kind, to, change, number, again
        self.told = -1

    def post(self, to: str, message: Any, vectors: Any = NOTHING, due: Any = NOTHING, **options: Any) -> PendingCall:
        if type(message) is not self.kind or to != self.to or self.told >= 0:
            return super().post(to, message, vectors, due, **options)
        self.number -= 1
        if self.number >= 0:
            return super().post(to, message, vectors, due, **options)
        self.told = len(self.replies)
        if self.again:
            posted = super().post(to, message, vectors, due, **options)
            super().post(to, self.change(message), vectors, due, **options)
            return posted
        told = self.change(message)
        return super().post(to, told, vectors if type(told) is type(message) else NOTHING, due, **options)


def query(*changes: Any) -> Callable[[Any], Any]:
    def changed(request: Any) -> Any:
        told = request.query
        for change in changes:
            told = change(told)
        return replace(request, query=told)

    return changed


def each(name: str, change: Callable[[Any], Any]) -> Any:
    return field(name, lambda own: tuple(map(change, own)))


def first(name: str, change: Callable[[Any], Any]) -> Any:
    return field(name, lambda own: (change(own[0]), *own[1:]))


def louder(factor: float) -> Any:
    """Change the noise of a sum, and that of the charge of its pass alike."""

    def changed(told: Any) -> Any:
        made = event(sigma=factor)(told)
        if told.capped is None:
            return made
        paid = told.capped.paid
        return capped(paid=replace(paid, event=replace(paid.event, sigma=factor * paid.event.sigma)))(made)

    return changed


def rows(at: int, change: Callable[[Any], Any], party: str = "q0") -> Any:
    def entry(own: Any) -> Any:
        row = own[party]
        return {**own, party: (*row[:at], change(row[at]), *row[at + 1 :])}

    return field("rows", entry)


def only(party: str) -> Callable[[Any], Any]:
    return lambda own: {party: own[party]}


def twice(told: Any) -> Any:
    """Ask for one block twice in a sum."""
    return replace(
        told,
        blocks=(told.blocks[0], *told.blocks),
        centres=(told.centres[0], *told.centres),
        scales=(told.scales[0], *told.scales),
        event=replace(told.event, sensitivity=9.0 * told.event.sensitivity, sigma=9.0 * told.event.sigma),
    )


def same(request: Any) -> Any:
    return request


OF_PASS, OF_SUM = (PASS, requests.Contribute, "q0"), (SUM, requests.Contribute, "q0")
LIES: dict[str, tuple[tuple[str, type, str], Callable[[Any], Any]]] = {
    # The sum that a party contributes to.
    "an exact sum": (OF_SUM, query(field("event", None))),
    "a sum of a secret sample": (OF_SUM, query(field("event", sampled))),
    "a sum with less noise than the plan's": (OF_SUM, query(louder(1e-3))),
    "a sum with a smaller sensitivity": (OF_SUM, query(event(sensitivity=0.5, sigma=0.5))),
    "a block with less noise than the plan's": (OF_PASS, query(louder(1e-3))),
    "a block with less noise than its charge": (OF_PASS, query(event(sigma=0.99))),
    "a sum of another loss": (OF_SUM, query(field("weighting", lambda own: replace(own, loss=Squared())))),
    "a block of another loss": (OF_PASS, query(field("weighting", lambda _: Derivative(Squared())))),
    "a sum of a batch": (OF_SUM, query(field("fold", Fold(0, 2, (1,))))),
    "a sum of a subsample": (OF_SUM, query(field("subsample", 0))),
    "a block of a subsample": (OF_PASS, query(field("subsample", 1))),
    "a sum under another clip": (OF_SUM, query(field("clip", lambda own: ProductClip(own.cap, own.dimension)))),
    "a sum under a wider clip": (
        OF_SUM,
        query(field("clip", lambda own: replace(own, cap=2.0 * own.cap)), event(sensitivity=2.0, sigma=2.0)),
    ),
    "a sum under a tighter clip": (OF_SUM, query(field("clip", lambda own: replace(own, cap=0.5 * own.cap)))),
    "a sum of another set-up": (OF_SUM, lambda own: replace(own, setup=own.setup + 1)),
    "a sum in other centres": (OF_SUM, query(each("centres", lambda own: own + 1.0))),
    "a sum in other scales": (OF_SUM, query(each("scales", lambda own: 2.0 * own))),
    "a block in other centres": (OF_PASS, query(each("centres", lambda own: own + 1.0))),
    "a block in other scales": (OF_PASS, query(each("scales", lambda own: 2.0 * own))),
    "a block that was not set up": (
        OF_SUM,
        query(
            first("blocks", lambda own: replace(own, stop=own.start + 1)),
            first("centres", lambda own: own[:1]),
            first("scales", lambda own: own[:1]),
        ),
    ),
    "a block behind the last column": (
        OF_SUM,
        query(first("blocks", lambda own: replace(own, start=own.start + 9, stop=own.stop + 9))),
    ),
    "a block of an unknown party": (OF_SUM, query(first("blocks", lambda own: replace(own, party="q9")))),
    "a block twice in a sum": (OF_SUM, query(twice)),
    "a sum of an unknown series": (OF_SUM, lambda own: replace(own, version=replace(own.version, place=len(SERIES)))),
    "a sum of another model": (OF_SUM, lambda own: replace(own, version=replace(own.version, model="other"))),
    "a block that was not charged": (OF_PASS, query(capped(paid=None))),
    "a block under another cap than its pass": (OF_PASS, query(capped(cap=lambda own: 2.0 * own))),
    "a sum with a negative round": (OF_SUM, lambda own: replace(own, key=replace(own.key, round=-1))),
    "a block with a negative round of its charge": (
        OF_PASS,
        query(capped(paid=lambda own: replace(own, key=replace(own.key, round=-1)))),
    ),
    "a sum before the residuals": (
        OF_SUM,
        lambda own: requests.ShareResidual(own.session, replace(own.version, model="x"), ("q1",)),
    ),
    # The set-up of columns.
    "a set-up of some parties": ((SUM, requests.SetUp, "q0"), field("rows", only("q0"))),
    "a set-up of the blocks of some parties": ((SUM, requests.SetUp, "q0"), field("blocks", only("q0"))),
    "a set-up of no block": ((SUM, requests.SetUp, "q0"), field("blocks", lambda own: {**own, "q0": ()})),
    "a set-up of an empty block": ((SUM, requests.SetUp, "q0"), field("blocks", lambda own: {**own, "q1": ((1, 1),)})),
    "a set-up of a block before the first column": (
        (SUM, requests.SetUp, "q0"),
        field("blocks", lambda own: {**own, "q0": ((-1, 1),)}),
    ),
    "a set-up of a block behind the last column": (
        (SUM, requests.SetUp, "q0"),
        field("blocks", lambda own: {**own, "q1": ((0, 9),)}),
    ),
    "a set-up of fewer columns": (
        (SUM, requests.SetUp, "q0"),
        lambda own: rows(2, lambda s: s[:1])(
            rows(1, lambda c: c[:1])(rows(0, lambda block: replace(block, stop=1))(own))
        ),
    ),
    "a set-up with more centres": ((SUM, requests.SetUp, "q0"), rows(1, longer)),
    "a set-up with more scales": ((SUM, requests.SetUp, "q0"), rows(2, longer)),
    "a set-up under a wider cap": ((SUM, requests.SetUp, "q0"), lambda own: replace(own, cap=2.0 * own.cap)),
    "a set-up in other scales": ((SUM, requests.SetUp, "q0"), rows(2, lambda own: 2.0 * own)),
    "columns of oneself": ((SUM, requests.TakeColumns, "q0"), lambda own: replace(own, owner="q0")),
    "columns of an unknown party": ((SUM, requests.TakeColumns, "q0"), lambda own: replace(own, owner="q9")),
    # The session.
    "a session of more records": ((SUM, requests.Begin, "q0"), lambda own: replace(own, n_records=own.n_records + 1)),
    "a session of more records at the dealer": (
        (SUM, requests.Begin, DEALER),
        lambda own: replace(own, n_records=own.n_records + 1),
    ),
    "a session without a key": ((SUM, requests.Begin, "q0"), field("keys", only(DEALER))),
    "a session without a key at the dealer": ((SUM, requests.Begin, DEALER), field("keys", only("q0"))),
    "the coin of another party": ((SUM, requests.TakeToss, "q0"), lambda own: requests.Toss(own.session)),
    "angles of an unknown series": (
        (SUM, requests.MaskAngles, "q0"),
        lambda own: replace(own, version=replace(own.version, place=len(SERIES))),
    ),
    **{
        f"angles within ±{clamp}": ((SUM, requests.MaskAngles, "q0"), field("clamp", clamp))
        for clamp in (-1.0, math.nan, math.inf, 1e300)
    },
    "terms of an unknown series": (
        (SUM, requests.DealTerms, DEALER),
        lambda own: replace(own, version=replace(own.version, place=len(SERIES))),
    ),
    **{
        f"{kind.__name__} of another session at {to}": ((SUM, kind, to), lambda own: replace(own, session="other"))
        for kind, to in (
            (requests.Begin, "q0"),
            (requests.SetUp, "q0"),
            (requests.MaskAngles, "q1"),
            (requests.Contribute, "q0"),
            (requests.Disclose, "q0"),
            (requests.Begin, DEALER),
            (requests.DealTerms, DEALER),
            (requests.DealSum, DEALER),
        )
    },
    # The dealer's part of a sum.
    "an exact sum at the dealer": ((SUM, requests.DealSum, DEALER), query(field("event", None))),
    "a sum of a secret sample at the dealer": ((SUM, requests.DealSum, DEALER), query(field("event", sampled))),
    "a sum under another clip at the dealer": (
        (SUM, requests.DealSum, DEALER),
        query(field("clip", lambda own: ProductClip(own.cap, own.dimension))),
    ),
    "a sum with less noise at the dealer": ((SUM, requests.DealSum, DEALER), query(louder(1e-3))),
    "a sum with a smaller sensitivity at the dealer": (
        (SUM, requests.DealSum, DEALER),
        query(event(sensitivity=0.5, sigma=0.5)),
    ),
    "a sum of an unknown party at the dealer": (
        (SUM, requests.DealSum, DEALER),
        query(first("blocks", lambda own: replace(own, party="q9"))),
    ),
    # Products of columns.
    "products in a job of sums": ((SUM, requests.MaskAngles, "q0"), lambda own: requests.Disclose(own.session)),
    "products of centred columns": ((PRODUCTS, requests.MaskProducts, "q0"), rows(1, lambda own: own + 1.0)),
    "products of scaled columns": ((PRODUCTS, requests.MaskProducts, "q0"), rows(2, lambda own: 2.0 * own)),
    "products of fewer columns": (
        (PRODUCTS, requests.MaskProducts, "q0"),
        lambda own: rows(2, lambda s: s[:1])(
            rows(1, lambda c: c[:1])(rows(0, lambda block: replace(block, stop=1))(own))
        ),
    ),
    "products of others' columns alone": ((PRODUCTS, requests.MaskProducts, "q0"), field("rows", only("q1"))),
    "products with more columns of another": (
        (PRODUCTS, requests.TakeProducts, "q0"),
        lambda own: replace(own, width=own.width + 1),
    ),
    "products with oneself": ((PRODUCTS, requests.TakeProducts, "q0"), lambda own: replace(own, owner="q0")),
    "products with an unknown party": ((PRODUCTS, requests.TakeProducts, "q0"), lambda own: replace(own, owner="q9")),
    "products before their columns": (
        (PRODUCTS, requests.MaskProducts, "q0"),
        lambda own: requests.Disclose(own.session),
    ),
    "products with a negative round": (
        (PRODUCTS, requests.ContributeProducts, "q0"),
        lambda own: replace(own, key=replace(own.key, round=-1)),
    ),
    "residuals in a job of products": (
        (PRODUCTS, requests.MaskProducts, "q0"),
        lambda own: requests.MaskAngles(own.session, requests.Version("m", 0), np.zeros(2), None),
    ),
    "a number of records before the keys": (
        (SUM, requests.Begin, "q0"),
        lambda own: requests.StateRecords(own.session),
    ),
    "terms before the numbers of records": (
        (SUM, requests.CheckRecords, DEALER),
        lambda own: requests.DealTerms(own.session, requests.Version("m", 0)),
    ),
    "a set-up over a shorter block": ((SUM, requests.SetUp, "q0"), rows(0, lambda own: replace(own, stop=1))),
    "a set-up with fewer scales": ((SUM, requests.SetUp, "q0"), rows(2, lambda own: own[:1])),
    "a set-up with fewer centres": ((SUM, requests.SetUp, "q0"), rows(1, lambda own: own[:1])),
    "a contribution before its set-up": (
        (SUM, requests.SetUp, "q0"),
        lambda own: requests.TakeColumns(own.session, "q1"),
    ),
    "angles before the coin": (
        (SUM, requests.TakeToss, "q0"),
        lambda own: requests.MaskAngles(own.session, requests.Version("m", 0), np.zeros(2), None),
    ),
}


def told(lie: tuple[str, type, str], change: Any, number: int = 0, *, again: bool = False) -> Deviant:
    transport = Deviant(*lie, change, number, again)
    with pytest.raises((PrivacyError, FederationError, vfl.errors.BudgetError)):
        list(Coordinator(transport).stream(transport.spec))
    assert transport.told >= 0
    later = transport.replies[transport.told + (1 if again else 0) :]
    assert not [own for own in later if isinstance(own, requests.Contribution)]
    return transport


@pytest.mark.parametrize("lie", LIES)
def test_a_request_with_one_lie_ends_the_run_before_anything_is_disclosed(lie: str) -> None:
    told(*LIES[lie])


def alone(lie: tuple[str, type, str]) -> tuple[str, type, str]:
    """Return the same place in a run without a dealer, where only q1, which has the label, takes columns."""
    name, kind, to = lie
    return name + WITHOUT_DEALER, kind, "q1" if kind in (requests.TakeColumns, requests.TakeProducts) else to


OF_BOTH = (requests.Begin, requests.SetUp, requests.TakeColumns, requests.MaskAngles, requests.Contribute,
           requests.Disclose, requests.MaskProducts, requests.TakeProducts, requests.ContributeProducts)  # fmt: skip


HONEST = ("columns of oneself", "products with oneself", "a session without a key")
"""Names that are honest without a dealer: q1 takes the columns of q0, and there is no dealer's key."""
ALONE = [lie for lie, ((_, kind, to), _) in LIES.items() if kind in OF_BOTH and to != DEALER and lie not in HONEST]


@pytest.mark.parametrize("lie", ALONE)
def test_the_same_without_a_dealer(lie: str) -> None:
    place, change = LIES[lie]
    told(alone(place), change)


def swapped(name: str) -> Callable[[Any], Any]:
    return field(name, lambda own: own[::-1])


ONE_SUM, ONE_PASS, ONE_PRODUCT = (name + WITHOUT_DEALER for name in (SUM, PASS, PRODUCTS))
TO_ONE: dict[str, tuple[tuple[str, type, str], Callable[[Any], Any]]] = {
    **{
        f"{words} to {party}": ((ONE_SUM, requests.Contribute, party), change)
        for party in ("q0", "q1")
        for words, change in (
            ("blocks in another order", query(*map(swapped, ("blocks", "centres", "scales")))),
            ("the key of another attempt", lambda own: replace(own, key=replace(own.key, attempt=5))),
            ("another part of the key", query(field("part", 1))),
            ("another attempt at the model", lambda own: replace(own, version=replace(own.version, attempt=1))),
            ("a louder sum", query(louder(1.5))),
        )
    },
    **{
        f"{words} to {party}": ((ONE_SUM, kind, party), change)
        for party in ("q0", "q1")
        for words, kind, change in (
            ("scales of q0", requests.SetUp, rows(2, lambda own: 0.5 * own)),
            ("scales of q1", requests.SetUp, rows(2, lambda own: 0.5 * own, "q1")),
            ("centres of q0", requests.SetUp, rows(1, lambda own: own + 0.5)),
            ("another number of a set-up", requests.SetUp, lambda own: replace(own, number=own.number + 1)),
            ("other blocks", requests.SetUp, field("blocks", lambda own: {**own, "q0": ((0, 1), (1, 2))})),
            ("another model", requests.MaskAngles, lambda own: replace(own, version=replace(own.version, model="x"))),
            ("another attempt", requests.MaskAngles, lambda own: replace(own, version=replace(own.version, attempt=1))),
        )
    },
    "shares of another model": (
        (ONE_SUM, requests.ShareResidual, "q0"),
        lambda own: replace(own, version=replace(own.version, attempt=1)),
    ),
    "a session without a key": ((ONE_SUM, requests.Begin, "q0"), field("keys", lambda _: {})),
    "products with oneself": ((ONE_PRODUCT, requests.TakeProducts, "q1"), lambda own: replace(own, owner="q1")),
    "columns of another party": ((ONE_SUM, requests.TakeColumns, "q1"), lambda own: replace(own, owner="q1")),
    **{
        f"{words} of products to {party}": ((ONE_PRODUCT, requests.MaskProducts, party), change)
        for party in ("q0", "q1")
        for words, change in (("scales", rows(2, lambda own: 0.5 * own)), ("centres", rows(1, lambda own: own + 1.0)))
    },
}


@pytest.mark.parametrize("lie", TO_ONE)
def test_a_lie_to_one_of_two_parties_ends_the_run(lie: str) -> None:
    """Shares of different requests never meet: whoever knew one of them would read columns from the sum."""
    told(*TO_ONE[lie])


@pytest.mark.parametrize(
    ("lie", "change"),
    [
        ((ONE_SUM, requests.Contribute, "q1"), same),
        ((ONE_SUM, requests.Contribute, "q1"), lambda own: replace(own, key=replace(own.key, attempt=5), fresh=())),
        ((ONE_SUM, requests.MaskAngles, "q0"), lambda own: replace(own, w=own.w + 1.0)),
        ((ONE_SUM, requests.SetUp, "q0"), lambda own: replace(own, cap=2.0 * own.cap)),
        ((ONE_PRODUCT, requests.MaskProducts, "q0"), same),
        ((ONE_PRODUCT, requests.MaskProducts, "q1"), same),
        ((ONE_SUM, requests.Begin, "q0"), same),
    ],
    ids=["sum", "sum of another attempt", "angles", "set-up", "products", "products of the other", "keys"],
)
def test_no_request_is_answered_twice_without_a_dealer(lie: tuple[str, type, str], change: Any) -> None:
    told(lie, change, again=True)


LATER: dict[str, tuple[tuple[str, type, str], Callable[[Any], Any], int]] = {
    "another charge within a pass": (OF_PASS, query(louder(2.0)), 1),
    "a dearer charge within a pass": (OF_PASS, query(louder(0.999)), 1),
}


@pytest.mark.parametrize("lie", LATER)
def test_a_request_that_an_earlier_charge_does_not_cover_ends_the_run(lie: str) -> None:
    told(*LATER[lie])


AGAIN: dict[str, tuple[tuple[str, type, str], Callable[[Any], Any]]] = {
    "a sum, under the same key": (OF_SUM, same),
    "a sum, under another attempt": (OF_SUM, lambda own: replace(own, key=replace(own.key, attempt=5))),
    "a block, under another attempt": (OF_PASS, lambda own: replace(own, key=replace(own.key, attempt=5))),
    "the keys of a session": ((SUM, requests.Begin, "q0"), same),
    "the keys of a session at the dealer": ((SUM, requests.Begin, DEALER), same),
    "a set-up": ((SUM, requests.SetUp, "q0"), lambda own: replace(own, cap=2.0 * own.cap)),
    "angles of another model": ((SUM, requests.MaskAngles, "q0"), lambda own: replace(own, w=own.w + 1.0)),
    "a coin": ((SUM, requests.Toss, "q1"), same),
    "products": ((PRODUCTS, requests.ContributeProducts, "q0"), same),
    "products under another attempt": (
        (PRODUCTS, requests.ContributeProducts, "q0"),
        lambda own: replace(own, key=replace(own.key, attempt=5)),
    ),
    "a dealer's sum": ((SUM, requests.DealSum, DEALER), same),
}


@pytest.mark.parametrize("lie", AGAIN)
def test_no_request_is_answered_twice(lie: str) -> None:
    told(*AGAIN[lie], again=True)


def test_a_share_is_disclosed_once() -> None:
    transport = Deviant(SUM, requests.Disclose, "q0", same, 0, True)
    with pytest.raises(FederationError, match="not committed"):
        list(Coordinator(transport).stream(transport.spec))


@pytest.mark.parametrize("name", JOBS)
def test_honest_requests_are_answered(name: str) -> None:
    transport = Deviant(name, requests.Meet, "q0", same, 0, False)
    *_, end = Coordinator(transport).stream(transport.spec)
    assert end.statement is not None
