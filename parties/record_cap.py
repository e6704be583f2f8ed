"""A party's own checks of a record cap: which blocks a charge covers, and how much one record may contribute.

`OwnCap` is for the party's main process, which sees all releases of the party. `OwnBounds` is for each shard of its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vfl.errors import PrivacyError
from vfl.kernels.dense import bounds_of
from vfl.kernels.geometry import PIECE, record_limits
from vfl.privacy.cover import Answer, Cover, Frame
from vfl.privacy.geometry import Clip
from vfl.queries.passes import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from vfl.base.types import Vector
    from vfl.queries import Paid, Query, RecordCap
    from vfl.queries.parts import Scaled

    Shape = tuple[float, bytes, bytes]


class _Bounds(NamedTuple):
    """Bounds of residuals, and the inputs from which they were computed."""

    shape: Shape
    loss: int
    given: Vector | None
    labels: Vector
    bounds: Vector


REFUSALS = {
    Answer.RECORDS: "was asked for other records within a pass, which was charged for one subsample only",
    Answer.EVENTS: "was asked to change the charge within a pass, which was charged with its first block",
    Answer.WHOLE: "was asked to change the cap or the scale within a pass",
    Answer.TWICE: "was asked for a coordinate twice in one pass, which was charged for one release of it",
}


def admit(
    cover: Cover, party: str, paid: Paid, shape: object, units: Sequence[Hashable], subsample: int | None = None
) -> None:
    """Record the coordinates that a party releases in a pass. Raises PrivacyError unless the charge `paid` covers them.

    shape : cap and scale of all rows.
    """
    answer = cover.admit(Frame(subsample, paid.event, shape), units, paid.key)
    if answer in REFUSALS:
        raise PrivacyError(f"party {party!r} {REFUSALS[answer]}")


class OwnCap:
    """Refuses releases that cost more privacy than was charged, whatever residuals and limits the coordinator sends.

    Guarantee. The queries under one charge release different coordinates, in one scale. A query may release its coordinates m
    times, with √m times the noise of the charge. To one release of each coordinate, a record contributes together a vector of
    norm at most C(1 + p·2⁻⁵⁰), before rounding. The coordinator vouches for the norms of the other parties' columns.

    n_coordinates : p_k, number of the party's own coordinates. repeats : as for `Cover`.
    """

    def __init__(self, party: str, n_coordinates: int, *, repeats: bool) -> None:
        self._party, self._n_coordinates = party, n_coordinates
        self._cover = Cover(repeats=repeats)

    def admit(self, query: Query, cap: RecordCap) -> None:
        """Record the coordinates that a query releases. Raises PrivacyError if the charge of the pass does not cover them."""
        if not (terms := query.terms()):
            return
        row, centre, scale = cap.rows[self._party]
        if not (row.start == 0 and row.stop == len(centre) == len(scale) == self._n_coordinates):
            raise self._refusal("was given a record cap that is not over all of its columns")
        for term in terms:
            own = term.block.local
            if not (np.array_equal(term.centre, centre[own]) and np.array_equal(term.scale, scale[own])):
                raise self._refusal("was asked for a block in a scale different from that of its pass")
        if cap.paid is None:
            if any(term.event is not None for term in terms):
                raise self._refusal("was asked for a block of a pass that was not charged")
            return
        # Count positions in the block: the sender chooses the offset in block.coordinates, and could hide a repetition.
        columns, times = counted(column for term in terms for column in range(term.block.start, term.block.stop))
        cap.require_covered(((term.clip, term.event) for term in terms), times)
        if any(type(term.clip) is not Clip for term in terms):  # Δ of a pass is 2C; other clips would claim a smaller Δ
            raise self._refusal("was asked for a block of a pass under a clip different from 'norm'")
        admit(self._cover, self._party, cap.paid, _shape(cap, self._party), columns, query.subsample)

    def _refusal(self, why: str) -> PrivacyError:
        return PrivacyError(f"party {self._party!r} {why}")


class OwnBounds:
    """Bounds of the residuals of some rows, computed from norms of the party's own columns.

    Guarantee. No residual exceeds C divided by the norm of the record's values in these columns, whatever limits are sent.

    norms : function that computes ‖z_i‖² of every record i over the own columns.
    """

    def __init__(self, party: str, norms: Callable[[Scaled], Vector]) -> None:
        self._party = party
        self._norms = norms
        self._known: tuple[Shape, Vector] | None = None
        self._bounds: _Bounds | None = None

    def of(self, cap: RecordCap, given: Vector | None, labels: Vector, loss: int) -> Vector:
        """Return the bounds of residuals for vfl.kernels, (n,): the given limits, but at most C / (norm of the own columns).

        The bounds are kept for the next message of the same pass, which brings the same vectors.

        given : limits from all columns of a record; None if only the own columns set the limits. loss : the kernels' code of
            the loss.
        """
        shape = _shape(cap, self._party)
        known = self._bounds
        if known is not None and known.given is given and known.labels is labels and known[:2] == (shape, loss):
            return known.bounds
        limits = self._own_limits(shape, cap) if given is None else self._lower(shape, cap, given)
        self._bounds = _Bounds(shape, loss, given, labels, bounds_of(limits, labels, loss))
        return self._bounds.bounds

    def _own_limits(self, shape: Shape, cap: RecordCap) -> Vector:
        """Return C / (norm of the own columns), (n,). The result is kept for the next query without limits."""
        if self._known is None or self._known[0] != shape:
            self._known = shape, record_limits(self._norms(cap.rows[self._party]), cap.cap)
        return self._known[1]

    def _lower(self, shape: Shape, cap: RecordCap, given: Vector) -> Vector:
        """Return the given limits, (n,), clamped to [0, C / (norm of the own columns)]; NaN becomes the upper bound.

        For large n, the party's own limits are dropped after use, so that the party keeps one vector less beside the bounds.
        """
        kept = len(given) <= PIECE or (self._known is not None and self._known[0] == shape)
        own = self._own_limits(shape, cap)
        if not kept:
            self._known = None
        lower = np.fmin(given, own, out=None if kept else own)  # np.clip would keep NaN, which is no limit
        return np.maximum(lower, 0.0, out=lower)


def _shape(cap: RecordCap, party: str) -> Shape:
    _, centre, scale = cap.rows[party]
    return cap.cap, centre.tobytes(), scale.tobytes()
