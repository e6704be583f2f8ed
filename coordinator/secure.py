"""The coordinator's part of training on secret shares: requests for each gradient, and opening of the noisy sum.

Guarantee. The coordinator holds the public model, encrypted messages that it cannot read, and the parties' shares of sums with
noise. Shares are integers modulo 2^64 that add up to the sum. The coordinator never asks for labels. Each sum is charged before
the first request for it is sent. If a request fails, nothing is released, the privacy cost remains charged, and the session
ends. The next attempt has new keys, new masks and new streams.
"""

from __future__ import annotations

import math
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from vfl.crypto.encryption import EncryptionKey
from vfl.errors import FederationError, PrivacyError
from vfl.planning import layout_of
from vfl.privacy.events import Gaussian
from vfl.queries import Backward, Gram, Reply
from vfl.secure import requests
from vfl.secure.columns import reach
from vfl.secure.cost import largest_message
from vfl.secure.gram import opened_cross
from vfl.secure.homomorphic import MOST_REPLIES, blocks_of
from vfl.secure.ring import decoded, largest_sum, within
from vfl.secure.roles import DEALER
from vfl.secure.sharing import GramSharing, Sharing
from vfl.secure.sigmoid import SERIES, clamps, margin_at, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coordinator.states.iterate import Iterate
    from coordinator.transport import MessageTransport, PendingCall
    from vfl.base.types import Vector
    from vfl.kernels.ring import Elements
    from vfl.network.messages import Greeting, LedgerHeads, Notice
    from vfl.planning import Plan
    from vfl.privacy.events import ReleaseKey
    from vfl.queries import Query, SharedTally
    from vfl.queries.parts import Knots
    from vfl.queries.protocol import Released

    Transport: TypeAlias = "MessageTransport | SecureTransport"
    """Transport of a run's queries to parties."""


class CentredModel(NamedTuple):
    """Public model in terms of centred columns, with bounds of its margins.

    w : {party: (p,)}. needed : largest |margin| that the sigmoid's series must cover. reach : {party: bound of |X_q w_q|}.
    """

    w: Mapping[str, Vector]
    needed: float
    reach: Mapping[str, float]


class SecureTransport:
    """Transport of a run on secret shares, built on a transport of messages.

    iterate : the public model at which gradients are computed. plan : plan of the run.
    products : result of `newly_opened` in an earlier process of the run; these products are not opened again. () without any.
    """

    def __init__(self, inner: MessageTransport, iterate: Iterate, plan: Plan, products: Released = ()) -> None:
        if plan.sharing is None:
            raise PrivacyError("the plan of this run does not train on shares")
        self._inner, self._iterate, self._plan = inner, iterate, plan
        self._sharing: Sharing | GramSharing = plan.sharing
        self._gram: Vector | None = _symmetric(products) if products else None
        self._new: Released = ()
        self._roles = self._sharing.roles
        self._run = uuid.uuid4().hex
        widths = {party: len(names) + 1 for party, names in layout_of(plan.job).columns.items()}
        n = plan.problem.n_records
        self._largest = largest_message(self._roles, (n, plan.n_records - n), widths)
        self._sessions = 0
        self._session = ""
        self._knots: Knots | None = None
        self._held_out = False
        self._setups = 0
        self._setup: requests.SetUp | None = None
        self._version: requests.Version | None = None
        self._shared: dict[requests.Version, int] = {}
        self._sent: set[str] = set()
        self._ciphertexts: dict[tuple[str, str], list[Any]] = {}
        self._waiting: list[PendingCall] = []

    def greet(self) -> Mapping[str, Greeting]:
        """Return every party's greeting."""
        return self._inner.greet()

    def hear(self, notices: Mapping[str, Notice]) -> Mapping[str, LedgerHeads]:
        """Report phases of the run to the party ledgers."""
        return self._inner.hear(notices)

    def labels(self, party: str) -> NoReturn:
        """Raise PrivacyError: only the label party sees labels."""
        raise PrivacyError("under trust='secure', the coordinator may not ask for labels")

    def together(self, party: str) -> tuple[str, ...]:
        """Return the participants that are lost together with the given participant, which comes first."""
        return (party,) if party == DEALER else self._inner.together(party)

    def revive(self, party: str, seconds: float) -> Greeting:
        """Wait for a lost participant, and return its greeting. The session ends, since the participant has lost its keys."""
        self._session = ""
        return self._inner.revive(party, seconds)

    def ask(self, shares: Mapping[str, Query], records: Any, key: ReleaseKey) -> Mapping[str, Reply]:
        """For a gradient query, open the sum with noise. Send any other query to its parties."""
        query = next(iter(shares.values()), None)
        if query is not None and query.knots is not None and query.knots != self._knots:
            self._knots, self._session = query.knots, ""
        try:
            opened = None if query is None else query.opened(self, key)
            return self._inner.ask(shares, records, key) if opened is None else opened
        except BaseException:
            self._session = ""  # keys, masks and the set-up of columns end with the session
            raise

    @property
    def _logistic(self) -> Sharing:
        if not isinstance(self._sharing, Sharing):
            raise PrivacyError("a run with NoisyGram shares products of columns and no residuals")
        return self._sharing

    def products(self, query: Gram, key: ReleaseKey) -> dict[str, Reply]:
        """Return the replies for one part of the products of columns. The first part reveals all products, under one charge."""
        if (sharing := self._sharing.products) is None:
            return self.sums(query, key)
        number = 0 if query.batch is None else query.batch.number
        if self._gram is None:
            if number or query.events() != sharing.first.events():
                raise PrivacyError("the first part of the planned products reveals all of them")
            self._gram = self._products(query, key, sharing)
            self._new = tuple(self._gram[j, j:] for j in range(len(self._gram)))
        blocks = zip(query.blocks, query.read(self._gram / sharing.unit), strict=True)
        return {block.party: Reply((u,)) for block, u in blocks}

    def newly_opened(self) -> Released:
        """Return products of columns revealed since the last call. Entry j is row j of the symmetric matrix, from the diagonal.

        All products are charged with the first part. A run that has logged them can continue the pass in a new process.
        """
        new, self._new = self._new, ()
        return new

    def _products(self, query: Gram, key: ReleaseKey, sharing: GramSharing) -> Vector:
        """Open all products. Return them as a symmetric matrix, (p, p); with a label (p + 1, p + 1), the label last."""
        self._meet_for(held_out=False)
        parties, session = self._roles.parties, self._session
        self._pass_columns(
            requests.MaskProducts(session, _rows(query)),
            lambda owner: requests.TakeProducts(session, owner, sharing.widths[owner]),
        )
        self._ask_products(key)
        found = self._disclosed()
        whole, p = self._plan.problem.layout.whole(), self._plan.problem.layout.n_coordinates
        at = {q: np.arange(block.coordinates.start, block.coordinates.stop) for q, block in whole.items()}
        if sharing.label_scale is not None:
            at[self._roles.label] = np.append(at[self._roles.label], p)
        size = sum(sharing.widths.values())
        gram = np.zeros((size, size))
        cross: dict[tuple[str, str], Elements] = {}
        for party in parties:
            place = 0
            for other in (*(name for name in parties if name != party), party):
                pair = sharing.pair(party, other, key)
                shape = sharing.widths[pair.first], sharing.widths[pair.second]
                elements = found[party][place : place + shape[0] * shape[1]].reshape(shape)
                place += elements.size
                step, names = float(pair.step), (pair.first, pair.second)
                if other == party:
                    gram[np.ix_(at[party], at[party])] = decoded(elements) * step
                elif names in cross:
                    largest = largest_sum(self._plan.problem.n_records, sharing.bits.limit, 3 * pair.deviation())
                    block = opened_cross(cross[names], elements, largest, self._roles.ring) * step
                    gram[np.ix_(at[pair.first], at[pair.second])] = block
                    gram[np.ix_(at[pair.second], at[pair.first])] = block.T
                else:
                    cross[names] = elements
        return gram

    def sums(self, query: Backward, key: ReleaseKey) -> dict[str, Reply]:
        """Return the replies for a gradient query, whose sums all parties open together, with noise."""
        event, sharing = query.event, self._logistic
        if not isinstance(event, Gaussian):
            raise PrivacyError("a sum on shares is opened with noise")
        self._meet_for(held_out=False)
        setup = self._set_up(query)
        owners = requests.owners_of(query)
        version, fresh = self._share(self._model(setup), setup, owners)
        self._ask_sums(version, setup.number, query, key, fresh)
        elements = self._disclosed()
        self._sent.update(fresh)
        caps = sharing.caps(query.clip.cap)
        released: dict[str, list[Vector]] = {owner: [] for owner in owners}
        at = 0
        for opening in requests.openings(query, key, setup.number, version):
            own = {party: found[at : at + opening.size] for party, found in elements.items()}
            at += opening.size
            deviations = sharing.deviations(opening.owner, query.clip.cap, event.sigma)
            contribution = sharing.residual << sharing.bits.columns
            noise = deviations.total(len(self._roles.parties))
            sums = requests.opened(
                self._roles, opening, own, largest_sum(self._plan.problem.n_records, contribution, noise)
            )
            step = sharing.bits.step(caps[opening.owner])
            released[opening.owner].append(np.asarray(sums * step, dtype=np.float64))
        return {owner: Reply(tuple(sums)) for owner, sums in released.items()}

    def measures(self, query: SharedTally, key: ReleaseKey) -> dict[str, Reply]:
        """Return a statistic of the held-out records with noise, and the bound V of their linear predictors."""
        measuring, number = self._logistic.measuring, query.number
        if measuring is None or query.event != measuring.releases[number][1]:
            raise PrivacyError("the job does not plan this measure on shares")
        self._meet_for(held_out=True)
        version = self._share_moments()
        found = measuring.release(number, version.place)
        for name in reversed(self._roles.contributors):  # the dealer first, if there is one
            self._post(name, requests.ContributeMoments(self._session, version, number, key))
        elements = list(self._disclosed().values())
        if any(own.shape != (len(found.matrix),) for own in elements):
            raise FederationError("a party's message for a measure has a wrong length")
        ring = self._roles.ring
        sums = within(ring.decoded(ring.added(elements)), measuring.largest(number, found.bits))
        values = found.values(sums, measuring.n_records)
        return {self._roles.label: Reply((values, np.array([margin_at(version.place)])))}

    def _share_moments(self) -> requests.Version:
        """Compute shares of the moments of the held-out records at the model to be measured, once in a session."""
        if self._version is not None:
            return self._version
        iterate, session = self._iterate, self._session
        model = self._centred(iterate.measured, iterate.rows, 0.0)
        version = requests.Version(requests.digest_of(model.w), place_of(model.needed), held_out=True)
        limits = clamps(margin_at(version.place), model.reach)
        angles = {
            q: requests.MaskMoments(session, version, model.w[q], iterate.rows[q][1], limits[q])
            for q in self._roles.parties
        }
        self._share_residuals(version, angles)
        self._version = version
        return version

    def _meet_for(self, *, held_out: bool) -> None:
        """Start a session of training, or of the held-out records, unless it is under way."""
        if not self._session or self._held_out is not held_out:
            self._held_out = held_out
            self._meet()

    def _meet(self) -> None:
        """Start a session: collect a new key from each participant, and send all keys to everyone."""
        self._sessions += 1
        self._setups = 0
        self._session = f"{self._run} {self._sessions}"
        self._setup, self._version = None, None
        self._shared.clear()
        self._sent.clear()
        self._ciphertexts.clear()
        self._waiting.clear()
        everybody = self._roles.contributors
        for name in everybody:
            self._post(name, requests.Meet(self._session))
        keys = {name: key for name, key in self._collected().items() if isinstance(key, EncryptionKey)}
        for name in everybody:
            others = {other: key for other, key in keys.items() if other != name}
            self._post(name, requests.Begin(self._session, self._plan.n_records, others, self._knots, self._held_out))
        self._collected()
        self._prepare()

    def _prepare(self) -> None:
        """Let the parties state n to the dealer, and toss the coin that chooses the checks of the dealer."""
        for party in self._roles.parties:
            self._post(party, requests.StateRecords(self._session))
        self._post(DEALER, requests.CheckRecords(self._session))
        if isinstance(self._sharing, Sharing):
            label = self._roles.label
            self._post(label, requests.Toss(self._session))
            for party in self._roles.parties:
                if party != label:
                    self._post(party, requests.TakeToss(self._session))

    def _set_up(self, query: Backward) -> requests.SetUp:
        """Return the set-up for a query: the cap, centres and scales with which the parties have masked their columns.

        If these differ from the last set-up, start a new set-up, with new masks.
        """
        rows = _rows(query) if query.capped is None else query.capped.rows
        cap, known = query.clip.cap, self._setup
        if known is not None and known.cap == cap and _alike(known.rows, rows):
            return known
        blocks: dict[str, list[tuple[int, int]]] = {party: [] for party in self._roles.parties}
        size = getattr(self._plan.solver, "block_size", None)
        for block in query.blocks if query.capped is None else self._plan.problem.layout.blocks(size):
            blocks[block.party].append((block.start, block.stop))
        setup = requests.SetUp(
            self._session, self._setups, cap, rows, {party: tuple(own) for party, own in blocks.items()}
        )
        self._setups += 1
        self._version = None
        self._pass_columns(setup, lambda owner: requests.TakeColumns(self._session, owner))
        self._collected()
        self._setup = setup
        return setup

    def _pass_columns(self, masked: requests.Request, taken: Callable[[str], requests.Request]) -> None:
        """Ask all parties to mask their columns, and the receivers to take them. taken : request to take an owner's columns."""
        roles = self._roles
        for party in roles.parties:
            self._post(party, masked)
        for taker in roles.parties:
            for owner in roles.parties:
                if taker in requests.receivers(masked, owner, roles):
                    self._post(taker, taken(owner))

    def _model(self, setup: requests.SetUp) -> CentredModel:
        """Return the current model for columns that are centred as in `setup`, with public bounds of its margins."""
        model = self._iterate.model
        return self._centred(model.w, setup.rows, model.shift)

    def _centred(self, given: Mapping[str, Vector], rows: requests.Rows, shift: float) -> CentredModel:
        """Return a model for columns that are centred as in `rows`. shift : number to add to each margin."""
        problem = self._plan.problem
        w = {party: given[party].copy() for party in self._roles.parties}
        constant = shift + sum(float(rows[party][1] @ own) for party, own in w.items())
        if constant:
            if not problem.intercept.any():
                raise PrivacyError("columns are centred, but no intercept absorbs the shift")
            w[self._roles.label][-1] += constant
        reaches, square, fixed = {}, 0.0, 0.0
        for party, whole in problem.layout.whole().items():
            _, centre, scale = rows[party]
            B = problem.reach[whole.coordinates]
            reaches[party] = reach(w[party], centre, B)
            one = problem.intercept[whole.coordinates] > 0.0
            # With the scale 1/√M_j and M_j a quarter of the variance, Σ 4M_j w_j² is the variance of independent columns.
            spread = B if (scale == 1.0).all() else 2.0 / scale
            square += float(np.where(one, 0.0, (spread * w[party]) ** 2).sum())
            fixed += float(np.abs(w[party][one]).sum())
        needed = min(sum(reaches.values()), fixed + 5.0 * square**0.5)
        return CentredModel(w, needed, reaches)

    def _share(
        self, model: CentredModel, setup: requests.SetUp, owners: tuple[str, ...]
    ) -> tuple[requests.Version, tuple[str, ...]]:
        """Compute shares of the residuals at a model, once. Return its `Version`, and the owners that take the shares now."""
        place = self._logistic.place(model.needed)
        known, version = self._version, requests.Version(requests.digest_of(model.w, [str(setup.number)]), place)
        session = self._session
        if known is not None and replace(known, attempt=0) == version:
            version = known
        else:
            # If a model comes again after a different one, its residuals are shared again, with new masks.
            first, times = version, self._shared.get(version, 0)
            version, self._shared[first] = replace(first, attempt=times), times + 1
            self._version = None
            self._sent.clear()
            limits = clamps(SERIES[place].margin, model.reach)
            angles = {q: requests.MaskAngles(session, version, model.w[q], limits[q]) for q in self._roles.parties}
            self._share_residuals(version, angles)
        fresh = self._send_residuals(version, owners)
        self._version = version
        return version, fresh

    def _share_residuals(
        self, version: requests.Version, angles: Mapping[str, requests.MaskAngles | requests.MaskMoments]
    ) -> None:
        """Ask all participants to compute shares of the residuals, or the moments, at a model. angles : {party: request}."""
        session, roles = self._session, self._roles
        self._post(DEALER, requests.DealTerms(session, version))
        for party in roles.parties:
            self._post(party, angles[party])
        for party in roles.parties:
            self._post(party, requests.OpenRows(session, version))
        self._post(roles.label, requests.CheckRows(session, version))

    def _send_residuals(self, version: requests.Version, owners: tuple[str, ...]) -> tuple[str, ...]:
        """Send masked residuals to the owners of columns that lack them, and return these owners."""
        fresh = tuple(owner for owner in owners if owner not in self._sent)
        if fresh:
            for holder in self._roles.holders:
                self._post(holder, requests.ShareResidual(self._session, version, fresh))
        return fresh

    def _ask_sums(
        self, version: requests.Version, setup: int, query: Backward, key: ReleaseKey, fresh: tuple[str, ...]
    ) -> None:
        """Ask all participants for commitments to their shares of a query's sums."""
        self._post(DEALER, requests.DealSum(self._session, version, setup, query, key))
        for party in self._roles.parties:
            arriving = (party,) if party in fresh else ()
            self._post(party, requests.Contribute(self._session, version, setup, query, key, arriving))

    def _ask_products(self, key: ReleaseKey) -> None:
        """Ask all participants for commitments to their shares of the products of columns."""
        self._post(DEALER, requests.DealProducts(self._session, key))
        for party in self._roles.parties:
            self._post(party, requests.ContributeProducts(self._session, key))

    def _post(self, to: str, request: requests.Request) -> None:
        """Send a request with the encrypted messages for its receiver, and keep those that the receiver returns."""
        ciphertexts = [self._ciphertexts[sender, to].pop(0) for sender in requests.senders(request, to, self._roles)]
        names = requests.receivers(request, to, self._roles)
        due = dict.fromkeys(requests.ciphertext_names(len(names)), self._largest)
        posted = self._inner.post(to, request, requests.named_ciphertexts(ciphertexts), due, passed=True)
        for receiver, ciphertext in zip(names, posted.vectors.values(), strict=True):
            self._ciphertexts.setdefault((to, receiver), []).append(ciphertext)
        self._waiting.append(posted)

    def _disclosed(self) -> dict[str, Elements]:
        """Return all parties' shares of the sums. Every party commits to its shares before any party discloses its own."""
        parties, session = self._roles.parties, self._session
        commitments = self._collected()
        for party in parties:
            self._post(party, requests.Disclose(session))
        elements = self._collected()
        return {party: requests.disclosed(party, session, commitments[party], elements[party]) for party in parties}

    def _collected(self) -> dict[str, object]:
        """Wait for the replies to all sent requests, in order. Return the last reply of each participant."""
        waiting, self._waiting = self._waiting, []
        return {own.to: reply for own, (reply, _) in zip(waiting, self._inner.collect(waiting), strict=True)}


class PairTransport(SecureTransport):
    """Transport of a run of two parties without a dealer. The key owner encrypts, and the label party multiplies."""

    _replies = 0
    """Number of replies of the label party in this session."""

    def sums(self, query: Backward, key: ReleaseKey) -> dict[str, Reply]:
        """Return the replies for a gradient query, as for `SecureTransport`."""
        self._reserve(blocks_of(self._plan.problem.n_records) + sum(b.stop - b.start for b in query.blocks))
        return super().sums(query, key)

    def _products(self, query: Gram, key: ReleaseKey, sharing: GramSharing) -> Vector:
        self._reserve(math.prod(sharing.widths.values()))
        return super()._products(query, key, sharing)

    def _reserve(self, replies: int) -> None:
        """End the session if so many more replies would use up its masks. The next request then starts a new one."""
        if not self._session or self._replies + replies >= MOST_REPLIES:
            self._session, self._replies = "", 0
        self._replies += replies

    def _prepare(self) -> None:
        """Do nothing: there is no dealer to be checked."""

    def _share_residuals(
        self, version: requests.Version, angles: Mapping[str, requests.MaskAngles | requests.MaskMoments]
    ) -> None:
        for party in (self._roles.key_owner, self._roles.label):
            self._post(party, angles[party])
        if version.held_out:
            self._post(self._roles.key_owner, requests.TakeMoments(self._session, version))

    def _send_residuals(self, version: requests.Version, owners: tuple[str, ...]) -> tuple[str, ...]:
        if self._sent:
            return ()
        self._post(self._roles.key_owner, requests.ShareResidual(self._session, version, (self._roles.label,)))
        return (self._roles.label,)

    def _ask_sums(
        self, version: requests.Version, setup: int, query: Backward, key: ReleaseKey, fresh: tuple[str, ...]
    ) -> None:
        for party in (self._roles.label, self._roles.key_owner):
            arriving = fresh if party == self._roles.label else ()
            self._post(party, requests.Contribute(self._session, version, setup, query, key, arriving))

    def _ask_products(self, key: ReleaseKey) -> None:
        for party in self._roles.parties:
            self._post(party, requests.ContributeProducts(self._session, key))


def _symmetric(rows: Released) -> Vector:
    gram = np.zeros((len(rows), len(rows)))
    for j, row in enumerate(rows):
        gram[j, j:] = gram[j:, j] = row
    return gram


def _rows(query: Backward) -> requests.Rows:
    return {term.block.party: (term.block, term.centre, term.scale) for term in query.terms()}


def _alike(one: requests.Rows, other: requests.Rows) -> bool:
    return one is other or all(
        np.array_equal(one[party][1], other[party][1]) and np.array_equal(one[party][2], other[party][2])
        for party in one
    )
