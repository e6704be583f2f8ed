"""Run the participants of a session in one process, and record all that each of them received."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from vfl.crypto.encryption import Encryptor
from vfl.privacy.events import ReleaseKey
from vfl.privacy.noise import SeededNoise
from vfl.secure import noise, ring, sigmoid
from vfl.secure.columns import own_columns
from vfl.secure.member import Dealer, Member
from vfl.secure.requests import Opening, Version, digest_of, opened
from vfl.secure.roles import DEALER, Roles
from vfl.secure.streams import Streams

COORDINATOR = "coordinator"


def exchanged(roles: Roles, run: str = "run") -> dict[str, Streams]:
    """Return the streams of all participants of one new session."""
    ends = {who: Encryptor(who, None, ("test", run)) for who in (*roles.parties, DEALER)}
    for who, own in ends.items():
        for other, end in ends.items():
            if other != who:
                own.meet(other, end.key)
    return {who: Streams(run, own.seeds()) for who, own in ends.items()}


@dataclass
class Session:
    """All participants of a session, and `views`: {participant: [(request, sender, array), ...]} in the order of arrival."""

    roles: Roles
    X: dict[str, np.ndarray]
    y: np.ndarray
    cap: float = 1.0
    z: float = 5.0
    bound: float = 3.0
    seed: int = 7
    member: type[Member] = Member
    dealer: type[Dealer] = Dealer
    coin: bytes | None = b"c" * 32
    views: dict[str, list[tuple[str, str, np.ndarray]]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        roles, n = self.roles, len(self.y)
        self.sigma = 2.0 * self.z * self.cap
        self.R = sigmoid.residual_bound()
        widths = {party: X.shape[1] for party, X in self.X.items()}
        self.caps = ring.caps(self.cap, self.R, {party: float(width) for party, width in widths.items()})
        self.bits = ring.bits(n, self.R, max(self.sigma / own for own in self.caps.values()), len(roles.parties))
        streams = exchanged(roles)
        noises = SeededNoise(self.seed)
        self.members = {
            party: self.member(roles, party, streams[party], noises, n, self.y if party == roles.label else None)
            for party in roles.parties
        }
        for member in self.members.values():
            member.coin = self.coin
        self.deals = self.dealer(roles, streams[DEALER], noises, n)
        self.columns = {}
        for party in roles.parties:
            p = widths[party]
            bounds = np.full(p, self.bound)
            self.columns[party] = own_columns(
                self.X[party], np.zeros(p), np.ones(p) / self.bound, bounds, self.caps[party], self.bits
            )
            self.members[party].set_up(0, self.columns[party])

    def sent(self, request: str, sender: str, receiver: str, array: np.ndarray) -> np.ndarray:
        self.views[receiver].append((request, sender, array.copy()))
        return array

    def set_up(self, owner: str, start: int, stop: int) -> None:
        masked = self.members[owner].masked_columns(start, stop)
        for holder in self.roles.receivers(owner):
            self.members[holder].take_columns(owner, 0, start, stop, self.sent("set-up", owner, holder, masked))

    def share(self, w: dict[str, np.ndarray], place: int = 2, attempt: int = 0) -> Version:
        """Run the requests of a version: angles and Fourier terms."""
        version = Version(digest_of(w), place, attempt)
        clamps = sigmoid.clamps(
            sigmoid.SERIES[place].margin, {party: own.reach(w[party]) for party, own in self.columns.items()}
        )
        for party, member in self.members.items():
            angles = member.masked_angles(version, w[party], clamps[party])
            for holder in self.roles.holders:
                if holder != party:
                    self.members[holder].take_angles(version, party, self.sent("angles", party, holder, angles))
        last = self.roles.supplied
        words = np.concatenate([part.copy() for part in self.deals.fourier_terms(version)])
        self.members[last].take_terms(version, iter([self.sent("Fourier terms", DEALER, last, words)]))
        self.check(version)
        return version

    def check(self, version: Version) -> None:
        """Open reserve rows to the label party, which checks the dealer."""
        label = self.roles.label
        for party, member in self.members.items():
            if member.holds:
                member.share(version)
            if party != label:
                masks, rows = member.opened_rows(version)
                self.sent("opened masks", party, label, masks)
                if rows is not None:
                    self.sent("opened rows", party, label, rows)
                self.members[label].take_rows(version, party, masks, rows)
        self.members[label].check_dealt(version)

    def residuals(self, version: Version, owner: str) -> None:
        for holder in self.roles.receivers(owner):
            masked = self.members[holder].masked_residual(version, owner)
            self.members[owner].take_residual(version, holder, self.sent("residual", holder, owner, masked))

    def deviations(self, owner: str) -> noise.Deviations:
        m, k = len(self.roles.parties), self.roles.collude
        return noise.deviations(self.sigma, self.bits.step(self.caps[owner]), m, k)

    def words(self, opening: Opening) -> dict[str, np.ndarray]:
        """Return the words of all parties for an opening."""
        deviations = self.deviations(opening.owner)
        owner = self.members[opening.owner]
        owner.take_sum(opening, self.sent("sum", DEALER, opening.owner, self.deals.sum(opening, deviations)))
        return {
            party: self.sent("opening", party, COORDINATOR, member.contribution(opening, deviations))
            for party, member in self.members.items()
        }

    def open(self, version: Version, owner: str, start: int, stop: int, number: int, **more: object) -> np.ndarray:
        """Return an opened sum, (s,) int64."""
        opening = Opening(owner, start, stop, version, ReleaseKey(number), **more)
        noise = self.deviations(owner).total(len(self.roles.parties))
        largest = ring.largest_sum(len(self.y), self.R << self.bits.columns, noise)
        return opened(self.roles, opening, self.words(opening), largest)

    def clear_residuals(self, version: Version) -> np.ndarray:
        """Return the integer residuals, which nobody has in a run."""
        shares = [self.members[holder].share(version) for holder in self.roles.holders]
        return sum(shares[1:], start=shares[0]).view(np.int64)

    def noises(self, owner: str, size: int, number: int) -> np.ndarray:
        """Return the sum of the seeded noise of all contributors to release `number`."""
        deviations, key, source = self.deviations(owner), ReleaseKey(number), SeededNoise(self.seed)
        drawn = [noise.drawn(source, key, party, deviations.party, size) for party in self.roles.parties]
        return sum(drawn, start=noise.drawn(source, key, DEALER, deviations.dealer, size))


def session(m: int = 2, k: int = 1, n: int = 500, p: int = 3, seed: int = 0, **more: object) -> Session:
    """Return a session of m parties with p columns each, the first of which has the label."""
    rng = np.random.default_rng(seed)
    parties = tuple(f"party-{number}" for number in range(m))
    X = {party: np.asfortranarray(np.clip(rng.normal(size=(n, p)), -3.0, 3.0)) for party in parties}
    y = rng.random(n) < 0.4
    return Session(**({"roles": Roles(parties, parties[0], k), "X": X, "y": y} | more))


def model(session: Session, seed: int = 1, size: float = 0.2) -> dict[str, np.ndarray]:
    """Return a model of small random coefficients."""
    rng = np.random.default_rng(seed)
    return {party: size * rng.normal(size=X.shape[1]) for party, X in session.X.items()}
