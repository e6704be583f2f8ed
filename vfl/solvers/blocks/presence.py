"""Record of the parties that still take part in a run, for solvers that continue after the loss of a party."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from vfl.errors import PartyLost
from vfl.queries import Forward, RecordNorms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.base.problem import Problem
    from vfl.base.types import Vector
    from vfl.queries import Query, RecordCap
    from vfl.queries.parts import Scaled
    from vfl.queries.protocol import Exchange, Released
    from vfl.solvers.releases.curvature import Curvature

Addressed = TypeVar("Addressed")


class Presence:
    """Filter of a solver's queries. After the loss of a party, the filter sets the party's coordinates to 0 and rebuilds Xw.

    known : curvature and centres of the columns. Models w are models of the centred columns.
    mask : (p,) 1 for the coordinates of present parties, 0 for those of lost parties.
    """

    def __init__(self, problem: Problem, known: Curvature) -> None:
        self._whole = problem.layout.whole()
        self._known = known
        self._intercept = problem.intercept
        self._rows: Mapping[str, Scaled] | None = None
        self.mask = np.ones(problem.layout.n_coordinates)

    def of(self, message: Mapping[str, Addressed]) -> dict[str, Addressed]:
        """Return those entries of `message`, by party, whose parties are still present."""
        return {party: own for party, own in message.items() if self.mask[self._whole[party].coordinates].all()}

    def parts(self, w: Vector, message: Mapping[str, object]) -> dict[str, Vector]:
        """Return {party: a copy of its coordinates of w} for the parties in `message`."""
        return {party: w[self._whole[party].coordinates].copy() for party in message}

    def put(self, query: Query, w: Vector) -> Exchange[Released | None]:
        """Send a query. Return the releases, or None if a party was lost during the query.

        w : (p,) the model to which the margins Xw belong. After a loss, the lost party's coordinates are set to 0 in place, and
            Xw is computed again.
        """
        try:
            return (yield query)
        except PartyLost as lost:
            self._lose(lost)
            w[:] = yield from self.rebuilt(w)
            yield from self._norms(w)
            return None

    def norms(self, cap: RecordCap | None, w: Vector) -> Exchange[None]:
        """Let the coordinator compute the record norms that a record cap needs, again after each loss of a party.

        After a loss, the next release needs a new charge. So no charge covers releases whose norms come from different
        parties.
        w : as in `put`.
        """
        self._rows = None if cap is None else cap.rows
        yield from self._norms(w)

    def _norms(self, w: Vector) -> Exchange[None]:
        while self._rows is not None:
            try:
                yield RecordNorms(self.of(self._rows))
            except PartyLost as lost:
                self._lose(lost)
                w[:] = yield from self.rebuilt(w)
            else:
                return

    def rebuilt(self, w: Vector) -> Exchange[Vector]:
        """Compute Xw again over the present parties. Return w, (p,), with 0 for the coordinates of lost parties."""
        while True:
            v = self._known.uncentred(w * self.mask, self._intercept)
            present = self.of({party: (block, v[block.coordinates]) for party, block in self._whole.items()})
            try:
                yield Forward(present, into="reset")
            except PartyLost as lost:
                self._lose(lost)
            else:
                return w * self.mask

    def _lose(self, lost: PartyLost) -> None:
        self.mask[self._whole[lost.party].coordinates] = 0.0
