"""A party of a run on secret shares without a dealer: the key owner, or the multiplier, which holds the label.

Guarantee. As for `Holder`: each release is checked and charged before its noise is drawn. The party sends encryptions under the
key owner's key, or replies whose slots are uniform integers modulo t, and its shares of opened sums with the whole charged
noise. Two shares cancel only if they come from one reply. A party that could pair shares of different replies would read
columns. So each encrypted message has a label with all facts of its request. The receiver derives this label from its own
request. Nothing is computed twice under one name. If the coordinator sends different facts to the two parties, the run
therefore ends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.holder import PRODUCTS, Holder
from vfl.errors import FederationError
from vfl.network.messages import Done
from vfl.secure import requests
from vfl.secure.homomorphic import PIECE, PUBLIC_PIECE, blocks_of, require_library
from vfl.secure.pair import PairGram, PairKeys, PairMember, PairMoments
from vfl.secure.ring import encoded
from vfl.secure.sharing import Sharing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parties.session import Session
    from vfl.kernels.ring import Elements
    from vfl.secure.requests import Ciphertext, Request
    from vfl.secure.sharing import GramSharing


class PairHolder(Holder):
    """One of the two parties of a run without a dealer; arguments as for `Holder`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        require_library()
        super().__init__(*args, **options)
        self._keys: PairKeys | None = None
        self._pair: PairMember | None = None
        self._products_of_pair: PairGram | None = None
        self._moments: PairMoments | None = None
        self._label = ""

    def _begin(self, session: Session, request: requests.Begin) -> None:
        streams = self._begun(session, request)
        roles, n = self.sharing.roles, self._of_session(request).n_records
        self._keys = keys = PairKeys(roles, self.name)
        self._pair, self._products_of_pair, self._moments = None, None, None
        if request.held_out:
            self._moments = PairMoments(roles, self.name, keys, streams, self._noise, self._positive(held_out=True))
        elif isinstance(self.sharing, Sharing):
            self._pair = PairMember(roles, self.name, keys, self._noise, n, self._positive())

    def _answered(
        self, request: Request, session: Session, given: dict[str, Ciphertext], to: Sequence[str]
    ) -> tuple[object, list[Ciphertext]]:
        products = self.sharing.products
        if products is not None and isinstance(request, PRODUCTS):
            return self._of_products(request, products, session, given, to)
        if self._moments is not None:
            return self._of_moments(request, self._moments, session, given, to)
        if self._pair is None:
            raise self._refusal(f"does not answer {type(request).__name__} here", FederationError)
        return self._of_sums(request, self._pair, session, given, to)

    @np.errstate(all="ignore")
    def _of_sums(
        self, request: Request, member: PairMember, session: Session, given: dict[str, Ciphertext], to: Sequence[str]
    ) -> tuple[object, list[Ciphertext]]:
        n, owns, message = self._columns.n_records, self.name == self.sharing.roles.key_owner, b""
        label, blocks = "", blocks_of(n)
        match request:
            case requests.SetUp():
                member.set_up(request.number, self._capped(request))
                label = f"columns {self._of_rows()}"
                message = member.encrypted_columns() if owns else b""
            case requests.TakeColumns():
                setup = self._of_setup()
                width = self._plan.problem.layout.whole()[request.owner].size
                size = PUBLIC_PIECE + PIECE * blocks * width
                member.take_columns(setup.number, width, self._text(session, given, f"columns {self._of_rows()}", size))
            case requests.MaskAngles(version=version):
                self._require_place(version)
                label = f"terms {version.name} {self._of_rows()}"
                if owns:
                    message = member.encrypted_terms(version, request.w, request.clamp)
                else:
                    text = self._text(session, given, label, PIECE * blocks * 2 * self._terms(version))
                    message = member.multiplied_terms(version, request.w, request.clamp, text)
            case requests.ShareResidual(version=version):
                label = f"terms {version.name} {self._of_rows()}"
                member.take_residual(version, self._text(session, given, label, PIECE * blocks))
                label, message = f"share {version.name}", member.encrypted_share(version)
            case requests.Contribute(version=version, query=query, key=key):
                self._require_place(version)
                event = self._admitted(query, request)
                self.charges.record(query, key)
                openings = requests.openings(query, key, request.setup, version)
                label = f"sums {[opening.name for opening in openings]} {self._of_rows()}"
                if owns:
                    member.take_sums(openings, self._text(session, given, label, PIECE * sum(o.size for o in openings)))
                else:
                    if given:
                        member.take_share(version, self._text(session, given, f"share {version.name}", PIECE * blocks))
                    message = member.multiplied_sums(openings)
                deviations = [self._logistic.deviations(o.owner, query.clip.cap, event.sigma) for o in openings]
                found = [member.contribution(o, own) for o, own in zip(openings, deviations, strict=True)]
                commitment = self._commitment(np.concatenate(found), replace(key, part=query.part), session)
                return commitment, self._sealed(session, to, label, message)
            case _:
                raise self._refusal(f"does not answer {type(request).__name__}", FederationError)
        return Done(), self._sealed(session, to, label, message)

    @np.errstate(all="ignore")
    def _of_moments(
        self, request: Request, member: PairMoments, session: Session, given: dict[str, Ciphertext], to: Sequence[str]
    ) -> tuple[object, list[Ciphertext]]:
        owns = self.name == self.sharing.roles.key_owner
        match request:
            case requests.MaskMoments(version=version, w=w, clamp=clamp):
                columns, terms = self._units(request), f"terms {version.name}"
                if owns:
                    return Done(), self._sealed(session, to, terms, member.encrypted_terms(version, columns, w, clamp))
                size = PUBLIC_PIECE + PIECE * blocks_of(columns.units.shape[1]) * 2 * version.terms
                replies = member.multiplied(version, columns, w, clamp, self._text(session, given, terms, size))
                return Done(), self._sealed(session, to, f"moments {version.name}", replies)
            case requests.TakeMoments(version=version) if owns:
                self._require_place(version)
                text = self._text(session, given, f"moments {version.name}", PIECE * 2 * version.terms)
                member.take_moments(version, text)
                return Done(), []
            case requests.ContributeMoments():
                elements = member.measured(request, self._charge_measure(request))
                return self._commitment(elements, request.key, session), []
            case _:
                raise self._refusal(f"does not answer {type(request).__name__} here", FederationError)

    @np.errstate(all="ignore")
    def _of_products(
        self,
        request: Request,
        sharing: GramSharing,
        session: Session,
        given: dict[str, Ciphertext],
        to: Sequence[str],
    ) -> tuple[object, list[Ciphertext]]:
        roles, widths = sharing.roles, sharing.widths
        if isinstance(request, requests.MaskProducts) and self._keys is not None:
            rows = self._gram_rows(sharing, request)
            made = self._products_of_pair = PairGram(roles, self.name, self._keys, rows)
            self._label = f"products {_digest(request.rows)}"
            message = made.encrypted_columns() if self.name == roles.key_owner else b""
            return Done(), self._sealed(session, to, f"columns of {self._label}", message)
        member = self._products_of_pair
        match request:
            case requests.TakeProducts() if member is not None and request.width == widths[request.owner]:
                size = PUBLIC_PIECE + PIECE * blocks_of(self._columns.n_records) * request.width
                replies = member.multiplied(
                    request.width, self._text(session, given, f"columns of {self._label}", size)
                )
                return Done(), self._sealed(session, to, self._label, replies)
            case requests.ContributeProducts() if member is not None:
                self._charge_products(request, sharing)
                if given:
                    size = PIECE * widths[roles.label] * widths[roles.key_owner]
                    member.take_products(self._text(session, given, self._label, size))
                (other,) = (party for party in roles.parties if party != self.name)
                cross, own = member.opened(
                    sharing.pair(self.name, other, request.key),
                    sharing.pair(self.name, self.name, request.key),
                    self._noise,
                )
                return self._commitment(np.append(cross.ravel(), encoded(own.ravel())), request.key, session), []
            case _:
                raise self._refusal(f"does not answer {type(request).__name__} here", FederationError)

    def _of_rows(self) -> str:
        """Return a name of the set-up of both parties' columns: its number, cap and blocks, and a digest of the rows."""
        setup = self._of_setup()
        return f"{setup.number} {setup.cap!r} {sorted(setup.blocks.items())} {_digest(setup.rows)}"

    def _text(self, session: Session, given: dict[str, Ciphertext], label: str, size: int) -> memoryview:
        """Return the text that the other party encrypted under a label, of exactly `size` bytes."""
        if not given:
            raise self._refusal("received no encrypted message with a request that needs one", FederationError)
        ((sender, ciphertext),) = given.items()
        found: Elements = session.open(sender, label, ciphertext, np.uint8, size)
        return found.data

    def _sealed(self, session: Session, to: Sequence[str], label: str, message: bytes) -> list[Ciphertext]:
        return [session.encrypt(other, label, np.frombuffer(message, dtype=np.uint8)) for other in to]


def _digest(rows: requests.Rows) -> str:
    """Return a digest of the centres and scales of both parties' rows."""
    return requests.digest_of({party: np.concatenate([centre, scale]) for party, (_, centre, scale) in rows.items()})
