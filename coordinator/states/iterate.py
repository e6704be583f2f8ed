"""Public model as the coordinator's only state between queries under trust='secure'. The model takes the place of margins.

Guarantee. No value in this module has an entry per record: w and the shift are functions of released values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from vfl.base.holdout import Side
from vfl.errors import PrivacyError
from vfl.queries import Forward, Records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vfl.base.problem import Layout
    from vfl.base.types import Vector
    from vfl.queries import Query, Reply, Tally
    from vfl.queries.parts import Scaled, Update


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A public model: margins are Σ_q X_q w_q + shift.

    w : {party: (p_q,) coefficients of its columns}. shift : −c·w for columns centred at c.
    """

    w: Mapping[str, Vector]
    shift: float = 0.0


class Iterate:
    """Public model that queries change. It has the methods of `LinearPredictors` (coordinator.states.linear_predictors).

    A query about the columns of one owner (moments, ranges, tallies of labels) is sent to this owner. A gradient query is sent
    to all parties, which open its sum with noise (coordinator.secure). Every other query that would change margins changes the
    model.

    layout : layout of the coordinates. n_records : number of training records. label : the party with the labels.
    rows : {party: (block, centres, scales)} of the last pass of gradients, which decide how finely margins are
        measured; before, centres of 0 and scales of 1.
    measured : {party: its coefficients} of the model that is measured on held-out records; {} before.
    """

    units = 1

    def __init__(self, layout: Layout, n_records: int, label: str) -> None:
        self._sizes = {party: len(names) for party, names in layout.columns.items()}
        self._label = label
        self.counts: tuple[int, ...] = (n_records,)
        self.rows: Mapping[str, Scaled] = {
            party: (block, np.zeros(block.size), np.ones(block.size)) for party, block in layout.whole().items()
        }
        self.measured: Mapping[str, Vector] = {}
        self.model = Model({party: np.zeros(size) for party, size in self._sizes.items()})

    def state(self) -> Model:
        """Return the model, for `restore`. An update replaces the model and never changes it in place."""
        return self.model

    def restore(self, state: Model) -> None:
        """Go back to an earlier model."""
        self.model = state

    def shares(self, query: Query) -> Mapping[str, Query]:
        """Return {party: its part of a query}.

        A gradient query goes to all parties. PrivacyError for a query that needs margins.
        """
        return query.on_shares(tuple(self._sizes), self._label)

    def records(self, query: Query) -> Records:
        """Return no vectors, since under trust='secure' parties see no per-record vector."""
        return Records()

    def take(self, query: Query, replies: Mapping[str, Reply]) -> None:
        """Change the model as a query would change `LinearPredictors`. PrivacyError for a reply with an entry per record."""
        if any(reply.vector is not None for reply in replies.values()):
            self._refuse()
        for update in query.updates():
            self._move(update)
        if query.capped is not None:
            self.rows = query.capped.rows
        if isinstance(query, Forward) and query.side is Side.HELD_OUT:
            own = query.coordinates
            self.measured = {q: own[q][1] if q in own else np.zeros(size) for q, size in self._sizes.items()}

    def absorb(self, target: str, vectors: Iterable[Vector]) -> None:
        """Raise PrivacyError if `vectors` is not empty."""
        if list(vectors):
            self._refuse()

    def tally(self, query: Tally) -> NoReturn:
        """Raise PrivacyError, since statistics need margins."""
        self._refuse()

    def _move(self, update: Update) -> None:
        w = {
            party: np.zeros(size) if update.reset else self.model.w[party].copy() for party, size in self._sizes.items()
        }
        for party, (block, delta) in update.coordinates.items():
            w[party][block.local] += delta
        shift: Any = 0.0 if update.reset else self.model.shift
        self.model = Model(w, shift + sum(update.shifts.get(party, 0.0) for party in update.coordinates))

    def _refuse(self) -> NoReturn:
        raise PrivacyError("under trust='secure' the coordinator may not keep a vector with one entry per record")
