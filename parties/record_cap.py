"""A party's own checks of a record cap: which blocks a charge covers, and how much one record may contribute.

`OwnCap` is for the party's main process, which sees all releases of the party. `OwnBounds` is for each shard of its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vfl.errors import PrivacyError
from vfl.kernels.dense import bounds_of
from vfl.kernels.geometry import PIECE, record_limits
from vfl.messages import Descend
from vfl.privacy.geometry import Clip

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from vfl.messages import Backward, Block, Paid, RecordCap
    from vfl.privacy.events import Gaussian, PoissonSubsampledGaussian, ReleaseKey
    from vfl.types import Vector

    Row = tuple[Block, Vector, Vector]
    Release = tuple[Clip, Gaussian | PoissonSubsampledGaussian | None]
    Shape = tuple[float, bytes, bytes]


class _Bounds(NamedTuple):
    """Bounds of residuals, and the inputs from which they were computed."""

    shape: Shape
    loss: int
    given: Vector | None
    labels: Vector
    bounds: Vector


class Coverage:
    """Coordinates that were released under each charge. A charge covers each coordinate once, under one cap and one scale.

    repeats : True if a release may be repeated, because seeded noise is the same to the bit.
    """

    def __init__(self, party: str, *, repeats: bool) -> None:
        self._party, self._repeats = party, repeats
        self._made: dict[ReleaseKey, tuple[Gaussian, Hashable, int | None, set[Hashable]]] = {}

    def admit(self, paid: Paid, shape: Hashable, coordinates: Sequence[Hashable], subsample: int | None = None) -> None:
        """Record coordinates to be released. Raises PrivacyError unless the charge `paid` covers them.

        shape : cap and scale of all rows.
        """
        charged, known, records, made = self._made.setdefault(paid.key, (paid.event, shape, subsample, set()))
        if records != subsample:
            raise self.refusal("was asked for other records within a pass, which was charged for one subsample only")
        if charged != paid.event:
            raise self.refusal("was asked to change the charge within a pass, which was charged with its first block")
        if known != shape:
            raise self.refusal("was asked to change the cap or the scale within a pass")
        new = set(coordinates)
        if not self._repeats and (len(new) < len(coordinates) or not made.isdisjoint(new)):
            raise self.refusal("was asked for a coordinate twice in one pass, which was charged for one release of it")
        made |= new

    def refusal(self, why: str) -> PrivacyError:
        """Return the error of a party that refuses a release."""
        return PrivacyError(f"party {self._party!r} {why}")


class OwnCap:
    """Refuses releases that cost more privacy than was charged, whatever residuals and limits the coordinator sends.

    Guarantee. The coordinates of one charge's releases are disjoint and have one scale. A record contributes to all of these
    releases together a vector of norm at most C(1 + p·2⁻⁵⁰), before rounding. The coordinator vouches for the norms of the
    other parties' columns.

    n_coordinates : p_k, number of the party's own coordinates. repeats : as for `Coverage`.
    """

    def __init__(self, party: str, n_coordinates: int, *, repeats: bool) -> None:
        self._party, self._n_coordinates = party, n_coordinates
        self._coverage = Coverage(party, repeats=repeats)

    def admit(self, query: Descend | Backward, cap: RecordCap) -> None:
        """Record the coordinates that a query releases. Raises PrivacyError if the charge of the pass does not cover them."""
        refusal = self._coverage.refusal
        if isinstance(query, Descend):
            if query.replayed is not None:
                return
            steps = query.ordered()
            asked = [(step.block, step.centre, step.scale) for step in steps]
            releases: list[Release] = [(step.clip, step.event) for step in steps]
        else:
            asked = list(zip(query.blocks, query.centres, query.scales, strict=True))
            releases = [(query.clip, query.event)]
        row, centre, scale = cap.rows[self._party]
        if not (row.start == 0 and row.stop == len(centre) == len(scale) == self._n_coordinates):
            raise refusal("was given a record cap that is not over all of its columns")
        for block, own_centre, own_scale in asked:
            if not (np.array_equal(own_centre, centre[block.local]) and np.array_equal(own_scale, scale[block.local])):
                raise refusal("was asked for a block in a scale different from that of its pass")
        if cap.paid is None:
            if any(event is not None for _, event in releases):
                raise refusal("was asked for a block of a pass that was not charged")
            return
        cap.require_covered(releases)
        if any(type(clip) is not Clip for clip, _ in releases):  # a pass moves by up to 2C; other clips claim less
            raise refusal("was asked for a block of a pass under a clip different from 'norm'")
        # Not block.coordinates, whose offset the sender chooses.
        columns = [column for block, _, _ in asked for column in range(block.start, block.stop)]
        self._coverage.admit(cap.paid, _shape(cap, self._party), columns, query.subsample)


class OwnBounds:
    """Bounds of the residuals of some rows, computed from norms of the party's own columns.

    Guarantee. No residual exceeds C divided by the norm of the record's values in these columns, whatever limits are sent.

    norms : function that computes ‖z_i‖² of every record i over the own columns.
    """

    def __init__(self, party: str, norms: Callable[[Row], Vector]) -> None:
        self._party = party
        self._norms = norms
        self._known: tuple[Shape, Vector] | None = None
        self._bounds: _Bounds | None = None

    def of(self, cap: RecordCap, given: Vector | None, labels: Vector, loss: int) -> Vector:
        """Return the bounds of residuals for vfl.kernels, (n,): the given limits, but at most C / (norm of the own columns).

        The bounds are kept for the next visit of the same pass, which brings the same vectors.

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
