"""Query `Select`: the coordinate with the best noisy score."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vfl.errors import FederationError, PrivacyError
from vfl.kernels.geometry import WEIGHTS, Geometry
from vfl.privacy.events import BoundedRange
from vfl.queries.kinds import vectors_of
from vfl.queries.parts import Reply
from vfl.queries.query import Asked, Joint, Weighted, cover

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.base.types import Vector
    from vfl.privacy.events import Event, ReleaseKey
    from vfl.privacy.geometry import Clip
    from vfl.queries.parts import Placed, Records, ScoreRule, Sums
    from vfl.queries.query import AtParty, Rows


@dataclass(frozen=True, slots=True, eq=False)
class Select(Joint, Weighted):
    """The coordinate with the best noisy score over all addressed parties. Only this coordinate is released.

    This is an exponential mechanism of bounded range (vfl.privacy.selection). Each party answers with its best noisy score,
    and the executor takes the best of these. One event is charged for all parties.

    coordinates : {party: (block, coordinates of w in the block)}.
    centres, scales : {party: (s,)}, as in `Step`.
    clip : clip of one coordinate. Every coordinate of the sum is clipped separately.
    rules : {party: function from (w, u) to scores, with u in units of the cap}, all of equal sensitivity.
    part : number of the party's noise stream.
    """

    coordinates: Mapping[str, Placed]
    centres: Mapping[str, Vector]
    scales: Mapping[str, Vector]
    clip: Clip
    rules: Mapping[str, ScoreRule]
    event: BoundedRange | None
    part: int = 0

    asked: ClassVar[Asked] = Asked.TRUSTED
    charged_as: ClassVar[tuple[type[Event], ...]] = (BoundedRange,)

    def sizes(self) -> tuple[int, ...]:
        """Return 1, the length of the released vector: one coordinate."""
        return (1,)

    def combine(self, replies: Mapping[str, Reply]) -> tuple[Vector, ...]:
        """Return the winning coordinate of w as a vector with one entry. All other replies are discarded."""
        best = max(reply.selected for reply in replies.values() if reply.selected is not None)
        return (np.array([float(best.coordinate)]),)

    def required(self) -> None:
        """Check that all fields name the same parties, and have one entry per column."""
        if not self.coordinates.keys() == self.centres.keys() == self.scales.keys() == self.rules.keys():
            raise PrivacyError("a selection must name the same parties in all of its fields")
        for party, (block, w) in self.coordinates.items():
            block.fits(w, self.centres[party], self.scales[party], *vectors_of(self.rules[party]))

    def check_share(self, at: AtParty) -> None:
        """Raise PrivacyError if the party's scores can move by more than the sensitivity that their rule claims."""
        if self.event is None:
            return
        if not self.clip.finite:
            raise PrivacyError("scores of sums without a finite clip cannot be selected from under an event")
        rule, (_, w) = self.rules[at.name], self.coordinates[at.name]
        contribution = self.clip.sensitivity_of(self, 1) / 2.0
        cover(rule.sensitivity, rule.least(w, contribution, at.n_trained))

    def exact(self, rows: Rows, records: Records) -> list[Sums]:
        """Return one sum per coordinate, (s,). Each coordinate is clipped on its own."""
        (block, _), r, threads = self.coordinates[rows.party], records.given("weights"), rows.threads
        X, centre, scale = rows.block(block), self.centres[rows.party], self.scales[rows.party]
        if self.clip.finite:
            return [rows.kernels.singles(X, r, r, WEIGHTS, rows.geometry(centre, scale, self.clip), threads=threads)]
        return [rows.kernels.plain_gradient(X, r, r, WEIGHTS, Geometry(centre, scale), threads=threads)]

    def answer(self, at: AtParty, records: Any, key: ReleaseKey) -> Reply:
        """Return the party's best noisy score and its coordinate, for the executor only."""
        (sums,), rule = at.sums(self, records), self.rules[at.name]
        block, w = self.coordinates[at.name]
        scores = rule(w, np.asarray(sums * (self.clip.unit / at.units), dtype=np.float64))
        best = at.best(scores, rule.sensitivity, self.event, replace(key, part=self.part))
        return Reply(selected=best.moved(block.coordinates.start))

    def check_reply(self, reply: Reply, party: str) -> None:
        """Raise FederationError unless the reply is a score of a coordinate that the party was asked about."""
        if reply.released or reply.selected is None:
            raise FederationError(f"party {party!r} sent releases of different lengths from those requested")
        S = self.coordinates[party][0].coordinates
        if not S.start <= reply.selected.coordinate < S.stop:
            raise FederationError(f"party {party!r} selected a coordinate that it was not asked about")
