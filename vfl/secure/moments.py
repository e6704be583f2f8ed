"""The parts of party and dealer in measuring held-out records on secret shares (vfl.secure.measures).

Guarantee. As in training (vfl.secure.member), whose masked angles, Fourier terms and checks of the dealer are used: a holder's
share of the moments is a function of the public sum of masked angles and of its shares of the Fourier terms, and is never sent.
An opened number is a public integer combination of the moments, with the noise of all participants. Shares of zero make the
contributions of all parties uniform but for their sum. Messages depend on the label only through the label party's angle.

    angles, terms, check   as in training, with K = 128
    noise                  dealer → label party   `MomentDealer.noise`   →  `take_noise`   (d,) uint64 per release
    opening                party → coordinator    `measured`             →  `opened`       (d,) uint64 per release
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.errors import FederationError
from vfl.kernels import ring as kernels
from vfl.secure import noise as distributed
from vfl.secure import sigmoid
from vfl.secure.columns import OwnColumns
from vfl.secure.member import Dealer, Member
from vfl.secure.ring import encoded
from vfl.secure.roles import DEALER
from vfl.secure.streams import zero_share

if TYPE_CHECKING:
    import numpy.typing as npt

    from vfl.base.types import Integers, Vector
    from vfl.kernels.ring import Angles, Elements
    from vfl.secure.measures import Measuring
    from vfl.secure.requests import ContributeMoments, Version


def unit_columns(columns: npt.NDArray[np.float64], centre: Vector, bounds: Vector) -> OwnColumns:
    """Return a party's columns for angles alone. columns : (p, n). The rows for sums are empty: moments do not use them."""
    units = kernels.unit_columns(columns, bounds)
    return OwnColumns(units[:0], units, centre, bounds, 0)


class MomentMember(Member):
    """One party's part in measuring held-out records; arguments as for `Member`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        labels, self._halves = self._halves, None
        self._shifts = None if labels is None else sigmoid.class_angles(labels.view(np.int64) < 0)
        self._noises: dict[ContributeMoments, Elements] = {}

    def take_noise(self, measure: ContributeMoments, elements: Elements) -> None:
        """Take the dealer's masked noise of a release, as the label party."""
        self._noises[measure] = elements

    def measured(self, measure: ContributeMoments, measuring: Measuring) -> Elements:
        """Return this party's share of a release, (d,) uint64: its part, its noise and its share of zero.

        The caller charges the release first. A second request for the same release is refused.
        """
        roles, version = self._roles, measure.version
        release = measuring.release(measure.number, version.place)
        self.require_checked(version)
        size = len(release.matrix)
        total = zero_share(self._streams, self.name, roles.parties, measure.name, size)
        deviation = measuring.deviations(measure.number, release.bits).party
        total += encoded(distributed.drawn(self._noise, measure.key, self.name, deviation, size))
        if self.name == roles.label:
            if measure not in self._noises:
                raise FederationError("the dealer's message for a measure is missing")
            total += self._noises.pop(measure)
        elif self.holds:
            total += self._streams.once(DEALER, *measure.name).words(size)
        if self.holds:
            total += kernels.products(np.ascontiguousarray(release.matrix).view(np.uint64), self.share(version))
        return total

    def _own_angles(self, version: Version, w: Vector, clamp: float | None) -> Angles:
        angles = super()._own_angles(version, w, clamp)
        return angles if self._shifts is None else angles + self._shifts

    def _empty(self, version: Version) -> Elements:
        return np.zeros(2 * version.terms, dtype=np.uint64)

    def _put(
        self,
        out: Elements,
        version: Version,
        at: slice | Integers,
        angles: Angles,
        elements: Elements,
        instead_of: Elements | None = None,
    ) -> None:
        table = sigmoid.fourier_terms(version.terms)
        out += kernels.moments(table, angles, elements)
        if instead_of is not None:
            out -= kernels.moments(table, angles, instead_of)


class MomentDealer(Dealer):
    """The dealer's part in measuring held-out records."""

    def noise(self, measure: ContributeMoments, measuring: Measuring) -> Elements:
        """Return the dealer's masked noise of a release for the label party, (d,) uint64. To that party it looks uniform."""
        release = measuring.release(measure.number, measure.version.place)
        size, deviation = len(release.matrix), measuring.deviations(measure.number, release.bits).dealer
        total = encoded(distributed.drawn(self._noise, measure.key, DEALER, deviation, size))
        for holder in self._roles.receivers(self._roles.label):
            total = total - self._streams.once(holder, *measure.name).words(size)
        return total
