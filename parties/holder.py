"""A party of a run on secret shares: it masks its columns, holds shares of residuals, and adds noise to every revealed sum.

Guarantee. The party sends uniform integers modulo 2^64. For each opened (revealed) sum, these are its part of the sum plus its
noise and its share of zero. The shares of all parties add up to the charged sum with noise. Without the share of any one party,
the rest is uniform. Before the party draws noise, it checks the cap and the event of the release for every block of every
party. The holder then charges the release to the party ledger, or to a count in memory. Both refuse releases that the job's
plan does not cover. The party derives roles, bits and caps from the job to which the owner has agreed, never from a message.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from parties.ledger import RunCount
from parties.record_cap import admit
from parties.session import RECORDS, SHARED, Credentials, Session
from vfl.errors import FederationError, PrivacyError, VflError
from vfl.network.messages import Done
from vfl.planning import plan as make_plan
from vfl.privacy.cover import Cover
from vfl.privacy.events import Gaussian
from vfl.privacy.geometry import Clip
from vfl.secure import requests
from vfl.secure.check_rows import CHECK_ROWS
from vfl.secure.columns import OwnColumns, own_columns
from vfl.secure.gram import GramMember, gram_rows
from vfl.secure.member import Member
from vfl.secure.moments import MomentMember, unit_columns
from vfl.secure.requests import committed
from vfl.secure.ring import encoded
from vfl.secure.roles import DEALER
from vfl.secure.sharing import GramSharing, Sharing
from vfl.secure.sigmoid import PLACES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from parties.charges import Charges
    from parties.storage.classes import Storage
    from vfl.base.problem import Block
    from vfl.base.types import Vector
    from vfl.job import Job
    from vfl.kernels.ring import Angles, Elements
    from vfl.privacy.events import ReleaseKey
    from vfl.privacy.noise import NoiseSource
    from vfl.queries import Backward
    from vfl.secure.measures import Measuring
    from vfl.secure.requests import Ciphertext, Commitment, Request, Version
    from vfl.secure.streams import Streams

LOSS = "logistic"
LARGEST_CLAMP = 1e6
"""Largest bound of a linear predictor in a request; runs ask for at most a few hundred."""
PRODUCTS = requests.MaskProducts | requests.TakeProducts | requests.ContributeProducts
"""Types of requests for a release of products of columns."""


class Holder:
    """One party in a run on secret shares: it answers requests over the party's columns.

    job : the job to which the owner has agreed. columns, labels, held_out, held_labels : as for parties.rows.Rows. noise,
        ledger : as for parties.party.Party. own : the party's identity across organisations.
    charges : the party ledger; without a party ledger, a count in memory.
    """

    def __init__(
        self,
        job: Job,
        name: str,
        columns: Storage,
        noise: NoiseSource,
        labels: Vector | None = None,
        ledger: Charges | None = None,
        own: Credentials | None = None,
        held_out: Storage | None = None,
        held_labels: Vector | None = None,
    ) -> None:
        self._job, self.name = job, name
        self._columns, self._noise, self._labels = columns, noise, labels
        self._held_out, self._held_labels = held_out, held_labels
        self._n_records = columns.n_records + (0 if held_out is None else held_out.n_records)
        self.charges: Charges = ledger or RunCount(job, name, self._n_records)
        self._own = own or Credentials()
        self._plan = make_plan(job, self._n_records)
        self._session: Session | None = None
        self._streams: Streams | None = None
        self._gram: GramMember | None = None
        self._member: Member | None = None
        self._setup: requests.SetUp | None = None
        self._caps: dict[str, float] = {}
        self._cover = Cover(repeats=not noise.private)
        self._known: tuple[bytes, OwnColumns] | None = None
        self._committed: requests.Contribution | None = None
        self._measures = False

    @property
    def sharing(self) -> Sharing | GramSharing:
        """Public facts of the run: roles, bits and caps."""
        if self._plan.sharing is None:
            raise self._refusal("received a message of training on shares, which its job does not plan")
        return self._plan.sharing

    @property
    def _logistic(self) -> Sharing:
        if not isinstance(self.sharing, Sharing):
            raise self._refusal("was asked to share residuals, and its job shares products of columns")
        return self.sharing

    def takes(self, request: Request) -> int:
        """Return the number of encrypted messages that must come with a request; 0 before the session's keys are exchanged."""
        return 0 if self._streams is None else len(requests.senders(request, self.name, self.sharing.roles))

    def request(self, request: Request, ciphertexts: Sequence[Ciphertext]) -> tuple[object, list[Ciphertext]]:
        """Return the reply to a request, and ciphertexts for the request's `receivers`. ciphertexts : from its `senders`."""
        if isinstance(request, requests.Meet):
            self._session, self._streams = Session(self.name, request.session, self._own), None
            self._member, self._setup, self._gram, self._committed = None, None, None, None
            return self._session.key, []
        if self._session is None or request.session != self._session.session:
            raise self._refusal("received a message of a session that has ended", FederationError)
        session = self._session
        if isinstance(request, requests.Begin):
            self._begin(session, request)
            return Done(), []
        if self._streams is None:
            raise self._refusal("received a message before the session's keys: start the run again", FederationError)
        roles = self.sharing.roles
        self._require_members(request)
        senders_of, receivers_of = (
            requests.senders(request, self.name, roles),
            requests.receivers(request, self.name, roles),
        )
        if len(ciphertexts) != len(senders_of):
            raise self._refusal(
                f"received {len(ciphertexts)} encrypted messages instead of {len(senders_of)}", FederationError
            )
        if isinstance(request, requests.Disclose):
            return self._disclosed(), []
        if isinstance(request, requests.StateRecords) and roles.dealt:
            count = np.array([self._n_records], dtype=np.uint64)
            return Done(), [session.encrypt(DEALER, RECORDS, count)]
        if isinstance(request, requests.SUMS if self._measures else requests.MEASURES):
            raise self._refusal(f"does not answer {type(request).__name__} here", FederationError)
        return self._answered(request, session, dict(zip(senders_of, ciphertexts, strict=True)), receivers_of)

    def _answered(
        self, request: Request, session: Session, given: dict[str, Ciphertext], to: Sequence[str]
    ) -> tuple[object, list[Ciphertext]]:
        """Answer a request of the protocol with a dealer. given : {sender: its encrypted message}. to : receivers."""
        products = self.sharing.products
        if products is not None and isinstance(request, PRODUCTS):
            return self._products(request, products, session, given, to)
        if self._member is None:
            raise self._refusal(f"does not answer {type(request).__name__} here", FederationError)
        return self._answer(request, self._member, session, given, to)

    def _require_members(self, request: Request) -> None:
        """Raise PrivacyError for a request about participants or columns that the job does not have."""
        sizes, fits = {party: whole.size for party, whole in self._plan.problem.layout.whole().items()}, True
        match request:
            case requests.SetUp(rows=rows, blocks=blocks):
                fits = rows.keys() == blocks.keys() == sizes.keys() and bool(blocks[self.name])
                fits = fits and all(0 <= a < b <= sizes[party] for party, own in blocks.items() for a, b in own)
            case requests.MaskProducts(rows=rows):
                fits = self.name in rows
            case requests.TakeColumns(owner=owner) | requests.TakeProducts(owner=owner):
                fits = owner in sizes and owner != self.name
            case requests.MaskMoments(w=w, centre=centre):
                fits = len(w) == len(centre) == sizes[self.name] and bool(np.isfinite(centre).all())
            case requests.Contribute(query=query):
                fits = all(block.stop <= sizes.get(block.party, -1) for block in query.blocks)
        if isinstance(request, requests.MaskAngles | requests.MaskMoments) and request.clamp is not None:
            fits = fits and 0.0 <= request.clamp <= LARGEST_CLAMP
        if not fits:
            raise self._refusal(
                f"was sent a {type(request).__name__} about parties or columns that its job does not have"
            )

    @np.errstate(all="ignore")
    def _answer(
        self, request: Request, member: Member, session: Session, ciphertexts: dict[str, Ciphertext], to: Sequence[str]
    ) -> tuple[object, list[Ciphertext]]:
        n = member.n_records
        match request:
            case requests.SetUp():
                return Done(), self._set_up(request, member, session, to)
            case requests.TakeColumns():
                setup, owner = self._of_setup(), request.owner
                sizes = [stop - start for start, stop in setup.blocks[owner]]
                elements = session.open(owner, f"columns {setup.number}", ciphertexts[owner], np.uint64, sum(sizes), n)
                at = 0
                for start, stop in setup.blocks[owner]:
                    member.take_columns(owner, setup.number, start, stop, elements[at : at + stop - start])
                    at += stop - start
            case requests.Toss():
                if self.name != self.sharing.roles.label:
                    raise self._refusal("was asked for the coin, which the label party draws", FederationError)
                coin = self._noise.stream(SHARED, "coin").words(4)
                self._tossed(member, coin)
                return Done(), [session.encrypt(party, "coin", coin) for party in to]
            case requests.TakeToss():
                ((sender, ciphertext),) = ciphertexts.items()
                self._tossed(member, session.open(sender, "coin", ciphertext, np.uint64, 4))
            case requests.OpenRows():
                return Done(), self._opened_rows(request.version, member, session, ciphertexts, to)
            case requests.CheckRows():
                self._check_rows(request, member, session, ciphertexts)
            case requests.MaskAngles():
                self._require_coin(member)
                self._require_place(request.version)
                masked = member.masked_angles(request.version, request.w, request.clamp)
                return Done(), [session.encrypt(h, f"angles {request.version.name}", masked) for h in to]
            case requests.MaskMoments():
                masked = self._masked_moments(request, member)
                return Done(), [session.encrypt(h, f"angles {request.version.name}", masked) for h in to]
            case requests.ContributeMoments() if isinstance(member, MomentMember):
                elements = self._measured(request, member, session, ciphertexts)
                return self._commitment(elements, request.key, session), []
            case requests.ShareResidual():
                version = request.version
                found = {owner: member.masked_residual(version, owner) for owner in to}
                return Done(), [
                    session.encrypt(o, f"residual {version.name}", elements) for o, elements in found.items()
                ]
            case requests.Contribute():
                elements, key = self._contribution(request, member, session, ciphertexts), request.key
                return self._commitment(elements, replace(key, part=request.query.part), session), []
            case _:
                raise self._refusal(f"does not answer {type(request).__name__}", FederationError)
        return Done(), []

    def _begun(self, session: Session, request: requests.Begin) -> Streams:
        """Begin the session, and return the streams that this party shares with the others."""
        if request.n_records != self._n_records:
            raise self._refusal("has a different number of records from the session", FederationError)
        others = [other for other in self.sharing.roles.contributors if other != self.name]
        self._streams = session.begin(request.keys, others, self._noise)
        self._measures = request.held_out
        return self._streams

    def _begin(self, session: Session, request: requests.Begin) -> None:
        roles, streams = self.sharing.roles, self._begun(session, request)
        if isinstance(self.sharing, Sharing):
            n, labels = self._of_session(request).n_records, self._positive(held_out=request.held_out)
            member = MomentMember if request.held_out else Member
            self._member = member(roles, self.name, streams, self._noise, n, labels)

    def _of_session(self, request: requests.Begin) -> Storage:
        """Return the columns of the session's records: those of training, or the held-out ones."""
        if not request.held_out:
            return self._columns
        if self._held_out is None or self._logistic.measuring is None:
            raise self._refusal("was asked to measure held-out records, which its job does not plan")
        return self._held_out

    def _positive(self, *, held_out: bool = False) -> npt.NDArray[np.bool_] | None:
        """Return which labels of the training or the held-out records are positive; None at a party without the label."""
        labels = self._held_labels if held_out else self._labels
        return None if self.name != self.sharing.roles.label or labels is None else labels > 0.0

    def _tossed(self, member: Member, coin: Elements) -> None:
        """Take the session's coin (random bytes). A second coin is refused, since it would open rows that mask records."""
        if member.coin is not None:
            raise self._refusal("was sent a second coin in one session")
        member.coin = coin.astype("<u8").tobytes()

    def _opened_rows(
        self, version: Version, member: Member, session: Session, ciphertexts: dict[str, Ciphertext], to: Sequence[str]
    ) -> list[Ciphertext]:
        """Return this party's check rows, encrypted for the label party. A holder of residuals first computes its share."""
        n = member.n_records
        for sender, ciphertext in ciphertexts.items():
            if sender == DEALER:
                width = 2 * self._terms(version)
                rows = session.open_parts(
                    sender, f"Fourier terms {version.name}", ciphertext, np.uint64, n + CHECK_ROWS, width
                )
                member.take_terms(version, rows)
            else:
                angles = session.open(sender, f"angles {version.name}", ciphertext, np.uint16, n)
                member.take_angles(version, sender, angles)
        if member.holds:
            member.share(version)  # also computes the check rows, so call it even if nobody needs the share
        masks, shares = member.opened_rows(version)
        elements = masks.view(np.uint64) if shares is None else np.append(masks.view(np.uint64), shares)
        return [session.encrypt(label, f"rows {version.name}", elements) for label in to]

    def _check_rows(
        self, request: requests.CheckRows, member: Member, session: Session, ciphertexts: dict[str, Ciphertext]
    ) -> None:
        width = 2 * self._terms(request.version)
        for sender, ciphertext in ciphertexts.items():
            rows = width if sender in self.sharing.roles.holders else 0
            elements = session.open(
                sender, f"rows {request.version.name}", ciphertext, np.uint64, CHECK_ROWS // 4 + CHECK_ROWS * rows
            )
            masks, shares = (
                elements[: CHECK_ROWS // 4].view(np.uint16),
                elements[CHECK_ROWS // 4 :].reshape(-1, width) if rows else None,
            )
            member.take_rows(request.version, sender, masks, shares)
        member.check_dealt(request.version)

    def _set_up(self, request: requests.SetUp, member: Member, session: Session, to: Sequence[str]) -> list[Ciphertext]:
        """Cap and mask the party's own rows. The masked rows serve every later w."""
        member.set_up(request.number, self._capped(request))
        elements = np.concatenate([member.masked_columns(start, stop) for start, stop in request.blocks[self.name]])
        return [session.encrypt(holder, f"columns {request.number}", elements) for holder in to]

    def _capped(self, request: requests.SetUp) -> OwnColumns:
        """Return the party's capped rows, which are kept for later requests with equal cap, centres and scales."""
        sharing = self._logistic
        block, centre, scale = request.rows[self.name]
        whole = self._require_whole(block, centre, scale)
        self._caps = sharing.caps(request.cap)
        shape = b"".join((np.float64(request.cap).tobytes(), centre.tobytes(), scale.tobytes()))
        if self._known is None or self._known[0] != shape:
            X = np.empty((whole.size, self._columns.n_records))
            for j in range(whole.size):
                X[j] = self._columns.column(j)
            reach = self._plan.problem.reach[whole.coordinates]
            self._known = shape, own_columns(X.T, centre, scale, reach, self._caps[self.name], sharing.bits)
        self._setup = request
        return self._known[1]

    def _require_whole(self, block: Block, centre: Vector, scale: Vector) -> Block:
        """Return the block of all columns.

        Raises PrivacyError if the given block, centres and scales are not those of all columns.
        """
        whole = self._plan.problem.layout.whole()[self.name]
        if (block.start, block.stop) != (0, whole.size) or not len(centre) == len(scale) == whole.size:
            raise self._refusal("was asked to mask rows that do not cover all of its columns")
        return whole

    @np.errstate(all="ignore")
    def _products(
        self,
        request: Request,
        sharing: GramSharing,
        session: Session,
        ciphertexts: dict[str, Ciphertext],
        to: Sequence[str],
    ) -> tuple[object, list[Ciphertext]]:
        """Answer a request for one release of all products of columns."""
        if isinstance(request, requests.MaskProducts) and self._streams is not None:
            rows = self._gram_rows(sharing, request)
            made = GramMember(sharing.roles, self.name, self._streams, self._noise, rows)
            masked, self._gram = made.masked_columns(), made
            return Done(), [session.encrypt(other, "columns", masked) for other in to]
        member, n = self._gram, self._columns.n_records
        match request:
            case requests.TakeProducts() if member is not None and request.width == sharing.widths[request.owner]:
                elements = session.open(
                    request.owner, "columns", ciphertexts[request.owner], np.uint64, request.width, n
                )
                member.take_columns(request.owner, elements)
                return Done(), []
            case requests.ContributeProducts() if member is not None:
                elements = self._opened_products(request, sharing, member, session, ciphertexts)
                return self._commitment(elements, request.key, session), []
            case _:
                raise self._refusal(f"does not answer {type(request).__name__} here", FederationError)

    def _opened_products(
        self,
        request: requests.ContributeProducts,
        sharing: GramSharing,
        member: GramMember,
        session: Session,
        ciphertexts: dict[str, Ciphertext],
    ) -> Elements:
        """Charge the release; return this party's share of its products with each other party, in order, then its own block."""
        self._charge_products(request, sharing)
        widths, parties = sharing.widths, sharing.roles.parties
        if DEALER in ciphertexts:
            before = parties[: parties.index(self.name)]
            size = sum(widths[first] for first in before) * widths[self.name]
            dealt = session.open(DEALER, f"products {request.key}", ciphertexts[DEALER], np.uint64, size)
            at = 0
            for first in before:
                shape = widths[first], widths[self.name]
                elements = dealt[at : at + shape[0] * shape[1]].reshape(shape)
                member.take_product(sharing.pair(first, self.name, request.key), elements)
                at += elements.size
        found = [
            member.cross(sharing.pair(self.name, other, request.key)).ravel() for other in parties if other != self.name
        ]
        found.append(encoded(member.own(sharing.pair(self.name, self.name, request.key)).ravel()))
        return np.concatenate(found)

    def _charge_products(self, request: requests.ContributeProducts, sharing: GramSharing) -> None:
        """Charge the one release of all products, as the job plans it, to the owner's log."""
        sharing.first.check()
        self.charges.record(sharing.first.shares()[self.name], request.key)

    def _gram_rows(self, sharing: GramSharing, request: requests.MaskProducts) -> npt.NDArray[np.int32]:
        """Return the party's integer rows: its columns, then the label t(y − c) if the release includes a label."""
        block, centre, scale = request.rows[self.name]
        if isinstance(self.sharing, GramSharing) and (np.any(centre != 0.0) or np.any(scale != 1.0)):
            raise self._refusal("was asked for products of columns in other units than its job plans")
        self._require_whole(block, centre, scale)
        X = np.empty((sharing.widths[self.name], self._columns.n_records))
        for j in range(self._columns.n_coordinates):
            X[j] = self._columns.column(j)
        if self.name == sharing.roles.label and sharing.label_scale is not None:
            if self._labels is None:
                raise self._refusal("does not hold the label")
            X[-1] = sharing.label_scale * (self._labels - sharing.label_centre)
            centre, scale = np.append(centre, 0.0), np.append(scale, 1.0)
        return gram_rows(X.T, centre, scale, sharing.caps()[self.name], sharing.bits)

    def _contribution(
        self, request: requests.Contribute, member: Member, session: Session, ciphertexts: dict[str, Ciphertext]
    ) -> Elements:
        query, key, version = request.query, request.key, request.version
        self._require_place(version)
        event = self._admitted(query, request)
        self.charges.record(query, key)
        n, sizes = member.n_records, [block.size for block in query.blocks if block.party == self.name]
        for sender, ciphertext in ciphertexts.items():
            if sender != DEALER:
                elements = session.open(sender, f"residual {version.name}", ciphertext, np.uint64, n)
                member.take_residual(version, sender, elements)
        dealt = np.zeros(0, dtype=np.uint64)
        if DEALER in ciphertexts:
            dealt = session.open(DEALER, f"sum {key}", ciphertexts[DEALER], np.uint64, sum(sizes))
        found, at = [], 0
        for opening in requests.openings(query, key, request.setup, version):
            if opening.owner == self.name:
                member.take_sum(opening, dealt[at : at + opening.size])
                at += opening.size
            deviations = self._logistic.deviations(opening.owner, query.clip.cap, event.sigma)
            found.append(member.contribution(opening, deviations))
        return np.concatenate(found)

    def _commitment(self, elements: Elements, key: ReleaseKey, session: Session) -> Commitment:
        """Keep this party's share of a noised sum until it is disclosed, and return a commitment to the share."""
        drawn = self._noise.stream(key, f"{self.name}, commitment").words(4)
        nonce = drawn.astype("<u8", copy=False).tobytes()
        self._committed = requests.Contribution(elements.astype("<u8", copy=False).tobytes(), nonce)
        return committed(self.name, session.session, self._committed)

    def _disclosed(self) -> requests.Contribution:
        """Return the share of the last commitment, once."""
        elements, self._committed = self._committed, None
        if elements is None:
            raise self._refusal("was asked to disclose a share that it has not committed to", FederationError)
        return elements

    def _admitted(self, query: Backward, request: requests.Contribute) -> Gaussian:
        """Return the event of a release. Raises PrivacyError unless the capped rows and the charge cover the query.

        The cap C of the set-up bounds a record's contribution to all columns of all parties together. One charge can therefore
        cover disjoint blocks.
        """
        setup, event = self._of_setup(), query.event
        if not isinstance(event, Gaussian):
            raise self._refusal("was asked to contribute to a sum without noise")
        loss = getattr(query.weighting, "loss", None)
        divided = query.batch is not None or query.subsample is not None
        if getattr(loss, "name", "") != LOSS or type(query.clip) is not Clip or divided:
            raise self._refusal("was asked for a sum that its job does not plan")
        query.check()
        self._logistic.require_planned(event)
        if request.setup != setup.number or query.clip.cap != setup.cap:
            raise self._refusal("was asked for a sum under a cap or set-up different from that of its rows")
        for term in query.terms():
            block = term.block
            _, centre, scale = setup.rows[block.party]
            same = np.array_equal(term.centre, centre[block.local]) and np.array_equal(term.scale, scale[block.local])
            if not same or (block.start, block.stop) not in setup.blocks[block.party]:
                raise self._refusal("was asked for a block in a scale different from that of its rows")
        asked = [(block.party, j) for block in query.blocks for j in range(block.start, block.stop)]
        if len(set(asked)) < len(asked):
            raise self._refusal("was asked to reveal a coordinate twice in one release")
        if (cap := query.capped) is not None:
            if cap.paid is None:
                raise self._refusal("was asked for a block of a pass that was not charged")
            # The charge must cover all p coordinates of the problem: the rows in `cap` are the coordinator's own choice.
            if cap.cap != setup.cap or query.clip.dimension < self._plan.problem.layout.n_coordinates:
                raise self._refusal("was asked to change the cap within a set-up")
            cap.require_covered([(query.clip, event)])
            # A charge covers each coordinate of all parties once. Rows of two different set-ups are not under one cap.
            admit(self._cover, self.name, cap.paid, self._shape(), asked)
        return event

    def _shape(self) -> bytes:
        """Return the cap, and the centres and scales of all parties' rows, as bytes, which differ if any of these differ."""
        setup = self._of_setup()
        parts = [np.float64(setup.cap).tobytes()]
        for party in self.sharing.roles.parties:
            _, centre, scale = setup.rows[party]
            parts += [centre.tobytes(), scale.tobytes()]
        return b"".join(parts)

    def _masked_moments(self, request: requests.MaskMoments, member: Member) -> Angles:
        """Return the party's masked part of the angles of the held-out records."""
        self._require_coin(member)
        member.set_up(member.next_setup, self._units(request))
        return member.masked_angles(request.version, request.w, request.clamp)

    def _units(self, request: requests.MaskMoments) -> OwnColumns:
        """Return the party's columns of the held-out records, for angles."""
        self._require_place(request.version)
        columns = self._held_out
        if columns is None:
            raise self._refusal("has no held-out records", FederationError)
        whole = self._plan.problem.layout.whole()[self.name]
        X = np.array([columns.column(j) for j in range(whole.size)])
        return unit_columns(X, request.centre, self._plan.problem.reach[whole.coordinates])

    def _measured(
        self,
        request: requests.ContributeMoments,
        member: MomentMember,
        session: Session,
        ciphertexts: dict[str, Ciphertext],
    ) -> Elements:
        """Charge a release of measures as the job plans it; return this party's shares of its numbers."""
        measuring = self._charge_measure(request)
        if DEALER in ciphertexts:
            size = len(measuring.release(request.number, request.version.place).matrix)
            dealt = session.open(DEALER, f"noise {request.name}", ciphertexts[DEALER], np.uint64, size)
            member.take_noise(request, dealt)
        return member.measured(request, measuring)

    def _charge_measure(self, request: requests.ContributeMoments) -> Measuring:
        """Charge a release of measures to the owner's log, after checks of its statistic, its event and its place."""
        measuring = self._logistic.measuring
        self._require_place(request.version)
        if measuring is None:
            raise self._refusal("was asked to measure held-out records, which its job does not plan")
        measuring.release(request.number, request.version.place)
        query = measuring.query(request.number)
        query.check()
        self.charges.record(query, request.key)
        return measuring

    def _require_coin(self, member: Member) -> None:
        if member.coin is None:
            raise self._refusal("was asked for angles before the coin by which the dealer is checked")

    def _require_place(self, version: Version) -> None:
        """Raise PrivacyError for a version of another kind of session, or with a series that the job does not use."""
        places = PLACES if version.held_out else self._logistic.places
        if version.held_out != self._measures or version.place not in places:
            raise self._refusal("was asked to use a series for the sigmoid that its job does not use")

    def _terms(self, version: Version) -> int:
        self._require_place(version)
        return version.terms

    def _refusal(self, why: str, kind: type[VflError] = PrivacyError) -> VflError:
        return kind(f"party {self.name!r} {why}")

    def _of_setup(self) -> requests.SetUp:
        if self._setup is None:
            raise self._refusal("received a message before the set-up of its columns", FederationError)
        return self._setup
