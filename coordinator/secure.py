"""Training on shares at the coordinator: it runs the legs of each gradient and opens the noised sum.

Guarantee. The coordinator holds the public model, sealed parcels that it cannot read, and the words of openings, which add
up to noised sums. It never asks for labels. Each opening is charged before its first leg. If a leg is lost, nothing is
released, the charge stays, and the session ends: the next attempt has new keys, a new set-up and new streams.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from vfl.errors import FederationError, PrivacyError
from vfl.messages import Backward, Reply
from vfl.messages.joining import SealingKey
from vfl.secure.columns import reach
from vfl.secure.legs import (
    Begin,
    Contribute,
    Contribution,
    DealSum,
    DealWaves,
    MaskAngles,
    Meet,
    SetUp,
    ShareResidual,
    TakeColumns,
    openings,
    owners_of,
    receivers,
    senders,
)
from vfl.secure.opening import opened
from vfl.secure.roles import DEALER
from vfl.secure.sigmoid import SERIES, clamps
from vfl.secure.version import Version, digest_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from coordinator.iterate import Iterate
    from coordinator.transport import Legs
    from vfl.messages import BookHeads, Greeting, Notice, Query, Records
    from vfl.planning import Plan
    from vfl.privacy.events import ReleaseKey
    from vfl.privacy.keystream import Words
    from vfl.secure.legs import Leg, Rows
    from vfl.secure.sharing import Sharing
    from vfl.types import Vector


class Centred(NamedTuple):
    """A public model on centred columns. w : {party: (p,)}. needed : V, from its coefficients. reach : {party: reach_q}."""

    w: Mapping[str, Vector]
    needed: float
    reach: Mapping[str, float]


class SecureTransport:
    """Transport of a run on shares around a transport of queries and legs.

    iterate : the public model, which gradients are computed at. plan : of the run.
    """

    def __init__(self, inner: Legs, iterate: Iterate, plan: Plan) -> None:
        if plan.sharing is None:
            raise PrivacyError("a run on shares needs a plan that shares")
        self._inner, self._iterate, self._plan = inner, iterate, plan
        self._sharing: Sharing = plan.sharing
        self._roles = self._sharing.roles
        self._run = uuid.uuid4().hex
        self._sessions = 0
        self._session = ""
        self._setups = 0
        self._setup: SetUp | None = None
        self._version: Version | None = None
        self._shared: dict[Version, int] = {}
        self._sent: set[str] = set()
        self._parcels: dict[tuple[str, str], list[Any]] = {}
        self._waiting: list[tuple[str, Any]] = []

    def greet(self) -> Mapping[str, Greeting]:
        """Return every party's greeting."""
        return self._inner.greet()

    def hear(self, notices: Mapping[str, Notice]) -> Mapping[str, BookHeads]:
        """Send notices to the parties' books."""
        return self._inner.hear(notices)

    def labels(self, party: str) -> NoReturn:
        """Raise PrivacyError: nobody but the label party sees a label."""
        raise PrivacyError("trust='secure' asks nobody for labels")

    def together(self, party: str) -> Collection[str]:
        """Return the participants that are lost with this one, itself first."""
        return (party,) if party == DEALER else self._inner.together(party)

    def revive(self, party: str, seconds: float) -> Greeting:
        """Return the greeting of a lost participant that is back; it has no keys of the session, which ends."""
        self._session = ""
        return self._inner.revive(party, seconds)

    def ask(self, shares: Mapping[str, Query], records: Records, key: ReleaseKey) -> Mapping[str, Reply]:
        """Open a gradient, or put another query to its parties."""
        query = next(iter(shares.values()), None)
        try:
            if isinstance(query, Backward):
                return self._opened(query, key)
            return self._inner.ask(shares, records, key)
        except BaseException:
            self._session = ""  # keys, masks and set-up end with it
            raise

    def _opened(self, query: Backward, key: ReleaseKey) -> dict[str, Reply]:
        if not self._session:
            self._meet()
        setup = self._set_up(query)
        owners = owners_of(query)
        version, fresh = self._share(self._model(setup), setup, owners)
        self._post(DEALER, DealSum(self._session, version, setup.number, query, key))
        for party in self._roles.parties:
            arriving = (party,) if party in fresh else ()
            self._post(party, Contribute(self._session, version, setup.number, query, key, arriving))
        answers = self._collected()
        words: dict[str, Words] = {}
        for party in self._roles.parties:
            answer = answers[party]
            if not isinstance(answer, Contribution):
                raise FederationError(f"{party!r} answered a leg with {type(answer).__name__}")
            words[party] = np.frombuffer(answer.words, dtype="<u8").astype(np.uint64, copy=False)
        self._sent.update(fresh)
        caps = self._sharing.caps(query.clip.cap)
        released: dict[str, list[Vector]] = {owner: [] for owner in owners}
        at = 0
        for opening in openings(query, key, setup.number, version):
            own = {party: found[at : at + opening.size] for party, found in words.items()}
            at += opening.size
            sums = opened(self._roles, opening, own)
            step = self._sharing.bits.step(caps[opening.owner])
            released[opening.owner].append(np.asarray(sums * step, dtype=np.float64))
        return {owner: Reply(tuple(sums)) for owner, sums in released.items()}

    def _meet(self) -> None:
        """Begin a session: new keys of all participants, which are handed to all."""
        self._sessions += 1
        self._setups = 0
        self._session = f"{self._run} {self._sessions}"
        self._setup, self._version = None, None
        self._shared.clear()
        self._sent.clear()
        self._parcels.clear()
        self._waiting.clear()
        everybody = (*self._roles.parties, DEALER)
        for name in everybody:
            self._post(name, Meet(self._session))
        keys = {name: key for name, key in self._collected().items() if isinstance(key, SealingKey)}
        for name in everybody:
            others = {other: key for other, key in keys.items() if other != name}
            self._post(name, Begin(self._session, self._plan.problem.n_records, others))
        self._collected()

    def _set_up(self, query: Backward) -> SetUp:
        """Return the set-up of the query's columns; mask them anew where cap, centres or scales have changed."""
        rows: Rows
        if query.capped is not None:
            rows = query.capped.rows
        else:
            parts = zip(query.blocks, query.centres, query.scales, strict=True)
            rows = {block.party: (block, centre, scale) for block, centre, scale in parts}
        cap, known = query.clip.cap, self._setup
        if known is not None and known.cap == cap and _alike(known.rows, rows):
            return known
        blocks: dict[str, list[tuple[int, int]]] = {party: [] for party in self._roles.parties}
        size = getattr(self._plan.solver, "block_size", None)
        for block in query.blocks if query.capped is None else self._plan.problem.layout.blocks(size):
            blocks[block.party].append((block.start, block.stop))
        setup = SetUp(self._session, self._setups, cap, rows, {party: tuple(own) for party, own in blocks.items()})
        self._setups += 1
        self._version = None
        for party in self._roles.parties:
            self._post(party, setup)
        for holder in self._roles.holders:
            for owner in self._roles.parties:
                if owner != holder:
                    self._post(holder, TakeColumns(self._session, owner))
        self._collected()
        self._setup = setup
        return setup

    def _model(self, setup: SetUp) -> Centred:
        """Return the model on the centred columns of a set-up, and public bounds of its margins."""
        problem, model = self._plan.problem, self._iterate.model
        w = {party: model.w[party].copy() for party in self._roles.parties}
        constant = model.shift + sum(float(setup.rows[party][1] @ own) for party, own in w.items())
        if constant:
            if not problem.intercept.any():
                raise PrivacyError("columns are centred without an intercept that absorbs their shift")
            w[self._roles.label][-1] += constant
        reaches, square, fixed = {}, 0.0, 0.0
        for party, whole in problem.layout.whole().items():
            _, centre, scale = setup.rows[party]
            B = problem.reach[whole.coordinates]
            reaches[party] = reach(w[party], centre, B)
            one = problem.intercept[whole.coordinates] > 0.0
            # With the scale 1/√M_j and M_j a quarter of the variance, Σ 4M_j w_j² is the variance of independent columns.
            spread = B if (scale == 1.0).all() else 2.0 / scale
            square += float(np.where(one, 0.0, (spread * w[party]) ** 2).sum())
            fixed += float(np.abs(w[party][one]).sum())
        needed = min(sum(reaches.values()), fixed + 5.0 * square**0.5)
        return Centred(w, needed, reaches)

    def _share(self, model: Centred, setup: SetUp, owners: tuple[str, ...]) -> tuple[Version, tuple[str, ...]]:
        """Share the residuals at a model, unless they are; return their version, and the owners that get them now."""
        place = self._sharing.place(model.needed)
        known, version = self._version, Version(digest_of(model.w, [str(setup.number)]), place)
        roles, session = self._roles, self._session
        if known is not None and replace(known, attempt=0) == version:
            version = known
        else:
            # A model that comes back after another one is shared again, with other masks.
            first, times = version, self._shared.get(version, 0)
            version, self._shared[first] = replace(first, attempt=times), times + 1
            self._version = None
            self._sent.clear()
            limits = clamps(SERIES[place], model.reach)
            self._post(DEALER, DealWaves(session, version))
            for party in roles.parties:
                self._post(party, MaskAngles(session, version, model.w[party], limits[party]))
        fresh = tuple(owner for owner in owners if owner not in self._sent)
        if fresh:
            for holder in roles.holders:
                self._post(holder, ShareResidual(session, version, fresh, first=self._version is None))
        self._version = version
        return version, fresh

    def _post(self, to: str, leg: Leg) -> None:
        """Send a leg with the parcels that it takes, and keep those that it sends."""
        parcels = [self._parcels[sender, to].pop(0) for sender in senders(leg, to, self._roles)]
        names = receivers(leg, to, self._roles)
        answer, sent = self._inner.post(to, leg, parcels, len(names))
        for receiver, parcel in zip(names, sent, strict=True):
            self._parcels.setdefault((to, receiver), []).append(parcel)
        self._waiting.append((to, answer))

    def _collected(self) -> dict[str, object]:
        """Wait for all legs that were sent, in their order; return the last reply of each participant."""
        waiting, self._waiting = self._waiting, []
        return self._inner.collect(waiting)


def _alike(one: Rows, other: Rows) -> bool:
    return one is other or all(
        np.array_equal(one[party][1], other[party][1]) and np.array_equal(one[party][2], other[party][2])
        for party in one
    )
